"""What is dear and what is cheap on devices that run kernels."""

from __future__ import annotations

from lamina.engines.gpu.launches import Traits
from lamina.program.target import EXPENSIVE, Target


def target_for(traits: Traits, name: str) -> Target:
    """What programs for a device are compiled for.

    Args:
        traits: of the device.
        name: of the engine, for people.
    """
    return Target(
        name=name,
        simple_cost=0.25,
        primitive_costs=dict.fromkeys(sorted(EXPENSIVE), 2.5),
        # About ten microseconds, on devices that move ten gigabytes a second and more.
        launch_bytes=2.0**17,
        packing_bytes=1.0,
        cached_ratio=64,
        narrow_positions=True,
        keeps_products=True,
        channels_last=True,
        # A work item for each result sums up a window; a contraction would have one row for each.
        depthwise_loops=True,
        # Each block is a few launches.
        attention_block_queries=128,
        attention_most_blocks=8,
        scatter="sorted",
        # Temporaries are buffers within the blocks of the arena.
        alignment_bytes=traits.alignment_bytes,
        largest_block_bytes=traits.largest_block_bytes,
    )
