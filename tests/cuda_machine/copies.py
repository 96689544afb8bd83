"""Asynchronous copies from global to shared memory (PTX ISA, cp.async).

The bytes arrive as late as they may: when the thread waits for their group. Until then the
destination counts as unwritten, so reading it is a fault, and so is writing to it. If the source
has other bytes then, that is a fault too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_machine.memory_access import address_code
from cuda_machine.syntax import Immediate, Instruction
from cuda_machine.writer import Writer, instruction, unknown


@dataclass
class _Copy:
    """A copy of some lanes: addresses, bytes that are read and their values, and each lane's group.

    It is pending in the lanes where it has not arrived.
    """

    lanes: Any
    targets: Any
    sources: Any
    size: int
    counts: Any
    values: Any
    groups: Any
    pending: Any
    line: int


class Copies:
    """The copies of the lanes `m` that have not arrived."""

    def __init__(self, m: Any) -> None:
        self._m = m
        self._copies: list[_Copy] = []
        # How many groups a lane has committed: the number of the group that is open.
        self._groups = np.zeros(m.count, np.int64)

    def begin(self, targets: Any, sources: Any, size: int, counts: Any, idx: Any) -> None:
        """Begins copies of `size` bytes, of which only `counts` are read and the rest is zero."""
        m = self._m
        lanes = np.arange(m.count) if idx is None else idx
        if (counts > size).any():
            what = f"an asynchronous copy that reads more than its {size} bytes"
            m.fault_where(what, counts > size, idx)
        offsets, values = self._read(sources, size, counts, lanes)
        to, _ = m.writable("shared", targets, size, idx)
        m.mark_shared(to, size, written=False)
        m.mark_pending(to, size, pending=True)
        groups = self._groups[lanes]
        pending = np.ones(len(lanes), np.bool_)
        copy = _Copy(lanes, targets, offsets, size, counts, values, groups, pending, m.line)
        self._copies.append(copy)

    def _read(self, sources: Any, size: int, counts: Any, lanes: Any) -> tuple[Any, Any]:
        """Checks sources; returns their offsets and the bytes (lane, size), zeros where unread."""
        m = self._m
        m.check_alignment(sources, size, lanes, "global")
        values = np.zeros((len(lanes), size), np.uint8)
        offsets = np.zeros(len(lanes), np.int64)
        for count in np.unique(counts):
            if not count:
                continue
            chosen = np.flatnonzero(counts == count)
            found, data = m.readable("global", sources[chosen], int(count), lanes[chosen])
            offsets[chosen] = found
            values[chosen, : int(count)] = data[1][found[:, None] + np.arange(int(count))]
        return offsets, values

    def commit(self, idx: Any) -> None:
        if idx is None:
            self._groups += 1
        else:
            self._groups[idx] += 1

    def wait(self, count: int, idx: Any) -> None:
        if not self._copies:
            return
        waiting = np.ones(self._m.count, np.bool_)
        if idx is not None:
            waiting[:] = False
            waiting[idx] = True
        for copy in self._copies:
            last = self._groups[copy.lanes] - count
            arriving = copy.pending & waiting[copy.lanes] & (copy.groups < last)
            if arriving.any():
                self._arrive(copy, np.flatnonzero(arriving))
        self._copies = [copy for copy in self._copies if copy.pending.any()]

    def end(self) -> None:
        """All threads have exited. PTX does not say where copies arrive whose block has ended."""
        for copy in self._copies:
            what = "an asynchronous copy that has not arrived when the block ends"
            self._m.line = copy.line
            self._m.fault_where(what, copy.pending, copy.lanes)

    def _arrive(self, copy: _Copy, chosen: Any) -> None:
        m = self._m
        m.line, lanes, size = copy.line, copy.lanes[chosen], copy.size
        inside = np.arange(size) < copy.counts[chosen][:, None]
        data = m.launch.memory.data
        now = data[np.where(inside, copy.sources[chosen][:, None] + np.arange(size), 0)]
        changed = (inside & (now != copy.values[chosen])).any(1)
        if changed.any():
            what = "an asynchronous copy whose source was changed before it arrived"
            m.fault_where(what, changed, lanes)
        targets = copy.targets[chosen]
        m.mark_pending(m.shared_offsets(targets, size, lanes), size, pending=False)
        to, shared = m.writable("shared", targets, size, lanes)
        shared[1][to[:, None] + np.arange(size)] = copy.values[chosen]
        copy.pending[chosen] = False


@instruction("cp", forms=("async commit_group|wait_group", "async cg shared global"), since=80)
def _cp(writer: Writer, one: Instruction) -> None:
    location = writer.located(one)
    match one.modifiers[1], one.operands:
        case "commit_group", ():
            writer.emit("m.copies.commit(idx)")
        case "wait_group", (Immediate(count, _),):
            writer.emit(f"m.copies.wait({count}, {location})")
        case "cg", (to, source, Immediate(16, _), read):
            target = address_code(writer, to, "shared")
            begin = address_code(writer, source, "global")
            count = writer.array(read, "u32")
            writer.emit(f"m.copies.begin({target}, {begin}, 16, {count}, {location})")
        case _:
            unknown(one)
