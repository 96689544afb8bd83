"""How often steps run to be timed, and what is put back. No test measures time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lamina.base.shapes import float32, int64
from lamina.engines.gpu.step_times import Changed, changed_by, pieces_of
from lamina.program.index import Axis, axis_index
from lamina.program.program import Buffer, Plan, Program
from lamina.program.scalar import Load
from lamina.program.steps import Loop, Store, Write


class FakeDriver:
    """Its launches are names; it notes what it is asked to run, and knows seconds of launches."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.done = seconds, list[Any]()
        self.queue = self

    def timed(self, launches: Sequence[Any]) -> Callable[[], float]:
        def run() -> float:
            self.done.append(("timed", len(launches)))
            return self.seconds * len(launches)

        return run

    def sequence(self, launches: Sequence[Any]) -> Any:
        return [name for name, _ in launches]

    def run(self, sequence: Any) -> None:
        self.done.append(("run", *sequence))

    def copy(self, target: str, offset: int, source: str, size: int) -> None:
        self.done.append(("copy", target, source, size))


class FakeRecording:
    def buffer(self, name: str, size: int) -> str:
        return f"{name}, {size} bytes"


NOTHING = Changed((), (), is_repeatable=True)


def runs_of(seconds: float, changed: Changed = NOTHING, runs: int = 2) -> list[Any]:
    """What a driver does for some runs of a step of two launches that take so long each."""
    driver: Any = FakeDriver(seconds)
    launches: Any = [(3, "a", None), (3, "b", None)]
    saved: Any = FakeRecording()
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
    driver: Any = FakeDriver(1.0)
    launches: Any = [(0, "a", 0), (1, "b", 0), (0, "a", 1), (1, "b", 1), (2, "c", None)]
    pieces = pieces_of(driver, launches, dict.fromkeys(range(3), NOTHING), {}, FakeRecording())  # pyright: ignore
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
    found = changed_by(program, 0, location)
    assert (found.names, found.is_repeatable) == (names, is_repeatable)
    assert found.bytes == tuple(buffers[name].bytes for name in names)


def test_a_step_that_changes_much_runs_once(monkeypatch):
    monkeypatch.setattr("lamina.engines.gpu.step_times.MOST_CHANGED_BYTES", 15)
    axis = Axis("i", 4)
    load = Load("p", axis_index(axis), float32)
    step = Loop("s", (axis,), (Write((), (Store("p", axis_index(axis), load),)),))
    buffer = Buffer("p", "state", (4,), float32)
    program = Program("test", {"p": buffer}, (step,), (), {}, Plan((), 0, ()))
    assert not changed_by(program, 0, {}).is_repeatable
