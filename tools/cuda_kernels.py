"""Compiles the kernels of the workloads for Nvidia's GPUs without a GPU, and describes them.

    python tools/cuda_kernels.py vgg transformer --architecture sm_80 --architecture sm_90
    python tools/cuda_kernels.py mlp --dtype mixed-float16 --totals
    python tools/cuda_kernels.py mlp --precision tf32 --totals
    python tools/cuda_kernels.py wide-step --architecture sm_90 --shares

All contractions have kernels, also those for which the cuda engine calls cuBLASLt (`--shares`).

For each kernel: registers, spills and shared memory, as ptxas counts them; occupancy, by Nvidia's
rules; vectors and instructions of tensor cores, as PTX has them, each instruction counted once;
bank conflicts and sectors, by a model of one work group and of the first iteration of its loops.
For each step: its bytes and operations, as the program states them, and the time that four GPUs
need at least, by the peak rates that Nvidia publishes. Nothing here is a measurement, except the
seconds that the compilers take.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import final

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import ptx_text
from cuda_compiler import Compilation, Compiled, compilation_of, missing
from cuda_devices import ARCHITECTURES, Architecture, occupancy_of
from gpu_devices import NVIDIA
from kernel_tables import DTYPES, Roofline, kernels_of_contractions, lines_of_steps, program_of
from ptx_addresses import accesses_of
from ptx_traffic import Traffic, traffic_of

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.cuda_words import CUDA
from lamina.engines.cuda.driver import GROUP
from lamina.engines.cuda.family import is_large, product_of
from lamina.engines.engine import Device
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.gpu.launches import Launches
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.workloads import NAMES, Workload, chosen

PRECISIONS = ("float32", "tf32")


def family_of(architecture: Architecture) -> GpuFamily:
    """The family that writes kernels for all contractions, also for those of cuBLASLt."""
    return GpuFamily(architecture.traits, CUDA, "cuda")


def device_of(architecture: Architecture) -> Device:
    """The description of a GPU, as far as it decides what products are rounded to."""
    is_ampere = architecture.capability >= 80
    return Device(
        *("cuda", "a GPU", None), has_bfloat16=is_ampere, has_float16=True, has_tf32=is_ampere
    )


@frozen_dataclass
class Kernel:
    """A kernel and what is said of it.

    Attributes:
        compiled: by ptxas.
        text: in PTX.
        group: the number of its work items in a group.
        groups: the number of groups.
        launched_bytes: the shared memory of a group that a launch adds.
        loop: the instructions of its loop with tensor cores, and how many are of these.
    """

    compiled: Compiled
    text: ptx_text.Kernel
    group: int
    groups: int
    launched_bytes: int
    loop: tuple[int, int] | None

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a group."""
        return self.compiled.shared_bytes + self.launched_bytes

    def traffic(self, *spaces: str) -> list[Traffic]:
        """The accesses of the group in the middle to some memories."""
        accesses = accesses_of(self.text, self.group, self.groups // 2, self.groups)
        return [traffic_of(accesses, space) for space in spaces]


@final
class Written:
    """The kernels of a program for a GPU.

    Args:
        program: for the GPU's target.
        architecture: of the GPU.
    """

    def __init__(self, program: Program, architecture: Architecture) -> None:
        self.program, self.architecture = program, architecture
        family = family_of(architecture)
        self.schedule = family.decide(program)
        self.launches: Launches = family.write(program, self.schedule)

    @cached_property
    def compilation(self) -> Compilation:
        """What the compilers make of the text."""
        return compilation_of(self.launches.text, self.architecture)

    @cached_property
    def kernels(self) -> Mapping[str, Kernel]:
        """All kernels, by name."""
        compiled = {kernel.name: kernel for kernel in self.compilation.kernels}
        texts = {kernel.name: kernel for kernel in ptx_text.kernels_in(self.compilation.ptx)}
        sizes = {
            launch.kernel: (launch.items, launch.group or GROUP, launch.local_bytes)
            for launch in (*self.launches.load, *self.launches.launches)
        }
        if gather := self.launches.gather:
            sizes[gather.kernel] = gather.items, GROUP, 0
        loops = self.compilation.loops
        return {
            name: Kernel(
                *(compiled[name], texts[name], group, -(-items // group), local), loops.get(name)
            )
            for name, (items, group, local) in sizes.items()
        }


def lines_of(
    workload: Workload, dtype: str, architectures: Sequence[str], products: str = "float32"
) -> Iterator[str]:
    """The table of a workload, for one architecture after the other.

    The kernels of the architectures differ, because the schedules depend on the GPU.
    """
    for name in architectures:
        architecture = ARCHITECTURES[name]
        written = written_for(workload, dtype, architecture, products)
        yield f"for {name} ({architecture.product})"
        described = {
            kernel_name: [f"on {name}: {line}" for line in text_of(kernel, architecture)]
            for kernel_name, kernel in written.kernels.items()
        }
        yield from lines_of_steps(
            written.program, written.schedule, written.launches, rooflines_of(dtype), described
        )


def written_for(
    workload: Workload, dtype: str, architecture: Architecture, products: str = "float32"
) -> Written:
    """The kernels of a workload for a GPU."""
    return Written(program_for(workload, dtype, architecture, products), architecture)


def program_for(
    workload: Workload, dtype: str, architecture: Architecture, products: str = "float32"
) -> Program:
    """The program of a workload for a GPU."""
    target = family_of(architecture).target
    return program_of(workload, dtype, device_of(architecture), target, products)


def rooflines_of(dtype: str) -> list[Roofline]:
    """The rooflines of four GPUs, without and with tensor cores, if they multiply this type."""
    rooflines: list[Roofline] = []
    for gpu in NVIDIA:
        tensor = gpu.tf32_flops if dtype == "float32" else gpu.half_flops
        rooflines.append(Roofline(gpu.name, gpu))
        if tensor is not None:
            rooflines.append(Roofline(f"{gpu.name} with tensor cores", gpu, tensor))
    return rooflines


def text_of(kernel: Kernel, architecture: Architecture) -> Iterator[str]:
    """What the compilers say of a kernel, and what the models say."""
    compiled, text = kernel.compiled, kernel.text
    occupancy = occupancy_of(architecture, kernel.group, compiled.registers, kernel.shared_bytes)
    limits = " and ".join(occupancy.limits)
    yield (
        f"ptxas: {compiled.registers} registers, {compiled.spill_stores} bytes spilled and "
        f"{compiled.spill_loads} loaded again, a stack of {compiled.stack} bytes, "
        f"{kernel.shared_bytes} bytes of shared memory; model: {occupancy.warps} of "
        f"{architecture.warps} warps, limited by {limits}"
    )
    (wide, loads), (shared_wide, shared_loads) = text.count("global"), text.count("shared")
    tensor, multiplications = text.tensor_instructions()
    others = sum(instruction.is_other_access for instruction in text.body)
    yield (
        f"PTX: {wide} of {loads} global loads and {shared_wide} of {shared_loads} shared loads "
        f"have 128 bits, {tensor} of {multiplications} multiply-adds are of tensor cores"
        + (f", {others} other accesses that no model counts" if others else "")
    )
    if kernel.loop is not None:
        instructions, of_tensor_cores = kernel.loop
        yield f"SASS: a loop of {instructions} instructions, {of_tensor_cores} of tensor cores"
    shared, sectors = kernel.traffic("shared", "global")
    yield f"model: {_traffic(shared, 'wavefronts of shared memory')}"
    yield f"model: {_traffic(sectors, 'sectors of global memory')}"


def _traffic(traffic: Traffic, kind: str) -> str:
    parts = [f"{traffic.needed} {kind} for {traffic.least} at least"]
    if traffic.costly:
        parts.append(f"because of {traffic.costly} of {traffic.accesses} accesses")
    if traffic.unknown:
        parts.append(f"without {traffic.unknown} whose addresses depend on data")
    if traffic.skipped:
        parts.append(f"without {traffic.skipped} that are not in a first iteration")
    return ", ".join(parts)


def totals_of(
    workload: Workload, dtype: str, architectures: Iterable[str], products: str = "float32"
) -> Iterator[str]:
    """For each architecture: all kernels, kernels of contractions, and the seconds to compile."""
    for name in architectures:
        written = written_for(workload, dtype, ARCHITECTURES[name], products)
        kernels, compilation = written.kernels, written.compilation
        multiplied = kernels_of_contractions(written.program, written.launches)
        contractions = [kernels[kernel] for kernel in multiplied]
        registers = [kernel.compiled.registers for kernel in contractions]
        spilled = [label for label, kernel in kernels.items() if kernel.compiled.spills]
        named = f" ({', '.join(spilled)})" if spilled else ""
        traffics = [kernel.traffic("shared", "global") for kernel in kernels.values()]
        (waves, least), (sectors, fewest) = (
            (sum(traffic.needed for traffic in column), sum(traffic.least for traffic in column))
            for column in zip(*traffics, strict=True)
        )
        yield (
            f"  {name}: ptxas: {len(kernels)} kernels, {len(spilled)} of them spill{named}; "
            f"{len(contractions)} kernels of contractions with {sum(registers)} registers "
            f"together, at most {max(registers, default=0)}, and "
            f"{sum(kernel.shared_bytes for kernel in contractions)} bytes of shared memory; "
            f"model: {waves} wavefronts for {least}, {sectors} sectors for {fewest}; "
            f"NVRTC {compilation.nvrtc_seconds:.1f} s, ptxas {compilation.ptxas_seconds:.1f} s"
        )


def shares_of(
    workload: Workload, dtype: str, architectures: Iterable[str], products: str = "float32"
) -> Iterator[str]:
    """For each architecture: the share of the products' operations that cuBLASLt computes.

    Nothing is tuned, and cuBLASLt has an algorithm for each product.
    """
    for name in architectures:
        program = program_for(workload, dtype, ARCHITECTURES[name], products)
        total = by_library = 0
        for number, step in enumerate(program.steps):
            if isinstance(step, Contraction):
                repeat = program.repeated(number)
                iterations = 1 if repeat is None else repeat.axis.extent
                operations = 2 * iterations * size_of(step.extents)
                total += operations
                if is_large(step) and product_of(step) is not None:
                    by_library += operations
        yield f"  {name}: cuBLASLt computes {by_library / total:.1%} of {total / 1e9:.2f} GFLOP"


@click.command(epilog=f"Workloads: {', '.join(NAMES)}.")
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", type=click.Choice(NAMES))
@click.option("--architecture", "architectures", multiple=True, type=click.Choice(ARCHITECTURES))
@click.option("--dtype", default="float32", type=click.Choice(DTYPES))
@click.option("--precision", default="float32", type=click.Choice(PRECISIONS))
@click.option("--totals", is_flag=True, help="print the sums over all kernels only")
@click.option("--shares", is_flag=True, help="print how much cuBLASLt computes, and nothing else")
def main(
    workloads: tuple[str, ...],
    architectures: tuple[str, ...],
    dtype: str,
    precision: str,
    *,
    totals: bool,
    shares: bool,
) -> None:
    """Prints the kernels of workloads, by default the workloads of `lamina bench`.

    Architectures without instructions for the dtype or the precision are left out, unless they are
    named.
    """
    problem = missing()
    if problem and not shares:
        raise click.ClickException(problem)
    if precision == "tf32" and dtype != "float32":
        raise click.ClickException("--precision tf32 is for --dtype float32")
    names = architectures or architectures_for(dtype, precision)
    for workload in chosen(workloads):
        rounded = f"{dtype} (TF32 products)" if precision == "tf32" else dtype
        click.echo(f"{workload.name}, {rounded}, a batch of {workload.batch}")
        lines = shares_of if shares else totals_of if totals else lines_of
        for line in lines(workload, dtype, names, precision):
            click.echo(line)


def architectures_for(dtype: str, precision: str) -> tuple[str, ...]:
    """The architectures that multiply the dtype, or TF32, as `Device` describes them."""
    needs_ampere = precision == "tf32" or dtype == "mixed-bfloat16"
    return tuple(
        name for name, gpu in ARCHITECTURES.items() if gpu.capability >= 80 or not needs_ampere
    )


if __name__ == "__main__":
    main()
