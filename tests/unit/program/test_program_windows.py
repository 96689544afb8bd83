"""Contractions have the windows of convolutions and of their gradients."""

from dataclasses import replace

import numpy as np
import pytest
from harness import Leaves
from program_cases import program_of

from lamina import ops
from lamina.errors import InternalError
from lamina.ops.differentiate import gradients
from lamina.ops.linalg import contract
from lamina.ops.windows import Slope, Window, shear, windows
from lamina.program.check import verify
from lamina.program.encoding import decode, encode
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound
from lamina.program.steps import Contraction
from lamina.program.windows import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT, Sliding

OPERANDS = ("left", "right")


def windows_of(step):
    """The windows, each after its operand."""
    return [(name, one) for name in OPERANDS for one in getattr(step, f"{name}_windows")]


def numbers_of(operand, window):
    counts = (one.extent if one is not None else 1 for one in (window.position, window.element))
    return (
        *(operand, window.stride, window.dilation, window.offset),
        *(window.divisor, window.extent, *counts),
    )


def contractions(program):
    verify(program)
    return [step for step in program.steps if isinstance(step, Contraction)]


def by_kind(steps):
    """The windows of the contractions by their kind; a contraction has windows of one kind."""
    grouped = {}
    for step in steps:
        kinds = {window.kind(step.k) for _, window in windows_of(step)}
        for kind in kinds:
            assert len(kinds) == 1
            assert kind not in grouped
            grouped[kind] = [numbers_of(*pair) for pair in windows_of(step)]
    return grouped


def leaf(*shape, name="x"):
    return Leaves().add(np.zeros(shape, "float32"), name=name)


def convolved(x, weight, change=lambda x: x, **how):
    leaves, rank = Leaves(), len(x) - 2
    data, weights = (leaves.add(np.zeros(shape, "float32")) for shape in (x, weight))
    numbers = {"strides": [1] * rank, "padding": [(0, 0)] * rank, "dilations": [1] * rank, **how}
    y = ops.conv(change(data), weights, **numbers)
    return [y, *gradients(ops.sum(y * y), [data, weights])]


def with_weight(seen, left, right, result):
    extents = {**dict(zip(left, seen.shape, strict=True)), "o": 8}
    weight = leaf(*(extents[axis] for axis in right), name="w")
    return contract(seen, weight, left, right, result)


COLUMN, WEIGHT = leaf(9, 4), leaf(4, 3, 3, 3, name="w")
# Results, and the windows of each kind: (operand, stride, dilation, offset, divisor, extent), and
# the extents of positions and elements.
WINDOWS = {
    "a convolution": (
        convolved(
            (2, 3, 9, 20), (4, 3, 3, 4), strides=[2, 1], padding=[(1, 0), (2, 3)], dilations=[1, 3]
        ),
        {
            FORWARD: [("left", 2, 1, -1, 1, 9, 4, 3), ("left", 1, 3, -2, 1, 20, 16, 4)],
            DATA_GRADIENT: [("left", 1, -1, 1, 2, 4, 9, 3), ("left", 1, -3, 2, 1, 16, 20, 4)],
            WEIGHT_GRADIENT: [("left", 2, 1, -1, 1, 9, 4, 3), ("left", 1, 3, -2, 1, 20, 16, 4)],
        },
    ),
    **{
        f"{rank} dimensions": (
            convolved((3, 2, *(5, 6, 7)[:rank]), (4, 2, *[3] * rank), padding=[(1, 1)] * rank),
            {
                FORWARD: [("left", 1, 1, -1, 1, n, n, 3) for n in (5, 6, 7)[:rank]],
                DATA_GRADIENT: [("left", 1, -1, 1, 1, n, n, 3) for n in (5, 6, 7)[:rank]],
                WEIGHT_GRADIENT: [("left", 1, 1, -1, 1, n, n, 3) for n in (5, 6, 7)[:rank]],
            },
        )
        for rank in (1, 3)
    },
    "a transposed convolution": (
        ops.conv_transpose(leaf(2, 4, 3, 5), WEIGHT, [6, 10], [2, 2], [(1, 1)] * 2, [1, 1]),
        {DATA_GRADIENT: [("left", 1, -1, 1, 2, 3, 6, 3), ("left", 1, -1, 1, 2, 5, 10, 3)]},
    ),
    "a single position and a single element": (
        convolved((2, 3, 3, 9), (4, 3, 5, 1), padding=[(1, 1), (0, 0)], strides=[1, 2]),
        {
            FORWARD: [("left", 1, 1, -1, 1, 3, 1, 5), ("left", 2, 1, 0, 1, 9, 5, 1)],
            DATA_GRADIENT: [("left", 1, -1, 1, 1, 1, 3, 5), ("left", 1, -1, 0, 2, 5, 9, 1)],
            WEIGHT_GRADIENT: [("left", 1, 1, -1, 1, 3, 1, 5), ("left", 2, 1, 0, 1, 9, 5, 1)],
        },
    ),
    "padding of the data": (
        convolved(
            *((2, 3, 7, 8), (4, 3, 3, 3), lambda x: ops.pad(x, [(0, 0), (0, 0), (1, 2), (0, 1)])),
            strides=[2, 1],
        )[:1],
        {FORWARD: [("left", 2, 1, -1, 1, 7, 4, 3), ("left", 1, 1, 0, 1, 8, 7, 3)]},
    ),
    "a slice": (
        convolved(
            *((2, 3, 7, 8), (4, 3, 3, 3), lambda x: x[:, :, 1:6, ::2]), padding=[(1, 1), (0, 0)]
        )[:1],
        {FORWARD: [("left", 1, 1, -1, 1, 5, 5, 3), ("left", 1, 1, 0, 1, 4, 2, 3)]},
    ),
    "cast and reshaped": (
        convolved(
            *((2, 3 * 6 * 6, 1, 1), (4, 3, 3, 3)),
            lambda x: ops.reshape(ops.cast(ops.cast(x, "uint8"), "float32"), (2, 3, 6, 6)),
            padding=[(1, 1)] * 2,
        )[:1],
        {FORWARD: [("left", 1, 1, -1, 1, 6, 6, 3)] * 2},
    ),
    # Positions 1, 3, 5: the last of their elements come first.
    "mirrored and skipped": (
        with_weight(
            ops.flip(windows(COLUMN, (0,), [Window(3, 1, 2, 1, 1)])[1::2], (2,)), "pcw", "wco", "po"
        ),
        {DATA_GRADIENT: [("left", 2, -2, 4, 1, 9, 3, 3)]},
    ),
    "two ops": (
        with_weight(
            windows(windows(leaf(9, 8, 4), (0,), [Window(3)]), (1,), [Window(5, 2)]),
            *("pqcvw", "cvwo", "pqo"),
        ),
        {FORWARD: [("left", 2, 1, 0, 1, 8, 2, 5), ("left", 1, 1, 0, 1, 9, 7, 3)]},
    ),
    # The first ones slide along positions and elements of the second ones.
    "windows of windows": (
        with_weight(
            windows(windows(COLUMN, (0,), [Window(3)]), (0,), [Window(2)]), "pcvw", "cvwo", "po"
        ),
        {FORWARD: [("left", 1, 1, 0, 1, 7, 6, 2)]},
    ),
    "the right operand": (
        contract(
            leaf(6, 4, 3, name="w"),
            windows(leaf(4, 9), (1,), [Window(3, 1, 1, 1, 1)]),
            *("ocw", "cpw", "op"),
        ),
        {FORWARD: [("right", 1, 1, -1, 1, 9, 9, 3)]},
    ),
    "no overlap": (convolved((2, 3, 8, 8), (4, 3, 2, 2), strides=[2, 2])[:1], {}),
    "no sum": (with_weight(windows(COLUMN, (0,), [Window(3)]), "pcw", "co", "pwo"), {}),
    "equal at every position": (
        with_weight(shear(leaf(9, 3, 4), [Slope(0, 1, 12, 1, 0, -1)]), "pwc", "wco", "po"),
        {},
    ),
}


@pytest.mark.cases("results, expected", WINDOWS)
def test_contractions_have_windows(results, expected):
    assert by_kind(contractions(program_of(results))) == expected


def test_a_single_example_and_groups_change_no_windows():
    for batch, groups in ((1, 1), (3, 2)):
        results = convolved((batch, 4, 8, 8), (6, 4 // groups, 3, 3), groups=groups)
        steps = contractions(program_of(results))
        assert by_kind(steps)[FORWARD] == [("left", 1, 1, 0, 1, 8, 6, 3)] * 2
        assert {bool(step.batch) for step in steps} == {groups > 1}


# A convolution with strides and its gradients.
SAMPLE = program_of(convolved((2, 3, 9, 8), (4, 3, 3, 5), strides=[2, 1], padding=[(1, 1), (1, 2)]))
WRONG = {
    "another offset": lambda window: replace(window, offset=window.offset + 1),
    "another stride": lambda window: replace(window, stride=window.stride + 1),
    "another dilation": lambda window: replace(window, dilation=2 * window.dilation),
    "fewer numbers": lambda window: replace(window, extent=window.extent - 2),
    "another divisor": lambda window: replace(window, divisor=window.divisor + 1),
    "no element": lambda window: replace(window, element=None),
    "no position": lambda window: replace(window, position=None),
    "no axes": lambda window: replace(window, position=None, element=None),
    "an axis that nothing iterates": lambda window: replace(window, position=Axis("nowhere", 4)),
    "no stride": lambda window: replace(window, stride=0),
    "no dilation": lambda window: replace(window, dilation=0),
    "no divisor": lambda window: replace(window, divisor=0),
    "a float": lambda window: replace(window, offset=float(window.offset)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_windows_are_refused(name):
    program = SAMPLE
    verify(program)
    checked = 0
    for number, step in enumerate(program.steps):
        for which, window in enumerate(getattr(step, "left_windows", ())):
            wrong = [*step.left_windows]
            wrong[which] = WRONG[name](window)
            refuse(program, number, left_windows=tuple(wrong))
            checked += 1
    assert checked == 6


def refuse(program, number, **changes):
    steps = [*program.steps]
    steps[number] = replace(steps[number], **changes)
    with pytest.raises(InternalError, match=r"invalid|iterates|both of its axes|differs from"):
        verify(replace(program, steps=tuple(steps)))


def test_windows_of_the_other_operand_are_refused():
    program = SAMPLE
    for number, step in enumerate(program.steps):
        if isinstance(step, Contraction):
            refuse(program, number, left_windows=(), right_windows=step.left_windows)


def test_windows_are_shown_and_encoded():
    program = SAMPLE
    assert "forward, windows of left: 2*i1 + k1 + -1 of 9" in str(program)
    assert "data gradient, windows of left: (i1 + -1*k1 + 1) / 2 of 5" in str(program)
    assert decode(encode(program)).steps == program.steps


def test_windows_are_kept_until_their_axes_are_replaced():
    step = contractions(SAMPLE)[0]
    assert len(step.left_windows) == 2
    (window, other), batch = step.left_windows, step.m[0]
    kept = Rewrite({batch: axis_index(Axis("b", batch.extent))}).record(step)
    assert kept.left_windows == step.left_windows
    renamed = {window.position: axis_index(Axis("p", window.position.extent))}
    assert Rewrite(renamed).record(step).left_windows == (other,)


def test_bounds_that_always_hold_are_omitted():
    position, element = Axis("p", 3), Axis("w", 3)
    window = Sliding(position, element, 2, 1, 0, 1, 7)
    assert window.bounds == ()
    narrow = replace(window, offset=-1, divisor=2)
    scaled = axis_index(position) * 2 + axis_index(element) - 1
    assert narrow.bounds == (Bound(scaled, 0, 13), Bound(scaled % 2, 0, 1))
    assert replace(window, element=None).is_axis
    assert not replace(window, element=None, offset=-1).is_axis
