"""The arena of a device: blocks of memory that programs share, and what is where in them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Protocol, final

from lamina.base.records import frozen_dataclass
from lamina.base.shielded import shielded
from lamina.engines.engine import Arena
from lamina.engines.gpu.driver import Buffer, Driver
from lamina.engines.gpu.launches import Launches, Traits
from lamina.engines.gpu.memory import Block
from lamina.errors import EngineError, InternalError
from lamina.program.program import Program

# Smaller inputs arrive in about the time that the further copies and events of early uploads take.
_LEAST_EARLY_BYTES = 256 << 10
# The number of the block, the offset in it, and the bytes of a buffer.
Location = tuple[int, int, int]


class Tenant(Protocol):
    """An executable in an arena. It uses the blocks it was last moved to, until it is detached."""

    def detach(self) -> None:
        """Stops using the arena's blocks."""
        ...

    def move_to(self, blocks: Sequence[Buffer]) -> None:
        """Uses the first bytes of these blocks from now on; their contents are undefined."""
        ...


@final
class DeviceArena:
    """Blocks of memory for executables that never run at the same time.

    Each block is as large as the executable that needs most of it. Blocks are released before
    larger or smaller ones are allocated, so that both need not fit at once. If the device then
    refuses the new blocks, the arena has none, and executables call `restore` when they are run.
    """

    def __init__(self, opened: Callable[[], Driver]) -> None:
        self._opened = opened
        self.driver = opened()
        self._blocks: list[Block] = []
        self._sizes: tuple[int, ...] = ()
        self._last_user: weakref.ref[Tenant] | None = None
        # Weak references: executables that were collected no longer count.
        self._needs: weakref.WeakKeyDictionary[Tenant, tuple[int, ...]] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[type[DeviceArena], tuple[Callable[[], Driver]]]:
        # The executables of a copy are compiled again.
        return DeviceArena, (self._opened,)

    @property
    def bytes(self) -> int:
        return sum(self._sizes)

    def enter(self, tenant: Tenant, sizes: tuple[int, ...]) -> None:
        """Gives an executable blocks of these sizes, in bytes."""
        # Shielded: an executable that was not moved would use memory that was released.
        shielded(lambda: self._enter(tenant, sizes))

    def _enter(self, tenant: Tenant, sizes: tuple[int, ...]) -> None:
        self._needs[tenant] = sizes
        try:
            if not self._resize():
                tenant.move_to([block.buffer for block in self._blocks])
        except BaseException:
            self._leave(tenant)
            raise

    def used_by(self, tenant: Tenant) -> bool:
        """Notes that an executable runs; returns whether it is also the last one that did."""
        is_same = self._last_user is not None and self._last_user() is tenant
        if not is_same:
            self._last_user = weakref.ref(tenant)
        return is_same

    def restore(self) -> None:
        """Allocates the blocks that a device has refused before, for all executables."""

        def restore() -> None:
            if not self._resize():
                # The blocks exist, but refused executables do not use them yet.
                for tenant in list(self._needs):
                    tenant.move_to([block.buffer for block in self._blocks])

        shielded(restore)

    def leave(self, tenant: Tenant) -> None:
        """Takes back the blocks of an executable, which must not use them any more."""
        shielded(lambda: self._leave(tenant))

    def _leave(self, tenant: Tenant) -> None:
        self._needs.pop(tenant, None)
        tenant.detach()
        # The other executables raise the error when they are run.
        with suppress(EngineError):
            self._resize()

    def _resize(self) -> bool:
        """Makes the blocks just large enough; returns whether all executables were moved."""
        rows = zip_longest(*self._needs.values(), fillvalue=0)
        needed = tuple(max(row) for row in rows)
        if needed == self._sizes:
            return False
        tenants = list(self._needs)
        try:
            self._clear(tenants)
            self._blocks += (Block(self.driver, size) for size in needed)
            for tenant in tenants:
                tenant.move_to([block.buffer for block in self._blocks])
        except BaseException:
            self._clear(tenants)
            raise
        self._sizes = needed
        return True

    def _clear(self, tenants: Sequence[Tenant]) -> None:
        for tenant in tenants:
            tenant.detach()
        blocks, self._blocks, self._sizes = self._blocks, [], ()
        for block in blocks:
            block.release()


def device_arena(arena: Arena | None, opened: Callable[[], Driver]) -> DeviceArena:
    """Checks that an arena belongs to the opened device; makes a new one for None."""
    if arena is None:
        return DeviceArena(opened)
    if not isinstance(arena, DeviceArena) or arena.driver is not opened():
        raise InternalError(f"an engine was given an arena of another one: {arena}")
    return arena


@frozen_dataclass
class ArenaLayout:
    """The locations of temporaries, inputs and workspaces in the blocks of an arena.

    Attributes:
        blocks: the bytes of each block.
        locations: the locations of buffers with elements, workspaces and upload buffers.
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
    locations: dict[str, Location] = {}
    for slot in program.plan.allocations:
        block, start = planned[slot.block]
        locations[slot.buffer] = block, start + slot.offset, program.buffers[slot.buffer].bytes
    for buffer in program.of_kind("input"):
        if buffer.bytes:
            locations[buffer.name] = (*begin(buffer.bytes), buffer.bytes)
    for name, size in upload_buffers(program, traits).items():
        locations[name] = (*begin(size), size)
    spaces = [begin(size) if size else (0, 0) for size in launches.workspace_blocks]
    for name, workspace in launches.workspaces.items():
        block, start = spaces[workspace.block]
        locations[name] = block, start + workspace.offset, workspace.bytes
    return ArenaLayout(tuple(blocks), {name: span for name, span in locations.items() if span[2]})


def upload_buffers(program: Program, traits: Traits) -> Mapping[str, int]:
    """The buffers to which the inputs of a program are uploaded early, with their bytes.

    There are none if the device does not copy while it computes, or the inputs are small.
    """
    inputs = {buffer.name: buffer.bytes for buffer in program.of_kind("input") if buffer.bytes}
    if not traits.uploads_during_runs or sum(inputs.values()) < _LEAST_EARLY_BYTES:
        return {}
    return {upload_name(name): size for name, size in inputs.items()}


def upload_name(input: str) -> str:
    """The name of the upload buffer of an input."""
    return f"upload {input}"
