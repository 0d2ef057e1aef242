"""Train one run; its configuration, metrics and checkpoints land in run_dir.

hrm-deeploop train experiment=mini
hrm-deeploop train experiment=mini scaling=vanilla seed=1
hrm-deeploop train experiment=mini resume=auto
torchrun --nproc-per-node 8 -m scripts.train experiment=arc1

SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 finish the step, save and exit with 128 + their number.
"""

import signal
import sys
from typing import Any

from hrm_deeploop.device import join_ranks, leave_ranks
from hrm_deeploop.runs.checking import to_yaml, validate
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.training import train_run
from scripts import cli

KEYS_OF = ["train"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("train", overrides)
    output = cli.take_output(values)
    config: RunConfig = validate(RunConfig, values)
    ranks = join_ranks(config.device)
    if ranks.is_main:
        cli.show_config(to_yaml(config))
    checkpoint, stopped_by = train_run(config, ranks)
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
    cli.launch(main, "train", __doc__, keys_of=KEYS_OF)
