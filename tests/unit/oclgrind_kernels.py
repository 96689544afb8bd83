"""Runs cases with every schedule for GPUs under oclgrind, each buffer a buffer of its own size.

`oclgrind python oclgrind_kernels.py NAME...` prints one line for each schedule that gives the
results of the interpreter. Oclgrind writes its findings to the standard error. With the name
`without-barriers`, kernels have no barriers, so that oclgrind must find something.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pyopencl as cl
from gpu_cases import CASES, TRAITS, Case, compiled
from harness import run_program

from lamina.codegen.words import OPENCL, Words
from lamina.engines.gpu.decisions import decide, legal_schedules
from lamina.engines.gpu.kernels import write_kernels
from lamina.engines.gpu.launches import Launches
from lamina.engines.gpu.target import target_for
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.program.program import Program
from lamina.shapes import Array

TARGET = target_for(TRAITS, "opencl")


assert OPENCL.groups is not None
WITHOUT_BARRIERS = replace(
    OPENCL, groups=replace(OPENCL.groups, barrier="(void)0", barrier_everywhere="(void)0")
)


def run_case(case: Case, words: Words) -> None:
    """Runs a case with every schedule."""
    program = compiled(case, TARGET)
    feeds = case.feeds()
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    schedules = [decide(program, TARGET, TRAITS), *legal_schedules(program, TARGET, TRAITS)]
    for number, schedule in enumerate(schedules):
        launches = write_kernels(program, schedule, TRAITS, words)
        found = outputs_of(program, launches, feeds)
        for name, value in expected.items() if words is OPENCL else ():
            np.testing.assert_allclose(
                *(found[name], value), rtol=2e-5, atol=2e-5, err_msg=f"{name}\n{schedule}"
            )
        print(f"{case.name} {number} is right", flush=True)


def outputs_of(program: Program, launches: Launches, feeds: dict[str, Array]) -> dict[str, Array]:
    """Runs kernels; returns the outputs."""
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    # Optimized code has instructions that oclgrind does not know.
    module = cl.Program(context, launches.text).build("-cl-std=CL1.2 -cl-opt-disable")
    sizes = {name: one.bytes for name, one in program.buffers.items()}
    sizes |= {name: one.bytes for name, one in launches.workspaces.items()}
    buffers = {
        name: cl.Buffer(context, cl.mem_flags.READ_WRITE, size)
        for name, size in sizes.items()
        if size
    }
    for name, value in (*feeds.items(), *program.constants.items()):
        if name in buffers:
            cl.enqueue_copy(queue, buffers[name], np.ascontiguousarray(value))
    for launch in launches.launches:
        kernel = cl.Kernel(module, launch.kernel)
        for number, name in enumerate(launch.buffers):
            kernel.set_arg(number, buffers.get(name))
        group = launch.group or 8
        size = -(-launch.items // group) * group
        cl.enqueue_nd_range_kernel(queue, kernel, (size,), (group,))
    found: dict[str, Array] = {}
    for name, buffer in program.outputs:
        one = program.buffers[buffer]
        found[name] = np.empty(one.shape, one.dtype.numpy)
        if one.bytes:
            cl.enqueue_copy(queue, found[name], buffers[buffer])
    queue.finish()
    return found


if __name__ == "__main__":
    names = sys.argv[1:]
    used = WITHOUT_BARRIERS if "without-barriers" in names else OPENCL
    for one in CASES:
        if one.name in names:
            run_case(one, used)
