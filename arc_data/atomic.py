"""Files that are replaced whole: whoever reads one finds the old content or the new."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def _umask() -> int:
    """Return this process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


# Read once: setting the umask later would also affect files that other threads create meanwhile.
UMASK = _umask()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file beside ``path`` and rename it; the old one survives whatever goes wrong.

    Raises:
        OSError: if it can't be written; the message names the file.
    """
    data = content.encode("utf-8", errors="surrogatepass") if isinstance(content, str) else content
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.chmod(0o666 & ~UMASK)
            partial.replace(path)
        finally:  # after an interrupt too; once renamed, nothing is left by this name
            with suppress(OSError):
                partial.unlink()
    except OSError as error:
        raise type(error)(error.errno, f"{path}: {error.strerror}") from error
