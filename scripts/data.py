"""Look at and check data.

hrm-deeploop data validate PATH [PATH ...]     all problems of folders or files; exit 1
hrm-deeploop data leaks data=arc1              held-out pairs that would train, and repeats
hrm-deeploop data stats data=arc1 data.canvas=15
hrm-deeploop data show 0d3d703e                a task in the terminal
hrm-deeploop data show 0d3d703e puzzle=3 save=task.png
"""

from pathlib import Path
from typing import Any

from hrm_deeploop.runs.checking import to_yaml, validate
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.datasets import (
    DataOptions,
    PathCheck,
    check_paths,
    leaks_of,
    stats_of,
    view_task,
)
from scripts import cli

SUBCOMMANDS = ("validate", "leaks", "stats", "show")
KEYS_OF = ["data_command", "data/_base"]


def main(arguments: list[str]) -> dict[str, Any]:
    if not arguments or arguments[0] not in SUBCOMMANDS:
        given = arguments[0] if arguments else "nothing"
        raise ValueError(f"expected one of {', '.join(SUBCOMMANDS)} first, got {given}")
    subcommand, rest = arguments[0], arguments[1:]
    overrides = [argument for argument in rest if "=" in argument]
    operands = [argument for argument in rest if "=" not in argument or Path(argument).exists()]
    overrides = [override for override in overrides if override not in operands]
    values = compose_config("data_command", overrides)
    output = cli.take_output(values)
    options: DataOptions = validate(DataOptions, values)
    wanted = {"validate": "at least one path", "show": "one task id"}.get(subcommand)
    if wanted is not None and (not operands or (subcommand == "show" and len(operands) > 1)):
        raise ValueError(f"{subcommand} needs {wanted}")
    if wanted is None and operands:
        raise ValueError(f"{subcommand}: expected key=value, got {operands[0]!r}")
    if subcommand != "validate":
        cli.show_config(to_yaml(options))
    if subcommand == "validate":
        result = check_paths([Path(path) for path in operands])
    elif subcommand == "leaks":
        result = leaks_of(options.data)
    elif subcommand == "stats":
        result = stats_of(options.data)
    else:
        result = view_task(options, operands[0])
    if output == "text":
        result.show()
    status = int(isinstance(result, PathCheck) and bool(result.problems))
    return {**result.to_json(), "output": output, "exit_status": status}


if __name__ == "__main__":
    cli.launch(main, "data", __doc__, keys_of=KEYS_OF)
