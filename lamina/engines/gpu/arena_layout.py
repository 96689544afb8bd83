"""Locations of temporaries, inputs and workspaces in the blocks of an arena."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.records import frozen_dataclass
from lamina.engines.gpu.launches import Launches, Traits
from lamina.program.program import Program

# Smaller inputs arrive in about the time that the further copies and events of early uploads take.
_LEAST_EARLY_BYTES = 256 << 10
# The number of the block, the offset in it, and the bytes of a buffer.
Location = tuple[int, int, int]


@frozen_dataclass
class ArenaLayout:
    """The locations of temporaries, inputs and workspaces in the blocks of an arena.

    Attributes:
        blocks: the bytes of each block.
        locations: of each buffer that has elements, of each workspace and of each upload buffer.
    """

    blocks: tuple[int, ...]
    locations: Mapping[str, Location]


def arena_layout(program: Program, launches: Launches, traits: Traits) -> ArenaLayout:
    """Lays out the plan's blocks, inputs, upload buffers and the blocks of workspaces in a row.

    A new block begins where the present one would exceed the device's largest allocation.
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
    found: dict[str, Location] = {}
    for one in program.plan.allocations:
        block, start = planned[one.block]
        found[one.buffer] = block, start + one.offset, program.buffers[one.buffer].bytes
    for buffer in program.of_kind("input"):
        if buffer.bytes:
            found[buffer.name] = (*begin(buffer.bytes), buffer.bytes)
    for name, size in upload_buffers(program, traits).items():
        found[name] = (*begin(size), size)
    spaces = [begin(size) if size else (0, 0) for size in launches.workspace_blocks]
    for name, one in launches.workspaces.items():
        block, start = spaces[one.block]
        found[name] = block, start + one.offset, one.bytes
    return ArenaLayout(tuple(blocks), {name: one for name, one in found.items() if one[2]})


def upload_buffers(program: Program, traits: Traits) -> Mapping[str, int]:
    """The buffers to which the inputs of a program are uploaded early, with their bytes.

    There are none if the device does not copy while it computes, or the inputs are small.
    """
    inputs = {one.name: one.bytes for one in program.of_kind("input") if one.bytes}
    if not traits.uploads_during_runs or sum(inputs.values()) < _LEAST_EARLY_BYTES:
        return {}
    return {upload_name(name): size for name, size in inputs.items()}


def upload_name(input: str) -> str:
    """The name of the upload buffer of an input."""
    return f"upload {input}"
