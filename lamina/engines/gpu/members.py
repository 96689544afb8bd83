"""A program for the members of a population: one more axis, so that a launch is for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from lamina.base.shapes import Array
from lamina.engines.engine import Executable, Members, Memory
from lamina.engines.gpu.driver import Driver
from lamina.engines.gpu.memory import DeviceMemory, device_memory
from lamina.program.program import Program


@final
class GpuMembers(Executable):
    """Programs of as many members as are active, or a few more.

    If not all are active, the values of those that are lie in memory of their own during a run.
    There is a program for each power of two of members, so few are compiled.

    Args:
        program: the program of one member.
        memories: the memories of its parameters and states, with a first axis of members.
        compiled: compiles the program of some members on memories.
    """

    synchronous = False

    def __init__(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        members: Members,
        driver: Driver,
        compiled: Callable[[Members, Mapping[str, Memory]], Executable],
    ) -> None:
        self._members, self._driver, self._compiled = members, driver, compiled
        self._shapes = {name: program.buffers[buffer].shape for name, buffer in program.outputs}
        self._inputs = len(program.of_kind("input"))
        self._memories = {
            buffer.name: device_memory(memories[buffer.name], driver)
            for kind in ("parameter", "state")
            for buffer in program.of_kind(kind)
        }
        self._programs: dict[int, tuple[Executable, Mapping[str, DeviceMemory]]] = {
            members.count: (compiled(members, self._memories), self._memories)
        }
        self._last: dict[str, Array] = {}
        self.activate(np.arange(members.count))

    def activate(self, members: Array) -> None:
        self._active = members

    def _chosen(self) -> tuple[Executable, Mapping[str, DeviceMemory], Array]:
        """The program for the active members, its memories, and the members in these."""
        count = self._members.count
        if len(self._active) == count:
            return *self._programs[count], self._active
        size = min(1 << (len(self._active) - 1).bit_length(), count)
        if size == count:
            # The others are computed too, and forgotten.
            missing = np.setdiff1d(np.arange(count), self._active)
            return *self._on_copies(size), np.concatenate([self._active, missing])
        missing = self._active[-1:].repeat(size - len(self._active))
        return *self._on_copies(size), np.concatenate([self._active, missing])

    def _on_copies(self, size: int) -> tuple[Executable, Mapping[str, DeviceMemory]]:
        key = -size if size == self._members.count else size
        if key not in self._programs:
            copies = {
                name: DeviceMemory(
                    self._driver, memory.shape[1:], memory.dtype, memory.changes, None, size
                )
                for name, memory in self._memories.items()
            }
            members = replace(self._members, count=size)
            self._programs[key] = self._compiled(members, copies), copies
        return self._programs[key]

    def _run_active(self, run: Callable[[Executable, Array], dict[str, Array]]) -> dict[str, Array]:
        """Outputs of the active members, at their places in arrays of all."""
        executable, memories, numbers = self._chosen()
        is_copied = memories is not self._memories
        if is_copied:
            for name, copy in memories.items():
                copy.write(self._memories[name].read()[numbers])
        outputs = run(executable, numbers)
        active = self._active
        if is_copied:
            for name, copy in memories.items():
                values = self._memories[name].read()
                values[active] = copy.read()[: len(active)]
                self._memories[name].write(values)
        count, results = self._members.count, dict[str, Array]()
        for name, values in outputs.items():
            results[name] = np.zeros((count, *values.shape[1:]), values.dtype)
            results[name][active] = values[: len(active)]
        return results

    def run(self, inputs: Sequence[Array]) -> None:
        own = self._members.own_inputs

        def run(executable: Executable, numbers: Array) -> dict[str, Array]:
            arrays = [array[numbers] if own else array for array in inputs]
            executable.run(
                [array.reshape(-1, *array.shape[2:]) if own else array for array in arrays]
            )
            return {name: self._of_all(executable.output(name), name, 0) for name in self._shapes}

        self._last = self._run_active(run)

    def _of_all(self, values: Array, name: str, axis: int) -> Array:
        """Outputs of each member; some outputs are equal for all."""
        if values.ndim - axis > len(self._shapes[name]):
            return np.moveaxis(values, axis, 0)
        return np.broadcast_to(values, (self._members.count, *values.shape))

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        def run(executable: Executable, numbers: Array) -> dict[str, Array]:
            examples = rows
            if self._members.own_inputs:
                runs = rows.shape[1]
                examples = rows[numbers].transpose(1, 0, 2).reshape(runs, -1)
            outputs = executable.run_many(resident, np.ascontiguousarray(examples), recorded)
            return {name: self._of_all(values, name, 1) for name, values in outputs.items()}

        return self._run_active(run)

    def output(self, name: str) -> Array:
        return self._last[name]

    def step_seconds(self) -> Array:
        executable, _, _ = self._chosen()
        return executable.step_seconds()

    def release(self) -> None:
        for executable, memories in self._programs.values():
            executable.release()
            if memories is not self._memories:
                for memory in memories.values():
                    memory.release()
        self._programs = {}
