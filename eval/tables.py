"""Tables, in text and Markdown; ladders as tables."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from eval.score import Score

SCORE_TITLES = {
    "all_tests": "every test pair of the task solved",
    "arc_prize": "mean over the task's test pairs",
}
Ladder = Mapping[str, Any]


class Table(NamedTuple):
    """A caption, the names of the columns, and rows by their name."""

    caption: str
    columns: list[str]
    rows: dict[str, list[str]]


def ladder_tables(ladders: Mapping[str, Ladder]) -> list[Table]:
    """Both scores over attempts, then over votes, then over segments where asked for."""
    first = next(iter(ladders.values()))
    tables = [
        Table(
            caption=f"{score}: {SCORE_TITLES[score]}, % of {first['num_scored_tasks']} tasks",
            columns=[*(f"K={rung}" for rung in first[score]), "any K"],
            rows={
                name: [
                    *(percent(ladder[score].get(rung)) for rung in first[score]),
                    percent(ladder["oracle"][score]["all"]),
                ]
                for name, ladder in ladders.items()
            },
        )
        for score in Score._fields
    ]
    for key, letter, axis in (("votes_at_2", "A", "votes A"), ("segments_at_2", "S", "segments S")):
        if not all(ladder[key] for ladder in ladders.values()):
            continue
        tables += [
            Table(
                caption=f"{score} at K=2, over {axis}",
                columns=[f"{letter}={rung}" for rung in first[key][score]],
                rows={
                    name: [percent(ladder[key][score].get(rung)) for rung in first[key][score]]
                    for name, ladder in ladders.items()
                },
            )
            for score in Score._fields
        ]
    return tables


def format_ladders(ladders: Mapping[str, Ladder]) -> str:
    """The tables as text, and what makes the numbers doubtful."""
    lines = [format_text(ladder_tables(ladders))]
    lines += [
        f"{name}: an ensemble of {ladder['num_pooled']} evaluations, their votes pooled\n"
        for name, ladder in ladders.items()
        if ladder["num_pooled"] > 1
    ]
    lines += [
        f"warning: {name}: {warning}"
        for name, ladder in ladders.items()
        for warning in ladder["warnings"]
    ]
    return "\n".join(lines)


def format_text(tables: Iterable[Table]) -> str:
    """The tables for a terminal."""
    lines = []
    for table in tables:
        first = max([len(name) for name in table.rows], default=0)
        cells = [table.columns, *table.rows.values()]
        widths = [max(len(row[i]) for row in cells) + 2 for i in range(len(table.columns))]
        lines.append(table.caption)
        lines += [
            f"{name:{first}}" + "".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True))
            for name, row in [("", table.columns), *table.rows.items()]
        ]
        lines.append("")
    return "\n".join(lines)


def format_markdown(tables: Iterable[Table]) -> str:
    """The tables as Markdown."""
    lines = []
    for table in tables:
        lines += [f"**{table.caption}**", ""]
        lines += [_markdown_row("", table.columns), "|---" * (len(table.columns) + 1) + "|"]
        lines += [_markdown_row(name, row) for name, row in table.rows.items()]
        lines.append("")
    return "\n".join(lines)


def _markdown_row(name: str, entries: Iterable[str]) -> str:
    """A line of a table; a bar within an entry is no border of it."""
    cells = [entry.replace("|", "\\|") for entry in (name, *entries)]
    return "| " + " | ".join(cells).removeprefix(" ") + " |"


def percent(fraction: float | None) -> str:
    """A fraction in percent; ``n/a`` where nothing is scored."""
    return "n/a" if fraction is None else f"{100 * fraction:.2f}"
