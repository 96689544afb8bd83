"""Memory that steps use while they run, for operands in another order and for sums.

The steps of a program share it: there is as much as the neediest step asks for.
"""

from __future__ import annotations

from typing import final

from lamina.engines.cpu.ir import I64, POINTER, Function, Value

_ALIGNMENT = 64
# Its own places in the table of addresses, counters included.
_SLOTS = 7


@final
class Workspaces:
    """Collects what the steps of a program need, and says where they find it.

    In the table of addresses stand, from `slot` on: the workspace that all threads see, the
    memory of the single threads, how many bytes each of them has, what was packed ahead, the
    counters of ticks, those of units, and the turn of the steps that are repeated (in a table of
    the thread's own); then the buffers that steps have asked for.
    """

    # How a part says that it reads or writes the shared workspace.
    SHARED = "workspace"

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._next = slot + _SLOTS
        self.shared_bytes = 0
        self.thread_bytes = 0
        self.packed_bytes = 0
        self.counter_bytes = 0
        # By the name of each packed operand: where it begins, where it ends, and during which steps
        # it needs its place.
        self._packed: dict[str, tuple[int, int, range]] = {}

    def need_shared(self, size: int) -> None:
        """Asks for bytes that all threads see; later they are another step's."""
        self.shared_bytes = max(self.shared_bytes, size)

    def need_own(self, size: int) -> None:
        """Asks for bytes for every thread."""
        self.thread_bytes = max(self.thread_bytes, -(-size // _ALIGNMENT) * _ALIGNMENT)

    def keep(self, name: str, size: int, steps: range) -> int:
        """Asks for bytes of a packed operand, which it has to itself during some steps.

        Returns:
            Where they begin, in bytes, in the memory for packed operands.
        """
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        taken = sorted(
            (first, end)
            for first, end, others in self._packed.values()
            if steps.start < others.stop and others.start < steps.stop
        )
        start = 0
        for first, end in taken:
            if start + size <= first:
                break
            start = max(start, end)
        self._packed[name] = start, start + size, steps
        self.packed_bytes = max(self.packed_bytes, start + size)
        return start

    def shares_place(self, one: str, other: str) -> bool:
        """Whether both are packed operands and lie in the same memory, at different times."""
        if one not in self._packed or other not in self._packed:
            return False
        (start, end, _), (first, last, _) = self._packed[one], self._packed[other]
        return start < last and first < end

    def count(self, size: int) -> int:
        """Asks for bytes of counters, which are zero between runs; gives where they begin."""
        self.counter_bytes += size
        return self.counter_bytes - size

    def next_slot(self) -> int:
        """A place in the table for one more buffer."""
        self._next += 1
        return self._next - 1

    def ticks(self, code: Function, table: Value) -> Value:
        """The address of the counters of ticks."""
        return code.load(code.offset(table, self._slot + 4, "ptr"), POINTER)

    def counters(self, code: Function, table: Value) -> Value:
        """The address of the counters of units."""
        return code.load(code.offset(table, self._slot + 5, "ptr"), POINTER)

    @property
    def slots(self) -> int:
        """How long the table is, after all steps were written."""
        return self._next

    def turn(self, code: Function, table: Value) -> Value:
        """The turn of the steps that are repeated."""
        return code.load(code.offset(table, self._slot + 6, "i64"), I64)

    def begin_turn(self, code: Function, table: Value, turn: Value) -> None:
        """Says in a thread's own table which turn it is."""
        code.store(turn, code.offset(table, self._slot + 6, "i64"))

    def packed(self, code: Function, table: Value) -> Value:
        """The address of what was packed ahead."""
        return code.load(code.offset(table, self._slot + 3, "ptr"), POINTER)

    def shared(self, code: Function, table: Value) -> Value:
        """The address of the shared workspace."""
        return code.load(code.offset(table, self._slot, "ptr"), POINTER)

    def own(self, code: Function, table: Value, thread: Value) -> Value:
        """The address of a thread's own memory."""
        base = code.load(code.offset(table, self._slot + 1, "ptr"), POINTER)
        # How much each has is known only when all steps are written.
        size = code.load(code.offset(table, self._slot + 2, "ptr"), I64)
        return code.offset(base, code.multiply(size, thread), "i8")
