"""Contractions have the windows of convolutions and of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from harness import Leaves
from windowed_graphs import FILTERED_SEEDS, SEEDS, FilteredGraph, WindowedGraph

from lamina import ops
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.errors import InternalError
from lamina.graph import Graph, Tensor
from lamina.ops.differentiate import gradients
from lamina.ops.linalg import contract
from lamina.ops.windows import Slope, Window, shear, windows
from lamina.program.check import verify
from lamina.program.encoding import decode, encode
from lamina.program.index import Axis, Gathered, Index, Quotient, axes_of, axis_index
from lamina.program.program import Program
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, indices
from lamina.program.steps import Contraction
from lamina.program.windows import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT, Sliding, loaded

OPERANDS = ("left", "right")
# (operand, stride, dilation, offset, divisor, extent), and the extents of positions and elements.
Numbers = tuple[str, int, int, int, int, int, int, int]


def windows_of(step: Contraction) -> list[tuple[str, Sliding]]:
    """The windows, each after its operand."""
    return [(name, one) for name in OPERANDS for one in getattr(step, f"{name}_windows")]


def numbers_of(operand: str, window: Sliding) -> Numbers:
    counts = (one.extent if one is not None else 1 for one in (window.position, window.element))
    return (
        *(operand, window.stride, window.dilation, window.offset),
        *(window.divisor, window.extent, *counts),
    )


def program_of(graph: Graph) -> Program:
    return compile_graph(graph, batch=1, name="test", target=DEFAULT_TARGET)


def contractions(program: Program) -> list[Contraction]:
    verify(program)
    return [step for step in program.steps if isinstance(step, Contraction)]


def compiled(leaves: Leaves, results: Sequence[Tensor]) -> list[Contraction]:
    return contractions(program_of(leaves.graph(results)))


def by_kind(steps: Iterable[Contraction]) -> dict[str, list[Numbers]]:
    """The windows of the contractions, each of which has windows of one kind."""
    found: dict[str, list[Numbers]] = {}
    for step in steps:
        kinds = {window.kind(step.k) for _, window in windows_of(step)}
        for kind in kinds:
            assert len(kinds) == 1
            assert kind is not None
            assert kind not in found
            found[kind] = [numbers_of(*one) for one in windows_of(step)]
    return found


def convolved(
    x: Sequence[int],
    weight: Sequence[int],
    change: Callable[[Tensor], Tensor] = lambda x: x,
    **given: Any,
) -> list[Contraction]:
    """A convolution and its gradients."""
    leaves, rank = Leaves(), len(x) - 2
    data = leaves.add(np.zeros(x, "float32"))
    weights = leaves.add(np.zeros(weight, "float32"))
    numbers = {"strides": [1] * rank, "padding": [(0, 0)] * rank, "dilations": [1] * rank, **given}
    y = ops.conv(change(data), weights, **numbers)
    return compiled(leaves, [y, *gradients(ops.sum(y * y), [data, weights])])


def test_a_convolution_and_its_gradients_have_windows() -> None:
    steps = convolved(
        (2, 3, 9, 20), (4, 3, 3, 4), strides=[2, 1], padding=[(1, 0), (2, 3)], dilations=[1, 3]
    )
    assert by_kind(steps) == {
        FORWARD: [("left", 2, 1, -1, 1, 9, 4, 3), ("left", 1, 3, -2, 1, 20, 16, 4)],
        DATA_GRADIENT: [("left", 1, -1, 1, 2, 4, 9, 3), ("left", 1, -3, 2, 1, 16, 20, 4)],
        WEIGHT_GRADIENT: [("left", 2, 1, -1, 1, 9, 4, 3), ("left", 1, 3, -2, 1, 20, 16, 4)],
    }


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_windows_slide_along_any_number_of_dimensions(rank: int) -> None:
    extents, one = (5, 6, 7)[:rank], [(1, 1)] * rank
    found = by_kind(convolved((3, 2, *extents), (4, 2, *[3] * rank), padding=one))
    assert found == {
        FORWARD: [("left", 1, 1, -1, 1, extent, extent, 3) for extent in extents],
        DATA_GRADIENT: [("left", 1, -1, 1, 1, extent, extent, 3) for extent in extents],
        WEIGHT_GRADIENT: [("left", 1, 1, -1, 1, extent, extent, 3) for extent in extents],
    }


def test_a_transposed_convolution_has_the_windows_of_a_gradient() -> None:
    leaves = Leaves()
    y = leaves.add(np.zeros((2, 4, 3, 5), "float32"))
    weight = leaves.add(np.zeros((4, 3, 3, 3), "float32"))
    x = ops.conv_transpose(y, weight, [6, 10], [2, 2], [(1, 1), (1, 1)], [1, 1])
    found = by_kind(compiled(leaves, [x]))
    assert found == {
        DATA_GRADIENT: [("left", 1, -1, 1, 2, 3, 6, 3), ("left", 1, -1, 1, 2, 5, 10, 3)]
    }


def test_a_single_example_and_groups_change_no_windows() -> None:
    for batch, groups in ((1, 1), (3, 2)):
        steps = convolved((batch, 4, 8, 8), (6, 4 // groups, 3, 3), groups=groups)
        assert by_kind(steps)[FORWARD] == [("left", 1, 1, 0, 1, 8, 6, 3)] * 2
        assert {bool(step.batch) for step in steps} == {groups > 1}


def test_a_single_position_and_a_single_element_have_no_axis() -> None:
    found = by_kind(convolved((2, 3, 3, 9), (4, 3, 5, 1), padding=[(1, 1), (0, 0)], strides=[1, 2]))
    assert found == {
        FORWARD: [("left", 1, 1, -1, 1, 3, 1, 5), ("left", 2, 1, 0, 1, 9, 5, 1)],
        DATA_GRADIENT: [("left", 1, -1, 1, 1, 1, 3, 5), ("left", 1, -1, 0, 2, 5, 9, 1)],
        WEIGHT_GRADIENT: [("left", 1, 1, -1, 1, 3, 1, 5), ("left", 2, 1, 0, 1, 9, 5, 1)],
    }


def test_padding_of_the_data_becomes_padding_of_the_windows() -> None:
    def padded(x: Tensor) -> Tensor:
        return ops.pad(x, [(0, 0), (0, 0), (1, 2), (0, 1)])

    found = by_kind(convolved((2, 3, 7, 8), (4, 3, 3, 3), padded, strides=[2, 1]))
    assert found[FORWARD] == [("left", 2, 1, -1, 1, 7, 4, 3), ("left", 1, 1, 0, 1, 8, 7, 3)]


def test_windows_of_a_slice_slide_along_the_slice_only() -> None:
    def sliced(x: Tensor) -> Tensor:
        return x[:, :, 1:6, ::2]

    found = by_kind(convolved((2, 3, 7, 8), (4, 3, 3, 3), sliced, padding=[(1, 1), (0, 0)]))
    assert found[FORWARD] == [("left", 1, 1, -1, 1, 5, 5, 3), ("left", 1, 1, 0, 1, 4, 2, 3)]


def test_cast_and_reshaped_operands_have_windows() -> None:
    leaves = Leaves()
    x = leaves.add(np.zeros((2, 3 * 6 * 6), "uint8"))
    weight = leaves.add(np.zeros((4, 3, 3, 3), "float32"))
    y = ops.conv(ops.reshape(ops.cast(x, "float32"), (2, 3, 6, 6)), weight, 1, 1, 1)
    found = by_kind(compiled(leaves, [y]))
    assert found == {FORWARD: [("left", 1, 1, -1, 1, 6, 6, 3)] * 2}


def test_mirrored_and_skipped_windows_are_found() -> None:
    leaves = Leaves()
    x = leaves.add(np.zeros((9, 4), "float32"))
    weight = leaves.add(np.zeros((3, 4, 8), "float32"))
    seen = windows(x, (0,), [Window(3, 1, 2, 1, 1)])
    seen = ops.flip(seen[1::2], (2,))
    y = contract(seen, weight, ("p", "c", "w"), ("w", "c", "o"), ("p", "o"))
    # Positions 1, 3, 5: the last of their elements come first.
    assert by_kind(compiled(leaves, [y])) == {DATA_GRADIENT: [("left", 2, -2, 4, 1, 9, 3, 3)]}


def test_windows_along_two_dimensions_may_be_two_ops() -> None:
    leaves = Leaves()
    x = leaves.add(np.zeros((9, 8, 4), "float32"))
    weight = leaves.add(np.zeros((4, 3, 5, 8), "float32"))
    seen = windows(windows(x, (0,), [Window(3)]), (1,), [Window(5, 2)])
    left, right = ("p", "q", "c", "v", "w"), ("c", "v", "w", "o")
    y = contract(seen, weight, left, right, ("p", "q", "o"))
    found = by_kind(compiled(leaves, [y]))
    assert sorted(found[FORWARD]) == [("left", 1, 1, 0, 1, 9, 7, 3), ("left", 2, 1, 0, 1, 8, 2, 5)]


def test_of_windows_of_windows_those_along_single_axes_are_found() -> None:
    leaves = Leaves()
    x = leaves.add(np.zeros((9, 4), "float32"))
    weight = leaves.add(np.zeros((4, 3, 2, 8), "float32"))
    seen = windows(windows(x, (0,), [Window(3)]), (0,), [Window(2)])
    y = contract(seen, weight, ("p", "c", "v", "w"), ("c", "v", "w", "o"), ("p", "o"))
    # The first ones slide along positions and elements of the second ones.
    assert by_kind(compiled(leaves, [y])) == {FORWARD: [("left", 1, 1, 0, 1, 7, 6, 2)]}


def test_the_right_operand_may_have_windows() -> None:
    leaves = Leaves()
    x = leaves.add(np.zeros((4, 9), "float32"))
    weight = leaves.add(np.zeros((6, 4, 3), "float32"))
    seen = windows(x, (1,), [Window(3, 1, 1, 1, 1)])
    y = contract(weight, seen, ("o", "c", "w"), ("c", "p", "w"), ("o", "p"))
    assert by_kind(compiled(leaves, [y])) == {FORWARD: [("right", 1, 1, -1, 1, 9, 9, 3)]}


def test_windows_that_do_not_overlap_or_are_not_summed_are_omitted() -> None:
    assert FORWARD not in by_kind(convolved((2, 3, 8, 8), (4, 3, 2, 2), strides=[2, 2]))
    leaves = Leaves()
    x = leaves.add(np.zeros((9, 4), "float32"))
    weight = leaves.add(np.zeros((4, 8), "float32"))
    y = contract(windows(x, (0,), [Window(3)]), weight, "pcw", "co", "pwo")
    assert by_kind(compiled(leaves, [y])) == {}


def test_operands_that_are_equal_at_every_position_have_no_windows() -> None:
    leaves = Leaves()
    x = leaves.add(np.zeros((9, 3, 4), "float32"))
    weight = leaves.add(np.zeros((3, 4, 8), "float32"))
    seen = shear(x, [Slope(0, 1, 12, 1, 0, -1)])
    y = contract(seen, weight, "pwc", "wco", "po")
    assert by_kind(compiled(leaves, [y])) == {}


# Against the views --------------------------------------------------------------------------------


def value(index: Index, point: Mapping[Axis, int]) -> int:
    """The index at a point; gathered indices are 0."""
    total = index.constant
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            number = point[atom]
        elif isinstance(atom, Gathered):
            number = 0
        else:
            inner = value(atom.index, point)
            number = inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
        total += coefficient * number
    return total


def check_at_every_point(
    step: Contraction, operand: str, window: Sliding, generator: np.random.Generator
) -> None:
    """Checks every position and element, for some values of the other axes."""
    load = loaded(getattr(step, operand))
    assert load is not None
    axes = (*step.batch, *step.m, *step.n, *step.k)
    assert not any(window.axes & axes_of(index) for index in indices(*load.index.values))
    others = {axis: int(generator.integers(axis.extent)) for axis in axes}
    own = [bound for bound in load.bounds if axes_of(bound.index) & window.axes]
    moving = sorted(window.axes, key=str)
    inside: dict[int, int] = {}
    for numbers in np.ndindex(*(axis.extent for axis in moving)):
        point = {**others, **dict(zip(moving, map(int, numbers), strict=True))}
        number, rest = divmod(value(window.scaled_index, point), window.divisor)
        shown = all(bound.low <= value(bound.index, point) < bound.high for bound in own)
        assert shown == (not rest and 0 <= number < window.extent)
        if shown:
            # An index along the dimension has one offset, and offsets have one stride.
            at = value(load.index, point)
            assert inside.setdefault(number, at) == at
    strides = {
        (inside[b] - inside[a]) / (b - a)
        for a, b in zip(sorted(inside), sorted(inside)[1:], strict=False)
    }
    assert len(strides) <= 1


@pytest.mark.sampled
def test_the_windows_of_random_graphs_agree_with_their_views() -> None:
    generator, count = np.random.default_rng(0), 0
    graphs: list[Graph] = [WindowedGraph(seed).graph for seed in SEEDS[:60]]
    graphs += [FilteredGraph(seed).graph for seed in FILTERED_SEEDS[:10]]
    for graph in graphs:
        for step in contractions(program_of(graph)):
            for operand, window in windows_of(step):
                check_at_every_point(step, operand, window, generator)
                count += 1
    assert count > 200


# The check ----------------------------------------------------------------------------------------


def sample() -> Program:
    """A convolution with strides and its gradients."""
    leaves = Leaves()
    x = leaves.add(np.zeros((2, 3, 9, 8), "float32"))
    weight = leaves.add(np.zeros((4, 3, 3, 5), "float32"))
    y = ops.conv(x, weight, [2, 1], [(1, 1), (1, 2)], [1, 1])
    return compile_graph(
        leaves.graph([y, *gradients(ops.sum(y * y), [x, weight])]),
        batch=1,
        name="test",
        target=DEFAULT_TARGET,
    )


WRONG: dict[str, Callable[[Sliding], Sliding]] = {
    "another offset": lambda one: replace(one, offset=one.offset + 1),
    "another stride": lambda one: replace(one, stride=one.stride + 1),
    "another dilation": lambda one: replace(one, dilation=2 * one.dilation),
    "fewer numbers": lambda one: replace(one, extent=one.extent - 2),
    "another divisor": lambda one: replace(one, divisor=one.divisor + 1),
    "no element": lambda one: replace(one, element=None),
    "no position": lambda one: replace(one, position=None),
    "no axes": lambda one: replace(one, position=None, element=None),
    "an axis that nothing iterates": lambda one: replace(one, position=Axis("nowhere", 4)),
    "no stride": lambda one: replace(one, stride=0),
    "no dilation": lambda one: replace(one, dilation=0),
    "no divisor": lambda one: replace(one, divisor=0),
    "a float": lambda one: replace(one, offset=cast(int, float(one.offset))),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_windows_are_refused(name: str) -> None:
    program = sample()
    verify(program)
    checked = 0
    for number, step in enumerate(program.steps):
        if not isinstance(step, Contraction):
            continue
        for which, window in enumerate(step.left_windows):
            wrong = [*step.left_windows]
            wrong[which] = WRONG[name](window)
            refuse(program, number, left_windows=tuple(wrong))
            checked += 1
    assert checked == 6


def refuse(program: Program, number: int, **changes: Any) -> None:
    """The program with a changed contraction is refused."""
    steps = [*program.steps]
    steps[number] = replace(cast(Contraction, steps[number]), **changes)
    with pytest.raises(InternalError, match=r"invalid|iterates|both of its axes|differs from"):
        verify(replace(program, steps=tuple(steps)))


def test_windows_of_the_other_operand_are_refused() -> None:
    program = sample()
    for number, step in enumerate(program.steps):
        if isinstance(step, Contraction):
            refuse(program, number, left_windows=(), right_windows=step.left_windows)


def test_windows_are_shown_and_encoded() -> None:
    program = sample()
    assert "forward, windows of left: 2*i1 + k1 + -1 of 9" in str(program)
    assert "data gradient, windows of left: (i1 + -1*k1 + 1) / 2 of 5" in str(program)
    assert decode(encode(program)).steps == program.steps


def test_windows_are_kept_until_their_axes_are_replaced() -> None:
    step = contractions(sample())[0]
    assert len(step.left_windows) == 2
    (window, other), batch = step.left_windows, step.m[0]
    assert window.position is not None
    kept = Rewrite({batch: axis_index(Axis("b", batch.extent))}).contraction(step)
    assert kept.left_windows == step.left_windows
    renamed = {window.position: axis_index(Axis("p", window.position.extent))}
    assert Rewrite(renamed).contraction(step).left_windows == (other,)


def test_bounds_that_always_hold_are_omitted() -> None:
    position, element = Axis("p", 3), Axis("w", 3)
    window = Sliding(position, element, 2, 1, 0, 1, 7)
    assert window.bounds == ()
    narrow = replace(window, offset=-1, divisor=2)
    scaled = axis_index(position) * 2 + axis_index(element) - 1
    assert narrow.bounds == (Bound(scaled, 0, 13), Bound(scaled % 2, 0, 1))
    assert replace(window, element=None).is_axis
    assert not replace(window, element=None, offset=-1).is_axis
