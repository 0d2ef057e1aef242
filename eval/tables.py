"""Ladders as tables, for the terminal and for the page."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from eval.score import Score

SCORE_TITLES = {
    "all_tests": "every test pair of the task solved",
    "arc_prize": "mean over the task's test pairs",
}
Ladder = Mapping[str, Any]


class Table(NamedTuple):
    """Percentages of one score over the rungs of one axis, a row per run."""

    caption: str
    rungs: list[str]
    rows: dict[str, list[str]]


def ladder_tables(ladders: Mapping[str, Ladder]) -> list[Table]:
    """Both scores over attempts, then over votes, then over segments where asked for."""
    first = next(iter(ladders.values()))
    tables = [
        Table(
            caption=f"{score}: {SCORE_TITLES[score]}, % of {first['num_scored_tasks']} tasks",
            rungs=[*(f"K={rung}" for rung in first[score]), "any K"],
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
                rungs=[f"{letter}={rung}" for rung in first[key][score]],
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
    width = max(len(name) for name in ladders)
    lines = []
    for table in ladder_tables(ladders):
        lines += [table.caption, " " * width + "".join(f"{rung:>8}" for rung in table.rungs)]
        lines += [
            f"{name:{width}}" + "".join(f"{cell:>8}" for cell in cells)
            for name, cells in table.rows.items()
        ]
        lines.append("")
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


def percent(fraction: float | None) -> str:
    """A fraction in percent; ``n/a`` where nothing is scored."""
    return "n/a" if fraction is None else f"{100 * fraction:.2f}"
