"""Copies by several threads: each piece is copied, and nothing is half copied at the end."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from lamina.base import copies
from lamina.base.copies import PIECE_BYTES, by_threads, stretches


@pytest.mark.parametrize(
    ("rows", "row_bytes"), [(1, 4), (PIECE_BYTES, 4), (7, PIECE_BYTES - 1), (5, 3 * PIECE_BYTES)]
)
def test_stretches_have_all_rows_once(rows, row_bytes):
    found = list(stretches(rows, row_bytes))
    assert [row for one in found for row in range(rows)[one]] == [*range(rows)]
    for one in found:
        assert 0 < (one.stop - one.start) * row_bytes <= max(PIECE_BYTES, row_bytes)


def test_large_arrays_are_copied_by_other_threads(monkeypatch):
    monkeypatch.setattr(copies, "PIECE_BYTES", 1 << 10)
    source = np.arange(5000, dtype=np.int32)
    target = np.zeros_like(source)
    threads, done = set(), []
    parts = list(stretches(len(source), 4))

    def copy(rows):
        threads.add(threading.get_ident())
        time.sleep(0.01)
        np.copyto(target[rows], source[rows])

    def note(number):
        rows = parts[number]
        done.append((number, bool((target[rows] == source[rows]).all())))

    by_threads([partial(copy, rows) for rows in parts], source.nbytes, note)
    assert target.tolist() == source.tolist()
    assert done == [(number, True) for number in range(len(parts))]
    assert threading.get_ident() not in threads


def test_several_pieces_are_copied_at_the_same_time():
    # Each piece waits for another one.
    barrier = threading.Barrier(2, timeout=60)
    by_threads([barrier.wait] * 2, 2 * PIECE_BYTES)


def test_a_small_array_is_copied_by_the_caller():
    found = []
    by_threads([lambda: found.append(threading.get_ident())] * 2, PIECE_BYTES, found.append)
    assert found == [threading.get_ident(), 0, threading.get_ident(), 1]


def test_an_error_is_raised_when_all_pieces_have_ended():
    ended = []

    def work(number):
        if number == 0:
            raise ValueError("no such piece")
        time.sleep(0.01)
        ended.append(number)

    with pytest.raises(ValueError, match="no such piece"):
        by_threads([partial(work, number) for number in range(4)], 2 * PIECE_BYTES)
    assert sorted(ended) == [1, 2, 3]
