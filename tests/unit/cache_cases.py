"""Helpers of the tests of the cache."""

import os
from pathlib import Path

import pytest

from lamina.base import cache
from lamina.base.cache import cached, folder

CONTENT = bytes(range(256)) * 5


posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are of POSIX")


def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_reported", set())
    return tmp_path / "objects"


class Maker:
    """Makes the content, and counts how often it had to."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return self.content


def path_of(cache_folder: Path, key: str) -> Path:
    """The path of the entry of a key."""
    name, shard = cache._names(key)
    return cache_folder / shard / name


def entries(cache_folder: Path) -> list[Path]:
    return sorted(cache_folder.glob("*/*.object"))


def in_one_shard(count: int) -> list[str]:
    """`count` keys of entries in the first shard."""
    numbers = (f"key {number}" for number in range(10**6))
    found = (key for key in numbers if path_of(Path(), key).parts[0] == "0")
    return [next(found) for _ in range(count)]


def unused(make: Maker) -> None:
    """Checks that there is no cache."""
    assert [cached("k", make) for _ in range(2)] == [CONTENT] * 2
    assert make.calls == 2
    assert folder() is None
