"""The cells of a comparison: which there are, which are chosen, and who runs them."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PositiveInt, model_validator

from eval.compare import ConfigDifference, check_declared, config_difference
from eval.comparison import CellResult
from hrm_deeploop import registry
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.device import Ranks, choose_device
from hrm_deeploop.registry import Kinds
from hrm_deeploop.runs import engines
from hrm_deeploop.runs.cells import Cell, cell_name, is_finished, read_cell, run_cell
from hrm_deeploop.runs.checking import read_yaml, validate
from hrm_deeploop.runs.compose import Composer, chosen_files, config_file
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.costs import run_costs
from hrm_deeploop.runs.data import load_tasks
from hrm_deeploop.runs.directory import check_same_data

WORKPLACE_KEYS = ("workers", "cluster", "address")
# Keys of the comparison, not of a run.
OWN_KEYS = ("arms", "baseline", "seeds", "grid", "budget", "beside", "report_dir", *WORKPLACE_KEYS)
RESERVED = {"run_dir", "resume", "output", "seed", *OWN_KEYS}
ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

Arms = dict[str, dict[str, Any]]
Scalar = bool | int | float | str


class Workplace(StrictConfig):
    """Where cells run: keys that ``configs/compare.yaml`` and ``configs/sweep.yaml`` share."""

    workers: Literal["auto"] | PositiveInt  # processes on this machine; auto: one a core, or a GPU
    cluster: Literal["ray"] | None  # cells are tasks of a cluster
    address: str | None  # of a running cluster; None starts one on this machine

    @model_validator(mode="after")
    def _address_is_of_a_cluster(self) -> "Workplace":
        if self.address is not None and self.cluster is None:
            raise ValueError(f"address={self.address} needs cluster=ray")
        return self


class CompareOptions(Workplace):
    """Keys of ``configs/compare.yaml`` beside those of a run."""

    arms: dict[str, Any]
    baseline: Any  # str | dict[str, str] | None; find_baselines checks it
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)]
    grid: dict[str, Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1)]]
    budget: Literal["steps", "examples", "flops"]
    run_dir: str = Field(min_length=1)
    beside: str | None = None  # a comparison.json to print a line of
    report_dir: str = Field(min_length=1)


def check_arm_files(overrides: Sequence[str]) -> None:
    """Refuse files of ``configs/arms/`` that name the same arm: one would replace the other.

    Raises:
        ValueError: naming both files and the arm.
    """
    owner: dict[str, str] = {}
    for file in chosen_files(overrides, "arms"):
        for name in read_yaml(config_file(f"arms/{file}")):
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

    Args:
        options: what is compared.
        composer: of the configuration that the arms change.
        own_keys: keys of the composed configuration that are not a run's.

    Raises:
        ValueError: if the arms differ in what none of them declares.
    """

    def __init__(
        self, options: CompareOptions, composer: Composer, *, own_keys: Sequence[str] = OWN_KEYS
    ) -> None:
        self.options = options
        self.run_dir = Path(options.run_dir)
        self._composer = composer
        self._own_keys = own_keys
        check_arms(options.arms, options.grid, options.budget)
        self.baselines = find_baselines(self.arms, options.baseline)
        check_distinct("seeds", options.seeds)
        keys, values = list(options.grid), itertools.product(*options.grid.values())
        self.points = [dict(zip(keys, point, strict=True)) for point in values]
        self._steps: dict[tuple[str, int], int] = {}
        self._cells: dict[tuple[str, int, int], Cell] = {}
        self._steps = self._budgeted_steps()
        self._cells = {}
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

    def check(self, configs: Mapping[str, RunConfig]) -> ConfigDifference:
        """Return the difference of the arms' configurations, all of which must be declared."""
        difference = config_difference({name: c.model_dump() for name, c in configs.items()})
        exceptions = [*self.options.grid, *(["total_steps"] if self._steps else [])]
        check_declared(difference, declared={**self.options.arms, "grid, budget": exceptions})
        return difference

    def cell(self, arm: str, point: Mapping[str, Any], seed: int) -> Cell:
        """Return the cell of an arm, a point of the grid and a seed."""
        place = (arm, self.points.index(dict(point)), seed)
        if place not in self._cells:
            self._cells[place] = self._configure(*place)
        return self._cells[place]

    def _configure(self, arm: str, number: int, seed: int) -> Cell:
        point = self.points[number]
        changes = {**self.options.arms[arm], **point, "seed": seed}
        if self._steps:
            changes["total_steps"] = self._steps[arm, number]
        values = self._composer.values(changes)
        for key in ("output", *self._own_keys):
            values.pop(key, None)
        directory = self.run_dir / arm / cell_name(point, seed)
        config = validate(RunConfig, {**values, "run_dir": str(directory), "resume": "auto"})
        return Cell(arm=arm, point=point, config=config)

    def _budgeted_steps(self) -> dict[tuple[str, int], int]:
        """Return the steps of each arm at each point that make its budget that of the first.

        None are set if the budget is steps.
        """
        if self.options.budget == "steps":
            return {}
        costs = {
            (arm, number): run_costs(self.cell(arm, point, self.options.seeds[0]).config)
            for arm in self.arms
            for number, point in enumerate(self.points)
        }
        budget = self.options.budget
        wanted = getattr(next(iter(costs.values())), budget)
        return {
            place: max(1, round(cost.steps * wanted / getattr(cost, budget)))
            for place, cost in costs.items()
        }

    @property
    def first_cell(self) -> Cell:
        """The cell that is shown; the others differ from it as their arms and points declare."""
        return self.cell(self.arms[0], self.points[0], self.options.seeds[0])

    def grid_cells(self) -> list[Cell]:
        """Return what is trained to choose each arm's point of the grid; nothing without a grid."""
        if not self.options.grid:
            return []
        seed = self.options.seeds[0]
        return [self.cell(arm, point, seed) for point in self.points for arm in self.arms]

    def choose(self) -> dict[str, dict[str, Any]]:
        """Return the point of each arm that solves most held-out demonstrations.

        Of points that solve as many, the one of lower loss is taken. Solved is by vote, as for the
        best checkpoint of a run: the loss alone prefers a point that fits worse and is less sure of
        its errors. A point that diverged is never chosen.
        """
        chosen = dict.fromkeys(self.arms, self.points[0])
        for arm in self.arms if self.options.grid else ():
            merits = {}
            for number, point in enumerate(self.points):
                found = read_cell(self.cell(arm, point, self.options.seeds[0]))
                assert found is not None
                if found.validation is not None:
                    merits[number] = (found.validation.arc_prize_at_2, -found.validation.loss)
            if merits:
                chosen[arm] = self.points[max(merits, key=merits.__getitem__)]
        return chosen

    def final_cells(self, chosen: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
        """Return every arm at its chosen point with every seed."""
        seeds = self.options.seeds
        return [self.cell(arm, chosen[arm], seed) for seed in seeds for arm in self.arms]


class CellJob(NamedTuple):
    """What a worker is to do with a cell."""

    cell: Cell
    test: bool  # predict the test pairs too
    kinds: Kinds  # of a notebook, which a worker can't import


def _run_job(job: CellJob, report: engines.Report) -> None:
    """Run a cell on the device of this process."""
    registry.register_all(job.kinds)
    registry.load_plugins(job.cell.config.plugins)
    ranks = Ranks(device=choose_device(job.cell.config.device))
    run_cell(job.cell, ranks, test=job.test, report=report)


def run_cells(
    cells: Sequence[Cell], *, test: bool, where: Workplace, description: str
) -> list[CellResult]:
    """Run those cells that are not finished, side by side; returns what is known of all.

    Raises:
        StoppedError: if a signal ended the work; the same call goes on.
        ValueError: if a finished cell was trained on other data than there is now.
    """
    waiting = []
    for cell in cells:
        if is_finished(read_cell(cell), test=test):
            check_same_data(cell.config, load_tasks(cell.config.data).content_hash)
        else:
            waiting.append(cell)
    if waiting:
        engines.run_jobs(
            _run_job,
            [CellJob(cell, test, registry.notebook_kinds()) for cell in waiting],
            titles=[cell.title for cell in waiting],
            workers=where.workers,
            cluster=where.cluster,
            address=where.address,
            description=description,
        )
    found = [read_cell(cell) for cell in cells]
    return [entry for entry in found if entry is not None]


def check_no_ranks(command: str) -> None:
    """Refuse to run under torchrun, whose processes would all do the same.

    Raises:
        ValueError: naming what to use instead.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"{command} is started once, without torchrun: workers=auto takes every GPU of this "
            "machine, cluster=ray those of several"
        )


def plan_comparison(composer: Composer, arms: Mapping[str, Any] | None = None) -> Plan:
    """Plan the comparison that a composed configuration describes.

    Args:
        composer: of ``configs/compare.yaml``.
        arms: in place of the configuration's: the keys that each arm declares, by its name.

    Raises:
        ValueError: if the arms are no comparison, or differ in what none of them declares.
    """
    check_no_ranks("compare")
    values = composer.values()
    own = {key: values[key] for key in (*OWN_KEYS, "run_dir") if key in values}
    # Neither arms nor a grid is said by null, and no files of arms by no key at all.
    own |= {key: {} for key in ("arms", "grid") if own.get(key) is None}
    if arms is not None:
        own["arms"] = dict(arms)
    else:
        check_arm_files(composer.overrides)
    if own["seeds"] is None:
        own["seeds"] = [values["seed"]]
    options: CompareOptions = validate(CompareOptions, own)
    if len(options.arms) < 2:
        raise ValueError(f"arms={list(options.arms)}: a comparison needs at least two")
    return Plan(options, composer)
