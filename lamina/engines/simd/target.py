"""The target of processors: the costs of operations there. Imports no code generator."""

from __future__ import annotations

from lamina.program.target import EXPENSIVE, Target


def processor_target(
    name: str,
    *,
    launch_bytes: float,
    alignment_bytes: int = 1,
    largest_block_bytes: int | None = None,
) -> Target:
    """The target of programs for processors.

    Args:
        name: of the engine.
        launch_bytes: the fixed cost of a step.
        alignment_bytes: of every temporary.
        largest_block_bytes: the most bytes of one allocation; None if there is no limit.
    """
    return Target(
        name=name,
        # Four simple primitives take as long as a store and a load in the caches.
        simple_cost=0.25,
        primitive_costs=dict.fromkeys(sorted(EXPENSIVE), 2.5),
        launch_bytes=launch_bytes,
        packing_bytes=1.0,
        cached_ratio=64,
        # Processors have registers of 64 bits.
        narrow_positions=False,
        # A matrix product would otherwise read all of its operands again.
        keeps_products=True,
        # Vectors of channels are full for any window.
        channels_last=True,
        # A contraction with one row and one column for each channel would fill no tile of
        # registers.
        depthwise_loops=True,
        # The weights of a block fit in the caches; each block is a few steps, a barrier after each.
        attention_block_queries=128,
        attention_most_blocks=8,
        # Sorting takes longer than additions, which threads share along axes that are not indexed.
        scatter="in order",
        alignment_bytes=alignment_bytes,
        largest_block_bytes=largest_block_bytes,
    )
