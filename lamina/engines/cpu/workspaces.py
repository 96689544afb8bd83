"""Memory that steps use while they run, for operands in another order and for sums.

The steps of a program share it: there is as much as the neediest step asks for. Functions find it,
and their buffers, in a section of the table of addresses: each step has a section of its own, so
that steps of one form can share their functions.
"""

from __future__ import annotations

from typing import final

from lamina.engines.cpu.ir import I64, POINTER, Function, Value

_ALIGNMENT = 64
# Every section of the table of addresses begins with these places, and buffers follow.
SLOTS = ("shared", "own", "own bytes", "ticks", "counters", "turn")
_SHARED, _OWN, _OWN_BYTES, _TICKS, _COUNTERS, _TURN = range(len(SLOTS))


@final
class Workspaces:
    """Collects what the steps of a program need, and says where they find it.

    A section of the table of addresses begins with the workspace that all threads see, the memory
    of the single threads, how many bytes each of them has, the counters of ticks, those of units,
    and the turn of the steps that are repeated (in a table of the thread's own).
    """

    # How a part says that it reads or writes the shared workspace.
    SHARED = "workspace"

    def __init__(self) -> None:
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

    def ticks(self, code: Function, table: Value) -> Value:
        """The address of the counters of ticks."""
        return code.load(code.offset(table, _TICKS, "ptr"), POINTER)

    def counters(self, code: Function, table: Value) -> Value:
        """The address of the counters of units."""
        return code.load(code.offset(table, _COUNTERS, "ptr"), POINTER)

    def turn(self, code: Function, table: Value) -> Value:
        """The turn of the steps that are repeated."""
        return code.load(code.offset(table, _TURN, "i64"), I64)

    def begin_turn(self, code: Function, table: Value, turn: Value) -> None:
        """Says in a section of a thread's own table which turn it is."""
        code.store(turn, code.offset(table, _TURN, "i64"))

    def shared(self, code: Function, table: Value) -> Value:
        """The address of the shared workspace."""
        return code.load(code.offset(table, _SHARED, "ptr"), POINTER)

    def own(self, code: Function, table: Value, thread: Value) -> Value:
        """The address of a thread's own memory."""
        base = code.load(code.offset(table, _OWN, "ptr"), POINTER)
        # How much each has is known only when all steps are written.
        size = code.load(code.offset(table, _OWN_BYTES, "ptr"), I64)
        return code.offset(base, code.multiply(size, thread), "i8")
