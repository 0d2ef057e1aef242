"""A file is replaced whole or not at all, and a failed write leaves nothing behind."""

import errno
import os
import stat

import pytest

from arc_data.atomic import FILE_MODE, write_atomically


@pytest.mark.parametrize(
    ("content", "expected"),
    [("gr\u00fcn\n", b"gr\xc3\xbcn\n"), (b"\x00\xff", b"\x00\xff"), ("", b"")],
)
def test_text_and_bytes_replace_what_was_there(content, expected, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("old")
    write_atomically(path, content)
    assert path.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_as_readable_as_any_other(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    write_atomically(own, "x")
    other.write_text("x")
    assert stat.S_IMODE(own.stat().st_mode) == FILE_MODE
    assert own.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), r"rows\.json: No space left on device"),
        (KeyboardInterrupt(), None),
    ],
)
def test_the_old_file_survives_a_write_that_fails(error, message, tmp_path, monkeypatch):
    def fail(descriptor):
        raise error

    path = tmp_path / "rows.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error), match=message):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent/rows\.json: No such file"):
        write_atomically(tmp_path / "absent" / "rows.json", "new")
