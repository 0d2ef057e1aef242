"""Predict the evaluated tasks of a run under augmentations, vote, score, write a submission.

python scripts/evaluate.py run=runs/arc1-mini-deeploop-seed0
python scripts/evaluate.py run=runs/arc1-mini-deeploop-seed0 votes=16 output=json
"""

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from eval.predict import answer_with, predict
from eval.results import PREDICTIONS_FILE, format_ladders, write_results
from hrm_deeploop.checkpoint import load_into
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.device import DeviceName, choose_device
from scripts import cli
from scripts.assemble import build_network, build_table, find_checkpoint, load_data, load_table
from scripts.run_config import NewPuzzles, RunConfig, load_config, to_yaml, validate


class EvaluateOptions(StrictConfig):
    """Keys of ``configs/evaluate.yaml``."""

    run: str
    checkpoint: int | str
    votes: int | None = Field(ge=1)
    tasks: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None
    batch_size: int | None = Field(ge=1)
    new_puzzles: NewPuzzles | None
    device: DeviceName


def evaluate(
    config: RunConfig,
    checkpoint: Path,
    device: torch.device,
    *,
    tasks: tuple[str, ...] | None = None,
    label: str = "",
    title: str,
) -> tuple[Path, dict[str, Any]]:
    """Evaluate one checkpoint; returns the evaluation directory and the ladder.

    ``label`` is added to the directory's name, so that part of an evaluation does not replace it.
    """
    data = load_data(config, checkpoint)
    indices = data.evaluated_indices
    if tasks is not None:
        by_id = {data.puzzles.tasks[i].id: i for i in indices}
        unknown = [task_id for task_id in tasks if task_id not in by_id]
        if unknown:
            raise ValueError(
                f"tasks={','.join(unknown)}: not among the {len(by_id)} evaluated tasks of the run"
            )
        indices = [by_id[task_id] for task_id in tasks]
    if not indices:
        raise ValueError(
            f"{config.run_dir}: no task is evaluated with data.evaluate={config.data.evaluate}; "
            "train with another choice"
        )
    network = build_network(config, device).eval()
    table = build_table(config, data.puzzles, device)
    load_into(network, checkpoint, "ema" if config.optim.ema_rate else "model")
    load_table(table, data, checkpoint)
    predictions = predict(
        answer_with(network, table),
        data.puzzles,
        indices,
        canvas=config.data.canvas,
        votes=config.evaluation.votes or config.data.num_aug + 1,
        num_segments=config.model.halt_max_steps,
        batch_size=config.evaluation.batch_size,
        device=device,
        title=title,
    )
    directory = Path(config.run_dir) / "eval" / (checkpoint.name + label)
    predictions.save(directory / PREDICTIONS_FILE)
    scored = [data.puzzles.tasks[i] for i in indices]
    ladder = write_results(directory, predictions, scored, attempts=config.evaluation.attempts)
    return directory, ladder


def _label(options: EvaluateOptions) -> str:
    """What distinguishes this evaluation from the run's own, as part of a directory's name."""
    votes = f"-votes{options.votes}" if options.votes is not None else ""
    return votes + (f"-tasks{len(options.tasks)}" if options.tasks is not None else "")


def main(overrides: list[str]) -> dict[str, Any]:
    values = cli.compose_config("evaluate", overrides)
    output = cli.take_output(values)
    options: EvaluateOptions = validate(EvaluateOptions, values)
    cli.show_config(to_yaml(options))
    config = load_config(Path(options.run))
    changes = {"votes": options.votes, "batch_size": options.batch_size}
    changes = {key: value for key, value in changes.items() if value is not None}
    evaluation = config.evaluation.model_copy(update=changes)
    config = validate(
        RunConfig,
        {
            **config.model_dump(),
            "run_dir": options.run,
            "evaluation": evaluation.model_dump(),
            "new_puzzles": options.new_puzzles or config.new_puzzles,
        },
    )
    directory, ladder = evaluate(
        config,
        find_checkpoint(Path(options.run), options.checkpoint),
        choose_device(options.device),
        tasks=options.tasks,
        label=_label(options),
        title=f"predict {Path(options.run).name}",
    )
    if output == "text":
        print(format_ladders({Path(options.run).name: ladder}))
        print(f"written: {directory}/")
    return {"directory": str(directory), "ladder": ladder, "output": output}


if __name__ == "__main__":
    cli.launch(main, "evaluate", __doc__, keys_of=["evaluate"])
