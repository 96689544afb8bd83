"""The interpreter engine: programs run step by step in NumPy, over the planned arena.

It specifies the meaning of programs, and needs only NumPy.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from lamina.base.shapes import Array
from lamina.base.shielded import shielded
from lamina.engines import DEFAULT_TARGET, machine_memory
from lamina.engines.engine import Arena, Device, Executable, Members, Memory
from lamina.engines.host import HostArena, HostEngine, host_arena, host_array
from lamina.engines.interpreter.run import Adversary, Iteration, run_step
from lamina.program.parallel import parallel_axes
from lamina.program.program import Program
from lamina.program.target import Target

# A byte that makes NaN of floats and absurd numbers of integers.
POISON = 0xFF


@final
class InterpreterEngine(HostEngine):
    """Runs programs in NumPy.

    Args:
        poison: whether to expose faults of a program. The arena is filled with NaN before every
            run, which exposes reads of unwritten memory. The points of steps are run in an
            adversarial order, which exposes points that depend on each other. A run takes several
            times as long; a program that keeps the rules gives the same bits.
        target: the target of programs compiled for it; it can run programs for any target.
    """

    def __init__(self, *, poison: bool = False, target: Target = DEFAULT_TARGET) -> None:
        self._poison = poison
        self._target = target

    @property
    def device(self) -> Device:
        return Device(
            "interpreter",
            f"NumPy {np.__version__} on {platform.machine()}",
            machine_memory.physical_bytes(),
            name=platform.machine(),
            version=f"NumPy {np.__version__}",
            compute_units=1,
            has_bfloat16=True,
            has_float16=True,
            has_float64=True,
            shares_memory=True,
        )

    @property
    def target(self) -> Target:
        return self._target

    def compile(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        arena: Arena | None = None,
        *,
        timed: bool = False,
        schedule: Any = None,
        members: Members | None = None,
    ) -> InterpretedProgram:
        arena = host_arena(arena)
        return InterpretedProgram(program, memories, arena, members, poison=self._poison)

    @property
    def languages(self) -> tuple[str, ...]:
        return ("program",)

    def listing(self, program: Program, step: int | None, language: str) -> str:
        # The interpreter runs the program itself, and generates nothing.
        return str(program) if step is None else str(program.steps[step])


@final
class InterpretedProgram(Executable):
    """A program with its share of an arena in the computer's memory."""

    synchronous = True

    def __init__(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        arena: HostArena,
        members: Members | None = None,
        *,
        poison: bool,
    ) -> None:
        self._program, self._members = program, members
        self._active = range(0 if members is None else members.count)
        self._poison = poison
        # The axes along which workers of each step may be split; not needed if points run in order.
        steps = range(len(program.steps)) if poison else ()
        self._parallel = [parallel_axes(program, number) for number in steps]
        # The steps in the order in which they run, each with the iteration of its recurrence.
        self._order: list[tuple[int, Iteration]] = []
        for number in range(len(program.steps)):
            repeat = program.repeated(number)
            if repeat is None:
                self._order.append((number, {}))
            elif number == repeat.first:
                for iteration in range(repeat.axis.extent):
                    inner = range(repeat.first, repeat.last)
                    self._order += ((repeated, {repeat.axis: iteration}) for repeated in inner)
        self._memories = memories
        self._inputs = program.of_kind("input")
        self._outputs = {name: program.buffers[buffer] for name, buffer in program.outputs}
        self._arrays: dict[str, Array] = {
            name: np.ravel(value) for name, value in program.constants.items()
        }
        self._seconds = np.zeros(len(program.steps))
        self._arena = arena
        arena.enter(self, program.plan.arena_bytes)

    def move_to(self, block: Array) -> None:
        self._block = block
        for name, start in self._program.plan.positions().items():
            buffer = self._program.buffers[name]
            self._arrays[name] = block[start : start + buffer.bytes].view(buffer.dtype.numpy)
        self._last: dict[str, Array] = {}

    def run(self, inputs: Sequence[Array]) -> None:
        # An interrupted run would leave some parameters new and others old.
        shielded(lambda: self._run(inputs))

    def activate(self, members: Array) -> None:
        self._active = members.tolist()

    def _run(self, inputs: Sequence[Array]) -> None:
        members = self._members
        if members is None:
            self._last = self._computed(inputs, self._memories)
            return
        # The members run one after the other.
        self._last = {
            name: np.zeros(self._recorded_shape(name), buffer.dtype.numpy)
            for name, buffer in self._outputs.items()
        }
        for number in self._active:
            own = [array[number] for array in inputs] if members.own_inputs else inputs
            memories = {name: memory.member(number) for name, memory in self._memories.items()}
            computed = self._computed(own, memories)
            for name, array in computed.items():
                self._last[name][number] = array

    def _computed(
        self, inputs: Sequence[Array], memories: Mapping[str, Memory]
    ) -> dict[str, Array]:
        """Runs the program; its outputs stay in the arena."""
        generator = None
        if self._poison:
            self._block.fill(POISON)
            generator = np.random.default_rng(0)
        flat = dict(self._arrays)
        for buffer, array in zip(self._inputs, inputs, strict=True):
            flat[buffer.name] = array.reshape(-1)
        for kind in ("parameter", "state"):
            for buffer in self._program.of_kind(kind):
                flat[buffer.name] = host_array(memories[buffer.name]).reshape(-1)
        for number, iteration in self._order:
            adversary = None if generator is None else Adversary(generator, self._parallel[number])
            started = time.perf_counter()
            run_step(self._program.steps[number], flat, iteration, adversary)
            self._seconds[number] += time.perf_counter() - started
        return {name: flat[b.name].reshape(b.shape) for name, b in self._outputs.items()}

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        kept = {
            name: np.zeros((rows.shape[-2], *self._recorded_shape(name)), buffer.dtype.numpy)
            for name, buffer in self._outputs.items()
            if name in recorded
        }
        for number, examples in enumerate(np.moveaxis(rows, -2, 0)):
            self.run([host_array(resident[b.name])[examples] for b in self._inputs])
            for name, values in kept.items():
                values[number] = self._last[name]
        # The axis of runs comes after that of members.
        axis = 0 if self._members is None else 1
        return {name: np.moveaxis(values, 0, axis) for name, values in kept.items()}

    def _recorded_shape(self, name: str) -> tuple[int, ...]:
        members = () if self._members is None else (self._members.count,)
        return (*members, *self._outputs[name].shape)

    def output(self, name: str) -> Array:
        return self._last[name].copy()

    def step_seconds(self) -> Array:
        seconds, self._seconds = self._seconds, np.zeros(len(self._program.steps))
        return seconds

    def release(self) -> None:
        self._arena.leave(self)
        self._arrays, self._last, self._block = {}, {}, np.zeros(0, np.uint8)
        self._memories: Mapping[str, Memory] = {}
