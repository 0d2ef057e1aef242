"""Look at and check data.

python scripts/data.py validate PATH [PATH ...]     all problems of folders or files; exit 1
python scripts/data.py leaks data=arc1              held-out pairs that would train, and repeats
python scripts/data.py stats data=arc1 data.canvas=15
python scripts/data.py show 0d3d703e                a task in the terminal
python scripts/data.py show 0d3d703e puzzle=3 save=task.png
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console
from rich.table import Table

from arc_data import sources
from arc_data.augment import Augmentation
from arc_data.config import DataConfig
from arc_data.files import read_any
from arc_data.leaks import LeakReport, find_leaks, format_match, training_set
from arc_data.puzzles import build_puzzles
from arc_data.stats import collection_stats
from arc_data.task import InvalidDataError, Task
from eval.plots import draw_grid_text, plot_task
from hrm_deeploop.config import StrictConfig

SUBCOMMANDS = ("validate", "leaks", "stats", "show")


class DataOptions(StrictConfig):
    """Keys of ``configs/data_command.yaml``."""

    data: DataConfig
    puzzle: int = Field(ge=0)
    save: str | None


def validate_paths(paths: list[Path], *, as_text: bool) -> dict[str, Any]:
    """List every problem; the exit status is 1 if there is one."""
    num_tasks, problems = 0, []
    for path in paths:
        try:
            num_tasks += len(read_any(path))
        except InvalidDataError as error:
            problems.extend(error.problems)
    if as_text:
        for problem in problems:
            print(" ".join(problem.split()))
        print(f"{len(problems)} problems" if problems else f"{num_tasks} tasks, no problem")
    return {"problems": problems, "num_tasks": num_tasks, "exit_status": int(bool(problems))}


def show_leaks(config: DataConfig, *, as_text: bool) -> dict[str, Any]:
    """What :func:`~arc_data.leaks.find_leaks` finds."""
    collection = sources.load(config)
    report = find_leaks(collection)
    held_out = sum(len(task.test) for task in collection.evaluated_tasks)
    if as_text:
        print(
            f"{collection.name}: {len(collection.tasks)} tasks, {len(collection.evaluated)} of "
            f"them evaluated with {held_out} held-out test pairs"
        )
        for title, lines in _leak_lines(report).items():
            print(f"\n{title}: {len(lines)}")
            for line in lines:
                print(f"  {line}")
    return {
        "num_tasks": len(collection.tasks),
        "num_evaluated_tasks": len(collection.evaluated),
        "num_held_out_pairs": held_out,
        "across": list(map(format_match, report.across)),
        "within": list(map(format_match, report.within)),
        "equal_tasks": [list(ids) for ids in report.equal_tasks],
        "repeated_ids": list(report.repeated_ids),
    }


def _leak_lines(report: LeakReport) -> dict[str, list[str]]:
    return {
        "held-out pairs among another task's training pairs (leaks)": list(
            map(format_match, report.across)
        ),
        "held-out pairs among the task's own demonstrations (kept)": list(
            map(format_match, report.within)
        ),
        "equal tasks under several ids": [" ".join(ids) for ids in report.equal_tasks],
        "tasks left out, an earlier source has the id": list(report.repeated_ids),
    }


def show_stats(config: DataConfig, *, as_text: bool) -> dict[str, Any]:
    """Numbers of the collection."""
    collection = sources.load(config)
    training = training_set(collection, find_leaks(collection), config.leaks)
    puzzles = build_puzzles(collection.tasks, num_aug=config.num_aug, seed=config.seed)
    stats = collection_stats(collection, training, puzzles, canvas=config.canvas)
    if as_text:
        for source in stats["sources"]:
            print(
                f"source    {source['name']}: {source['num_tasks']} tasks, {source['licence']}, "
                f"sha256 {source['sha256'][:16]}"
            )
        print(
            f"tasks     {stats['num_tasks']}, {stats['num_evaluated_tasks']} evaluated\n"
            f"pairs     {stats['num_training_pairs']} train, {stats['num_held_out_pairs']} held "
            f"out, {stats['num_hidden_outputs']} have no known output\n"
            f"puzzles   {stats['num_puzzles']:,} ({config.num_aug} augmentations asked for)\n"
            f"canvas    {stats['canvas']} x {stats['canvas']}, {stats['tokens']} tokens"
        )
        for key in ("puzzles_per_task", "grid_side", "tokens_needed"):
            spread = ", ".join(f"{name} {value:.0f}" for name, value in stats[key].items())
            print(f"{key:18}{spread}")
        for key in ("too_large", "repeated_ids"):
            print(f"{key:18}{len(stats[key])}: {_listed(stats[key])}")
    return stats


def _listed(ids: Iterable[str]) -> str:
    return " ".join(ids) or "none"


def show_task(options: DataOptions, task_id: str, *, as_text: bool) -> dict[str, Any]:
    """Print a task in color, under an augmentation if asked, and save a picture if asked."""
    collection = sources.load(options.data)
    sources.check_known([task_id], collection.tasks, "show", collection.name)
    task = next(task for task in collection.tasks if task.id == task_id)
    puzzles = build_puzzles([task], num_aug=options.data.num_aug, seed=options.data.seed)
    if options.puzzle >= len(puzzles):
        raise ValueError(f"puzzle={options.puzzle}: {task_id} has puzzles 0 to {len(puzzles) - 1}")
    augmentation = puzzles.augmentation(options.puzzle)
    if options.save is not None:
        plot_task(task, augmentation, Path(options.save))
    if as_text:
        Console().print(_task_table(task, augmentation))
    parts = {"train": task.train, "test": task.test}
    return {
        "id": task.id,
        "split": task.split,
        "augmentation": {"dihedral": augmentation.dihedral, "colors": list(augmentation.colors)},
        **{
            part: [
                {
                    "input": augmentation.apply(pair.input).tolist(),
                    "output": None
                    if pair.output is None
                    else augmentation.apply(pair.output).tolist(),
                }
                for pair in pairs
            ]
            for part, pairs in parts.items()
        },
    }


def _task_table(task: Task, augmentation: Augmentation) -> Table:
    table = Table("pair", "input", "output", title=f"{task.id} ({task.split})", show_lines=True)
    for part, pairs in (("train", task.train), ("test", task.test)):
        for i, pair in enumerate(pairs):
            output = "not known" if pair.output is None else augmentation.apply(pair.output)
            table.add_row(
                f"{part} {i}",
                draw_grid_text(augmentation.apply(pair.input)),
                output if isinstance(output, str) else draw_grid_text(output),
            )
    return table
