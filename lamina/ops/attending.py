"""Attention: means of values, weighted by how well queries and keys agree.

The matrix of weights, queries by keys, is never kept. The queries are cut into blocks that are
computed one after the other, and for the gradient the weights are computed again, from queries,
keys, and the logarithm of each row's sum (Rabe, Staats: Self-attention does not need O(n^2) memory,
2021; Dao, Fu, Ermon, Rudra, Re: FlashAttention, 2022). So the memory for weights grows with one
block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lamina.errors import DTypeError, ShapeError
from lamina.graph import Attributes, Op, Sample, Tensor, TensorLike, apply, described, located
from lamina.graph.attributes import AnyNumber, whole
from lamina.graph.calls import checked_as_given as checked
from lamina.graph.kinds import Flag
from lamina.ops import reduce
from lamina.ops.arguments import as_tensor, flag_of, read
from lamina.ops.broadcast import sum_to
from lamina.ops.comparison import equal, greater_equal, logical_and, where
from lamina.ops.conversion import recomputed
from lamina.ops.creation import arange
from lamina.ops.elementwise import exp, log, reciprocal
from lamina.ops.joining import concat
from lamina.ops.linalg import einsum
from lamina.ops.lowering import Decomposition
from lamina.ops.movement import expand_dims, reshape, transpose
from lamina.ops.slicing import pad, slice_axis
from lamina.records import frozen_dataclass
from lamina.shapes import Array, Dim, DType, Shape, bool_

# Blocks have about so many queries, as long as there are not too many of them: each is a few steps
# of the program. Where queries look back only, a second block lets the first leave out keys.
QUERIES_OF_A_BLOCK = 128
MOST_BLOCKS = 8


@frozen_dataclass
class _Operands:
    """What the op is applied to; the last two may be missing."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    factors: Tensor | None


def _operands_of(operands: tuple[Tensor, ...]) -> _Operands:
    queries, keys, values, *others = operands
    mask = next((x for x in others if x.dtype == bool_), None)
    factors = next((x for x in others if x.dtype != bool_), None)
    return _Operands(queries, keys, values, mask, factors)


# Shapes -------------------------------------------------------------------------------------------


def _infer_attention(operands: tuple[Tensor, ...], _: Attributes) -> tuple[Shape, DType]:
    given = _operands_of(operands)
    queries, keys, values = given.queries, given.keys, given.values
    if len(operands) == 5 and (given.mask is None or given.factors is None):
        raise DTypeError("attention: there is one mask, of bools, and one tensor of factors")
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
        raise ShapeError("attention: there is no key to look at", facts=facts)
    weights = (*queries.shape[:3], keys.shape[2])
    if given.factors is not None and given.factors.dtype != queries.dtype:
        raise DTypeError("attention: the factors must be of the queries' dtype", facts=facts)
    for name, x in (("mask", given.mask), ("factors", given.factors)):
        if x is not None and (x.rank != 4 or any(map(_differ, x.shape, weights))):
            raise ShapeError(
                f"attention: the {name} cannot be repeated to the shape of the weights",
                facts=(*facts, (name, described(x))),
                advice="The weights are [batch, heads, queries, keys]; each axis must have that "
                "extent, or 1.",
            )
    return (*queries.shape[:3], values.shape[3]), queries.dtype


def _differ(own: Dim, wanted: Dim) -> bool:
    return own not in (1, wanted)


# Blocks -------------------------------------------------------------------------------------------


@frozen_dataclass
class _Block:
    """Some of the queries, and the keys that they may look at: those before `stop`."""

    node: Tensor
    start: int
    end: Dim
    stop: Dim

    def rows(self, x: Tensor) -> Tensor:
        """What belongs to these queries, of a tensor with queries along axis 2."""
        return slice_axis(x, 2, self.start, self.end)

    def seen(self, x: Tensor, axis: int = 2) -> Tensor:
        """What belongs to these keys."""
        return slice_axis(x, axis, 0, self.stop)

    def behind(self, part: Tensor) -> Tensor:
        """What these keys get, [batch, keys, ...], with zeros for the others behind them."""
        every = self.node.operands[1].shape[2]
        if not isinstance(every, int) or not isinstance(self.stop, int):
            return part
        return pad(part, [0, (0, every - self.stop), 0, 0])

    def weighted(self, x: Tensor | None) -> Tensor | None:
        """The part of a mask, or of factors."""
        if x is None:
            return None
        x = x if x.shape[2] == 1 else self.rows(x)
        return x if x.shape[3] == 1 else self.seen(x, 3)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """How well they agree: -infinity where a query may not look, [batch, heads, rows, keys]."""
        scale: float = self.node.attributes["scale"]
        products = einsum("bhqd,bhkd->bhqk", self.rows(queries), self.seen(keys)) * scale
        allowed = self.weighted(_operands_of(self.node.operands).mask)
        if self.node.attributes["causal"]:
            rows, columns = products.shape[2:]
            row = expand_dims(arange(rows), 1) + self.start
            earlier = reshape(greater_equal(row, arange(columns)), (1, 1, rows, columns))
            allowed = earlier if allowed is None else logical_and(allowed, earlier)
        return products if allowed is None else where(allowed, products, -math.inf)


def _blocks(node: Tensor) -> Iterator[_Block]:
    """The blocks of queries, as many as the attribute says, if there are so many queries."""
    rows, columns = node.shape[2], node.operands[1].shape[2]
    if not isinstance(rows, int) or not isinstance(columns, int):
        yield _Block(node, 0, rows, columns)
        return
    each = -(-rows // node.attributes["blocks"]) or 1
    for start in range(0, rows, each) or (0,):
        end = min(start + each, rows)
        yield _Block(node, start, end, min(columns, end) if node.attributes["causal"] else columns)


def _powers(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Exponentials that cannot overflow, their sums, and the logarithms of all there is in a row.

    Where a query sees no key at all, these are 0.
    """
    largest = reduce.max(scores, 3)
    shift = where(equal(largest, -math.inf), 0, largest)
    powers = exp(scores - expand_dims(shift, 3))
    total = reduce.sum(powers, 3)
    return powers, total, where(equal(total, 0), 0, shift + log(total))


# Forwards and backwards ---------------------------------------------------------------------------


def _build(node: Tensor) -> Tensor:
    given = _operands_of(node.operands)
    means: list[Tensor] = []
    for block in _blocks(node):
        powers, total, _ = _powers(block.scores(given.queries, given.keys))
        factors = block.weighted(given.factors)
        weights = powers if factors is None else powers * factors
        # Axes in the order in which a layer joins the heads, so that nothing need be moved.
        sums = einsum("bhqk,bhkd->bqhd", weights, block.seen(given.values))
        share = where(equal(total, 0), 0, reciprocal(total))
        means.append(sums * expand_dims(transpose(share, (0, 2, 1)), 3))
    return transpose(concat(means, 1), (0, 2, 1, 3))


def _gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The weights are computed again; what they get is taken less its mean over each row.

    With o = w v, w = softmax(s) and a gradient g of o, the gradient of w is g v^T, and that of s
    is w (g v^T - sum(w g v^T)), where the sum over a row is g o.
    """
    given = _operands_of(result.operands)
    mean = reduce.sum(upstream * result, 3)
    scale: float = result.attributes["scale"]

    def weights_of(block: _Block, *after: Tensor) -> Tensor:
        _, _, log_total = _powers(block.scores(given.queries, given.keys))
        again = recomputed(given.queries, *after)
        return exp(block.scores(again, given.keys) - expand_dims(log_total, 3))

    def products_of(block: _Block) -> Tensor:
        arriving = block.rows(upstream)
        return einsum("bhqd,bhkd->bhqk", arriving, block.seen(given.values))

    of_queries: list[Tensor] = []
    totals: list[Tensor] = []
    for block in _blocks(result):
        # One block after the other: only then can they share memory.
        weights, products = weights_of(block, *(totals or [mean])), products_of(block)
        factors = block.weighted(given.factors)
        changed = weights
        if factors is not None:
            changed, products = weights * factors, products * factors
        of_scores = weights * (products - expand_dims(block.rows(mean), 3)) * scale
        # A query with one key to look at gets nothing. The two that cancel are sums of the same
        # products in different orders: what they leave is rounding, and it would move parameters.
        of_scores = where(equal(weights, 1), 0, of_scores)
        of_queries.append(einsum("bhqk,bhkd->bqhd", of_scores, block.seen(given.keys)))
        of_keys = einsum("bhqk,bhqd->bkhd", of_scores, block.rows(given.queries))
        of_values = einsum("bhqk,bhqd->bkhd", changed, block.rows(upstream))
        parts = [block.behind(of_keys), block.behind(of_values)]
        totals = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
    found = [transpose(x, (0, 2, 1, 3)) for x in (concat(of_queries, 1), *totals)]
    of_others: dict[Tensor | None, Tensor] = {}
    if given.factors is not None:
        whole = _Block(result, 0, result.shape[2], given.keys.shape[2])
        of_factors = weights_of(whole, mean) * products_of(whole)
        of_others[given.factors] = sum_to(of_factors, given.factors.shape)
    return (*found, *(of_others.get(x) for x in result.operands[3:]))


def _reference(
    queries: Array,
    keys: Array,
    values: Array,
    *others: Array,
    causal: bool,
    scale: float,
    blocks: int,
) -> Array:
    scores: Array = np.einsum("bhqd,bhkd->bhqk", queries, keys) * queries.dtype.type(scale)
    allowed = np.tri(*scores.shape[2:], dtype=bool) if causal else np.asarray(True)
    factors = np.asarray(1.0, queries.dtype)
    for other in others:
        if other.dtype == np.bool_:
            allowed = allowed & other
        else:
            factors = other
    scores = np.where(allowed, scores, queries.dtype.type(-np.inf))
    largest = scores.max(3, keepdims=True)
    powers = np.exp(scores - np.where(largest == -np.inf, 0, largest))
    total = powers.sum(3, keepdims=True)
    weights = powers / np.where(total == 0, 1, total)
    return np.einsum("bhqk,bhkd->bhqd", weights * factors, values)


def _sample(
    *shapes: tuple[int, ...], causal: bool = False, blocks: int = 1, dtypes: str = ""
) -> Sample:
    attributes = {"causal": causal, "scale": 0.5, "blocks": blocks}
    every = ("float",) * 3 + tuple(dtypes.split())
    return Sample(shapes, attributes, dtypes=every)


_QUERIES, _KEYS, _VALUES = (2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 2)

ATTENTION = Op(
    "attention",
    _infer_attention,
    _gradient,
    _reference,
    Decomposition(_build),
    (
        _sample(_QUERIES, _KEYS, _VALUES),
        _sample(_QUERIES, _KEYS, _VALUES, blocks=2),
        _sample(_QUERIES, _KEYS, _VALUES, causal=True),
        _sample((2, 1, 9, 3), (2, 1, 7, 3), (2, 1, 7, 3), causal=True, blocks=4),
        _sample(_QUERIES, _KEYS, _VALUES, (2, 1, 1, 6), dtypes="bool"),
        _sample(_QUERIES, _KEYS, _VALUES, (1, 3, 5, 6), causal=True, blocks=3, dtypes="bool"),
        _sample(_QUERIES, _KEYS, _VALUES, (2, 3, 5, 6), dtypes="float"),
        _sample(
            _QUERIES, _KEYS, _VALUES, (2, 1, 5, 6), (1, 3, 1, 6), blocks=2, dtypes="bool float"
        ),
        _sample((1, 2, 1, 1), (1, 2, 1, 1), (1, 2, 1, 1)),
        _sample((2, 2, 0, 3), (2, 2, 4, 3), (2, 2, 4, 5)),
    ),
    operands=(3, 5),
    attributes={"causal": Flag(), "scale": AnyNumber(), "blocks": whole(1, most=1024)},
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
) -> Tensor:
    """Means of the values, weighted with softmax(queries keys^T scale), for each query.

    The scaled dot-product attention of Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser,
    Polosukhin: Attention is all you need (2017). A query that may look at no key gets zeros.

    Args:
        queries: floats [batch, heads, queries, features].
        keys: [batch, heads, keys, features].
        values: [batch, heads, keys, features of the result].
        mask: bool that broadcasts to [batch, heads, queries, keys]: true where a query may look.
        causal: whether query i looks at keys 0 to i alone.
        scale: by default 1 / sqrt(features).
        factors: what the weights are multiplied with, such as a dropout's mask; broadcasts as well.
        blocks: into how many blocks the queries are cut, which are computed one after the other.
            The more, the less memory the weights take, and the more steps the program has. By
            default one for every 128 queries, at most 8, and at least 2 for 128 queries that are
            causal.

    Returns:
        Floats [batch, heads, queries, features of the result].

    Raises:
        ShapeError, DTypeError: if the operands do not fit.
    """
    queries, keys, values = as_tensor(queries), as_tensor(keys), as_tensor(values)
    causal = flag_of("causal", causal)
    others: list[Tensor] = []
    for name, x in (("mask", mask), ("factors", factors)):
        if x is not None:
            tensor = as_tensor(x)
            _require_dtype(name, tensor, bool_ if name == "mask" else queries.dtype)
            others.append(reshape(tensor, (1,) * (4 - tensor.rank) + tensor.shape))
    if scale is None:
        features = queries.shape[-1] if queries.shape else 1
        scale = 1.0 / math.sqrt(features) if isinstance(features, int) and features else 1.0
    if blocks is None:
        length = queries.shape[2] if queries.rank == 4 else 0
        wanted = length // QUERIES_OF_A_BLOCK if isinstance(length, int) else 0
        least = 2 if causal and wanted else 1
        blocks = max(least, min(wanted, MOST_BLOCKS))
    scale = float(read("scale", AnyNumber(), scale))
    attributes = {"causal": causal, "scale": scale, "blocks": blocks}
    return apply(ATTENTION, queries, keys, values, *others, **attributes)


def _require_dtype(name: str, x: Tensor, wanted: DType) -> None:
    if x.dtype != wanted:
        raise located(
            DTypeError(
                f"attention: the {name} must be {wanted}",
                facts=((name, described(x)),),
                advice="Compare for a mask, as in tokens > 0, or convert with ops.cast.",
            )
        )


OPS = (ATTENTION,)
