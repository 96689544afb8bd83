"""The protocol of engines.

An engine is four nouns: a device that describes itself, memory on it, a compiler from programs to
executables, and the executable. Engines know programs, but no graphs, ops or layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType
from lamina.engines.room import Need, needs_of_program
from lamina.errors import InternalError
from lamina.program.philox import permutations
from lamina.program.program import Program
from lamina.program.target import Target


@frozen_dataclass
class Device:
    """A device on which an engine runs. Properties that are not known are None or "".

    Attributes:
        engine: the name that opens it, `"interpreter"`, `"opencl:1"`.
        description: the name of the processor; for a device with a driver also its platform and
            the driver's version.
        memory_bytes: the memory that programs can use on it.
        problem: the reason why it cannot be used, or "".
        remedy: a sentence that says what to do about the problem.
        self_test: the result, "passed", "failed" or "not run yet"; "" if there is no self-test.
        notes: the faults of the driver that Lamina works around.
        name: the name of the device alone.
        platform: the software that offers the device.
        driver: the version of the driver.
        version: the version of the standard that the driver implements.
        largest_allocation_bytes: the limit of one allocation; None if there is none.
        local_memory_bytes: the memory that a work group shares.
        compute_units: the number of threads, or of processors in a GPU, that run at the same time.
        has_bfloat16, has_float16, has_float64: whether the device has instructions for arithmetic
            with these floats.
        has_tf32: whether it has instructions that multiply TF32.
        shares_memory: whether its memory is the computer's memory.
    """

    engine: str
    description: str
    memory_bytes: int | None
    problem: str = ""
    remedy: str = ""
    self_test: str = ""
    notes: tuple[str, ...] = ()
    name: str = ""
    platform: str = ""
    driver: str = ""
    version: str = ""
    largest_allocation_bytes: int | None = None
    local_memory_bytes: int | None = None
    compute_units: int | None = None
    has_bfloat16: bool | None = None
    has_float16: bool | None = None
    has_float64: bool | None = None
    has_tf32: bool | None = None
    shares_memory: bool | None = None


@frozen_dataclass
class Peaks:
    """The measured peaks of a device.

    Attributes:
        operations: the floating-point operations a second; a multiply-add counts as two.
        bytes: the bytes a second between main memory and the processor.
    """

    operations: float
    bytes: float


@frozen_dataclass
class Candidate:
    """A schedule of a step that was run on the device.

    Attributes:
        schedule: the text of the schedule.
        seconds: the seconds of a run of the step; None if it failed, or was not run.
        problem: the reason why it failed, or "".
        expected: the seconds by the cost model; None if it has none for the schedule.
    """

    schedule: str
    seconds: float | None
    problem: str = ""
    expected: float | None = None


@frozen_dataclass
class TunedStep:
    """The schedules of a step that were run on the device, and the choice.

    Attributes:
        steps: the numbers of the steps in the program; they are equal, and share the choice.
        candidates: the schedules; the first is the cost model's choice.
        chosen: the number of the chosen one.
    """

    steps: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    chosen: int


@frozen_dataclass
class Members:
    """The members of a population: networks of one definition, whose values differ.

    Attributes:
        count: their number.
        own_inputs: whether each member has inputs of its own; otherwise they have the same.
        may_use_lanes: whether an engine may compute several members in the lanes of a vector, and
            so add up numbers in another order than for one alone.
        extended: makes the program of several members from the program of one
            (`lamina.compiler.members.with_members`).
    """

    count: int
    own_inputs: bool
    may_use_lanes: bool
    extended: Callable[..., Program]

    def program(
        self, program: Program, count: int, target: Target, *, lanes: bool = False
    ) -> Program:
        """The program of `count` members from the program of one.

        With `lanes`, the members of an element are neighbours. Otherwise the memory outside of the
        program is as `Engine.allocate` makes it.
        """
        own = [buffer.name for buffer in program.of_kind("input")] if self.own_inputs else []
        return self.extended(
            *(program, count, target, own), innermost=lanes, padding=target.alignment_bytes
        )


@frozen_dataclass
class Grouping:
    """How an engine runs the members of a population.

    Attributes:
        program: the program that it runs, of one member or of several.
        size: the members that this program computes.
        at_once: so many runs of it go on at the same time, each with an arena and inputs of its
            own.
        copied: whether each of these has copies of its members' parameters and states.
    """

    program: Program
    size: int = 1
    at_once: int = 1
    copied: bool = False

    @property
    def copied_bytes(self) -> int:
        """The bytes of the copies of parameters and states for one run."""
        outside = (
            buffer for kind in ("parameter", "state") for buffer in self.program.of_kind(kind)
        )
        return sum(padded(buffer.bytes) for buffer in outside) if self.copied else 0

    def needs(self) -> tuple[Need, ...]:
        """The memory for running the program, in addition to the memories of all members."""
        copies = [Need("copies of members", self.copied_bytes)] if self.copied else []
        each = (*needs_of_program(self.program), *copies)
        return tuple(replace(need, bytes=self.at_once * need.bytes) for need in each)


# Each member's array begins at a multiple of this in memory of the host, as each array does.
ALIGNMENT_BYTES = 64


def padded(size: int) -> int:
    """The bytes of an array, up to where the next one may begin."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@final
class Changes:
    """Counts the changes of any of several memories.

    Operands that were packed from memories are packed again after a change. A reader that takes no
    lock finds whether it has read during a change.

    Attributes:
        count: the changes that have begun.
        completed: the ended changes: `count`, unless one is going on or was stopped by a signal.
    """

    __slots__ = ("completed", "count")

    def __init__(self) -> None:
        self.count = 0
        self.completed = 0

    def complete(self) -> None:
        """Notes that no change is going on."""
        self.completed = self.count


class Memory(Protocol):
    """Bytes on a device, as one contiguous array of this shape and dtype."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def write(self, array: Array) -> None:
        """Copies in an array of the memory's dtype and size, in row-major order."""
        ...

    def read(self) -> Array:
        """A copy of the contents, in the shape given at allocation; waits for the device."""
        ...

    def copy_from(self, source: Memory) -> None:
        """Copies a memory of the same engine, dtype and size; need not wait for the device."""
        ...

    def member(self, number: int) -> Memory:
        """The same bytes as the memory of one member, if this one has a first axis of members."""
        ...

    def release(self) -> None:
        """Frees the bytes; the memory must not be used afterwards."""
        ...


class Arena(Protocol):
    """Memory shared by executables that never run at the same time.

    It is as large as the largest of them needs. Compiling a program may enlarge it, and releasing
    one may make it smaller. Both, and every run, invalidate the results of earlier runs.
    """

    @property
    def bytes(self) -> int: ...


# So many stagings are filled by turns: programs use one of them while another one is filled.
STAGES = 2


class Staging(Protocol):
    """Memory for examples, and arrays of the host that are copied to it while programs run.

    Attributes:
        arrays: the bytes of each array that has any.
        memories: the memories to which they are copied.
    """

    @property
    def arrays(self) -> Mapping[str, Array]: ...

    @property
    def memories(self) -> Mapping[str, Memory]: ...

    def send(self, sizes: Mapping[str, int]) -> None:
        """Begins to copy the first bytes of each array; runs that begin later see the copies.

        Earlier runs with these memories are done.
        """
        ...

    def release(self) -> None:
        """Waits for the copies, and frees the memory."""
        ...


@frozen_dataclass
class Bound:
    """A program that reads and writes arrays of the host, without any other work.

    Attributes:
        inputs: an array for every buffer of kind input, to be filled before a run.
        outputs: the results of a run, by name; the next run overwrites them.
        run: the function that runs the program once, and returns when it is done.
        changes: the counter of changes of all parameters and states that it reads.
    """

    inputs: tuple[Array, ...]
    outputs: Mapping[str, Array]
    run: Callable[[], None]
    changes: Changes


# A program, and the indices of the examples of each of its runs, int64 (runs, batch).
Turn = tuple["Executable", Array]


class Executable(Protocol):
    """A program compiled for a device, with its constants and its share of an arena.

    It is bound to the memories of its parameters and states. After the first run, running allocates
    nothing. Only one thread at a time may call it or another executable of the same arena.

    Attributes:
        synchronous: whether the results are complete when `run` returns.
        has_members: whether results have a first axis of the members of a population.
    """

    synchronous: bool
    has_members: bool = False

    def run(self, inputs: Sequence[Array]) -> None:
        """Runs the program once.

        Args:
            inputs: an array for every buffer of kind input, in the program's order, of the buffer's
                dtype and size, in row-major order. No reference to it is kept.
        """
        ...

    def run_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> dict[str, Array]:
        """Runs the program once for each row of `rows`, without Python in between.

        Args:
            resident: a data set on the device for every buffer of kind input, with the examples
                along the first axis.
            rows: the indices of the examples of each run, int64 (runs, batch).
            recorded: the outputs whose values are returned.

        Returns:
            An array for each recorded output, of shape (runs, *shape of the output).
        """
        ...

    def run_turns(
        self, turns: Sequence[Turn], resident: Mapping[str, Memory], recorded: Sequence[str]
    ) -> list[dict[str, Array]]:
        """Runs programs of one graph, this one among them, in turns: the results of each turn."""
        return [program.run_many(resident, rows, recorded) for program, rows in turns]

    def begin_many(
        self, resident: Mapping[str, Memory], rows: Array, recorded: Sequence[str]
    ) -> Callable[[], dict[str, Array]]:
        """Begins what `run_many` does, and returns a function that waits for the end.

        It is called before anything else is run. Signals are not handled before.
        """
        outputs = self.run_many(resident, rows, recorded)
        return lambda: outputs

    def activate(self, members: Array) -> None:
        """Only these members of a population are computed from now on, by number, int64 (count,).

        Outputs of the others are undefined.
        """
        raise InternalError(f"this program has no members: {members}")

    def output(self, name: str) -> Array:
        """A copy of an output. This executable did the arena's last run; waits for its end."""
        ...

    def read_into(self, name: str, target: Array) -> None:
        """Copies an output, as `output` does, to a contiguous array of its shape and dtype."""
        target[...] = self.output(name)

    def bound(self) -> Bound | None:
        """The program with its arrays in the memory of the host.

        It is valid until another executable enters or leaves the arena. None if the arrays are
        elsewhere, if the program changes parameters or states, or if their changes have several
        counters.
        """
        return None

    def scalar(self, name: str) -> float:
        """The value of an output of one element, as quickly as possible."""
        return self.output(name).item()

    def kept_scalar(self, name: str) -> Callable[[], float]:
        """A function that returns the present value of an output of one element.

        It does so after further runs too, and waits for the device; this call does not.
        """
        value = self.scalar(name)
        return lambda: value

    def step_seconds(self) -> Array:
        """The seconds that each step took since the last call, float64 (steps,).

        Only for programs compiled with `timed`.
        """
        ...

    def release(self) -> None:
        """Leaves the arena; the executable must not be used afterwards."""
        ...


class Engine(Protocol):
    """A device that compiles and runs programs."""

    @property
    def device(self) -> Device: ...

    @property
    def target(self) -> Target:
        """The target for which the compiler makes programs."""
        ...

    def available_bytes(self) -> int | None:
        """The bytes that can be allocated now; None if that is not known."""
        ...

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], members: int | None = None
    ) -> Memory:
        """Memory for an array, filled with zeros.

        Args:
            members: how many such arrays are allocated together; their memory has a first axis of
                members, along which arrays may have gaps between them.

        Raises:
            EngineError: if there is not enough memory.
        """
        ...

    def shared(self, array: Array) -> Memory | None:
        """A contiguous array of the host as memory that programs only read, without a copy.

        The array is not changed until the memory is released. None if the engine cannot do that.
        """
        ...

    def staging(self, sizes: Mapping[str, int]) -> Staging | None:
        """Memory for examples of so many bytes; None if the engine uses the host's memory.

        Raises:
            EngineError: if there is not enough memory.
        """
        return None

    def finite_check(self, memories: Sequence[Memory]) -> Callable[[], bool]:
        """A function that returns whether all elements of some memories of floats are finite.

        It waits for the device, and copies none of the memories to the host.
        """
        ...

    def arena(self) -> Arena:
        """A new, empty arena."""
        ...

    def compile(
        self,
        program: Program,
        memories: Mapping[str, Memory],
        arena: Arena | None = None,
        *,
        timed: bool = False,
        schedule: Any = None,
        members: Members | None = None,
    ) -> Executable:
        """Machine code for the program.

        Args:
            program: the program to compile.
            memories: the memory of every buffer of kind parameter and state.
            arena: the arena, shared with other programs that never run at the same time; by default
                a new one.
            timed: whether every step is timed, which makes the program slower.
            schedule: the schedules of its steps, as this engine's generator of kernels states them;
                decided by default.
            members: the members of a population, for whom the program of one is run. Their
                memories, outputs and recorded outputs have a first axis of members; so have rows of
                examples, and the inputs of a single run, if each member has its own.

        Raises:
            EngineError: if there is not enough memory for it, including its workspaces.
        """
        ...

    def tune(self, program: Program) -> tuple[TunedStep, ...] | None:
        """Runs schedules of the program's most expensive steps on the device, and keeps the best.

        Programs that are compiled later, in other processes too, use them. None if the engine does
        not tune.
        """
        return None

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of `listing`, from the most abstract to the machine's."""
        ...

    def listing(self, program: Program, step: int | None, language: str) -> str:
        """The text generated for a step, or for all steps, in one of the `languages`."""
        ...

    def grouping(self, program: Program, members: Members) -> Grouping:
        """How it runs the members of a population, by the program of one."""
        return Grouping(program)

    def needs(self, program: Program, members: Members | None = None) -> tuple[Need, ...]:
        """The memory that is counted before a program is compiled, besides `memories`.

        An engine may have to write the program's kernels for it.
        """
        ...

    def permutations(self, count: int, seeds: Array, numbers: Array, stream: int) -> Array:
        """`lamina.program.philox.permutations`; an engine may have a faster way."""
        return permutations(count, seeds, numbers, stream)

    def workspace_bytes(self, program: Program) -> int | None:
        """The bytes that a compiled program takes in addition to its buffers; None if unknown."""
        return None

    def peaks(self, dtype: DType, *, tf32: bool = False) -> Peaks | None:
        """The peaks of the device for numbers of that type, measured now.

        None for an engine whose speed they do not limit.

        Args:
            dtype: the dtype of the operands of products.
            tf32: whether they are rounded to TF32, on a device that has instructions for it.
        """
        return None


# How users list the devices, from Python and from a shell.
LISTING = "lamina.devices(), or `lamina devices` on the command line, lists"
