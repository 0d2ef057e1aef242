"""The cells of a comparison: which there are, which are chosen, and who runs them."""

import itertools
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from eval.compare import check_declared, config_difference
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.device import Ranks
from hrm_deeploop.runs.cells import Cell, cell_name, read_cell, run_cell
from hrm_deeploop.runs.compose import CONFIG_DIR, chosen_files, compose_config, format_value
from hrm_deeploop.runs.config import RunConfig, read_yaml, validate
from hrm_deeploop.runs.costs import run_costs
from hrm_deeploop.runs.directory import BEST_BY

# Keys of the comparison, not of a run.
OWN_KEYS = ("arms", "baseline", "seeds", "grid", "budget", "share", "report_dir")
RESERVED = {"run_dir", "resume", "output", "seed", *OWN_KEYS}
ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_WORDS = 5.0, 300.0

Arms = dict[str, dict[str, Any]]
Scalar = bool | int | float | str


class CompareOptions(StrictConfig):
    """Keys of ``configs/compare.yaml`` beside those of a run."""

    arms: dict[str, Any]
    baseline: Any  # str | dict[str, str] | None; find_baselines checks it
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)]
    grid: dict[str, Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1)]]
    budget: Literal["steps", "examples", "flops"]
    share: str | None = Field(pattern=r"^\d+/[1-9]\d*$")
    run_dir: str = Field(min_length=1)
    report_dir: str = Field(min_length=1)


def check_arm_files(overrides: Sequence[str]) -> None:
    """Refuse files of ``configs/arms/`` that name the same arm: one would replace the other.

    Raises:
        ValueError: naming both files and the arm.
    """
    owner: dict[str, str] = {}
    for file in chosen_files(overrides, "arms"):
        for name in read_yaml(CONFIG_DIR / "arms" / f"{file}.yaml"):
            if name in owner:
                raise ValueError(
                    f"arms={file}: configs/arms/{owner[name]}.yaml and {file}.yaml both name an "
                    f"arm {name}"
                )
            owner[name] = file


def check_arms(arms: Mapping[str, Any], grid: Mapping[str, Any], budget: str) -> None:
    """Refuse arms and grids that are no comparison.

    Raises:
        ValueError: naming the arm or the key and what is allowed.
    """
    of_budget = set() if budget == "steps" else {"total_steps", "epochs"}
    for key, values in grid.items():
        if key in RESERVED:
            raise ValueError(
                f"grid.{key}: a grid has keys of a run other than {', '.join(sorted(RESERVED))}"
            )
        if key in of_budget:
            raise ValueError(f"grid.{key}: budget={budget} sets how long a run is")
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
        for key in sorted(of_budget & own.keys()):
            raise ValueError(f"arms.{name}: budget={budget} sets how long a run is, not {key}")


def find_baselines(arms: Sequence[str], baseline: Any) -> dict[str, str]:
    """The arm that each arm is compared with; an arm that is compared with none is left out.

    Raises:
        ValueError: if ``baseline`` is neither an arm's name nor arms by the arms to be compared
            with them, or names an arm as its own.
    """
    if not isinstance(baseline, str | Mapping | None):
        raise ValueError(f"baseline={baseline}: expected an arm, or one for each as {{arm: arm}}")
    if not isinstance(baseline, Mapping):
        single = arms[0] if baseline is None else baseline
        pairs = {arm: single for arm in arms if arm != single}
    else:
        pairs = dict(baseline)
    for name in (*pairs, *pairs.values()):
        if name not in arms:
            raise ValueError(f"baseline={baseline}: {name} is not among the arms {', '.join(arms)}")
    for arm, other in pairs.items():
        if arm == other:
            raise ValueError(f"baseline={baseline}: {arm} is compared with itself")
    return pairs


def check_distinct(key: str, values: Sequence[Any]) -> None:
    """Refuse a value that is given twice.

    Raises:
        ValueError: naming it.
    """
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ValueError(f"{key}={list(values)}: {twice[0]} is given twice")


class Plan:
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
        check_arms(options.arms, options.grid, options.budget)
        self.baselines = find_baselines(self.arms, options.baseline)
        check_distinct("seeds", options.seeds)
        keys, values = list(options.grid), itertools.product(*options.grid.values())
        self._steps: dict[tuple[str, int], int] = {}
        self.points = [dict(zip(keys, point, strict=True)) for point in values]
        self._steps = self._budgeted_steps()
        configs = {
            arm: self.cell(arm, self.points[0], options.seeds[0]).config for arm in self.arms
        }
        self.check(configs)
        for arm, config in configs.items():
            if options.grid and not config.data.validation:
                raise ValueError(
                    f"grid: choosing {arm}'s point needs data.validation above 0 "
                    "(data.validation=0.5): it is chosen on held-out demonstrations, never on test "
                    "pairs"
                )

    @property
    def arms(self) -> list[str]:
        return list(self.options.arms)

    def check(self, configs: Mapping[str, RunConfig]) -> dict[str, dict[str, Any]]:
        """The difference of the arms' configurations, all of which must be declared."""
        difference = config_difference({name: c.model_dump() for name, c in configs.items()})
        exceptions = [*self.options.grid, *(["total_steps"] if self._steps else [])]
        check_declared(difference, declared={**self.options.arms, "grid, budget": exceptions})
        return difference

    def cell(self, arm: str, point: Mapping[str, Any], seed: int) -> Cell:
        """The cell of an arm, a point of the grid and a seed."""
        own = {**self.options.arms[arm], **point, "seed": seed}
        if self._steps:
            own["total_steps"] = self._steps[arm, self.points.index(dict(point))]
        changes = [f"{key}={format_value(value)}" for key, value in own.items()]
        values = compose_config(self._config_name, [*self._overrides, *changes])
        for key in ("output", *self._own_keys):
            values.pop(key, None)
        place = {"run_dir": str(self.run_dir / arm / cell_name(point, seed)), "resume": "auto"}
        return Cell(arm=arm, point=point, config=validate(RunConfig, {**values, **place}))

    def _budgeted_steps(self) -> dict[tuple[str, int], int]:
        """Steps of each arm at each point that make its budget that of the first.

        None are set if the budget is steps.
        """
        if self.options.budget == "steps":
            return {}
        costs = {
            (arm, number): run_costs(self.cell(arm, point, self.options.seeds[0]).config)
            for arm in self.arms
            for number, point in enumerate(self.points)
        }
        wanted = next(iter(costs.values()))[self.options.budget]
        return {
            place: max(1, round(cost["steps"] * wanted / cost[self.options.budget]))
            for place, cost in costs.items()
        }

    def grid_cells(self) -> list[Cell]:
        """What is trained to choose each arm's point of the grid; nothing without a grid."""
        if not self.options.grid:
            return []
        seed = self.options.seeds[0]
        return [self.cell(arm, point, seed) for point in self.points for arm in self.arms]

    def choose(self) -> dict[str, dict[str, Any]]:
        """Each arm's point that solves most held-out demonstrations, of equals that of lower loss.

        Solved by vote, as the best checkpoint of a run is: the loss alone prefers a point that fits
        worse and is less sure of its errors. A point that diverged is never chosen.
        """
        chosen = dict.fromkeys(self.arms, self.points[0])
        for arm in self.arms if self.options.grid else ():
            merits = {}
            for number, point in enumerate(self.points):
                found = read_cell(self.cell(arm, point, self.options.seeds[0]))
                assert found is not None
                if found["validation"] is not None:
                    merits[number] = (
                        found["validation"][BEST_BY],
                        -found["validation"]["eval/loss"],
                    )
            if merits:
                chosen[arm] = self.points[max(merits, key=merits.__getitem__)]
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


def run_cells(cells: Sequence[Cell], share: tuple[int, int], ranks: Ranks, *, test: bool) -> None:
    """Run this process's share of the cells."""
    index, total = share
    for number, cell in enumerate(cells):
        if number % total == index:
            print(f"cell {number + 1}/{len(cells)}: {cell.title}", file=sys.stderr)
            run_cell(cell, ranks, test=test)


def wait_for_cells(cells: Sequence[Cell], *, test: bool) -> list[dict[str, Any]]:
    """What is known of all cells, once the other shares have run theirs.

    Which cells it waits for is said on stderr, every few minutes.
    """
    said = -math.inf
    while missing := list(_unfinished(cells, test=test)):
        if time.monotonic() - said > SECONDS_BETWEEN_WORDS:
            said = time.monotonic()
            names = ", ".join(cell.title for cell in missing[:3]) + ", ..." * (len(missing) > 3)
            print(
                f"waiting for {len(missing)} cells of other shares ({names}); a share that has "
                "ended is started again by its own command",
                file=sys.stderr,
            )
        time.sleep(SECONDS_BETWEEN_LOOKS)
    found = [read_cell(cell) for cell in cells]
    return [entry for entry in found if entry is not None]


def _unfinished(cells: Sequence[Cell], *, test: bool) -> Iterator[Cell]:
    for cell in cells:
        found = read_cell(cell)
        if found is None or (test and found["test"] is None and not found["failure"]):
            yield cell
