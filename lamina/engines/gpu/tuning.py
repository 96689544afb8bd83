"""Tuning: schedules of a program's most expensive steps are timed on the device, the best is kept.

Each candidate is compiled as a program of its step alone, which has the same kernels, and runs on
memory of its own. Choices for steps, which programs share, and choices for whole programs are
kept on disk by device and driver. So a later process tunes nothing, and a program has the same
schedule in all processes.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any, TypeVar, final

import numpy as np

from lamina.base.cache import find, folder, keep, key_of
from lamina.base.shapes import as_dtype
from lamina.engines.engine import Candidate, TunedStep
from lamina.engines.gpu.arena import DeviceArena
from lamina.engines.gpu.driver import Driver, Module
from lamina.engines.gpu.executable import GpuProgram
from lamina.engines.gpu.family import Choices, Family, SingleSteps, with_memories
from lamina.engines.gpu.launches import Launches
from lamina.engines.gpu.memory import DeviceMemory
from lamina.errors import EngineError, LaminaError
from lamina.program.cost import cost_of
from lamina.program.encoding import checksum
from lamina.program.program import Program
from lamina.program.steps import reads_of, writes_of
from lamina.program.target import Target

# The seconds for a new program, unless LAMINA_TUNE is set. The model for GPUs was measured on one
# GPU only. The model for processors is the cpu engine's, which was measured at many sizes, and
# other choices save little on PoCL (docs/opencl.md). So processors tune only when asked to.
PROCESSOR_SECONDS, GPU_SECONDS = 0.0, 10.0
# Steps of one signature are tuned if they have at least this share of the program's expected time,
# and each takes at least as long as so many launches.
LEAST_SHARE, LEAST_LAUNCHES = 0.01, 4
# The operations that a device does while it moves a byte, for that estimate.
_OPERATIONS_PER_BYTE = 16
# The candidates of so many further steps are built while a step is timed.
STEPS_AHEAD = 2
# Another schedule is taken if it saves this share of the time: less may be noise.
LEAST_GAIN = 0.1
# A candidate that takes so many times as long as the fastest one is not timed again.
SLOW = 2.0
# A sample takes about so long, with at most so many runs, which are one sequence of launches: the
# time of the host's call is a small share of it. The fastest sample counts, because other processes
# may use the machine too. If all samples take longer than the last number together, no more are
# taken.
SAMPLE_SECONDS, MOST_RUNS, SAMPLES, ENOUGH_SECONDS = 0.002, 512, 25, 0.3
# Floats have magnitudes near 1, so that products of many neither vanish nor overflow. So many of
# them are drawn, and repeated.
_LEAST, _MOST, _DRAWN = 0.5, 1.5, 1 << 14

# Returns the seconds of a run. It is given the text of a schedule, a function that runs the step
# some times and waits, and this number.
Timer = Callable[[str, Callable[[], None], int], float]
Item = TypeVar("Item")
# Returns the kernels of a candidate, and their module.
Build = Callable[[], tuple[Launches, Module]]


def wanted_seconds() -> float | None:
    """The seconds for which a new program is tuned, by LAMINA_TUNE; None if it is not set.

    Raises:
        EngineError: if LAMINA_TUNE is not a number of seconds.
    """
    text = os.environ.get("LAMINA_TUNE", "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise EngineError(
            "LAMINA_TUNE is not a number of seconds",
            facts=(("expected", "a number of at least 0, such as 5"), ("found", repr(text))),
            advice="Unset LAMINA_TUNE for the default; LAMINA_TUNE=0 takes the cost model's "
            "schedules.",
        )
    return seconds


def seconds_of_run(schedule: str, repeat: Callable[[], None], runs: int) -> float:
    """The mean time of some runs."""
    started = time.perf_counter()
    repeat()
    return (time.perf_counter() - started) / runs


@final
class Tuner:
    """Chooses schedules of programs by their time on a device, which a timer measures."""

    def __init__(
        self, opened: Callable[[], Driver], family: Family, timer: Timer = seconds_of_run
    ) -> None:
        self._opened, self._family, self._timer = opened, family, timer
        self._driver = opened()

    def known_choices(self, program: Program) -> Choices:
        """The choices for a program that are on disk; the cost model's if there are none."""
        return self._known(program) or () if self._is_on() else ()

    def choices(self, program: Program) -> Choices:
        """The choices for a program. If there are none on disk, it is tuned for some seconds.

        Without a cache every process would tune again, and choose otherwise; so nothing is tuned.
        """
        if not self._is_on():
            return ()
        choices, seconds = self._known(program), wanted_seconds()
        if seconds is None:
            seconds = PROCESSOR_SECONDS if self._driver.traits.is_processor else GPU_SECONDS
        if choices is not None or not seconds:
            return choices or ()
        tried = self._tried(program, seconds)
        # Another process may have tuned it meanwhile: later ones read its choices.
        choices = self._known(program)
        if choices is None:
            choices = _choices_of(tried)
            self._keep("program", program, choices)
        return choices

    def _is_on(self) -> bool:
        is_off = wanted_seconds() == 0
        return not is_off and bool(self._family.sources.checksum) and folder() is not None

    def tune(self, program: Program) -> tuple[TunedStep, ...]:
        """Tunes a program, however long it takes, and replaces its choices on disk."""
        tuned = self._tried(program, math.inf)
        self._keep("program", program, _choices_of(tuned))
        return tuned

    def _tried(self, program: Program, seconds: float) -> tuple[TunedStep, ...]:
        """The considerable steps with several candidates. None is begun after some seconds."""
        deadline = time.monotonic() + seconds
        alone = SingleSteps(program)
        considerable = _considerable(program, alone, self._family.target)
        steps: list[TunedStep] = []
        with _building() as threads:
            begun = (self._begun(alone.program(number), threads) for number, *_ in considerable)
            ahead = 0 if self._driver.traits.is_processor else STEPS_AHEAD
            for numbers, tuned in zip(considerable, _ahead(begun, ahead), strict=False):
                if time.monotonic() >= deadline:
                    break
                candidates, chosen = tuned(deadline)
                if len(candidates) > 1:
                    steps.append(TunedStep(numbers, candidates, chosen))
        return tuple(steps)

    # Entries on disk

    def _known(self, program: Program) -> Choices | None:
        entry = self._found("program", program)
        return None if entry is None else tuple((number, chosen) for number, chosen in entry)

    def _found(self, kind: str, program: Program) -> Any:
        entry = find(self._key(kind, program)) if self._family.sources.checksum else None
        return None if entry is None else json.loads(entry)

    def _keep(self, kind: str, program: Program, content: object) -> None:
        if self._family.sources.checksum and self._family.sources.are_unchanged:
            keep(self._key(kind, program), json.dumps(content).encode())

    def _key(self, kind: str, program: Program) -> str:
        family, record = self._family, self._driver.record
        device = (record.platform, record.name, record.driver, record.version, record.description)
        inputs = (f"tuned {kind}", checksum(program), family.key, family.sources.checksum)
        return key_of((*inputs, *device))

    # A step

    def _begun(
        self, program: Program, threads: ThreadPoolExecutor
    ) -> Callable[[float], tuple[tuple[Candidate, ...], int]]:
        """A function of a deadline that tunes the only step of a program.

        It returns the candidates, and the number of the chosen one.
        """
        entry = self._found("step", program)
        if entry is not None:
            rows, number = entry
            return lambda deadline: (tuple(Candidate(*row) for row in rows), number)
        trials = Trials(program, self._family, self._opened, threads)

        def tuned(deadline: float) -> tuple[tuple[Candidate, ...], int]:
            candidates, complete = trials.timed(self._timer, deadline)
            chosen = _best(candidates)
            if complete:
                self._keep("step", program, ([astuple(each) for each in candidates], chosen))
            return candidates, chosen

        return tuned


def _ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Items, each after `count` further ones have been made."""
    made: deque[Item] = deque()
    for item in items:
        made.append(item)
        if len(made) > count:
            yield made.popleft()
    yield from made


def _best(candidates: Sequence[Candidate]) -> int:
    """The number of the fastest candidate, or of the first one if that is hardly slower."""
    seconds = [math.inf if one.seconds is None else one.seconds for one in candidates]
    fastest = min(seconds)
    first_is_fine = math.isinf(fastest) or fastest > (1 - LEAST_GAIN) * seconds[0]
    return 0 if first_is_fine else seconds.index(fastest)


def _choices_of(tuned: Iterable[TunedStep]) -> Choices:
    return tuple((number, step.chosen) for step in tuned if step.chosen for number in step.steps)


def _considerable(program: Program, alone: SingleSteps, target: Target) -> list[tuple[int, ...]]:
    """Groups of equal steps of `LEAST_SHARE` of the time, not mostly launches, longest first."""
    equal: dict[object, list[int]] = defaultdict(list)
    # The bytes that take as long to move as a step.
    bytes_: dict[object, float] = defaultdict(float)
    worth: set[object] = set()
    for number, step in enumerate(program.steps):
        if number < program.prepared:
            # Most runs omit it.
            continue
        repeat = program.repeated(number)
        cost = cost_of(step, program.buffers, repeat.axis if repeat is not None else None)
        moved = max(cost.operations / _OPERATIONS_PER_BYTE, cost.bytes)
        launched = target.launch_bytes * (repeat.axis.extent if repeat is not None else 1)
        key = launched, alone.key(number)
        equal[key].append(number)
        bytes_[key] += moved + launched
        if moved >= LEAST_LAUNCHES * launched:
            worth.add(key)
    least = LEAST_SHARE * sum(bytes_.values())
    keys = [key for key in worth if bytes_[key] >= least]
    keys.sort(key=lambda key: (-bytes_[key], equal[key]))
    return [tuple(equal[key]) for key in keys]


# Trials of candidates, with memory of their own


@contextmanager
def _building() -> Generator[ThreadPoolExecutor]:
    """Threads that build candidates; those that nobody needs any more are not begun."""
    with ThreadPoolExecutor() as threads:
        try:
            yield threads
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


@final
class Trials:
    """Candidates for the only step of a program; threads begin to build them.

    GPUs wait for compilers of the host, which has several cores. Those of processors would slow
    down what is timed meanwhile.
    """

    def __init__(
        self,
        program: Program,
        family: Family,
        opened: Callable[[], Driver],
        threads: ThreadPoolExecutor,
    ) -> None:
        self._program, self._family, self._opened = program, family, opened
        self._driver = opened()
        self._schedules = family.candidates(program)
        self._texts = [family.text_of_candidate(schedule) for schedule in self._schedules]
        several = self._schedules if len(self._schedules) > 1 else ()
        self._builds = [self._build(schedule, threads) for schedule in several]
        self._executables: dict[int, GpuProgram] = {}
        # Of the candidates that have run, and of those that have failed.
        self._seconds: dict[int, float] = {}
        self._problems: dict[int, str] = {}

    def _build(self, schedule: Any, threads: ThreadPoolExecutor) -> Build:
        def written() -> Launches:
            return self._family.write(
                self._program, self._family.decide(self._program, {0: schedule})
            )

        def later() -> tuple[Launches, Module]:
            launches = written()
            return launches, self._driver.build(launches.text)

        if self._driver.traits.is_processor:
            return later
        try:
            launches = written()
        except LaminaError:
            # It is raised again.
            return later
        module = threads.submit(self._driver.build, launches.text)
        return lambda: (launches, module.result())

    def timed(self, timer: Timer, deadline: float) -> tuple[tuple[Candidate, ...], bool]:
        """The times of all candidates, and whether all were begun before the deadline.

        Candidates that fail have no time, and neither have those that were not begun.
        """
        texts, complete = self._texts, True
        expected: Sequence[float | None] = [None] * len(texts)
        if self._builds:
            try:
                with _memories(self._program, self._driver) as memories:
                    complete = self._run(memories, timer, deadline)
            except EngineError as error:
                # The memory of the step itself does not fit.
                return tuple(Candidate(text, None, error.problem) for text in texts), False
            expected = self._family.expected_seconds(self._program, self._schedules)
        seconds, problems = self._seconds, self._problems
        candidates = (
            Candidate(text, seconds.get(number), problems.get(number, ""), modelled)
            for number, (text, modelled) in enumerate(zip(texts, expected, strict=True))
        )
        return tuple(candidates), complete

    def _run(self, memories: Mapping[str, DeviceMemory], timer: Timer, deadline: float) -> bool:
        """Begins candidates until the deadline; returns whether all were begun."""
        (step,) = self._program.steps
        changing = [memories[name] for name in reads_of(step) & writes_of(step)]
        bound, arena = with_memories(self._program), DeviceArena(self._opened)

        def sample(number: int, runs: int) -> None:
            for memory in changing:
                _fill(memory)
            seconds = timer(self._texts[number], self._executables[number].together(runs), runs)
            self._seconds[number] = min(seconds, self._seconds.get(number, seconds))

        try:
            begun = 0
            while begun < len(self._builds) and time.monotonic() < deadline:
                try:
                    launches, module = self._builds[begun]()
                    executable = GpuProgram(bound, launches, memories, arena, module=module)
                    self._executables[begun] = executable
                    # Many drivers compile at the first launch.
                    executable.together(1)()
                    for _ in range(2):
                        sample(begun, 1)
                except LaminaError as error:
                    self._seconds.pop(begun, None)
                    self._problems[begun] = error.problem
                begun += 1
            self._compare(sample)
        finally:
            while self._executables:
                self._executables.popitem()[1].release()
        return begun == len(self._builds)

    def _compare(self, sample: Callable[[int, int], None]) -> None:
        """Times the fast candidates alternately: a busy machine slows down all of them."""
        fastest, end = min(self._seconds.values(), default=0.0), time.monotonic() + ENOUGH_SECONDS
        fast = [number for number, seconds in self._seconds.items() if seconds <= SLOW * fastest]
        for _ in range(SAMPLES):
            if len(fast) < 2 or time.monotonic() > end:
                return
            for number in fast:
                # A power of two, so that few samples need another sequence of launches.
                fitting = int(SAMPLE_SECONDS / max(self._seconds[number], 1e-9))
                sample(number, min(1 << max(fitting.bit_length() - 1, 0), MOST_RUNS))


@contextmanager
def _memories(program: Program, driver: Driver) -> Generator[Mapping[str, DeviceMemory]]:
    """Filled memories of a program's buffers; they are released at the end."""
    memories: dict[str, DeviceMemory] = {}
    try:
        for name, buffer in program.buffers.items():
            memories[name] = DeviceMemory(driver, buffer.shape, buffer.dtype.numpy)
            _fill(memories[name])
        yield memories
    finally:
        while memories:
            memories.popitem()[1].release()


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
