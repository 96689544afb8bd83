"""Workspaces of kernels keep to the limit of one allocation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_cases import TRAITS, Case, compiled
from hypothesis import given
from hypothesis import strategies as st

import lamina as lm
from lamina import ops
from lamina.base.shapes import uint8
from lamina.codegen.words import OPENCL, OPENCL_PROCESSOR
from lamina.engines.gpu.arena import arena_layout
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.gpu.kernels import workspaces_in_blocks
from lamina.engines.gpu.launches import Launches, Traits, Workspace
from lamina.engines.opencl import launch_plan
from lamina.engines.opencl.processors import ProcessorFamily
from lamina.engines.simd.emit.workspaces import Workspaces
from lamina.program.program import Buffer, Plan, Program

PROCESSOR = replace(TRAITS, is_processor=True, lanes=8, fused=True)


def limited(traits: Traits, largest_block_bytes: int) -> Traits:
    return replace(traits, largest_block_bytes=largest_block_bytes)


def empty_program() -> Program:
    return Program("empty", {}, (), (), {}, Plan((), 0, ()))


def test_blocks_of_workspaces_are_whole_multiples_of_the_alignment() -> None:
    assert limited(TRAITS, 1000).block_bytes == 896
    assert limited(TRAITS, 1024).block_bytes == 1024
    assert limited(TRAITS, 100).block_bytes == 128


def test_each_block_of_workspaces_is_in_one_block_of_the_arena() -> None:
    workspaces = {"a": Workspace(0, 300), "b": Workspace(0, 200, 1), "c": Workspace(256, 500, 1)}
    launches = Launches("", (), (), (), workspaces, {"packed": 64})
    assert launches.workspace_blocks == (300, 756)
    assert launches.workspace_bytes == 300 + 756 + 64
    whole = arena_layout(empty_program(), launches, limited(TRAITS, 4096))
    assert whole.blocks == (384 + 756,)
    assert whole.locations["c"] == (0, 384 + 256, 500)
    split = arena_layout(empty_program(), launches, limited(TRAITS, 1024))
    assert split.blocks == (300, 756)
    assert split.locations == {"a": (0, 0, 300), "b": (1, 0, 200), "c": (1, 256, 500)}


def test_the_workspaces_of_a_step_are_in_blocks_within_the_limit() -> None:
    sizes = {"a": 400, "b": 400, "c": 900, "d": 0, "large": 2000, "e": 10}
    buffers = [Buffer(name, "temporary", (size,), uint8) for name, size in sizes.items()]
    assert workspaces_in_blocks(buffers, limited(TRAITS, 1000)) == {
        "a": Workspace(0, 400),
        # A workspace takes 512 bytes, of 896.
        "b": Workspace(0, 400, 1),
        "c": Workspace(0, 900, 2),
        "d": Workspace(0, 1, 3),
        "large": Workspace(0, 2000, 4),
        "e": Workspace(0, 10, 5),
    }


Requests = list[tuple[int, int, int]]


@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 5), st.integers(1, 4))))
def test_workspaces_of_processors_cross_no_end_of_a_block(requests: Requests) -> None:
    block = 640
    workspaces = Workspaces(64, block)
    taken: list[tuple[int, int, range]] = []
    for number, (size, first, count) in enumerate(requests):
        steps = range(first, first + count)
        start = workspaces.allocate(str(number), size, steps)
        end = workspaces.extents[str(number)][1]
        assert end - start >= size
        assert start // block == (end - 1) // block or (size > block and start % block == 0)
        for other, stop, used in taken:
            assert end <= other or stop <= start or not {*steps} & {*used}
        taken.append((start, end, steps))


def test_fewer_work_items_keep_their_own_memory_within_one_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch_plan, "_LAUNCH_CYCLES", -1.0)
    net = lm.Sequential(lm.Input(3, 8, 8), lm.Conv2d(8, 3, padding=1), lm.ReLU(), lm.Conv2d(8, 3))
    program = net.plan(8, lm.MSE(), lm.SGD(0.1)).program

    def written(limit: int) -> Launches:
        family = ProcessorFamily(limited(PROCESSOR, limit), OPENCL_PROCESSOR, "opencl")
        return family.write(program, family.decide(program))

    whole = written(1 << 40)
    most = max(one.items for one in whole.launches)
    assert most >= 4
    own = whole.workspaces["own"].bytes // most
    assert own > 1000
    # A single work item may need more than the limit: then the program is refused.
    for limit, items in ((3 * own + 200, 3), (2 * own, 2), (own, 1), (own - 200, 1)):
        launches = written(limit)
        assert launches.workspaces["own"] == Workspace(0, items * own)
        assert max(one.items for one in launches.launches) == items
        others = [one for name, one in launches.workspaces.items() if name != "own"]
        assert others
        assert all(one.block > 0 for one in others)
        assert all(one.offset + one.bytes <= limit for one in others)


SPLIT = (
    Case("product", ((16, 1 << 16), (1 << 16, 16)), ops.matmul),
    Case("sum", ((1 << 20,),), lambda x: ops.sum(x)),
    Case("scan", ((1 << 18,),), lambda x: ops.cumsum(x, 0)),
)


@pytest.mark.parametrize("case", SPLIT, ids=lambda case: case.name)
def test_the_shares_of_a_split_sum_are_within_one_allocation(case: Case) -> None:
    program = compiled(case, GpuFamily(TRAITS, OPENCL, "opencl").target)

    def workspaces(limit: int) -> list[int]:
        traits = replace(limited(TRAITS, limit), alignment_bytes=4)
        family = GpuFamily(traits, OPENCL, "opencl")
        launches = family.write(program, family.decide(program))
        return [one.bytes for one in launches.workspaces.values()]

    largest = max(workspaces(1 << 40))
    limit = largest // 2
    assert all(size <= limit for size in workspaces(limit))
