"""The target of a program: what is expensive and what is cheap on a device.

Engines return the record and the compiler reads it; ops, layers and gradients do not depend on
it. One graph becomes different programs for different targets, and all of them compute the same
results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Literal

from lamina.base.records import frozen_dataclass

# Primitives that cost about as much as ten additions or more, on any device.
EXPENSIVE = frozenset(
    (
        *("power", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"),
        *("atan2", "sinh", "cosh", "tanh", "erf", "erfc", "sigmoid", "softplus"),
        *("divide", "quotient", "fmod", "square_root", "reciprocal", "random_bits"),
    )
)


@frozen_dataclass
class Target:
    """The costs of a device, as far as programs depend on them.

    Costs are for one element of a tensor. The cost of keeping an element is 1: storing a
    float and loading it again. A value that costs more than 1 is computed once and stored. Other
    values may be computed again for each use.

    Attributes:
        name: for people, and part of the key of cached programs.
        simple_cost: of a primitive that is not in `primitive_costs`, such as an addition.
        primitive_costs: of primitives (`scalar.PRIMITIVES`), by name.
        launch_bytes: the fixed cost of a step: the bytes that are moved in the same time.
        packing_bytes: the cost, in bytes, of packing a value narrower than a float when it is
            written, or of unpacking it when it is read.
        cached_ratio: an operand costs nothing to read if the tensors computed from it are larger
            by at least this factor: it stays in a cache.
        narrow_positions: whether indices are computed in 32 bits if all of them fit, because 64
            bits take longer.
        keeps_products: whether products in an iteration of a recurrence are kept for the gradient.
            If not, they are computed again. Other functions are kept by their costs.
        channels_last: whether convolutions are computed with their channels last, contiguous;
            otherwise in the order of axes that the user sees.
        depthwise_loops: whether a convolution with one channel in each group is a loop over
            windows; otherwise it is a batch of contractions, one for each channel.
        attention_block_queries: the queries in a block of attention, unless that makes too many
            blocks. Only the weights of one block are in memory at a time.
        attention_most_blocks: the most blocks of attention; each is a few steps.
        scatter: how a scatter adds up values. "in order": one worker adds one value after the
            other; "sorted": the indices are sorted, then one worker for each result adds.
        alignment_bytes: the alignment of every temporary.
        largest_block_bytes: the most bytes of one allocation; None if there is no limit.
    """

    name: str
    simple_cost: float
    primitive_costs: Mapping[str, float] = field(hash=False)
    launch_bytes: float
    packing_bytes: float
    cached_ratio: int
    narrow_positions: bool
    keeps_products: bool
    channels_last: bool
    depthwise_loops: bool
    attention_block_queries: int
    attention_most_blocks: int
    scatter: Literal["in order", "sorted"]
    alignment_bytes: int
    largest_block_bytes: int | None

    def cost_of(self, primitive: str) -> float:
        """The cost of one application, in stored and loaded floats."""
        return self.primitive_costs.get(primitive, self.simple_cost)

    @property
    def key(self) -> str:
        """All fields as text, the same in every process: part of the key of cached programs."""
        return json.dumps(asdict(self), sort_keys=True)
