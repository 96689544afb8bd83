"""Files are written whole or not at all."""

import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from error_texts import error_text, refused
from fresh_python import run_python

from lamina.base.disk import open_regular, sweep
from lamina.errors import DataError
from lamina.files.atomic import require_writable, write_atomically

posix_only = pytest.mark.skipif(os.name != "posix", reason="permissions and links as on POSIX")


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def fails_with(number, text):
    def fail(*_, **__):
        raise OSError(number, text)

    return fail


@pytest.mark.parametrize("data", [b"", b"short", bytearray(b"bytes"), memoryview(b"x" * 100_000)])
def test_a_file_holds_the_written_bytes_and_no_old_ones(tmp_path, data):
    for contents in (data, b"a longer text that was there before", data):
        write_atomically(tmp_path / "file", contents)
        assert (tmp_path / "file").read_bytes() == bytes(contents)
        assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, failing, fails_with(28, "No space left on device"))
    text = error_text(DataError, lambda: write_atomically(path, b"new contents"))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]
    assert text == (
        f"in {path}: the file could not be written\n"
        "  writing  12 bytes\n"
        "  reason   No space left on device\n"
        "  Free some space on that disk, or write to another; the old file is unharmed."
    )


def test_an_interruption_removes_the_temporary_file(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"data")
    assert names(tmp_path) == []


def check_writable(path, data):
    """`require_writable`, with the arguments of `write_atomically`."""
    assert data
    require_writable(path)


@pytest.mark.parametrize("write", [write_atomically, check_writable])
def test_a_missing_folder_is_named_and_a_folder_is_not_replaced(write, tmp_path):
    error = refused(DataError, write, tmp_path / "absent" / "file", b"data")
    assert error.advice == f"Create the folder first: {tmp_path / 'absent'}"
    (tmp_path / "folder").mkdir()
    error = refused(DataError, write, tmp_path / "folder", b"data")
    assert error.advice == "This is a folder: add a file name."
    assert names(tmp_path) == ["folder"]


def test_checking_that_a_file_is_writable_changes_no_file(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    for name in ("old", "new"):
        require_writable(tmp_path / name)
    assert names(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"


@posix_only
def test_permissions_and_symbolic_links_are_kept(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    for written, data in ((path, b"new"), (tmp_path / "link", b"newer")):
        write_atomically(written, data)
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o640
        assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(sys.platform != "linux", reason="counts on Linux's order of system calls")
def test_contents_are_synced_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor):
        events.append("fsync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "fsync")
        fsync(descriptor)

    def record_replace(path, target, **folders):
        events.append("rename")
        replace(path, target, **folders)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    write_atomically(tmp_path / "file", b"data")
    assert events == ["fsync", "rename", "fsync folder"]


LEFT = ".lamina-0123456789abcdef.tmp"


def test_a_killed_writer_leaves_the_old_file_and_one_that_the_next_writer_removes(tmp_path):
    """The process is killed while it waits for the disk."""
    (tmp_path / "file").write_bytes(b"old")
    script = f"""
import os, signal
from lamina.files.atomic import write_atomically
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
write_atomically({str(tmp_path / "file")!r}, b"half of it")
"""
    run_python("-c", script)
    left, file = names(tmp_path)
    assert (tmp_path / file).read_bytes() == b"old"
    assert left.startswith(".lamina-")
    assert left.endswith(".tmp")
    write_atomically(tmp_path / "file", b"data")
    assert names(tmp_path) == ["file"]


def test_temporary_files_of_a_running_writer_are_kept(tmp_path, monkeypatch):
    fsync, begun, go_on = os.fsync, threading.Event(), threading.Event()
    first = threading.Thread(target=lambda: write_atomically(tmp_path / "first", b"first"))

    def wait(descriptor):
        if threading.current_thread() is first:
            begun.set()
            go_on.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", wait)
    first.start()
    begun.wait(60)
    write_atomically(tmp_path / "second", b"second")
    assert len(names(tmp_path)) == 2
    go_on.set()
    first.join()
    assert names(tmp_path) == ["first", "second"]


def test_a_temporary_file_removed_by_another_process_is_written_again(tmp_path, monkeypatch):
    """As another machine may do, which does not see our locks."""
    fsync, removed = os.fsync, []

    def remove(descriptor):
        for path in tmp_path.glob(".lamina-*"):
            if not removed:
                removed.append(path)
                path.unlink()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remove)
    write_atomically(tmp_path / "file", b"data")
    assert removed
    assert (tmp_path / "file").read_bytes() == b"data"
    assert names(tmp_path) == ["file"]


def test_a_temporary_file_removed_at_every_attempt_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "fsync", lambda _: [path.unlink() for path in tmp_path.glob(".lamina-*")]
    )
    error = refused(DataError, lambda: write_atomically(tmp_path / "file", b"data"))
    assert error.facts[1] == ("reason", "another process removes unfinished files")
    assert names(tmp_path) == []


@posix_only
def test_only_regular_temporary_files_are_removed(tmp_path):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_bytes(b"mine")
    os.mkfifo(folder / LEFT)
    (folder / LEFT.replace("0", "1")).symlink_to(elsewhere)
    (folder / LEFT.replace("0", "2")).mkdir()
    (folder / LEFT.replace("0", "3")).write_bytes(b"left")
    (folder / ".lamina-notes").write_bytes(b"of the user's own")
    sweep(str(folder))
    assert len(names(folder)) == 4
    assert elsewhere.read_bytes() == b"mine"


@posix_only
def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("lamina.base.disk.fcntl.flock", fails_with(37, "No locks available"))
    (tmp_path / LEFT).write_bytes(b"left")
    write_atomically(tmp_path / "file", b"data")
    assert names(tmp_path) == [LEFT, "file"]


@posix_only
@pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "device"])
def test_only_regular_files_are_opened(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(os.devnull if kind == "device" else "x")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x")
    assert error_text(DataError, lambda: open_regular(path)) == (
        f"in {path}: this is not a regular file\n"
        "  expected  a file\n"
        f"  found     {'a folder' if kind == 'folder' else 'a pipe, socket or device'}\n"
        "  Name one file."
    )
