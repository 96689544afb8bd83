"""Products of warpgroups that have not ended (PTX ISA, Asynchronous Warpgroup Level Matrix
Instructions).

A product reads its matrices in shared memory at any time between its instruction and the wait for
its group. So they are read at both times: both must be legal, and find the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

WARPGROUP: Final = 128
# The bytes of a chunk, and its address within a row of 128 bytes and within eight of them.
_CHUNK: Final = 16


@dataclass(frozen=True)
class Matrix:
    """A matrix of each warpgroup: the addresses of its chunks (warpgroups, chunks), and bytes."""

    addresses: Any
    data: Any


@dataclass
class _Product:
    """A product of some warpgroups, by their first lanes; and the group of each."""

    lanes: Any
    matrices: list[Matrix]
    groups: Any
    line: int


class Products:
    """The products of the lanes `m` that have not ended."""

    def __init__(self, m: Any) -> None:
        self._m = m
        self._products: list[_Product] = []
        # How many groups a lane has committed: the number of the group that is open.
        self._groups = np.zeros(m.count, np.int64)

    def warpgroups(self, idx: Any) -> Any:
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

    def begin(self, lanes: Any, addresses: list[Any]) -> list[Any]:
        """Begins products of warpgroups; returns the bytes (warpgroups, chunks, 16) of matrices."""
        matrices = [Matrix(one, self._read(one, lanes)) for one in addresses]
        self._products.append(_Product(lanes, matrices, self._groups[lanes], self._m.line))
        return [one.data for one in matrices]

    def _read(self, addresses: Any, lanes: Any) -> Any:
        m = self._m
        flat, each = addresses.reshape(-1), np.repeat(lanes, addresses.shape[1])
        offsets, shared = m.readable("shared", flat, _CHUNK, each)
        m.require_visible(offsets, _CHUNK, each)
        return shared[1][offsets[:, None] + np.arange(_CHUNK)].reshape(*addresses.shape, _CHUNK)

    def commit(self, idx: Any) -> None:
        self._groups[self.warpgroups(idx)] += 1

    def wait(self, count: int, idx: Any) -> None:
        waiting = np.zeros(self._m.count, np.bool_)
        waiting[self.warpgroups(idx)] = True
        remaining: list[_Product] = []
        for one in self._products:
            ends = waiting[one.lanes] & (one.groups < self._groups[one.lanes] - count)
            if ends.any():
                self._end(one, ends)
            if not ends.all():
                left = [Matrix(each.addresses[~ends], each.data[~ends]) for each in one.matrices]
                remaining.append(_Product(one.lanes[~ends], left, one.groups[~ends], one.line))
        self._products = remaining

    def _end(self, product: _Product, ends: Any) -> None:
        self._m.line, lanes = product.line, product.lanes[ends]
        for one in product.matrices:
            now = self._read(one.addresses[ends], lanes)
            changed = (now != one.data[ends]).any((1, 2))
            if changed.any():
                what = "a product whose matrices were changed before it ended"
                self._m.fault_where(what, changed, lanes)

    def end(self) -> None:
        """All threads have exited."""
        for one in self._products:
            what = "a product that has not ended when the block ends"
            self._m.line = one.line
            self._m.fault(what, int(one.lanes[0]))
