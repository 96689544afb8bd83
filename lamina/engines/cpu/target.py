"""What is dear and what is cheap on a CPU; nothing else is imported with it."""

from __future__ import annotations

from lamina.program.target import EXPENSIVE, Target

CPU = Target(
    name="cpu",
    # Four simple primitives take as long as a store and a load in the caches.
    simple_cost=0.25,
    primitive_costs=dict.fromkeys(sorted(EXPENSIVE), 2.5),
    launch_bytes=512.0,
    packing_bytes=1.0,
    cached_ratio=64,
    # Processors have registers of 64 bits.
    narrow_positions=False,
    # A product of matrices reads all of its operands again.
    keeps_products=True,
    # Then vectors are full whatever the window.
    channels_last=True,
    # A contraction with one row and one column for each channel would fill no tile of registers.
    depthwise_loops=True,
    # Weights of a block fit in the caches; each block is a few steps, with a barrier behind each.
    attention_block_queries=128,
    attention_most_blocks=8,
    # Sorting takes longer than additions, which threads share where indices leave axes in place.
    scatter="in order",
    alignment_bytes=1,
    largest_block_bytes=None,
)
