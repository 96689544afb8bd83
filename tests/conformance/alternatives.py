"""Other correct schedules of programs than those that an engine chooses."""

from collections.abc import Iterator
from typing import Any

import gpu_alternatives
import simd_alternatives

from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cuda.family import CudaFamily
from lamina.engines.engine import Engine
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.family import Family
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.opencl.processors import ProcessorFamily
from lamina.program.program import Program


def schedules_of(engine: Engine, program: Program) -> Iterator[Any]:
    """Other schedules of a program; none for the interpreter."""
    if isinstance(engine, CpuEngine):
        yield from simd_alternatives.legal_schedules(program, engine.processor)
    if isinstance(engine, GpuEngine):
        yield from legal_schedules(engine.family, program)
        yield from gpu_alternatives.candidate_schedules(program, engine.family)


def legal_schedules(family: Family, program: Program) -> Iterator[Any]:
    """Schedules of a family; for Nvidia's GPUs the last ones have all that cuBLASLt can compute.

    They have its last proposals, and its first ones.
    """
    if isinstance(family, ProcessorFamily):
        yield from simd_alternatives.legal_schedules(program, family.processor)
    elif isinstance(family, GpuFamily):
        yield from gpu_alternatives.legal_schedules(program, family.target, family.traits)
    if isinstance(family, CudaFamily):
        proposals = {number: family.library(step) for number, step in enumerate(program.steps)}
        proposed = {number: schedules for number, schedules in proposals.items() if schedules}
        for place in (-1, 0) if proposed else ():
            forced = {number: schedules[place] for number, schedules in proposed.items()}
            yield family.decide(program, forced)
