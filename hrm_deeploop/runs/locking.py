"""Locks of directories, and what the file system under one lacks."""

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from arc_data.atomic import flush, write_atomically

LOCK_FILE, HOLDER_FILE = ".lock", ".lock-holder"
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what file systems without them say

log = logging.getLogger(__name__)


@contextmanager
def hold_directory(directory: Path, doing: str, key: str = "run_dir") -> Iterator[None]:
    """Hold a directory, which is made if it is not there, while the block runs.

    The lock ends with the process, however that ends. Where the file system has no locks, this is
    said and the block runs without. A directory that was made here and stayed empty is deleted.

    Args:
        doing: what a message to others says of the holder: ``training``.
        key: of the command line that names the directory.

    Raises:
        ValueError: if another process holds it, naming that process, or if it can't be written.
    """
    made = _make(directory, key)
    # A marker file in place of a lock would outlive a process that is killed.
    lock = FileLock(directory / LOCK_FILE, timeout=0, fallback_to_soft=False)
    holder = directory / HOLDER_FILE
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"{key}={directory}: another process is {doing} there{_describe(holder)}"
        ) from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning("%s can't be locked: let no other process be %s there", directory, doing)
    try:
        with suppress(OSError):  # a full disk is met by what has to be written
            write_atomically(holder, json.dumps(_own_description()))
        yield
    finally:
        with suppress(OSError):
            holder.unlink()
        lock.release()
        if made and {path.name for path in directory.iterdir()} <= {LOCK_FILE}:
            with suppress(OSError):
                (directory / LOCK_FILE).unlink(missing_ok=True)
                for path in made:
                    path.rmdir()


def check_file_system(directory: Path) -> None:
    """Try what saving needs: writing, renaming over what is there, and flushing to disk.

    What is lacking without harm is said, before any work is done.

    Raises:
        OSError: if files can't be written or renamed there.
    """
    probe = directory / ".probe"
    try:
        write_atomically(probe, "first")
        write_atomically(probe, "second")
    finally:
        probe.unlink(missing_ok=True)
    if not flush(directory):
        log.warning(
            "%s: its file system can't flush directories; after a power failure the newest "
            "checkpoint may be missing",
            directory,
        )


def _make(directory: Path, key: str) -> list[Path]:
    """Make a directory; returns what was made, the innermost first."""
    missing = [path for path in (directory, *directory.absolute().parents) if not path.exists()]
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        what = "is no directory" if not existing.is_dir() else "can't be written"
        raise ValueError(f"{key}={directory}: {existing} {what}")
    directory.mkdir(parents=True, exist_ok=True)
    return missing


def _own_description() -> dict[str, str | int]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _describe(holder: Path) -> str:
    try:
        found = json.loads(holder.read_text(encoding="utf-8"))
        return f" (process {found['pid']} on {found['host']}, since {found['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
