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

    def need_shared(self, size: int) -> None:
        """Asks for bytes that all threads see; later they are another step's."""
        self.shared_bytes = max(self.shared_bytes, size)

    def need_own(self, size: int) -> None:
        """Asks for bytes for every thread."""
        self.thread_bytes = max(self.thread_bytes, -(-size // _ALIGNMENT) * _ALIGNMENT)

    def keep(self, size: int) -> int:
        """Asks for bytes that stay as they are from run to run; gives where they begin."""
        start = self.packed_bytes
        self.packed_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        return start

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
