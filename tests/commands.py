"""Commands as a user types them: in this process, or in one of their own where that matters."""

import contextlib
import importlib
import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from scripts import cli

ROOT = Path(__file__).parents[1]


class Result(NamedTuple):
    """What a command left: its exit status and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def in_process(name: str, *overrides: str, cwd: str | Path = ROOT) -> Result:
    """Run a command as ``hrm-deeploop`` does, without starting Python and torch anew."""
    module = importlib.import_module(f"scripts.{name}")
    out, err = io.StringIO(), io.StringIO()
    status: int | str | None = 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _logging_as_before(),
    ):
        try:
            cli.launch(
                *(module.main, name, module.__doc__),
                keys_of=module.KEYS_OF,
                arguments=[str(override) for override in overrides],
            )
        except SystemExit as left:
            status = left.code
    assert isinstance(status, int)
    return Result(status, out.getvalue(), err.getvalue())


def start_of(name: str, *overrides: str, ranks: int | None = None) -> list[str]:
    """Return the command line that starts a command in a process, or in one a rank."""
    start = [sys.executable]
    if ranks is not None:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*start, str(ROOT / "scripts" / f"{name}.py"), *map(str, overrides)]


def in_a_process(
    name: str,
    *overrides: str,
    cwd: str | Path = ROOT,
    ranks: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Result:
    """Run a command in a process of its own: where signals, ranks or a fresh start matter."""
    found = subprocess.run(
        start_of(name, *overrides, ranks=ranks),
        **dict(capture_output=True, text=True, timeout=400, cwd=cwd),
        env={**os.environ, **(variables or {})},
    )
    return Result(found.returncode, found.stdout, found.stderr)


@contextlib.contextmanager
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for package in ("arc_data", "hrm_deeploop", "eval"):
            logging.getLogger(package).setLevel(logging.NOTSET)
