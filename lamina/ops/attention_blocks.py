"""How attention is computed, and its gradient: block after block of queries.

The matrix of weights, queries by keys, is never kept. The queries are cut into blocks that are
computed one after the other, and for the gradient the weights are computed again, from queries,
keys, and the logarithm of each row's sum (Rabe, Staats: Self-attention does not need O(n^2) memory,
2021; Dao, Fu, Ermon, Rudra, Re: FlashAttention, 2022). So the memory for weights grows with one
block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from lamina.graph import Attributes, Tensor
from lamina.ops import reduce
from lamina.ops.broadcast import sum_to
from lamina.ops.comparison import equal, greater_equal, logical_and, where
from lamina.ops.conversion import recomputed
from lamina.ops.creation import arange
from lamina.ops.elementwise import exp, log, reciprocal
from lamina.ops.joining import concat
from lamina.ops.linalg import einsum
from lamina.ops.movement import expand_dims, reshape, transpose
from lamina.ops.slicing import pad, slice_axis
from lamina.program.target import Target
from lamina.records import frozen_dataclass
from lamina.shapes import Dim, bool_


@frozen_dataclass
class Attending:
    """What an attention is applied to, and how.

    Attributes:
        queries, keys, values: [batch, heads, length, features].
        mask: true where a query may look, if there is one.
        factors: of the weights, if there are any.
        causal: whether query i looks at keys 0 to i alone.
        scale: of the products of queries and keys.
        wish: how many blocks the user wants, if he does.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    factors: Tensor | None
    causal: bool
    scale: float
    wish: int | None

    def blocks_for(self, target: Target) -> int:
        """How many blocks there are: what the user wants, or what suits the target.

        Where queries look back only, a second block lets the first leave out keys.
        """
        if self.wish is not None:
            return self.wish
        length = self.queries.shape[2]
        wanted = length // target.attention_block_queries if isinstance(length, int) else 0
        least = 2 if self.causal and wanted else 1
        return max(least, min(wanted, target.attention_most_blocks))


def attending(operands: tuple[Tensor, ...], attributes: Attributes) -> Attending:
    """What an op's operands and attributes say."""
    queries, keys, values, *others = operands
    mask = next((x for x in others if x.dtype == bool_), None)
    factors = next((x for x in others if x.dtype != bool_), None)
    causal, scale = attributes["causal"], attributes["scale"]
    wish = attributes.get("blocks")
    return Attending(queries, keys, values, mask, factors, causal, scale, wish)


@frozen_dataclass
class _Block:
    """Some of the queries, and the keys that they may look at: those before `stop`."""

    whole: Attending
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
        every = self.whole.keys.shape[2]
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
        products = einsum("bhqd,bhkd->bhqk", self.rows(queries), self.seen(keys))
        products = products * self.whole.scale
        allowed = self.weighted(self.whole.mask)
        if self.whole.causal:
            rows, columns = products.shape[2:]
            row = expand_dims(arange(rows), 1) + self.start
            earlier = reshape(greater_equal(row, arange(columns)), (1, 1, rows, columns))
            allowed = earlier if allowed is None else logical_and(allowed, earlier)
        return products if allowed is None else where(allowed, products, -math.inf)


def _cut(given: Attending, blocks: int) -> Iterator[_Block]:
    """So many blocks of queries, if there are so many queries."""
    rows, columns = given.queries.shape[2], given.keys.shape[2]
    if not isinstance(rows, int) or not isinstance(columns, int):
        yield _Block(given, 0, rows, columns)
        return
    each = -(-rows // blocks) or 1
    for start in range(0, rows, each) or (0,):
        end = min(start + each, rows)
        yield _Block(given, start, end, min(columns, end) if given.causal else columns)


def _powers(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Exponentials that cannot overflow, their sums, and the logarithms of all there is in a row.

    Where a query sees no key at all, these are 0.
    """
    largest = reduce.max(scores, 3)
    shift = where(equal(largest, -math.inf), 0, largest)
    powers = exp(scores - expand_dims(shift, 3))
    total = reduce.sum(powers, 3)
    return powers, total, where(equal(total, 0), 0, shift + log(total))


def means(given: Attending, blocks: int) -> Tensor:
    """The result: of the values, weighted by how well queries and keys agree."""
    found: list[Tensor] = []
    for block in _cut(given, blocks):
        powers, total, _ = _powers(block.scores(given.queries, given.keys))
        factors = block.weighted(given.factors)
        weights = powers if factors is None else powers * factors
        # Axes in the order in which a layer joins the heads, so that nothing need be moved.
        sums = einsum("bhqk,bhkd->bqhd", weights, block.seen(given.values))
        share = where(equal(total, 0), 0, reciprocal(total))
        found.append(sums * expand_dims(transpose(share, (0, 2, 1)), 3))
    return transpose(concat(found, 1), (0, 2, 1, 3))


def gradients_of(
    given: Attending, result: Tensor, upstream: Tensor, blocks: int
) -> tuple[Tensor, ...]:
    """What flows back to queries, keys, values, and factors if there are any.

    The weights are computed again; what they get is taken less its mean over each row. With
    o = w v, w = softmax(s) and a gradient g of o, the gradient of w is g v^T, and that of s is
    w (g v^T - sum(w g v^T)), where the sum over a row is g o.
    """
    mean = reduce.sum(upstream * result, 3)

    def weights_of(block: _Block, *after: Tensor) -> Tensor:
        _, _, log_total = _powers(block.scores(given.queries, given.keys))
        again = recomputed(given.queries, *after)
        return exp(block.scores(again, given.keys) - expand_dims(log_total, 3))

    def products_of(block: _Block) -> Tensor:
        arriving = block.rows(upstream)
        return einsum("bhqd,bhkd->bhqk", arriving, block.seen(given.values))

    of_queries: list[Tensor] = []
    totals: list[Tensor] = []
    for block in _cut(given, blocks):
        # One block after the other: only then can they share memory.
        weights, products = weights_of(block, *(totals or [mean])), products_of(block)
        factors = block.weighted(given.factors)
        changed = weights
        if factors is not None:
            changed, products = weights * factors, products * factors
        of_scores = weights * (products - expand_dims(block.rows(mean), 3)) * given.scale
        # A query with one key to look at gets nothing. The two that cancel are sums of the same
        # products in different orders: what they leave is rounding, and it would move parameters.
        of_scores = where(equal(weights, 1), 0, of_scores)
        of_queries.append(einsum("bhqk,bhkd->bqhd", of_scores, block.seen(given.keys)))
        of_keys = einsum("bhqk,bhqd->bkhd", of_scores, block.rows(given.queries))
        of_values = einsum("bhqk,bhqd->bkhd", changed, block.rows(upstream))
        parts = [block.behind(of_keys), block.behind(of_values)]
        totals = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
    found = [transpose(x, (0, 2, 1, 3)) for x in (concat(of_queries, 1), *totals)]
    if given.factors is not None:
        whole = _Block(given, 0, given.queries.shape[2], given.keys.shape[2])
        of_factors = weights_of(whole, mean) * products_of(whole)
        found.append(sum_to(of_factors, given.factors.shape))
    return tuple(found)
