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
    SUBCOMMANDS,
    DataOptions,
    show_leaks,
    show_stats,
    show_task,
    validate_paths,
)
from scripts import cli

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
    as_text = output == "text"
    options: DataOptions = validate(DataOptions, values)
    wanted = {"validate": "at least one path", "show": "one task id"}.get(subcommand)
    if wanted is not None and (not operands or (subcommand == "show" and len(operands) > 1)):
        raise ValueError(f"{subcommand} needs {wanted}")
    if wanted is None and operands:
        raise ValueError(f"{subcommand}: expected key=value, got {operands[0]!r}")
    if subcommand == "validate":
        result = validate_paths([Path(path) for path in operands], as_text=as_text)
        return {**result, "output": output}
    cli.show_config(to_yaml(options))
    if subcommand == "leaks":
        result = show_leaks(options.data, as_text=as_text)
    elif subcommand == "stats":
        result = show_stats(options.data, as_text=as_text)
    else:
        result = show_task(options, operands[0], as_text=as_text)
    return {**result, "output": output}


if __name__ == "__main__":
    cli.launch(main, "data", __doc__, keys_of=KEYS_OF)
