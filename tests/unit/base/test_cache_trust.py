"""Whom the cache trusts: folders and entries that others could change are not used."""

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cache_cases import (
    CONTENT,
    Maker,
    cache_of_its_own,
    entries,
    in_one_shard,
    path_of,
    posix,
    unused,
)

from lamina.base import cache
from lamina.base.cache import cached, find, folder, folders

_folder = pytest.fixture(autouse=True, name="cache_folder")(cache_of_its_own)


@posix
def test_only_the_user_may_access_folders_and_files(cache_folder):
    mask = os.umask(0)
    try:
        cached("k", Maker())
    finally:
        os.umask(mask)
    for path in (cache_folder, *cache_folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@posix
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o720])
def test_a_folder_that_others_may_write_to_is_not_used(mode, cache_folder):
    cache_folder.mkdir()
    cache_folder.chmod(mode)
    unused(Maker())
    assert not list(cache_folder.iterdir())


@posix
@pytest.mark.parametrize(("mode", "trusted"), [(0o777, False), (0o772, False), (0o1777, True)])
def test_a_folder_below_one_that_others_may_write_to_is_used_only_with_the_sticky_bit(
    mode, trusted, tmp_path, monkeypatch, caplog
):
    """They could replace it by one of theirs."""
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    monkeypatch.setenv("LAMINA_CACHE", str(shared / "mine"))
    assert folder() is not None
    shared.chmod(mode)
    if trusted:
        cached("k", Maker())
        assert cached("k", Maker(b"")) == CONTENT
    else:
        unused(Maker())
        assert f"others may write to {shared}" in caplog.text


class Owned:
    """Has `os.fstat` give some folders and files another owner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owners: dict[int, int] = {}
        self._fstat = os.fstat
        monkeypatch.setattr(folders.os, "fstat", self)

    def give(self, owner: int, *paths: Path) -> None:
        self.owners |= {path.stat().st_ino: owner for path in paths}

    def __call__(self, descriptor: int) -> os.stat_result:
        found = self._fstat(descriptor)
        fields = list(found)
        fields[stat.ST_UID] = self.owners.get(found.st_ino, found.st_uid)
        return os.stat_result(fields)


@pytest.fixture
def owned(monkeypatch):
    return Owned(monkeypatch)


# From the folder and its entry.
PLACES: dict[str, Callable[[Path, Path], Path]] = {
    "the path": lambda folder, _: folder.parent,
    "a parent": lambda folder, _: folder.parent.parent,
    "the folder": lambda folder, _: folder,
    "a shard": lambda _, entry: entry.parent,
    "the new ones": lambda folder, _: folder / "new",
    "the entry": lambda _, entry: entry,
}


@posix
@pytest.mark.parametrize("which", ["a parent", "the folder", "a shard", "the entry"])
def test_files_of_another_user_are_not_used(which, cache_folder, owned, caplog):
    cached("k", Maker(b"not mine"))
    path = PLACES[which](cache_folder, path_of(cache_folder, "k"))
    owned.give(os.geteuid() + 1, path)
    assert cached("k", Maker()) == CONTENT
    if which in ("a parent", "the folder"):
        assert folder() is None
        assert f"{path} belongs to another user" in caplog.text


@posix
def test_a_parent_may_belong_to_root_and_be_written_by_the_users_own_group(
    cache_folder, owned, monkeypatch
):
    """As many systems make one for each user, and have folders be writable by the group."""
    import grp
    import pwd

    cache_folder.mkdir()
    monkeypatch.setattr(folders.os, "geteuid", lambda: 12345)
    owned.give(12345, cache_folder)
    owned.give(0, *cache_folder.parents)
    assert folder() == cache_folder
    owned.give(0, cache_folder)
    assert folder() is None
    owned.give(12345, cache_folder)
    cache_folder.parent.chmod(0o770)
    group = cache_folder.parent.stat().st_gid
    user: Any = pwd.struct_passwd(("anna", "x", 12345, group, "", "/home/anna", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    for name, members, trusted in (
        ("anna", [], True),
        ("anna", ["anna"], True),
        ("anna", ["anna", "bert"], False),
        ("users", [], False),
    ):
        found: Any = grp.struct_group((name, "x", group, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, found=found: found)
        assert (folder() is not None) == trusted, (name, members)


@posix
def test_a_folder_that_an_access_control_list_opens_to_others_is_not_used(
    cache_folder, monkeypatch
):
    """The mode shows what it gives to them as the group's."""

    def entry(tag, rights, who=2**32 - 1):
        return struct.pack("<HHI", tag, rights, who)

    monkeypatch.setattr(folders, "_is_own_group", lambda _: True)
    cache_folder.mkdir()
    cache_folder.parent.chmod(0o770)
    assert folder() is not None
    # The owner, user 1234, the group, the mask, and all others: acl(5).
    entries = entry(1, 7), entry(2, 7, 1234), entry(4, 7), entry(16, 7), entry(32, 0)
    access = struct.pack("<I", 2) + b"".join(entries)
    try:
        os.setxattr(cache_folder.parent, "system.posix_acl_access", access)
    except (AttributeError, OSError):
        pytest.skip("there are no such lists here")
    assert stat.S_IMODE(cache_folder.parent.stat().st_mode) == 0o770
    assert folder() is None


@posix
@pytest.mark.parametrize("which", PLACES)
def test_links_are_not_followed(which, tmp_path, monkeypatch):
    tmp_path.chmod(0o1777)  # Somebody else could have put them there.
    inside = tmp_path / "around" / "path"
    monkeypatch.setenv("LAMINA_CACHE", str(inside))
    cached("k", Maker(b"not mine"))
    link = PLACES[which](inside / "objects", path_of(inside / "objects", "k"))
    target = tmp_path / "elsewhere"
    link.rename(target)
    link.symlink_to(target)
    before = sorted(target.rglob("*"))
    if which == "the new ones":
        assert cached("another", Maker()) == CONTENT
        assert find("another") is None
    else:
        assert cached("k", Maker()) == CONTENT
    assert sorted(target.rglob("*")) == before


@posix
def test_links_in_folders_of_root_are_followed(tmp_path, owned, monkeypatch):
    real = tmp_path / "disk2"
    (real / "home").mkdir(parents=True)
    (tmp_path / "home").symlink_to("disk2/home")
    (tmp_path / "absolute").symlink_to(real / "home")
    (tmp_path / "cycle").symlink_to("again")
    (tmp_path / "again").symlink_to("cycle")
    owned.give(0, tmp_path, *tmp_path.parents)
    monkeypatch.setattr(folders, "_others_may_write", lambda *_: False)
    for link in ("home", "absolute"):
        monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / link / "cache"))
        cached(link, Maker())
    assert len(entries(real / "home" / "cache" / "objects")) == 2
    # The path itself is none, nor are cycles followed, nor one that anybody else can make.
    for path in ("home", "cycle/cache"):
        monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / path))
        assert folder() is None
    owned.give(12345, tmp_path)
    monkeypatch.setattr(folders.os, "geteuid", lambda: 12345)
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / "home" / "cache"))
    assert folder() is None


@posix
def test_a_folder_exchanged_after_its_check_is_still_read(tmp_path, monkeypatch):
    """The folder that was checked is used, even if another one has taken its name."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    monkeypatch.setenv("LAMINA_CACHE", str(mine))
    cached("k", Maker())
    read = cache._read

    def exchanged(*arguments):
        mine.rename(theirs)
        mine.symlink_to(tmp_path)
        return read(*arguments)

    monkeypatch.setattr(cache, "_read", exchanged)
    assert find("k") == CONTENT


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a link into nothing": lambda path: path.symlink_to("nothing"),
    "a file for everybody": lambda path: (path.write_bytes(CONTENT), path.chmod(0o666)),
}


@posix
@pytest.mark.parametrize("name", ["an entry", "the count"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_special_files_in_place_of_entries_do_no_harm(kind, name, cache_folder):
    cached("k", Maker())
    path = path_of(cache_folder, "k")
    if name == "the count":
        path = path.with_name("written")
    path.unlink()
    SPECIAL[kind](path)
    for _ in range(2):
        assert cached("k", Maker()) == CONTENT


def test_where_folders_cannot_be_opened_paths_are_used(cache_folder, monkeypatch):
    """As on Windows."""
    monkeypatch.setattr(folders, "_EXAMINED", False)
    monkeypatch.setattr(folders.os, "supports_fd", set())
    make = Maker()
    assert [cached("k", make) for _ in range(3)] == [CONTENT] * 3
    assert make.calls == len(entries(cache_folder)) == 1
    monkeypatch.setattr(cache, "LARGEST_BYTES", 1)
    for key in in_one_shard(5):
        cached(key, Maker())
    assert len(entries(cache_folder / "0" / "..")) <= 2


def test_a_path_to_a_file_turns_the_cache_off(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / "file"))
    unused(Maker())
    assert len(caplog.messages) == 1


def test_a_full_disk_does_no_harm(cache_folder, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(folders.os, "replace", full)
    assert cached("k", Maker()) == CONTENT
    assert not entries(cache_folder)
    assert not list((cache_folder / "new").iterdir())


@posix
def test_no_descriptor_is_left_open(tmp_path, monkeypatch):
    def open_ones():
        return len(os.listdir("/dev/fd"))

    (tmp_path / "link").symlink_to(tmp_path)
    before = open_ones()
    for path in (tmp_path, tmp_path / "link", tmp_path / "link" / "x", Path("/dev/null/x")):
        monkeypatch.setenv("LAMINA_CACHE", str(path))
        cached("k", Maker())
        cached("k", Maker())
    assert open_ones() == before
