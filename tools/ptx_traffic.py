"""What the accesses of a group cost: wavefronts of shared memory, sectors of global memory.

Shared memory has 32 banks of 4 bytes. Work items of a warp that access different words of one bank
conflict; those that access the same word do not (CUDA Programming Guide, section Shared Memory of
the compute capabilities). Half a warp does accesses of 8 bytes at once, a quarter accesses of 16
bytes; so each matrix of `ldmatrix` is an access of its own. A multiprocessor may be able to merge
some of them; this model does not.

Global memory is accessed in sectors of 32 bytes (CUDA Programming Guide, section Coalesced Global
Memory Access). Caches are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cuda_devices import WARP
from ptx_addresses import Access

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array

_BANKS, _WORD, _SECTOR = 32, 4, 32


@frozen_dataclass
class Traffic:
    """The accesses of a group to one memory, each instruction once.

    Attributes:
        accesses: instructions that some work item runs.
        unknown: instructions whose addresses depend on data.
        skipped: instructions that no work item runs in a first iteration.
        costly: accesses that need more than the least.
        least: wavefronts without conflicts, or sectors if accessed bytes were neighbours.
        needed: wavefronts or sectors.
    """

    accesses: int
    unknown: int
    skipped: int
    costly: int
    least: int
    needed: int


def traffic_of(accesses: Iterable[Access], space: str) -> Traffic:
    """The traffic of a group.

    Args:
        accesses: of the group.
        space: `"shared"`, in wavefronts, or `"global"`, in sectors.
    """
    counted = unknown = skipped = costly = least = needed = 0
    for access in accesses:
        if access.operand.space != space:
            continue
        if access.addresses is None or not access.active.any():
            runs = bool(access.active.any())
            unknown, skipped = unknown + runs, skipped + (not runs)
            continue
        cost = wavefronts if space == "shared" else sectors
        ideal, actual = cost(access.addresses, access.active, access.operand.bytes)
        counted, costly = counted + 1, costly + (actual > ideal)
        least, needed = least + ideal, needed + actual
    return Traffic(counted, unknown, skipped, costly, least, needed)


def wavefronts(addresses: Array, active: Array, bytes: int) -> tuple[int, int]:
    """The wavefronts of an access: without conflicts, and as they are.

    Args:
        addresses: of each work item of a group.
        active: which of them access memory.
        bytes: that each accesses.
    """
    words = max(bytes // _WORD, 1)
    row = WARP // words
    numbers = _rows(addresses // np.uint64(_WORD), row)[..., None] + np.arange(words)
    runs = np.repeat(_rows(active, row), words, axis=1)
    numbers = np.where(runs, numbers.reshape(len(numbers), -1), -1)
    numbers.sort(axis=1)
    first = numbers >= 0
    first[:, 1:] &= numbers[:, 1:] != numbers[:, :-1]
    banks = np.zeros((len(numbers), _BANKS), int)
    np.add.at(banks, (np.nonzero(first)[0], numbers[first] % _BANKS), 1)
    return int(runs.any(axis=1).sum()), int(banks.max(axis=1).sum())


def sectors(addresses: Array, active: Array, bytes: int) -> tuple[int, int]:
    """The sectors of an access: if its bytes were neighbours, and as they are.

    Args: as of `wavefronts`.
    """
    least = needed = 0
    for row, runs in zip(_rows(addresses, WARP), _rows(active, WARP), strict=True):
        begins = np.unique(row[runs])
        ends = begins + bytes - 1
        touched = np.union1d(begins // _SECTOR, ends // _SECTOR)
        least, needed = least - (-len(begins) * bytes // _SECTOR), needed + len(touched)
    return least, needed


def _rows(values: Array, row: int) -> Array:
    """The values of all work items in rows, filled up with zeros; integers become signed."""
    values = values if values.dtype == bool else values.astype(np.int64)
    return np.pad(values, (0, -len(values) % row)).reshape(-1, row)
