"""Simplification: an equal graph of fewer tensors.

Common subexpressions are shared, constants folded, and operations that change nothing dropped.
Every rule holds for NaN, infinities and signed zeros: `x * 0` stays, `x * 1` becomes x. Only a sum
that is zero may change its sign.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, cast

import numpy as np

from lamina import ops
from lamina.base.shapes import DType, int64, size_of, static
from lamina.compiler.buffers import is_number
from lamina.graph import CONSTANT, LEAF, Graph, Op, Tensor, constant, rebuild, rewrite
from lamina.ops.arithmetic import ADD, DIV, MUL, MULTIPLY_ADD, POW, SUB
from lamina.ops.broadcast import BROADCAST_TO, SUM
from lamina.ops.comparison import WHERE
from lamina.ops.conversion import CAST, ROUND_TO_TF32, STOP_GRADIENT
from lamina.ops.differentiate import COMPUTED_AGAIN
from lamina.ops.elementwise import NEG
from lamina.ops.indexing import SCATTER_ALONG_AXIS
from lamina.ops.joining import CONCAT
from lamina.ops.linalg import CONTRACT
from lamina.ops.lowering_rules import Elementwise, Generator, Movement, Scattering
from lamina.ops.movement import RESHAPE, TRANSPOSE
from lamina.ops.slicing import PAD, SLICE

# The most elements of a folded constant.
LARGEST_FOLDED = 256


def simplify(graph: Graph) -> Graph:
    """Applies the rules until the number of tensors stays the same."""
    # The tensors that no rule changes, and their attributes as keys.
    settled: dict[Tensor, Any] = {}
    while True:
        simpler = rewrite(_without_moved_contractions(graph), _sharing(settled))
        if len(simpler.nodes()) == len(graph.nodes()):
            return simpler
        graph = simpler


def _sharing(settled: dict[Tensor, Any]) -> Callable[[Tensor, tuple[Tensor, ...]], Tensor]:
    """A rule for `rewrite` that simplifies each tensor and returns one for all equal ones."""
    tensors: dict[Any, Tensor] = {}

    def shared(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        node = rebuild(node, operands)
        attributes = settled.get(node)
        if attributes is None:
            new = _simplified(node)
            attributes = attributes_key(new)
            if new is node:
                settled[node] = attributes
            node = new
        return tensors.setdefault((node.op, node.operands, attributes), node)

    return shared


def exact(value: Hashable) -> Hashable:
    """A key that distinguishes equal values: 0.0 and -0.0, 1 and True."""
    if isinstance(value, tuple):
        return tuple([exact(item) for item in cast(tuple[Hashable, ...], value)])
    return (type(value), repr(value)) if isinstance(value, bool | float) else value


def attributes_key(node: Tensor, key: Callable[[Any], Hashable] = exact) -> Hashable:
    """The attributes of a tensor as a key, from the keys of their values."""
    return tuple(sorted([(name, key(value)) for name, value in node.attributes.items()]))


def _simplified(node: Tensor) -> Tensor:
    if node.op in (LEAF, CONSTANT):
        return node
    folded = _folded(node)
    if folded is not None:
        return folded
    if isinstance(node.op.lowering, Elementwise):
        node = _without_broadcasts(node)
    moved = _moved(node) if isinstance(node.op.lowering, Movement) else None
    if moved is not None:
        return moved
    rule = _RULES.get(node.op)
    simpler = rule(node) if rule else None
    if simpler is None:
        return node
    return _simplified(simpler) if simpler not in node.operands else simpler


def _without_moved_contractions(graph: Graph) -> Graph:
    """Computes a product of matrices as its transpose if every user transposes it.

    In other contractions an operand may be unable to have the axes of N.
    """
    if not any(node.op is TRANSPOSE and node.operands[0].op is CONTRACT for node in graph.nodes()):
        return graph
    users = Counter(operand for node in graph.nodes() for operand in node.operands)
    users.update(graph.roots)

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        if node.op is TRANSPOSE and operands[0].op is CONTRACT:
            (before,) = node.operands
            if users[before] == 1 and before.rank == 2:
                names = operands[0].attributes["output"]
                moved = tuple(names[axis] for axis in node.attributes["axes"])
                return rebuild(operands[0], operands[0].operands, output=moved)
        return rebuild(node, operands)

    return rewrite(graph, rule)


def _folded(node: Tensor) -> Tensor | None:
    """The node's value as a constant, if its operands are constants and the result is small."""
    if isinstance(node.op.lowering, Generator | Scattering):
        return None
    if isinstance(node.op.lowering, Elementwise) and node.rank:
        scalars = [scalar for x in node.operands if (scalar := _number(x)) is not None]
        if len(scalars) == len(node.operands):
            number = rebuild(node, tuple(scalars))
            folded = _folded(number)
            return None if folded is None else ops.broadcast_to(folded, node.shape)
    if not node.operands or any(operand.op is not CONSTANT for operand in node.operands):
        return None
    size = size_of(static(node.shape))
    if size > LARGEST_FOLDED or (node.op is BROADCAST_TO and size > 1):
        return None
    values = (operand.attributes["value"].array for operand in node.operands)
    with np.errstate(all="ignore"):
        return constant(np.asarray(node.op.reference(*values, **node.attributes)), node.dtype)


def _without_broadcasts(node: Tensor) -> Tensor:
    """Drops explicit broadcasts of operands: elementwise ops broadcast by themselves."""
    for position, operand in enumerate(node.operands):
        smaller = _unbroadcast(operand)
        if smaller is not None:
            bare = (*node.operands[:position], smaller, *node.operands[position + 1 :])
            if node.op.infer(bare, node.attributes)[0] == node.shape:
                return _without_broadcasts(rebuild(node, bare))
    return node


def _unbroadcast(tensor: Tensor) -> Tensor | None:
    """A smaller tensor that broadcasts to this one; None if there is none."""
    if tensor.op is BROADCAST_TO:
        return tensor.operands[0]
    if tensor.op is CONSTANT and tensor.rank and size_of(static(tensor.shape)) == 1:
        return constant(tensor.attributes["value"].array.reshape(()), tensor.dtype)
    return None


def _number(tensor: Tensor) -> Tensor | None:
    """The constant 0-d tensor that every element of a tensor equals; None if there is none."""
    smaller = _unbroadcast(tensor)
    if smaller is not None:
        return _number(smaller)
    return tensor if tensor.op is CONSTANT and tensor.shape == () else None


def _is(tensor: Tensor, number: float) -> bool:
    """Whether every element is known to be the number; 0 is not -0.0."""
    literal = _number(tensor)
    if literal is None:
        return False
    value = float(literal.attributes["value"].array[()])
    return value == number and math.copysign(1, value) == math.copysign(1, number)


def _multiply(node: Tensor) -> Tensor | None:
    for factor, other in (node.operands, node.operands[::-1]):
        if factor.shape == node.shape and _is(other, 1):
            return factor
        if factor.shape == node.shape and _is(other, -1) and node.dtype.is_float:
            return ops.neg(factor)
    return None


def _add(node: Tensor) -> Tensor | None:
    left, right = node.operands
    if right.op is NEG:
        return ops.sub(left, right.operands[0])
    return ops.sub(right, left.operands[0]) if left.op is NEG else None


def _multiply_add(node: Tensor) -> Tensor | None:
    left, right, added = node.operands
    for factor, other in ((left, right), (right, left)):
        if _is(factor, 1):
            total = ops.add(other, added)
            return total if total.shape == node.shape else None
    return None


def _unless_changed(node: Tensor, number: float) -> Tensor | None:
    """The first operand if the second is a number that changes nothing."""
    left, right = node.operands
    return left if left.shape == node.shape and _is(right, number) else None


def _subtract(node: Tensor) -> Tensor | None:
    left, right = node.operands
    return ops.add(left, right.operands[0]) if right.op is NEG else _unless_changed(node, 0)


def _power(node: Tensor) -> Tensor | None:
    base, exponent = node.operands
    if base.shape != node.shape:
        return None
    if _is(exponent, 1):
        return base
    return ops.mul(base, base) if _is(exponent, 2) else None


def _where(node: Tensor) -> Tensor | None:
    condition, left, right = node.operands
    if left is right and left.shape == node.shape:
        return left
    halves = {x.operands[0].dtype for x in (left, right) if is_widened(x)}
    if len(halves) != 1:
        return None
    # Floats of 16 bits are chosen before they are cast to wider ones.
    (half,) = halves
    narrow = [_narrowed(x, half) for x in (left, right)]
    choices = [x for x in narrow if x is not None]
    return ops.cast(ops.where(condition, *choices), node.dtype) if len(choices) == 2 else None


def is_widened(node: Tensor) -> bool:
    """Whether the tensor is a cast of floats of 16 bits to wider ones."""
    is_wide = node.dtype.is_float and not node.dtype.is_half
    return is_wide and node.op is CAST and node.operands[0].dtype.is_half


def _narrowed(node: Tensor, half: DType) -> Tensor | None:
    """The floats of 16 bits from which a tensor is cast, or 0 if it is 0; None for others."""
    if is_widened(node):
        return node.operands[0]
    return constant(0.0, half) if _is(node, 0.0) else None


def _unchanged(node: Tensor) -> Tensor | None:
    """The operand if it has the shape and dtype of the result, else None."""
    (operand,) = node.operands
    return operand if (operand.shape, operand.dtype) == (node.shape, node.dtype) else None


def _cast(node: Tensor) -> Tensor | None:
    """Floats that were cast to a wider dtype are cast from the dtype that they had before."""
    (operand,) = node.operands
    if is_widened(operand) and node.dtype.is_float:
        return ops.cast(operand.operands[0], node.dtype)
    if node.dtype.is_half and keeps_elements(operand):
        # Rounded before it is moved, so that the tensor that is stored is the narrow one.
        return rebuild(operand, (ops.cast(operand.operands[0], node.dtype),))
    return _unchanged(node)


def keeps_elements(node: Tensor) -> bool:
    """Whether each element is one of its only operand's, which are floats, or zero."""
    fills = (node.attributes.get("value", 0.0), node.attributes.get("fill", 0.0))
    is_moved = isinstance(node.op.lowering, Movement) and len(node.operands) == 1
    # `one_hot` makes floats of integers.
    has_floats = all(x.dtype.is_float for x in node.operands)
    return is_moved and has_floats and all(repr(fill) == "0.0" for fill in fills)


def _moved(node: Tensor) -> Tensor | None:
    """Numbers are moved before they are rounded to TF32, or cast from 16 bits to wider ones.

    The rounding is then the last op of the view through which a contraction reads its operand.
    """
    keeps, below = keeps_elements(node), node.operands
    if keeps and below[0].op is ROUND_TO_TF32:
        return ops.round_to_tf32(_simplified(rebuild(node, below[0].operands)))
    if (keeps or node.op is CONCAT) and all(map(is_widened, below)):
        narrow = tuple(operand.operands[0] for operand in below)
        if len({operand.dtype for operand in narrow}) == 1:
            return ops.cast(_simplified(rebuild(node, narrow)), node.dtype)
    return None


def _reshape(node: Tensor) -> Tensor | None:
    (operand,) = node.operands
    if operand.op is RESHAPE:
        return ops.reshape(operand.operands[0], node.shape)
    return _unchanged(node)


def _transpose(node: Tensor) -> Tensor | None:
    (operand,) = node.operands
    axes: tuple[int, ...] = node.attributes["axes"]
    if axes == tuple(range(len(axes))):
        return operand
    if operand.op is TRANSPOSE:
        first: tuple[int, ...] = operand.attributes["axes"]
        return ops.transpose(operand.operands[0], tuple(first[axis] for axis in axes))
    # Moving axes of extent 1 moves no element.
    kept = [axis for axis in axes if operand.shape[axis] != 1]
    return ops.reshape(operand, node.shape) if kept == sorted(kept) else None


def _sum(node: Tensor) -> Tensor | None:
    (operand,) = node.operands
    axes: tuple[int, ...] = node.attributes["axes"]
    if all(operand.shape[axis] == 1 for axis in axes):
        return ops.reshape(operand, node.shape)
    if operand.op is not BROADCAST_TO or not operand.dtype.is_float:
        return None
    # A sum of equal terms: one term times their number.
    source = operand.operands[0]
    lead = operand.rank - source.rank
    before = (*(1,) * lead, *source.shape)
    if not all(axis < lead or (before[axis] == 1 and operand.shape[axis] != 1) for axis in axes):
        return None
    kept = tuple(extent for axis, extent in enumerate(before) if axis not in axes)
    count = size_of([size for axis in axes if isinstance(size := operand.shape[axis], int)])
    if count == 0:
        return None
    total = ops.mul(ops.reshape(source, kept), float(count))
    return ops.broadcast_to(total, node.shape)


def _contract(node: Tensor) -> Tensor | None:
    """An operand of one constant number becomes a factor of the other operand."""
    attributes = node.attributes
    sides = list(zip(node.operands, (attributes["left"], attributes["right"]), strict=True))
    for (number, _), (other, labels) in (sides, sides[::-1]):
        if is_number(number):
            # Labels that only one operand has, or only the output, have extent 1.
            kept = [labels.index(label) for label in attributes["output"] if label in labels]
            dropped = [axis for axis in range(other.rank) if axis not in kept]
            moved = ops.reshape(ops.transpose(other, [*kept, *dropped]), node.shape)
            return ops.mul(moved, ops.reshape(number, ()))
    return None


def _scatter_along_axis(node: Tensor) -> Tensor | None:
    """With one value per row, each position takes the value where it equals the index."""
    values, indices = node.operands
    axis: int = node.attributes["axis"]
    if values.shape[axis] != 1:
        return None
    extent = static(node.shape)[axis]
    if extent == 0:
        return None
    shape = tuple(extent if a == axis else 1 for a in range(node.rank))
    positions = ops.reshape(ops.arange(extent, int64), shape)
    inside = ops.clip(ops.cast(indices, int64), 0, extent - 1)
    # A scatter adds to zero, which turns -0.0 of floats into 0.0.
    added = ops.add(values, 0) if values.dtype.is_float else values
    return ops.where(ops.equal(positions, inside), added, 0)


_RULES: dict[Op, Callable[[Tensor], Tensor | None]] = {
    MUL: _multiply,
    MULTIPLY_ADD: _multiply_add,
    DIV: lambda node: _unless_changed(node, 1),
    ADD: _add,
    SUB: _subtract,
    POW: _power,
    NEG: lambda node: node.operands[0].operands[0] if node.operands[0].op is NEG else None,
    WHERE: _where,
    CAST: _cast,
    # What is rounded is not rounded again.
    ROUND_TO_TF32: lambda node: node.operands[0] if node.operands[0].op is ROUND_TO_TF32 else None,
    BROADCAST_TO: _unchanged,
    SLICE: _unchanged,
    PAD: _unchanged,
    RESHAPE: _reshape,
    TRANSPOSE: _transpose,
    SUM: _sum,
    CONTRACT: _contract,
    SCATTER_ALONG_AXIS: _scatter_along_axis,
    STOP_GRADIENT: _unchanged,
    COMPUTED_AGAIN: lambda node: node.operands[0],  # its sources are only for gradients
}
