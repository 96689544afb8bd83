"""Runs of a program over a data set: the examples of each run, and its recorded outputs.

A device that replays launches counts the runs itself: the number of the run is in its memory, so
that all runs are the same launches, and the host does one call for each. On other devices the host
passes the number to each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.engines.gpu.driver import Buffer, Driver, Kernel, LaunchSequence, Module
from lamina.engines.gpu.launches import Launches
from lamina.engines.gpu.memory import DeviceMemory
from lamina.program.program import Buffer as Output


@frozen_dataclass
class DataSet:
    """What runs over a data set read and write, besides the program's buffers.

    Attributes:
        examples: the memory of each input's examples, by the input's name.
        rows: the numbers of the examples of all runs; None without examples.
        records: for each recorded output its buffer, and the output.
    """

    examples: Mapping[str, Buffer]
    rows: Buffer
    records: tuple[tuple[Buffer, Output], ...]


class Runs(Protocol):
    """Runs over a data set, in order."""

    def begin(self, run: int) -> None:
        """Enqueues a run."""
        ...


@final
class NumberedRuns:
    """Runs whose number the host passes to each kernel.

    Args:
        driver: of the device.
        data: that is read and written.
        buffers: of the program.
        gathers: the kernel of each gather, with the number of the run as its last argument.
        program: enqueues the program.
    """

    def __init__(
        self,
        driver: Driver,
        data: DataSet,
        buffers: Mapping[str, Buffer],
        gathers: Sequence[Kernel],
        program: Callable[[], None],
    ) -> None:
        self._driver, self._data, self._buffers = driver, data, buffers
        self._gathers, self._program = gathers, program

    def begin(self, run: int) -> None:
        queue = self._driver.queue
        for kernel in self._gathers:
            queue.launch(kernel, run)
        self._program()
        for record, output in self._data.records:
            size = output.bytes
            queue.copy(record, run * size, self._buffers[output.name], size)


@final
class CountedRuns:
    """Runs that the device counts.

    Args:
        driver: of the device.
        before, after: kernels before and after those of the program.
        program: the launches of the program; None if its steps are timed.
        timed: runs the program, and notes the times of its steps.
    """

    def __init__(
        self,
        driver: Driver,
        before: Sequence[Kernel],
        program: Sequence[tuple[Kernel, int | None]] | None,
        after: Sequence[Kernel],
        timed: Callable[[], None],
    ) -> None:
        self._driver, self._timed = driver, timed
        first, last = ([(kernel, None) for kernel in kernels] for kernels in (before, after))
        rows = [[*first, *program, *last]] if program is not None else [first, last]
        self._sequences: list[LaunchSequence] = [driver.sequence(row) for row in rows]

    def begin(self, run: int) -> None:
        queue = self._driver.queue
        queue.run(self._sequences[0])
        for following in self._sequences[1:]:
            self._timed()
            queue.run(following)


@final
class Counter:
    """The number of the run in the device's memory.

    Args:
        driver: of the device.
    """

    def __init__(self, driver: Driver) -> None:
        self._memory = DeviceMemory(driver, (), np.dtype(np.int32))

    @property
    def buffer(self) -> Buffer:
        return self._memory.buffer

    def reset(self) -> None:
        """The next run is the first one."""
        self._memory.write(np.zeros((), np.int32))

    def release(self) -> None:
        """Releases the memory."""
        self._memory.release()


def gather_kernels(
    driver: Driver,
    module: Module,
    launches: Launches,
    data: DataSet,
    buffers: Mapping[str, Buffer],
    counter: Buffer = None,
) -> list[Kernel]:
    """The kernels that gather the inputs of a run.

    Args:
        driver: of the device.
        module: has their functions.
        launches: of the program.
        data: from which they gather.
        buffers: of the program.
        counter: the number of the run; None if launches pass it.
    """
    if data.rows is None:
        return []
    counted = () if counter is None else (counter,)
    return [
        driver.kernel(
            module,
            one.kernel,
            (data.examples[one.input], buffers[one.input], data.rows, *counted),
            one.items,
            numbered=counter is None,
        )
        for one in launches.gathers
    ]


def record_kernels(
    driver: Driver,
    module: Module,
    launches: Launches,
    data: DataSet,
    buffers: Mapping[str, Buffer],
    counter: Buffer,
) -> list[Kernel]:
    """The kernels that record the outputs of a run, and then count it."""
    found: list[Kernel] = []
    for record, output in data.records:
        one = launches.recorders[output.name]
        arguments = record, buffers[output.name], counter
        found.append(driver.kernel(module, one.kernel, arguments, one.items, numbered=False))
    found.append(driver.kernel(module, launches.count, (counter,), 1, numbered=False))
    return found
