"""Runs of a program over a data set: the examples of each run, and its recorded outputs.

A device that replays launches counts the runs itself: the number of the run is in its memory, so
that all runs are the same launches, and the host does one call for each. On other devices the host
passes the number to each kernel. Results are kept in memory that later runs do not overwrite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, size_of
from lamina.engines.gpu.driver import Buffer, Driver, Kernel, LaunchSequence, Module
from lamina.engines.gpu.launches import Launches
from lamina.engines.gpu.memory import DeviceMemory, read_buffer, write_buffer
from lamina.program.program import Buffer as Output

# The scalars that are kept in one allocation.
_SCALARS = 256


@frozen_dataclass
class DataSet:
    """What runs over a data set read and write, besides the program's buffers.

    The examples are by the names of inputs, and their numbers in all runs are `rows`; None without
    examples. Each recorded output, by its name, has a buffer for its records.
    """

    examples: Mapping[str, Buffer]
    rows: Buffer
    records: Mapping[str, tuple[Buffer, Output]]


# Enqueues the run of a number.
Begin = Callable[[int], None]


@frozen_dataclass
class Runs:
    """Makes functions that begin the run of a number, of a program over a data set.

    `module` is the built text of `launches`; `buffers` are the program's buffers by name.
    """

    driver: Driver
    module: Module
    launches: Launches
    data: DataSet
    buffers: Mapping[str, Buffer]

    def numbered(self, program: Callable[[], None]) -> Begin:
        """Runs whose number the host passes to each kernel; `program` enqueues the program."""
        driver, data, buffers, gather = self.driver, self.data, self.buffers, self._gather()

        def begin(run: int) -> None:
            queue = driver.queue
            if gather is not None:
                queue.launch(gather, run)
            program()
            for record, output in data.records.values():
                size = output.bytes
                queue.copy(record, run * size, buffers[output.name], size)

        return begin

    def counted(
        self,
        counter: Buffer,
        program: Sequence[tuple[Kernel, int | None]] | None,
        timed: Callable[[], None],
    ) -> Begin:
        """Runs that the device counts, in a buffer.

        `program` has the launches of the program; None if its steps are timed, which `timed` does.
        """
        driver, gather, recorder = self.driver, self._gather(counter), self.launches.recorder
        assert recorder is not None
        buffers: list[Buffer] = []
        for name in recorder.outputs:
            record, output = self.data.records.get(name, (None, None))
            buffers += (record, None if output is None else self.buffers[output.name])
        items = max((recorder.outputs[name] for name in self.data.records), default=1)
        arguments = (*buffers, counter)
        kernel = driver.kernel(self.module, recorder.kernel, arguments, items, numbered=False)
        gathers = [(gather, None)] if gather is not None else []
        records = [(kernel, None)]
        rows = [[*gathers, *program, *records]] if program is not None else [gathers, records]
        sequences: list[LaunchSequence] = [driver.sequence(row) for row in rows]

        def begin(run: int) -> None:
            driver.queue.run(sequences[0])
            for following in sequences[1:]:
                timed()
                driver.queue.run(following)

        return begin

    def _gather(self, counter: Buffer = None) -> Kernel | None:
        """The kernel that gathers a run's inputs; a launch passes its number without a counter."""
        gather, data = self.launches.gather, self.data
        if data.rows is None or gather is None:
            return None
        buffers: list[Buffer] = []
        for name in gather.inputs:
            buffers += (data.examples[name], self.buffers[gather.rounded_buffers.get(name, name)])
        arguments = (*buffers, data.rows, *(() if counter is None else (counter,)))
        numbered = counter is None
        kernel = gather.kernel
        return self.driver.kernel(self.module, kernel, arguments, gather.items, numbered=numbered)


@final
class Recording:
    """The examples and the recorded outputs of runs over a data set.

    Memory is kept for the next runs, and replaced if they need more: allocating it waits for the
    device.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._memories: dict[str, DeviceMemory] = {}

    def write(self, name: str, array: Array) -> Buffer:
        """A buffer that begins with an array; None if the array has no elements."""
        buffer = self.buffer(name, array.nbytes)
        write_buffer(self._driver, buffer, array)
        return buffer

    def buffer(self, name: str, size: int) -> Buffer:
        """The buffer of a name, of at least `size` bytes; None if `size` is 0.

        It is allocated if it is missing or too small; then its old contents are lost.
        """
        if not size:
            return None
        memory = self._memories.get(name)
        if memory is None or memory.bytes < size:
            if memory is not None:
                del self._memories[name]
                memory.release()
            memory = DeviceMemory(self._driver, (size,), np.dtype(np.uint8))
            self._memories[name] = memory
        return memory.buffer

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy of the array at the beginning of a buffer."""
        buffer = self.buffer(name, size_of(shape) * dtype.itemsize)
        return read_buffer(self._driver, buffer, shape, dtype)

    def release(self) -> None:
        while self._memories:
            self._memories.popitem()[1].release()


@final
class KeptScalars:
    """Copies of scalars, made on the device without waiting for it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._used = _SCALARS
        self._memory: DeviceMemory

    def keep(self, buffer: Buffer, dtype: np.dtype[Any]) -> Callable[[], float]:
        """A function that waits for the device and returns the value that a buffer has now.

        The function keeps the memory of its copy.
        """
        if self._used == _SCALARS:
            self._memory = DeviceMemory(self._driver, (_SCALARS,), np.dtype(np.float64))
            self._used = 0
        memory, offset = self._memory, self._used * np.dtype(np.float64).itemsize
        self._driver.queue.copy(memory.buffer, offset, buffer, dtype.itemsize)
        self._used += 1
        return lambda: memory.read().view(np.uint8)[offset:].view(dtype)[0].item()
