"""Chains as kernels see them: single axes, and rows that are reduced while their columns come.

A row's maximum is known only after all columns. Until then a kernel works with the largest value so
far. If a later one is larger, sums of exponentials are multiplied by the exponential of the
difference (Milakov, Gimelshein: Online normalizer calculation for softmax, 2018). That is right for
values that are multiples of `exp(x - maximum)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import bool_
from lamina.codegen.axes import flattened
from lamina.program.index import Axis, Index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import CONVERSIONS, Apply, Literal, Local, Position, Scalar, postorder
from lamina.program.steps import Chain, InnerProduct, Reduce, WeightedSum


@frozen_dataclass
class Rows:
    """The running values of a row.

    Attributes:
        maximum: the maximum, computed from the products alone.
        sums: the sums whose values are multiples of `exp(x - shift)`.
        shift: the maximum, or 0 if it is -infinity.
    """

    maximum: Reduce
    sums: tuple[Reduce, ...]
    shift: Scalar


def single_chain(chain: Chain) -> Chain:
    """The chain with one axis each for batch, m, k, and the lengths of products and sums.

    It has values in place of the reductions without axes.
    """
    groups = {name: flattened(getattr(chain, name), name) for name in ("batch", "m", "k")}
    replaced: dict[Axis, Index] = {}
    for _, indices in groups.values():
        replaced |= indices
    products: list[InnerProduct] = []
    for product in chain.products:
        axis, indices = flattened(product.axes, "d")
        change = Rewrite(indices)
        left, right = change.scalar(product.left), change.scalar(product.right)
        products.append(replace(product, axes=(axis,), left=left, right=right))
    sums: list[WeightedSum] = []
    for total in chain.sums:
        axis, indices = flattened(total.n, "n")
        change = Rewrite(indices)
        right, stores = change.scalar(total.right), change.records(total.stores)
        sums.append(replace(total, n=(axis,), right=right, stores=stores))
    single = {name: (axis,) for name, (axis, _) in groups.items()}
    k = single["k"]
    reductions = (
        replace(reduction, axes=k if reduction.axes else ()) for reduction in chain.reductions
    )
    flat_chain = replace(
        chain, products=tuple(products), sums=tuple(sums), reductions=tuple(reductions), **single
    )
    return _without_row_values(Rewrite(replaced).record(flat_chain))


def _without_row_values(chain: Chain) -> Chain:
    values: dict[str, Scalar] = {}
    kept: list[Reduce] = []
    for reduction in chain.reductions:
        value = Rewrite(locals=values).scalar(reduction.value)
        if reduction.axes:
            kept.append(replace(reduction, value=value))
        else:
            values[reduction.local] = value
    return Rewrite(locals=values).record(replace(chain, reductions=tuple(kept)))


def rows_of(chain: Chain) -> Rows | None:
    """The running values of a chain without row values; None if it has none, or others."""
    if not chain.reductions or chain.reductions[0].combine != "maximum":
        return None
    maximum, *sums = chain.reductions
    local = Local(maximum.local, maximum.dtype)
    dtype = maximum.dtype
    is_least = Apply("equal", (local, Literal(-math.inf, dtype)), bool_)
    shift = Apply("select", (is_least, Literal(0.0, dtype), local), dtype)
    reduced = {reduction.local for reduction in chain.reductions}
    scaled = [reduction.value for reduction in sums] + [total.weight for total in chain.sums]
    if not _is_free(maximum.value, reduced) or {reduction.combine for reduction in sums} - {"sum"}:
        return None
    if not all(_is_multiple(value, shift, reduced) for value in scaled):
        return None
    return Rows(maximum, tuple(sums), shift)


def _is_free(value: Scalar, locals: set[str]) -> bool:
    return not any(isinstance(node, Local) and node.name in locals for node in postorder(value))


def _is_multiple(value: Scalar, shift: Scalar, reduced: set[str]) -> bool:
    """Whether a value is a multiple of `exp(x - shift)`, up to roundings."""
    if not isinstance(value, Apply):
        return False
    if value.primitive == "exp":
        (inner,) = value.operands
        if not isinstance(inner, Apply) or inner.primitive != "subtract":
            return False
        return inner.operands[1] == shift and _is_free(inner.operands[0], reduced)
    if value.primitive in (*CONVERSIONS, "negative"):
        return value.dtype.is_float and _is_multiple(value.operands[0], shift, reduced)
    if value.primitive == "multiply":
        left, right = value.operands
        return any(
            _is_multiple(scaled, shift, reduced) and _is_free(factor, reduced)
            for scaled, factor in ((left, right), (right, left))
        )
    if value.primitive == "select":
        condition, *choices = value.operands
        return _is_free(condition, reduced) and all(
            _is_number(choice, 0) or _is_multiple(choice, shift, reduced) for choice in choices
        )
    return False


def _is_number(value: Scalar, number: float) -> bool:
    return isinstance(value, Literal) and value.value == number


def columns_of(chain: Chain, tile_m: int, tile_k: int, tiles: Axis) -> tuple[Index, Index | None]:
    """The tiles of columns that matter to a tile of rows: the first one, and the end.

    In causal attention, columns on one side of the diagonal do not matter. `tiles` counts the
    tiles of rows. None: up to the last one.
    """
    needed = [_needed(total.weight, 0) for total in chain.sums]
    for reduction in chain.reductions:
        needed.append(_needed(reduction.value, 0 if reduction.combine == "sum" else -math.inf))
    (m,), (k,) = chain.m, chain.k
    first, after = Index(), None
    for condition in needed[0].intersection(*needed[1:]):
        distance = _distance(condition)
        if distance is None or {atom for atom, _ in distance.terms} != {m, k}:
            continue
        steps = dict(distance.terms)
        rows = Index(0, ((tiles, tile_m),))
        if steps == {m: 1, k: -1}:
            # k <= m + constant, at the last row.
            end = (rows + (tile_m - 1 + distance.constant + tile_k)) // tile_k
            after = end if end.bounds[0] >= 0 else after
        elif steps == {m: -1, k: 1}:
            # k >= m - constant, at the first row.
            begin = rows - distance.constant
            first = begin // tile_k if begin.bounds[0] >= 0 else first
    return first, after


def _needed(value: Scalar, nothing: float) -> set[Scalar]:
    """Conditions without which a value is `nothing`: zero in a sum, -infinity in a maximum."""
    if not isinstance(value, Apply):
        return set()
    if value.primitive == "select":
        condition, yes, no = value.operands
        if _is_number(no, nothing):
            return {*_conjunction(condition), *_needed(yes, nothing)}
        if _is_number(yes, nothing):
            return _needed(no, nothing)
        return _needed(yes, nothing) & _needed(no, nothing)
    if value.primitive in CONVERSIONS:
        return _needed(value.operands[0], nothing)
    if value.primitive == "multiply" and nothing == 0:
        return set[Scalar]().union(*(_needed(operand, nothing) for operand in value.operands))
    if value.primitive == "exp" and nothing == 0:
        (inner,) = value.operands
        if isinstance(inner, Apply) and inner.primitive == "subtract":
            return _needed(inner.operands[0], -math.inf)
    return set()


def _conjunction(condition: Scalar) -> set[Scalar]:
    if isinstance(condition, Apply) and condition.primitive == "logical_and":
        return set[Scalar]().union(*map(_conjunction, condition.operands))
    return {condition}


def _distance(condition: Scalar) -> Index | None:
    """A number that is not negative where a condition on positions holds."""
    if not isinstance(condition, Apply) or len(condition.operands) != 2:
        return None
    left, right = map(_position, condition.operands)
    if left is None or right is None:
        return None
    distances: Mapping[str, Index] = {
        "greater_equal": left - right,
        "greater": left - right - 1,
        "less_equal": right - left,
        "less": right - left - 1,
    }
    return distances.get(condition.primitive)


def _position(value: Scalar) -> Index | None:
    """The number that a scalar makes of positions."""
    if isinstance(value, Position):
        return value.index
    if isinstance(value, Literal) and isinstance(value.value, int):
        return Index(value.value)
    if not isinstance(value, Apply) or value.primitive not in ("add", "subtract"):
        return None
    left, right = map(_position, value.operands)
    if left is None or right is None:
        return None
    return left + right if value.primitive == "add" else left - right
