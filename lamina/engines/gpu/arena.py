"""The arena of a device: blocks of memory that programs share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Protocol, final

from lamina.base.shielded import shielded
from lamina.engines.engine import Arena
from lamina.engines.gpu.driver import Buffer, Driver
from lamina.engines.gpu.memory import Block
from lamina.errors import EngineError, InternalError


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

    Args:
        opened: returns the driver of the device, always the same one.
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
        shielded(self._restore)

    def _restore(self) -> None:
        if not self._resize():
            # The blocks exist, but refused executables do not use them yet.
            for tenant in list(self._needs):
                tenant.move_to([block.buffer for block in self._blocks])

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
        """Releases all blocks."""
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
