"""Files that are replaced whole: whoever reads one finds the old content or the new."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file beside ``path`` and rename it; the old one survives whatever goes wrong.

    Raises:
        OSError: if it can't be written; the message names the file.
    """
    data = content.encode("utf-8", errors="surrogatepass") if isinstance(content, str) else content
    partial: str | None = None
    try:
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(0o666 & ~_umask())
        Path(partial).replace(path)
    except OSError as error:
        if partial is not None:
            with suppress(OSError):
                Path(partial).unlink()
        raise type(error)(error.errno, f"{path}: {error.strerror}") from error


def _umask() -> int:
    """Return this process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
