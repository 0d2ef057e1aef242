"""Say what a run is before it is paid for: visits, gains, parameters, puzzles, steps.

hrm-deeploop describe experiment=arc1 ranks=8
hrm-deeploop describe experiment=arc1 scaling=deepnorm output=json
"""

from typing import Any

from hrm_deeploop.runs.checking import to_yaml, validate
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import RunConfig
from hrm_deeploop.runs.costs import describe
from scripts import cli

KEYS_OF = ["describe", "train"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("describe", overrides)
    output = cli.take_output(values)
    num_ranks = values.pop("ranks")
    config: RunConfig = validate(RunConfig, values)
    cli.show_config(to_yaml(config))
    description = describe(config, num_ranks)
    if output == "text":
        print(description)
    return {**description.to_json(), "output": output}


if __name__ == "__main__":
    cli.launch(main, "describe", __doc__, keys_of=KEYS_OF)
