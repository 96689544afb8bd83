"""Tables of the kernels of workloads, for the commands that compile them for GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpu_devices import Gpu

from lamina.base.records import frozen_dataclass
from lamina.engines.engine import Device
from lamina.engines.gpu.launches import Launches
from lamina.engines.gpu.schedule import ProgramSchedule
from lamina.learning.by_output import options_of
from lamina.program.cost import cost_of, space_of
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.program.target import Target
from lamina.step.planning import bill_of
from lamina.step.precision import MIXED, precision_of
from lamina.workloads import Workload

DTYPES = ("float32", *(name for name, half in MIXED.items() if half is not None))


@frozen_dataclass
class Roofline:
    """The least times of steps on a GPU.

    Attributes:
        name: of the GPU, and of its tensor cores if they multiply.
        gpu: has peak rates.
        product_flops: operations of contractions in a second; None for the rate of the GPU's other
            operations.
    """

    name: str
    gpu: Gpu
    product_flops: float | None = None

    def seconds(self, operations: int, moved: int, *, multiplies: bool) -> float:
        """The least time of a step.

        Args:
            operations: of the step.
            moved: bytes.
            multiplies: whether the step is a contraction.
        """
        flops = self.product_flops if multiplies else None
        return self.gpu.seconds(operations, moved, flops)


def program_of(
    workload: Workload, dtype: str, device: Device, target: Target, products: str = "float32"
) -> Program:
    """The program of a workload.

    Args:
        workload: a network, and what is run of it.
        dtype: a name of `DTYPES`.
        device: decides the type of mixed precision.
        target: of the device.
        products: the precision of products of float32, `"float32"` or `"tf32"`.

    Raises:
        DTypeError: for products in TF32 of another dtype than float32.
    """
    options = options_of(workload.loss, workload.optimizer, None, (), workload.name)
    precision = precision_of(dtype, lambda: device, products)
    return bill_of(
        workload.network(), workload.batch, options, precision, lambda: device, target
    ).program


def lines_of_steps(
    program: Program,
    schedule: ProgramSchedule,
    launches: Launches,
    rooflines: Sequence[Roofline],
    described: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    """The table of a program: its steps, and below each the kernels that it is the first to use.

    Args:
        program: the program.
        schedule: how its steps are run.
        launches: its kernels.
        rooflines: of GPUs.
        described: lines on each kernel, by its name.
    """
    left = dict(described)
    totals = [0.0] * len(rooflines)
    for number, step in enumerate(program.steps):
        repeat = program.repeated(number)
        cost = cost_of(step, program.buffers, repeat.axis if repeat is not None else None)
        multiplies = isinstance(step, Contraction)
        seconds = [
            roofline.seconds(cost.operations, cost.bytes, multiplies=multiplies)
            for roofline in rooflines
        ]
        totals = [total + duration for total, duration in zip(totals, seconds, strict=True)]
        yield f"step {number}: {space_of(step)}; {schedule.steps[number]}"
        yield f"  {cost.bytes} bytes, {cost.operations} operations; {_times(rooflines, seconds)}"
        for launch in (*launches.load, *launches.launches):
            if launch.step == number:
                yield from _lines_of(launch.kernel, left)
    if gather := launches.gather:
        yield f"gather of the examples of {', '.join(gather.inputs)}"
        yield from _lines_of(gather.kernel, left)
    counted = f"{len(program.steps)} steps, {len(launches.launches)} launches"
    yield f"{counted}; {_times(rooflines, totals)}"


def _lines_of(kernel: str, left: dict[str, Sequence[str]]) -> Iterator[str]:
    """The lines on a kernel, which are printed once."""
    for line in left.pop(kernel, ()):
        yield f"  {kernel} {line}"


def kernels_of_contractions(program: Program, launches: Launches) -> set[str]:
    """The names of the kernels that only multiply, and whose work items form groups."""
    return {
        launch.kernel
        for launch in launches.launches
        if isinstance(program.steps[launch.step], Contraction) and launch.group and not launch.calls
    }


def _times(rooflines: Sequence[Roofline], seconds: Sequence[float]) -> str:
    """The least times on the GPUs, in microseconds."""
    pairs = zip(rooflines, seconds, strict=True)
    return ", ".join(f"{roofline.name} {1e6 * time:.1f} us" for roofline, time in pairs)
