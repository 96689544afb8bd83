"""Copies of large arrays by several threads: one thread moves a fraction of what memory can."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from lamina.base.cores import usable_cores
from lamina.base.shielded import shielded

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# A thread copies so much at a time; starting it takes about as long as copying a tenth of it.
PIECE_BYTES = 2 << 20
# More of them than memory has channels gain nothing.
_MOST_THREADS = 8


def stretches(rows: int, row_bytes: int) -> Iterator[slice]:
    """The rows of an array in pieces of about `PIECE_BYTES`."""
    most = max(PIECE_BYTES // row_bytes, 1)
    for start in range(0, rows, most):
        yield slice(start, min(start + most, rows))


def by_threads(
    work: Sequence[Callable[[], object]],
    size: int,
    done: Callable[[int], object] = lambda number: None,
) -> None:
    """Does pieces of work that copy `size` bytes together, several at a time, and waits for all.

    As soon as a piece and those before it are done, `done` is called with its number, by one
    thread. No signal interrupts it: nothing is half copied when it ends. The first error of a piece
    is raised after all have ended. The caller does small work itself.
    """
    if size > PIECE_BYTES:
        shielded(lambda: _by_threads(work, done))
        return
    for number, piece in enumerate(work):
        piece()
        done(number)


def _by_threads(work: Sequence[Callable[[], object]], done: Callable[[int], object]) -> None:
    from concurrent.futures import wait

    # A process that was forked has none of the threads.
    threads = _threads(os.getpid())
    futures = [threads.submit(piece) for piece in work]
    try:
        for number, future in enumerate(futures):
            future.result()
            done(number)
    finally:
        wait(futures)


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    # It takes 10 ms to import, which a first training need not wait for.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(min(_MOST_THREADS, usable_cores()), f"copies of {process}")
