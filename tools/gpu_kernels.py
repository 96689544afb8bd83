"""Compiles the kernels of the workloads for AMD's GPUs, and prints what the compiler says.

    python tools/gpu_kernels.py vgg transformer --processor gfx90a --processor gfx1100
    python tools/gpu_kernels.py mlp --dtype mixed-float16 --totals

For each kernel: its registers, spills, local memory and occupancy, as the compiler counts them.
For each step: its bytes and operations, as the program states them, and the time that eight GPUs
need at least, by the peak rates that their makers publish. Nothing here is a measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from amd_compiler import PROCESSORS, Compiled, compiled, is_installed
from gpu_devices import GPUS
from kernel_tables import DTYPES, Roofline, kernels_of_contractions, lines_of_steps, program_of

from lamina.codegen.words import NATIVE_HALF, OPENCL
from lamina.engines.engine import Device
from lamina.engines.gpu.decisions import decide
from lamina.engines.gpu.gpus import target_for
from lamina.engines.gpu.kernels import write_kernels
from lamina.engines.gpu.launches import Traits
from lamina.program.program import Program
from lamina.workloads import NAMES, chosen

# A large GPU of AMD's, as its driver describes it.
TRAITS = Traits(
    is_processor=False,
    has_float64=True,
    lanes=1,
    compute_units=104,
    exact_division=False,
    fused=True,
    alignment_bytes=128,
    largest_block_bytes=1 << 35,
    local_bytes=1 << 16,
    largest_group=256,
    has_float16=True,
)
# Its driver has cl_khr_fp16.
WORDS = replace(OPENCL, half=NATIVE_HALF)
TARGET = target_for(TRAITS, "opencl")
# OpenCL has instructions for float16 only.
GPU = Device("opencl", "a GPU", None, has_bfloat16=False, has_float16=True)
ROOFLINES = tuple(Roofline(gpu.name, gpu) for gpu in GPUS)


def lines_of(program: Program, processors: Sequence[str]) -> Iterator[str]:
    """The table of a program: its steps, and below each the kernels that it is the first to use."""
    schedule = decide(program, TARGET, TRAITS)
    launches = write_kernels(program, schedule, TRAITS, WORDS)
    described: dict[str, list[str]] = {}
    for processor in processors:
        for kernel in compiled(launches.text, processor):
            described.setdefault(kernel.name, []).append(f"on {processor}: {text_of(kernel)}")
    return lines_of_steps(program, schedule, launches, ROOFLINES, described)


def totals_of(program: Program, processors: Sequence[str]) -> Iterator[str]:
    """For each processor: the kernels of contractions, and what they use; and all spills."""
    launches = write_kernels(program, decide(program, TARGET, TRAITS), TRAITS, WORDS)
    multiplied = kernels_of_contractions(program, launches)
    for processor in processors:
        kernels = compiled(launches.text, processor)
        contractions = [kernel for kernel in kernels if kernel.name in multiplied]
        registers = sum(kernel.vector_registers for kernel in contractions)
        local = sum(kernel.local_bytes for kernel in contractions)
        spilled = sum(bool(kernel.spills) for kernel in kernels)
        yield (
            f"  {processor}: {len(kernels)} kernels, {spilled} of them spill; "
            f"{len(contractions)} kernels of contractions with {registers} VGPRs and {local} bytes "
            "of LDS together"
        )


def text_of(kernel: Compiled) -> str:
    """What the compiler says of a kernel, in one line."""
    registers = f"{kernel.vector_registers} VGPRs, {kernel.scalar_registers} SGPRs"
    spills = f"{kernel.spills} bytes spilled"
    memory = f"{kernel.local_bytes} bytes of LDS"
    return f"{registers}, {spills}, {memory}, occupancy {kernel.occupancy}"


@click.command(epilog=f"Workloads: {', '.join(NAMES)}.")
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", type=click.Choice(NAMES))
@click.option("--processor", "processors", multiple=True, type=click.Choice(PROCESSORS))
@click.option("--dtype", default="float32", type=click.Choice(DTYPES))
@click.option("--totals", is_flag=True, help="print the sums over all kernels only")
def main(
    workloads: tuple[str, ...], processors: tuple[str, ...], dtype: str, *, totals: bool
) -> None:
    """Prints the kernels of workloads, by default the workloads of `lamina bench`."""
    if not is_installed():
        raise click.ClickException("clang-16 is not installed. Install the package clang-16.")
    for workload in chosen(workloads):
        click.echo(f"{workload.name}, {dtype}, a batch of {workload.batch}")
        lines = totals_of if totals else lines_of
        for line in lines(program_of(workload, dtype, GPU, TARGET), processors or PROCESSORS):
            click.echo(line)


if __name__ == "__main__":
    main()
