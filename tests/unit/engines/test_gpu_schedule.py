"""Schedules of GPU engines."""

from dataclasses import replace

import pytest
from gpu_cases import TRAITS
from program_cases import program_of

from lamina import ops
from lamina.base.shapes import bfloat16, float16, float32, int64
from lamina.engines.gpu.decisions import candidates, decide, promising
from lamina.engines.gpu.gpus import target_for
from lamina.engines.gpu.schedule import (
    WINOGRAD,
    ContractionSchedule,
    LoopSchedule,
    PassesSchedule,
    RowSchedule,
    TiledSchedule,
    TreeSchedule,
)
from lamina.graph import leaf
from lamina.program.index import Axis, axis_index, gathered_index
from lamina.program.program import Buffer, Plan, Program
from lamina.program.scalar import Literal, Load
from lamina.program.steps import Contraction, Loop, Store, Write

ROWS = Axis("i", 4)
FAR = 1 << 33
TARGET = target_for(TRAITS, "opencl")


def scattered(index):
    """Sequential stores at an index that is loaded from data."""
    position = gathered_index(Load("k", index, int64), 4)
    store = Store("y", position, Literal(1.0, float32), accumulate=True)
    step = Loop("0.step", (), (Write((ROWS,), (store,), sequential=True),))
    buffers = Buffer("k", "input", (4 * FAR,), int64), Buffer("y", "state", (4,), float32)
    named = {buffer.name: buffer for buffer in buffers}
    return Program("test", named, (step,), (("y", "y"),), {}, Plan((), 0, ()))


@pytest.mark.parametrize(("stride", "bits"), [(1, 32), (FAR, 64)])
def test_positions_of_loaded_indices_decide_the_position_bits(stride, bits):
    (step,) = decide(scattered(axis_index(ROWS) * stride), TARGET, TRAITS).steps
    assert step.position_bits == bits


# Decisions for a large GPU.
LARGE_GPU = replace(TRAITS, compute_units=100, local_bytes=1 << 16)


def product(m, k, n, batch=1, half=None):
    """The step of a matrix product; of casts of floats of 16 bits, if their dtype is given."""
    left = leaf("x", "input", (batch, m, k), half or float32)
    right = leaf("w", "input", (batch, k, n), half or float32)
    return only_step(ops.matmul(ops.cast(left, float32), ops.cast(right, float32)))


@pytest.mark.parametrize(
    ("m", "k", "n", "bits"),
    [(1 << 14, 1 << 14, 1 << 14, 32), (1 << 16, 1 << 15, 1, 64), (1 << 16, 1, 1 << 15, 64)],
)
def test_positions_of_products_are_those_of_operands_and_results(m, k, n, bits):
    assert chosen(product(m, k, n)).position_bits == bits


def only_step(result):
    (step,) = program_of(result, target=TARGET).steps
    return step


def tiles_of(step, traits):
    return [one for one in candidates(step, TARGET, traits) if isinstance(one, TiledSchedule)]


def chosen(step):
    return next(candidates(step, TARGET, LARGE_GPU))


def test_a_large_product_is_tiled_with_large_blocks():
    schedule = chosen(product(4096, 1024, 4096))
    assert isinstance(schedule, TiledSchedule)
    assert schedule.item_m * schedule.item_n >= 32
    assert schedule.left.lanes == schedule.right.lanes == 4


def rows(*shape):
    return leaf("x", "input", shape, float32)


ALONE = replace(TRAITS, local_bytes=0, largest_group=1)


@pytest.mark.cases(
    ("step", "traits", "kinds"),
    (product(1, 4096, 256), LARGE_GPU, TreeSchedule | PassesSchedule),
    (product(256, 4096, 1), LARGE_GPU, TreeSchedule | PassesSchedule),
    (product(64, 64, 64), ALONE, ContractionSchedule),
    (only_step(ops.softmax(rows(2048, 512), 1)), LARGE_GPU, RowSchedule),
    ids=["row", "column", "without groups", "long rows"],
)
def test_the_first_candidate_is_of_a_kind(step, traits, kinds):
    assert isinstance(next(candidates(step, TARGET, traits)), kinds)


def test_small_products_of_a_batch_share_a_group():
    assert any(one.tile_b > 1 for one in tiles_of(product(8, 8, 8, batch=512), LARGE_GPU))


def test_a_small_result_with_a_long_k_is_split():
    schedule = chosen(product(64, 1 << 16, 64))
    (only,) = schedule.passes
    assert only.splits >= 16
    assert str(schedule).startswith("split into ")


def test_a_convolution_of_many_channels_is_transformed():
    weight = leaf("w", "input", (256, 256, 3, 3), float32)
    padding = ((1, 1), (1, 1))
    result = ops.conv(rows(32, 256, 32, 32), weight, 1, padding, dilations=1, groups=1)
    steps = program_of(result, target=TARGET).steps
    (step,) = [step for step in steps if isinstance(step, Contraction)]
    ways = [getattr(schedule, "way", "") for schedule in candidates(step, TARGET, LARGE_GPU)]
    assert (ways[0], ways.count(WINOGRAD)) == (WINOGRAD, 1)


@pytest.mark.parametrize("m", [1, 7, 64, 1000])
@pytest.mark.parametrize("k", [1, 30, 1024])
def test_every_candidate_fits_on_the_device(m, k):
    small = replace(TRAITS, local_bytes=1 << 14, largest_group=128)
    schedules = list(candidates(product(m, k, 48), TARGET, small))
    assert len(set(schedules)) == len(schedules) > 1
    for schedule in schedules:
        parts = schedule.passes[0].kernels if isinstance(schedule, PassesSchedule) else (schedule,)
        for part in parts:
            assert getattr(part, "group", 1) <= small.largest_group, str(schedule)
            if isinstance(part, TiledSchedule):
                assert part.local_bytes(4) <= small.local_bytes


def kept_in_halves(schedule):
    """Whether a schedule keeps tiles of floats of 16 bits in local memory."""
    return isinstance(schedule, TiledSchedule) and schedule.left.is_half and schedule.right.is_half


@pytest.mark.parametrize("half", [bfloat16, float16], ids=str)
def test_tiles_of_floats_of_16_bits_are_kept_so_or_in_32_bits(half):
    step = product(512, 512, 512, half=half)
    schedules = promising(step, TARGET, LARGE_GPU)
    tiles = [schedule for schedule in schedules if isinstance(schedule, TiledSchedule)]
    # Tuning tries both.
    assert {kept_in_halves(tile) for tile in tiles} == {True, False}
    for tile in tiles:
        assert tile.left.lanes == tile.right.lanes == (8 if kept_in_halves(tile) else 4)
        assert str(tile).count("kept in 16 bits") == 2 * kept_in_halves(tile)


def test_a_device_with_float16_multiplies_from_tiles_of_16_bits():
    with_half = replace(LARGE_GPU, has_float16=True)
    step = product(4096, 1024, 4096, half=float16)
    assert kept_in_halves(next(candidates(step, TARGET, with_half)))
    # There are no instructions that multiply bfloat16: each would be converted often.
    step = product(4096, 1024, 4096, half=bfloat16)
    assert not kept_in_halves(next(candidates(step, TARGET, with_half)))


def test_tiles_of_16_bits_may_be_larger_than_those_of_32_bits():
    small = replace(LARGE_GPU, local_bytes=1 << 13)
    tiles = tiles_of(product(512, 512, 512, half=float16), small)
    assert all(tile.local_bytes(4) <= small.local_bytes for tile in tiles)
    largest = {False: 0, True: 0}
    for tile in tiles:
        size = tile.tile_m * tile.tile_n * tile.tile_k * tile.buffers
        largest[kept_in_halves(tile)] = max(size, largest[kept_in_halves(tile)])
    assert largest[True] == 2 * largest[False]


def test_only_the_operand_of_16_bits_is_kept_in_16_bits():
    left, right = leaf("x", "input", (64, 64), float16), leaf("w", "input", (64, 64), float32)
    found = tiles_of(only_step(ops.matmul(ops.cast(left, float32), right)), LARGE_GPU)
    kept = {(one.swapped, one.left.is_half, one.right.is_half) for one in found}
    assert kept == {(False, False, False), (False, True, False)}
    assert not any(map(kept_in_halves, tiles_of(product(512, 512, 512), LARGE_GPU)))


def test_neighbouring_points_of_a_large_loop_are_a_vector():
    step = only_step(ops.exp(rows(1024, 1024)) + 1)
    assert [*candidates(step, TARGET, LARGE_GPU)] == [LoopSchedule(4, 32), LoopSchedule(1, 32)]


@pytest.mark.parametrize("columns", [32, 27])
def test_sums_of_columns_are_split(columns):
    schedule = chosen(only_step(ops.sum(rows(1 << 16, columns), 0)))
    assert schedule.passes[0].splits >= 256
    # Neighbouring work items read neighbouring columns.
    assert isinstance(schedule.passes[0].kernels[0], LoopSchedule)


def test_a_long_scan_is_divided_into_blocks():
    schedule = chosen(only_step(ops.cumsum(rows(1 << 18), 0)))
    assert len(schedule.passes[0].kernels) == 3


@pytest.mark.parametrize(("count", "kernels"), [(4096, 1), (4097, 6), (1 << 16, 9)])
def test_a_long_sort_merges_runs(count, kernels):
    indices = leaf("i", "input", (count,), int64)
    sort, _ = program_of(ops.scatter_add(rows(count, 3), indices, 9), target=TARGET).steps
    schedule = chosen(sort)
    parts = schedule.passes[0].kernels if isinstance(schedule, PassesSchedule) else (schedule,)
    assert len(parts) == kernels
