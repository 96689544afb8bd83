"""What the compiler asks about a device: what is dear there, and what is cheap.

Engines hand out the record and the compiler reads it; ops, layers and gradients know nothing of
it. Equal graphs become other programs for other targets, and all of them compute the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Literal

from lamina.records import frozen_dataclass

# Primitives that cost about as much as ten additions or more, on any device.
EXPENSIVE = frozenset(
    (
        *("power", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf"),
        *("sigmoid", "softplus", "divide", "square_root", "reciprocal", "random_bits"),
    )
)


@frozen_dataclass
class Target:
    """The costs of a device, as far as programs depend on them.

    Costs are for one element of a tensor. Their unit is what keeping it costs: storing a float and
    loading it again. What costs more than 1 is computed once and stored; the rest may be computed
    again wherever it is needed.

    Attributes:
        name: for people, and part of the key of cached programs.
        simple_cost: of a primitive that `primitive_costs` does not name; of an addition.
        primitive_costs: of primitives (`scalar.PRIMITIVES`), by name.
        launch_bytes: of a step, whatever it does: how many bytes are moved meanwhile.
        packing_bytes: of a value of fewer bytes than a float, which is packed when it is written
            and unpacked when it is read: each time.
        cached_ratio: a tensor that is so many times smaller than what is computed of it costs
            nothing to read: it stays close to the processor.
        narrow_positions: whether positions are computed in 32 bits where all of them fit, since 64
            take longer.
        keeps_products: whether products in a step of a recurrence are kept for the gradient. If
            not, they are computed again; other functions follow their costs.
        channels_last: whether convolutions are computed with their channels last, side by side;
            otherwise with the order of axes that the user sees.
        depthwise_loops: whether a convolution with one channel in each group is a loop over
            windows; otherwise it is a batch of contractions, one for each channel.
        attention_block_queries: how many queries a block of attention has, if there are not too
            many blocks: the weights of one block are in memory at a time.
        attention_most_blocks: how many blocks there are at most; each is a few steps.
        scatter: how values are added up where indices say. "in order": by one worker, one value
            after the other; "sorted": by a worker for each result, once the indices are sorted.
        alignment_bytes: every temporary begins at a multiple of so many bytes.
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
        """What one application costs, in stored and loaded floats."""
        return self.primitive_costs.get(primitive, self.simple_cost)

    @property
    def key(self) -> str:
        """All of it as text, the same in every process: part of the key of cached programs."""
        return json.dumps(asdict(self), sort_keys=True)
