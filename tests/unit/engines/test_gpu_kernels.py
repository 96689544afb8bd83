"""Kernels in text, and their workspaces, for any device: nothing here needs one."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from c99 import C99, C99_WITH_HALF, library_of
from error_texts import refused
from gpu_cases import TRAITS, Case, compiled
from harness import run_program
from hypothesis import given
from hypothesis import strategies as st
from program_cases import program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import bfloat16, float16, float32, int64, uint8
from lamina.codegen.c import Module
from lamina.codegen.values import I64
from lamina.codegen.words import NATIVE_HALF, OPENCL, OPENCL_PROCESSOR
from lamina.engines.gpu.arena import arena_layout
from lamina.engines.gpu.decisions import candidates, decide
from lamina.engines.gpu.gpus import GpuFamily, target_for
from lamina.engines.gpu.kernels import workspaces_in_blocks, write_kernels
from lamina.engines.gpu.launches import Launches, Workspace
from lamina.engines.gpu.schedule import ProgramSchedule, TiledSchedule
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.engines.opencl import launch_plan
from lamina.engines.opencl.processors import ProcessorFamily
from lamina.engines.simd.emit.addresses import Workspaces
from lamina.errors import EngineError
from lamina.graph import leaf
from lamina.program.program import Buffer, Plan, Program

TARGET = target_for(TRAITS, "opencl")
# Of a device without groups of work items.
ITEMS_ALONE = replace(TRAITS, local_bytes=0, largest_group=1)


def written(program, traits):
    return write_kernels(program, decide(program, TARGET, traits), traits, OPENCL)


def program_for(result):
    return program_of(result, target=TARGET)


@pytest.mark.parametrize(("size", "width"), [(1 << 20, "uint"), (1 << 31, "ulong")])
def test_positions_have_32_bits_where_all_of_them_fit(size, width):
    x = leaf("x", "input", (2, size), float32)
    text = written(program_for(ops.sum(ops.exp(x), 1)), ITEMS_ALONE).text
    loops = [line.strip() for line in text.splitlines() if line.strip().startswith("for (")]
    assert loops
    assert all(loop.startswith(f"for ({width} ") for loop in loops)


@pytest.mark.cases(
    ("shape", "axes", "needed"),
    ((10, 70), 1, 71),
    ((10, 3, 20), (0, 2), 10 * 21 + 11),
    ((10, 1000), 1, 8 * 129 + 9),
    ((2, 3), 1, 0),
    ids=["one loop", "two loops", "blocks", "unrolled"],
)
def test_the_iterations_of_a_work_item_are_counted(shape, axes, needed):
    x = leaf("x", "input", shape, float32)
    program = program_for(ops.sum(ops.exp(x), axes))
    written(program, replace(ITEMS_ALONE, most_iterations=needed))
    if needed:
        with pytest.raises(EngineError) as caught:
            written(program, replace(ITEMS_ALONE, most_iterations=needed - 1))
        assert caught.value.problem == "this device ends the loops of a work item too early"
        assert caught.value.facts == (
            ("at most", f"{needed - 1:,} iterations"),
            ("needed", f"{needed:,} in step0"),
        )


@pytest.mark.parametrize(
    ("most", "needed"), [(99, ""), (100, "101 in k"), (None, "an unknown number in k")]
)
def test_a_loop_with_bounds_from_memory_counts_with_its_largest_extent(most, needed):
    module = Module(OPENCL, fused=True, most_iterations=100)
    code = module.kernel("k", [("x", "i64")], [("count", I64)])
    code.end_loop(code.begin_loop(0, code.parameters[1], most=most))
    if not needed:
        assert "for (" in module.text()
        return
    error = refused(EngineError, lambda: module.text())
    assert error.facts == (("at most", "100 iterations"), ("needed", needed))


def test_equal_steps_share_their_kernels():
    layers = [layer for _ in range(6) for layer in (lm.Linear(32), lm.Tanh())]
    net = lm.Sequential(lm.Input(32), *layers)
    program = net.plan(8, engine="interpreter").program
    launches = written(program, TRAITS)
    assert len(launches.launches) == len(program.steps) == 6
    assert len({launch.kernel for launch in launches.launches}) < 4
    assert len({launch.buffers for launch in launches.launches}) == 6


def test_kernels_use_doubles_only_on_devices_that_have_them():
    without = replace(TRAITS, has_float64=False)
    x = leaf("x", "input", (8,), float32)
    program = program_for(ops.sin(x) ** x + ops.cos(x))
    assert "double" in written(program, TRAITS).text
    assert "double" not in written(program, without).text


def test_divisions_are_made_in_64_bits_where_32_are_not_rounded_correctly():
    x = leaf("x", "input", (8,), float32)
    program = program_for(ops.sqrt(x) / (x + 1))
    assert "double" not in written(program, TRAITS).text
    text = written(program, replace(TRAITS, exact_division=False)).text
    divided = [line for line in text.splitlines() if " / " in line or "sqrt(" in line]
    assert len(divided) == 2
    assert all(line.strip().startswith("const double ") for line in divided)


NATIVE = replace(OPENCL, half=NATIVE_HALF)


def test_only_kernels_with_float16_need_its_extension():
    x, y = (leaf("x", "input", (8,), dtype) for dtype in (float16, float32))
    for leaf_, expected in ((x, 1), (y, 0)):
        program = program_for(ops.exp(leaf_))
        schedule = decide(program, TARGET, TRAITS)
        for words, count in ((NATIVE, expected), (OPENCL, 0)):
            text = write_kernels(program, schedule, TRAITS, words).text
            assert text.count("cl_khr_fp16") == count


def test_sums_and_products_that_are_rounded_to_float16_are_computed_in_it():
    x = leaf("x", "input", (8,), float16)
    program = program_for((x * x + 0.5 - x) / (x + 0.1))
    schedule = decide(program, TARGET, TRAITS)
    text = write_kernels(program, schedule, TRAITS, NATIVE).text
    (kernel,) = (definition for definition in text.split("\n\n") if "void step0(" in definition)
    lines = [line for line in kernel.splitlines() if "(half)" in line]
    operators = [line.split("(half)")[1].split(") ")[1][0] for line in lines]
    # 0.1 is rounded to float16 before, so that the last sum is one of two float16.
    assert sorted(operators) == ["*", "+", "+", "-"]
    # The numerator and the denominator.
    assert kernel.count("convert_float(") == 2
    assert "convert_half_rte" in kernel
    assert "(half)" not in write_kernels(program, schedule, TRAITS, OPENCL).text


@pytest.mark.sampled
def test_tiles_of_floats_of_16_bits_take_16_bits_of_local_memory():
    x, weight = (leaf(name, "input", (64, 64), bfloat16) for name in "xw")
    program = program_for(ops.matmul(x, weight))
    (step,) = program.steps
    texts = {
        tiles.left.is_half: write_kernels(program, ProgramSchedule((tiles,)), TRAITS, OPENCL).text
        for tiles in candidates(step, TARGET, TRAITS)
        if isinstance(tiles, TiledSchedule)
    }
    assert texts[True].count("__local ushort l") == texts[False].count("__local uint l") == 2
    # Half as often, as vectors of 16 bytes have twice as many elements.
    assert "__global ushort8 *" in texts[True]
    assert "__global ushort4 *" in texts[False]


def test_kernels_of_devices_with_float16_are_cached_on_their_own():
    keys = {GpuFamily(TRAITS, words, "opencl").key for words in (OPENCL, NATIVE)}
    with_type = GpuFamily(replace(TRAITS, has_float16=True), NATIVE, "opencl")
    assert len({*keys, with_type.key}) == 3


def test_nothing_is_launched_for_a_step_without_elements():
    x = leaf("x", "input", (0, 4), float32)
    assert not written(program_for(x * 2), TRAITS).launches


def test_scatters_are_sorted_by_as_many_work_items_as_there_are_values():
    x, indices = leaf("x", "input", (100, 3), float32), leaf("i", "input", (100,), int64)
    launches = written(program_for(ops.scatter_add(x, indices, 7)), TRAITS).launches
    assert [one.items for one in launches] == [100, 7 * 3]


@pytest.mark.sampled
@pytest.mark.cases(
    ("words", "dtype"),
    (C99, "float32"),
    (C99, "mixed-bfloat16"),
    (C99, "mixed-float16"),
    (C99_WITH_HALF, "mixed-float16"),
    ids=["float32", "bfloat16 as integers", "float16 as integers", "float16 as a type"],
)
def test_a_training_step_runs_in_c99(words, dtype, tmp_path):
    """Contractions, reductions, random numbers and recurrences, in a language without vectors."""
    net = lm.Sequential(lm.Input(6, 4), lm.LSTM(5), lm.Dropout(0.5), lm.Linear(3))
    program = net.plan(4, lm.CrossEntropy(), lm.Adam(), engine="interpreter", dtype=dtype).program
    generator = np.random.default_rng(0)
    feeds = {
        argument.name: np.asarray(generator.uniform(0, 2, argument.shape), argument.dtype.numpy)
        for kind in ("input", "parameter", "state")
        for argument in program.of_kind(kind)
    }
    if "loss_scale" in feeds:
        feeds["loss_scale"] = np.array(256, "float32")
    outputs, after = run_program(program, InterpreterEngine(), feeds)
    launches = write_kernels(program, decide(program, TARGET, ITEMS_ALONE), ITEMS_ALONE, words)
    assert launches.repeats
    contents = _run_in_c99(program, launches, feeds, tmp_path)
    for name, buffer in program.outputs:
        np.testing.assert_allclose(contents[buffer], outputs[name], rtol=1e-5)
    for name, value in after.items():
        np.testing.assert_allclose(contents[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def _run_in_c99(program, launches, feeds, folder):
    """Runs kernels item by item; returns the contents of all buffers."""
    library = library_of(launches.text, folder)
    contents = {**program.constants, **feeds}
    arrays = {
        name: np.array(contents.get(name, np.zeros(buffer.shape, buffer.dtype.numpy)))
        for name, buffer in program.buffers.items()
    }

    def run(numbers, *iteration):
        for launch in launches.launches[numbers.start : numbers.stop]:
            buffers = [ctypes.c_void_p(arrays[name].ctypes.data) for name in launch.buffers]
            for item in range(launch.items):
                library["begin_item"](ctypes.c_uint64(item))
                library[launch.kernel](*buffers, *iteration)

    first = 0
    for repeated in launches.repeats:
        run(range(first, repeated.first))
        for iteration in range(repeated.count):
            run(range(repeated.first, repeated.last), ctypes.c_int(iteration))
        first = repeated.last
    run(range(first, len(launches.launches)))
    return arrays


PROCESSOR = replace(TRAITS, is_processor=True, lanes=8, fused=True)


def limited(traits, largest_block_bytes):
    return replace(traits, largest_block_bytes=largest_block_bytes)


def empty_program():
    return Program("empty", {}, (), (), {}, Plan((), 0, ()))


def test_blocks_of_workspaces_are_whole_multiples_of_the_alignment():
    limits = (1000, 1024, 100)
    assert [limited(TRAITS, one).block_bytes for one in limits] == [896, 1024, 128]


def test_each_block_of_workspaces_is_in_one_block_of_the_arena():
    workspaces = {"a": Workspace(0, 300), "b": Workspace(0, 200, 1), "c": Workspace(256, 500, 1)}
    launches = Launches("", (), (), (), workspaces, {"packed": 64})
    assert launches.workspace_blocks == (300, 756)
    assert launches.workspace_bytes == 300 + 756 + 64
    unsplit = arena_layout(empty_program(), launches, limited(TRAITS, 4096))
    assert unsplit.blocks == (384 + 756,)
    assert unsplit.locations["c"] == (0, 384 + 256, 500)
    split = arena_layout(empty_program(), launches, limited(TRAITS, 1024))
    assert split.blocks == (300, 756)
    assert split.locations == {"a": (0, 0, 300), "b": (1, 0, 200), "c": (1, 256, 500)}


def test_the_workspaces_of_a_step_are_in_blocks_within_the_limit():
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


@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 5), st.integers(1, 4))))
def test_workspaces_of_processors_cross_no_end_of_a_block(requests):
    block = 640
    workspaces = Workspaces(64, block)
    taken = []
    for number, (size, first, count) in enumerate(requests):
        steps = range(first, first + count)
        start = workspaces.allocate(str(number), size, steps)
        end = workspaces.extents[str(number)][1]
        assert end - start >= size
        assert start // block == (end - 1) // block or (size > block and start % block == 0)
        for other, stop, used in taken:
            assert end <= other or stop <= start or not {*steps} & {*used}
        taken.append((start, end, steps))


def test_fewer_work_items_keep_their_own_memory_within_one_allocation(monkeypatch):
    monkeypatch.setattr(launch_plan, "_LAUNCH_CYCLES", -1.0)
    net = lm.Sequential(lm.Input(3, 8, 8), lm.Conv2d(8, 3, padding=1), lm.ReLU(), lm.Conv2d(8, 3))
    program = net.plan(8, lm.MSE(), lm.SGD(0.1)).program

    def written(limit):
        family = ProcessorFamily(limited(PROCESSOR, limit), OPENCL_PROCESSOR, "opencl")
        return family.write(program, family.decide(program))

    unlimited = written(1 << 40)
    most = max(launch.items for launch in unlimited.launches)
    assert most >= 4
    share = unlimited.workspaces["own"].bytes // most
    assert share > 1000
    # A single work item may need more than the limit: then the program is refused.
    for limit, items in ((3 * share + 200, 3), (2 * share, 2), (share, 1), (share - 200, 1)):
        launches = written(limit)
        assert launches.workspaces["own"] == Workspace(0, items * share)
        assert max(launch.items for launch in launches.launches) == items
        others = [workspace for name, workspace in launches.workspaces.items() if name != "own"]
        assert others
        assert all(workspace.block > 0 for workspace in others)
        assert all(workspace.offset + workspace.bytes <= limit for workspace in others)


@pytest.mark.cases(
    "case",
    Case("product", ((16, 1 << 16), (1 << 16, 16)), ops.matmul),
    Case("sum", ((1 << 20,),), lambda x: ops.sum(x)),
    Case("scan", ((1 << 18,),), lambda x: ops.cumsum(x, 0)),
    ids=lambda case: case.name,
)
def test_the_shares_of_a_split_sum_are_within_one_allocation(case):
    program = compiled(case, GpuFamily(TRAITS, OPENCL, "opencl").target)

    def workspaces(limit):
        traits = replace(limited(TRAITS, limit), alignment_bytes=4)
        family = GpuFamily(traits, OPENCL, "opencl")
        launches = family.write(program, family.decide(program))
        return [one.bytes for one in launches.workspaces.values()]

    largest = max(workspaces(1 << 40))
    limit = largest // 2
    assert all(size <= limit for size in workspaces(limit))
