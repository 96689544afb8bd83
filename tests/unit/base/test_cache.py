"""Compiled programs on disk: found again, never trusted if damaged or another user's."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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

import lamina as lm
from lamina.base import cache
from lamina.base.cache import Sources, cached, find, folder, folders, keep, key_of
from lamina.compiler.program_cache import SOURCES as PROGRAM_SOURCES
from lamina.engines.cpu.compilation import SOURCES as CODE_SOURCES
from lamina.engines.gpu.gpus import SOURCES as GPU_SOURCES
from lamina.engines.opencl.processors import SOURCES as PROCESSOR_SOURCES

# Entries ------------------------------------------------------------------------------------------

_folder = pytest.fixture(autouse=True, name="cache_folder")(cache_of_its_own)


def package_in(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """A package that can be imported."""
    monkeypatch.syspath_prepend(str(folder))
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("OLD = True")
    return package


def test_sources_that_change_after_they_were_imported_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_in(tmp_path, monkeypatch, "upgraded")
    before, unasked = Sources("upgraded"), Sources("upgraded")
    assert before.checksum == unasked.checksum != ""
    assert before.are_unchanged
    (package / "later.py").write_text("NEW = True")
    assert before.are_unchanged, "it was checked once, and is not checked again"
    assert not unasked.are_unchanged
    assert Sources("upgraded").checksum != before.checksum


def test_sources_with_another_time_and_equal_text_are_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_in(tmp_path, monkeypatch, "repaired")
    one, other = Sources("repaired"), Sources("repaired")
    os.utime(package / "__init__.py", ns=(0, 0))
    assert one.are_unchanged
    (package / "__init__.py").write_text("NEW = True")
    assert not other.are_unchanged


@pytest.mark.parametrize(
    ("sources", "roots"),
    [
        pytest.param(
            PROGRAM_SOURCES, ("checks", "graph", "ops", "compiler", "program"), id="programs"
        ),
        pytest.param(
            CODE_SOURCES, ("program", "codegen", "engines/cpu", "engines/simd"), id="machine code"
        ),
        pytest.param(GPU_SOURCES, ("program", "codegen", "engines/gpu"), id="kernels for GPUs"),
        pytest.param(
            PROCESSOR_SOURCES,
            ("program", "codegen", "engines/gpu", "engines/simd", "engines/opencl"),
            id="kernels for processors",
        ),
        pytest.param("opencl", ("codegen", "engines/opencl"), id="verdicts of self-tests"),
    ],
)
def test_the_key_covers_every_package_that_decides_an_entry(
    sources: Sources | str, roots: Sequence[str]
) -> None:
    if isinstance(sources, str):
        pytest.importorskip("pyopencl", reason="needs pyopencl: pip install 'lamina[opencl]'")
        from lamina.engines.opencl.verdicts import SOURCES as sources
    lamina = Path(lm.__file__).parent
    found = {
        ".".join(("lamina", *file.parent.relative_to(lamina).parts))
        for root in roots
        for file in (lamina / root).rglob("__init__.py")
    }
    assert found | {"lamina.base"} == set(sources.packages)


def test_an_entry_is_made_once_and_then_found() -> None:
    make = Maker()
    assert [cached("k", make) for _ in range(3)] == [CONTENT] * 3
    assert make.calls == 1


def test_different_keys_are_different_entries() -> None:
    assert cached("one", Maker(b"1")) == b"1"
    assert cached("two", Maker(b"2")) == b"2"


@pytest.mark.parametrize("key", ["", "../outside", "/etc/x", "a\0b", "k" * 5000, "\N{SNOWMAN}"])
def test_any_text_is_a_key(key: str, cache_folder: Path) -> None:
    make = Maker()
    assert [cached(key, make) for _ in range(2)] == [CONTENT] * 2
    assert make.calls == len(entries(cache_folder)) == 1


def test_keys_depend_on_every_string_and_where_it_ends() -> None:
    keys = {key_of(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], [])}
    assert len(keys) == 5


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated in the magic": lambda data: data[:5],
    "truncated in the header": lambda data: data[:30],
    "truncated after the header": lambda data: data[:88],
    "truncated in the content": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "another magic": lambda data: b"L" + data[1:],
    "an earlier format": lambda data: data.replace(b"object 2", b"object 1"),
    "a flipped bit in the key": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "a flipped bit in the length": lambda data: data[:48] + bytes([data[48] ^ 1]) + data[49:],
    "a flipped bit in the checksum": lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
    "a flipped bit in the content": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_again(damage: str, cache_folder: Path) -> None:
    make = Maker()
    cached("k", make)
    path = path_of(cache_folder, "k")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert cached("k", make) == CONTENT
    assert cached("k", make) == CONTENT
    assert make.calls == 2


def test_a_whole_entry_under_another_name_is_made_again(cache_folder: Path) -> None:
    cached("one", Maker(b"of one"))
    cached("two", Maker(b"of two"))
    path_of(cache_folder, "two").write_bytes(path_of(cache_folder, "one").read_bytes())
    make = Maker(b"of two")
    assert [cached("two", make) for _ in range(2)] == [b"of two"] * 2
    assert make.calls == 1


@pytest.mark.parametrize("value", ["off", "OFF", "0", ""])
def test_the_cache_can_be_turned_off(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAMINA_CACHE", value)
    unused(Maker())
    assert not caplog.messages


# Its folder ---------------------------------------------------------------------------------------


def test_the_folder_may_begin_with_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("LAMINA_CACHE", "~/elsewhere")
    assert folder() == tmp_path / "elsewhere" / "objects"


def test_the_default_folder_is_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMINA_CACHE")
    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", lambda name: tmp_path / name)
    assert folder() == tmp_path / "lamina" / "objects"


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAMINA_CACHE", "here")
    cached("k", Maker())
    assert len(entries(tmp_path / "here" / "objects")) == 1


@posix
@pytest.mark.parametrize(
    "case",
    [
        "nobody knows the user",
        "a user that there is not",
        "a home that there is not",
        "the home of another user, that there is not",
    ],
)
def test_without_a_home_folder_there_is_no_cache_and_one_warning(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import pwd

    lacking = tmp_path / "home"
    if case == "nobody knows the user":

        def unknown(_: int) -> None:
            raise KeyError

        monkeypatch.setattr(pwd, "getpwuid", unknown)
        for name in ("LAMINA_CACHE", "HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
    elif case == "a user that there is not":
        monkeypatch.setenv("LAMINA_CACHE", "~no-such-user/x")
    elif case == "a home that there is not":
        monkeypatch.setenv("HOME", str(lacking))
        for name in ("LAMINA_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
    else:
        user: Any = pwd.struct_passwd(("anna", "x", 12345, 12345, "", str(lacking), "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwnam", lambda _: user)
        monkeypatch.setenv("LAMINA_CACHE", "~anna/x")
    with caplog.at_level(logging.WARNING, "lamina"):
        unused(Maker())
    (message,) = caplog.messages
    assert message == (
        "Lamina compiles again in every process, because its cache cannot be used: "
        "there is no home folder. "
        "LAMINA_CACHE names another folder; LAMINA_CACHE=off turns the cache off."
    )
    assert not lacking.exists()


@pytest.mark.sampled
@posix
def test_a_process_of_an_unknown_user_predicts_without_a_cache_and_warns_once() -> None:
    """As containers do that run under any number: neither a name nor a home folder."""
    script = """
import os, pwd, sys
def unknown(_):
    raise KeyError
pwd.getpwuid = unknown
import numpy as np, lamina as lm
model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(3)))
for size in (1, 2, 3):
    model.predict(np.zeros((size, 2), "float32"))
"""
    gone = ("HOME", "LAMINA_CACHE", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    command = [sys.executable, "-W", "error", "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
    assert found.stderr.count("there is no home folder") == 1
    assert len(found.stderr.splitlines()) == 1


# Size ---------------------------------------------------------------------------------------------


def test_the_entries_used_longest_ago_are_removed_first(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c, d = in_one_shard(4)
    cached(a, Maker())
    size = path_of(cache_folder, a).stat().st_size
    for number, key in enumerate((b, c)):
        cached(key, Maker())
        os.utime(path_of(cache_folder, key), ns=(number + 2, number + 2))
    os.utime(path_of(cache_folder, a), ns=(1, 1))
    monkeypatch.setattr(cache, "LARGEST_BYTES", cache.SHARDS * 3 * size)
    # Now "a" counts as used, and "b" is the oldest.
    cached(a, Maker())
    cached(d, Maker())
    assert entries(cache_folder) == sorted(path_of(cache_folder, key) for key in (a, c, d))


def test_an_entry_above_the_limit_is_kept_while_it_is_the_latest(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LARGEST_BYTES", 10)
    first, second = in_one_shard(2)
    for key in (first, second):
        cached(key, Maker())
        assert cached(key, Maker(b"")) == CONTENT
    assert entries(cache_folder) == [path_of(cache_folder, second)]


def test_the_cache_exceeds_its_limit_by_at_most_an_eighth(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LARGEST_BYTES", 1 << 20)
    generator = random.Random(0)
    content = bytes(3000)
    most = 0
    for number in range(800):
        keep(f"{number} {generator.random()}", content)
        if number % 20 == 0:
            most = max(most, sum(path.stat().st_size for path in entries(cache_folder)))
    assert (1 << 20) * 3 // 4 < most < (1 << 20) * 9 // 8 + cache.SHARDS * 4096


class Calls:
    """Counts the calls into the file system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("open", "fstat", "stat", "mkdir", "unlink", "replace", "utime", "listdir"):
            monkeypatch.setattr(folders.os, name, self.counted(getattr(os, name)))
        self._scandir = os.scandir
        monkeypatch.setattr(folders.os, "scandir", self.scandir)

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return function(*arguments, **options)

        return call

    @contextmanager
    def scandir(self, path: Any) -> Iterator[Any]:
        with self._scandir(path) as entries:
            yield (self._noted(entry) for entry in entries)

    def _noted(self, entry: Any) -> Any:
        self.count += 1
        return entry


def test_the_cost_of_writing_does_not_grow_with_the_number_of_entries(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = in_one_shard(3)
    keep(first, CONTENT)
    counts: list[int] = []
    with monkeypatch.context() as context:
        calls = Calls(context)
        keep(second, CONTENT)
        counts.append(calls.count)
    for number in range(2000):
        (cache_folder / "0" / f"{number}.object").touch()
    with monkeypatch.context() as context:
        calls = Calls(context)
        keep(third, CONTENT)
        find(third)
        find(third)
        counts.append(calls.count)
    assert counts[0] > 10
    # Two more look-ups, and not one call for each entry.
    assert counts[1] < 4 * counts[0]


def test_a_shard_is_trimmed_once_per_eighth_of_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(cache, "_trim", lambda _: trims.append(1))
    monkeypatch.setattr(cache, "LARGEST_BYTES", cache.SHARDS * 8 * 100 * 1024)
    for key in in_one_shard(1000):
        keep(key, bytes(1000))
    # An entry counts as two KiB with its header; 50 of them are not more than 100 KiB.
    assert len(trims) == 1000 // 51


# Other processes ----------------------------------------------------------------------------------


def test_unfinished_files_of_ended_processes_are_removed(cache_folder: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="there are no locks of POSIX here")
    cached("a", Maker())
    left, living = (cache_folder / "new" / f".lamina-{name}.tmp" for name in ("left", "living"))
    left.write_bytes(CONTENT)
    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cached("b", Maker())
        assert not left.exists()
        assert living.exists()
    cached("c", Maker())
    assert not living.exists()


def test_writers_at_the_same_time_leave_one_whole_entry(cache_folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cached("k", Maker()), range(40)))
    assert found == [CONTENT] * 40
    assert entries(cache_folder) == [path_of(cache_folder, "k")]
    assert not list((cache_folder / "new").iterdir())


WORKERS = """
import os, random, signal, time
from lamina.base import cache
cache.LARGEST_BYTES = 200_000

def work(seed, rounds):
    generator = random.Random(seed)
    for _ in range(rounds):
        number = generator.randrange(60)
        expected = bytes([number]) * (500 * number)
        assert cache.cached(f"key {number}", lambda: expected) == expected, number

def start(seed, rounds):
    child = os.fork()
    if child == 0:
        try:
            work(seed, rounds)
            os._exit(0)
        finally:
            os._exit(1)
    return child
"""


def run_workers(script: str) -> None:
    command = [sys.executable, "-c", WORKERS + script]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@posix
def test_processes_that_write_read_and_trim_find_whole_entries() -> None:
    run_workers("""
children = [start(seed, 300) for seed in range(4)]
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
""")


@posix
def test_writers_that_are_killed_leave_nothing_that_is_read(cache_folder: Path) -> None:
    run_workers("""
generator = random.Random(0)
for seed in range(20):
    child = start(seed, 10**6)
    time.sleep(generator.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
work(99, 300)
""")
    assert len(list((cache_folder / "new").iterdir())) <= 20
