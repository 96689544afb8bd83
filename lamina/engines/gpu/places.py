"""Where buffers lie that hold nothing from one run to the next."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.engines.gpu.launches import Traits
from lamina.program.program import Program
from lamina.records import frozen_dataclass

# The block, the offset and the bytes of a buffer.
Place = tuple[int, int, int]


@frozen_dataclass
class Places:
    """The places of temporaries and inputs in the blocks of an arena.

    Attributes:
        blocks: the bytes of each block.
        of: the place of each buffer that has elements.
    """

    blocks: tuple[int, ...]
    of: Mapping[str, Place]


def places_of(program: Program, traits: Traits) -> Places:
    """The plan's blocks and the inputs, one behind the other.

    A new block begins where a device does not allocate as much at once.
    """
    blocks: list[int] = []

    def begin(size: int) -> tuple[int, int]:
        alignment = traits.alignment_bytes
        start = -(-blocks[-1] // alignment) * alignment if blocks else 0
        if not blocks or start + size > traits.largest_block_bytes:
            blocks.append(size)
            return len(blocks) - 1, 0
        blocks[-1] = start + size
        return len(blocks) - 1, start

    planned = [begin(size) if size else (0, 0) for size in program.plan.blocks]
    of: dict[str, Place] = {}
    for one in program.plan.allocations:
        block, start = planned[one.block]
        of[one.buffer] = block, start + one.offset, program.buffers[one.buffer].bytes
    for buffer in program.of_kind("input"):
        if buffer.bytes:
            of[buffer.name] = (*begin(buffer.bytes), buffer.bytes)
    return Places(tuple(blocks), {name: place for name, place in of.items() if place[2]})
