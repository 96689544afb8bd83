"""The interpreter engine: programs run step by step in NumPy, over the planned arena.

It is the specification of what a program means, and needs nothing but NumPy.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from lamina.engines.engine import Device, Memory
from lamina.engines.interpreter.run import run_step
from lamina.errors import InternalError
from lamina.program.program import Buffer, Program
from lamina.shapes import Array

ALIGNMENT_BYTES = 64
# A byte that makes NaN of floats and absurd numbers of integers.
POISON = 0xFF


@final
class HostMemory:
    """An array in the computer's own memory."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.array = np.zeros(shape, dtype)

    def write(self, array: Array) -> None:
        np.copyto(self.array, array.reshape(self.array.shape), casting="no")

    def read(self) -> Array:
        return self.array.copy()

    def release(self) -> None:
        self.array = np.zeros(0, self.array.dtype)


@final
class InterpreterEngine:
    """Runs programs in NumPy.

    Args:
        poison: fill the arena with NaN before every run, so that a read of something that was
            never written shows.
    """

    def __init__(self, *, poison: bool = False) -> None:
        self._poison = poison

    @property
    def device(self) -> Device:
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        memory = pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else None
        return Device("interpreter", f"NumPy {np.__version__} on {platform.machine()}", memory)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostMemory:
        return HostMemory(shape, dtype)

    def compile(self, program: Program) -> InterpretedProgram:
        return InterpretedProgram(program, poison=self._poison)


@final
class InterpretedProgram:
    """A program with its arena in the computer's memory."""

    def __init__(self, program: Program, *, poison: bool) -> None:
        self._program = program
        self._poison = poison
        self._arena = _aligned(program.plan.arena_bytes)
        self._own: dict[str, Array] = {
            name: np.ravel(value) for name, value in program.constants.items()
        }
        for place in program.plan.allocations:
            buffer = program.buffers[place.buffer]
            part = self._arena[place.offset : place.offset + buffer.bytes]
            self._own[buffer.name] = part.view(buffer.dtype.numpy)
        self._last: dict[str, Array] = {}

    def run(self, memories: Mapping[str, Memory]) -> None:
        if self._poison:
            self._arena.fill(POISON)
        flat = self._own | {
            buffer.name: _flat(memories, buffer)
            for kind in ("input", "parameter", "state")
            for buffer in self._program.of_kind(kind)
        }
        for step in self._program.steps:
            run_step(step, flat)
        self._last = flat

    def run_many(
        self,
        memories: Mapping[str, Memory],
        resident: Mapping[str, Memory],
        rows: Array,
        recorded: Sequence[str],
    ) -> dict[str, Array]:
        kept: dict[str, list[Array]] = {name: [] for name in recorded}
        for examples in rows:
            for name, memory in resident.items():
                _host(memories[name]).array[...] = _host(memory).array[examples]
            self.run(memories)
            for name in recorded:
                kept[name].append(self.output(name))
        return {name: np.array(values) for name, values in kept.items()}

    def output(self, name: str) -> Array:
        buffer = self._program.buffers[dict(self._program.outputs)[name]]
        return self._last[buffer.name].reshape(buffer.shape).copy()

    def release(self) -> None:
        self._own, self._last, self._arena = {}, {}, _aligned(0)


def _host(memory: Memory) -> HostMemory:
    if not isinstance(memory, HostMemory):
        raise InternalError(f"the interpreter was given memory of another engine: {memory}")
    return memory


def _flat(memories: Mapping[str, Memory], buffer: Buffer) -> Array:
    array = _host(memories[buffer.name]).array
    if array.size != buffer.size or array.dtype != buffer.dtype.numpy:
        raise InternalError(f"{buffer} was given an array {array.dtype}{list(array.shape)}")
    return array.reshape(-1)


def _aligned(size: int) -> Array:
    """`size` bytes that start at a cache line."""
    block = np.zeros(size + ALIGNMENT_BYTES, np.uint8)
    start = -block.ctypes.data % ALIGNMENT_BYTES
    return block[start : start + size]
