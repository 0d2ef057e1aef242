"""The console command ``hrm-deeploop``: a subcommand for every file of scripts/."""

import importlib
import os
import sys

COMMANDS = {
    "train": "train one run",
    "evaluate": "predict the evaluated tasks of a run, vote, score, submit, report",
    "vote": "vote and score from files, without a model",
    "compare": "train arms that differ in declared overrides alone, and print both ladders",
    "sweep": "train at several exponents and depths, and show where that is stable",
    "alignment": "measure the visit alignment kappa of checkpoints",
    "describe": "say what a run is before it is paid for",
    "data": "look at and check data: validate, leaks, stats, show",
    "import_hrm": "turn a checkpoint of the released HRM code into a run",
    "results": "fill in the tables of a page from raw rows",
    "bench": "measure speed and memory",
}
USAGE = """Usage: hrm-deeploop COMMAND [key=value ...]

{commands}

hrm-deeploop COMMAND --help lists the keys of a command."""


def main() -> None:
    """Run the subcommand that the command line names."""
    try:
        _run()
    except KeyboardInterrupt:  # while modules are imported; a command handles its own
        os.write(2, b"hrm-deeploop: interrupted\n")
        os._exit(130)


def _run() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        listed = "\n".join(f"  {command:{width}}  {what}" for command, what in COMMANDS.items())
        print(USAGE.format(commands=listed))
        return
    from scripts import cli

    name = name.replace("-", "_")
    if name not in COMMANDS:
        print(f"hrm-deeploop: {cli.unknown_name(name, COMMANDS)}", file=sys.stderr)
        sys.exit(cli.USER_ERROR)
    module = importlib.import_module(f"scripts.{name}")
    cli.launch(module.main, name, module.__doc__, keys_of=module.KEYS_OF, arguments=arguments)


if __name__ == "__main__":
    main()
