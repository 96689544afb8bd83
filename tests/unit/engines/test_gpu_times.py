"""Times of kernels: what a device does in a clock, which launches are joined, steps that are timed.

No test measures time.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest

from lamina.base.shapes import float32, int64
from lamina.engines.cuda.driver import traits_of
from lamina.engines.gpu.launches import Launch, Rates, RepeatedLaunches
from lamina.engines.gpu.phases import ITEMS, LAUNCH, Joined, extra_clocks, joined_launches
from lamina.engines.gpu.schedule import LoopSchedule, MatrixSchedule, RowSchedule
from lamina.engines.gpu.step_times import Changed, changed_by, pieces_of
from lamina.engines.opencl.driver import _rates
from lamina.program.cost import Cost
from lamina.program.index import Axis, axis_index
from lamina.program.program import Buffer, Plan, Program
from lamina.program.scalar import Load
from lamina.program.steps import Loop, Store, Write

H100 = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "CLOCK_RATE": 1_980_000,
    "MEMORY_CLOCK_RATE": 2_619_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
}


def rates(**changed):
    return traits_of(defaultdict(int, H100 | changed).__getitem__, 1 << 30).rates


def test_an_h100_moves_3_35_terabytes_a_second_and_has_66_9_teraflops():
    found = rates()
    assert found.clock * 132 * found.memory_bytes == pytest.approx(3.35e12, rel=1e-3)
    assert 2 * found.clock * 132 * found.lanes == pytest.approx(66.9e12, rel=1e-3)


@pytest.mark.parametrize(
    ("major", "minor", "lanes"), [(7, 5, 64), (8, 0, 64), (8, 6, 128), (8, 9, 128), (12, 0, 128)]
)
def test_lanes_depend_on_the_compute_capability(major, minor, lanes):
    found = rates(COMPUTE_CAPABILITY_MAJOR=major, COMPUTE_CAPABILITY_MINOR=minor)
    assert found.lanes == lanes


@pytest.mark.parametrize("unknown", ["CLOCK_RATE", "MEMORY_CLOCK_RATE"])
def test_a_typical_gpu_has_the_memory_of_one_that_does_not_say(unknown):
    assert rates(**{unknown: 0}).memory_bytes == Rates().memory_bytes


def test_resident_work_items_are_those_of_the_device():
    assert rates(MAX_THREADS_PER_MULTIPROCESSOR=1536).resident_items == 1536


def test_opencl_devices_of_nvidia_have_the_lanes_of_their_compute_capability():
    properties = {"compute_capability_major_nv": 9, "compute_capability_minor_nv": 0}
    handle = SimpleNamespace(
        max_clock_frequency=1980, extensions="cl_nv_device_attribute_query", **properties
    )
    assert (_rates(handle).lanes, _rates(handle).clock) == (128, 1.98e9)
    handle.extensions = "cl_khr_fp64"
    assert _rates(handle) == Rates(clock=1.98e9)


# The clocks that a phase takes longer than its kernel: none, too many, and too many for two.
NONE, MANY, SOME = 0.0, 2.0 * LAUNCH, 0.9 * LAUNCH


def loop(first, last, count=5):
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


class FakeDriver:
    """Its launches are names; it notes what it is asked to run, and knows seconds of launches."""

    def __init__(self, seconds):
        self.seconds, self.done = seconds, []
        self.queue = self

    def timed(self, launches):
        def run():
            self.done.append(("timed", len(launches)))
            return self.seconds * len(launches)

        return run

    def sequence(self, launches):
        return [name for name, _ in launches]

    def run(self, sequence):
        self.done.append(("run", *sequence))

    def copy(self, target, offset, source, size):
        self.done.append(("copy", target, source, size))


class FakeRecording:
    def buffer(self, name, size):
        return f"{name}, {size} bytes"


NOTHING = Changed((), (), is_repeatable=True)


def runs_of(seconds, changed=NOTHING, runs=2):
    """What a driver does for some runs of a step of two launches that take so long each."""
    driver = FakeDriver(seconds)
    launches = [(3, "a", None), (3, "b", None)]
    saved = FakeRecording()
    (piece,) = pieces_of(driver, launches, {3: changed}, {"p": "p of the device"}, saved)
    for _ in range(runs):
        assert (piece.step, piece.run()) == (3, pytest.approx(2 * seconds))
    return driver.done


def test_a_short_step_is_run_several_times_to_be_timed():
    # After its first run, as often as 50 us take.
    assert runs_of(2e-6, runs=3) == [("timed", 2), *[("timed", 2 * 13)] * 2]
    assert runs_of(1e-9) == [("timed", 2), ("timed", 2 * 32)]
    assert runs_of(1e-3) == [("timed", 2)] * 2


def test_what_a_step_changes_is_put_back_before_it_runs_for_later_steps():
    copy = "changed 0, 12 bytes"
    assert runs_of(2e-6, Changed(("p",), (12,), is_repeatable=True))[1:] == [
        ("copy", copy, "p of the device", 12),
        ("timed", 2 * 13),
        ("copy", "p of the device", copy, 12),
        ("run", "a", "b"),
    ]


def test_a_step_that_may_not_see_what_it_changes_runs_once():
    assert runs_of(2e-6, Changed(("p",), (8,), is_repeatable=False)) == [("timed", 2)] * 2


def test_iterations_of_a_step_are_timed_one_by_one():
    driver = FakeDriver(1.0)
    launches = [(0, "a", 0), (1, "b", 0), (0, "a", 1), (1, "b", 1), (2, "c", None)]
    pieces = pieces_of(driver, launches, dict.fromkeys(range(3), NOTHING), {}, FakeRecording())
    assert [one.step for one in pieces] == [0, 1, 0, 1, 2]
    assert [one.run() for one in pieces] == [1.0] * 5


@pytest.mark.cases(
    ("read", "written", "location", "names", "is_repeatable"),
    ("p", "p", {}, ("p",), True),
    ("p", "q", {}, (), True),
    ("p", "q", {"p": (0, 0, 16), "q": (0, 16, 16)}, (), True),
    ("p", "q", {"p": (0, 0, 16), "q": (1, 0, 16)}, (), True),
    ("p", "q", {"p": (0, 0, 16), "q": (0, 12, 16)}, ("p",), True),
    # Positions in other buffers could be computed from it.
    ("whole", "p", {"whole": (0, 0, 32), "p": (0, 16, 16)}, ("whole",), False),
)
def test_a_step_changes_what_it_reads_by_name_or_by_location(
    read, written, location, names, is_repeatable
):
    axis = Axis("i", 4)
    kinds = {"p": float32, "q": float32, "whole": int64}
    buffers = {name: Buffer(name, "temporary", (4,), kind) for name, kind in kinds.items()}
    load = Load(read, axis_index(axis), kinds[read])
    step = Loop("s", (axis,), (Write((), (Store(written, axis_index(axis), load),)),))
    program = Program("test", buffers, (step,), (), {}, Plan((), 0, ()))
    changes = changed_by(program, 0, location)
    assert (changes.names, changes.is_repeatable) == (names, is_repeatable)
    assert changes.bytes == tuple(buffers[name].bytes for name in names)


def test_a_step_that_changes_much_runs_once(monkeypatch):
    monkeypatch.setattr("lamina.engines.gpu.step_times.MOST_CHANGED_BYTES", 15)
    axis = Axis("i", 4)
    load = Load("p", axis_index(axis), float32)
    step = Loop("s", (axis,), (Write((), (Store("p", axis_index(axis), load),)),))
    buffer = Buffer("p", "state", (4,), float32)
    program = Program("test", {"p": buffer}, (step,), (), {}, Plan((), 0, ()))
    assert not changed_by(program, 0, {}).is_repeatable
