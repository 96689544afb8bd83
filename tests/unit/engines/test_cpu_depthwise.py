"""Depthwise convolutions: the weights of a vector are gathered once for many output positions."""

from __future__ import annotations

import re

import numpy as np
from harness import Leaves
from program_cases import program_of

from lamina import ops
from lamina.engines.cpu.native_program import text_of
from lamina.engines.cpu.processor import host
from lamina.ops.differentiate import gradients
from lamina.program.steps import Loop


def loops() -> list[str]:
    """The text of each step that sums over the elements of windows: a result, and a gradient."""
    leaves = Leaves()
    x = leaves.add(np.ones((2, 9, 40, 19), "float32"))
    weight = leaves.add(np.ones((19, 1, 3, 3), "float32"))
    images = ops.transpose(x, (0, 3, 1, 2))
    y = ops.conv(images, weight, groups=19, strides=1, padding=1, dilations=1)
    slopes = gradients(ops.sum(y * ops.stop_gradient(ops.sin(y))), [x])
    program = program_of([ops.transpose(y, (0, 2, 3, 1)), *slopes])
    found = [
        text_of(program, number, host())
        for number, step in enumerate(program.steps)
        if isinstance(step, Loop)
        and any([axis.extent for axis in stage.axes] == [3, 3] for stage in step.stages[:1])
    ]
    assert len(found) == 2
    return found


def test_weights_are_gathered_before_the_loop_over_positions() -> None:
    for text in loops():
        blocks = re.split(r"\n(?=\w+:)", text)
        reading = [block for block in blocks if "= call" in block and "@llvm.masked.load" in block]
        gathering = [block for block in blocks if re.search(r"= call .*@load_strided_\w+\(", block)]
        assert len(reading) == len(gathering) == 2, "for whole vectors, and for the rest"
        assert not set(reading) & set(gathering)


def test_index_arithmetic_of_neighbours_is_written_once() -> None:
    for text in loops():
        assert len(re.findall(r"= icmp \w+ i64", text)) > 4
        for block in re.split(r"\n(?=\w+:|define)", text):
            # Loops count with an addition of their own.
            written = re.findall(
                r"= ((?:mul|add|icmp \w+) i64 (?!%i\d+, 1$).*)", block, re.MULTILINE
            )
            assert len(written) == len(set(written))
