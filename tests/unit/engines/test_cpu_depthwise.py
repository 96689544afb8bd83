"""Depthwise convolutions: the weights of a vector are gathered once for many output positions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from harness import Leaves, check
from program_cases import compiled

from lamina import ops
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.native_program import text_of
from lamina.errors import EngineError
from lamina.graph import Graph, Tensor
from lamina.ops.differentiate import gradients
from lamina.program.program import Program
from lamina.program.steps import Loop

LAST = (0, 2, 3, 1)
FIRST = (0, 3, 1, 2)
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "one row": (1, 3, {"padding": ((1, 1), (1, 1))}),
    "a vector and a rest": (19, 3, {"padding": ((1, 1), (1, 1))}),
    "stride of two": (32, 3, {"padding": ((1, 1), (1, 1)), "strides": (2, 2)}),
    "wide": (7, 5, {"padding": ((2, 2), (2, 2))}),
    "larger than the unrolled windows": (5, 6, {}),
    "gaps, uneven padding": (33, 3, {"padding": ((0, 2), (3, 1)), "dilations": (2, 1)}),
}


def depthwise(case: str, dtype: str, batch: int = 2) -> tuple[Graph, dict[str, Any]]:
    """A convolution of images with channels last, and both of its gradients."""
    channels, size, options = CASES[case]
    generator = np.random.default_rng(3)
    leaves = Leaves()
    x = leaves.add(generator.normal(size=(batch, 9, 40, channels)).astype(dtype))
    weight = leaves.add(generator.normal(size=(channels, 1, size, size)).astype(dtype))
    options = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilations": (1, 1)} | options
    y = ops.conv(ops.transpose(x, FIRST), weight, groups=channels, **options)
    slope = ops.sin(y)
    found: list[Tensor] = gradients(ops.sum(y * ops.stop_gradient(slope)), [x, weight])
    return leaves.graph([ops.transpose(y, LAST), *found]), leaves.feeds


@pytest.mark.parametrize("vectors", ["avx512", "avx2", "sse2", "neon"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_each_channel_has_its_own_windows(
    case: str, dtype: str, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINA_VECTORS", vectors)
    try:
        engine = CpuEngine()
    except EngineError:
        pytest.skip(f"this processor has no {vectors}")
    graph, feeds = depthwise(case, dtype)
    check(graph, engine, feeds)


def window_loops(program: Program) -> list[int]:
    """The numbers of the steps that sum over the elements of windows."""
    return [
        number
        for number, step in enumerate(program.steps)
        if isinstance(step, Loop)
        and any([axis.extent for axis in stage.axes] == [3, 3] for stage in step.stages[:1])
    ]


def test_weights_are_gathered_before_the_loop_over_positions() -> None:
    processor = CpuEngine().processor
    graph, _ = depthwise("a vector and a rest", "float32")
    program = compiled(graph)
    # The convolution, and the gradient of its input.
    numbers = window_loops(program)
    assert len(numbers) == 2
    for number in numbers:
        text = text_of(program, number, processor)
        blocks = re.split(r"\n(?=\w+:)", text)
        reading = [block for block in blocks if "= call" in block and "@llvm.masked.load" in block]
        gathering = [block for block in blocks if re.search(r"= call .*@load_strided_\w+\(", block)]
        assert len(reading) == len(gathering) == 2, "for whole vectors, and for the rest"
        assert not set(reading) & set(gathering)


def test_index_arithmetic_of_neighbours_is_written_once() -> None:
    processor = CpuEngine().processor
    graph, _ = depthwise("a vector and a rest", "float32")
    program = compiled(graph)
    numbers = window_loops(program)
    assert len(numbers) == 2
    for number in numbers:
        text = text_of(program, number, processor)
        assert len(re.findall(r"= icmp \w+ i64", text)) > 4
        for block in re.split(r"\n(?=\w+:|define)", text):
            # Loops count with an addition of their own.
            written = re.findall(
                r"= ((?:mul|add|icmp \w+) i64 (?!%i\d+, 1$).*)", block, re.MULTILINE
            )
            assert len(written) == len(set(written))
