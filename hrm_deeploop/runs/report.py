"""What came of a comparison: comparison.json, tables, a page and pictures."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.compare import format_difference
from eval.comparison import PAPER, comparison_tables, write_html
from eval.paired import compare_ranks, mean_and_spread
from eval.plots import plot_curves, plot_ladders
from eval.score import Score
from eval.tables import format_markdown, format_text
from hrm_deeploop.alignment import LOG_PREFIX
from hrm_deeploop.runs.cells import DIVERGED, NOT_LEARNING, TRAINED
from hrm_deeploop.runs.comparison import Plan, run_cells
from hrm_deeploop.runs.directory import METRICS_FILE
from hrm_deeploop.runs.metrics import read_metrics

COMPARISON_FILE, MARKDOWN_FILE, HTML_FILE = "comparison.json", "comparison.md", "comparison.html"
log = logging.getLogger(__name__)
LADDER_PLOT, CURVES_PLOT = "ladder.png", "curves.png"
FILES = (COMPARISON_FILE, MARKDOWN_FILE, HTML_FILE, LADDER_PLOT, CURVES_PLOT)


def summarize(
    comparison: Plan,
    chosen: Mapping[str, dict[str, Any]],
    grid: Sequence[dict[str, Any]],
    final: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The content of comparison.json."""
    by_arm = {arm: [cell for cell in final if cell["arm"] == arm] for arm in comparison.arms}
    configs = {
        arm: comparison.cell(arm, chosen[arm], comparison.options.seeds[0]).config
        for arm in comparison.arms
    }
    first = next(iter(configs.values()))
    arms = {}
    for arm, cells in by_arm.items():
        tested = [cell["test"] for cell in cells if cell["test"] is not None]
        ladders = [test["ladder"] for test in tested]
        baseline = comparison.baselines.get(arm)
        compared = by_arm[baseline] if baseline else []
        base = [cell["test"]["truth_ranks"] for cell in compared if cell["test"]]
        ranks = [test["truth_ranks"] for test in tested]
        attempts = [int(k) for k in ladders[0]["all_tests"]] if ladders else []
        can_compare = ranks and base and base[0]
        arms[arm] = {
            "overrides": comparison.options.arms[arm],
            "chosen": chosen[arm],
            "seeds": [cell["seed"] for cell in cells],
            "run_dirs": [cell["run_dir"] for cell in cells],
            "num_trained": sum(cell["status"] == TRAINED for cell in cells),
            "num_diverged": sum(cell["status"] == DIVERGED for cell in cells),
            "num_tested": len(tested),
            "failures": [text for cell in cells for text in _failures(cell)],
            "train_loss": _mean_and_sd(
                [cell["train_loss"] for cell in cells if cell["status"] != DIVERGED]
            ),
            "validation_loss": _mean_and_sd(
                [cell["validation"]["eval/loss"] for cell in cells if cell["validation"]]
            ),
            "seconds": _mean([cell["seconds"] for cell in cells]),
            **{key: cells[0][key] for key in ("steps", "examples", "flops", "params")},
            "alignment": _mean_alignment([cell["run_dir"] for cell in cells]),
            "ladder": _mean_ladder(ladders) if ladders else None,
            "spread": {
                score: mean_and_spread([ladder[score] for ladder in ladders])
                for score in Score._fields
            }
            if ladders
            else None,
            "difference": {
                score: {rung: d._asdict() for rung, d in rungs.items()}
                for score, rungs in compare_ranks(ranks, base, attempts).items()
            }
            if can_compare
            else None,
        }
    return {
        "arms": arms,
        "baselines": comparison.baselines,
        "budget": comparison.options.budget,
        "config_difference": comparison.check(configs),
        "grid": [
            {
                "arm": cell["arm"],
                "name": Path(cell["run_dir"]).name,
                "point": cell["point"],
                "status": cell["status"],
                "train_loss": cell["train_loss"],
                "validation_loss": (cell["validation"] or {}).get("eval/loss"),
                "validation_arc_prize_at_2": (cell["validation"] or {}).get("eval/arc_prize_at_2"),
            }
            for cell in grid
        ],
        "cells": list(final),
        "is_arc1_evaluation": first.data.source == "arc1"
        and first.data.evaluate == "evaluation"
        and first.data.tasks is None,
    }


def _failures(cell: Mapping[str, Any]) -> list[str]:
    if cell["failure"]:
        return [f"seed {cell['seed']}: {cell['failure']}"]
    if cell["status"] == NOT_LEARNING:
        first, last = cell["first_train_loss"], cell["train_loss"]
        return [f"seed {cell['seed']}: not learning, loss {last:.3f} from {first:.3f}"]
    return []


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean_and_sd(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    return mean_and_spread([{"": value} for value in values])[""] if values else (None, None)


def _mean_alignment(run_dirs: Sequence[str]) -> dict[str, dict[str, float]]:
    """What ``alignment.every`` measured, by step: means over the runs that have it."""
    found: dict[str, list[dict[str, float]]] = {}
    for run_dir in run_dirs:
        for row in read_metrics(Path(run_dir) / METRICS_FILE):
            measured = {
                key.removeprefix(LOG_PREFIX): value
                for key, value in row.items()
                if key.startswith(LOG_PREFIX)
            }
            if measured:
                found.setdefault(str(row["step"]), []).append(measured)
    return {
        step: {
            key: float(np.mean([row[key] for row in rows]))
            for key in rows[0]
            if all(key in row for row in rows)
        }
        for step, rows in found.items()
    }


def _mean_ladder(ladders: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A ladder whose fractions are means over seeds."""

    def mean(*path: str) -> dict[str, float | None]:
        found = []
        for ladder in ladders:
            level: Any = ladder
            for key in path:
                level = level[key]
            found.append(level)
        return {rung: entry[0] for rung, entry in mean_and_spread(found).items()}

    nested = ("oracle", "votes_at_2")
    return {
        **ladders[0],
        **{score: mean(score) for score in Score._fields},
        **{key: {score: mean(key, score) for score in Score._fields} for key in nested},
        "mean_segments": _mean([ladder["mean_segments"] for ladder in ladders]),
        "warnings": list(dict.fromkeys(w for ladder in ladders for w in ladder["warnings"])),
    }


def write_comparison(summary: dict[str, Any], report_dir: Path) -> None:
    """Write comparison.json, .md, .html and both pictures."""
    report_dir.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, indent=2) + "\n"
    (report_dir / COMPARISON_FILE).write_text(text, encoding="utf-8")
    tables = comparison_tables(summary)
    difference = format_difference(summary["config_difference"])
    pictures = {}
    ladders = {name: arm["ladder"] for name, arm in summary["arms"].items() if arm["ladder"]}
    if ladders:
        spreads = {name: summary["arms"][name]["spread"] for name in ladders}
        paper = PAPER if summary["is_arc1_evaluation"] else {}
        plot_ladders(ladders, report_dir / LADDER_PLOT, spreads, paper)
        pictures["Voted accuracy"] = report_dir / LADDER_PLOT
    metrics = {
        name: [read_metrics(Path(place) / METRICS_FILE) for place in arm["run_dirs"]]
        for name, arm in summary["arms"].items()
    }
    plot_curves(metrics, report_dir / CURVES_PLOT)
    pictures["Training"] = report_dir / CURVES_PLOT
    markdown = f"{format_markdown(tables.values())}\n```\n{difference}\n```\n"
    (report_dir / MARKDOWN_FILE).write_text(markdown, encoding="utf-8")
    write_html(tables.values(), difference, pictures, report_dir.name, report_dir / HTML_FILE)


def format_comparison(summary: dict[str, Any]) -> str:
    """Write the difference of the configurations, all tables and all warnings as text."""
    warnings = [
        f"warning: {name}: {warning}"
        for name, arm in summary["arms"].items()
        if arm["ladder"]
        for warning in arm["ladder"]["warnings"]
    ]
    difference = format_difference(summary["config_difference"])
    return "\n".join([difference, "", format_text(comparison_tables(summary).values()), *warnings])


def run_comparison(plan: Plan) -> dict[str, Any]:
    """Run the cells of a plan that are not finished, and write the report; returns the summary.

    Raises:
        StoppedError: if a signal ended the work; the same call goes on.
    """
    where = plan.options
    grid = run_cells(plan.grid_cells(), test=False, where=where, description="grid")
    chosen = plan.choose()
    final = run_cells(plan.final_cells(chosen), test=True, where=where, description="compare")
    summary = summarize(plan, chosen, grid, final)
    unmeasured = [name for name, arm in summary["arms"].items() if not arm["alignment"]]
    every = plan.first_cell.config.alignment.every
    if every and unmeasured:
        log.warning(
            "alignment.every=%d: finished cells of %s have no measurements and are not run again",
            every,
            ", ".join(unmeasured),
        )
    write_comparison(summary, Path(plan.options.report_dir))
    return summary
