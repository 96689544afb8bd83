"""Correct schedules of programs for devices that run kernels, with odd tiles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from simd_alternatives import combinations

from lamina.codegen.axes import merged_axes
from lamina.engines.gpu.chain_schedules import matrix_chain, tiled_chain
from lamina.engines.gpu.contraction_costs import rate_of
from lamina.engines.gpu.contraction_schedules import (
    direct_schedule,
    fits,
    for_share,
    tiled_schedule,
    vector_lanes,
    winograd_schedules,
)
from lamina.engines.gpu.decisions import candidates, decide, position_bits
from lamina.engines.gpu.family import Family, SingleSteps
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.loop_schedules import (
    LEAST_GROUP,
    can_share_rows,
    merge_schedule,
    points_of,
    split_size,
)
from lamina.engines.gpu.matrix_schedules import matrices_fit, matrix_schedule
from lamina.engines.gpu.packed_operands import packed_steps
from lamina.engines.gpu.passes import ordered, stored_steps
from lamina.engines.gpu.products import Product
from lamina.engines.gpu.schedule import (
    PACKED,
    STORED,
    WINOGRAD,
    ContractionSchedule,
    KernelSchedule,
    LoopSchedule,
    MatrixSchedule,
    Pass,
    PassesSchedule,
    ProgramSchedule,
    RowSchedule,
    ScanSchedule,
    SortSchedule,
    StepSchedule,
    StepsSchedule,
    TreeSchedule,
    WrittenSchedule,
    element_bytes_of,
)
from lamina.engines.gpu.winograd import convolution_of
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.program import Program
from lamina.program.steps import Chain, Contraction, Loop, Reduce, Scan, Sort, Step, Write
from lamina.program.target import Target


def legal_schedules(program: Program, target: Target, traits: Traits) -> Iterator[ProgramSchedule]:
    """Other correct schedules of a program: every kind of kernel, for each step that allows it."""
    chosen = decide(program, target, traits)
    kinds = [list(_legal(step, target, traits)) for step in program.steps]
    schedules = [ProgramSchedule(tuple(forced.values())) for forced in combinations(kinds)]
    yield from (schedule for schedule in dict.fromkeys(schedules) if schedule != chosen)


def _legal(step: Step, target: Target, traits: Traits) -> Iterator[StepSchedule]:
    bits = position_bits(step, target)
    if isinstance(step, Contraction):
        return legal_contractions(step, bits, traits)
    if isinstance(step, Chain):
        return legal_chains(step, bits, target, traits)
    return legal_loops(step, bits, traits)


def legal_chains(chain: Chain, bits: int, target: Target, traits: Traits) -> Iterator[StepSchedule]:
    """Correct schedules with odd tiles, and the one that stores all products."""
    tiles = (8, 8, 2, 2), (6, 10, 3, 5), (16, 4, 1, 4), (4, 12, 4, 1)
    schedules = [tiled_chain(chain, tile, width, traits) for tile in tiles for width in (bits, 64)]
    warps = (16, 16, 1), (32, 48, 2), (64, 16, 2)
    schedules += [matrix_chain(chain, tile, bits, traits) for tile in warps]
    yield from (schedule for schedule in schedules if schedule is not None)
    steps = stored_steps(chain, StepWorkspaces(chain.name))
    yield StepsSchedule(STORED, tuple(next(candidates(step, target, traits)) for step in steps))


def candidate_schedules(program: Program, family: Family) -> Iterator[Any]:
    """Schedules of a program that together have all candidates of each step; for tests."""
    alone = SingleSteps(program)
    every = [family.candidates(alone.program(number)) for number in range(len(program.steps))]
    for forced in combinations([schedules[1:] or [None] for schedules in every]):
        yield family.decide(program, forced)


def legal_loops(loop: Loop, bits: int, traits: Traits) -> Iterator[StepSchedule]:
    """Correct schedules: some of every kind."""
    stage = loop.stages[0]
    if isinstance(stage, Sort):
        for run in (max(stage.axis.extent, 1), 2, 3):
            yield merge_schedule(stage.axis.extent, run, bits)
        yield SortSchedule(max(stage.axis.extent, 1), False, 64)
        return
    yield LoopSchedule(1, bits)
    yield LoopSchedule(1, 64)
    if isinstance(stage, Scan) and traits.largest_group >= LEAST_GROUP:
        for items in (1, 4, 16):
            yield ScanSchedule(items, bits)
        for splits in (2, 3):
            if stage.axis.extent and stage.axis.extent % splits == 0:
                three = (LoopSchedule(1, bits), ScanSchedule(2, bits), ScanSchedule(4, bits))
                yield PassesSchedule((Pass(1, splits, three),))
    if not all(isinstance(stage, Reduce | Write) for stage in loop.stages):
        return
    kernels: list[KernelSchedule] = [LoopSchedule(1, bits)]
    merged = merged_axes(loop).axes
    for lanes in (2, 4):
        if merged and merged[-1].extent % lanes == 0:
            yield LoopSchedule(lanes, bits)
    count = points_of(loop)
    if traits.largest_group >= LEAST_GROUP and can_share_rows(loop):
        for items, rows in product((4, 1), (2, 1)):
            if count and count % rows == 0:
                kernels.append(RowSchedule(items, rows, rows > 1, bits))
    yield from kernels[1:]
    if not count:
        return
    for splits in (2, 3):
        if split_size(ordered(loop)) % splits == 0:
            for pair in ((kernels[-1], kernels[0]), (kernels[0], kernels[-1])):
                yield PassesSchedule((Pass(len(loop.stages), splits, pair),))
    if len(loop.stages) > 1:
        single = Pass(1, 1, (LoopSchedule(1, bits),))
        yield PassesSchedule((single,) * len(loop.stages))


def legal_contractions(step: Contraction, bits: int, traits: Traits) -> Iterator[WrittenSchedule]:
    """Correct schedules: some of every kind."""
    gemm = Product(step)
    yield direct_schedule(gemm, bits)
    yield ContractionSchedule(1, 1, 64)
    yield ContractionSchedule(3, 2, bits)
    if traits.largest_group < LEAST_GROUP:
        return
    kernels = [*_legal_groups(gemm, bits, traits), *legal_matrices(gemm, bits, traits)]
    yield from kernels
    if convolution_of(step) is not None:
        point = LoopSchedule(1, bits)
        yield StepsSchedule(WINOGRAD, (point, point, ContractionSchedule(2, 2, bits), point))
        yield from winograd_schedules(step, bits, traits)
    for (operand, way), kernel in zip(PACKED.items(), kernels, strict=False):
        _, products = packed_steps(operand, step, StepWorkspaces(step.name))
        grouped = next(iter(_legal_groups(Product(products), bits, traits)), kernel)
        yield StepsSchedule(way, (LoopSchedule(1, bits), grouped))
    for splits in (2, 3):
        if gemm.k and gemm.k % splits == 0:
            for kernel in kernels[splits::4]:
                share = for_share(kernel, gemm.k // splits)
                yield PassesSchedule((Pass(1, splits, (share, LoopSchedule(1, bits))),))


def _legal_groups(gemm: Product, bits: int, traits: Traits) -> Iterator[KernelSchedule]:
    """Schedules with local memory."""
    kinds = (
        # Tile of batch, m, n and k; block; buffers, unrolled, swapped.
        ((1, 8, 8, 4), (4, 4), 1, 2, False),
        ((1, 4, 8, 3), (2, 4), 2, 3, True),
        ((2, 4, 4, 8), (2, 2), 2, 8, False),
        ((3, 6, 2, 2), (3, 1), 1, 2, True),
        ((1, 16, 4, 16), (4, 2), 2, 16, False),
    )
    for (tile_b, *tile), block, buffers, unrolled, swapped in kinds:
        oriented = gemm.exchanged if swapped else gemm
        while oriented.batch % tile_b:
            tile_b -= 1
        sizes = (tile_b, tile[0], tile[1], tile[2])
        for halves in (False, True):
            tiled = tiled_schedule(
                *(oriented, sizes, block, buffers, unrolled, swapped, bits), halves=halves
            )
            is_another = not halves or tiled.left.is_half or tiled.right.is_half
            if is_another and fits(tiled, oriented.element_bytes, traits):
                yield tiled
    lanes = vector_lanes(gemm, min(gemm.left.runs[1], gemm.right.runs[1]))
    yield TreeSchedule(4, 1, 1, 1, lanes, True, bits)
    yield TreeSchedule(2, 3, 2, 1, 1, False, bits)
    yield TreeSchedule(8, 2, 1, 3, 1, True, bits)
    yield TreeSchedule(1, 4, 2, 2, lanes, False, bits)


def legal_matrices(gemm: Product, bits: int, traits: Traits) -> Iterator[MatrixSchedule]:
    """Correct schedules with small tiles."""
    if rate_of(gemm, traits) is None or not gemm.k:
        return
    choices = [
        ((16, 16, 16), (1, 1), 2, False),
        ((32, 16, 32), (2, 1), 3, True),
        ((32, 48, 16), (1, 3), 4, False),
        ((64, 32, 48), (2, 2), 2, True),
    ]
    row = 128 // element_bytes_of(gemm.matrix_kind)
    by_warpgroups = [((64, 256, row), (4, 1), 4, False), ((128, 64, 2 * row), (8, 1), 3, True)]
    if rate_of(gemm, traits, by_warpgroups=True) is not None:
        choices = [*by_warpgroups, *choices]
    for choice in choices:
        tile, warps, stages, swapped = choice
        oriented = gemm.exchanged if swapped else gemm
        decided = matrix_schedule(
            *(oriented, tile, warps, stages, swapped, bits, traits),
            by_warpgroups=choice in by_warpgroups,
        )
        if matrices_fit(decided, traits):
            yield decided
