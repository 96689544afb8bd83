"""A program as kernels of a device, bound to its buffers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from lamina.base.shapes import Array
from lamina.engines.engine import STAGES, Executable, Memory
from lamina.engines.gpu.arena import DeviceArena, arena_layout, upload_buffers, upload_name
from lamina.engines.gpu.driver import Buffer, Kernel, LaunchSequence, Module
from lamina.engines.gpu.launches import Launch, Launches, Traits
from lamina.engines.gpu.memory import DeviceMemory, device_memory
from lamina.engines.gpu.runs import Begin, DataSet, KeptScalars, Recording, Runs
from lamina.engines.gpu.step_times import Piece, changed_by, pieces_of
from lamina.engines.gpu.transfers import Downloads, Uploads
from lamina.engines.room import Need, needs_of_program, require_room
from lamina.program.program import Program
from lamina.program.steps import writes_of

# Signals are handled after each piece of work on the device of about this length.
PIECE_SECONDS = 0.05


@final
class GpuProgram(Executable):
    """A program as kernels, with its constants and its share of an arena.

    The arena holds the temporaries, the inputs, and the workspaces whose contents need not stay
    from one run to the next. Programs that never run at the same time share it. Parameters and
    states have other memories. Steps may be timed. The kernels' `module` may be built already.
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
        module: Module = None,
    ) -> None:
        driver = arena.driver
        self._program, self._launches, self._driver, self._arena = program, launches, driver, arena
        require_room(
            "this program needs",
            needs_of(program, launches, driver.traits),
            driver.available_bytes,
            reused=arena.bytes,
            most=driver.traits.largest_block_bytes,
            where=driver.record.engine,
            advice="Take a smaller batch.",
        )
        self._outputs = {name: program.buffers[buffer] for name, buffer in program.outputs}
        self._module = driver.build(launches.text) if module is None else module
        self._outside = {
            buffer.name: device_memory(memories[buffer.name], driver)
            for kind in ("parameter", "state")
            for buffer in program.of_kind(kind)
        }
        self._constants: dict[str, DeviceMemory] = {}
        for name, value in program.constants.items():
            buffer = program.buffers[name]
            self._constants[name] = DeviceMemory(driver, buffer.shape, buffer.dtype.numpy)
            self._constants[name].write(value)
        self._kept = {
            name: DeviceMemory(driver, (size,), np.dtype(np.uint8))
            for name, size in launches.kept.items()
        }
        # A model's memories share one counter; memories of other models may have another one.
        counters = (memory.changes for memory in self._outside.values())
        self._changes = tuple({id(counter): counter for counter in counters}.values())
        written = {name for step in program.steps for name in writes_of(step)}
        self._changes_memories = not written.isdisjoint(self._outside)
        self._seconds = np.zeros(len(program.steps)) if timed else None
        self._order = _order_of(launches)
        self._uploads = Uploads(driver, program.of_kind("input"))
        self._downloads, self._scalars = Downloads(driver), KeptScalars(driver)
        self._recording, self._saved = Recording(driver), Recording(driver)
        # On a device that counts the runs, the numbers of the run.
        counted = driver.traits.counts_runs
        self._counter = DeviceMemory(driver, (2,), np.dtype(np.int32)) if counted else None
        # The runs between two pauses in which signals are handled.
        self._piece = 1
        self._layout = arena_layout(program, launches, driver.traits)
        self._changed = {
            step: changed_by(program, step, self._layout.locations)
            for step in (range(len(program.steps)) if timed else ())
        }
        self.detach()
        arena.enter(self, self._layout.blocks)

    def detach(self) -> None:
        self._buffers: dict[str, Buffer] = {}
        # Kernels of the sequence keep their buffers alive.
        self._sequence: LaunchSequence = None
        self._together: tuple[int, LaunchSequence] | None = None
        self._pieces: list[Piece] = []
        self._load: LaunchSequence = None
        self._inputs: list[Buffer] = []
        # Where inputs are uploaded during the run before; empty if they are uploaded after it.
        self._early: list[Buffer] = []
        self._ordered: list[tuple[Kernel, int | None]] = []
        # The last runs over data sets. The next ones often use the same memory, or by turns
        # the memories of a data set's chunks.
        self._counted: list[tuple[DataSet, Begin]] = []

    def move_to(self, blocks: Sequence[Buffer]) -> None:
        self._loaded = -1
        driver, locations = self._driver, self._layout.locations
        with driver.errors("creating a program's kernels"):
            # Buffers without elements stay None.
            self._buffers = dict.fromkeys(("", *self._program.buffers))
            self._buffers |= {
                name: driver.part(blocks[block], offset)
                for name, (block, offset, _) in locations.items()
            }
            memories = self._outside | self._constants | self._kept
            self._buffers |= {name: memory.buffer for name, memory in memories.items()}
            names = [buffer.name for buffer in self._program.of_kind("input")]
            self._inputs = [self._buffers[name] for name in names]
            if upload_buffers(self._program, driver.traits):
                self._early = [self._buffers.get(upload_name(name)) for name in names]
            # A kernel that is repeated takes the number of the iteration.
            repeated = {number for number, iteration in self._order if iteration is not None}
            kernels = [
                self._kernel(launch, numbered=number in repeated)
                for number, launch in enumerate(self._launches.launches)
            ]
            self._load = driver.sequence(
                [(self._kernel(launch, numbered=False), None) for launch in self._launches.load]
            )
            self._ordered = [(kernels[number], iteration) for number, iteration in self._order]
            self._sequence = driver.sequence(self._ordered)
            if self._seconds is not None:
                steps = [self._launches.launches[number].step for number, _ in self._order]
                rows = [(step, *launch) for step, launch in zip(steps, self._ordered, strict=True)]
                self._pieces = pieces_of(driver, rows, self._changed, self._buffers, self._saved)

    def _kernel(self, launch: Launch, *, numbered: bool) -> Kernel:
        buffers = [self._buffers[name] for name in launch.buffers]
        if launch.product is not None:
            # Families have products only for drivers of devices that have a library.
            library: Any = self._driver
            return library.product(launch.product, launch.algorithm, buffers)
        return self._driver.kernel(
            self._module,
            launch.kernel,
            buffers,
            launch.items,
            numbers=launch.numbers,
            numbered=numbered,
            group=launch.group,
            local_bytes=launch.local_bytes,
        )

    def _begin(self) -> bool:
        """Makes sure that there are blocks; returns whether only this program has used them."""
        if self._sequence is None:
            self._arena.restore()
        is_again = self._arena.used_by(self)
        if self._program.prepared and not is_again:
            # Rounded copies are in the blocks.
            self._loaded = -1
        return is_again

    def run(self, inputs: Sequence[Array]) -> None:
        is_again = self._begin()
        with self._driver.errors("running a program"):
            if self._early:
                self._uploads.send_early(inputs, self._early, self._inputs, is_again=is_again)
            else:
                self._uploads.send(inputs, self._inputs)
            self._pack_changed()
            self._run()

    def repeat(self, runs: int) -> None:
        """Runs the program some times with the inputs that are on the device, and waits."""
        self._begin()
        with self._driver.errors("running a program"):
            self._pack_changed()
            for _ in range(runs):
                self._run()
            self._driver.queue.finish()

    def together(self, runs: int) -> Callable[[], None]:
        """A function that runs the program some times, as one sequence of launches, and waits.

        It is called before anything else is run; the inputs are on the device. The last sequence is
        kept.
        """
        self._begin()
        with self._driver.errors("running a program"):
            if self._together is None or self._together[0] != runs:
                self._together = None
                self._together = runs, self._driver.sequence(self._ordered * runs)
            _, sequence = self._together
            self._pack_changed()

        def run() -> None:
            queue = self._driver.queue
            with self._driver.errors("running a program"):
                queue.run(sequence)
                queue.flush()
                queue.finish()

        return run

    def _pack_changed(self) -> None:
        """Packs operands that stay from one run to the next, if memories have changed."""
        count = sum(changes.count for changes in self._changes)
        if self._launches.load and count != self._loaded:
            self._driver.queue.run(self._load)
            self._loaded = count
        if self._changes_memories:
            for changes in self._changes:
                changes.count += 1
            # Packed operands do not depend on memories that the program itself changes, and rounded
            # copies are changed with them.
            self._loaded += len(self._changes)

    def _run(self) -> None:
        if self._seconds is None:
            self._driver.queue.run(self._sequence)
            self._driver.queue.flush()
            return
        for piece in self._pieces:
            self._seconds[piece.step] += piece.run()

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        begin, read = self._many(resident, rows, recorded)
        self._run_pieces(len(rows), begin)
        return read()

    def begin_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> Callable[[], dict[str, Array]]:
        begin, read = self._many(resident, rows, recorded)
        with self._driver.errors("running a program"):
            for run in range(len(rows)):
                begin(run)

        def finish() -> dict[str, Array]:
            with self._driver.errors("running a program"):
                self._driver.queue.finish()
            return read()

        return finish

    def _many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> tuple[Begin, Callable[[], dict[str, Array]]]:
        """Runs over a data set, and a function that reads their recorded outputs."""
        self._begin()
        rows = np.ascontiguousarray(rows, np.int64)
        count, recording = len(rows), self._recording
        outputs = {name: self._outputs[name] for name in recorded}
        with self._driver.errors("preparing runs of a program"):
            gather = self._launches.gather
            examples = {
                name: device_memory(resident[name], self._driver).buffer
                for name in (gather.inputs if gather is not None and count else ())
            }
            records = {
                name: (recording.buffer(f"output {name}", count * output.bytes), output)
                for name, output in outputs.items()
                if output.bytes
            }
            data = DataSet(examples, recording.write("examples", rows), records)
            begin = self._begin_of(data)
            self._pack_changed()

        def read() -> dict[str, Array]:
            return {
                name: recording.read(f"output {name}", (count, *output.shape), output.dtype.numpy)
                for name, output in outputs.items()
            }

        return begin, read

    def _begin_of(self, data: DataSet) -> Begin:
        counter = self._counter
        runs = Runs(self._driver, self._module, self._launches, data, self._buffers)
        if counter is None:
            return runs.numbered(self._run)
        # The next run is the first one.
        counter.write(np.zeros(2, np.int32))
        begin = next((begin for earlier, begin in self._counted if earlier == data), None)
        if begin is None:
            program = self._gathered() if self._seconds is None else None
            begin = runs.counted(counter.buffer, program, self._run)
            self._counted = [*self._counted, (data, begin)][-STAGES:]
        return begin

    def _gathered(self) -> list[tuple[Kernel, int | None]]:
        """The launches of the program after those steps that gathering its inputs does."""
        gather, launches = self._launches.gather, self._launches.launches
        done = () if gather is None else gather.steps
        return [
            launch
            for (number, _), launch in zip(self._order, self._ordered, strict=True)
            if launches[number].step not in done
        ]

    def _run_pieces(self, count: int, begin: Begin) -> None:
        # Signals are handled between the pieces.
        done = 0
        while done < count:
            piece = range(done, min(done + self._piece, count))
            started = time.perf_counter()
            with self._driver.errors("running a program"):
                for run in piece:
                    begin(run)
                self._driver.queue.finish()
            seconds = max(time.perf_counter() - started, 1e-6)
            if len(piece) == self._piece or seconds > PIECE_SECONDS:
                fitting = int(len(piece) * PIECE_SECONDS / seconds)
                self._piece = max(1, min(fitting, 2 * self._piece))
            done = piece.stop

    def output(self, name: str) -> Array:
        buffer = self._outputs[name]
        array = np.empty(buffer.shape, buffer.dtype.numpy)
        self._downloads.fill(array, self._buffers[buffer.name])
        return array

    def read_into(self, name: str, target: Array) -> None:
        self._downloads.fill(target, self._buffers[self._outputs[name].name])

    def kept_scalar(self, name: str) -> Callable[[], float]:
        buffer = self._outputs[name]
        with self._driver.errors("keeping a result"):
            return self._scalars.keep(self._buffers[buffer.name], buffer.dtype.numpy)

    def step_seconds(self) -> Array:
        seconds, self._seconds = self._seconds, np.zeros(len(self._program.steps))
        assert seconds is not None
        return seconds

    def release(self) -> None:
        self._outside = {}
        try:
            self._arena.leave(self)
        finally:
            memories = (*self._constants.values(), *self._kept.values())
            self._constants, self._kept = {}, {}
            recordings, transfers = (self._recording, self._saved), (self._uploads, self._downloads)
            counter = () if self._counter is None else (self._counter,)
            for memory in (*memories, *counter, *recordings, *transfers):
                memory.release()


def needs_of(program: Program, launches: Launches, traits: Traits) -> tuple[Need, ...]:
    """The memory of a program and its kernels, in addition to `memories`."""
    sizes = {name: workspace.bytes for name, workspace in launches.workspaces.items()}
    sizes |= launches.kept
    largest = max(sizes, key=sizes.__getitem__, default="")
    named = f"workspace {largest.removeprefix('workspace ')!r}" if largest else ""
    workspaces = Need("workspaces", launches.workspace_bytes, named, sizes.get(largest, 0))
    uploads = upload_buffers(program, traits).values()
    early = Need("inputs that are uploaded early", sum(uploads)) if uploads else None
    return (*needs_of_program(program), *filter(None, [early]), workspaces)


def _order_of(launches: Launches) -> tuple[tuple[int, int | None], ...]:
    """The order of launches: the number of each, and its iteration if it is repeated."""
    order: list[tuple[int, int | None]] = []
    end = 0
    for repeat in launches.repeats:
        order += ((number, None) for number in range(end, repeat.first))
        for iteration in range(repeat.count):
            order += ((number, iteration) for number in range(repeat.first, repeat.last))
        end = repeat.last
    order += ((number, None) for number in range(end, len(launches.launches)))
    return tuple(order)
