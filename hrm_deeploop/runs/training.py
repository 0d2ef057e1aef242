"""Train one run; its configuration, metrics and checkpoints land in its directory."""

from pathlib import Path
from typing import NamedTuple

from arc_data.prefetch import Prefetch
from hrm_deeploop.device import Ranks
from hrm_deeploop.fit import Report, fit
from hrm_deeploop.runs.checkpoint import step_directory
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.directory import CHECKPOINTS, METRICS_FILE
from hrm_deeploop.runs.metrics import open_log
from hrm_deeploop.runs.progress import show_progress
from hrm_deeploop.runs.session import Session

PREFETCH_DEPTH = 4  # batches


class Trained(NamedTuple):
    """What a training left: its newest checkpoint, and the signal that ended it early."""

    checkpoint: Path
    stopped_by: int | None


def train_run(config: RunConfig, ranks: Ranks, report: Report | None = None) -> Trained:
    """Train as configured, continuing where ``resume`` allows.

    ``report`` is told of every step; without it a progress bar is shown.

    Raises:
        ValueError: if the run directory, the data and the configuration do not go together, or if
            another process trains in the directory.
        NonFiniteError: if a loss or gradient is not finite.
    """
    with Session(config, ranks) as session:
        return _train(session, report)


def _train(session: Session, report: Report | None) -> Trained:
    config, ranks, trainer = session.config, session.ranks, session.trainer
    run_dir = Path(config.run_dir)
    until = min(trainer.total_steps, config.stop_after or trainer.total_steps)
    with (
        open_log(
            run_dir / METRICS_FILE,
            is_main=ranks.is_main,
            logger=config.logger,
            config=config.model_dump(mode="json"),
            resumed_step=trainer.step,
        ) as log,
        Prefetch(session.draw, depth=PREFETCH_DEPTH, end=until) as draw,
        show_progress(
            run_dir.name, "step", total=until, done=trainer.step, ranks=ranks, report=report
        ) as told,
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
            evaluate_first=session.validation_is_due(),
            measure_every=config.alignment.every,
            measure=session.measure_alignment,
            report=told,
        )
    return Trained(step_directory(run_dir / CHECKPOINTS, trainer.step), stopped_by)
