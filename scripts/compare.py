"""Train arms that differ in declared overrides alone, evaluate them and print both ladders.

    python scripts/compare.py experiment=mini
    python scripts/compare.py experiment=mini arms=[vanilla,deepnorm,deeploop] seeds=[0,1,2]
    python scripts/compare.py experiment=mini 'grid={optim.lr:[5e-4,1e-3,2e-3]}' data.validation=0.5
    python scripts/compare.py experiment=mini '+arms.mine={scaling:deeploop,optim.lr:2e-3}'

Cells (arm x point of the grid x seed) that are already in run_dir are used as they are. With a grid
each arm takes the point with the lowest loss on held-out demonstrations, by its first seed; test
pairs are predicted for the chosen points alone. Several processes share the cells with share=0/2
and share=1/2 (a SLURM array), or under torchrun.
"""

import base64
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from eval.compare import check_declared, config_difference, format_difference
from eval.comparison import comparison_sheets, format_markdown, format_text, write_html
from eval.paired import compare_ranks, mean_and_spread
from eval.plots import plot_curves, plot_ladders
from eval.score import Score
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.device import Ranks, choose_device
from hrm_deeploop.metrics import read_metrics
from scripts import cli
from scripts.assemble import METRICS_FILE
from scripts.cells import TRAINED, Cell, StoppedError, cell_name, read_cell, run_cell
from scripts.describe import run_costs
from scripts.run_config import RunConfig, to_yaml, validate

COMPARISON_FILE, MARKDOWN_FILE, HTML_FILE = "comparison.json", "comparison.md", "comparison.html"
LADDER_PLOT, CURVES_PLOT = "ladder.png", "curves.png"
OWN_KEYS = ("arms", "seeds", "grid", "budget", "share")  # of the comparison, not of a run
RESERVED = {"run_dir", "resume", "output", "seed", *OWN_KEYS}
ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
SECONDS_BETWEEN_LOOKS = 5.0

Arms = dict[str, dict[str, Any]]
Scalar = bool | int | float | str


class CompareOptions(StrictConfig):
    """Keys of ``configs/compare.yaml`` beside those of a run."""

    arms: dict[str, Any]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)]
    grid: dict[str, Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1)]]
    budget: Literal["steps", "examples", "flops"]
    share: str | None = Field(pattern=r"^\d+/[1-9]\d*$")
    run_dir: str = Field(min_length=1)


def check_arms(arms: Mapping[str, Any], grid: Mapping[str, Any]) -> None:
    """Refuse arms and grids that are no comparison.

    Raises:
        ValueError: naming the arm or the key and what is allowed.
    """
    for key, values in grid.items():
        if key in RESERVED:
            raise ValueError(
                f"grid.{key}: a grid has keys of a run other than {', '.join(sorted(RESERVED))}"
            )
        check_distinct(f"grid.{key}", values)
    for name, own in arms.items():
        if not ARM_NAME.fullmatch(name):
            raise ValueError(f"arms.{name}: a name has letters, digits, '_', '-' and '.' only")
        if not isinstance(own, dict):
            raise ValueError(
                f"arms.{name}={own}: expected keys and values, as {{scaling: vanilla}}"
            )
        reserved = sorted(RESERVED & own.keys())
        if reserved or not own:
            raise ValueError(
                f"arms.{name}: {', '.join(reserved) or 'no key'} given; an arm declares keys of a "
                f"run other than {', '.join(sorted(RESERVED))}"
            )
        both = sorted(own.keys() & grid.keys())
        if both:
            raise ValueError(f"arms.{name} and grid both set {both[0]}")


def check_distinct(key: str, values: Sequence[Any]) -> None:
    """Refuse a value that is given twice.

    Raises:
        ValueError: naming it.
    """
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ValueError(f"{key}={list(values)}: {twice[0]} is given twice")


class Comparison:
    """The cells of a comparison and their configurations.

    Raises:
        ValueError: if the arms differ in what none of them declares.
    """

    def __init__(
        self,
        options: CompareOptions,
        overrides: list[str],
        *,
        config_name: str = "compare",
        own_keys: Sequence[str] = OWN_KEYS,
    ) -> None:
        self.options = options
        self._config_name = config_name
        self._own_keys = own_keys
        self.run_dir = Path(options.run_dir)
        self._overrides = overrides
        check_arms(options.arms, options.grid)
        check_distinct("seeds", options.seeds)
        keys, values = list(options.grid), itertools.product(*options.grid.values())
        self.points = [dict(zip(keys, point, strict=True)) for point in values]
        self._steps = dict.fromkeys(options.arms) | self._budgeted_steps()
        configs = {
            arm: self.cell(arm, self.points[0], options.seeds[0]).config for arm in self.arms
        }
        self.check(configs)
        if options.grid and not next(iter(configs.values())).data.validation:
            raise ValueError(
                "grid: choosing a point needs data.validation above 0 (data.validation=0.5): it is "
                "chosen on held-out demonstrations, never on test pairs"
            )

    @property
    def arms(self) -> list[str]:
        return list(self.options.arms)

    def check(self, configs: Mapping[str, RunConfig]) -> dict[str, dict[str, Any]]:
        """The difference of the arms' configurations, all of which must be declared."""
        difference = config_difference({name: c.model_dump() for name, c in configs.items()})
        exceptions = [*self.options.grid, *(["total_steps"] if self._steps_differ else [])]
        check_declared(difference, declared={**self.options.arms, "grid, budget": exceptions})
        return difference

    @property
    def _steps_differ(self) -> bool:
        return len(set(self._steps.values())) > 1

    def cell(self, arm: str, point: Mapping[str, Any], seed: int) -> Cell:
        """The cell of an arm, a point of the grid and a seed."""
        steps = self._steps[arm] if hasattr(self, "_steps") else None
        own = {**self.options.arms[arm], **point, "seed": seed}
        own |= {} if steps is None else {"total_steps": steps}
        changes = [f"{key}={json.dumps(value)}" for key, value in own.items()]
        values = cli.compose_config(self._config_name, [*self._overrides, *changes])
        for key in ("output", *self._own_keys):
            values.pop(key, None)
        place = {"run_dir": str(self.run_dir / arm / cell_name(point, seed)), "resume": "auto"}
        return Cell(arm=arm, point=point, config=validate(RunConfig, {**values, **place}))

    def _budgeted_steps(self) -> dict[str, int | None]:
        """Steps of each arm that make the budget equal to the first arm's."""
        if self.options.budget == "steps":
            return {}
        costs = {
            arm: run_costs(self.cell(arm, self.points[0], self.options.seeds[0]).config)
            for arm in self.arms
        }
        wanted = next(iter(costs.values()))[self.options.budget]
        return {
            arm: max(1, round(cost["steps"] * wanted / cost[self.options.budget]))
            for arm, cost in costs.items()
        }

    def grid_cells(self) -> list[Cell]:
        """What is trained to choose each arm's point of the grid; nothing without a grid."""
        if not self.options.grid:
            return []
        seed = self.options.seeds[0]
        return [self.cell(arm, point, seed) for point in self.points for arm in self.arms]

    def choose(self) -> dict[str, dict[str, Any]]:
        """Each arm's point with the lowest validation loss; one that diverged has none."""
        chosen = dict.fromkeys(self.arms, self.points[0])
        for arm in self.arms if self.options.grid else ():
            losses = {}
            for number, point in enumerate(self.points):
                found = read_cell(self.cell(arm, point, self.options.seeds[0]))
                assert found is not None
                if found["validation"] is not None:
                    losses[number] = found["validation"]["eval/loss"]
            if losses:
                chosen[arm] = self.points[min(losses, key=losses.__getitem__)]
        return chosen

    def final_cells(self, chosen: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
        """Every arm at its chosen point with every seed."""
        seeds = self.options.seeds
        return [self.cell(arm, chosen[arm], seed) for seed in seeds for arm in self.arms]


def parse_share(share: str | None) -> tuple[int, int]:
    """Which share of the cells this process runs, of how many; torchrun's place by default.

    Raises:
        ValueError: if there is no such share.
    """
    if share is None:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    index, total = map(int, share.split("/"))
    if index >= total:
        raise ValueError(f"share={share}: allowed are 0/{total} to {total - 1}/{total}")
    return index, total


def run_cells(
    cells: Sequence[Cell], share: tuple[int, int], ranks: Ranks, *, test: bool
) -> list[dict[str, Any]]:
    """Run this process's share of the cells, then wait for the others' ends."""
    index, total = share
    for number, cell in enumerate(cells):
        if number % total == index:
            print(f"cell {number + 1}/{len(cells)}: {cell.title}", file=sys.stderr)
            run_cell(cell, ranks, test=test)
    missing, said = list(_unfinished(cells, test=test)), 0
    while missing:
        if len(missing) != said:
            said = len(missing)
            print(f"waiting for {said} cells of other shares", file=sys.stderr)
        time.sleep(SECONDS_BETWEEN_LOOKS)
        missing = list(_unfinished(cells, test=test))
    found = [read_cell(cell) for cell in cells]
    return [entry for entry in found if entry is not None]


def _unfinished(cells: Sequence[Cell], *, test: bool) -> Iterator[Cell]:
    for cell in cells:
        found = read_cell(cell)
        if found is None or (test and found["test"] is None and not found["failure"]):
            yield cell


def summarize(
    comparison: Comparison,
    chosen: Mapping[str, dict[str, Any]],
    grid: Sequence[dict[str, Any]],
    final: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The content of comparison.json."""
    by_arm = {arm: [cell for cell in final if cell["arm"] == arm] for arm in comparison.arms}
    configs = {
        arm: comparison.cell(arm, chosen[arm], comparison.options.seeds[0]).config
        for arm in comparison.arms
    }
    first = next(iter(configs.values()))
    baseline = comparison.arms[0]
    arms = {}
    for arm, cells in by_arm.items():
        tested = [cell["test"] for cell in cells if cell["test"] is not None]
        ladders = [test["ladder"] for test in tested]
        base = [cell["test"]["truth_ranks"] for cell in by_arm[baseline] if cell["test"]]
        ranks = [test["truth_ranks"] for test in tested]
        attempts = [int(k) for k in ladders[0]["all_tests"]] if ladders else []
        can_compare = arm != baseline and ranks and base and base[0]
        arms[arm] = {
            "overrides": comparison.options.arms[arm],
            "chosen": chosen[arm],
            "seeds": [cell["seed"] for cell in cells],
            "run_dirs": [cell["run_dir"] for cell in cells],
            "num_trained": sum(cell["status"] == TRAINED for cell in cells),
            "failures": [cell["failure"] for cell in cells if cell["failure"]],
            "train_loss": _mean([cell["train_loss"] for cell in cells]),
            "validation_loss": _mean(
                [cell["validation"]["eval/loss"] for cell in cells if cell["validation"]]
            ),
            "seconds": _mean([cell["seconds"] for cell in cells]),
            **{key: cells[0][key] for key in ("steps", "examples", "flops", "params")},
            "ladder": _mean_ladder(ladders) if ladders else None,
            "spread": {
                score: mean_and_spread([ladder[score] for ladder in ladders])
                for score in Score._fields
            }
            if ladders
            else None,
            "difference": {
                score: {rung: d._asdict() for rung, d in rungs.items()}
                for score, rungs in compare_ranks(ranks, base, attempts).items()
            }
            if can_compare
            else None,
        }
    return {
        "arms": arms,
        "baseline": baseline,
        "budget": comparison.options.budget,
        "config_difference": comparison.check(configs),
        "grid": [
            {
                "arm": cell["arm"],
                "name": Path(cell["run_dir"]).name,
                "point": cell["point"],
                "status": cell["status"],
                "train_loss": cell["train_loss"],
                "validation_loss": (cell["validation"] or {}).get("eval/loss"),
                "validation_arc_prize_at_2": (cell["validation"] or {}).get("eval/arc_prize_at_2"),
            }
            for cell in grid
        ],
        "cells": list(final),
        "is_arc1_evaluation": first.data.source == "arc1" and first.data.evaluate == "evaluation",
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean_ladder(ladders: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A ladder whose fractions are means over seeds."""

    def mean(*path: str) -> dict[str, float | None]:
        found = []
        for ladder in ladders:
            level: Any = ladder
            for key in path:
                level = level[key]
            found.append(level)
        return {rung: entry[0] for rung, entry in mean_and_spread(found).items()}

    nested = ("oracle", "votes_at_2")
    return {
        **ladders[0],
        **{score: mean(score) for score in Score._fields},
        **{key: {score: mean(key, score) for score in Score._fields} for key in nested},
        "mean_segments": _mean([ladder["mean_segments"] for ladder in ladders]),
        "warnings": list(dict.fromkeys(w for ladder in ladders for w in ladder["warnings"])),
    }


def write_comparison(summary: dict[str, Any], run_dir: Path) -> str:
    """Write comparison.json, .md, .html and both pictures; returns the tables as text."""
    run_dir.mkdir(parents=True, exist_ok=True)
    sheets = comparison_sheets(summary)
    difference = format_difference(summary["config_difference"])
    text = json.dumps(summary, indent=2) + "\n"
    (run_dir / COMPARISON_FILE).write_text(text, encoding="utf-8")
    pictures = {}
    ladders = {name: arm["ladder"] for name, arm in summary["arms"].items() if arm["ladder"]}
    if ladders:
        spreads = {name: summary["arms"][name]["spread"] for name in ladders}
        plot_ladders(ladders, run_dir / LADDER_PLOT, spreads)
        pictures["Voted accuracy"] = _data_uri(run_dir / LADDER_PLOT)
    metrics = {
        name: [read_metrics(Path(place) / METRICS_FILE) for place in arm["run_dirs"]]
        for name, arm in summary["arms"].items()
    }
    plot_curves(metrics, run_dir / CURVES_PLOT)
    pictures["Training"] = _data_uri(run_dir / CURVES_PLOT)
    markdown = f"{format_markdown(sheets)}\n```\n{difference}\n```\n"
    (run_dir / MARKDOWN_FILE).write_text(markdown, encoding="utf-8")
    write_html(sheets, difference, pictures, run_dir.name, run_dir / HTML_FILE)
    warnings = [
        f"warning: {name}: {warning}"
        for name, ladder in ladders.items()
        for warning in ladder["warnings"]
    ]
    return "\n".join([difference, "", format_text(sheets), *warnings])


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def main(overrides: list[str]) -> dict[str, Any]:
    values = cli.compose_config("compare", overrides)
    output = cli.take_output(values)
    own = {key: values[key] for key in (*OWN_KEYS, "run_dir")}
    own |= {key: own[key] or {} for key in ("arms", "grid")}
    if own["seeds"] is None:
        own["seeds"] = [values["seed"]]
    options: CompareOptions = validate(CompareOptions, own)
    if len(options.arms) < 2:
        raise ValueError(f"arms={list(options.arms)}: a comparison needs at least two")
    share = parse_share(options.share)
    comparison = Comparison(options, overrides)
    cells = comparison.grid_cells() or comparison.final_cells(comparison.choose())
    first = cells[0]
    cli.show_config(
        f"# cell {first.title}; the others differ as listed below\n{to_yaml(first.config)}"
    )
    ranks = Ranks(device=choose_device(first.config.device))
    try:
        grid = run_cells(comparison.grid_cells(), share, ranks, test=False)
        chosen = comparison.choose()
        final = run_cells(comparison.final_cells(chosen), share, ranks, test=True)
    except StoppedError as stopped:
        print("stopped; the same command goes on", file=sys.stderr)
        return {"exit_status": 128 + stopped.number}
    summary = summarize(comparison, chosen, grid, final)
    if share[0] == 0:
        text = write_comparison(summary, comparison.run_dir)
        if output == "text":
            print(text)
            names = (COMPARISON_FILE, MARKDOWN_FILE, HTML_FILE, LADDER_PLOT, CURVES_PLOT)
            print(f"written: {', '.join(names)} in {comparison.run_dir}/")
    return {**summary, "output": output if share[0] == 0 else "text"}


if __name__ == "__main__":
    cli.launch(main, "compare", __doc__, keys_of=["compare", "train"])
