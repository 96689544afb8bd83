"""Files are written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.errors import DataError
from lamina.files.atomic import require_writable, write_atomically

posix_only = pytest.mark.skipif(os.name != "posix", reason="permissions and links as on POSIX")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("data", [b"", b"short", bytearray(b"bytes"), memoryview(b"x" * 100_000)])
def test_writes_what_it_was_given(tmp_path: Path, data: bytes) -> None:
    write_atomically(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == bytes(data)
    assert names(tmp_path) == ["file"]


def test_replaces_the_old_contents(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"a longer text that was there before")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(DataError) as caught:
        write_atomically(path, b"new contents")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]
    assert str(caught.value) == (
        f"in {path}: the file could not be written\n"
        "  writing  12 bytes\n"
        "  reason   No space left on device\n"
        "  Free some space on that disk, or write to another; the old file is unharmed."
    )


def test_an_interruption_removes_the_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"data")
    assert names(tmp_path) == []


def asked(path: Path, data: bytes) -> None:
    """Whether it could be written."""
    assert data
    require_writable(path)


@pytest.mark.parametrize("write", [write_atomically, asked])
def test_a_missing_folder_is_named(write: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        write(tmp_path / "absent" / "file", b"data")
    assert caught.value.advice == f"Create the folder first: {tmp_path / 'absent'}"


@pytest.mark.parametrize("write", [write_atomically, asked])
def test_a_folder_is_not_replaced(write: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError) as caught:
        write(tmp_path / "folder", b"data")
    assert caught.value.advice == "This is a folder: add a file name."
    assert names(tmp_path) == ["folder"]


def test_asking_whether_a_file_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    for name in ("old", "new"):
        require_writable(tmp_path / name)
    assert names(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"


@posix_only
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o640


@posix_only
def test_a_symbolic_link_still_points_to_the_written_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.skipif(sys.platform != "linux", reason="counts on Linux's order of system calls")
def test_contents_reach_the_disk_before_the_name_and_the_name_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        events.append("fsync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "fsync")
        fsync(descriptor)

    def record_replace(path: Path, target: Path) -> Path:
        events.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    write_atomically(tmp_path / "file", b"data")
    assert events == ["fsync", "rename", "fsync folder"]
