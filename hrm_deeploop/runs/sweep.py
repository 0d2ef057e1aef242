"""Exponents p and depths: which cells, and where training is stable."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from arc_data.atomic import write_atomically
from eval.comparison import CellResult, Status
from eval.plots import SweepPoint, plot_sweep
from eval.record import Record
from eval.tables import Table, format_html, format_markdown, format_text
from hrm_deeploop.alignment import LOG_PREFIX, fit_exponent
from hrm_deeploop.model import MODELS, Reasoner
from hrm_deeploop.runs.cells import TRAINED
from hrm_deeploop.runs.checking import validate
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
from hrm_deeploop.runs.directory import METRICS_FILE
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
    depths: Annotated[tuple[PositiveInt, ...], Field(strict=False, min_length=1)]
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)]
    run_dir: str = Field(min_length=1)


def sweep_arms(options: SweepOptions, kind: type[Reasoner]) -> dict[str, dict[str, Any]]:
    """Return an arm for every exponent and depth, by a name such as ``p0.25-depth4``."""
    arms = {}
    modules = [module for module in ("H", "L") if module in kind.loops.values()] or ["L"]
    for depth in options.depths:
        for p in options.exponents:
            chosen = modules if options.which == "both" else [options.which]
            exponents = {f"scaling.p_{m}": p if m in chosen else options.other for m in modules}
            arms[_arm_name(p, depth)] = {
                "scaling": "custom",
                "scaling.count": "gradient",
                **exponents,
                f"model.{kind.depth_key}": depth,
            }
    return arms


def _arm_name(p: float, depth: int) -> str:
    return f"p{p!r}-depth{depth}"


class SweepRow(Record):
    """One depth at one exponent, over seeds."""

    p: float
    depth: int
    num_seeds: int
    share_trained: float
    train_loss: tuple[float, ...]  # of the seeds that train
    validation_loss: tuple[float, ...]
    kappa: tuple[float, ...]  # at the end of training
    rounds: int  # R_g of the module that is revisited
    status: tuple[Status, ...]


class Sweep(Record):
    """What sweep.json holds."""

    which: Literal["both", "H", "L"]  # modules that take the exponent
    other: float  # exponent of the other module
    depth_key: str  # L_cycles or rounds
    revisited: str  # the module whose visits the depth counts
    rows: tuple[SweepRow, ...]

    @property
    def boundaries(self) -> dict[int, float | None]:
        """By depth: the least exponent from which on every seed trains; None if there is none.

        A large exponent can be too slow to learn in the steps given, which is no instability; so
        exponents above the largest at which any seed trains do not count.
        """
        found: dict[int, float | None] = {}
        for depth in dict.fromkeys(row.depth for row in self.rows):
            own = sorted((r for r in self.rows if r.depth == depth), key=lambda row: row.p)
            while own and own[-1].share_trained == 0:
                own.pop()
            boundary = None
            for row in reversed(own):
                if row.share_trained < 1:
                    break
                boundary = row.p
            found[depth] = boundary
        return found

    @property
    def thresholds(self) -> dict[float, tuple[float, float]]:
        """(gamma, p*) by exponent, of kappa over rounds; for exponents with two depths of it."""
        found = {}
        for p in dict.fromkeys(row.p for row in self.rows):
            points = [(r.rounds, kappa) for r in self.rows if r.p == p for kappa in r.kappa]
            if len({rounds for rounds, _ in points}) > 1:
                found[p] = fit_exponent(*zip(*points, strict=True))
        return found

    def tables(self) -> dict[str, Table]:
        """Return exponents by depths, by a short name."""
        return sweep_tables(self)

    def show(self) -> None:
        """Print the tables."""
        print(format_text(self.tables().values()))

    def _repr_html_(self) -> str:
        return format_html(self.tables().values())

    def __repr__(self) -> str:
        ends = ", ".join(f"{self.depth_key} {d}: {p}" for d, p in self.boundaries.items())
        return f"Sweep(boundary of p, {ends})"


def summarize(
    options: SweepOptions,
    cells: Sequence[CellResult],
    rounds: Mapping[int, int],
    kind: type[Reasoner],
) -> Sweep:
    """Put the cells together; ``rounds`` has R_g of the revisited module by depth."""
    rows = []
    for depth in options.depths:
        for p in options.exponents:
            found = [cell for cell in cells if cell.arm == _arm_name(p, depth)]
            trained = [cell for cell in found if cell.status == TRAINED]
            kappas = [_last_kappa(Path(cell.run_dir), kind.revisited) for cell in trained]
            rows.append(
                SweepRow(
                    p=p,
                    depth=depth,
                    num_seeds=len(found),
                    share_trained=len(trained) / len(found),
                    train_loss=tuple(c.train_loss for c in trained if c.train_loss is not None),
                    validation_loss=tuple(c.validation.loss for c in trained if c.validation),
                    kappa=tuple(kappa for kappa in kappas if kappa is not None),
                    rounds=rounds[depth],
                    status=tuple(cell.status for cell in found),
                )
            )
    return Sweep(
        which=options.which,
        other=options.other,
        depth_key=kind.depth_key,
        revisited=kind.revisited,
        rows=tuple(rows),
    )


def _last_kappa(run_dir: Path, module: str) -> float | None:
    """Return what ``alignment.every`` measured last."""
    key = f"{LOG_PREFIX}kappa_{module}"
    found = [row[key] for row in read_metrics(run_dir / METRICS_FILE) if key in row]
    return found[-1] if found else None


def sweep_tables(sweep: Sweep) -> dict[str, Table]:
    """Return the tables of a sweep, exponents by depths, by a short name."""
    rows, depth_key = sweep.rows, sweep.depth_key
    exponents = list(dict.fromkeys(row.p for row in rows))
    depths = list(dict.fromkeys(row.depth for row in rows))

    def table(caption: str, entry: Callable[[SweepRow], str]) -> Table:
        return Table(
            caption,
            [f"p={p!r}" for p in exponents],
            {
                f"{depth_key} {depth}": [entry(row) for row in rows if row.depth == depth]
                for depth in depths
            },
        )

    def mean(values: Sequence[float]) -> str:
        return f"{np.mean(values):.3f}" if values else "n/a"

    num_seeds = max(row.num_seeds for row in rows)
    other = f"at p={sweep.other!r}"
    module = {"both": "H and L", "H": f"H, L {other}", "L": f"L, H {other}"}[sweep.which]
    if sweep.revisited != "L":
        module = f"the {sweep.revisited}"
    # H has as many rounds at every depth, so the threshold of L says nothing of its exponent.
    thresholds = {} if sweep.which == "H" else sweep.thresholds
    tables = {
        "share trained": table(
            f"share of {num_seeds} seeds that train; p of {module}",
            lambda row: f"{row.share_trained:.2f}",
        ),
        "train loss": table(
            "training loss at the end, of the seeds that train", lambda row: mean(row.train_loss)
        ),
        "validation loss": table(
            "loss on held-out demonstrations, of the seeds that train",
            lambda row: mean(row.validation_loss),
        ),
        "boundary": Table(
            "boundary: the least p from which on every seed trains",
            ["p"],
            {
                f"{depth_key} {depth}": ["none" if p is None else f"{p!r}"]
                for depth, p in sweep.boundaries.items()
            },
        ),
    }
    if any(row.kappa for row in rows):
        tables["kappa"] = table(
            f"kappa_{sweep.revisited} at the end of training (at most R), of the seeds that train",
            lambda row: mean(row.kappa),
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


def plan_sweep(composer: Composer) -> tuple[SweepOptions, Plan]:
    """Plan the sweep that ``configs/sweep.yaml`` describes.

    Raises:
        ValueError: if a value is given twice, or the model does not have the module.
    """
    check_no_ranks("sweep")
    values = composer.values()
    own = {key: values[key] for key in (*OWN_KEYS, "run_dir")}
    own["seeds"] = own["seeds"] or [values["seed"]]
    kind = MODELS[str(values["model"].get("name"))]
    own["depths"] = own["depths"] or [values["model"][kind.depth_key]]
    if isinstance(own["exponents"], list):  # 0 is an integer to Hydra
        own["exponents"] = [float(p) if isinstance(p, int) else p for p in own["exponents"]]
    options: SweepOptions = validate(SweepOptions, own)
    if options.which not in ("both", *kind.loops.values()):
        name, modules = values["model"]["name"], ", ".join(kind.loops.values())
        raise ValueError(f"which={options.which}: {name} has {modules}; allowed is both")
    for key in ("exponents", "depths", "seeds"):
        check_distinct(key, getattr(options, key))
    compared = CompareOptions(
        arms=sweep_arms(options, kind),
        baseline=None,
        seeds=options.seeds,
        grid={},
        budget="steps",
        run_dir=options.run_dir,
        report_dir=options.run_dir,
        **{key: getattr(options, key) for key in WORKPLACE_KEYS},
    )
    return options, Plan(compared, composer, own_keys=OWN_KEYS)


def run_sweep(options: SweepOptions, plan: Plan) -> Sweep:
    """Run the cells that are not finished, and write sweep.json, sweep.md and sweep.png.

    Raises:
        StoppedError: if a signal ended the work; the same call goes on.
    """
    cells = plan.final_cells(plan.choose())
    found = run_cells(cells, test=False, where=plan.options, description="sweep")
    first, kind = options.exponents[0], plan.first_cell.config.kind
    rounds = {}
    for depth in options.depths:
        config = plan.cell(_arm_name(first, depth), {}, options.seeds[0]).config
        rounds[depth] = kind.count_visits(config.model, config.gradient)[kind.revisited].rounds
    sweep = summarize(options, found, rounds, kind)
    run_dir = Path(options.run_dir)
    sweep.save(run_dir / SWEEP_FILE)
    write_atomically(run_dir / MARKDOWN_FILE, format_markdown(sweep.tables().values()))
    plot_sweep(sweep_points(sweep), sweep.boundaries, kind.depth_key, run_dir / PLOT_FILE)
    return sweep


def sweep_points(sweep: Sweep) -> list[SweepPoint]:
    """Return what the picture of a sweep shows."""
    return [SweepPoint(row.p, row.depth, row.share_trained, row.train_loss) for row in sweep.rows]
