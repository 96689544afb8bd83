"""Memory that steps use while they run, for operands in another order and for sums.

What is needed at different times shares its place. Functions find it, and their buffers, in a
section of the table of addresses: each step has a section of its own, so that steps of one form can
share their functions.
"""

from __future__ import annotations

from bisect import insort
from typing import final

from lamina.codegen.llvm import Function
from lamina.codegen.values import I64, POINTER, Value

_ALIGNMENT = 64
# Every section of the table of addresses begins with these places, and buffers follow.
SLOTS = ("own", "own bytes", "iteration")
_OWN, _OWN_BYTES, _ITERATION = range(len(SLOTS))


@final
class Workspaces:
    """Collects what the steps of a program need, and says where they find it.

    A section of the table of addresses begins with the memory of the single threads, how many
    bytes each of them has, and where the iteration of the steps that are repeated is noted.
    """

    def __init__(self) -> None:
        self.thread_bytes = 0
        self.placed_bytes = 0
        # Where each place that was asked for begins and ends, by name: those that meet are used at
        # different times.
        self.extents: dict[str, tuple[int, int]] = {}
        # The same in the order of memory, with the steps that need the place.
        self._in_order: list[tuple[int, int, range]] = []

    def need_own(self, size: int) -> None:
        """Asks for bytes for every thread."""
        self.thread_bytes = max(self.thread_bytes, -(-size // _ALIGNMENT) * _ALIGNMENT)

    def place(self, name: str, size: int, steps: range) -> int:
        """Asks for bytes of a packed operand, or of a step, which are its alone during some steps.

        Returns:
            Where they begin in the memory that is for those.
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
        self.placed_bytes = max(self.placed_bytes, start + size)
        return start

    def iteration(self, code: Function, table: Value) -> Value:
        """The iteration of the steps that are repeated."""
        return code.load(self.iteration_address(code, table), I64)

    def iteration_address(self, code: Function, table: Value) -> Value:
        """Where it is noted."""
        return code.load(code.offset(table, _ITERATION, "ptr"), POINTER)

    def own(self, code: Function, table: Value, thread: Value) -> Value:
        """The address of a thread's own memory."""
        base = code.load(code.offset(table, _OWN, "ptr"), POINTER)
        # How much each has is known only when all steps are written.
        size = code.load(code.offset(table, _OWN_BYTES, "ptr"), I64)
        return code.offset(base, code.multiply(size, thread), "i8")
