"""Memory that steps use while they run, for packed operands and for sums.

Memory that is needed at different times is shared. Functions read the addresses of workspaces and
of their buffers from a section of the table of addresses. Each step has its own section, so that
steps of one signature share their functions.
"""

from __future__ import annotations

from bisect import insort
from typing import final

from lamina.codegen.llvm import Function
from lamina.codegen.values import I64, POINTER, Value

_ALIGNMENT = 64
# Every section of the table of addresses begins with these entries; buffers follow.
HEADER = ("own", "own bytes", "iteration")
_OWN, _OWN_BYTES, _ITERATION = range(len(HEADER))


@final
class Workspaces:
    """Collects the workspaces of a program's steps, and generates code that finds them.

    A section of the table of addresses begins with the address of the threads' memory, the bytes
    that each thread has, and the address of the number of the current iteration.
    """

    def __init__(self) -> None:
        self.thread_bytes = 0
        self.shared_bytes = 0
        # The start and end of each allocation, by name. Allocations that overlap are used at
        # different times.
        self.extents: dict[str, tuple[int, int]] = {}
        # The same in the order of memory, with the steps that need the allocation.
        self._in_order: list[tuple[int, int, range]] = []

    def need_own(self, size: int) -> None:
        """Requests at least `size` bytes for each thread."""
        self.thread_bytes = max(self.thread_bytes, -(-size // _ALIGNMENT) * _ALIGNMENT)

    def allocate(self, name: str, size: int, steps: range) -> int:
        """Reserves `size` bytes for a packed operand, or for a step, while some steps run.

        Returns:
            Their offset in the memory for such allocations.
        """
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        start = 0
        for first, end, others in self._in_order:
            if steps.start < others.stop and others.start < steps.stop:
                if start + size <= first:
                    break
                start = max(start, end)
        insort(self._in_order, (start, start + size, steps), key=lambda one: one[:2])
        self.extents[name] = start, start + size
        self.shared_bytes = max(self.shared_bytes, start + size)
        return start

    def iteration(self, code: Function, table: Value) -> Value:
        """The number of the current iteration of a repeat."""
        return code.load(self.iteration_address(code, table), I64)

    def iteration_address(self, code: Function, table: Value) -> Value:
        """The address of the number of the current iteration."""
        return code.load(code.offset(table, _ITERATION, "ptr"), POINTER)

    def own(self, code: Function, table: Value, thread: Value) -> Value:
        """The address of a thread's memory."""
        base = code.load(code.offset(table, _OWN, "ptr"), POINTER)
        # The size is in the table, because it is known only after all steps are written.
        size = code.load(code.offset(table, _OWN_BYTES, "ptr"), I64)
        return code.offset(base, code.multiply(size, thread), "i8")
