"""One training in progress: a trainer with its data, fresh or from the newest usable checkpoint."""

import logging
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from hrm_deeploop.alignment import align_segment, log_alignment
from hrm_deeploop.device import Ranks
from hrm_deeploop.fit import Asked
from hrm_deeploop.halting import Batch
from hrm_deeploop.runs.build import build_network, build_table, load_table, to_batch
from hrm_deeploop.runs.checkpoint import (
    IMPORTED_FROM,
    STATE_FILE,
    load_into,
    load_training_state,
    prune_checkpoints,
    save_checkpoint,
)
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.data import PUZZLES_FILE, build_probe, build_stream, load_data
from hrm_deeploop.runs.directory import (
    BEST_BY,
    CHECKPOINTS,
    METRICS_FILE,
    best_step,
    check_same_data,
    checkpoints_to_continue,
    describe_run,
    first_whole,
)
from hrm_deeploop.runs.locking import check_file_system, hold_directory
from hrm_deeploop.runs.metrics import read_metrics
from hrm_deeploop.runs.predict import Predictor
from hrm_deeploop.runs.seen import TASKS_FILE, see
from hrm_deeploop.runs.validation import log_validation, validate_network
from hrm_deeploop.trainer import Trainer

log = logging.getLogger(__name__)


class Session:
    """What ``train`` drives: draws, the trainer, validation and checkpoints of one run.

    A context manager, which holds the run's directory. The directory is held before anything in it
    is looked at, and the main rank looks for all.

    Raises:
        ValueError: if the run directory, the data and the configuration do not go together, or if
            another process trains in the directory.
    """

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        self.config = config
        self.ranks = ranks
        self._held = ExitStack()

    def __enter__(self) -> "Session":
        config, ranks = self.config, self.ranks
        with self._held:
            checkpoint = ranks.from_main(self._begin)
            self._build(checkpoint)
            if ranks.is_main and (checkpoint is None or config.new_puzzles == "init"):
                # Other tasks are taken once; who goes on later has them.
                describe_run(config.changed(new_puzzles="refuse"), self.data)
            self._held = self._held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _begin(self) -> Path | None:
        """Hold the directory and return the checkpoint to go on from. For the main rank."""
        run_dir = Path(self.config.run_dir)
        self._held.enter_context(hold_directory(run_dir, "training"))
        candidates = checkpoints_to_continue(self.config)
        check_file_system(run_dir)
        return first_whole(candidates)

    def _build(self, checkpoint: Path | None) -> None:
        config, ranks = self.config, self.ranks
        self.data = data = load_data(config, checkpoint)
        self.seen = see(data.collection, data.tasks.training, data.seen)
        self.stream = build_stream(config, data)
        self.trainer = Trainer(
            build_network(config, ranks.device),
            build_table(config, data.puzzles, ranks.device),
            config.optim,
            total_steps=config.num_steps(self.stream.examples_per_epoch),
            seed=config.seed,
            ranks=ranks,
            micro_batch_size=config.micro_batch_size,
            compile_network=config.compile,
        )
        if checkpoint is None:
            return
        check_same_data(config, data.collection.content_hash)
        state = load_training_state(checkpoint)
        if IMPORTED_FROM in state:
            raise ValueError(
                f"{checkpoint}: its weights were imported from {state[IMPORTED_FROM]}; such a run "
                "is evaluated, it has no training state to go on from"
            )
        load_table(self.trainer.puzzle_embedding, data, checkpoint)
        for stem, module in self.trainer.modules().items():
            if module is not self.trainer.puzzle_embedding:
                load_into(module, checkpoint, stem)
        assert data.matched is not None
        if not data.matched.in_place:
            state["carry"] = None  # its puzzle ids are those of the old table
        try:
            self.trainer.load_training_state(state)
        except ValueError as error:
            raise ValueError(f"{checkpoint / STATE_FILE}: {error}") from error
        num_fresh = int((data.matched.rows < 0).sum())
        if num_fresh and self.trainer.step >= self.trainer.total_steps:
            log.warning(
                "train: the run is finished, so the %d fresh rows of new_puzzles=init stay at zero",
                num_fresh,
            )

    def draw(self, step: int) -> tuple[Batch, ...]:
        """This rank's batch of a step on its device, a part for every length of sequence."""
        ranks = self.ranks
        parts = self.stream.batches(step, rank=ranks.rank, world_size=ranks.world_size)
        return tuple(to_batch(part, ranks.device) for part in parts)

    def save(self) -> None:
        """Write the step's checkpoint and delete those that need not be kept."""
        state = self.trainer.training_state()  # gathers over the ranks
        if self.ranks.is_main:
            root = Path(self.config.run_dir) / CHECKPOINTS
            save_checkpoint(
                root,
                self.trainer.step,
                weights={stem: m.state_dict() for stem, m in self.trainer.modules().items()},
                training_state=state,
                texts={
                    PUZZLES_FILE: self.data.puzzles.to_json(),
                    TASKS_FILE: self.seen.to_json(),
                },
                config_digest=self.config.digest,
            )
            best = best_step(Path(self.config.run_dir))
            prune_checkpoints(
                root,
                keep_last=self.config.keep_last,
                keep_every=self.config.keep_every,
                keep=set() if best is None else {best},
            )
        self.ranks.barrier()

    def validation_is_due(self) -> bool:
        """Tell whether a signal ended the validation of the step that is gone on from."""
        config, trainer = self.config, self.trainer
        if not config.eval_interval or not trainer.step:
            return False
        if trainer.step % config.eval_interval and trainer.step < trainer.total_steps:
            return False
        rows = self.ranks.from_main(lambda: read_metrics(Path(config.run_dir) / METRICS_FILE))
        return not any(row["step"] == trainer.step and BEST_BY in row for row in rows)

    def validate(self, is_stopped: Asked) -> dict[str, float] | None:
        """Measure loss and voted scores of the held-out demonstrations; None if a signal came."""
        config, trainer = self.config, self.trainer
        predictor = Predictor(
            network=trainer.eval_network,
            lookup=trainer.puzzle_embedding.lookup,
            canvas=config.data.canvas,
            batch_size=config.evaluation.batch_size,
            device=self.ranks.device,
            window=config.window,
        )
        votes = config.evaluation.validation_votes
        found = validate_network(predictor, self.data, votes, self.ranks, is_stopped)
        return None if found is None else log_validation(found)

    def measure_alignment(self) -> dict[str, float]:
        """Measure kappa of every module, each time on the same examples."""
        trainer = self.trainer
        vectors = trainer.puzzle_embedding.lookup(self._probe.puzzle_ids)
        segment = self.config.alignment.segment
        return log_alignment(align_segment(trainer.network, self._probe, vectors, segment))

    @cached_property
    def _probe(self) -> Batch:
        (part,) = build_probe(self.config, self.data, self.config.alignment.rows).batches(0)
        return to_batch(part, self.ranks.device)
