"""Targets whose costs lead to other decisions than the default target's."""

from __future__ import annotations

from lamina.program.target import Target

# Everything is computed again, no depthwise convolution is a loop, and channels come first.
RECOMPUTING = Target(
    name="recomputing",
    simple_cost=0.001,
    primitive_costs={},
    launch_bytes=2.0**20,
    packing_bytes=0.0,
    cached_ratio=2,
    narrow_positions=True,
    keeps_products=False,
    channels_last=False,
    depthwise_loops=False,
    attention_block_queries=2,
    attention_most_blocks=3,
    scatter="sorted",
    alignment_bytes=128,
    largest_block_bytes=1 << 16,
)

# Every tensor with several users is stored.
STORING = Target(
    name="storing",
    simple_cost=1.5,
    primitive_costs={},
    launch_bytes=0.0,
    packing_bytes=4.0,
    cached_ratio=1 << 20,
    narrow_positions=False,
    keeps_products=True,
    channels_last=True,
    depthwise_loops=True,
    attention_block_queries=1,
    attention_most_blocks=5,
    scatter="in order",
    alignment_bytes=1,
    largest_block_bytes=None,
)

TARGETS = (RECOMPUTING, STORING)
