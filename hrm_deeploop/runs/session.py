"""One training in progress: a trainer with its data, fresh or from the newest usable checkpoint."""

import logging
from functools import cached_property
from pathlib import Path

from hrm_deeploop.alignment import align_segment, log_alignment
from hrm_deeploop.device import Ranks
from hrm_deeploop.halting import Batch
from hrm_deeploop.runs.build import build_network, build_table, load_table, to_batch
from hrm_deeploop.runs.checkpoint import (
    DamagedCheckpointError,
    load_into,
    load_training_state,
    prune_checkpoints,
    save_checkpoint,
)
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.data import PUZZLES_FILE, Data, build_probe, build_stream, load_data
from hrm_deeploop.runs.directory import (
    CHECKPOINTS,
    best_step,
    check_same_data,
    checkpoints_to_continue,
    describe_run,
    lock_run,
)
from hrm_deeploop.runs.predict import Predictor
from hrm_deeploop.runs.validation import log_validation, validate_network
from hrm_deeploop.trainer import Trainer

log = logging.getLogger(__name__)


class Session:
    """What ``train`` drives: draws, the trainer, validation and checkpoints of one run.

    Raises:
        ValueError: if the run directory, the data and the configuration do not go together, or if
            another process trains in the directory.
    """

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        self.config = config
        self.ranks = ranks
        candidates = checkpoints_to_continue(config)
        for checkpoint in candidates:
            try:
                self._build(load_data(config, checkpoint), checkpoint)
                break
            except DamagedCheckpointError as error:
                log.warning("train: %s; trying the checkpoint before it", error)
        else:
            if candidates:
                raise ValueError(f"run_dir={config.run_dir}: none of its checkpoints can be read")
            self._build(load_data(config), None)
        ranks.barrier()  # every rank has looked before the main one writes
        self._lock = lock_run(Path(config.run_dir)) if ranks.is_main else None
        if ranks.is_main and (self.data.matched is None or config.new_puzzles == "init"):
            describe_run(config, self.data)

    def close(self) -> None:
        """Let other processes train in the directory."""
        if self._lock is not None:
            self._lock.release()

    def _build(self, data: Data, checkpoint: Path | None) -> None:
        config, ranks = self.config, self.ranks
        self.data = data
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
        load_table(self.trainer.puzzle_embedding, data, checkpoint)
        for stem, module in self.trainer.modules().items():
            if module is not self.trainer.puzzle_embedding:
                load_into(module, checkpoint, stem)
        assert data.matched is not None
        if not data.matched.in_place:
            state["carry"] = None  # its puzzle ids are those of the old table
        self.trainer.load_training_state(state)

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
                texts={PUZZLES_FILE: self.data.puzzles.to_json()},
            )
            best = best_step(Path(self.config.run_dir))
            prune_checkpoints(
                root,
                keep_last=self.config.keep_last,
                keep_every=self.config.keep_every,
                keep=set() if best is None else {best},
            )
        self.ranks.barrier()

    def validate(self) -> dict[str, float]:
        """Loss and voted scores of the held-out demonstrations."""
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
        return log_validation(validate_network(predictor, self.data, votes, self.ranks))

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
