"""What came of a comparison: comparison.json, tables, a page and pictures."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arc_data.atomic import write_atomically
from eval.compare import format_difference
from eval.comparison import PAPER, ArmResult, CellResult, Comparison, GridEntry, write_html
from eval.ladder import AnyRung, Ladder, Oracle, Rungs
from eval.paired import Spreads, compare_ranks, spread, spread_of_rungs
from eval.plots import plot_curves, plot_ladders
from eval.tables import format_markdown
from hrm_deeploop.alignment import LOG_PREFIX
from hrm_deeploop.runs.cells import DIVERGED, NOT_LEARNING, TRAINED
from hrm_deeploop.runs.comparison import Plan, run_cells
from hrm_deeploop.runs.directory import METRICS_FILE
from hrm_deeploop.runs.metrics import read_metrics

COMPARISON_FILE, MARKDOWN_FILE, HTML_FILE = "comparison.json", "comparison.md", "comparison.html"
LADDER_PLOT, CURVES_PLOT = "ladder.png", "curves.png"
FILES = (COMPARISON_FILE, MARKDOWN_FILE, HTML_FILE, LADDER_PLOT, CURVES_PLOT)

log = logging.getLogger(__name__)


def run_comparison(plan: Plan) -> Comparison:
    """Run the cells of a plan that are not finished, and write the report.

    Raises:
        StoppedError: if a signal ended the work; the same call goes on.
    """
    where = plan.options
    grid = run_cells(plan.grid_cells(), test=False, where=where, description="grid")
    chosen = plan.choose()
    final = run_cells(plan.final_cells(chosen), test=True, where=where, description="compare")
    comparison = summarize(plan, chosen, grid, final)
    unmeasured = [name for name, arm in comparison.arms.items() if not arm.alignment]
    every = plan.first_cell.config.alignment.every
    if every and unmeasured:
        log.warning(
            "alignment.every=%d: finished cells of %s have no measurements and are not run again",
            every,
            ", ".join(unmeasured),
        )
    write_comparison(comparison, Path(plan.options.report_dir))
    return comparison


def summarize(
    plan: Plan,
    chosen: Mapping[str, dict[str, Any]],
    grid: Sequence[CellResult],
    final: Sequence[CellResult],
) -> Comparison:
    """Put together what the cells of a plan say."""
    seed = plan.options.seeds[0]
    configs = {arm: plan.cell(arm, chosen[arm], seed).config for arm in plan.arms}
    by_arm = {arm: [cell for cell in final if cell.arm == arm] for arm in plan.arms}
    data = next(iter(configs.values())).data
    return Comparison(
        arms={
            arm: _summarize_arm(
                cells, by_arm.get(plan.baselines.get(arm, ""), []), plan.options.arms[arm], chosen
            )
            for arm, cells in by_arm.items()
        },
        baselines=plan.baselines,
        budget=plan.options.budget,
        config_difference=plan.check(configs),
        grid=tuple(_grid_entry(cell) for cell in grid),
        cells=tuple(final),
        is_arc1_evaluation=data.source == "arc1"
        and data.evaluate == "evaluation"
        and data.tasks is None,
    )


def _summarize_arm(
    cells: Sequence[CellResult],
    baseline: Sequence[CellResult],
    overrides: dict[str, Any],
    chosen: Mapping[str, dict[str, Any]],
) -> ArmResult:
    first = cells[0]
    ladders = [cell.test.ladder for cell in cells if cell.test is not None]
    ranks = [cell.test.truth_ranks for cell in cells if cell.test is not None]
    base = [cell.test.truth_ranks for cell in baseline if cell.test is not None]
    return ArmResult(
        overrides=overrides,
        chosen=chosen[first.arm],
        seeds=tuple(cell.seed for cell in cells),
        run_dirs=tuple(cell.run_dir for cell in cells),
        num_trained=sum(cell.status == TRAINED for cell in cells),
        num_diverged=sum(cell.status == DIVERGED for cell in cells),
        num_tested=len(ladders),
        failures=tuple(text for cell in cells for text in _failures(cell)),
        train_loss=spread([cell.train_loss for cell in cells if cell.status != DIVERGED]),
        validation_loss=spread([cell.validation.loss for cell in cells if cell.validation]),
        seconds=spread([cell.seconds for cell in cells]).mean,
        steps=first.steps,
        examples=first.examples,
        flops=first.flops,
        params=first.params,
        alignment=_mean_alignment([cell.run_dir for cell in cells]),
        ladder=mean_ladder(ladders) if ladders else None,
        spread=Spreads(
            all_tests=spread_of_rungs([ladder.all_tests for ladder in ladders]),
            arc_prize=spread_of_rungs([ladder.arc_prize for ladder in ladders]),
        )
        if ladders
        else None,
        difference=compare_ranks(ranks, base, list(ladders[0].all_tests))
        if ranks and base and base[0]
        else None,
    )


def _grid_entry(cell: CellResult) -> GridEntry:
    return GridEntry(
        arm=cell.arm,
        name=Path(cell.run_dir).name,
        point=cell.point,
        status=cell.status,
        train_loss=cell.train_loss,
        validation_loss=None if cell.validation is None else cell.validation.loss,
        validation_arc_prize_at_2=None
        if cell.validation is None
        else cell.validation.arc_prize_at_2,
    )


def _failures(cell: CellResult) -> list[str]:
    if cell.failure:
        return [f"seed {cell.seed}: {cell.failure}"]
    if cell.status == NOT_LEARNING:
        first, last = cell.first_train_loss, cell.train_loss
        return [f"seed {cell.seed}: not learning, loss {last:.3f} from {first:.3f}"]
    return []


def _mean_alignment(run_dirs: Sequence[str]) -> dict[int, dict[str, float]]:
    """Average what ``alignment.every`` measured, by step, over the runs that have it."""
    found: dict[int, list[dict[str, float]]] = {}
    for run_dir in run_dirs:
        for row in read_metrics(Path(run_dir) / METRICS_FILE):
            measured = {
                key.removeprefix(LOG_PREFIX): value
                for key, value in row.items()
                if key.startswith(LOG_PREFIX)
            }
            if measured:
                found.setdefault(row["step"], []).append(measured)
    return {
        step: {
            key: float(np.mean([row[key] for row in rows]))
            for key in rows[0]
            if all(key in row for row in rows)
        }
        for step, rows in found.items()
    }


def mean_ladder(ladders: Sequence[Ladder]) -> Ladder:
    """Average the fractions of ladders over seeds."""

    def mean(rungs: Sequence[Mapping[int, float | None]]) -> dict[int, float | None]:
        return {rung: entry.mean for rung, entry in spread_of_rungs(rungs).items()}

    def mean_any(score: str) -> AnyRung:
        return AnyRung(all=spread([ladder.oracle.of(score) for ladder in ladders]).mean)

    return ladders[0].model_copy(
        update={
            "all_tests": mean([ladder.all_tests for ladder in ladders]),
            "arc_prize": mean([ladder.arc_prize for ladder in ladders]),
            "oracle": Oracle(all_tests=mean_any("all_tests"), arc_prize=mean_any("arc_prize")),
            "votes_at_2": Rungs(
                all_tests=mean([ladder.votes_at_2.all_tests for ladder in ladders]),
                arc_prize=mean([ladder.votes_at_2.arc_prize for ladder in ladders]),
            ),
            "mean_segments": float(np.mean([ladder.mean_segments for ladder in ladders])),
            "warnings": tuple(dict.fromkeys(w for ladder in ladders for w in ladder.warnings)),
        }
    )


def write_comparison(comparison: Comparison, report_dir: Path) -> None:
    """Write comparison.json, .md, .html and both pictures."""
    report_dir.mkdir(parents=True, exist_ok=True)
    comparison.save(report_dir / COMPARISON_FILE)
    tables = comparison.tables()
    difference = format_difference(comparison.config_difference)
    pictures = {}
    ladders = {name: arm.ladder for name, arm in comparison.arms.items() if arm.ladder}
    if ladders:
        spreads = {name: arm.spread for name, arm in comparison.arms.items() if arm.spread}
        paper = PAPER if comparison.is_arc1_evaluation else {}
        plot_ladders(ladders, report_dir / LADDER_PLOT, spreads, paper)
        pictures["Voted accuracy"] = report_dir / LADDER_PLOT
    metrics = {
        name: [read_metrics(Path(place) / METRICS_FILE) for place in arm.run_dirs]
        for name, arm in comparison.arms.items()
    }
    plot_curves(metrics, report_dir / CURVES_PLOT)
    pictures["Training"] = report_dir / CURVES_PLOT
    markdown = f"{format_markdown(tables.values())}\n```\n{difference}\n```\n"
    write_atomically(report_dir / MARKDOWN_FILE, markdown)
    write_html(tables.values(), difference, pictures, report_dir.name, report_dir / HTML_FILE)
