"""Plots of ladders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from eval.results import SCORE_TITLES


def plot_ladders(ladders: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Both scores over attempts and over votes, a line per run, as a PNG."""
    # The object interface leaves pyplot's global state, and with it any display, alone.
    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2, sharey="row")
    for (score, title), row in zip(SCORE_TITLES.items(), grid, strict=True):
        at_attempts = {name: ladder[score] for name, ladder in ladders.items()}
        at_votes = {name: ladder["votes_at_2"][score] for name, ladder in ladders.items()}
        _plot_rungs(row[0], at_attempts, "attempts K, all votes")
        _plot_rungs(row[1], at_votes, "votes A, at K = 2")
        row[0].set_ylabel(f"{score}, %\n({title})")
    grid[0, 0].legend()
    num_tasks = next(iter(ladders.values()))["num_scored_tasks"]
    figure.suptitle(f"Voted accuracy on {num_tasks} tasks")
    figure.savefig(path, dpi=120)


def _plot_rungs(axes: Axes, runs: Mapping[str, Mapping[str, float | None]], label: str) -> None:
    """Percent over rungs, a line per run; rungs without a score are left out."""
    for name, fractions in runs.items():
        scored = {int(rung): 100 * f for rung, f in fractions.items() if f is not None}
        axes.plot(list(scored), list(scored.values()), marker="o", label=name)
    rungs = sorted({int(rung) for fractions in runs.values() for rung in fractions})
    axes.set_xscale("log", base=2)
    axes.set_xticks(rungs, labels=[str(rung) for rung in rungs])
    axes.set_xlabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
