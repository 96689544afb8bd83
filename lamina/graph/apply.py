"""Applying ops to tensors: operands and attributes are checked, shape and dtype inferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lamina.base.shapes import (
    PUBLIC_DTYPES,
    Array,
    DType,
    Shape,
    Size,
    as_dtype,
    bfloat16,
    converted,
    is_masked_array,
    shape_text,
)
from lamina.checks.kinds import Misfit, refusal
from lamina.checks.origin import ORIGIN, Origin, located
from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError
from lamina.graph.attributes import MayLack
from lamina.graph.graph import Graph
from lamina.graph.hyperparameters import Hyperparameter
from lamina.graph.leaves import CONSTANT, LEAF, ConstantValue
from lamina.graph.paths import described, path_after, with_final_paths
from lamina.graph.tensor import NUMBERS, Attributes, Op, Tensor


def apply(op: Op, *operands: Tensor, **attributes: Any) -> Tensor:
    """The op applied to tensors. Operands and attributes are checked against its record here.

    Errors name the layer and source line.
    """
    try:
        plain_attributes = checked_attributes(op, operands, attributes)
        shape, dtype = _inferred(op, operands, plain_attributes)
    except LaminaError as error:
        label = op.name.replace("_", " ").title().replace(" ", "")
        if not ORIGIN.get().path:
            # While a network is defined, the paths of operands do not count other branches yet.
            error.facts = with_final_paths(error.facts, operands)
        raise located(error, path_after(operands, label)) from None
    return Tensor(op, operands, plain_attributes, shape, dtype)


def checked_attributes(op: Op, operands: tuple[Tensor, ...], attributes: Attributes) -> Attributes:
    """The attributes in plain form; like the number of operands, checked against the record."""
    count, kinds = len(operands), op.attributes
    if not attributes and not kinds and count == op.operands:
        return attributes
    least, most = (op.operands,) * 2 if isinstance(op.operands, int) else op.operands
    if count < least or (most is not None and count > most):
        number = str(least) if least == most else f"{least} or more" if most is None else ""
        raise DefinitionError(
            f"{op.name}: the number of operands does not fit",
            facts=(("expected", number or f"{least} to {most}"), ("found", str(count))),
        )
    if attributes.keys() != kinds.keys():
        needed = [name for name, kind in kinds.items() if not isinstance(kind, MayLack)]
        if not (attributes.keys() <= kinds.keys() and attributes.keys() >= set(needed)):
            raise DefinitionError(
                f"{op.name}: the attributes do not fit",
                facts=(("expected", _names(kinds)), ("found", _names(attributes))),
            )
    changed: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            kept = kinds[name].read(value, operands)
        except Misfit as misfit:
            facts = (("tensor", described(operands[0])),) if operands else ()
            raise refusal(misfit, name, value, subject=f"{op.name}: ", facts=facts) from None
        if kept is not value:
            changed[name] = kept
    return {**attributes, **changed} if changed else attributes


def _names(of: Mapping[str, object]) -> str:
    return ", ".join(map(str, of)) or "none"


# No machine has memory for more elements. Byte offsets in such a tensor still fit into 64 bits.
LARGEST_SIZE = 2**53
# Of NumPy's arrays, in which inputs arrive and results are given.
MOST_AXES = 64


def _inferred(op: Op, operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    """The shape and dtype from the shape rule, checked to be possible."""
    shape, dtype = op.infer(operands, attributes)
    if len(shape) > MOST_AXES:
        raise ShapeError(
            f"{op.name}: the result has more axes than an array can have",
            facts=(
                *_operand_facts(operands),
                ("expected", f"at most {MOST_AXES} axes"),
                ("found", f"{len(shape)} axes"),
            ),
            advice="Join axes with ops.reshape.",
        )
    size = 1
    for dim in shape:
        if isinstance(dim, Size):
            size *= max(dim.coefficient + dim.offset, 1)
        elif dim >= 0:
            size *= dim
        else:
            raise ShapeError(
                f"{op.name}: an extent is negative",
                facts=(*_operand_facts(operands), ("result", shape_text(shape, dtype))),
                advice="If the extent depends on the batch, use a larger batch.",
            )
    if size > LARGEST_SIZE:
        facts = (*_operand_facts(operands), ("result", shape_text(shape, dtype)))
        raise ShapeError(f"{op.name}: the result is larger than any memory", facts=facts)
    return shape, dtype


def _operand_facts(operands: Sequence[Tensor]) -> tuple[tuple[str, str], ...]:
    return tuple((f"operand {number}", described(x)) for number, x in enumerate(operands[:3]))


def leaf(name: str, role: str, shape: Shape, dtype: DType) -> Tensor:
    """A tensor that is not computed, with the role `"input"`, `"parameter"` or `"state"`."""
    return apply(LEAF, name=name, role=role, shape=shape, dtype=dtype)


def constant(value: Any, dtype: DType | None = None) -> Tensor:
    """A tensor with a fixed value; arrays keep their dtype unless one is given.

    A hyper-parameter becomes a leaf.
    """
    if isinstance(value, Hyperparameter):
        return value.leaf(dtype or as_dtype(float if isinstance(value, float) else int))
    array = _as_array(value)
    if dtype is None:
        first: object = array.item(0) if array.size else None
        from_python = first is not None and isinstance(
            value, int | float | np.generic | list | tuple
        )
        dtype = as_dtype(type(first) if from_python else array.dtype)
    exact = value if isinstance(value, float) else None
    return apply(CONSTANT, value=ConstantValue(converted(array, dtype.numpy), exact))


def _as_array(value: Any) -> Array:
    """Numbers, lists of them, arrays, and objects that convert to arrays, as an array."""
    kind, reason = type(value).__name__, ""
    try:
        if is_masked_array(value) and np.ma.is_masked(value):
            raise ValueError("masked elements have no value; array.filled(0) gives them one")
        # Only types that hold numbers: text, None and other objects would become object arrays.
        if isinstance(value, NUMBERS | list | tuple) or hasattr(value, "__array__"):
            array = np.asarray(value)
            if array.dtype.kind in "biuf" or array.dtype.name == bfloat16.name:
                return array
            kind = f"{kind} of {array.dtype.name}"
    except LaminaError:
        raise
    except Exception as error:  # another library may raise any exception
        reason = f": {error}"
    raise located(
        DTypeError(
            f"expected a tensor, a number or an array of numbers{reason}",
            facts=(("expected", ", ".join(PUBLIC_DTYPES)), ("found", kind)),
            advice="Make an array first, for example with np.asarray(x, 'float32').",
        )
    )


Rule = Callable[[Tensor, tuple[Tensor, ...]], Tensor]


def rebuild(node: Tensor, operands: tuple[Tensor, ...], **changed: Any) -> Tensor:
    """The node with other operands or attributes, its shape inferred anew, its origin kept."""
    attributes: Attributes = node.attributes
    if changed:
        attributes = checked_attributes(node.op, operands, {**attributes, **changed})
    elif operands == node.operands:
        return node
    elif _same_types(operands, node.operands):
        # The result of the shape rule depends on these alone.
        return Tensor(node.op, operands, attributes, node.shape, node.dtype, node.origin)
    shape, dtype = _inferred(node.op, operands, attributes)
    return Tensor(node.op, operands, attributes, shape, dtype, node.origin)


def _same_types(operands: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether tensors have the same shapes and dtypes as others, pair by pair."""
    if len(operands) != len(others):
        return False
    for operand, other in zip(operands, others, strict=True):
        if operand is not other and (
            operand.dtype is not other.dtype or operand.shape != other.shape
        ):
            return False
    return True


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """The graph with `rule(node, new operands)` for every node; itself if nothing changes."""
    new: dict[Tensor, Tensor] = {}
    before = ORIGIN.set(Origin())
    try:
        for node in graph.nodes():
            operands = tuple([new[operand] for operand in node.operands])
            ORIGIN.set(node.origin)
            new[node] = rule(node, operands)
    finally:
        ORIGIN.reset(before)
    if all(node is replacement for node, replacement in new.items()):
        return graph
    return Graph(
        tuple(new[t] for t in graph.inputs),
        tuple((name, new[t]) for name, t in graph.outputs),
        tuple((new[leaf_], new[t]) for leaf_, t in graph.updates),
    )
