"""Lowering rules: how an op becomes steps of a program.

The compiler knows these rules, but no single op. The rule of most ops is a function from the
coordinates of a result element to its scalar. It pulls the scalars of the operands, at coordinates
that it computes. So elementwise ops, movements and generators compose into one expression. Fusing
them means that the tensors between them are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import int64, static
from lamina.graph import Graph, LoweringRule, Tensor
from lamina.program.index import Index, gathered_index
from lamina.program.primitive_costs import cost_of_primitive
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
    unconverted,
)
from lamina.program.windows import Sliding

Coordinates = tuple[Index, ...]
# A function of an operand's number and of coordinates in that operand. It returns the scalar there.
Pull = Callable[[int, Coordinates], Scalar]


@frozen_dataclass
class Elementwise(LoweringRule):
    """Each result element depends on the operands' elements at the same (broadcast) coordinates.

    Attributes:
        scalar: a function of the node and of one scalar for each operand, which are the operands'
            elements at the coordinates of a result element. It returns that result element.
    """

    scalar: Callable[[Tensor, tuple[Scalar, ...]], Scalar]


@frozen_dataclass
class Movement(LoweringRule):
    """Each result element is an operand element at other coordinates, or a constant.

    Attributes:
        scalar: a function of the node, of the coordinates of a result element, and of `pull`, which
            reads operands. It returns the result element.
        ordered: whether only the first operand is read; the others are only computed before.
        slides: for a movement that slides windows, a function of the node and of the coordinates of
            a result element. It returns the windows through which that element reads the operand;
            None for windows that do not move along single axes.
    """

    scalar: Callable[[Tensor, Coordinates, Pull], Scalar]
    ordered: bool = False
    slides: Callable[[Tensor, Coordinates], tuple[Sliding | None, ...]] | None = None

    takes_halves = True


@frozen_dataclass
class Generator(LoweringRule):
    """Result elements follow from their coordinates and from operands of one element.

    The result is never stored.

    Attributes:
        scalar: a function of the node, of the coordinates of a result element, and of `pull`, which
            reads operands. It returns the result element.
    """

    scalar: Callable[[Tensor, Coordinates, Pull], Scalar]


@frozen_dataclass
class Reduction(LoweringRule):
    """Combines the elements along the axes in the attribute `axes`, which the result lacks.

    Attributes:
        combine: the combination of two elements: a name in `lamina.program.steps.COMBINERS`.
    """

    combine: str


@frozen_dataclass
class Contracting(LoweringRule):
    """A sum of products; attributes `left`, `right` and `output` label the axes of each tensor.

    Each label occurs in at least two of the three, and at most once in each.
    """


@frozen_dataclass
class Scanning(LoweringRule):
    """A running combination along the axis `axis`, from the end if `reverse`; both are attributes.

    Attributes:
        combine: the combination of two elements: a name in `lamina.program.steps.COMBINERS`.
    """

    combine: str


@frozen_dataclass
class Scattering(LoweringRule):
    """Adds operand 0 (values) to zeros of the node's shape, at the indices in operand 1.

    Attributes:
        destination: a function of the node, of the coordinates of a value, and of `pull`, which
            reads operands. It returns the coordinates in the result to which the value is added.
    """

    destination: Callable[[Tensor, Coordinates, Pull], Coordinates]


@frozen_dataclass
class Sorting(LoweringRule):
    """The positions of the elements along the axis `axis`, an attribute, in the order of keys.

    Equal keys keep their order.

    Attributes:
        key: a function of the node and of the operand's element. It returns an integer.
    """

    key: Callable[[Tensor, Scalar], Scalar]


@frozen_dataclass
class Repeating(LoweringRule):
    """One result of a recurrence: a loop that applies a graph in each iteration.

    The node's attributes are:

    - `body`: the graph of one iteration. Its inputs, like the node's operands, are states,
      sequences, then constants. An operand that is a sequence has the time as its first axis. The
      outputs of the body are the new states, then further results.
    - `states`, `sequences`: the numbers of states and of sequences.
    - `reverse`: whether time runs backwards.
    - `result`: the number of an output. The node is the stack of this output over all iterations;
      the stack of a state also has the initial state, where time begins.

    Nodes that differ only in `result` are one loop.
    """

    takes_halves = True


class Recurrence:
    """The attributes of one result of a recurrence, and the number of iterations."""

    def __init__(self, node: Tensor) -> None:
        self.body: Graph = node.attributes["body"]
        self.states: int = node.attributes["states"]
        self.sequences: int = node.attributes["sequences"]
        self.reverse: bool = node.attributes["reverse"]
        (self.length,) = static(node.operands[self.states].shape[:1])


def read_operands(node: Tensor) -> tuple[Tensor, ...]:
    """The operands that a tensor is computed from, without operands that only order it."""
    lowering = node.op.lowering
    ordered = isinstance(lowering, Movement) and lowering.ordered
    return node.operands[:1] if ordered else node.operands


def loop_key(node: Tensor) -> object:
    """The key that all results of one loop share."""
    others = {name: value for name, value in node.attributes.items() if name != "result"}
    return node.operands, tuple(sorted(others.items(), key=lambda item: item[0]))


def iteration_of(results: Sequence[Tensor]) -> Graph:
    """The graph of one iteration of a loop, as far as these results need it.

    Its outputs are all new states, then the other results, named by their numbers.
    """
    loop = Recurrence(results[0])
    chosen = {*range(loop.states), *(result.attributes["result"] for result in results)}
    outputs = loop.body.outputs
    return Graph(loop.body.inputs, tuple((str(n), outputs[n][1]) for n in sorted(chosen)))


@frozen_dataclass
class Decomposition(LoweringRule):
    """The op is replaced by a graph of other ops.

    Attributes:
        build: a function of the node. It returns an equal tensor, made of other ops on the node's
            operands.
        chained: the same for targets with `chains`; None if it is no different.
    """

    build: Callable[[Tensor], Tensor]
    chained: Callable[[Tensor], Tensor] | None = None


def is_expensive(node: Tensor) -> bool:
    """Whether the op applies a primitive that costs more than storing and loading its result."""
    lowering = node.op.lowering
    if not isinstance(lowering, Elementwise):
        return False
    probes = tuple(Local("probe", operand.dtype) for operand in node.operands)
    scalar = lowering.scalar(node, probes)
    applied = (part.primitive for part in postorder(scalar) if isinstance(part, Apply))
    return any(cost_of_primitive(primitive) > 1 for primitive in applied)


def select_within(bounds: tuple[Bound, ...], inside: Scalar, outside: Scalar) -> Scalar:
    """`inside` where all bounds hold, `outside` elsewhere.

    A load gives zero where its bounds fail. So a load that is padded with zeros needs no select,
    and remains a view.
    """
    needed = _joined(bounds)
    if not needed:
        return inside
    if any(b.index.bounds[1] < b.low or b.index.bounds[0] >= b.high for b in needed):
        return outside
    bare = unconverted(inside)
    zeros_outside = isinstance(outside, Literal) and repr(outside.value) in ("0", "0.0", "False")
    if zeros_outside and isinstance(bare, Load) and (bare.index.terms or bare.bounds):
        return guarded(inside, needed)
    return Apply("select", (Within(needed), guarded(inside, needed), outside), inside.dtype)


def guarded(scalar: Scalar, bounds: tuple[Bound, ...]) -> Scalar:
    """The scalar with bounds on every load, so that it may be computed where they fail.

    Loads from a constant index need none: they are the same everywhere.
    """

    def with_bounds(load: Load) -> Load:
        if not load.index.terms and not load.bounds:
            return load
        return replace(load, bounds=_joined((*load.bounds, *bounds)))

    return Rewrite(load=with_bounds).scalar(scalar)


def gathered(scalar: Scalar, extent: int) -> Index:
    """The index that an integer scalar selects on an axis of this extent.

    It is clamped to the axis, so that no data makes a program read or write outside its buffers.
    """
    source = scalar
    while isinstance(source, Apply) and source.primitive == "cast":
        source = source.operands[0]
    if isinstance(source, Literal):
        return Index(max(0, min(int(source.value), extent - 1)))
    if isinstance(source, Position) and Bound(source.index, 0, extent).always:
        return source.index
    value = scalar if scalar.dtype == int64 else Apply("cast", (scalar,), int64)
    below = Apply("minimum", (value, Literal(max(extent - 1, 0), int64)), int64)
    return gathered_index(Apply("maximum", (below, Literal(0, int64)), int64), extent)


def _joined(bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """The same conditions, one for each index, without conditions that always hold."""
    ranges: dict[Index, tuple[int, int]] = {}
    for bound in bounds:
        low, high = ranges.get(bound.index, (bound.low, bound.high))
        ranges[bound.index] = (max(low, bound.low), min(high, bound.high))
    joined = (Bound(index, low, high) for index, (low, high) in ranges.items())
    return tuple(bound for bound in joined if not bound.always)
