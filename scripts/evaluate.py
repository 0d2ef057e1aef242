"""Predict the evaluated tasks of a run under augmentations, vote, score, submit, report.

hrm-deeploop evaluate run=runs/arc1-mini-deeploop-seed0
hrm-deeploop evaluate run=runs/arc1-mini-deeploop-seed0 votes=16 halting=act segments=[1]
torchrun --nproc-per-node 2 -m scripts.evaluate run=runs/arc1-mini-deeploop-seed0

Interrupted, the same command goes on; finished, it votes again from predictions.npz.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from eval.tables import format_ladders
from hrm_deeploop.attention import AttentionName
from hrm_deeploop.device import DeviceName, join_ranks, leave_ranks
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import NewPuzzles, load_config, to_yaml, validate
from hrm_deeploop.runs.directory import find_checkpoint
from hrm_deeploop.runs.evaluation import Choices, Count, Evaluation
from scripts import cli

KEYS_OF = ["evaluate"]


class EvaluateOptions(Choices):
    """Keys of ``configs/evaluate.yaml``."""

    run: str
    checkpoint: int | str
    attempts: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] | None
    batch_size: Count | None
    new_puzzles: NewPuzzles | None
    attention: AttentionName | None
    device: DeviceName


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("evaluate", overrides)
    output = cli.take_output(values)
    options: EvaluateOptions = validate(EvaluateOptions, values)
    run = Path(options.run)
    config = load_config(run)
    evaluation = config.evaluation.model_copy(
        update={"batch_size": options.batch_size or config.evaluation.batch_size}
    )
    changes = {
        "run_dir": options.run,
        "evaluation": evaluation,
        "new_puzzles": options.new_puzzles or config.new_puzzles,
        "attention": options.attention or config.attention,
    }
    config = config.model_copy(update=changes)
    checkpoint = find_checkpoint(run, options.checkpoint)
    ranks = join_ranks(options.device)
    if ranks.is_main:
        cli.show_config(to_yaml(options))
    evaluation = Evaluation(config, checkpoint, ranks, options)
    stopped_by = evaluation.predict()
    leave_ranks(ranks)
    if stopped_by is not None:
        if ranks.is_main:
            print("stopped; the same command goes on", file=sys.stderr)
        return {"exit_status": 128 + stopped_by}
    if not ranks.is_main:
        return {}
    ladder = evaluation.results(options.attempts, run.name)
    if output == "text":
        print(format_ladders({run.name: ladder}))
        print(f"written: {evaluation.directory}/ (report.html shows every task)")
    return {"directory": str(evaluation.directory), "ladder": ladder, "output": output}


if __name__ == "__main__":
    cli.launch(main, "evaluate", __doc__, keys_of=KEYS_OF)
