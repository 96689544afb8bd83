"""Attention: means of values, weighted by the softmax of scaled products of queries and keys.

`attention_blocks` builds the graph that computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lamina.base.shapes import Array, DType, bfloat16, bool_, converted
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import ElementType, Flag
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Sample, Tensor, TensorLike, apply, described
from lamina.graph.attributes import AnyNumber, MayLack, whole
from lamina.ops.arguments import as_tensor, flag_of, read
from lamina.ops.attention_blocks import attention_arguments, gradients_of, weighted_means
from lamina.ops.broadcast import broadcast_to
from lamina.ops.differentiate import gradients_of_built
from lamina.ops.lowering_rules import Decomposition
from lamina.ops.movement import expand_dims, reshape
from lamina.ops.records import Gradients, Typed, make_op
from lamina.program.tf32 import rounded_to_tf32

__all__ = ["attention"]


def _infer_attention(*operands: Tensor, **attributes: Any) -> Typed:
    arguments = attention_arguments(operands, attributes)
    queries, keys, values = arguments.queries, arguments.keys, arguments.values
    mask, bias, factors = arguments.mask, arguments.bias, arguments.factors
    others = [x for x in (mask, bias, factors) if x is not None]
    if len(operands) != 3 + len(others) or (bias is not None) != attributes.get("biased", False):
        raise DTypeError("attention: there is one mask, of bools, one bias, and one of factors")
    facts = tuple(zip(("queries", "keys", "values"), map(described, operands), strict=False))
    if not queries.dtype.is_float or {keys.dtype, values.dtype} != {queries.dtype}:
        raise DTypeError(
            "attention: queries, keys and values must be of one float dtype",
            facts=facts,
            advice="Convert with ops.cast.",
        )
    shapes = (queries.shape, keys.shape, values.shape)
    if any(len(shape) != 4 for shape in shapes) or not (
        queries.shape[:2] == keys.shape[:2] == values.shape[:2]
        and queries.shape[3] == keys.shape[3]
        and keys.shape[2] == values.shape[2]
    ):
        raise ShapeError(
            "attention: the shapes do not fit",
            facts=facts,
            advice="All are [batch, heads, length, features]; queries and keys have the same "
            "features, keys and values the same length.",
        )
    if keys.shape[2] == 0:
        raise ShapeError("attention: there are no keys", facts=facts)
    weights = (*queries.shape[:3], keys.shape[2])
    for name, x in (("bias", bias), ("factors", factors)):
        if x is not None and x.dtype != queries.dtype:
            raise DTypeError(f"attention: the {name} must be of the queries' dtype", facts=facts)
    for name, x in (("mask", mask), ("bias", bias), ("factors", factors)):
        if x is not None and (
            x.rank != 4 or any(n not in (1, m) for n, m in zip(x.shape, weights, strict=True))
        ):
            raise ShapeError(
                f"attention: the {name} cannot be repeated to the shape of the weights",
                facts=(*facts, (name, described(x))),
                advice="The weights are [batch, heads, queries, keys]; each axis must have that "
                "extent, or 1. For [batch, queries, keys] insert the heads: ops.expand_dims(x, 1).",
            )
    return (*queries.shape[:3], values.shape[3]), queries.dtype


def _infer_gradient(
    upstream: Tensor, result: Tensor, *others: Tensor, operand: int, **attributes: Any
) -> Typed:
    shape, dtype = _infer_attention(*others, **attributes)
    if {(upstream.shape, upstream.dtype), (result.shape, result.dtype)} != {(shape, dtype)}:
        raise ShapeError(
            "attention_gradient: the upstream gradient or the result has a wrong shape or dtype",
            facts=(("upstream", described(upstream)), ("result", described(result))),
        )
    if operand >= len(others) or not others[operand].dtype.is_float:
        raise ShapeError(f"attention_gradient: operand {operand} has no gradient")
    return others[operand].shape, others[operand].dtype


def _build(*operands: Tensor, **attributes: Any) -> Tensor:
    arguments = attention_arguments(operands, attributes).without_hidden()
    return weighted_means(arguments, arguments.block_count)


def _gradient(*tensors: Tensor, **attributes: Any) -> Gradients:
    *operands, result, upstream = tensors
    return tuple(
        apply(ATTENTION_GRADIENT, upstream, result, *operands, **attributes, operand=number)
        if x.dtype.is_float
        else None
        for number, x in enumerate(operands)
    )


def _gradient_build(
    upstream: Tensor, result: Tensor, *others: Tensor, operand: int, **attributes: Any
) -> Tensor:
    """The gradient of one operand; the gradients of all operands share most of their graphs."""
    arguments = attention_arguments(others, attributes)
    gradients = gradients_of(arguments.without_hidden(), result, upstream, arguments.block_count)
    return gradients[[n for n, x in enumerate(others) if x.dtype.is_float].index(operand)]


def _second_gradient(*tensors: Tensor, **attributes: Any) -> Gradients:
    """The gradient of the gradient's graph, in the user's number of blocks or in one."""
    *operands, _, upstream = tensors
    attributes = {"blocks": 1, **attributes}
    return gradients_of_built(
        lambda replaced: _gradient_build(*replaced, **attributes), tuple(operands), upstream
    )


def _blocked(build: Callable[..., Tensor]) -> Decomposition:
    """The lowering of an op. Where weights are not stored, one block has all queries."""
    return Decomposition(
        lambda node: build(*node.operands, **node.attributes),
        lambda node: build(*node.operands, **{"blocks": 1, **node.attributes}),
    )


def _powers(
    queries: Array,
    keys: Array,
    values: Array,
    *others: Array,
    causal: bool,
    scale: float,
    biased: bool = False,
    tf32: bool = False,
    **_: object,
) -> tuple[tuple[Array, Array, Array], Array, Array, Array]:
    """The operands, the weights before division by the sum of their row, these sums, the factors.

    Keys to which no query attends are zero, and queries that attend to no key; the sum of a row
    without keys is 1.
    """
    scalar = queries.dtype.type
    floats = [x for x in others if x.dtype != np.bool_]
    allowed = np.ones((1, 1, 1, 1), bool)
    for mask in others:
        allowed = allowed & mask if mask.dtype == np.bool_ else allowed
    pairs = allowed & (floats[0] > -np.inf) if biased else allowed
    asks, seen = (x.any(3, keepdims=True) for x in (pairs, np.swapaxes(pairs, 2, 3)))
    queries = np.where(asks, queries, scalar(0))
    keys, values = (np.where(seen, x, scalar(0)) for x in (keys, values))
    scores: Array = _product("bhqd,bhkd->bhqk", queries, keys, tf32=tf32) * scalar(scale)
    if biased:
        scores = scores + floats.pop(0)
    if causal:
        allowed = allowed & np.tri(*scores.shape[2:], dtype=bool)
    scores = np.where(allowed, scores, scalar(-np.inf))
    largest = scores.max(3, keepdims=True)
    powers = np.exp(scores - np.where(largest == -np.inf, 0, largest))
    total = powers.sum(3, keepdims=True)
    factors = floats[0] if floats else np.asarray(scalar(1))
    return (queries, keys, values), powers, np.where(total == 0, 1, total), factors


def _rounded_factor(x: Array, products: DType | None) -> Array:
    """Weights and gradients of scores as they are multiplied."""
    return x if products is None else converted(converted(x, products.numpy), x.dtype)


def _product(spec: str, left: Array, right: Array, *, tf32: bool) -> Array:
    operands = map(rounded_to_tf32, (left, right)) if tf32 else (left, right)
    return np.asarray(np.einsum(spec, *operands))


def _reference(
    *operands: Array, products: DType | None = None, tf32: bool = False, **attributes: Any
) -> Array:
    (_, _, values), powers, total, factors = _powers(*operands, tf32=tf32, **attributes)
    weights = _rounded_factor(powers * factors, products)
    return _product("bhqk,bhkd->bhqd", weights, values, tf32=tf32) / total


def _gradient_reference(
    upstream: Array,
    result: Array,
    *operands: Array,
    operand: int,
    products: DType | None = None,
    tf32: bool = False,
    **attributes: Any,
) -> Array:
    product = partial(_product, tf32=tf32)
    (queries, keys, values), powers, total, factors = _powers(*operands, tf32=tf32, **attributes)
    weights = powers / total
    if operand == 2:
        return product("bhqk,bhqd->bhkd", _rounded_factor(weights * factors, products), upstream)
    of_weights = product("bhqd,bhkd->bhqk", upstream, values)
    mean = (upstream * result).sum(3, keepdims=True)
    of_scores = np.where(weights == 1, 0, weights * (of_weights * factors - mean))
    if operand > 2:
        is_mask = [x.dtype == np.bool_ for x in operands]
        of_bias = attributes.get("biased") and operand == is_mask.index(False, 3)
        axes = tuple(axis for axis, extent in enumerate(operands[operand].shape) if extent == 1)
        return (of_scores if of_bias else weights * of_weights).sum(axes, keepdims=True)
    of_scores = of_scores * queries.dtype.type(attributes["scale"])
    formula, other = ("bhqk,bhkd->bhqd", keys) if operand == 0 else ("bhqk,bhqd->bhkd", queries)
    return product(formula, _rounded_factor(of_scores, products), other)


def _sample(*shapes: tuple[int, ...], dtypes: str = "", **attributes: object) -> Sample:
    every = ("float32" if "tf32" in attributes else "float",) * 3 + tuple(dtypes.split())
    # Gradients are differences of sums of products, so rounding errors grow with the numbers.
    return Sample(shapes, {"causal": False, "scale": 0.5, **attributes}, -1.0, 1.0, dtypes=every)


def _gradient_sample(sample: Sample, operand: int) -> Sample:
    result = (*sample.shapes[0][:3], sample.shapes[2][3])
    attributes = {**sample.attributes, "operand": operand}
    dtypes = (sample.dtypes[0], sample.dtypes[0], *sample.dtypes)
    shapes = (result, result, *sample.shapes)
    return replace(sample, shapes=shapes, attributes=attributes, dtypes=dtypes)


_QUERIES, _KEYS, _VALUES = (2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 2)

_SAMPLES = (
    _sample(_QUERIES, _KEYS, _VALUES),
    _sample(_QUERIES, _KEYS, _VALUES, blocks=2),
    _sample(_QUERIES, _KEYS, _VALUES, causal=True),
    _sample((2, 1, 9, 3), (2, 1, 7, 3), (2, 1, 7, 3), causal=True, blocks=4),
    _sample(_QUERIES, _KEYS, _VALUES, (2, 1, 1, 6), dtypes="bool"),
    _sample(_QUERIES, _KEYS, _VALUES, (1, 3, 5, 6), causal=True, blocks=3, dtypes="bool"),
    _sample(_QUERIES, _KEYS, _VALUES, (2, 3, 5, 6), dtypes="float"),
    _sample(_QUERIES, _KEYS, _VALUES, (2, 1, 5, 6), (1, 3, 1, 6), blocks=2, dtypes="bool float"),
    _sample(_QUERIES, _KEYS, _VALUES, (1, 3, 5, 6), biased=True, blocks=2, dtypes="float"),
    _sample(
        *(_QUERIES, _KEYS, _VALUES, (2, 1, 1, 6), (2, 3, 1, 6), (2, 1, 5, 6)),
        biased=True,
        causal=True,
        dtypes="bool float float",
    ),
    _sample((1, 2, 1, 1), (1, 2, 1, 1), (1, 2, 1, 1)),
    _sample((2, 2, 0, 3), (2, 2, 4, 3), (2, 2, 4, 5)),
    replace(
        _sample(_QUERIES, _KEYS, _VALUES, causal=True, blocks=2, products=bfloat16),
        differentiable=False,
    ),
    replace(
        _sample(_QUERIES, _KEYS, _VALUES, causal=True, blocks=2, tf32=True), differentiable=False
    ),
)

_KINDS = {
    "causal": Flag(),
    "scale": AnyNumber(),
    "blocks": MayLack(whole(1, most=1024)),
    # The dtype to which weights and gradients of scores are rounded before they are multiplied.
    "products": MayLack(ElementType(("float",))),
    # Whether the first operand of floats after the values is added to the scores.
    "biased": MayLack(Flag()),
    # Whether the operands of all products, which are float32, are rounded to TF32.
    "tf32": MayLack(Flag()),
}

ATTENTION = make_op(
    "attention",
    _infer_attention,
    _gradient,
    _reference,
    _blocked(_build),
    _SAMPLES,
    operands=(3, 6),
    attributes=_KINDS,
    multiplies=3,
)

ATTENTION_GRADIENT = make_op(
    "attention_gradient",
    _infer_gradient,
    _second_gradient,
    _gradient_reference,
    _blocked(_gradient_build),
    (
        *(_gradient_sample(sample, number % 3) for number, sample in enumerate(_SAMPLES)),
        _gradient_sample(_SAMPLES[6], 3),
        _gradient_sample(_SAMPLES[7], 4),
        _gradient_sample(_SAMPLES[8], 3),
        _gradient_sample(_SAMPLES[9], 4),
        _gradient_sample(_SAMPLES[9], 5),
    ),
    operands=(5, 8),
    attributes={**_KINDS, "operand": whole(0, most=5)},
    # Queries, keys, values; the result and its gradient.
    multiplies=5,
)


@checked
def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: TensorLike | None = None,
    causal: bool = False,
    scale: float | None = None,
    factors: TensorLike | None = None,
    blocks: int | None = None,
    *,
    bias: TensorLike | None = None,
) -> Tensor:
    """Means of the values, weighted with softmax(queries keys^T scale + bias), for each query.

    The scaled dot-product attention of Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser,
    Polosukhin: Attention is all you need (2017). The result is zero where all keys are masked.

    Args:
        queries: floats [batch, heads, queries, features].
        keys: [batch, heads, keys, features]. Keys and values may have fewer heads than queries, if
            their number divides the number of heads of queries; neighbouring heads of queries
            share them (Ainslie et al.: GQA, 2023).
        values: [batch, heads, keys, features of the result].
        mask: bool that broadcasts to [batch, heads, queries, keys], such as (queries, keys): true
            where a query may attend to a key. Three axes are heads, queries and keys;
            `mask[:, None]` makes four of [batch, queries, keys]. Keys to which no query attends
            have no influence, and queries that attend to no key, also if they are NaN. A key of
            some queries has the weight 0 for the others: NaN or infinity in it gives NaN.
        causal: whether query i attends to keys 0 to i only.
        scale: the factor of the products; by default 1 / sqrt(features).
        factors: the weights are multiplied by these, such as the mask of a dropout; they broadcast
            like the mask.
        blocks: the number of blocks of queries, which are computed one after the other. With more
            blocks the weights take less memory, and the program has more steps. By default the
            compiler decides, for the target.
        bias: floats that are added to the scaled products, and broadcast like the mask; -infinity
            masks a key.

    Returns:
        Floats [batch, heads, queries, features of the result].
    """
    queries, keys, values = as_tensor(queries), as_tensor(keys), as_tensor(values)
    causal = flag_of("causal", causal)
    keys, values = _repeated(keys, queries), _repeated(values, queries)
    others: list[Tensor] = []
    for name, x in (("mask", mask), ("bias", bias), ("factors", factors)):
        if x is not None:
            tensor = as_tensor(x)
            _require_dtype(name, tensor, bool_ if name == "mask" else queries.dtype)
            others.append(reshape(tensor, (1,) * (4 - tensor.rank) + tensor.shape))
    if scale is None:
        features = queries.shape[-1] if queries.shape else 1
        scale = 1.0 / math.sqrt(features) if isinstance(features, int) and features else 1.0
    scale = float(read("scale", AnyNumber(), scale))
    attributes: dict[str, object] = {"causal": causal, "scale": scale}
    if blocks is not None:
        attributes["blocks"] = blocks
    if bias is not None:
        attributes["biased"] = True
    return apply(ATTENTION, queries, keys, values, *others, **attributes)


def _repeated(x: Tensor, queries: Tensor) -> Tensor:
    """Keys or values with as many heads as the queries, which share them in groups."""
    heads, query_heads = (t.shape[1] if t.rank == 4 else 0 for t in (x, queries))
    if not isinstance(heads, int) or not isinstance(query_heads, int):
        return x
    if not 0 < heads < query_heads or query_heads % heads:
        return x
    batch, _, *rest = x.shape
    group = broadcast_to(expand_dims(x, 2), (batch, heads, query_heads // heads, *rest))
    return reshape(group, (batch, query_heads, *rest))


def _require_dtype(name: str, x: Tensor, expected: DType) -> None:
    if x.dtype != expected:
        raise DTypeError(
            f"attention: the {name} must be {expected}",
            facts=((name, described(x)),),
            advice="Compare for a mask, as in tokens > 0; numbers that are added to the scores "
            "are the bias."
            if name == "mask"
            else "Convert with ops.cast.",
        )
