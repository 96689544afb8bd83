"""All calls into LLVM: the only file that uses llvmlite.

An object of llvmlite frees its memory when it is closed or collected. If a signal handler raises
after the memory is freed and before the object notes that, it is freed twice. So all calls are made
in one thread, which signals do not reach. No object of llvmlite leaves that thread: callers that
load code get the addresses of its functions, and no object that could free the code elsewhere.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from typing import Any, TypeVar, final

import llvmlite
from llvmlite import binding as _binding

from lamina.base.records import frozen_dataclass
from lamina.base.shielded import ShieldedThread

Result = TypeVar("Result")

# llvmlite has no types.
binding: Any = _binding

# The IR is written with explicit vectors and registers, so optimisation passes over it do not pay.
# The code generator selects, schedules and allocates at its default level.
_CODE_GENERATION = 2
# The versions on which machine code depends, in addition to the text and the processor.
VERSIONS = (llvmlite.__version__, str(binding.llvm_version_info), str(_CODE_GENERATION))


@frozen_dataclass
class Target:
    """The processor for which code is generated.

    Attributes:
        name: LLVM's name of the processor, `"znver4"`.
        triple: LLVM's name of the machine and the system.
        features: LLVM's list of features, `"+avx2,-avx512f,..."`.
    """

    name: str
    triple: str
    features: str


@final
class Library:
    """Machine code in memory, until it is released or this object is collected.

    Attributes:
        addresses: the addresses of its exported functions.
    """

    def __init__(self, addresses: dict[str, int]) -> None:
        self.addresses = addresses
        self.number = next(_numbers)

    def release(self) -> None:
        """Frees the code, if it is still loaded; none of its functions may be running.

        At the end of the process the system frees it.
        """
        if self.number in _loaded and not _thread.closed:
            _thread_call(lambda: _unload(self.number))


@cache
def host_target() -> tuple[str, Mapping[str, bool], str]:
    """LLVM's name of this processor, its features and whether they are there, and the triple."""
    return _thread_call(
        lambda: (
            str(binding.get_host_cpu_name()),
            dict(binding.get_host_cpu_features()),
            str(binding.get_process_triple()),
        )
    )


def assemble(text: str, target: Target) -> bytes:
    """The object code of a module in LLVM's assembly language."""
    return _thread_call(lambda: _translated(text, target, "emit_object"))


def listing(text: str, target: Target) -> str:
    """The machine code of a module as text in the processor's assembly language."""
    return _thread_call(lambda: _translated(text, target, "emit_assembly"))


def load(code: bytes, exported: tuple[str, ...] = ("program",)) -> Library:
    """Loads object code that `assemble` made into memory; no other code must be loaded."""
    return _thread_call(lambda: _load(code, exported))


def _hold_during_forks() -> None:
    """Holds llvmlite's lock while the process forks: in the child it would stay locked forever.

    A ShieldedThread already waits for forks; this is for other users of llvmlite. llvmlite has a
    lock for all its functions, but no public function that takes it.
    """
    lock = getattr(binding.ffi.lib, "_lock", None)
    if lock is not None and hasattr(os, "register_at_fork"):

        def give_back() -> None:
            lock.__exit__(None, None, None)

        os.register_at_fork(
            before=lock.__enter__, after_in_parent=give_back, after_in_child=give_back
        )


# Called before the thread is made: handlers before a fork run in the reverse order of registration,
# and the thread needs this lock to finish its work.
_hold_during_forks()
_thread = ShieldedThread("lamina-llvm")
_numbers = count()


@final
class _End(weakref.ref[Library]):
    """A weak reference whose callback notes that loaded code was collected."""

    __slots__ = ("number",)
    number: int


# The loaded code by its number: linker, tracker, and the weak reference.
_loaded: dict[int, tuple[Any, Any, _End]] = {}
# A function that no signal can interrupt appends to it, wherever garbage is collected.
_ended: deque[_End] = deque()


def _thread_call(work: Callable[[], Result]) -> Result:
    def alone() -> Result:
        while _ended:
            _unload(_ended.popleft().number)
        return work()

    return _thread.call(alone)


@cache
def _initialize() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


@cache
def _machine(target: Target) -> tuple[Any, str]:
    """LLVM's target machine, and its data layout."""
    _initialize()
    machine = binding.Target.from_triple(target.triple).create_target_machine(
        cpu=target.name,
        features=target.features,
        opt=_CODE_GENERATION,
        reloc="pic",
        codemodel="small",
    )
    return machine, str(machine.target_data)


def _translated(text: str, target: Target, emit: str) -> Any:
    machine, layout = _machine(target)
    with binding.parse_assembly(text) as module:
        module.triple = target.triple
        module.data_layout = layout
        module.verify()
        return getattr(machine, emit)(module)


def _load(code: bytes, exported: tuple[str, ...]) -> Library:
    _initialize()
    builder = binding.JITLibraryBuilder().add_object_img(code)
    for name in exported:
        builder.export_symbol(name)
    # Each object has a linker, because a linker keeps memory of code until it is closed. JITLink
    # puts all sections of an object into one block of memory. LLVM's older linker allocates each
    # section separately. In a process with large arenas, sections may then be over 2 GiB apart, too
    # far for relative addresses, and that linker ends the process. On Windows JITLink is not
    # complete.
    linker = binding.create_lljit_compiler(use_jit_link=os.name == "posix")
    try:
        tracker = builder.link(linker, "lamina")
    except BaseException:
        linker.close()
        raise
    library = Library({name: int(tracker[name]) for name in exported})
    end = _End(library, _ended.append)
    end.number = library.number
    _loaded[library.number] = linker, tracker, end
    return library


def _unload(number: int) -> None:
    loaded = _loaded.pop(number, None)
    if loaded is not None:
        linker, tracker, _ = loaded
        tracker.close()
        linker.close()
