"""Waiting in native code: by spinning, yielding and sleeping.

Threads sleep on a futex on Linux, and on a condition variable of the C library elsewhere. The
addresses of the library's functions are in a table in memory, so that the code needs no linking.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Any

from lamina.base.records import frozen_dataclass
from lamina.codegen.llvm import Function, Module, typed
from lamina.codegen.values import I32, POINTER, Value

# The words of a table: functions of the C library, then a mutex and a condition variable.
YIELD, FUTEX, LOCK, UNLOCK, WAIT, BROADCAST, MUTEX, CONDITION = range(8)
CALLS_BYTES = 64

_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98, "arm64": 98}
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
_GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}
# struct sched_attr of sched_setattr(2): size, policy, flags, nice, priority, runtime, ...
_ATTRIBUTES, _POLICY, _RUNTIME = struct.Struct("=IIQiIQQQ"), 1, 5
SLICE_NANOSECONDS = 100_000
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_PRIVATE = 0, 1, 128
_NAMES = {
    YIELD: "sched_yield",
    LOCK: "pthread_mutex_lock",
    UNLOCK: "pthread_mutex_unlock",
    WAIT: "pthread_cond_wait",
    BROADCAST: "pthread_cond_broadcast",
}
# Larger than any system's mutex or condition variable.
_LOCK_BYTES = 256


@frozen_dataclass
class Waiting:
    """The method by which threads wait on this machine.

    Attributes:
        machine: the processor's architecture, `"x86_64"`.
        futex: whether they sleep on a futex; otherwise on a condition variable.
    """

    machine: str
    futex: bool


def waiting_for(machine: str) -> Waiting:
    """How threads wait on this system: on a futex where there is one."""
    return Waiting(machine, sys.platform == "linux" and machine in _FUTEX_NUMBER)


def fill_calls(words: Any, waiting: Waiting) -> list[Any]:
    """Writes the addresses of the C library's functions into a table of CALLS_BYTES, of uint64.

    Gives objects that must live as long as the table.
    """
    library: Any = ctypes.CDLL(None)

    def address(name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

    words[YIELD] = address(_NAMES[YIELD])
    if waiting.futex:
        words[FUTEX] = address("syscall")
        return []
    for number in (LOCK, UNLOCK, WAIT, BROADCAST):
        words[number] = address(_NAMES[number])
    kept: list[Any] = []
    for number, kind in ((MUTEX, "mutex"), (CONDITION, "cond")):
        kept.append(ctypes.create_string_buffer(_LOCK_BYTES))
        getattr(library, f"pthread_{kind}_init")(kept[-1], None)
        words[number] = ctypes.addressof(kept[-1])
    return kept


def ask_for_short_slices(machine: str) -> None:
    """Asks the system to give this thread a core soon after it wakes, for a short time.

    Its share of the processor's time, its policy and its nice value stay the same. Threads with a
    policy other than SCHED_OTHER are left alone. Systems without this request (Linux before 6.12)
    ignore or refuse it, which is harmless.
    """
    if sys.platform != "linux" or machine not in _SET_ATTRIBUTES:
        return
    library: Any = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if library.syscall(_GET_ATTRIBUTES[machine], 0, buffer, _ATTRIBUTES.size, 0):
        return
    fields = list(_ATTRIBUTES.unpack(buffer.raw))
    if fields[_POLICY] == os.SCHED_OTHER:
        fields[_RUNTIME] = SLICE_NANOSECONDS
        library.syscall(_SET_ATTRIBUTES[machine], 0, _ATTRIBUTES.pack(*fields), 0)


def emit_pause(code: Function, machine: str) -> None:
    """Tells the processor that this thread waits in a loop."""
    if machine in ("x86_64", "AMD64"):
        code.module.declare("llvm.x86.sse2.pause", "void", [])
        code.call_void("llvm.x86.sse2.pause")
    else:
        code.module.declare("llvm.aarch64.hint", "void", [I32])
        # Hint 1 is YIELD.
        code.call_void("llvm.aarch64.hint", code.constant(1, I32))


def emit_yield(code: Function, calls: Value) -> None:
    """Yields this core to another thread, if one is ready."""
    code.line(f"call i32 {_call(code, calls, YIELD).name}()")


def emit_sleep(module: Module, waiting: Waiting) -> None:
    """Writes `sleep(calls, word, old)`: sleeps while the i32 word is the old one.

    It may return early.
    """
    parameters = (("calls", POINTER), ("word", POINTER), ("old", I32))
    code = module.function("sleep", parameters)
    calls, word, old = code.parameters
    if waiting.futex:
        _call_futex(code, waiting, _FUTEX_WAIT, old)
    else:
        mutex, condition = _call(code, calls, MUTEX), _call(code, calls, CONDITION)
        code.line(f"call i32 {_call(code, calls, LOCK).name}({typed(mutex)})")
        seen = code.instruction(f"load atomic i32, {typed(word)} seq_cst, align 4", I32)
        with code.when(seen.equals(old)):
            code.line(
                f"call i32 {_call(code, calls, WAIT).name}({typed(condition)}, {typed(mutex)})"
            )
        code.line(f"call i32 {_call(code, calls, UNLOCK).name}({typed(mutex)})")


def emit_wake(module: Module, waiting: Waiting) -> None:
    """Writes `wake(calls, word)`: changes the i32 word and wakes the thread that sleeps on it."""
    code = module.function("wake", (("calls", POINTER), ("word", POINTER)))
    calls, word = code.parameters
    if waiting.futex:
        code.instruction(f"atomicrmw add {typed(word)}, i32 1 seq_cst", I32)
        _call_futex(code, waiting, _FUTEX_WAKE, code.constant(1, I32))
    else:
        mutex, condition = _call(code, calls, MUTEX), _call(code, calls, CONDITION)
        code.line(f"call i32 {_call(code, calls, LOCK).name}({typed(mutex)})")
        code.instruction(f"atomicrmw add {typed(word)}, i32 1 seq_cst", I32)
        code.line(f"call i32 {_call(code, calls, BROADCAST).name}({typed(condition)})")
        code.line(f"call i32 {_call(code, calls, UNLOCK).name}({typed(mutex)})")


def _call_futex(code: Function, waiting: Waiting, operation: int, value: Value) -> None:
    """Calls futex(2); the function's first parameters are the calls and the word."""
    calls, word, *_ = code.parameters
    code.line(
        f"call i64 (i64, ...) {_call(code, calls, FUTEX).name}"
        f"(i64 {_FUTEX_NUMBER[waiting.machine]}, {typed(word)}, "
        f"i32 {operation | _FUTEX_PRIVATE}, {typed(value)}, ptr null, ptr null, i32 0)"
    )


def _call(code: Function, calls: Value, number: int) -> Value:
    return code.load(code.offset(calls, number, "ptr"), POINTER)
