"""Compiled programs on disk: found again, never trusted if damaged or another user's."""

import logging
import os
import random
import stat
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import lamina as lm
from lamina.base import cache
from lamina.base.cache import Sources, cached, find, folder, folders, keep, key_of
from lamina.compiler.program_cache import SOURCES as PROGRAM_SOURCES
from lamina.engines.cpu.compilation import SOURCES as CODE_SOURCES
from lamina.engines.gpu.gpus import SOURCES as GPU_SOURCES
from lamina.engines.opencl.processors import SOURCES as PROCESSOR_SOURCES

CONTENT = bytes(range(256)) * 5
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are of POSIX")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """The folder of a cache of the test's own."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_reported", set())
    return tmp_path / "objects"


class Maker:
    """Makes the content, and counts how often it had to."""

    def __init__(self, content=CONTENT):
        self.content = content
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.content


def path_of(cache_folder, key):
    """The path of the entry of a key."""
    name, shard = cache._names(key)
    return cache_folder / shard / name


def entries(cache_folder):
    return sorted(cache_folder.glob("*/*.object"))


def in_one_shard(count):
    """`count` keys of entries in the first shard."""
    numbers = (f"key {number}" for number in range(10**6))
    found = (key for key in numbers if path_of(Path(), key).parts[0] == "0")
    return [next(found) for _ in range(count)]


def unused(make):
    """Checks that there is no cache."""
    assert [cached("k", make) for _ in range(2)] == [CONTENT] * 2
    assert make.calls == 2
    assert folder() is None


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that can be imported; it is named after its folder."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / tmp_path.name
    package.mkdir()
    (package / "__init__.py").write_text("OLD = True")
    return package


def test_sources_that_change_after_they_were_imported_are_noticed(package):
    before, *unasked = (Sources(package.name) for _ in range(3))
    assert before.checksum != ""
    assert {snapshot.checksum for snapshot in unasked} == {before.checksum}
    os.utime(package / "__init__.py", ns=(0, 0))  # the text decides
    assert before.are_unchanged
    (package / "later.py").write_text("NEW = True")
    assert before.are_unchanged, "it was checked once, and is not checked again"
    assert not unasked[0].are_unchanged
    assert Sources(package.name).checksum != before.checksum
    (package / "later.py").unlink()
    (package / "__init__.py").write_text("NEW = True")
    assert not unasked[1].are_unchanged


KEYS = {
    "programs": (PROGRAM_SOURCES, ("checks", "graph", "ops", "compiler", "program")),
    "machine code": (CODE_SOURCES, ("program", "codegen", "engines/cpu", "engines/simd")),
    "kernels for GPUs": (GPU_SOURCES, ("program", "codegen", "engines/gpu")),
    "kernels for processors": (
        PROCESSOR_SOURCES,
        ("program", "codegen", "engines/gpu", "engines/simd", "engines/opencl"),
    ),
    "verdicts of self-tests": (None, ("codegen", "engines/opencl")),
}


@pytest.mark.cases("sources, roots", KEYS)
def test_the_key_covers_every_package_that_decides_an_entry(sources, roots):
    if sources is None:
        pytest.importorskip("pyopencl", reason="needs pyopencl: pip install 'lamina[opencl]'")
        from lamina.engines.opencl.verdicts import SOURCES as sources
    lamina = Path(lm.__file__).parent
    inits = [file for root in roots for file in (lamina / root).rglob("__init__.py")]
    packages = {".".join(("lamina", *file.parent.relative_to(lamina).parts)) for file in inits}
    assert packages | {"lamina.base"} == set(sources.packages)


@pytest.mark.parametrize("key", ["", "../outside", "/etc/x", "a\0b", "k" * 5000, "\N{SNOWMAN}"])
def test_any_text_is_a_key(key, cache_folder):
    make = Maker()
    assert [cached(key, make) for _ in range(2)] == [CONTENT] * 2
    assert make.calls == len(entries(cache_folder)) == 1


def test_keys_depend_on_every_string_and_where_it_ends():
    keys = {key_of(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], [])}
    assert len(keys) == 5


def flipped(number, data):
    """The data with a flipped bit in one of its bytes."""
    changed = bytearray(data)
    changed[number] ^= 1
    return bytes(changed)


DAMAGE = {
    "empty": lambda data: b"",
    **{f"truncated after {n} bytes": lambda data, n=n: data[:n] for n in (5, 30, 88, -1)},
    "longer": lambda data: data + b"x",
    "another magic": lambda data: b"L" + data[1:],
    "an earlier format": lambda data: data.replace(b"object 2", b"object 1"),
    # Of the key, the length, the checksum and the content.
    **{f"a flipped bit in byte {n}": partial(flipped, n) for n in (20, 48, 60, -9)},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_again(damage, cache_folder):
    make = Maker()
    cached("k", make)
    path = path_of(cache_folder, "k")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert [cached("k", make) for _ in range(2)] == [CONTENT] * 2
    assert make.calls == 2


def test_a_whole_entry_under_another_name_is_made_again(cache_folder):
    for name in ("one", "two"):
        assert cached(name, Maker(name.encode())) == name.encode()
    path_of(cache_folder, "two").write_bytes(path_of(cache_folder, "one").read_bytes())
    make = Maker(b"two")
    assert [cached("two", make) for _ in range(2)] == [b"two"] * 2
    assert make.calls == 1


@pytest.mark.parametrize("value", ["off", "OFF", "0", ""])
def test_the_cache_can_be_turned_off(value, monkeypatch, caplog):
    monkeypatch.setenv("LAMINA_CACHE", value)
    unused(Maker())
    assert not caplog.messages


def test_the_folder_is_in_the_users_cache_folder_or_is_chosen(tmp_path, monkeypatch):
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("LAMINA_CACHE", "~/elsewhere")
    assert folder() == tmp_path / "elsewhere" / "objects"
    monkeypatch.delenv("LAMINA_CACHE")
    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", lambda name: tmp_path / name)
    assert folder() == tmp_path / "lamina" / "objects"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAMINA_CACHE", "here")
    cached("k", Maker())
    assert len(entries(tmp_path / "here" / "objects")) == 1


@posix
@pytest.mark.cases(
    "variables",
    pytest.param({}, id="nobody knows the user"),
    pytest.param({"LAMINA_CACHE": "~no-such-user/x"}, id="a user that there is not"),
    pytest.param({"HOME": "HOME"}, id="a home that there is not"),
    pytest.param({"LAMINA_CACHE": "~anna/x"}, id="a home of another user that there is not"),
)
def test_without_a_home_there_is_no_cache_and_one_warning(variables, tmp_path, monkeypatch, caplog):
    import pwd

    lacking = tmp_path / "home"
    user = pwd.struct_passwd(("anna", "x", 12345, 12345, "", str(lacking), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    if "no-such-user" not in variables.get("LAMINA_CACHE", ""):
        monkeypatch.setattr(pwd, "getpwnam", lambda _: user)
    for name in ("LAMINA_CACHE", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("HOME", str(lacking)))
    with caplog.at_level(logging.WARNING, "lamina"):
        unused(Maker())
    (message,) = caplog.messages
    assert message == (
        "Lamina compiles again in every process, because its cache cannot be used: "
        "there is no home folder. "
        "LAMINA_CACHE names another folder; LAMINA_CACHE=off turns the cache off."
    )
    assert not lacking.exists()


def test_the_entries_used_longest_ago_are_removed_first(cache_folder, monkeypatch):
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


def test_an_entry_above_the_limit_is_kept_while_it_is_the_latest(cache_folder, monkeypatch):
    monkeypatch.setattr(cache, "LARGEST_BYTES", 10)
    first, second = in_one_shard(2)
    for key in (first, second):
        cached(key, Maker())
        assert cached(key, Maker(b"")) == CONTENT
    assert entries(cache_folder) == [path_of(cache_folder, second)]


def test_the_cache_exceeds_its_limit_by_at_most_an_eighth(cache_folder, monkeypatch):
    monkeypatch.setattr(cache, "LARGEST_BYTES", 1 << 20)
    generator = random.Random(0)
    content = bytes(3000)
    most = 0
    for number in range(800):
        keep(f"{number} {generator.random()}", content)
        if number % 20 == 0:
            most = max(most, sum(path.stat().st_size for path in entries(cache_folder)))
    assert (1 << 20) * 3 // 4 < most < (1 << 20) * 9 // 8 + cache.SHARDS * 4096


@pytest.mark.sampled
def test_entries_are_listed_once_per_eighth_of_the_limit_however_many_there_are(monkeypatch):
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(folder) or scandir(folder))
    monkeypatch.setattr(cache, "LARGEST_BYTES", cache.SHARDS * 8 * 100 * 1024)
    keys = in_one_shard(1000)
    for key in keys:
        keep(key, bytes(1000))
    # Each writer lists the unfinished files. An entry counts as two KiB with its header; 50 of them
    # are not more than 100 KiB.
    assert len(listed) == 1000 + 1000 // 51
    assert find(keys[-1]) == bytes(1000)
    assert len(listed) == 1000 + 1000 // 51


def test_unfinished_files_of_ended_processes_are_removed(cache_folder):
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


def test_writers_at_the_same_time_leave_one_whole_entry(cache_folder):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cached("k", Maker()), range(40)))
    assert found == [CONTENT] * 40
    assert entries(cache_folder) == [path_of(cache_folder, "k")]
    assert not list((cache_folder / "new").iterdir())


# Folders and entries that others could change are not used ----------------------------------------


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

    def __init__(self, monkeypatch):
        self.owners = {}
        self._fstat = os.fstat
        monkeypatch.setattr(folders.os, "fstat", self)

    def give(self, owner, *paths):
        self.owners |= {path.stat().st_ino: owner for path in paths}

    def __call__(self, descriptor):
        found = self._fstat(descriptor)
        fields = list(found)
        fields[stat.ST_UID] = self.owners.get(found.st_ino, found.st_uid)
        return os.stat_result(fields)


@pytest.fixture
def owned(monkeypatch):
    return Owned(monkeypatch)


# From the folder and its entry.
PLACES = {
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
def test_a_parent_may_be_roots_and_written_by_the_users_own_group(cache_folder, owned, monkeypatch):
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
    user = pwd.struct_passwd(("anna", "x", 12345, group, "", "/home/anna", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    for name, members, trusted in (
        ("anna", [], True),
        ("anna", ["anna"], True),
        ("anna", ["anna", "bert"], False),
        ("users", [], False),
    ):
        entry = grp.struct_group((name, "x", group, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, entry=entry: entry)
        assert (folder() is not None) == trusted, (name, members)


@posix
def test_a_folder_that_an_access_list_opens_to_others_is_not_used(cache_folder, monkeypatch):
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


SPECIAL = {
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
