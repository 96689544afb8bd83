"""Asynchronous operations of lanes, which end when the lanes wait for their group.

Copies from global to shared memory (PTX ISA, cp.async): the bytes arrive as late as they may, when
the thread waits for their group. Until then the destination counts as unwritten, so reading it is a
fault, and so is writing to it. If the source has other bytes then, that is a fault too.

Products of warpgroups (PTX ISA, Asynchronous Warpgroup Level Matrix Instructions) read their
matrices in shared memory at any time between their instruction and the wait for its group. So they
are read at both times: both must be legal, and find the same bytes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

WARPGROUP = 128
# The bytes of a chunk; a row of 128 bytes has eight chunks.
_CHUNK = 16


@dataclass
class _Begun:
    """What an instruction has begun: the "lanes", the "groups" of each, and other arrays."""

    line: int
    arrays: dict[str, Any]

    def part(self, which):
        return _Begun(self.line, {name: array[which] for name, array in self.arrays.items()})


class _Groups:
    """The operations of the lanes `m` that have not ended."""

    # What is wrong with those that have not ended when their block ends.
    unended = ""

    def __init__(self, m):
        self._m = m
        self._begun = []
        # How many groups a lane has committed: the number of the group that is open.
        self._groups = np.zeros(m.count, np.int64)

    def _begin(self, lanes, **arrays):
        groups = self._groups[lanes]
        self._begun.append(_Begun(self._m.line, {"lanes": lanes, "groups": groups, **arrays}))

    def _awaited(self, count, lanes):
        """What ends when these lanes wait until at most `count` groups are left."""
        waiting = np.zeros(self._m.count, np.bool_)
        waiting[lanes] = True
        begun, self._begun = self._begun, []
        for operation in begun:
            groups = self._groups[operation.arrays["lanes"]] - count
            ends = waiting[operation.arrays["lanes"]] & (operation.arrays["groups"] < groups)
            if not ends.all():
                self._begun.append(operation.part(~ends))
            if ends.any():
                self._m.line = operation.line
                yield operation.part(ends).arrays

    def end(self):
        """All threads have exited."""
        for operation in self._begun:
            self._m.line = operation.line
            self._m.fault(self.unended, int(operation.arrays["lanes"][0]))


class Copies(_Groups):
    """Copies; PTX does not say where those arrive whose block has ended."""

    unended = "an asynchronous copy that has not arrived when the block ends"

    def begin(self, targets, sources, size, counts, idx):
        """Begins copies of `size` bytes: `counts` of them are read, the others are zero."""
        m = self._m
        lanes = np.arange(m.count) if idx is None else idx
        if (counts > size).any():
            what = f"an asynchronous copy that reads more than its {size} bytes"
            m.fault_where(what, counts > size, idx)
        m.check_alignment(sources, size, lanes, "global")
        values = np.zeros((len(lanes), size), np.uint8)
        offsets = np.zeros(len(lanes), np.int64)
        for count in filter(None, np.unique(counts).tolist()):
            chosen = np.flatnonzero(counts == count)
            starts, data = m.readable("global", sources[chosen], count, lanes[chosen])
            offsets[chosen] = starts
            values[chosen, :count] = data[1][starts[:, None] + np.arange(count)]
        to, _ = m.writable("shared", targets, size, idx)
        m.mark_shared(to, size, written=False)
        m.mark_pending(to, size, pending=True)
        self._begin(lanes, targets=targets, sources=offsets, counts=counts, values=values)

    def commit(self, idx):
        self._groups[slice(None) if idx is None else idx] += 1

    def wait(self, count, idx):
        m = self._m
        for copy in self._awaited(count, slice(None) if idx is None else idx):
            lanes, targets, values = copy["lanes"], copy["targets"], copy["values"]
            size = values.shape[1]
            inside = np.arange(size) < copy["counts"][:, None]
            at = np.where(inside, copy["sources"][:, None] + np.arange(size), 0)
            changed = (inside & (m.launch.memory.data[at] != values)).any(1)
            if changed.any():
                what = "an asynchronous copy whose source was changed before it arrived"
                m.fault_where(what, changed, lanes)
            m.mark_pending(m.shared_offsets(targets, size, lanes), size, pending=False)
            to, shared = m.writable("shared", targets, size, lanes)
            shared[1][to[:, None] + np.arange(size)] = values


class Products(_Groups):
    """Products of warpgroups, by their first lanes."""

    unended = "a product that has not ended when the block ends"

    def warpgroups(self, idx):
        """The first lane of each warpgroup, all of whose threads must be here."""
        m = self._m
        lanes = np.arange(m.count) if idx is None else idx
        first = lanes - m.thread_of_lane[lanes] % WARPGROUP
        firsts, counts = np.unique(first, return_counts=True)
        absent = counts[np.searchsorted(firsts, first)] != WARPGROUP
        if absent.any():
            what = "an instruction of a warpgroup without some of its threads"
            m.fault_where(what, absent, idx)
        return firsts

    def begin(self, lanes, addresses):
        """Begins products of warpgroups; returns the bytes (warpgroups, chunks, 16) of matrices."""
        left, right = (self._read(chunks, lanes) for chunks in addresses)
        self._begin(lanes, a=addresses[0], b=addresses[1], left=left, right=right)
        return [left, right]

    def _read(self, addresses, lanes):
        m = self._m
        flat, each = addresses.reshape(-1), np.repeat(lanes, addresses.shape[1])
        offsets, shared = m.readable("shared", flat, _CHUNK, each)
        m.require_visible(offsets, _CHUNK, each)
        return shared[1][offsets[:, None] + np.arange(_CHUNK)].reshape(*addresses.shape, _CHUNK)

    def commit(self, idx):
        self._groups[self.warpgroups(idx)] += 1

    def wait(self, count, idx):
        for arrays in self._awaited(count, self.warpgroups(idx)):
            for addresses, data in ((arrays["a"], arrays["left"]), (arrays["b"], arrays["right"])):
                changed = (self._read(addresses, arrays["lanes"]) != data).any((1, 2))
                if changed.any():
                    what = "a product whose matrices were changed before it ended"
                    self._m.fault_where(what, changed, arrays["lanes"])
