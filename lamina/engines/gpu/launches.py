"""The properties of a device, and a program as kernels: records of drivers and kernel writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from lamina.base.records import frozen_dataclass
from lamina.engines.gpu.plain_products import Algorithm, MatrixProduct


@frozen_dataclass
class Rates:
    """What a compute unit does in a clock, for the cost model; by default a typical GPU's.

    Attributes:
        lanes: the multiply-adds of float32.
        local_bytes: bytes from local memory.
        cache_bytes: bytes from the cache that all compute units share, if all of them read.
        memory_bytes: bytes from the device's memory, if all of them read.
        resident_items: the most work items at the same time, as far as registers suffice.
        launch: the clocks of a launch after another one.
        clock: the clocks in a second; 0 if unknown.
    """

    lanes: int = 64
    local_bytes: float = 128
    cache_bytes: float = 64
    memory_bytes: float = 10
    resident_items: int = 2048
    launch: float = 6000
    clock: float = 0.0


@frozen_dataclass
class Traits:
    """The properties of a device for which kernels are written.

    Attributes:
        is_processor: whether it is a processor, with caches and vectors; otherwise a GPU.
        has_float64: whether the device computes with float64.
        has_float16: whether its language has a type for float16 (`cl_khr_fp16`).
        rounds_to_bfloat16: whether it has an instruction for that.
        matrices: the multiply-adds of a compute unit in a clock by instructions on matrices, for
            each kind of elements that has some: `"bfloat16"`, `"float16"`, `"tf32"`.
        warpgroup_matrices: the same by those that four warps run together.
        counts_runs: whether it counts the runs over a data set itself, so that all of them are the
            same launches.
        copies_asynchronously: whether it copies to local memory without registers.
        uploads_during_runs: whether it has memory of its own, and copies to it from the host while
            kernels run.
        lanes: the float32 numbers of a processor's vectors, or of the vectors that a GPU prefers;
            1 for scalars.
        compute_units: the least number of work groups that run at the same time.
        exact_division: whether division and square root of float32 are correctly rounded.
        fused: whether a fused multiply-add is as fast as a multiplication and an addition.
        alignment_bytes: the divisor of the offsets of buffers within another buffer.
        largest_block_bytes: the limit of one allocation.
        local_bytes: the local memory that kernels can declare for a work group.
        launched_local_bytes: the local memory that a launch can add for a work group; 0 if none.
        compute_unit_local_bytes: the local memory of a compute unit, which its groups share; 0 if
            unknown.
        largest_group: the most work items of a work group.
        most_iterations: the limit of the iterations of all loops of a work item together; None if
            there is none.
        rates: a compute unit's rates.
    """

    is_processor: bool
    has_float64: bool
    lanes: int
    compute_units: int
    exact_division: bool
    fused: bool
    alignment_bytes: int
    largest_block_bytes: int
    local_bytes: int
    largest_group: int
    most_iterations: int | None = None
    has_float16: bool = False
    rounds_to_bfloat16: bool = False
    matrices: tuple[tuple[str, int], ...] = ()
    warpgroup_matrices: tuple[tuple[str, int], ...] = ()
    copies_asynchronously: bool = False
    counts_runs: bool = False
    uploads_during_runs: bool = False
    launched_local_bytes: int = 0
    compute_unit_local_bytes: int = 0
    rates: Rates = Rates()

    @property
    def block_bytes(self) -> int:
        """The most bytes of a block of workspaces: the limit, less the rest of the alignment."""
        whole = self.largest_block_bytes // self.alignment_bytes
        return max(whole, 1) * self.alignment_bytes


@frozen_dataclass
class Launch:
    """A kernel of one step, one that calls functions of several steps, or a call of a library.

    Attributes:
        kernel: the name of its function in the text.
        buffers: the function's first arguments, in order: buffers of the program and workspaces.
            One without elements, and one without a name, is a null pointer.
        items: the number of work items that have work, at least one. Further ones do nothing.
        step: the number of its first step in the program.
        group: the number of work items in a work group; 0 if it may have any size. A kernel that
            needs a size has only whole groups.
        numbers: the arguments after the buffers, ints.
        local_bytes: bytes of local memory that a work group needs in addition to what the kernel
            declares.
        calls: the functions that do the work, if several launches share the kernel; each like a
            launch of its own.
        product: the product that a library of the device computes instead of a kernel. Then the
            buffers are the left, the right, the result, the bias, the addend and the library's
            workspace, and `kernel` is the name of the step's call for people.
        algorithm: the library's algorithm for it.
    """

    kernel: str
    buffers: tuple[str, ...]
    items: int
    step: int
    group: int = 0
    numbers: tuple[int, ...] = ()
    local_bytes: int = 0
    calls: tuple[Launch, ...] = ()
    product: MatrixProduct | None = None
    algorithm: Algorithm | None = None


@frozen_dataclass
class Workspace:
    """Memory that launches use in addition to the program's buffers.

    Attributes:
        offset: the begin in its block; workspaces that overlap are used at different times.
        bytes: its size, at least 1.
        block: the number of its block. A block is at most as large as one allocation may be, unless
            one workspace alone is larger.
    """

    offset: int
    bytes: int
    block: int = 0


@frozen_dataclass
class RepeatedLaunches:
    """Launches of a repeated part of a program: all of them run in order for each iteration.

    Each of their kernels takes the number of the iteration as its last argument, an int.

    Attributes:
        first, last: the first of the launches, and the launch after the last.
        count: the number of iterations.
    """

    first: int
    last: int
    count: int


@frozen_dataclass
class Gather:
    """The kernel that copies the examples of a batch from data sets to inputs.

    Its arguments are a data set and an input for each of the inputs, the examples of all runs
    (int64), and the number of the run, an int. If the device counts the runs, a buffer of two such
    numbers is the last argument; the kernel reads the first one and copies it to the second one.

    Attributes:
        kernel: the name of its function in the text.
        inputs: the buffers of the program.
        items: the number of work items that have work.
        rounded_buffers: the buffers of rounded elements, by the inputs that it also rounds. These
            inputs are not written.
        steps: the numbers of the steps that it does thereby; runs over a data set omit them.
    """

    kernel: str
    inputs: tuple[str, ...]
    items: int
    rounded_buffers: Mapping[str, str] = field(default_factory=dict[str, str])
    steps: tuple[int, ...] = ()


@frozen_dataclass
class Recorder:
    """On a device that counts the runs, the kernel that records the outputs of a run, and counts.

    Its arguments are the records of all runs and the output for each of the outputs, and the two
    numbers of the run. It reads the second one, and stores the next number as the first one. An
    output whose records are a null pointer is not recorded.

    Attributes:
        kernel: the name of its function in the text.
        outputs: the number of work items that record each output with elements, by its name.
    """

    kernel: str
    outputs: Mapping[str, int]


@frozen_dataclass
class Launches:
    """A program as kernels.

    Attributes:
        text: the functions, in the driver's language.
        launches: the launches in the order in which they run.
        repeats: ranges of launches that are repeated, in order and without overlap.
        gather: the kernel that gathers the examples of a run; None if no input has any.
        workspaces: the workspaces by name. Offsets are multiples of the device's alignment.
        kept: the bytes of workspaces whose contents stay from one run to the next, by name.
        load: launches that fill the kept workspaces, and make the rounded copies that a program
            prepares. They run before the first of the `launches`, once after the parameters were
            changed.
        recorder: the kernel after a run, on a device that counts the runs.
    """

    text: str
    launches: tuple[Launch, ...]
    repeats: tuple[RepeatedLaunches, ...]
    gather: Gather | None
    workspaces: Mapping[str, Workspace] = field(default_factory=dict[str, Workspace])
    kept: Mapping[str, int] = field(default_factory=dict[str, int])
    load: tuple[Launch, ...] = ()
    recorder: Recorder | None = None

    @property
    def workspace_blocks(self) -> tuple[int, ...]:
        """The bytes of each block of workspaces, without the kept ones."""
        sizes: dict[int, int] = {}
        for workspace in self.workspaces.values():
            end = workspace.offset + workspace.bytes
            sizes[workspace.block] = max(sizes.get(workspace.block, 0), end)
        return tuple(sizes.get(number, 0) for number in range(max(sizes, default=-1) + 1))

    @property
    def workspace_bytes(self) -> int:
        """The bytes of all workspaces together, with the kept ones."""
        return sum(self.workspace_blocks) + sum(self.kept.values())

    @property
    def launch_count(self) -> int:
        """The number of launches in a run, in all iterations, without `load`."""
        repeated = sum((repeat.count - 1) * (repeat.last - repeat.first) for repeat in self.repeats)
        return len(self.launches) + repeated
