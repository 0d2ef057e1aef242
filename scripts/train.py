"""Train one run; its configuration, metrics and checkpoints land in run_dir.

python scripts/train.py experiment=mini
python scripts/train.py experiment=mini scaling=vanilla seed=1
torchrun --nproc-per-node 8 scripts/train.py experiment=arc1
"""

import sys
from pathlib import Path
from typing import Any

import torch

from arc_data.batches import BatchStream
from arc_data.prefetch import Prefetch
from arc_data.puzzles import read_puzzles
from hrm_deeploop.checkpoint import load_into, load_training_state, save_checkpoint, step_directory
from hrm_deeploop.device import Ranks, join_ranks, leave_ranks
from hrm_deeploop.halting import Batch
from hrm_deeploop.metrics import open_log
from hrm_deeploop.trainer import Trainer, fit
from scripts import cli
from scripts.assemble import (
    CHECKPOINTS,
    PUZZLES_FILE,
    build_network,
    build_table,
    load_data,
    load_training_set,
)
from scripts.run_config import RunConfig, to_yaml, validate
from scripts.run_directory import METRICS_FILE, check_same_puzzles, prepare_run_directory

PREFETCH_DEPTH = 4  # batches


def train(config: RunConfig, ranks: Ranks, title: str) -> Path:
    """Train as configured, continuing where ``resume`` allows; returns the last checkpoint."""
    run_dir = Path(config.run_dir)
    data = load_data(config)
    resumed = prepare_run_directory(config, data, ranks)
    stream = BatchStream(
        data.puzzles,
        training=load_training_set(config, data),
        canvas=config.data.canvas,
        global_batch_size=config.optim.global_batch_size,
        seed=config.seed,
    )
    total_steps = config.num_steps(stream.examples_per_epoch)
    trainer = Trainer(
        build_network(config, ranks.device),
        build_table(config, data.puzzles, ranks.device),
        config.optim,
        total_steps=total_steps,
        seed=config.seed,
        ranks=ranks,
    )
    if resumed is not None:
        text = (resumed / PUZZLES_FILE).read_text(encoding="utf-8")
        saved = read_puzzles(text, data.collection.tasks, str(resumed / PUZZLES_FILE))
        check_same_puzzles(saved, data.puzzles, resumed)
        for stem, module in trainer.modules().items():
            load_into(module, resumed, stem)
        trainer.load_training_state(load_training_state(resumed))

    def draw(step: int) -> Batch:
        batch = stream.batch(step, rank=ranks.rank, world_size=ranks.world_size)
        arrays = (batch.inputs, batch.labels, batch.puzzle_ids)
        return Batch(*(torch.from_numpy(array).long() for array in arrays)).to(ranks.device)

    def save() -> None:
        state = trainer.training_state()
        if ranks.is_main:
            save_checkpoint(
                run_dir / CHECKPOINTS,
                trainer.step,
                weights={stem: m.state_dict() for stem, m in trainer.modules().items()},
                training_state=state,
                texts={PUZZLES_FILE: data.puzzles.to_json()},
            )
        ranks.barrier()

    until = min(total_steps, config.stop_after or total_steps)
    with (
        open_log(
            run_dir / METRICS_FILE,
            is_main=ranks.is_main,
            logger=config.logger,
            config=config.model_dump(mode="json"),
            resumed_step=trainer.step,
        ) as log,
        Prefetch(draw, depth=PREFETCH_DEPTH, end=until) as prefetched,
    ):
        fit(
            trainer,
            prefetched,
            log,
            until=until,
            log_every=config.log_every,
            checkpoint_every=config.checkpoint_every,
            save=save,
            title=title,
        )
    return step_directory(run_dir / CHECKPOINTS, trainer.step)


def main(overrides: list[str]) -> dict[str, Any]:
    values = cli.compose_config("train", overrides)
    cli.take_output(values)
    config: RunConfig = validate(RunConfig, values)
    ranks = join_ranks(config.device)
    if ranks.is_main:
        cli.show_config(to_yaml(config))
    checkpoint = train(config, ranks, title=Path(config.run_dir).name)
    leave_ranks(ranks)
    if ranks.is_main:
        print(f"trained: {checkpoint}", file=sys.stderr)
    return {"run_dir": config.run_dir, "checkpoint": str(checkpoint)}


if __name__ == "__main__":
    cli.launch(main, "train", __doc__, keys_of=["train"])
