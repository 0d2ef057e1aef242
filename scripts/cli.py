"""The command line shared by all commands: exit codes, one line for a mistake, ``--help``.

A command takes ``key=value`` overrides. Its effective configuration goes to stderr, its result to
stdout; with ``output=json`` stdout is one JSON object and nothing else. A user's mistake prints one
line and exits with 2.
"""

import difflib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hrm_deeploop.runs.compose import CONFIG_DIR, config_groups
from hrm_deeploop.runs.engines import StoppedError
from scripts.streams import drop_stdout, finish_stdout, prepare_streams, say_on_stderr

TRACEBACK_VARIABLE = "HRM_DEEPLOOP_TRACEBACK"
USER_ERROR, OUT_OF_MEMORY, INTERRUPTED = 2, 3, 130
LESS_MEMORY = "less is needed with a smaller micro_batch_size (train) or batch_size (evaluate)"

HELP = """
Usage: hrm-deeploop {name} [key=value ...]

Groups choose a file of configs/:
{groups}

{keys}
A mistake is one line; {traceback}=1 shows where it was found.
"""


def launch(
    main: Callable[[list[str]], dict[str, Any]],
    name: str,
    doc: str | None,
    *,
    keys_of: Sequence[str],
    arguments: Sequence[str] | None = None,
) -> None:
    """Run ``main`` with the command line's overrides and exit with its status.

    ``main`` prints the text form itself and returns what ``output=json`` prints, with the entries
    ``output`` and, if it is not 0, ``exit_status``, which are taken out. ``keys_of`` are the files
    of configs/ that hold the script's keys, for ``--help``.
    """
    overrides = list(sys.argv[1:] if arguments is None else arguments)
    prepare_streams()
    say_on_stderr()
    try:
        if any(argument in ("-h", "--help") for argument in overrides):
            print((doc or "").strip() + "\n" + _help(name, keys_of))
            return
        result = main(overrides)
        status, output = result.pop("exit_status", 0), result.pop("output", "text")
        finish_stdout(json.dumps(result) + "\n" if output == "json" else "")
        sys.exit(status)
    except BrokenPipeError:  # the reader has what it wanted
        drop_stdout()
        sys.exit(0)
    except (ValueError, OSError) as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error) or os.environ.get(TRACEBACK_VARIABLE):
            raise
        text = str(error).split(". ")[0].splitlines() or ["out of memory"]
        print(f"{name}: {text[0]}; {LESS_MEMORY}", file=sys.stderr)
        sys.exit(OUT_OF_MEMORY)
    except StoppedError as stopped:
        if os.environ.get("RANK", "0") == "0":
            print("stopped; the same command goes on", file=sys.stderr)
        sys.exit(128 + stopped.number)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _is_out_of_memory(error: Exception) -> bool:
    """Tell whether an accelerator, torch on a CPU or numpy ran out of memory.

    By names: torch is not imported here, for commands about data alone start without it.
    """
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "DefaultCPUAllocator" in text
        or "not enough memory" in text
    )


def unknown_name(name: str, known: Iterable[str]) -> str:
    """Say that a name is not known, which is near it, and which there are."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{name}: there is no such command; {hint}allowed: {', '.join(known)}"


def take_output(values: dict[str, Any]) -> str:
    """Remove the key ``output`` from the values and return it.

    Raises:
        ValueError: if it is neither ``text`` nor ``json``.
    """
    output = values.pop("output")
    if output not in ("text", "json"):
        raise ValueError(f"output={output}: allowed are text and json")
    return output


def show_config(text: str) -> None:
    """Print an effective configuration to stderr."""
    print(text.rstrip(), file=sys.stderr)


def _help(name: str, keys_of: Sequence[str]) -> str:
    listed = "\n".join(
        f"  {group}={{{','.join(files)}}}" for group, files in config_groups().items()
    )
    keys = "\n".join(
        f"Keys of configs/{file}.yaml:\n"
        + (CONFIG_DIR / f"{file}.yaml").read_text(encoding="utf-8")
        for file in keys_of
    )
    return HELP.format(name=name, groups=listed, keys=keys, traceback=TRACEBACK_VARIABLE)
