"""A program as kernels of a device, bound to its buffers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import final

import numpy as np
import pyopencl as cl

from lamina.engines.engine import Memory
from lamina.engines.gpu.launches import Launch, Launches
from lamina.engines.gpu.places import places_of
from lamina.engines.opencl.batches import Batches
from lamina.engines.opencl.build import build
from lamina.engines.opencl.devices import OpenDevice, driver_errors
from lamina.engines.opencl.memory import (
    DeviceArena,
    DeviceMemory,
    device_memory,
    read_buffer,
    write_buffer,
)
from lamina.engines.room import Need, needs_of_program, require_room
from lamina.errors import InternalError
from lamina.program.program import Program
from lamina.program.steps import writes_of
from lamina.records import frozen_dataclass
from lamina.shapes import Array
from lamina.shielded import shielded

# Signals are answered when the device has worked for about so long.
PIECE_SECONDS = 0.05


@frozen_dataclass
class _Command:
    """A launch whose kernel has its arguments, but for the number of the iteration."""

    kernel: cl.Kernel
    global_size: tuple[int]
    group: tuple[int] | None
    arguments: int
    step: int


@final
class OpenClProgram:
    """A program as kernels, with its constants, and its place in an arena.

    In the arena lie the temporaries, the inputs, and the kernels' scratch.

    Args:
        program: what is run.
        launches: the same as kernels.
        memories: of its parameters and states.
        arena: shared with programs that never run at the same time.
        timed: whether the time of its steps is taken.
    """

    synchronous = False

    def __init__(
        self,
        program: Program,
        launches: Launches,
        memories: Mapping[str, Memory],
        arena: DeviceArena,
        *,
        timed: bool = False,
    ) -> None:
        device = arena.device
        self._program, self._launches, self._device, self._arena = program, launches, device, arena
        require_room(
            "this step needs",
            (*needs_of_program(program), Need("scratch", sum(launches.scratch.values()))),
            device.available_bytes,
            reused=arena.bytes,
            where=device.record.engine,
            advice="Take a smaller batch.",
        )
        self._outputs = {name: program.buffers[buffer] for name, buffer in program.outputs}
        self._built = build(device, launches.text)
        self._outside = _outside_of(program, memories, device)
        written = {name for step in program.steps for name in writes_of(step)}
        self._changes_memories = not written.isdisjoint(self._outside)
        self._seconds = np.zeros(len(program.steps))
        self._timed_queue: cl.CommandQueue | None = None
        if timed:
            profiling = cl.command_queue_properties.PROFILING_ENABLE
            self._timed_queue = cl.CommandQueue(device.context, properties=profiling)
        self._places = places_of(program, launches.scratch, device.traits)
        self.let_go()
        arena.enter(self, self._places.blocks)

    def let_go(self) -> None:
        self._buffers: dict[str, cl.Buffer | None] = {}
        # Commands, and how often they are repeated; None for those that know no iteration. Their
        # kernels hold on to their arguments.
        self._parts: list[tuple[list[_Command], int | None]] = []

    def move_to(self, blocks: Sequence[cl.Buffer]) -> None:
        program, launches, places = self._program, self._launches, self._places.of
        with driver_errors(self._device, "preparing a program"):
            # What lies in one place is one buffer, also for the driver.
            found = {
                (block, offset, size): blocks[block].get_sub_region(offset, size)
                for block, offset, size in set(places.values())
            }
            # Those without elements stay None.
            self._buffers = dict.fromkeys((*program.buffers, *launches.scratch))
            self._buffers |= {name: found[place] for name, place in places.items()}
            self._buffers |= {name: memory.buffer for name, memory in self._outside.items()}
            end = 0
            for repeat in launches.repeats:
                self._parts.append((self._commands(end, repeat.first), None))
                self._parts.append((self._commands(repeat.first, repeat.last), repeat.count))
                end = repeat.last
            self._parts.append((self._commands(end, len(launches.launches)), None))

    def _commands(self, first: int, last: int) -> list[_Command]:
        return [self._command(one) for one in self._launches.launches[first:last] if one.items]

    def _command(self, launch: Launch) -> _Command:
        kernel = cl.Kernel(self._built, launch.kernel)
        for number, name in enumerate(launch.buffers):
            kernel.set_arg(number, self._buffers[name])
        arguments, group = len(launch.buffers), launch.group
        if not group:
            return _Command(kernel, (launch.items,), None, arguments, launch.step)
        most: int = kernel.get_work_group_info(
            cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device.handle
        )
        if group > most:
            raise InternalError(
                f"the kernel {launch.kernel} wants work groups that the device cannot run",
                facts=(("expected", f"at most {most}"), ("found", str(group))),
            )
        size = -(-launch.items // group) * group
        return _Command(kernel, (size,), (group,), arguments, launch.step)

    def run(self, inputs: Sequence[Array]) -> None:
        for buffer, array in zip(self._program.of_kind("input"), inputs, strict=True):
            # Waits: the caller may change the array, and no more than one run lies in the queue.
            write_buffer(self._device, self._buffers[buffer.name], array)
        with driver_errors(self._device, "running a step"):
            self._whole(self._run)

    def _whole(self, work: Callable[[], None]) -> None:
        """Does something that no signal may cut in two where it changes parameters."""
        if self._changes_memories:
            shielded(work)
        else:
            work()

    def _run(self) -> None:
        if self._timed_queue is None:
            for _ in self._enqueued(self._device.queue):
                pass
            self._device.queue.flush()
            return
        self._device.queue.finish()
        events = list(self._enqueued(self._timed_queue))
        self._timed_queue.finish()
        for step, event in events:
            self._seconds[step] += 1e-9 * (event.profile.end - event.profile.start)

    def _enqueued(self, queue: cl.CommandQueue) -> Iterable[tuple[int, cl.Event]]:
        """Enqueues all kernels of a run; gives their steps and events."""
        for commands, count in self._parts:
            for iteration in range(1 if count is None else count):
                for one in commands:
                    if count is not None:
                        one.kernel.set_arg(one.arguments, np.int32(iteration))
                    yield (
                        one.step,
                        cl.enqueue_nd_range_kernel(queue, one.kernel, one.global_size, one.group),
                    )

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        device = self._device
        rows = np.ascontiguousarray(rows, np.int64)
        inputs = [
            (device_memory(resident[one.name], device).buffer, self._buffers[one.name], one.bytes)
            for one in self._program.of_kind("input")
        ]
        records: dict[str, DeviceMemory] = {}
        for name in recorded:
            output = self._outputs[name]
            records[name] = DeviceMemory(device, (len(rows), *output.shape), output.dtype.numpy)
        batches = Batches(device, rows, inputs)
        done, size = 0, 1
        while done < len(rows):
            runs = range(done, min(done + size, len(rows)))
            started = time.perf_counter()
            with driver_errors(device, "running steps"):
                self._whole(partial(self._run_piece, runs, batches, records))
            seconds = max(time.perf_counter() - started, 1e-6)
            size = max(1, min(int(len(runs) * PIECE_SECONDS / seconds), 2 * size))
            done = runs.stop
        found = {name: record.read() for name, record in records.items()}
        for memory in (batches, *records.values()):
            memory.release()
        return found

    def _run_piece(
        self, runs: range, batches: Batches, records: Mapping[str, DeviceMemory]
    ) -> None:
        queue = self._device.queue
        for run in runs:
            batches.enqueue(queue, run)
            self._run()
            for name, record in records.items():
                output = self._outputs[name]
                source, size = self._buffers[output.name], output.bytes
                if source is not None and record.buffer is not None:
                    cl.enqueue_copy(
                        queue, record.buffer, source, byte_count=size, dst_offset=run * size
                    )
        queue.finish()

    def output(self, name: str) -> Array:
        buffer = self._outputs[name]
        place = self._buffers[buffer.name]
        return read_buffer(self._device, place, buffer.shape, buffer.dtype.numpy)

    def scalar(self, name: str) -> float:
        return self.output(name).item()

    def step_seconds(self) -> Array:
        seconds, self._seconds = self._seconds, np.zeros(len(self._program.steps))
        return seconds

    def release(self) -> None:
        self._arena.leave(self)
        for name in self._program.constants:
            self._outside[name].release()
        self._outside = {}


def _outside_of(
    program: Program, memories: Mapping[str, Memory], device: OpenDevice
) -> dict[str, DeviceMemory]:
    """A memory for every buffer that lies outside of the arena."""
    found: dict[str, DeviceMemory] = {}
    for kind in ("parameter", "state"):
        for buffer in program.of_kind(kind):
            found[buffer.name] = device_memory(memories[buffer.name], device)
    for name, value in program.constants.items():
        buffer = program.buffers[name]
        found[name] = DeviceMemory(device, buffer.shape, buffer.dtype.numpy)
        found[name].write(value)
    return found
