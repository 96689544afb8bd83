"""Candidates for the schedule of a step, run on the device with memory of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from lamina.base.shapes import as_dtype
from lamina.engines.engine import Candidate
from lamina.engines.gpu.arena import DeviceArena
from lamina.engines.gpu.driver import Driver
from lamina.engines.gpu.executable import GpuProgram
from lamina.engines.gpu.family import Family
from lamina.engines.gpu.memory import DeviceMemory
from lamina.engines.gpu.single_steps import with_memories
from lamina.errors import EngineError, LaminaError
from lamina.program.program import Program
from lamina.program.steps import reads_of, writes_of

# A candidate that takes so many times as long as the fastest one is not timed again.
SLOW = 2.0
# A sample takes about so long, with at most so many runs. The fastest sample counts, because other
# processes may use the machine too. If all samples take longer than the last number together, no
# more are taken.
SAMPLE_SECONDS, MOST_RUNS, SAMPLES, ENOUGH_SECONDS = 0.002, 100, 25, 0.3
# Floats have magnitudes near 1, so that products of many neither vanish nor overflow. So many of
# them are drawn, and repeated.
_LEAST, _MOST, _DRAWN = 0.5, 1.5, 1 << 14

# Returns the seconds of a run. It is given the text of a schedule, a function that runs the step
# some times and waits, and this number.
Timer = Callable[[str, Callable[[int], None], int], float]


def seconds_of_run(schedule: str, repeat: Callable[[int], None], runs: int) -> float:
    """The mean time of some runs."""
    started = time.perf_counter()
    repeat(runs)
    return (time.perf_counter() - started) / runs


def timed_candidates(
    program: Program, family: Family, opened: Callable[[], Driver], timer: Timer, deadline: float
) -> tuple[tuple[Candidate, ...], bool]:
    """The times of all candidates, and whether all were begun before the deadline.

    Candidates that fail have no time, and neither have those that were not begun.

    Args:
        program: of one step.
        family: decides and writes the kernels.
        opened: returns the driver of the device.
        timer: measures them.
        deadline: on the clock `time.monotonic`.
    """
    schedules = family.candidates(program)
    texts = [family.text_of_candidate(one) for one in schedules]
    if len(schedules) < 2:
        return tuple(Candidate(text, None) for text in texts), True
    try:
        with _memories(program, opened()) as memories:
            trials = _Trials(program, family, opened, timer, memories)
            try:
                complete = trials.run(schedules, texts, deadline)
            finally:
                trials.release()
    except EngineError as error:
        # The memory of the step itself does not fit.
        return tuple(Candidate(text, None, error.problem) for text in texts), False
    found = zip(range(len(texts)), texts, strict=True)
    return (
        tuple(
            Candidate(text, trials.seconds.get(number), trials.problems.get(number, ""))
            for number, text in found
        ),
        complete,
    )


@final
class _Trials:
    """Runs of candidates on a device.

    Attributes:
        seconds: of a run, by the numbers of candidates.
        problems: of those that fail.
    """

    def __init__(
        self,
        program: Program,
        family: Family,
        opened: Callable[[], Driver],
        timer: Timer,
        memories: Mapping[str, DeviceMemory],
    ) -> None:
        self._program, self._family, self._timer = program, family, timer
        self._memories, self._arena = memories, DeviceArena(opened)
        (step,) = program.steps
        self._changing = reads_of(step) & writes_of(step)
        self._executables: dict[int, GpuProgram] = {}
        self.seconds: dict[int, float] = {}
        self.problems: dict[int, str] = {}

    def run(self, schedules: Sequence[Any], texts: Sequence[str], deadline: float) -> bool:
        """Begins candidates until the deadline; returns whether all were begun."""
        begun = 0
        while begun < len(schedules) and time.monotonic() < deadline:
            try:
                self._begin(begun, schedules[begun])
                for _ in range(2):
                    self._sample(begun, texts[begun], 1)
            except LaminaError as error:
                self.seconds.pop(begun, None)
                self.problems[begun] = error.problem
            begun += 1
        self._compare(texts)
        return begun == len(schedules)

    def _compare(self, texts: Sequence[str]) -> None:
        """Times the fast candidates alternately: a busy machine slows down all of them."""
        fastest, end = min(self.seconds.values(), default=0.0), time.monotonic() + ENOUGH_SECONDS
        fast = {number: one for number, one in self.seconds.items() if one <= SLOW * fastest}
        for _ in range(SAMPLES):
            if len(fast) < 2 or time.monotonic() > end:
                return
            for number, seconds in fast.items():
                runs = int(SAMPLE_SECONDS / max(seconds, 1e-9))
                self._sample(number, texts[number], min(max(runs, 1), MOST_RUNS))

    def _begin(self, number: int, schedule: Any) -> None:
        """Compiles a candidate and runs it once: many drivers compile at the first launch."""
        decided = self._family.decide(self._program, {0: schedule})
        launches = self._family.write(self._program, decided)
        bound = with_memories(self._program)
        executable = GpuProgram(bound, launches, self._memories, self._arena)
        self._executables[number] = executable
        executable.repeat(1)

    def _sample(self, number: int, text: str, runs: int) -> None:
        for name in self._changing:
            _fill(self._memories[name])
        seconds = self._timer(text, self._executables[number].repeat, runs)
        self.seconds[number] = min(seconds, self.seconds.get(number, seconds))

    def release(self) -> None:
        """Releases everything but the memories."""
        while self._executables:
            self._executables.popitem()[1].release()


@contextmanager
def _memories(program: Program, driver: Driver) -> Generator[Mapping[str, DeviceMemory]]:
    """Filled memories of a program's buffers; they are released at the end."""
    found: dict[str, DeviceMemory] = {}
    try:
        for name, buffer in program.buffers.items():
            found[name] = DeviceMemory(driver, buffer.shape, buffer.dtype.numpy)
            _fill(found[name])
        yield found
    finally:
        while found:
            found.popitem()[1].release()


def _fill(memory: DeviceMemory) -> None:
    """Fills a memory of floats with random numbers. Other memories stay zero: valid indices."""
    if not memory.bytes or not as_dtype(memory.dtype).is_float:
        return
    generator = np.random.default_rng(0)
    count = min(memory.bytes // memory.dtype.itemsize, _DRAWN)
    signs = generator.choice((-1.0, 1.0), count)
    drawn = (generator.uniform(_LEAST, _MOST, count) * signs).astype(memory.dtype)
    driver, done = memory.driver, drawn.nbytes
    with driver.errors("writing memory"):
        driver.queue.write(memory.buffer, drawn)
        while done < memory.bytes:
            size = min(done, memory.bytes - done)
            driver.queue.copy(memory.buffer, done, memory.buffer, size)
            done += size
