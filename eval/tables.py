"""Tables, in text, Markdown and HTML."""

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

SCORE_TITLES = {
    "all_tests": "every test pair of the task solved",
    "arc_prize": "mean over the task's test pairs",
}


class Table(NamedTuple):
    """A caption, the names of the columns, and rows by their name."""

    caption: str
    columns: list[str]
    rows: dict[str, list[str]]


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


def format_html(tables: Iterable[Table]) -> str:
    """Write the tables as HTML, for a notebook."""
    found = []
    for table in tables:
        rows = [("", table.columns), *table.rows.items()]
        cells = [
            "".join(f"<td>{escape(entry)}</td>" for entry in (name, *row)) for name, row in rows
        ]
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        found.append(f"<table><caption>{escape(table.caption)}</caption>{body}</table>")
    return "\n".join(found)


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
