"""Permutations, made by native code and by all threads."""

from __future__ import annotations

from functools import cache

import numpy as np

from lamina.base.shapes import Array
from lamina.engines.cpu.compilation import compiled
from lamina.engines.cpu.llvm import Library, load
from lamina.engines.cpu.native import orders
from lamina.engines.cpu.native.jobs import Entry, Kernel, Phase
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.run.thread_pool import Job
from lamina.engines.host import aligned

# More buckets would leave the fast caches.
_MOST_BITS = 14


def permutations(count: int, seeds: Array, numbers: Array, stream: int, threads: int) -> Array:
    """`lamina.program.philox.permutations`, in another way."""
    items = len(seeds)
    made = np.empty((items, count), np.int64)
    if not made.size:
        return made
    threads = min(threads, items)
    bits = min(max(count.bit_length() - 1, 1), _MOST_BITS)
    each = orders.scratch_bytes(count, bits)
    scratch = aligned(threads * each)
    seeds, numbers = (np.ascontiguousarray(array, np.int64) for array in (seeds, numbers))
    words = [array.ctypes.data for array in (seeds, numbers)]
    words += [stream, count, made.ctypes.data, scratch.ctypes.data, each, bits]
    section = np.array(words, np.uint64)
    entry = Entry(threads, 1, (Kernel(0, 0, items, 1, threads, 0),), (Phase(0, 1, threads > 1),))
    iteration = np.zeros(1, np.int64)
    Job([_library().addresses["orders"]], entry, section, iteration, tries_alone=False).run()
    return made


@cache
def _library() -> Library:
    return load(compiled(orders.emit_orders().text(), host()), ("orders",))
