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

    synchronous, has_members = False, True

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
        self._memories = {
            buffer.name: device_memory(memories[buffer.name], driver)
            for kind in ("parameter", "state")
            for buffer in program.of_kind(kind)
        }
        self._all = compiled(members, self._memories)
        # Programs on copies, by the members that these hold.
        self._of_some: dict[int, tuple[Executable, Mapping[str, DeviceMemory]]] = {}
        self._last: dict[str, Array] = {}
        self.activate(np.arange(members.count))

    def activate(self, members: Array) -> None:
        self._active = members

    def _on_copies(self, size: int) -> tuple[Executable, Mapping[str, DeviceMemory]]:
        if size not in self._of_some:
            copies = {
                name: DeviceMemory(
                    self._driver, memory.shape[1:], memory.dtype, memory.changes, None, size
                )
                for name, memory in self._memories.items()
            }
            self._of_some[size] = self._compiled(replace(self._members, count=size), copies), copies
        return self._of_some[size]

    def _run_active(self, run: Callable[[Executable, Array], dict[str, Array]]) -> dict[str, Array]:
        """Outputs of the active members, at their places in arrays of all."""
        active, count = self._active, self._members.count
        if len(active) == count:
            return run(self._all, active)
        size = min(1 << (len(active) - 1).bit_length(), count)
        executable, copies = self._on_copies(size)
        # Places that are left over compute the last member again.
        numbers = np.concatenate([active, active[-1:].repeat(size - len(active))])
        for name, copy in copies.items():
            copy.write(self._memories[name].read()[numbers])
        outputs = run(executable, numbers)
        for name, copy in copies.items():
            values = self._memories[name].read()
            values[active] = copy.read()[: len(active)]
            self._memories[name].write(values)
        results: dict[str, Array] = {}
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
            outputs = executable.run_many(resident, self._rows(rows, numbers), recorded)
            return {name: self._of_all(values, name, 1) for name, values in outputs.items()}

        return self._run_active(run)

    def begin_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> Callable[[], dict[str, Array]]:
        if len(self._active) < self._members.count:
            return super().begin_many(resident, rows, recorded)
        finish = self._all.begin_many(resident, self._rows(rows, self._active), recorded)
        return lambda: {n: self._of_all(values, n, 1) for n, values in finish().items()}

    def _rows(self, rows: Array, numbers: Array) -> Array:
        """The examples of each run: those of all of these members, if they have their own."""
        if self._members.own_inputs:
            rows = rows[numbers].transpose(1, 0, 2).reshape(rows.shape[1], -1)
        return np.ascontiguousarray(rows)

    def output(self, name: str) -> Array:
        return self._last[name]

    def step_seconds(self) -> Array:
        return self._all.step_seconds()

    def release(self) -> None:
        self._all.release()
        while self._of_some:
            _, (executable, copies) = self._of_some.popitem()
            executable.release()
            for memory in copies.values():
                memory.release()
