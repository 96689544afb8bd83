"""The engine of a device that runs kernels, for any driver."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from lamina.base.shapes import Array, DType, as_dtype, float64
from lamina.engines.engine import (
    Arena,
    Changes,
    Device,
    Engine,
    Executable,
    Grouping,
    Members,
    Memory,
    Peaks,
    TunedStep,
)
from lamina.engines.gpu.arena import DeviceArena, device_arena
from lamina.engines.gpu.driver import Driver
from lamina.engines.gpu.executable import GpuProgram, needs_of
from lamina.engines.gpu.family import Choices, Family, compile_program, forced_by
from lamina.engines.gpu.finite import finite_check
from lamina.engines.gpu.launches import Launches
from lamina.engines.gpu.members import GpuMembers
from lamina.engines.gpu.memory import DeviceMemory, SharedBlock, device_memory
from lamina.engines.gpu.transfers import DeviceStaging
from lamina.engines.gpu.tuning import Tuner
from lamina.engines.room import Need
from lamina.errors import EngineError
from lamina.program.program import Program
from lamina.program.scalar import postorder
from lamina.program.steps import scalars_of
from lamina.program.target import Target


@final
class GpuEngine(Engine):
    """Compiles programs for a device.

    Args:
        language: the name of its kernels' language in listings, `"opencl"`.
        opened: a function that returns the device's driver, always the same one. A copy of the
            engine, in another process too, calls it again.
        family_for: a function that returns the family of kernels that suits a driver's device.
    """

    def __init__(
        self, language: str, opened: Callable[[], Driver], family_for: Callable[[Driver], Family]
    ) -> None:
        self._language, self._opened, self._family_for = language, opened, family_for
        self._driver = opened()
        self.family = family_for(self._driver)
        self._changes = Changes()
        # The program whose kernels were written last, with the choices, and the kernels: they are
        # written before memory is allocated, and used when the program is compiled.
        self._last: tuple[weakref.ref[Program], Choices, Launches] | None = None
        self._tuner = Tuner(opened, self.family)

    def __reduce__(self) -> tuple[type[GpuEngine], tuple[object, ...]]:
        # The machine that unpickles it may have other devices.
        return GpuEngine, (self._language, self._opened, self._family_for)

    @property
    def device(self) -> Device:
        return self._driver.record

    @property
    def target(self) -> Target:
        return self.family.target

    def available_bytes(self) -> int:
        return self._driver.available_bytes()

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], members: int | None = None
    ) -> DeviceMemory:
        self._require_dtypes([as_dtype(dtype)])
        return DeviceMemory(self._driver, shape, dtype, self._changes, members=members)

    def shared(self, array: Array) -> DeviceMemory | None:
        self._require_dtypes([as_dtype(array.dtype)])
        block = None
        if array.nbytes:
            with self._driver.errors("sharing memory"):
                buffer = self._driver.shared_buffer(array)
            if buffer is None:
                return None
            block = SharedBlock(self._driver, array, buffer)
        return DeviceMemory(self._driver, array.shape, array.dtype, shared=block)

    def staging(self, sizes: Mapping[str, int]) -> DeviceStaging:
        return DeviceStaging(self._driver, sizes)

    def finite_check(self, memories: Sequence[Memory]) -> Callable[[], bool]:
        return finite_check(self._driver, [device_memory(one, self._driver) for one in memories])

    def arena(self) -> DeviceArena:
        return DeviceArena(self._opened)

    def compile(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        arena: Arena | None = None,
        *,
        timed: bool = False,
        schedule: Any = None,
        members: Members | None = None,
    ) -> GpuProgram | GpuMembers:
        own_arena = device_arena(arena, self._opened)
        self._require_dtypes(_dtypes_of(program))
        if members is not None:

            def compiled(members: Members, memories: Mapping[str, Memory]) -> Executable:
                whole = members.program(program, members.count, self.target)
                return self.compile(whole, memories, own_arena, timed=timed)

            return GpuMembers(program, memories, members, self._driver, compiled)
        choices = self._tuner.choices(program) if schedule is None else ()
        launches = self._launches(program, schedule, choices, separate=timed)
        return GpuProgram(program, launches, memories, own_arena, timed=timed)

    def tune(self, program: Program) -> tuple[TunedStep, ...]:
        self._require_dtypes(_dtypes_of(program))
        return self._tuner.tune(program)

    def _known_launches(self, program: Program) -> Launches:
        """The kernels of a program as it is run now; it is not tuned for that."""
        self._require_dtypes(_dtypes_of(program))
        return self._launches(program, None, self._tuner.known_choices(program))

    def _launches(
        self, program: Program, schedule: Any, choices: Choices, *, separate: bool = False
    ) -> Launches:
        last = self._last
        is_kept = schedule is None and not separate
        if is_kept and last is not None and last[0]() is program and last[1] == choices:
            return last[2]
        try:
            launches = compile_program(program, self.family, schedule, choices, separate=separate)
        except EngineError as error:
            raise error.at(self.device.engine) from error.__cause__
        if is_kept:
            self._last = weakref.ref(program), choices, launches
        return launches

    def _require_dtypes(self, dtypes: Iterable[DType]) -> None:
        if not self._driver.traits.has_float64 and float64 in dtypes:
            device = self.device.description
            raise EngineError(
                "this device cannot compute with float64",
                facts=(("expected", "float32, or a device that has float64"), ("found", device)),
                where=self.device.engine,
                advice="Make the model with dtype='float32', or use the cpu engine.",
            )

    @property
    def languages(self) -> tuple[str, ...]:
        return ("program", "schedule", self._language)

    def listing(self, program: Program, step: int | None, language: str) -> str:
        if language == "program":
            return str(program) if step is None else str(program.steps[step])
        if language == "schedule":
            schedule = self._schedule(program)
            return str(schedule) if step is None else self.family.text_of_step(schedule, step)
        launches = self._known_launches(program)
        if step is not None:
            step = self.family.step_that_runs(self._schedule(program), step)
        functions = _functions(launches.text) if step is not None else {}
        lines: list[str] = []
        shown: set[str] = set()
        for launch in (*launches.load, *launches.launches):
            if launch.product is not None:
                if step in (None, launch.step):
                    used = ", ".join(filter(None, launch.buffers))
                    lines.append(f"// step {launch.step}: the library's {launch.product}: {used}")
                continue
            for call in launch.calls or (launch,):
                if step not in (None, call.step):
                    continue
                used = f"{call.kernel}({', '.join(call.buffers)})"
                items = f"{call.items} work item{'s' * (call.items != 1)}"
                lines.append(f"// step {call.step}: {used}, {items}")
                if step is None:
                    continue
                # Equal steps share their functions.
                names = [name for name in _called(functions, call.kernel) if name not in shown]
                lines += (functions[name] for name in names)
                shown.update(names)
        if step is None:
            lines.append(launches.text)
        return "\n".join(lines)

    def _schedule(self, program: Program) -> Any:
        """The schedule with which a program is run now."""
        forced = forced_by(program, self.family, self._tuner.known_choices(program))
        return self.family.decide(program, forced)

    def grouping(self, program: Program, members: Members) -> Grouping:
        return Grouping(members.program(program, members.count, self.target), members.count)

    def needs(self, program: Program, members: Members | None = None) -> tuple[Need, ...]:
        if members is not None:
            program = self.grouping(program, members).program
        return needs_of(program, self._known_launches(program), self._driver.traits)

    def workspace_bytes(self, program: Program) -> int:
        return self._known_launches(program).workspace_bytes

    def launch_count(self, program: Program) -> int:
        """The number of kernel launches in a run of a program."""
        return self._known_launches(program).launch_count

    def peaks(self, dtype: DType, *, tf32: bool = False) -> Peaks:
        self._require_dtypes([dtype])
        # Imported only here: only measurements need it.
        from lamina.engines.gpu.peaks import measured_peaks

        return measured_peaks(self._driver, dtype, tf32=tf32)


def _dtypes_of(program: Program) -> Iterator[DType]:
    yield from (buffer.dtype for buffer in program.buffers.values())
    for step in program.steps:
        yield from (scalar.dtype for scalar in postorder(*scalars_of(step)))


def _functions(text: str) -> dict[str, str]:
    written = re.findall(r"^\w[^\n]*\{\n.*?^\}", text, re.MULTILINE | re.DOTALL)
    # A name is followed by the parameters, the last parentheses before the body. The head of a text
    # may have structures, too.
    named = ((re.findall(r"(\w+)\([^()]*\) \{", function), function) for function in written)
    return {names[0]: function for names, function in named if names}


def _called(functions: Mapping[str, str], kernel: str) -> Iterator[str]:
    """The names of a kernel and of the functions that it calls, directly or not."""
    left, seen = [kernel], set[str]()
    while left:
        name = left.pop()
        if name in functions and name not in seen:
            seen.add(name)
            yield name
            left += re.findall(r"(\w+)\(", functions[name].partition("{")[2])
