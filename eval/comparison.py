"""What came of a comparison, as tables in text, Markdown and HTML, and as pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eval.score import Score
from eval.tables import SCORE_TITLES, percent

TEMPLATE = "comparison.html.jinja"
# The DeepLoop paper's table on ARC-AGI-1 evaluation, all_tests in percent (arXiv:2607.13491).
PAPER = {
    "vanilla HRM (paper)": {"1": 31.50, "2": 36.50, "4": 41.50, "8": 47.50, "16": 50.75},
    "DeepLoop (paper)": {"1": 35.50, "2": 39.75, "4": 44.25, "8": 49.75, "16": 51.50},
}


class Sheet(NamedTuple):
    """A table: a caption, the names of the columns, and rows by their name."""

    caption: str
    columns: list[str]
    rows: dict[str, list[str]]


def comparison_sheets(comparison: Mapping[str, Any]) -> list[Sheet]:
    """Every table of a comparison.json."""
    arms = comparison["arms"]
    tested = {name: arm for name, arm in arms.items() if arm["ladder"] is not None}
    sheets = []
    if tested:
        sheets += [_ladder_sheet(tested, score, comparison) for score in Score._fields]
        sheets += [_votes_sheet(tested, score) for score in Score._fields]
    if any(arm["difference"] for arm in tested.values()):
        sheets += [_difference_sheet(tested, score, comparison) for score in Score._fields]
    sheets.append(_training_sheet(arms))
    if comparison["grid"]:
        sheets.append(_grid_sheet(comparison))
    failures = {name: arm["failures"] for name, arm in arms.items() if arm["failures"]}
    if failures:
        sheets.append(
            Sheet(
                "failures: what stopped a run (an arm without any result is in no ladder)",
                ["seeds", "first"],
                {name: [f"{len(texts)}", texts[0]] for name, texts in failures.items()},
            )
        )
    return sheets


def _with_spread(entry: Sequence[float | None]) -> str:
    mean, spread = entry
    return percent(mean) + ("" if spread is None else f" ±{100 * spread:.1f}")


def _ladder_sheet(arms: Mapping[str, Any], score: str, comparison: Mapping[str, Any]) -> Sheet:
    first = next(iter(arms.values()))
    rungs = list(first["spread"][score])
    rows = {
        name: [
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
    return Sheet(caption, [*(f"K={rung}" for rung in rungs), "any K"], rows)


def _votes_sheet(arms: Mapping[str, Any], score: str) -> Sheet:
    first = next(iter(arms.values()))["ladder"]["votes_at_2"][score]
    rows = {
        name: [percent(arm["ladder"]["votes_at_2"][score].get(rung)) for rung in first]
        for name, arm in arms.items()
    }
    return Sheet(f"{score} at K=2, over votes A", [f"A={rung}" for rung in first], rows)


def _difference_sheet(arms: Mapping[str, Any], score: str, comparison: Mapping[str, Any]) -> Sheet:
    baseline = comparison["baseline"]
    rows = {}
    for name, arm in arms.items():
        if arm["difference"] is None:
            continue
        rows[name] = [
            f"{100 * d['mean']:+.1f} [{100 * d['low']:+.1f}, {100 * d['high']:+.1f}] "
            f"{d['won']}:{d['lost']}"
            for d in arm["difference"][score].values()
        ]
    rungs = next((a["difference"][score] for a in arms.values() if a["difference"]), {})
    return Sheet(
        f"{score} minus {baseline}'s, points [95 % interval over tasks] tasks won:lost",
        [f"K={rung}" for rung in rungs],
        rows,
    )


def _training_sheet(arms: Mapping[str, Any]) -> Sheet:
    def number(value: float | None, pattern: str = "{:.3f}") -> str:
        return "n/a" if value is None else pattern.format(value)

    rows = {
        name: [
            ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in arm["chosen"].items()) or "as set",
            f"{arm['num_trained']} of {len(arm['seeds'])}"
            + (f", {len(arm['failures'])} diverged" if arm["failures"] else ""),
            number(arm["train_loss"]),
            number(arm["validation_loss"]),
            f"{arm['steps']:,}",
            f"{arm['examples']:,}",
            f"{arm['flops']:.3g}",
            f"{arm['params']:,}",
            number(arm["seconds"], "{:.0f}"),
        ]
        for name, arm in arms.items()
    }
    return Sheet(
        "training: means over seeds; a seed has trained if its loss halved and nothing diverged",
        [
            *("grid", "trained", "train loss", "validation loss", "steps", "examples", "FLOPs"),
            *("parameters", "seconds"),
        ],
        rows,
    )


def _grid_sheet(comparison: Mapping[str, Any]) -> Sheet:
    cells = comparison["grid"]
    points = list(dict.fromkeys(cell["name"] for cell in cells))
    arms = list(dict.fromkeys(cell["arm"] for cell in cells))
    rows = {}
    for arm in arms:
        found = {cell["name"]: cell for cell in cells if cell["arm"] == arm}
        rows[arm] = [_grid_entry(found.get(point), comparison["arms"][arm]) for point in points]
    return Sheet(
        "validation loss by point of the grid (* chosen; held-out demonstrations, one seed)",
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
    return f"{cell['validation_loss']:.3f}{status}{mark}"


def format_text(sheets: Sequence[Sheet]) -> str:
    """The tables for a terminal."""
    lines = []
    for sheet in sheets:
        first = max([len(name) for name in sheet.rows], default=0)
        cells = [sheet.columns, *sheet.rows.values()]
        widths = [max(len(row[i]) for row in cells) + 2 for i in range(len(sheet.columns))]
        lines.append(sheet.caption)
        lines += [
            f"{name:{first}}" + "".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True))
            for name, row in [("", sheet.columns), *sheet.rows.items()]
        ]
        lines.append("")
    return "\n".join(lines)


def format_markdown(sheets: Sequence[Sheet]) -> str:
    """The tables as Markdown."""
    lines = []
    for sheet in sheets:
        lines += [f"**{sheet.caption}**", ""]
        lines += [
            "| | " + " | ".join(sheet.columns) + " |",
            "|---" * (len(sheet.columns) + 1) + "|",
        ]
        lines += [f"| {name} | " + " | ".join(row) + " |" for name, row in sheet.rows.items()]
        lines.append("")
    return "\n".join(lines)


def write_html(
    sheets: Sequence[Sheet], difference: str, pictures: Mapping[str, str], title: str, path: Path
) -> None:
    """One self-contained page; ``pictures`` are data URIs by caption."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template(TEMPLATE).render(
        title=title, sheets=sheets, difference=difference, pictures=pictures
    )
    path.write_text(page, encoding="utf-8")
