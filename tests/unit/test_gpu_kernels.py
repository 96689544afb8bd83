"""Kernels in text, for any device: nothing here needs one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lamina as lm
from lamina import ops
from lamina.codegen.words import OPENCL
from lamina.compiler.pipeline import compile_graph
from lamina.engines.gpu.kernels import write_kernels
from lamina.engines.gpu.launches import Launches, Traits
from lamina.engines.gpu.schedule import decide
from lamina.engines.gpu.target import target_for
from lamina.graph import Graph, Tensor, leaf
from lamina.program.program import Program
from lamina.shapes import float32, int64

TRAITS = Traits(
    has_float64=True,
    lanes=1,
    units=4,
    exact_division=True,
    alignment_bytes=128,
    largest_block_bytes=1 << 40,
    fused=True,
)
TARGET = target_for(TRAITS, "opencl")


def written(program: Program, traits: Traits) -> Launches:
    return write_kernels(program, decide(program, TARGET), traits, OPENCL)


def compiled(leaves: list[Tensor], result: Tensor) -> Program:
    graph = Graph(tuple(leaves), (("y", result),))
    return compile_graph(graph, batch=1, name="test", target=TARGET)


@pytest.mark.parametrize(("size", "width"), [(1 << 20, "uint"), (1 << 31, "ulong")])
def test_positions_have_32_bits_where_all_of_them_fit(size: int, width: str) -> None:
    x = leaf("x", "input", (2, size), float32)
    text = written(compiled([x], ops.sum(ops.exp(x), 1)), TRAITS).text
    (loop,) = [line for line in text.splitlines() if line.strip().startswith("for (")]
    assert loop.strip().startswith(f"for ({width} ")


def test_equal_steps_share_their_kernels() -> None:
    layers = [layer for _ in range(6) for layer in (lm.Linear(32), lm.Tanh())]
    net = lm.Sequential(lm.Input(32), *layers)
    program = net.plan(8, engine="interpreter").program
    launches = written(program, TRAITS)
    assert len(launches.launches) == len(program.steps) == 6
    assert len({one.kernel for one in launches.launches}) < 4
    assert len({one.buffers for one in launches.launches}) == 6


def test_doubles_are_named_only_where_there_are_some() -> None:
    without = replace(TRAITS, has_float64=False)
    x = leaf("x", "input", (8,), float32)
    program = compiled([x], ops.sin(x) ** x + ops.cos(x))
    assert "double" in written(program, TRAITS).text
    assert "double" not in written(program, without).text


def test_divisions_are_made_in_64_bits_where_32_are_not_rounded_correctly() -> None:
    x = leaf("x", "input", (8,), float32)
    program = compiled([x], ops.sqrt(x) / (x + 1))
    assert "double" not in written(program, TRAITS).text
    text = written(program, replace(TRAITS, exact_division=False)).text
    divided = [line for line in text.splitlines() if " / " in line or "sqrt(" in line]
    assert len(divided) == 2
    assert all(line.strip().startswith("const double ") for line in divided)


def test_nothing_is_launched_for_a_step_without_elements() -> None:
    x = leaf("x", "input", (0, 4), float32)
    assert not written(compiled([x], x * 2), TRAITS).launches


def test_scatters_are_sorted_by_as_many_work_items_as_there_are_values() -> None:
    x, places = leaf("x", "input", (100, 3), float32), leaf("i", "input", (100,), int64)
    launches = written(compiled([x, places], ops.scatter_add(x, places, 7)), TRAITS).launches
    assert [one.items for one in launches] == [100, 7 * 3]
