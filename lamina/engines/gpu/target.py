"""The target of devices that run kernels: the costs of operations there."""

from __future__ import annotations

from lamina.engines.gpu.launches import Traits
from lamina.program.target import EXPENSIVE, Target


def target_for(traits: Traits, name: str) -> Target:
    """The target of programs for a device.

    Args:
        traits: of the device.
        name: of the engine.
    """
    return Target(
        name=name,
        simple_cost=0.25,
        primitive_costs=dict.fromkeys(sorted(EXPENSIVE), 2.5),
        # About ten microseconds on a device that moves ten gigabytes a second or more.
        launch_bytes=2.0**17,
        packing_bytes=1.0,
        cached_ratio=64,
        narrow_positions=True,
        keeps_products=True,
        channels_last=True,
        # One work item sums up the window of a result; as a contraction each would have one row.
        depthwise_loops=True,
        # Each block is a few launches.
        attention_block_queries=128,
        attention_most_blocks=8,
        scatter="sorted",
        # Temporaries are sub-buffers of the arena's blocks.
        alignment_bytes=traits.alignment_bytes,
        largest_block_bytes=traits.largest_block_bytes,
    )
