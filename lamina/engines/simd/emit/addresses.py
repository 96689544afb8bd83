"""How kernels find their buffers and workspaces: through a table that is their first parameter.

Workspaces are the memory that steps use while they run, for packed operands and for sums. Memory
that is needed at different times is shared.
"""

from __future__ import annotations

from bisect import insort
from typing import Protocol, final

from lamina.codegen.builder import Builder
from lamina.codegen.values import I64, POINTER, Value
from lamina.engines.simd.processor import LINE_BYTES

# Every section of a table in memory begins with these entries; buffers follow.
HEADER = ("thread memory", "thread bytes", "iteration")
_THREAD_MEMORY, _THREAD_BYTES, _ITERATION = range(len(HEADER))


class Addresses(Protocol):
    """Generates code that reads a table of addresses."""

    def buffer(self, code: Builder, table: Value, number: int) -> Value:
        """The address of a buffer, by its number in the order of the kernel's buffers."""
        ...

    def thread_memory(self, code: Builder, table: Value, thread: Value) -> Value:
        """The address of a thread's memory."""
        ...

    def iteration(self, code: Builder, table: Value) -> Value:
        """The number of the current iteration of a repeat."""
        ...


@final
class AddressesInMemory:
    """Tables in memory, with a section for each step.

    A section begins with the address of the threads' memory, the bytes that each thread has, and
    the address of the number of the current iteration.
    """

    def buffer(self, code: Builder, table: Value, number: int) -> Value:
        return _entry(code, table, len(HEADER) + number)

    def thread_memory(self, code: Builder, table: Value, thread: Value) -> Value:
        base = _entry(code, table, _THREAD_MEMORY)
        # The size is in the table, because it is known only after all steps are written.
        size = code.load(code.offset(table, _THREAD_BYTES, "ptr"), I64)
        return code.offset(base, size * thread, "i8")

    def iteration(self, code: Builder, table: Value) -> Value:
        return code.load(self.iteration_address(code, table), I64)

    def iteration_address(self, code: Builder, table: Value) -> Value:
        """The address of the number of the current iteration."""
        return _entry(code, table, _ITERATION)


def _entry(code: Builder, table: Value, number: int) -> Value:
    return code.load(code.offset(table, number, "ptr"), POINTER)


@final
class Workspaces:
    """Collects the workspaces of a program's steps.

    Args:
        alignment: the alignment of each workspace, in bytes.
        block_bytes: a multiple of the alignment. No allocation crosses a multiple of it, unless the
            allocation is larger. None for no such limit.
    """

    def __init__(self, alignment: int = LINE_BYTES, block_bytes: int | None = None) -> None:
        self._alignment, self._block_bytes = alignment, block_bytes
        self.thread_bytes = 0
        self.shared_bytes = 0
        # The start and end of each allocation, by name. Allocations that overlap are used at
        # different times.
        self.extents: dict[str, tuple[int, int]] = {}
        # The same in the order of memory, with the steps that need the allocation.
        self._in_order: list[tuple[int, int, range]] = []

    def need_thread_memory(self, size: int) -> None:
        """Requests at least `size` bytes for each thread."""
        self.thread_bytes = max(self.thread_bytes, -(-size // self._alignment) * self._alignment)

    def allocate(self, name: str, size: int, steps: range) -> int:
        """Reserves `size` bytes for a packed operand, or for a step, while some steps run.

        Returns:
            Their offset in the memory for such allocations.
        """
        size = -(-size // self._alignment) * self._alignment
        start = 0
        for first, end, others in self._in_order:
            if steps.start < others.stop and others.start < steps.stop:
                if start + size <= first:
                    break
                start, block = max(start, end), self._block_bytes
                if block is not None and start % block + size > block:
                    start = -(-start // block) * block
        insort(self._in_order, (start, start + size, steps), key=lambda allocation: allocation[:2])
        self.extents[name] = start, start + size
        self.shared_bytes = max(self.shared_bytes, start + size)
        return start
