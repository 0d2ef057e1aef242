"""Visit alignment kappa of checkpoints, on training batches, and the exponent that it predicts.

hrm-deeploop alignment run=runs/arc1-mini-deeploop-seed0
hrm-deeploop alignment run=runs/arc1-mini-deeploop-seed0 checkpoint=all
hrm-deeploop alignment run=[runs/L2,runs/L4,runs/L8]     # gamma over L_cycles, and p*
hrm-deeploop alignment run=[runs/compare2,runs/compare6] arm=deeploop   # runs of comparisons

kappa = 1: the visits of a shared sublayer are unrelated; kappa = R: all push the same way, equally
strongly. The cosine between visits' gradients tells the direction apart from the strength. Over
runs of several depths kappa_L ~ R^gamma, and eq. 20 stays bounded for p >= p* = (1 + gamma) / 4.
"""

from typing import Any

from hrm_deeploop.runs.alignment import AlignmentOptions, measure_alignment_of
from hrm_deeploop.runs.checking import to_yaml, validate
from hrm_deeploop.runs.compose import compose_config
from scripts import cli

KEYS_OF = ["alignment"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("alignment", overrides)
    output = cli.take_output(values)
    if isinstance(values["run"], str):
        values["run"] = [values["run"]]
    options: AlignmentOptions = validate(AlignmentOptions, values)
    cli.show_config(to_yaml(options))
    result = measure_alignment_of(options)
    if output == "text":
        result.show()
    return {**result.to_values(), "output": output}


if __name__ == "__main__":
    cli.launch(main, "alignment", __doc__, keys_of=KEYS_OF)
