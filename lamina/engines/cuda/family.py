"""The family of kernels for Nvidia's GPUs: that for GPUs, with products by cuBLASLt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from lamina.base.cache import Sources
from lamina.codegen.signatures import Signatures
from lamina.engines.cuda.driver import CudaDriver
from lamina.engines.gpu.decisions import position_bits
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.gpu.loop_schedules import point_schedule
from lamina.engines.gpu.passes import without_epilogue
from lamina.engines.gpu.plain_products import MatrixProduct, plain_product
from lamina.engines.gpu.schedule import LibrarySchedule, ProgramSchedule, StepSchedule
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.program import Program
from lamina.program.steps import Contraction, Loop, Step

SOURCES = Sources(
    "lamina.base", "lamina.program", "lamina.codegen", "lamina.engines.gpu", "lamina.engines.cuda"
)
# The least multiplications of a step, the least M and N, and the least K, for which cuBLASLt is
# expected to be faster than our kernels. With a small K, storing sums takes longer than computing
# them, and our kernels have the epilogues within. Tuning decides on each device.
LEAST_MULTIPLICATIONS, LEAST_SIDE, LEAST_K = 2**27, 32, 128


@final
class CudaFamily(GpuFamily):
    """Kernels for GPUs; large plain products are computed by cuBLASLt."""

    def __init__(self, driver: CudaDriver) -> None:
        super().__init__(driver.traits, driver.words, "cuda")
        self._driver = driver
        # The version of cuBLASLt decides which algorithms it has, and what their data means.
        self.key = repr((self.key, driver.record.version, driver.library_version()))
        self.sources = SOURCES

    def decide(
        self, program: Program, forced: Mapping[int, StepSchedule] | None = None
    ) -> ProgramSchedule:
        return super().decide(program, {**self._expected(program), **(forced or {})})

    def _expected(self, program: Program) -> dict[int, StepSchedule]:
        """The steps that cuBLASLt is expected to run fastest, by their numbers."""
        signatures = Signatures(program)
        # Equal steps are decided once.
        decisions: dict[Step, LibrarySchedule | None] = {}
        schedules: dict[int, StepSchedule] = {}
        for number, step in enumerate(program.steps):
            (equal,), _ = signatures.numbered(step)
            if equal not in decisions:
                proposed = self.library(equal) if is_large(equal) else ()
                decisions[equal] = proposed[0] if proposed else None
            decided = decisions[equal]
            if decided is not None:
                schedules[number] = decided
        return schedules

    def candidates(self, program: Program) -> Sequence[StepSchedule]:
        (step,) = program.steps
        generated, library = super().candidates(program), self.library(step)
        return [*library, *generated] if is_large(step) else [*generated, *library]

    def library(self, step: Step) -> tuple[LibrarySchedule, ...]:
        """The schedules of a step by cuBLASLt: alone, or with a kernel for the epilogue.

        There is one for each algorithm that the library proposes, in its order, and none if the
        step is no plain product.
        """
        parts = product_of(step)
        if parts is None:
            return ()
        product, loop = parts
        epilogue = None
        if loop is not None:
            epilogue = point_schedule(loop, position_bits(step, self.target), self.traits)
        algorithms = self._driver.library_algorithms(product)
        return tuple(LibrarySchedule(product, algorithm, epilogue) for algorithm in algorithms)


def product_of(step: Step) -> tuple[MatrixProduct, Loop | None] | None:
    """The plain product that a step is, and the loop for its epilogue if the library has not it.

    None if it is no plain product.
    """
    if not isinstance(step, Contraction):
        return None
    plain = plain_product(step)
    if plain is not None:
        return plain.product, None
    sums, loop = without_epilogue(step, StepWorkspaces(step.name))
    plain = plain_product(sums)
    return None if plain is None else (plain.product, loop)


def is_large(step: Step) -> bool:
    """Whether cuBLASLt is expected to run a step fastest, if it can."""
    if not isinstance(step, Contraction):
        return False
    batch, m, n, k = step.extents
    is_wide = min(m, n) >= LEAST_SIDE and k >= LEAST_K
    return is_wide and batch * m * n * k >= LEAST_MULTIPLICATIONS
