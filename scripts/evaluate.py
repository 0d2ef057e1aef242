"""Predict the evaluated tasks of a run under augmentations, vote, score, submit, report.

hrm-deeploop evaluate run=runs/arc1-mini-deeploop-seed0
hrm-deeploop evaluate run=runs/arc1-mini-deeploop-seed0 votes=16 halting=act segments=[1]
torchrun --nproc-per-node 2 -m scripts.evaluate run=runs/arc1-mini-deeploop-seed0

Interrupted, the same command goes on; finished, it votes again from predictions.npz.
"""

import os
from typing import Any

from hrm_deeploop.runs.checking import to_yaml, validate
from hrm_deeploop.runs.choices import EvaluateOptions
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.evaluation import evaluate_run
from scripts import cli

KEYS_OF = ["evaluate"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("evaluate", overrides)
    output = cli.take_output(values)
    options: EvaluateOptions = validate(EvaluateOptions, values)
    if os.environ.get("RANK", "0") == "0":
        cli.show_config(to_yaml(options))
    result = evaluate_run(options)
    if result is None:
        return {}
    if output == "text":
        result.show()
        print(f"written: {result.directory}/ (report.html shows every task)")
    return {
        "directory": str(result.directory),
        "ladder": result.ladder.to_values(),
        "output": output,
    }


if __name__ == "__main__":
    cli.launch(main, "evaluate", __doc__, keys_of=KEYS_OF)
