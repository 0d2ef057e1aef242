"""Turn a checkpoint of the released HRM code into a run directory that evaluate.py accepts.

hrm-deeploop import_hrm checkpoint=DIR/step_N identifiers=DIR/identifiers.json run_dir=runs/hrm
hrm-deeploop evaluate run=runs/hrm

Rows of the puzzle table are matched to puzzles by name, whatever their order; tasks that the
checkpoint does not know start with zero rows, and how many puzzles it covers is said.
"""

import sys
from typing import Any

from hrm_deeploop.runs.checking import to_yaml, validate
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.import_hrm import ImportOptions, import_hrm
from scripts import cli

KEYS_OF = ["import_hrm", "data/_base"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("import_hrm", overrides)
    output = cli.take_output(values)
    options: ImportOptions = validate(ImportOptions, values)
    cli.show_config(to_yaml(options))
    result = import_hrm(options)
    if output == "text":
        print(result, file=sys.stderr)
    return {**result.to_json(), "output": output}


if __name__ == "__main__":
    cli.launch(main, "import_hrm", __doc__, keys_of=KEYS_OF)
