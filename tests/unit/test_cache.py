"""Compiled programs on disk: found again, and never trusted when damaged."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lamina import cache
from lamina.cache import cached, folder, key_of

CONTENT = bytes(range(256)) * 5


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    return tmp_path / "objects"


class Maker:
    """Makes the content, and counts how often it had to."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return self.content


def entry(place: Path) -> Path:
    (path,) = place.glob("*.object")
    return path


def test_what_was_made_once_is_found_again() -> None:
    make = Maker()
    assert [cached("k", make) for _ in range(3)] == [CONTENT] * 3
    assert make.calls == 1


def test_different_keys_are_different_entries() -> None:
    assert cached("one", Maker(b"1")) == b"1"
    assert cached("two", Maker(b"2")) == b"2"


def test_keys_depend_on_every_part_and_on_where_parts_end() -> None:
    keys = {key_of(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], [])}
    assert len(keys) == 5


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the magic": lambda data: data[:5],
    "cut in the header": lambda data: data[:30],
    "cut after the header": lambda data: data[:56],
    "cut in the content": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "another magic": lambda data: b"L" + data[1:],
    "a flipped bit in the checksum": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "a flipped bit in the content": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_again(damage: str, place: Path) -> None:
    make = Maker()
    cached("k", make)
    entry(place).write_bytes(DAMAGE[damage](entry(place).read_bytes()))
    assert cached("k", make) == CONTENT
    assert cached("k", make) == CONTENT
    assert make.calls == 2


@pytest.mark.parametrize("value", ["off", "OFF", "0", ""])
def test_the_cache_can_be_turned_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE", value)
    make = Maker()
    assert [cached("k", make) for _ in range(2)] == [CONTENT] * 2
    assert make.calls == 2
    assert folder() is None


def test_the_folder_may_begin_with_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("LAMINA_CACHE", "~/elsewhere")
    assert folder() == tmp_path / "elsewhere" / "objects"


def test_without_the_variable_it_lies_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMINA_CACHE")
    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", lambda name: tmp_path / name)
    assert folder() == tmp_path / "lamina" / "objects"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="file modes are those of POSIX")
def test_the_folder_is_the_users_alone(place: Path) -> None:
    cached("k", Maker())
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="file modes are those of POSIX")
def test_a_folder_that_others_may_write_to_is_not_used(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)
    make = Maker()
    assert [cached("k", make) for _ in range(2)] == [CONTENT] * 2
    assert make.calls == 2
    assert not list(place.iterdir())


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners are those of POSIX")
def test_a_folder_of_someone_else_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    owner = place.stat().st_uid
    monkeypatch.setattr(cache.os, "getuid", lambda: owner + 1)
    assert folder() is None


def test_a_path_that_is_no_folder_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / "file"))
    assert cached("k", Maker()) == CONTENT


def test_a_full_disk_does_no_harm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    assert cached("k", Maker()) == CONTENT
    assert not list(place.iterdir())


def test_the_entries_used_longest_ago_are_removed_first(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached("a", Maker())
    monkeypatch.setattr(cache, "LARGEST_BYTES", 3 * entry(place).stat().st_size)
    for number, key in enumerate("bc"):
        cached(key, Maker())
        os.utime(place / f"{key}.object", ns=(number + 2, number + 2))
    os.utime(place / "a.object", ns=(1, 1))
    # Now "a" counts as used, and "b" is the oldest.
    cached("a", Maker())
    cached("d", Maker())
    assert sorted(path.stem for path in place.iterdir()) == ["a", "c", "d"]


def test_what_a_process_left_unfinished_is_removed(place: Path) -> None:
    cached("a", Maker())
    old, new = place / "old.part", place / "new.part"
    for path in (old, new):
        path.write_bytes(CONTENT)
    os.utime(old, ns=(1, 1))
    cached("b", Maker())
    assert not old.exists()
    assert new.exists()


def test_writers_at_the_same_time_leave_one_whole_entry(place: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cached("k", Maker()), range(40)))
    assert found == [CONTENT] * 40
    assert [path.name for path in place.iterdir()] == ["k.object"]
