"""The time of each step of a program on the device, without the gaps between the host's calls.

A step is timed alone, by the device's clock. A short one runs several times meanwhile, so that what
a device takes to begin and to end is a small share of its time. What it changes is put back before
it runs once more, for the steps after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.engines.gpu.arena import Location
from lamina.engines.gpu.driver import Buffer, Driver, Kernel, LaunchSequence
from lamina.engines.gpu.runs import Recording
from lamina.program.program import Program
from lamina.program.steps import reads_of, writes_of

# A step is run so often that all its runs take about so long, and at most so many times.
LEAST_SECONDS, MOST_RUNS = 50e-6, 32
# A step that changes more bytes takes longer than its beginning anyway.
MOST_CHANGED_BYTES = 64 << 20

# The number of a step, a kernel, and the number of an iteration if the kernel is repeated.
StepLaunch = tuple[int, Kernel, int | None]


@frozen_dataclass
class Changed:
    """What a step reads and changes: the bytes that are put back before it runs again.

    Attributes:
        names: the names of the buffers.
        bytes: the bytes of each buffer.
        is_repeatable: whether the step may run with what it has changed. Its results do not count,
            but positions computed from other integers than its own may lie outside of a buffer.
    """

    names: tuple[str, ...]
    bytes: tuple[int, ...]
    is_repeatable: bool


def changed_by(program: Program, step: int, locations: Mapping[str, Location]) -> Changed:
    """What a step of a program changes that it also reads, by name or by location."""
    reads, writes = (find(program.steps[step]) for find in (reads_of, writes_of))
    written = [locations[name] for name in writes if name in locations]
    names = sorted(
        name
        for name in reads
        if program.buffers[name].bytes
        and (
            name in writes
            or (name in locations and any(_overlap(locations[name], span) for span in written))
        )
    )
    buffers = [program.buffers[name] for name in names]
    sizes = tuple(buffer.bytes for buffer in buffers)
    fits = sum(sizes) <= MOST_CHANGED_BYTES
    return Changed(tuple(names), sizes, fits and all(buffer.dtype.is_float for buffer in buffers))


def _overlap(location: Location, other: Location) -> bool:
    (block, start, size), (other_block, other_start, other_size) = location, other
    return block == other_block and start < other_start + other_size and other_start < start + size


def pieces_of(
    driver: Driver,
    launches: Sequence[StepLaunch],
    changed: Mapping[int, Changed],
    buffers: Mapping[str, Buffer],
    saved: Recording,
) -> list[Piece]:
    """The launches of a program, step by step: a repeated step is launched in each iteration.

    `saved` keeps what steps change while they are timed.
    """
    return [
        Piece(driver, step, [launch[1:] for launch in group], changed[step], buffers, saved)
        for (step, _), group in groupby(launches, key=lambda launch: (launch[0], launch[2]))
    ]


@final
class Piece:
    """A step, or an iteration of it, whose first run says how often it is run to be timed."""

    def __init__(
        self,
        driver: Driver,
        step: int,
        launches: Sequence[tuple[Kernel, int | None]],
        changed: Changed,
        buffers: Mapping[str, Buffer],
        saved: Recording,
    ) -> None:
        self._driver, self.step, self._launches, self._changed = driver, step, launches, changed
        self._buffers, self._saved = buffers, saved
        self._runs = 0
        self._timed: Callable[[], float] = driver.timed(launches)
        self._again: LaunchSequence = None

    def run(self) -> float:
        """Runs the step and waits; returns the seconds of a run."""
        if not self._runs:
            seconds = self._timed()
            fitting = int(LEAST_SECONDS / max(seconds, 1e-9)) + 1
            self._runs = min(fitting, MOST_RUNS) if self._changed.is_repeatable else 1
            if self._runs > 1:
                self._timed = self._driver.timed([*self._launches] * self._runs)
                if self._changed.names:
                    self._again = self._driver.sequence(self._launches)
            return seconds
        changed = self._changed
        kept = [
            (self._buffers[name], self._saved.buffer(f"changed {number}", size), size)
            for number, (name, size) in enumerate(zip(changed.names, changed.bytes, strict=True))
            if self._runs > 1
        ]
        queue = self._driver.queue
        for buffer, copy, size in kept:
            queue.copy(copy, 0, buffer, size)
        seconds = self._timed() / self._runs
        for buffer, copy, size in kept:
            queue.copy(buffer, 0, copy, size)
        if kept:
            queue.run(self._again)
        return seconds
