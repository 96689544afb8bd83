"""Kernels in text, for any device: nothing here needs one."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from c99 import C99, C99_WITH_HALF, library_of
from error_texts import refused
from gpu_cases import TRAITS
from harness import run_program
from program_cases import program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, bfloat16, float16, float32, int64
from lamina.codegen.c import Module
from lamina.codegen.values import I64
from lamina.codegen.words import NATIVE_HALF, OPENCL, Words
from lamina.engines.gpu.decisions import candidates, decide
from lamina.engines.gpu.gpus import GpuFamily, target_for
from lamina.engines.gpu.kernels import write_kernels
from lamina.engines.gpu.launches import Launches, Traits
from lamina.engines.gpu.schedule import Schedule, TiledSchedule
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.graph import Tensor, leaf
from lamina.program.program import Program

TARGET = target_for(TRAITS, "opencl")
# Of a device without groups of work items.
ITEMS_ALONE = replace(TRAITS, local_bytes=0, largest_group=1)


def written(program: Program, traits: Traits) -> Launches:
    return write_kernels(program, decide(program, TARGET, traits), traits, OPENCL)


def compiled(result: Tensor) -> Program:
    return program_of(result, target=TARGET)


@pytest.mark.parametrize(("size", "width"), [(1 << 20, "uint"), (1 << 31, "ulong")])
def test_positions_have_32_bits_where_all_of_them_fit(size: int, width: str) -> None:
    x = leaf("x", "input", (2, size), float32)
    text = written(compiled(ops.sum(ops.exp(x), 1)), ITEMS_ALONE).text
    loops = [line.strip() for line in text.splitlines() if line.strip().startswith("for (")]
    assert loops
    assert all(loop.startswith(f"for ({width} ") for loop in loops)


@pytest.mark.parametrize(
    ("shape", "axes", "needed"),
    [
        ((10, 70), 1, 71),
        ((10, 3, 20), (0, 2), 10 * 21 + 11),
        ((10, 1000), 1, 8 * 129 + 9),
        ((2, 3), 1, 0),
    ],
    ids=["one loop", "two loops", "blocks", "unrolled"],
)
def test_the_iterations_of_a_work_item_are_counted(
    shape: tuple[int, ...], axes: int | tuple[int, ...], needed: int
) -> None:
    x = leaf("x", "input", shape, float32)
    program = compiled(ops.sum(ops.exp(x), axes))
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
    ("most", "found"), [(99, ""), (100, "101 in k"), (None, "an unknown number in k")]
)
def test_a_loop_with_bounds_from_memory_counts_with_its_largest_extent(
    most: int | None, found: str
) -> None:
    module = Module(OPENCL, fused=True, most_iterations=100)
    code = module.kernel("k", [("x", "i64")], [("count", I64)])
    code.end_loop(code.begin_loop(0, code.parameters[1], most=most))
    if not found:
        assert "for (" in module.text()
        return
    error = refused(EngineError, lambda: module.text())
    assert error.facts == (("at most", "100 iterations"), ("needed", found))


def test_equal_steps_share_their_kernels() -> None:
    layers = [layer for _ in range(6) for layer in (lm.Linear(32), lm.Tanh())]
    net = lm.Sequential(lm.Input(32), *layers)
    program = net.plan(8, engine="interpreter").program
    launches = written(program, TRAITS)
    assert len(launches.launches) == len(program.steps) == 6
    assert len({one.kernel for one in launches.launches}) < 4
    assert len({one.buffers for one in launches.launches}) == 6


def test_kernels_use_doubles_only_on_devices_that_have_them() -> None:
    without = replace(TRAITS, has_float64=False)
    x = leaf("x", "input", (8,), float32)
    program = compiled(ops.sin(x) ** x + ops.cos(x))
    assert "double" in written(program, TRAITS).text
    assert "double" not in written(program, without).text


def test_divisions_are_made_in_64_bits_where_32_are_not_rounded_correctly() -> None:
    x = leaf("x", "input", (8,), float32)
    program = compiled(ops.sqrt(x) / (x + 1))
    assert "double" not in written(program, TRAITS).text
    text = written(program, replace(TRAITS, exact_division=False)).text
    divided = [line for line in text.splitlines() if " / " in line or "sqrt(" in line]
    assert len(divided) == 2
    assert all(line.strip().startswith("const double ") for line in divided)


NATIVE = replace(OPENCL, half=NATIVE_HALF)


def test_only_kernels_with_float16_need_its_extension() -> None:
    x, y = (leaf("x", "input", (8,), one) for one in (float16, float32))
    for leaf_, expected in ((x, 1), (y, 0)):
        program = compiled(ops.exp(leaf_))
        schedule = decide(program, TARGET, TRAITS)
        for words, count in ((NATIVE, expected), (OPENCL, 0)):
            text = write_kernels(program, schedule, TRAITS, words).text
            assert text.count("cl_khr_fp16") == count


def test_sums_and_products_that_are_rounded_to_float16_are_computed_in_it() -> None:
    x = leaf("x", "input", (8,), float16)
    program = compiled((x * x + 0.5 - x) / (x + 0.1))
    schedule = decide(program, TARGET, TRAITS)
    text = write_kernels(program, schedule, TRAITS, NATIVE).text
    (kernel,) = (one for one in text.split("\n\n") if "void step0(" in one)
    lines = [line for line in kernel.splitlines() if "(half)" in line]
    operators = [line.split("(half)")[1].split(") ")[1][0] for line in lines]
    # 0.1 is rounded to float16 before, so that the last sum is one of two float16.
    assert sorted(operators) == ["*", "+", "+", "-"]
    # The numerator and the denominator.
    assert kernel.count("convert_float(") == 2
    assert "convert_half_rte" in kernel
    assert "(half)" not in write_kernels(program, schedule, TRAITS, OPENCL).text


@pytest.mark.sampled
def test_tiles_of_floats_of_16_bits_take_16_bits_of_local_memory() -> None:
    x, weight = (leaf(name, "input", (64, 64), bfloat16) for name in "xw")
    program = compiled(ops.matmul(x, weight))
    (step,) = program.steps
    texts = {
        one.left.is_half: write_kernels(program, Schedule((one,)), TRAITS, OPENCL).text
        for one in candidates(step, TARGET, TRAITS)
        if isinstance(one, TiledSchedule)
    }
    assert texts[True].count("__local ushort l") == texts[False].count("__local uint l") == 2
    # Half as often, as vectors of 16 bytes have twice as many elements.
    assert "__global ushort8 *" in texts[True]
    assert "__global ushort4 *" in texts[False]


def test_kernels_of_devices_with_float16_are_cached_on_their_own() -> None:
    keys = {GpuFamily(TRAITS, words, "opencl").key for words in (OPENCL, NATIVE)}
    with_type = GpuFamily(replace(TRAITS, has_float16=True), NATIVE, "opencl")
    assert len({*keys, with_type.key}) == 3


def test_nothing_is_launched_for_a_step_without_elements() -> None:
    x = leaf("x", "input", (0, 4), float32)
    assert not written(compiled(x * 2), TRAITS).launches


def test_scatters_are_sorted_by_as_many_work_items_as_there_are_values() -> None:
    x, indices = leaf("x", "input", (100, 3), float32), leaf("i", "input", (100,), int64)
    launches = written(compiled(ops.scatter_add(x, indices, 7)), TRAITS).launches
    assert [one.items for one in launches] == [100, 7 * 3]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        (C99, "float32"),
        (C99, "mixed-bfloat16"),
        (C99, "mixed-float16"),
        (C99_WITH_HALF, "mixed-float16"),
    ],
    ids=["float32", "bfloat16 as integers", "float16 as integers", "float16 as a type"],
)
def test_a_training_step_runs_in_c99(words: Words, dtype: str, tmp_path: Path) -> None:
    """Contractions, reductions, random numbers and recurrences, in a language without vectors."""
    net = lm.Sequential(lm.Input(6, 4), lm.LSTM(5), lm.Dropout(0.5), lm.Linear(3))
    program = net.plan(4, lm.CrossEntropy(), lm.Adam(), engine="interpreter", dtype=dtype).program
    generator = np.random.default_rng(0)
    feeds = {
        one.name: np.asarray(generator.uniform(0, 2, one.shape), one.dtype.numpy)
        for kind in ("input", "parameter", "state")
        for one in program.of_kind(kind)
    }
    if "loss_scale" in feeds:
        feeds["loss_scale"] = np.array(256, "float32")
    outputs, after = run_program(program, InterpreterEngine(), feeds)
    launches = write_kernels(program, decide(program, TARGET, ITEMS_ALONE), ITEMS_ALONE, words)
    assert launches.repeats
    found = _run_in_c99(program, launches, feeds, tmp_path)
    for name, buffer in program.outputs:
        np.testing.assert_allclose(found[buffer], outputs[name], rtol=1e-5)
    for name, value in after.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def _run_in_c99(
    program: Program, launches: Launches, feeds: Mapping[str, Array], folder: Path
) -> dict[str, Array]:
    """Runs kernels item by item; returns the contents of all buffers."""
    library = library_of(launches.text, folder)
    given = {**program.constants, **feeds}
    arrays = {
        name: np.array(given.get(name, np.zeros(one.shape, one.dtype.numpy)))
        for name, one in program.buffers.items()
    }

    def run(numbers: range, *iteration: ctypes.c_int) -> None:
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
