"""Which launches become the phases of one kernel."""

from __future__ import annotations

import pytest

from lamina.engines.gpu.launches import Launch, Rates, RepeatedLaunches
from lamina.engines.gpu.phases import ITEMS, LAUNCH, Joined, extra_clocks, joined_launches
from lamina.engines.gpu.schedule import LoopSchedule, MatrixSchedule, RowSchedule
from lamina.program.cost import Cost

# The clocks that a phase takes longer than its kernel: none, too many, and too many for two.
NONE, MANY, SOME = 0.0, 2.0 * LAUNCH, 0.9 * LAUNCH


def loop(first: int, last: int, count: int = 5) -> RepeatedLaunches:
    return RepeatedLaunches(first, last, count)


@pytest.mark.cases(
    ("extra", "repeats", "expected"),
    ([NONE] * 3, [], [Joined(0, 3)]),
    ([NONE], [], []),
    ([NONE, NONE, MANY, NONE, None, NONE, NONE], [], [Joined(0, 2), Joined(5, 7)]),
    # A launch less must be worth the clocks of all phases.
    ([SOME, SOME], [], []),
    ([SOME, NONE], [], [Joined(0, 2)]),
    ([NONE] * 5, [loop(1, 3)], [Joined(0, 5, (loop(1, 3),))]),
    # A loop alone saves the launches of its other iterations.
    ([MANY, NONE, None], [loop(1, 2)], [Joined(1, 2, (loop(1, 2),))]),
    # Launches on both sides of the edge of a loop are not joined.
    ([NONE] * 6 + [MANY, NONE, NONE], [loop(2, 7)], [Joined(0, 2), Joined(2, 6), Joined(7, 9)]),
    ([NONE, None, NONE], [loop(0, 2)], []),
    ([NONE] * 30, [], [Joined(0, 24), Joined(24, 30)]),
    ([NONE] * 30, [loop(2, 30)], [Joined(0, 2), Joined(2, 30, (loop(2, 30),))]),
)
def test_neighbouring_small_launches_are_joined(extra, repeats, expected):
    launches = [Launch(f"k{number}", (f"b{number}",), 1, number) for number in range(len(extra))]
    assert joined_launches(launches, extra, repeats) == expected


def test_a_kernel_has_as_many_buffers_as_arguments_can_have():
    launches = [
        Launch(f"k{number}", tuple(f"{number} {one}" for one in range(150)), 1, number)
        for number in range(4)
    ]
    assert joined_launches(launches, [NONE] * 4, ()) == [Joined(0, 2), Joined(2, 4)]


ROW = RowSchedule(16, 1, False, 32)
TILE = object.__new__(MatrixSchedule)


@pytest.mark.cases(
    ("items", "group", "decided", "cost", "expected"),
    (1, 0, LoopSchedule(1, 32), Cost(10**9, 0, 0), 0.0),
    (ITEMS, 16, ROW, Cost(6400, 0, 0), 100.0),
    (ITEMS, 16, ROW, Cost(0, 640, 0), 10.0),
    (2 * ITEMS, 16, ROW, Cost(0, 0, 0), 500.0),
    (96, 16, ROW, Cost(0, 0, 0), 0.0),
    # Half a warp would have no work.
    (80, 16, ROW, Cost(0, 0, 0), None),
    (48, 48, ROW, Cost(0, 0, 0), None),
    (64, 64, TILE, Cost(0, 0, 0), None),
)
def test_a_phase_takes_longer_by_the_work_that_other_compute_units_would_do(
    items, group, decided, cost, expected
):
    launch = Launch("k", (), items, 0, group)
    assert extra_clocks(launch, decided, cost, Rates()) == expected
