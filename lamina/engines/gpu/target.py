"""The target of devices that run kernels: the costs of operations there."""

from __future__ import annotations

from lamina.engines.gpu.launches import Traits
from lamina.program.target import Target


def target_for(traits: Traits, name: str) -> Target:
    """The target of programs for a device.

    Args:
        traits: of the device.
        name: of the engine.
    """
    return Target(
        name=name,
        # About ten microseconds on a device that moves ten gigabytes a second or more.
        launch_bytes=2.0**17,
        narrow_positions=True,
        scatter="sorted",
        # Temporaries are sub-buffers of the arena's blocks.
        alignment_bytes=traits.alignment_bytes,
        largest_block_bytes=traits.largest_block_bytes,
    )
