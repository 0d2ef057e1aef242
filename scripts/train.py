"""Train one run; its configuration, metrics and checkpoints land in run_dir.

python scripts/train.py experiment=mini
python scripts/train.py experiment=mini scaling=vanilla seed=1
python scripts/train.py experiment=mini resume=auto
torchrun --nproc-per-node 8 scripts/train.py experiment=arc1

SIGINT and SIGTERM finish the step, save and exit with 130 and 143.
"""

import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from arc_data.prefetch import Prefetch
from hrm_deeploop.checkpoint import step_directory
from hrm_deeploop.device import Ranks, join_ranks, leave_ranks
from hrm_deeploop.loop import fit
from hrm_deeploop.metrics import open_log
from scripts import cli
from scripts.assemble import CHECKPOINTS, METRICS_FILE
from scripts.run_config import RunConfig, to_yaml, validate
from scripts.session import Session

PREFETCH_DEPTH = 4  # batches


class Trained(NamedTuple):
    """What a training left: its newest checkpoint, and the signal that ended it early."""

    checkpoint: Path
    stopped_by: int | None


def train(config: RunConfig, ranks: Ranks, title: str) -> Trained:
    """Train as configured, continuing where ``resume`` allows."""
    session = Session(config, ranks)
    trainer, run_dir = session.trainer, Path(config.run_dir)
    until = min(trainer.total_steps, config.stop_after or trainer.total_steps)
    with (
        closing(session),
        open_log(
            run_dir / METRICS_FILE,
            is_main=ranks.is_main,
            logger=config.logger,
            config=config.model_dump(mode="json"),
            resumed_step=trainer.step,
        ) as log,
        Prefetch(session.draw, depth=PREFETCH_DEPTH, end=until) as draw,
    ):
        stopped_by = fit(
            trainer,
            draw,
            log,
            until=until,
            log_every=config.log_every,
            checkpoint_every=config.checkpoint_every,
            save=session.save,
            eval_interval=config.eval_interval,
            evaluate=session.validate if config.eval_interval else None,
            measure_every=config.alignment.every,
            measure=session.measure_alignment,
            title=title,
        )
    return Trained(step_directory(run_dir / CHECKPOINTS, trainer.step), stopped_by)


def main(overrides: list[str]) -> dict[str, Any]:
    values = cli.compose_config("train", overrides)
    output = cli.take_output(values)
    config: RunConfig = validate(RunConfig, values)
    ranks = join_ranks(config.device)
    if ranks.is_main:
        cli.show_config(to_yaml(config))
    checkpoint, stopped_by = train(config, ranks, title=Path(config.run_dir).name)
    leave_ranks(ranks)
    if ranks.is_main:
        how = "" if stopped_by is None else f" (stopped by {signal.Signals(stopped_by).name})"
        print(f"trained: {checkpoint}{how}", file=sys.stderr)
    return {
        "run_dir": config.run_dir,
        "checkpoint": str(checkpoint),
        "output": output if ranks.is_main else "text",
        "exit_status": 0 if stopped_by is None else 128 + stopped_by,
    }


if __name__ == "__main__":
    cli.launch(main, "train", __doc__, keys_of=["train"])
