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
from hrm_deeploop.runs.checkpoint import step_directory
from hrm_deeploop.device import Ranks, join_ranks, leave_ranks
from hrm_deeploop.fit import fit
from hrm_deeploop.runs.metrics import open_log
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.build import CHECKPOINTS, METRICS_FILE
from hrm_deeploop.runs.config import RunConfig, to_yaml, validate
from hrm_deeploop.runs.session import Session

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
