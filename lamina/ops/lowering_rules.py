"""The kinds of lowering: all the ways in which an op can become program steps.

The compiler knows these kinds and nothing of single ops. Most ops answer one question: which
scalar stands at these coordinates of the result? They pull the scalars of their operands at
coordinates of their choice; so elementwise chains, movements and generated values compose into
one expression, and fusion is no more than not storing what lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lamina.graph import Graph, LoweringRule, Tensor
from lamina.program.index import Index, gathered_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import (
    Apply,
    Bound,
    Literal,
    Load,
    Local,
    Position,
    Scalar,
    Within,
    postorder,
)
from lamina.program.target import Target
from lamina.records import frozen_dataclass
from lamina.shapes import int64

Coordinates = tuple[Index, ...]
# (operand number, coordinates in that operand) -> the scalar there
Pull = Callable[[int, Coordinates], Scalar]


@frozen_dataclass
class Elementwise(LoweringRule):
    """Each result element depends on the operands' elements at the same (broadcast) place.

    Attributes:
        scalar: (node, operand scalars) -> result scalar.
    """

    scalar: Callable[[Tensor, tuple[Scalar, ...]], Scalar]


@frozen_dataclass
class Sliding:
    """Windows that slide along an axis of an operand, at some coordinates of the result.

    Element `element` of the window at `place` is at
    `(stride * place + dilation * element + offset) / divisor` of so many as `extent`.
    """

    place: Index
    element: Index
    stride: int
    dilation: int
    offset: int
    divisor: int
    extent: int


@frozen_dataclass
class Movement(LoweringRule):
    """Each result element is one operand element, or a constant: only the place changes.

    Attributes:
        scalar: (node, result coordinates, pull) -> result scalar.
        ordered: whether only the first operand is read; the others are computed before.
        slides: (node, result coordinates) -> the windows by which the place changes, if any.
    """

    scalar: Callable[[Tensor, Coordinates, Pull], Scalar]
    ordered: bool = False
    slides: Callable[[Tensor, Coordinates], tuple[Sliding, ...]] | None = None


@frozen_dataclass
class Generator(LoweringRule):
    """Result elements follow from their coordinates (and scalar operands): never worth storing.

    Attributes:
        scalar: (node, result coordinates, pull) -> result scalar.
    """

    scalar: Callable[[Tensor, Coordinates, Pull], Scalar]


@frozen_dataclass
class Reduction(LoweringRule):
    """Combines the operand over the attribute `axes` (sorted), which the result then lacks.

    Attributes:
        combine: a name in `lamina.program.steps.COMBINERS`.
    """

    combine: str


@frozen_dataclass
class Contracting(LoweringRule):
    """A sum of products; attributes `left`, `right` and `output` name the axes of each tensor.

    Every name stands in at least two of the three, and once in each.
    """


@frozen_dataclass
class Scanning(LoweringRule):
    """A running combination along the attribute `axis`; backwards if attribute `reverse`.

    Attributes:
        combine: a name in `lamina.program.steps.COMBINERS`.
    """

    combine: str


@frozen_dataclass
class Scattering(LoweringRule):
    """Adds operand 0 (values) into zeros of the node's shape, at the places operand 1 names.

    Attributes:
        place: (node, coordinates in the values, pull) -> coordinates in the result.
    """

    place: Callable[[Tensor, Coordinates, Pull], Coordinates]


@frozen_dataclass
class Repeating(LoweringRule):
    """One result, by the attribute `result`, of a graph that is applied again and again.

    The attribute `body` is the graph of one step. Its inputs, and the node's operands, are so many
    `states`, so many `sequences` (operands have the time in front), and constants; its outputs are
    the new states, then further results. `reverse` says that time runs backwards. The result is
    the stack of all steps, of a state with the initial one where time begins. Nodes that differ in
    `result` alone are one loop.
    """


def loop_of(node: Tensor) -> object:
    """What results of one loop have in common."""
    others = {name: value for name, value in node.attributes.items() if name != "result"}
    return node.operands, tuple(sorted(others.items(), key=lambda item: item[0]))


def step_of(results: Sequence[Tensor]) -> Graph:
    """One step of a loop as far as these results need it.

    Its outputs are all new states, then the other results, with their numbers as names.
    """
    attributes = results[0].attributes
    body: Graph = attributes["body"]
    wanted = {result.attributes["result"] for result in results}
    needed = [n for n in range(len(body.outputs)) if n < attributes["states"] or n in wanted]
    return Graph(body.inputs, tuple((str(n), body.outputs[n][1]) for n in needed))


@frozen_dataclass
class Decomposition(LoweringRule):
    """Stands for a graph of other ops.

    Attributes:
        build: (node, target) -> a tensor that equals it, made of other ops on the node's operands,
            in the form that suits the target best.
    """

    build: Callable[[Tensor, Target], Tensor]


def is_expensive(node: Tensor, target: Target) -> bool:
    """Whether it applies a primitive that costs more at a point than keeping the result."""
    lowering = node.op.lowering
    if not isinstance(lowering, Elementwise):
        return False
    probes = tuple(Local("probe", operand.dtype) for operand in node.operands)
    scalar = lowering.scalar(node, probes)
    return any(isinstance(p, Apply) and target.cost_of(p.primitive) > 1 for p in postorder(scalar))


def select_within(bounds: tuple[Bound, ...], inside: Scalar, outside: Scalar) -> Scalar:
    """`inside` where all bounds hold, `outside` elsewhere.

    Loads give zero where their bounds fail, so a load with zeros around it needs no select: that
    makes padding a view.
    """
    needed = _joined(bounds)
    if not needed:
        return inside
    if any(_never(bound) for bound in needed):
        return outside
    bare = inside
    while isinstance(bare, Apply) and bare.primitive == "cast":
        bare = bare.operands[0]
    zeros_outside = isinstance(outside, Literal) and repr(outside.value) in _ZEROS
    if zeros_outside and isinstance(bare, Load) and (bare.index.terms or bare.bounds):
        return guarded(inside, needed)
    return Apply("select", (Within(needed), guarded(inside, needed), outside), inside.dtype)


_ZEROS = ("0", "0.0", "False")


def guarded(scalar: Scalar, bounds: tuple[Bound, ...]) -> Scalar:
    """The scalar with bounds on every load, so that it may be computed where they fail.

    Loads from a fixed place need none: they are the same everywhere.
    """

    def with_bounds(load: Load) -> Load:
        if not load.index.terms and not load.bounds:
            return load
        return replace(load, bounds=_joined((*load.bounds, *bounds)))

    return Rewrite(load=with_bounds).scalar(scalar)


def gathered(scalar: Scalar, extent: int) -> Index:
    """The place that an integer scalar names on an axis with that many elements.

    A number outside names the nearest place inside, so that no data can make a program reach
    outside its buffers.
    """
    source = scalar
    while isinstance(source, Apply) and source.primitive == "cast":
        source = source.operands[0]
    if isinstance(source, Literal):
        return Index(max(0, min(int(source.value), extent - 1)))
    if isinstance(source, Position) and _lies_within(source.index, extent):
        return source.index
    value = scalar if scalar.dtype == int64 else Apply("cast", (scalar,), int64)
    below = Apply("minimum", (value, Literal(max(extent - 1, 0), int64)), int64)
    return gathered_index(Apply("maximum", (below, Literal(0, int64)), int64), extent)


def _lies_within(index: Index, extent: int) -> bool:
    return Bound(index, 0, extent).always


def _joined(bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """The same conditions, one for each index, without those that always hold."""
    ranges: dict[Index, tuple[int, int]] = {}
    for bound in bounds:
        low, high = ranges.get(bound.index, (bound.low, bound.high))
        ranges[bound.index] = (max(low, bound.low), min(high, bound.high))
    joined = (Bound(index, low, high) for index, (low, high) in ranges.items())
    return tuple(bound for bound in joined if not bound.always)


def _never(bound: Bound) -> bool:
    low, high = bound.index.bounds
    return high < bound.low or low >= bound.high
