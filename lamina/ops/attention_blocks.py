"""The graphs that compute attention and its gradient, in blocks of queries.

The matrix of weights, queries by keys, is never stored as a whole. The queries are split into
blocks that are computed one after the other. The gradient computes the weights again, from queries,
keys, and the logarithm of each row's sum (Rabe, Staats: Self-attention does not need O(n^2) memory,
2021; Dao, Fu, Ermon, Rudra, Re: FlashAttention, 2022). So memory holds the weights of one block at
a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Dim, DType, bool_
from lamina.graph import Attributes, Tensor, apply
from lamina.ops import basic as ops
from lamina.ops.linalg import EINSUM
from lamina.ops.slicing import slice_axis

# The queries in a block, unless that makes too many blocks. Only the weights of one block are in
# memory at a time, and fit in the caches; each block is a few steps, a barrier after each.
BLOCK_QUERIES, MOST_BLOCKS = 128, 8


@frozen_dataclass
class AttentionArguments:
    """The operands and attributes of an attention.

    Attributes:
        queries, keys, values: [batch, heads, length, features].
        mask: true where a query may attend to a key; None if there is no mask.
        bias: a summand of the scaled products of queries and keys; None if there is none.
        factors: the weights are multiplied by these; None if there are none.
        causal: whether query i attends to keys 0 to i only.
        scale: factor of the products of queries and keys.
        requested_blocks: the number of blocks that the user chose; None for the best one.
        products: the dtype to which weights and gradients of scores are rounded before they are
            multiplied; None: they are not rounded.
        tf32: whether the operands of all products are rounded to TF32.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    bias: Tensor | None
    factors: Tensor | None
    causal: bool
    scale: float
    requested_blocks: int | None
    products: DType | None
    tf32: bool

    def product(self, spec: str, left: Tensor, right: Tensor) -> Tensor:
        """A product of matrices, as `einsum` writes it."""
        operands = map(ops.round_to_tf32, (left, right)) if self.tf32 else (left, right)
        return apply(EINSUM, *operands, spec=spec)

    def rounded_factor(self, x: Tensor) -> Tensor:
        """Computed weights, or gradients of scores, as they are multiplied."""
        return x if self.products is None else ops.rounded(x, self.products)

    def without_hidden(self) -> AttentionArguments:
        """Zeros for the keys to which no query attends, and the queries that attend to no key.

        Their weights are 0, but 0 times NaN is NaN, in results and in gradients.
        """
        pairs = self.mask
        if self.bias is not None:
            finite = ops.greater(self.bias, -math.inf)
            pairs = finite if pairs is None else ops.logical_and(pairs, finite)
        if pairs is None:
            return self
        asks, seen = (ops.expand_dims(ops.any(pairs, axis), 3) for axis in (3, 2))
        return replace(
            self,
            queries=ops.where(asks, self.queries, 0),
            keys=ops.where(seen, self.keys, 0),
            values=ops.where(seen, self.values, 0),
        )

    @property
    def block_count(self) -> int:
        """The number of blocks: the user's, or the best one.

        Causal attention has at least two blocks: the first then omits half of the keys.
        """
        if self.requested_blocks is not None:
            return self.requested_blocks
        length = self.queries.shape[2]
        count = length // BLOCK_QUERIES if isinstance(length, int) else 0
        least = 2 if self.causal and count else 1
        return max(least, min(count, MOST_BLOCKS))


def attention_arguments(operands: tuple[Tensor, ...], attributes: Attributes) -> AttentionArguments:
    """The arguments in an op's operands and attributes."""
    queries, keys, values, *others = operands
    mask = next((x for x in others if x.dtype == bool_), None)
    floats = [x for x in others if x.dtype != bool_]
    bias = floats.pop(0) if floats and attributes.get("biased", False) else None
    factors = next(iter(floats), None)
    causal, scale = attributes["causal"], attributes["scale"]
    blocks, products = attributes.get("blocks"), attributes.get("products")
    rest = causal, scale, blocks, products, attributes.get("tf32", False)
    return AttentionArguments(queries, keys, values, mask, bias, factors, *rest)


@frozen_dataclass
class _Block:
    """Queries `start` to `end`, and the keys to which they attend: the first `key_count`."""

    attention: AttentionArguments
    start: int
    end: Dim
    key_count: Dim

    def at_queries(self, x: Tensor) -> Tensor:
        """The slice of these queries, of a tensor with queries along axis 2."""
        return slice_axis(x, 2, self.start, self.end)

    def at_keys(self, x: Tensor, axis: int = 2) -> Tensor:
        """The slice of these keys, of a tensor with keys along an axis."""
        return slice_axis(x, axis, 0, self.key_count)

    def padded_keys(self, part: Tensor) -> Tensor:
        """A gradient of these keys, [batch, keys, ...], padded with zeros for the keys after."""
        every = self.attention.keys.shape[2]
        if not isinstance(every, int) or not isinstance(self.key_count, int):
            return part
        return ops.pad(part, [0, (0, every - self.key_count), 0, 0])

    def at_weights(self, x: Tensor | None) -> Tensor | None:
        """The slice of a mask, a bias or factors for these queries and keys."""
        if x is None:
            return None
        x = x if x.shape[2] == 1 else self.at_queries(x)
        return x if x.shape[3] == 1 else self.at_keys(x, 3)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The scaled products and the bias, -infinity where masked: [b, heads, queries, keys]."""
        operands = self.at_queries(queries), self.at_keys(keys)
        products = self.attention.product("bhqd,bhkd->bhqk", *operands) * self.attention.scale
        bias = self.at_weights(self.attention.bias)
        products = products if bias is None else products + bias
        allowed = self.at_weights(self.attention.mask)
        if self.attention.causal:
            query_count, key_count = products.shape[2:]
            query = ops.expand_dims(ops.arange(query_count), 1) + self.start
            shape = (1, 1, query_count, key_count)
            earlier = ops.reshape(ops.greater_equal(query, ops.arange(key_count)), shape)
            allowed = earlier if allowed is None else ops.logical_and(allowed, earlier)
        return products if allowed is None else ops.where(allowed, products, -math.inf)


def _blocks_of(attention: AttentionArguments, blocks: int) -> Iterator[_Block]:
    """The blocks of queries; fewer than `blocks` if there are fewer queries."""
    query_count, key_count = attention.queries.shape[2], attention.keys.shape[2]
    if not isinstance(query_count, int) or not isinstance(key_count, int):
        yield _Block(attention, 0, query_count, key_count)
        return
    block_size = -(-query_count // blocks) or 1
    for start in range(0, query_count, block_size) or (0,):
        end = min(start + block_size, query_count)
        yield _Block(attention, start, end, min(key_count, end) if attention.causal else key_count)


def _powers(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row of scores: exponentials that cannot overflow, their sum, and logsumexp.

    All are 0 where every key of a query is masked.
    """
    largest = ops.max(scores, 3)
    shift = ops.where(ops.equal(largest, -math.inf), 0, largest)
    powers = ops.exp(scores - ops.expand_dims(shift, 3))
    total = ops.sum(powers, 3)
    return powers, total, ops.where(ops.equal(total, 0), 0, shift + ops.log(total))


def weighted_means(attention: AttentionArguments, blocks: int) -> Tensor:
    """The result of an attention: means of the values, weighted by the softmax of the scores."""
    means: list[Tensor] = []
    for block in _blocks_of(attention, blocks):
        powers, total, _ = _powers(block.scores(attention.queries, attention.keys))
        factors = block.at_weights(attention.factors)
        weights = powers if factors is None else powers * factors
        # The axes are in the order in which a layer joins the heads, so nothing is transposed.
        values = block.at_keys(attention.values)
        sums = attention.product("bhqk,bhkd->bqhd", attention.rounded_factor(weights), values)
        share = ops.where(ops.equal(total, 0), 0, ops.reciprocal(total))
        means.append(sums * ops.expand_dims(ops.transpose(share, (0, 2, 1)), 3))
    return ops.transpose(ops.concat(means, 1), (0, 2, 1, 3))


def gradients_of(
    attention: AttentionArguments, result: Tensor, upstream: Tensor, blocks: int
) -> tuple[Tensor, ...]:
    """The gradients of queries, keys, values, and of the bias and factors if there are any.

    The weights are computed again. With o = w v, w = softmax(s) and a gradient g of o, the gradient
    of w is g v^T, and the gradient of s is w (g v^T - sum(w g v^T)), where the sum over a row is
    g o.
    """
    mean = ops.sum(upstream * result, 3)

    def weights_of(block: _Block, *after: Tensor) -> Tensor:
        _, _, log_total = _powers(block.scores(attention.queries, attention.keys))
        again = ops.recomputed(attention.queries, *after)
        return ops.exp(block.scores(again, attention.keys) - ops.expand_dims(log_total, 3))

    def products_of(block: _Block) -> Tensor:
        arriving = block.at_queries(upstream)
        return attention.product("bhqd,bhkd->bhqk", arriving, block.at_keys(attention.values))

    def of_scores_in(block: _Block, weights: Tensor, products: Tensor) -> Tensor:
        of_scores = weights * (products - ops.expand_dims(block.at_queries(mean), 3))
        # The gradient of a query with one key is zero: the two terms cancel. But they sum the same
        # products in different orders, and the remaining rounding error would move parameters.
        return ops.where(ops.equal(weights, 1), 0, of_scores)

    of_queries: list[Tensor] = []
    totals: list[Tensor] = []
    for block in _blocks_of(attention, blocks):
        # Each block depends on the block before, so that they run in order and share memory.
        weights, products = weights_of(block, *(totals or [mean])), products_of(block)
        factors = block.at_weights(attention.factors)
        changed = weights if factors is None else weights * factors
        products = products if factors is None else products * factors
        scaled = of_scores_in(block, weights, products) * attention.scale
        of_scores = attention.rounded_factor(scaled)
        keys, queries = block.at_keys(attention.keys), block.at_queries(attention.queries)
        of_queries.append(attention.product("bhqk,bhkd->bqhd", of_scores, keys))
        of_keys = attention.product("bhqk,bhqd->bkhd", of_scores, queries)
        arriving, weights = block.at_queries(upstream), attention.rounded_factor(changed)
        of_values = attention.product("bhqk,bhqd->bkhd", weights, arriving)
        parts = [block.padded_keys(of_keys), block.padded_keys(of_values)]
        totals = [a + b for a, b in zip(totals, parts, strict=True)] if totals else parts
    results = [ops.transpose(x, (0, 2, 1, 3)) for x in (ops.concat(of_queries, 1), *totals)]
    all_weights = _Block(attention, 0, attention.queries.shape[2], attention.keys.shape[2])
    if attention.bias is not None:
        products = products_of(all_weights)
        products = products if attention.factors is None else products * attention.factors
        of_scores = of_scores_in(all_weights, weights_of(all_weights, mean), products)
        results.append(ops.sum_to(of_scores, attention.bias.shape))
    if attention.factors is not None:
        of_factors = weights_of(all_weights, mean) * products_of(all_weights)
        results.append(ops.sum_to(of_factors, attention.factors.shape))
    return tuple(results)
