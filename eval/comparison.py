"""What came of a comparison, as tables in text, Markdown and HTML, and as pictures."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.pages import data_uri, write_page
from eval.paired import compare_ranks
from eval.score import Score
from eval.tables import SCORE_TITLES, Table, percent

TEMPLATE = "comparison.html.jinja"
# The DeepLoop paper's table on ARC-AGI-1 evaluation, all_tests in percent (arXiv:2607.13491).
PAPER = {
    "vanilla HRM (paper)": {"1": 31.50, "2": 36.50, "4": 41.50, "8": 47.50, "16": 50.75},
    "DeepLoop (paper)": {"1": 35.50, "2": 39.75, "4": 44.25, "8": 49.75, "16": 51.50},
}


def comparison_tables(comparison: Mapping[str, Any]) -> dict[str, Table]:
    """Every table of a comparison.json, by a short name."""
    arms = comparison["arms"]
    tested = {name: arm for name, arm in arms.items() if arm["ladder"] is not None}
    tables = {}
    if tested:
        tables |= {score: _ladder_table(tested, score, comparison) for score in Score._fields}
        tables |= {f"{score} over votes": _votes_table(tested, score) for score in Score._fields}
    if any(arm["difference"] for arm in tested.values()):
        tables |= _difference_tables(tested, comparison)
    tables["training"] = _training_table(comparison)
    if comparison["grid"]:
        tables["grid"] = _grid_table(comparison)
    measured = {
        key: None
        for arm in arms.values()
        for row in arm["alignment"].values()
        for key in row
        if key.startswith("kappa_")
    }
    tables |= {key: _alignment_table(arms, key.removeprefix("kappa_")) for key in measured}
    failures = {name: arm["failures"] for name, arm in arms.items() if arm["failures"]}
    if failures:
        tables["failures"] = Table(
            "failures: runs that diverged, which are in no ladder, or did not learn, which are",
            ["seeds", "first"],
            {name: [f"{len(texts)}", texts[0]] for name, texts in failures.items()},
        )
    return tables


def _tested_name(name: str, arm: Mapping[str, Any]) -> str:
    """The arm's name, and how many of its seeds there are results of, where that is not all."""
    num_seeds = len(arm["seeds"])
    return (
        name if arm["num_tested"] == num_seeds else f"{name} ({arm['num_tested']} of {num_seeds})"
    )


def _with_spread(entry: Sequence[float | None]) -> str:
    mean, spread = entry
    return percent(mean) + ("" if spread is None else f" ±{100 * spread:.1f}")


def _ladder_table(arms: Mapping[str, Any], score: str, comparison: Mapping[str, Any]) -> Table:
    first = next(iter(arms.values()))
    rungs = list(first["spread"][score])
    rows = {
        _tested_name(name, arm): [
            *(_with_spread(arm["spread"][score][rung]) for rung in rungs),
            percent(arm["ladder"]["oracle"][score]["all"]),
        ]
        for name, arm in arms.items()
    }
    if comparison["is_arc1_evaluation"] and score == "all_tests":
        rows |= {
            name: [*(f"{ladder[r]:.2f}" if r in ladder else "" for r in rungs), ""]
            for name, ladder in PAPER.items()
        }
    num_seeds = max(len(arm["seeds"]) for arm in arms.values())
    caption = f"{score}: {SCORE_TITLES[score]}, % of {first['ladder']['num_scored_tasks']} tasks"
    caption += f", mean ± sd over {num_seeds} seeds" if num_seeds > 1 else ", one seed"
    return Table(caption, [*(f"K={rung}" for rung in rungs), "any K"], rows)


def _votes_table(arms: Mapping[str, Any], score: str) -> Table:
    first = next(iter(arms.values()))["ladder"]["votes_at_2"][score]
    rows = {
        _tested_name(name, arm): [
            percent(arm["ladder"]["votes_at_2"][score].get(rung)) for rung in first
        ]
        for name, arm in arms.items()
    }
    return Table(f"{score} at K=2, over votes A", [f"A={rung}" for rung in first], rows)


def difference_to(comparison: Mapping[str, Any], baseline: str) -> dict[str, Table]:
    """The tables of the differences to another arm than the comparison's own.

    Their names are those that `comparison_tables` has for them.

    Raises:
        ValueError: if there is no such arm, or nothing is known of its test pairs.
    """
    ranks: dict[str, list[Any]] = {}
    for cell in comparison["cells"]:
        if cell["test"] is not None:
            found = {task: tuple(r) for task, r in cell["test"]["truth_ranks"].items()}
            ranks.setdefault(cell["arm"], []).append(found)
    if baseline not in ranks:
        raise ValueError(f"no results of an arm {baseline!r}; there are {', '.join(ranks)}")
    arms = {}
    for name in ranks:
        arm = comparison["arms"][name]
        attempts = [int(rung) for rung in arm["ladder"]["all_tests"]]
        difference = {
            score: {rung: d._asdict() for rung, d in rungs.items()}
            for score, rungs in compare_ranks(ranks[name], ranks[baseline], attempts).items()
        }
        arms[name] = {**arm, "difference": None if name == baseline else difference}
    own = {"baselines": dict.fromkeys(arms, baseline)}
    return _difference_tables(arms, own)


def _difference_tables(arms: Mapping[str, Any], comparison: Mapping[str, Any]) -> dict[str, Table]:
    """The differences in both scores, and with intervals over seeds too if there are several."""
    kinds = {"difference": False}
    if any(len(arm["seeds"]) > 1 for arm in arms.values()):
        kinds["difference with seeds"] = True
    return {
        f"{score} {kind}": _difference_table(arms, score, comparison, with_seeds=with_seeds)
        for kind, with_seeds in kinds.items()
        for score in Score._fields
    }


def _difference_table(
    arms: Mapping[str, Any],
    score: str,
    comparison: Mapping[str, Any],
    *,
    with_seeds: bool = False,
) -> Table:
    suffix = "_with_seeds" if with_seeds else ""
    compared = {name: arm for name, arm in arms.items() if arm["difference"]}
    baselines = {name: comparison["baselines"][name] for name in compared}
    shared = set(baselines.values())
    rows = {}
    for name, arm in compared.items():
        own, base = (_tested_name(n, arms[n]) for n in (name, baselines[name]))
        rows[own if len(shared) == 1 else f"{own} - {base}"] = [
            f"{_points(d['mean'])} {_interval(d['low' + suffix], d['high' + suffix])}"
            + ("" if with_seeds else f" {d['won']}:{d['lost']}")
            for d in arm["difference"][score].values()
        ]
    rungs = next(iter(compared.values()))["difference"][score]
    of_what = "of the first minus the second"
    if len(shared) == 1:
        (base,) = shared
        of_what = f"minus {_tested_name(base, arms[base])}'s"
    of_interval = "tasks and seeds]" if with_seeds else "tasks] tasks won:lost"
    return Table(
        f"{score} {of_what}, points [95 % interval over {of_interval}",
        [f"K={rung}" for rung in rungs],
        rows,
    )


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{_points(low)}, {_points(high)}]"


def _points(fraction: float) -> str:
    """Percentage points with a sign; a zero has a plus."""
    return f"{round(100 * fraction, 1) + 0.0:+.1f}"


def _training_table(comparison: Mapping[str, Any]) -> Table:
    arms = comparison["arms"]

    def number(value: float | None, pattern: str = "{:.3f}") -> str:
        return "n/a" if value is None else pattern.format(value)

    def spread(entry: Sequence[float | None]) -> str:
        return number(entry[0]) + ("" if entry[1] is None else f" ±{entry[1]:.3f}")

    rows = {
        name: [
            ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in arm["chosen"].items()) or "as set",
            f"{arm['num_trained']} of {len(arm['seeds'])}"
            + (f", {arm['num_diverged']} diverged" if arm["num_diverged"] else ""),
            spread(arm["train_loss"]),
            spread(arm["validation_loss"]),
            f"{arm['steps']:,}",
            f"{arm['examples']:,}",
            f"{arm['flops']:.3g}",
            f"{arm['params']:,}",
            number(arm["seconds"], "{:.0f}"),
        ]
        for name, arm in arms.items()
    }
    budget = comparison["budget"]
    is_equal = budget != "steps" or len({arm["steps"] for arm in arms.values()}) == 1
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


def _alignment_table(arms: Mapping[str, Any], module: str) -> Table:
    measured = {name: arm["alignment"] for name, arm in arms.items() if arm["alignment"]}
    steps = list(next(iter(measured.values())))
    # Runs of before cosines were measured have none.
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


def _grid_table(comparison: Mapping[str, Any]) -> Table:
    cells = comparison["grid"]
    points = list(dict.fromkeys(cell["name"] for cell in cells))
    arms = list(dict.fromkeys(cell["arm"] for cell in cells))
    rows = {}
    for arm in arms:
        found = {cell["name"]: cell for cell in cells if cell["arm"] == arm}
        rows[arm] = [_grid_entry(found.get(point), comparison["arms"][arm]) for point in points]
    return Table(
        "held-out demonstrations by point of the grid, one seed: arc_prize at K=2, loss (* chosen)",
        points,
        rows,
    )


def _grid_entry(cell: Mapping[str, Any] | None, arm: Mapping[str, Any]) -> str:
    if cell is None:
        return ""
    mark = "*" if cell["point"] == arm["chosen"] else ""
    if cell["validation_loss"] is None:
        return f"{cell['status']}{mark}"
    status = "" if cell["status"] == "trained" else f" ({cell['status']})"
    accuracy = percent(cell["validation_arc_prize_at_2"])
    return f"{accuracy}, {cell['validation_loss']:.3f}{status}{mark}"


def write_html(
    tables: Iterable[Table], difference: str, pictures: Mapping[str, Path], title: str, path: Path
) -> None:
    """One self-contained page with the tables and the PNG files ``pictures`` by caption."""
    images = {caption: data_uri(png.read_bytes(), "image/png") for caption, png in pictures.items()}
    write_page(
        TEMPLATE, path, title=title, tables=list(tables), difference=difference, pictures=images
    )
