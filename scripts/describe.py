"""Say what a run is before it is paid for: visits, gains, parameters, puzzles, steps.

hrm-deeploop describe experiment=arc1 ranks=8
hrm-deeploop describe experiment=arc1 scaling=deepnorm output=json
"""

from typing import Any

from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import RunConfig, to_yaml, validate
from hrm_deeploop.runs.costs import describe, format_description
from hrm_deeploop.trainer import check_micro_batch
from scripts import cli

KEYS_OF = ["describe", "train"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("describe", overrides)
    output = cli.take_output(values)
    num_ranks = values.pop("ranks")
    config: RunConfig = validate(RunConfig, values)
    batch_size = config.optim.global_batch_size
    if type(num_ranks) is not int or num_ranks < 1 or batch_size % num_ranks:
        raise ValueError(
            f"ranks={num_ranks}: allowed are divisors of optim.global_batch_size={batch_size}"
        )
    check_micro_batch(config.micro_batch_size, batch_size // num_ranks)
    cli.show_config(to_yaml(config))
    facts = describe(config, num_ranks)
    if output == "text":
        print(format_description(config, facts))
    return {**facts, "output": output}


if __name__ == "__main__":
    cli.launch(main, "describe", __doc__, keys_of=KEYS_OF)
