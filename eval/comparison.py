"""What came of a comparison: cells, arms and their differences, as an object and as tables."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from eval.compare import ConfigDifference, format_difference
from eval.ladder import ARC_PRIZE_ATTEMPTS, Ladder
from eval.pages import data_uri, write_page
from eval.paired import Difference, Differences, Spread, Spreads, compare_ranks
from eval.record import Record, SealedRecord
from eval.score import Score, TruthRanks
from eval.tables import SCORE_TITLES, Table, format_html, format_text, percent

TEMPLATE = "comparison.html.jinja"
# The DeepLoop paper's table on ARC-AGI-1 evaluation, all_tests in percent (arXiv:2607.13491).
PAPER: dict[str, dict[int, float]] = {
    "vanilla HRM (paper)": {1: 31.50, 2: 36.50, 4: 41.50, 8: 47.50, 16: 50.75},
    "DeepLoop (paper)": {1: 35.50, 2: 39.75, 4: 44.25, 8: 49.75, 16: 51.50},
}
Status = Literal["trained", "diverged", "not learning"]
Point = dict[str, bool | int | float | str]
"""Values of a grid, by key of a run's configuration."""


class ValidationScores(Record):
    """What held-out demonstrations say of a network: mean token loss, and scores by vote."""

    loss: float
    all_tests_at_2: float
    arc_prize_at_2: float


class CellTest(Record):
    """What the test pairs say of a cell."""

    directory: str  # of the evaluation, in the cell's
    ladder: Ladder
    truth_ranks: TruthRanks


class CellResult(SealedRecord):
    """What cell.json holds: the numbers of one run of a comparison."""

    arm: str
    point: Point
    seed: int
    key: str  # of what decides the numbers
    run_dir: str
    steps: int
    examples: int  # drawn
    flops: int
    params: int  # of the network, without the puzzle table
    validation: ValidationScores | None
    test: CellTest | None
    failure: str | None  # why it diverged
    status: Status
    train_loss: float | None  # mean of the last tenth of the log
    first_train_loss: float | None  # of the first line of the log; None if it has none
    seconds: float


class GridEntry(Record):
    """A cell that was trained to choose an arm's point of the grid."""

    arm: str
    name: str
    point: Point
    status: Status
    train_loss: float | None
    validation_loss: float | None
    validation_arc_prize_at_2: float | None


class ArmResult(Record):
    """What came of an arm: means and standard deviations over its seeds."""

    overrides: dict[str, Any]  # keys that it declares
    chosen: Point
    seeds: tuple[int, ...]
    run_dirs: tuple[str, ...]
    num_trained: int
    num_diverged: int
    num_tested: int
    failures: tuple[str, ...]
    train_loss: Spread
    validation_loss: Spread
    seconds: float | None
    steps: int
    examples: int
    flops: int
    params: int
    alignment: dict[int, dict[str, float]]  # by step: kappa, cosine, gradient of each module
    ladder: Ladder | None  # of means; None if nothing was tested
    spread: Spreads | None
    difference: Differences | None  # to its baseline


class Comparison(Record):
    """What comparison.json holds."""

    arms: dict[str, ArmResult]
    baselines: dict[str, str]  # the arm that each is compared with
    budget: Literal["steps", "examples", "flops"]
    config_difference: ConfigDifference
    grid: tuple[GridEntry, ...]
    cells: tuple[CellResult, ...]
    is_arc1_evaluation: bool

    def difference(
        self,
        arm: str,
        *,
        attempts: int = ARC_PRIZE_ATTEMPTS,
        score: str = "all_tests",
        baseline: str | None = None,
    ) -> Difference:
        """Return ``arm`` minus ``baseline`` (None: the arm that it is compared with).

        Raises:
            ValueError: if there is no such arm, rung or score, or nothing is known of test pairs.
        """
        baseline = self.baselines.get(arm) if baseline is None else baseline
        if baseline is None:
            raise ValueError(f"{arm} is compared with no other arm; name one, baseline=...")
        if score not in Score._fields:
            raise ValueError(f"score={score}: allowed are {', '.join(Score._fields)}")
        own, base = self.truth_ranks(arm), self.truth_ranks(baseline)
        return compare_ranks(own, base, [attempts]).of(score)[attempts]

    def truth_ranks(self, arm: str) -> list[TruthRanks]:
        """Return where the truths stand in the answers of an arm, a mapping a seed.

        Raises:
            ValueError: if there is no such arm, or nothing is known of its test pairs.
        """
        found = [c.test.truth_ranks for c in self.cells if c.arm == arm and c.test is not None]
        if not found:
            known = dict.fromkeys(c.arm for c in self.cells if c.test is not None)
            raise ValueError(f"no results of an arm {arm!r}; there are {', '.join(known)}")
        return found

    def tables(self) -> dict[str, Table]:
        """Return every table of the comparison, by a short name."""
        return comparison_tables(self)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the arms' ladders doubtful."""
        return tuple(
            f"warning: {name}: {warning}"
            for name, arm in self.arms.items()
            if arm.ladder is not None
            for warning in arm.ladder.warnings
        )

    def format(self) -> str:
        """Write the difference of the configurations, all tables and all warnings as text."""
        tables = format_text(self.tables().values())
        return "\n".join([format_difference(self.config_difference), "", tables, *self.warnings])

    def show(self) -> None:
        """Print the comparison."""
        print(self.format())

    def _repr_html_(self) -> str:
        return format_html(self.tables().values())

    def __repr__(self) -> str:
        found = []
        for name, arm in self.arms.items():
            score = arm.spread.all_tests.get(ARC_PRIZE_ATTEMPTS) if arm.spread else None
            found.append(f"{name} {'n/a' if score is None else _with_spread(score)}")
        num_seeds = max(len(arm.seeds) for arm in self.arms.values())
        return f"Comparison(all_tests at K=2, %, seeds: {num_seeds}; {', '.join(found)})"


def comparison_tables(comparison: Comparison) -> dict[str, Table]:
    """Return every table of a comparison, by a short name."""
    arms = comparison.arms
    tested = {name: arm for name, arm in arms.items() if arm.ladder is not None}
    tables = {}
    if tested:
        tables |= {score: _ladder_table(tested, score, comparison) for score in Score._fields}
        tables |= {f"{score} over votes": _votes_table(tested, score) for score in Score._fields}
    differences = {name: arm.difference for name, arm in tested.items() if arm.difference}
    if differences:
        tables |= _difference_tables(tested, differences, comparison.baselines)
    tables["training"] = _training_table(comparison)
    if comparison.grid:
        tables["grid"] = _grid_table(comparison)
    measured = {
        key: None
        for arm in arms.values()
        for row in arm.alignment.values()
        for key in row
        if key.startswith("kappa_")
    }
    tables |= {key: _alignment_table(arms, key.removeprefix("kappa_")) for key in measured}
    failures = {name: arm.failures for name, arm in arms.items() if arm.failures}
    if failures:
        tables["failures"] = Table(
            "failures: runs that diverged, which are in no ladder, or did not learn, which are",
            ["seeds", "first"],
            {name: [f"{len(texts)}", texts[0]] for name, texts in failures.items()},
        )
    return tables


def _tested_name(name: str, arm: ArmResult) -> str:
    """Name an arm, and of how many of its seeds there are results, where that is not all."""
    num_seeds = len(arm.seeds)
    return name if arm.num_tested == num_seeds else f"{name} ({arm.num_tested} of {num_seeds})"


def _with_spread(entry: Spread) -> str:
    return percent(entry.mean) + ("" if entry.sd is None else f" ±{100 * entry.sd:.1f}")


def _ladder_table(arms: Mapping[str, ArmResult], score: str, comparison: Comparison) -> Table:
    spreads = {name: arm.spread.of(score) for name, arm in arms.items() if arm.spread}
    ladders = {name: arm.ladder for name, arm in arms.items() if arm.ladder}
    rungs = list(next(iter(spreads.values())))
    rows = {
        _tested_name(name, arm): [
            *(_with_spread(spreads[name][rung]) for rung in rungs),
            percent(ladders[name].oracle.of(score)),
        ]
        for name, arm in arms.items()
    }
    if comparison.is_arc1_evaluation and score == "all_tests":
        rows |= {
            name: [*(f"{ladder[r]:.2f}" if r in ladder else "" for r in rungs), ""]
            for name, ladder in PAPER.items()
        }
    num_seeds = max(len(arm.seeds) for arm in arms.values())
    num_tasks = next(iter(ladders.values())).num_scored_tasks
    caption = f"{score}: {SCORE_TITLES[score]}, % of {num_tasks} tasks"
    caption += f", mean ± sd over {num_seeds} seeds" if num_seeds > 1 else ", one seed"
    return Table(caption, [*(f"K={rung}" for rung in rungs), "any K"], rows)


def _votes_table(arms: Mapping[str, ArmResult], score: str) -> Table:
    ladders = {_tested_name(name, arm): arm.ladder for name, arm in arms.items() if arm.ladder}
    rungs = list(next(iter(ladders.values())).votes_at_2.of(score))
    rows = {
        name: [percent(ladder.votes_at_2.of(score).get(rung)) for rung in rungs]
        for name, ladder in ladders.items()
    }
    return Table(f"{score} at K=2, over votes A", [f"A={rung}" for rung in rungs], rows)


def difference_to(comparison: Comparison, baseline: str) -> dict[str, Table]:
    """Return the tables of the differences to another arm than the comparison's own.

    Their names are those that `comparison_tables` has for them.

    Raises:
        ValueError: if there is no such arm, or nothing is known of its test pairs.
    """
    base = comparison.truth_ranks(baseline)
    arms, differences = {}, {}
    for name in dict.fromkeys(cell.arm for cell in comparison.cells if cell.test is not None):
        arms[name] = arm = comparison.arms[name]
        if name != baseline and arm.ladder is not None:
            attempts = list(arm.ladder.all_tests)
            differences[name] = compare_ranks(comparison.truth_ranks(name), base, attempts)
    return _difference_tables(arms, differences, dict.fromkeys(arms, baseline))


def _difference_tables(
    arms: Mapping[str, ArmResult],
    differences: Mapping[str, Differences],
    baselines: Mapping[str, str],
) -> dict[str, Table]:
    """Return differences in both scores, and with intervals over seeds too if there are several."""
    kinds = {"difference": False}
    if any(len(arm.seeds) > 1 for arm in arms.values()):
        kinds["difference with seeds"] = True
    return {
        f"{score} {kind}": _difference_table(
            arms, {n: d.of(score) for n, d in differences.items()}, score, baselines, seeds=seeds
        )
        for kind, seeds in kinds.items()
        for score in Score._fields
    }


def _difference_table(
    arms: Mapping[str, ArmResult],
    differences: Mapping[str, dict[int, Difference]],
    score: str,
    baselines: Mapping[str, str],
    *,
    seeds: bool,
) -> Table:
    compared = {name: baselines[name] for name in differences}
    shared = set(compared.values())
    rows = {}
    for name, rungs in differences.items():
        own, base = (_tested_name(n, arms[n]) for n in (name, compared[name]))
        rows[own if len(shared) == 1 else f"{own} - {base}"] = [
            f"{_points(d.mean)} {_interval(d.interval_with_seeds if seeds else d.interval)}"
            + ("" if seeds else f" {d.won}:{d.lost}")
            for d in rungs.values()
        ]
    of_what = "of the first minus the second"
    if len(shared) == 1:
        (base,) = shared
        of_what = f"minus {_tested_name(base, arms[base])}'s"
    of_interval = "tasks and seeds]" if seeds else "tasks] tasks won:lost"
    return Table(
        f"{score} {of_what}, points [95 % interval over {of_interval}",
        [f"K={rung}" for rung in next(iter(differences.values()))],
        rows,
    )


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"[{_points(bounds[0])}, {_points(bounds[1])}]"


def _points(fraction: float) -> str:
    """Write percentage points with a sign; a zero has a plus."""
    return f"{round(100 * fraction, 1) + 0.0:+.1f}"


def _training_table(comparison: Comparison) -> Table:
    arms = comparison.arms

    def number(value: float | None, pattern: str = "{:.3f}") -> str:
        return "n/a" if value is None else pattern.format(value)

    def spread(entry: Spread) -> str:
        return number(entry.mean) + ("" if entry.sd is None else f" ±{entry.sd:.3f}")

    rows = {
        name: [
            ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in arm.chosen.items()) or "as set",
            f"{arm.num_trained} of {len(arm.seeds)}"
            + (f", {arm.num_diverged} diverged" if arm.num_diverged else ""),
            spread(arm.train_loss),
            spread(arm.validation_loss),
            f"{arm.steps:,}",
            f"{arm.examples:,}",
            f"{arm.flops:.3g}",
            f"{arm.params:,}",
            number(arm.seconds, "{:.0f}"),
        ]
        for name, arm in arms.items()
    }
    budget = comparison.budget
    is_equal = budget != "steps" or len({arm.steps for arm in arms.values()}) == 1
    equal = {"flops": "FLOPs"}.get(budget, budget)
    return Table(
        f"training{f' of equal {equal}' * is_equal}, mean ± sd over seeds that did not diverge; "
        "trained: the loss halved",
        [
            *("grid", "trained", "train loss", "validation loss", "steps", "examples", "FLOPs"),
            *("core parameters", "seconds"),
        ],
        rows,
    )


def _alignment_table(arms: Mapping[str, ArmResult], module: str) -> Table:
    measured = {name: arm.alignment for name, arm in arms.items() if arm.alignment}
    steps = list(next(iter(measured.values())))
    # Published runs of before cosines were measured have none.
    cosine = all(f"cosine_{module}" in row for rows in measured.values() for row in rows.values())
    names = ("kappa", "cosine", "gradient") if cosine else ("kappa", "gradient")
    return Table(
        f"kappa_{module} in training, {'mean cosine of G (0: unrelated), ' if cosine else ''}"
        "|sum G| / sum |G| (1: aligned), means over the runs that measured it",
        [f"step {step}" for step in steps],
        {
            name: [
                ", ".join(f"{rows[step][f'{name}_{module}']:.2f}" for name in names)
                if step in rows
                else ""
                for step in steps
            ]
            for name, rows in measured.items()
        },
    )


def _grid_table(comparison: Comparison) -> Table:
    points = list(dict.fromkeys(entry.name for entry in comparison.grid))
    rows = {}
    for arm in dict.fromkeys(entry.arm for entry in comparison.grid):
        found = {entry.name: entry for entry in comparison.grid if entry.arm == arm}
        rows[arm] = [_grid_entry(found.get(point), comparison.arms[arm]) for point in points]
    return Table(
        "held-out demonstrations by point of the grid, one seed: arc_prize at K=2, loss (* chosen)",
        points,
        rows,
    )


def _grid_entry(entry: GridEntry | None, arm: ArmResult) -> str:
    if entry is None:
        return ""
    mark = "*" if entry.point == arm.chosen else ""
    if entry.validation_loss is None:
        return f"{entry.status}{mark}"
    status = "" if entry.status == "trained" else f" ({entry.status})"
    accuracy = percent(entry.validation_arc_prize_at_2)
    return f"{accuracy}, {entry.validation_loss:.3f}{status}{mark}"


def write_html(
    tables: Iterable[Table], difference: str, pictures: Mapping[str, Path], title: str, path: Path
) -> None:
    """One self-contained page with the tables and the PNG files ``pictures`` by caption."""
    images = {caption: data_uri(png.read_bytes(), "image/png") for caption, png in pictures.items()}
    write_page(
        TEMPLATE, path, title=title, tables=list(tables), difference=difference, pictures=images
    )
