"""Runs cases with every schedule under oclgrind, each buffer a buffer of its own size.

A buffer in place of another one of its size is the same buffer, so that races of both are found.

`oclgrind python oclgrind_kernels.py NAME...` prints one line for each schedule for GPUs that gives
the results of the interpreter. Oclgrind writes its findings to the standard error. With the name
`without-barriers`, kernels have no barriers, so that oclgrind must find something.

With the name `processor`, the schedules are those for processors, with as many work items as there
is work for. With `all-at-once`, calls that depend on each other are side by side in one launch, so
that oclgrind must find something.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyopencl as cl
from alternatives import legal_schedules
from gpu_cases import CASES, TRAITS, Case, assert_close, compiled
from harness import run_program

from lamina.base.shapes import Array
from lamina.codegen.words import OPENCL, OPENCL_PROCESSOR, Words
from lamina.engines.gpu.gpus import GpuFamily, target_for
from lamina.engines.gpu.kernels import write_kernels
from lamina.engines.gpu.launches import Launches
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.engines.opencl import launch_plan
from lamina.engines.opencl.launch_plan import LaunchPlan
from lamina.engines.opencl.processors import ProcessorFamily
from lamina.program.program import Program

TARGET = target_for(TRAITS, "opencl")


assert OPENCL.groups is not None
WITHOUT_BARRIERS = replace(
    OPENCL, groups=replace(OPENCL.groups, barrier="(void)0", barrier_everywhere="(void)0")
)


def run_case(case: Case, words: Words) -> None:
    """Runs a case with every schedule for GPUs."""
    program = compiled(case, TARGET)
    family = GpuFamily(TRAITS, words, "opencl")
    schedules = [family.decide(program), *legal_schedules(family, program)]
    kernels = (write_kernels(program, one, TRAITS, words) for one in schedules)
    compare(case, program, zip(schedules, kernels, strict=True), is_right=words is OPENCL)


def run_case_for_processors(case: Case, *, all_at_once: bool) -> None:
    """Runs a case with every schedule for processors."""
    traits = replace(TRAITS, is_processor=True, lanes=4, fused=False)
    family = ProcessorFamily(traits, OPENCL_PROCESSOR, "opencl")
    program = compiled(case, family.target)
    # Each work item of a kernel is a work item of its launch, and each phase a launch.
    LaunchPlan.items = lambda self, call: min(call.slices.work.items, 8)
    launch_plan._LAUNCH_CYCLES = -1
    if all_at_once:
        launch_plan.phase_starts = lambda extents, calls, loops: [
            number == 0 for number, _ in enumerate(calls)
        ]
    schedules = [family.decide(program), *legal_schedules(family, program)]
    kernels = (family.write(program, schedule) for schedule in schedules)
    compare(case, program, zip(schedules, kernels, strict=True), is_right=not all_at_once)


def compare(
    case: Case, program: Program, kernels: Iterable[tuple[object, Launches]], *, is_right: bool
) -> None:
    """Runs the kernels of each schedule, and compares their results if they should be right."""
    feeds = case.feeds()
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    for number, (schedule, launches) in enumerate(kernels):
        outputs = outputs_of(program, launches, feeds)
        for name, value in expected.items() if is_right else ():
            assert_close(outputs[name], value, 2e-5, f"{name}\n{schedule}")
        print(f"{case.name} {number} is right", flush=True)


def outputs_of(program: Program, launches: Launches, feeds: dict[str, Array]) -> dict[str, Array]:
    """Runs kernels; returns the outputs."""
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    # Optimized code has instructions that oclgrind does not know.
    module = cl.Program(context, launches.text).build("-cl-std=CL1.2 -cl-opt-disable")
    sizes = {name: buffer.bytes for name, buffer in program.buffers.items()}
    sizes |= {name: workspace.bytes for name, workspace in launches.workspaces.items()}
    sizes |= launches.kept
    buffers = {
        name: cl.Buffer(context, cl.mem_flags.READ_WRITE, size)
        for name, size in sizes.items()
        if size
    }
    for allocation in program.plan.allocations:
        if allocation.in_place_of and sizes[allocation.buffer] == sizes[allocation.in_place_of]:
            buffers[allocation.buffer] = buffers[allocation.in_place_of]
    for name, value in (*feeds.items(), *program.constants.items()):
        if name in buffers:
            cl.enqueue_copy(queue, buffers[name], np.ascontiguousarray(value))
    for launch in (*launches.load, *launches.launches):
        kernel = cl.Kernel(module, launch.kernel)
        numbers = (*(0 for _ in launch.buffers), *launch.numbers)
        # Each buffer begins its block.
        arguments = [*map(buffers.get, launch.buffers), *map(np.int32, numbers)]
        for number, argument in enumerate(arguments):
            kernel.set_arg(number, argument)
        group = launch.group or 8
        size = -(-launch.items // group) * group
        cl.enqueue_nd_range_kernel(queue, kernel, (size,), (group,))
    outputs: dict[str, Array] = {}
    for name, source in program.outputs:
        buffer = program.buffers[source]
        outputs[name] = np.empty(buffer.shape, buffer.dtype.numpy)
        if buffer.bytes:
            cl.enqueue_copy(queue, outputs[name], buffers[source])
    queue.finish()
    return outputs


if __name__ == "__main__":
    names = sys.argv[1:]
    used = WITHOUT_BARRIERS if "without-barriers" in names else OPENCL
    for one in CASES:
        if one.name in names and "processor" in names:
            run_case_for_processors(one, all_at_once="all-at-once" in names)
        elif one.name in names:
            run_case(one, used)
