"""Train at several exponents p and depths (L_cycles or rounds), and show where that is stable.

python scripts/sweep.py experiment=mini seeds=[0,1,2]
python scripts/sweep.py experiment=mini which=L depths=[2,4,8] optim.lr=4e-3
python scripts/sweep.py experiment=mini exponents=[0.25,0.5] depths=[1,2,4,8] seeds=[0,1,2]
python scripts/sweep.py experiment=mini model=looped depths=[3]

Per point: the share of seeds that train, and the loss of those that do; per depth the boundary,
the least exponent from which on all seeds train. With alignment.every also kappa at the end of
training, its exponent gamma over depths at each p, and p* = (1 + gamma) / 4, where the theory has
the boundary. Finished cells are read.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from eval.plots import plot_sweep
from eval.tables import Table, format_markdown
from hrm_deeploop.alignment import LOG_PREFIX, fit_exponent
from hrm_deeploop.runs.build import build_network
from hrm_deeploop.runs.cells import TRAINED
from hrm_deeploop.runs.comparison import (
    WORKPLACE_KEYS,
    CompareOptions,
    Plan,
    Workplace,
    check_distinct,
    check_no_ranks,
    run_cells,
)
from hrm_deeploop.runs.compose import Composer
from hrm_deeploop.runs.config import validate
from hrm_deeploop.runs.directory import METRICS_FILE
from hrm_deeploop.runs.evaluation import Count
from hrm_deeploop.runs.metrics import read_metrics

FILES = SWEEP_FILE, MARKDOWN_FILE, PLOT_FILE = "sweep.json", "sweep.md", "sweep.png"
OWN_KEYS = ("exponents", "which", "other", "depths", "seeds", *WORKPLACE_KEYS)


class SweepOptions(Workplace):
    """Keys of ``configs/sweep.yaml`` beside those of a run."""

    exponents: Annotated[
        tuple[Annotated[float, Field(ge=0, le=4)], ...], Field(strict=False, min_length=1)
    ]
    which: Literal["both", "H", "L"]
    other: float = Field(ge=0, le=4)
    depths: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)]
    run_dir: str = Field(min_length=1)


DEPTH_KEYS = {"hrm": "L_cycles", "looped": "rounds"}  # what a depth is, by model.name
REVISITED = {"L_cycles": "L", "rounds": "loop"}  # the module whose visits the depth counts


def sweep_arms(options: SweepOptions, depth_key: str) -> dict[str, dict[str, Any]]:
    """An arm for every exponent and depth, by a name such as ``p0.25-depth4``."""
    arms = {}
    for depth in options.depths:
        for p in options.exponents:
            own = {"H": {"scaling.p_H": p}, "L": {"scaling.p_L": p}}
            chosen = ("H", "L") if options.which == "both" else (options.which,)
            exponents = {"scaling.p_H": options.other, "scaling.p_L": options.other}
            for module in chosen:
                exponents |= own[module]
            if depth_key == "rounds":  # there is no H
                del exponents["scaling.p_H"]
            arms[_arm_name(p, depth)] = {
                "scaling": "custom",
                "scaling.count": "gradient",
                **exponents,
                f"model.{depth_key}": depth,
            }
    return arms


def _arm_name(p: float, depth: int) -> str:
    return f"p{p!r}-depth{depth}"


def summarize(
    options: SweepOptions, cells: list[dict[str, Any]], rounds: Mapping[int, int], module: str
) -> list[dict[str, Any]]:
    """A row per depth and exponent; ``rounds`` R_g of the module that is revisited, by depth."""
    rows = []
    for depth in options.depths:
        for p in options.exponents:
            found = [cell for cell in cells if cell["arm"] == _arm_name(p, depth)]
            trained = [cell for cell in found if cell["status"] == TRAINED]
            validated = [c["validation"]["eval/loss"] for c in trained if c["validation"]]
            kappas = [_last_kappa(Path(cell["run_dir"]), module) for cell in trained]
            rows.append(
                {
                    "p": p,
                    "depth": depth,
                    "num_seeds": len(found),
                    "share_trained": len(trained) / len(found),
                    "train_loss": [cell["train_loss"] for cell in trained],
                    "validation_loss": validated,
                    "kappa": [kappa for kappa in kappas if kappa is not None],
                    "rounds": rounds[depth],
                    "status": [cell["status"] for cell in found],
                }
            )
    return rows


def _last_kappa(run_dir: Path, module: str) -> float | None:
    """What ``alignment.every`` measured last."""
    key = f"{LOG_PREFIX}kappa_{module}"
    found = [row[key] for row in read_metrics(run_dir / METRICS_FILE) if key in row]
    return found[-1] if found else None


def find_boundaries(rows: Sequence[Mapping[str, Any]]) -> dict[int, float | None]:
    """By depth: the least exponent from which on every seed trains; None if there is none.

    A large exponent can be too slow to learn in the steps given, which is no instability; so
    exponents above the largest at which any seed trains do not count.
    """
    found: dict[int, float | None] = {}
    for depth in dict.fromkeys(row["depth"] for row in rows):
        own = sorted((r for r in rows if r["depth"] == depth), key=lambda row: row["p"])
        while own and own[-1]["share_trained"] == 0:
            own.pop()
        boundary = None
        for row in reversed(own):
            if row["share_trained"] < 1:
                break
            boundary = row["p"]
        found[depth] = boundary
    return found


def fit_thresholds(rows: Sequence[Mapping[str, Any]]) -> dict[float, tuple[float, float]]:
    """(gamma, p*) by exponent, of kappa over rounds; for exponents that have two depths of it."""
    found = {}
    for p in dict.fromkeys(row["p"] for row in rows):
        points = [(r["rounds"], kappa) for r in rows if r["p"] == p for kappa in r["kappa"]]
        if len({rounds for rounds, _ in points}) > 1:
            found[p] = fit_exponent(*zip(*points, strict=True))
    return found


def sweep_tables(sweep: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of a sweep.json, exponents by depths, by a short name."""
    rows = sweep["rows"]
    exponents = list(dict.fromkeys(row["p"] for row in rows))
    depths = list(dict.fromkeys(row["depth"] for row in rows))

    def table(caption: str, entry: Any) -> Table:
        return Table(
            caption,
            [f"p={p!r}" for p in exponents],
            {
                f"{sweep['depth_key']} {depth}": [
                    entry(row) for row in rows if row["depth"] == depth
                ]
                for depth in depths
            },
        )

    def loss(key: str) -> Any:
        return lambda row: f"{np.mean(row[key]):.3f}" if row[key] else "n/a"

    num_seeds = max(row["num_seeds"] for row in rows)
    other = f"at p={sweep.get('other', 0.5)!r}"  # sweeps of before it was kept took the default
    module = {"both": "H and L", "H": f"H, L {other}", "L": f"L, H {other}"}[sweep["which"]]
    if sweep["depth_key"] == "rounds":
        module = "the loop"
    boundaries = find_boundaries(rows)
    # H has as many rounds at every depth, so the threshold of L says nothing of its exponent.
    thresholds = {} if sweep["which"] == "H" else fit_thresholds(rows)
    tables = {
        "share trained": table(
            f"share of {num_seeds} seeds that train; p of {module}",
            lambda row: f"{row['share_trained']:.2f}",
        ),
        "train loss": table(
            "training loss at the end, of the seeds that train", loss("train_loss")
        ),
        "validation loss": table(
            "loss on held-out demonstrations, of the seeds that train", loss("validation_loss")
        ),
        "boundary": Table(
            "boundary: the least p from which on every seed trains",
            ["p"],
            {
                f"{sweep['depth_key']} {depth}": ["none" if p is None else f"{p!r}"]
                for depth, p in boundaries.items()
            },
        ),
    }
    if any(row["kappa"] for row in rows):
        tables["kappa"] = table(
            f"kappa_{REVISITED[sweep['depth_key']]} at the end of training (at most R), of the "
            "seeds that train",
            loss("kappa"),
        )
    if thresholds:
        tables["threshold"] = Table(
            "kappa ~ R^gamma over depths at each p, and the threshold p* = (1 + gamma) / 4",
            [f"p={p!r}" for p in thresholds],
            {
                "gamma": [f"{gamma:.2f}" for gamma, _ in thresholds.values()],
                "p*": [f"{p_star:.2f}" for _, p_star in thresholds.values()],
            },
        )
    return tables


def plan_sweep(composer: Composer) -> tuple[SweepOptions, str, Plan]:
    """Plan the sweep that ``configs/sweep.yaml`` describes: its options, what a depth is, cells.

    Raises:
        ValueError: if a value is given twice, or the model does not have the module.
    """
    check_no_ranks("sweep")
    values = composer.values()
    own = {key: values[key] for key in (*OWN_KEYS, "run_dir")}
    own["seeds"] = own["seeds"] or [values["seed"]]
    model = values["model"]
    depth_key = DEPTH_KEYS.get(str(model.get("name")), "L_cycles")
    own["depths"] = own["depths"] or [model[depth_key]]
    if isinstance(own["exponents"], list):  # 0 is an integer to Hydra
        own["exponents"] = [float(p) if isinstance(p, int) else p for p in own["exponents"]]
    options: SweepOptions = validate(SweepOptions, own)
    if model.get("name") == "looped" and options.which != "both":
        raise ValueError(f"which={options.which}: a looped model has one loop; allowed is both")
    for key in ("exponents", "depths", "seeds"):
        check_distinct(key, getattr(options, key))
    compared = CompareOptions(
        arms=sweep_arms(options, depth_key),
        baseline=None,
        seeds=options.seeds,
        grid={},
        budget="steps",
        run_dir=options.run_dir,
        report_dir=options.run_dir,
        **{key: getattr(options, key) for key in WORKPLACE_KEYS},
    )
    return options, depth_key, Plan(compared, composer, own_keys=OWN_KEYS)


def run_sweep(options: SweepOptions, depth_key: str, plan: Plan) -> dict[str, Any]:
    """Run the cells that are not finished, and write sweep.json, sweep.md and sweep.png.

    Raises:
        StoppedError: if a signal ended the work; the same call goes on.
    """
    cells = plan.final_cells(plan.choose())
    found = run_cells(cells, test=False, where=plan.options, description="sweep")
    module, first = REVISITED[depth_key], options.exponents[0]
    rounds = {}
    for depth in options.depths:
        config = plan.cell(_arm_name(first, depth), {}, options.seeds[0]).config
        rounds[depth] = build_network(config, torch.device("meta")).visits[module].rounds
    rows = summarize(options, found, rounds, module)
    sweep = {"which": options.which, "other": options.other, "depth_key": depth_key, "rows": rows}
    run_dir = Path(options.run_dir)
    (run_dir / SWEEP_FILE).write_text(json.dumps(sweep, indent=2) + "\n", encoding="utf-8")
    text = format_markdown(sweep_tables(sweep).values())
    (run_dir / MARKDOWN_FILE).write_text(text, encoding="utf-8")
    plot_sweep(rows, find_boundaries(rows), depth_key, run_dir / PLOT_FILE)
    return sweep
