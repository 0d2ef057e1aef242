"""Files that are replaced whole: whoever reads one finds the old content or the new."""

import errno
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
FILE_MODE = 0o666 & ~_umask()
# What file systems say that can't flush (CIFS and FUSE on directories, some pipes and devices).
NO_FLUSH = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)


def flush(path: Path) -> bool:
    """Force a file's or a directory's content to disk, so that a rename can't overtake it.

    Returns False where the file system can't, which is no reason to lose what it took.

    Raises:
        OSError: if the disk is full or failed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        if not path.is_dir():
            raise
        return False  # some systems open no directory
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FLUSH:
            raise
        return False
    finally:
        os.close(descriptor)
    return True


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
            partial.chmod(FILE_MODE)
            flush(partial)
            partial.replace(path)
        finally:  # after an interrupt too; once renamed, nothing is left by this name
            with suppress(OSError):
                partial.unlink()
    except OSError as error:
        raise type(error)(error.errno, f"{path}: {error.strerror}") from error
