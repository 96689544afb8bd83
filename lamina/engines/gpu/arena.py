"""The arena of a device: blocks of memory that programs share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Protocol, final

from lamina.engines.engine import Arena
from lamina.engines.gpu.driver import Buffer, Driver
from lamina.engines.gpu.memory import Block
from lamina.errors import EngineError, InternalError
from lamina.shielded import shielded


class Tenant(Protocol):
    """An executable in an arena. It lies in the blocks it was last moved to, until it lets go."""

    def let_go(self) -> None:
        """From now on uses nothing of the arena."""
        ...

    def move_to(self, blocks: Sequence[Buffer]) -> None:
        """From now on uses the first bytes of these blocks, whatever they hold."""
        ...


@final
class DeviceArena:
    """Blocks of memory for executables that never run at the same time.

    Each block is as large as the largest need of them. Before blocks are exchanged for larger or
    smaller ones they are given back, so that both need not fit at once. If the device then refuses
    the new ones, there are none: executables ask for them again when they are run.

    Args:
        opened: gives the driver of the device, always the same one.
    """

    def __init__(self, opened: Callable[[], Driver]) -> None:
        self._opened = opened
        self.driver = opened()
        self._blocks: list[Block] = []
        self._sizes: tuple[int, ...] = ()
        # Executables that nobody holds any more count no longer.
        self._needs: weakref.WeakKeyDictionary[Tenant, tuple[int, ...]] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[type[DeviceArena], tuple[Callable[[], Driver]]]:
        # The executables of a copy are compiled anew.
        return DeviceArena, (self._opened,)

    @property
    def bytes(self) -> int:
        return sum(self._sizes)

    def enter(self, tenant: Tenant, sizes: tuple[int, ...]) -> None:
        """Gives an executable blocks of so many bytes."""
        # Whole: who was not moved would use memory that is gone.
        shielded(lambda: self._enter(tenant, sizes))

    def _enter(self, tenant: Tenant, sizes: tuple[int, ...]) -> None:
        self._needs[tenant] = sizes
        try:
            if not self._resize():
                tenant.move_to([block.buffer for block in self._blocks])
        except BaseException:
            self._leave(tenant)
            raise

    def restore(self) -> None:
        """Makes the blocks that a device has refused before, for all executables."""
        shielded(self._restore)

    def _restore(self) -> None:
        if not self._resize():
            # The blocks are there, but for those who were refused.
            for tenant in list(self._needs):
                tenant.move_to([block.buffer for block in self._blocks])

    def leave(self, tenant: Tenant) -> None:
        """Takes the blocks of an executable back, which must not use them any more."""
        shielded(lambda: self._leave(tenant))

    def _leave(self, tenant: Tenant) -> None:
        self._needs.pop(tenant, None)
        tenant.let_go()
        # The others are told when they are run.
        with suppress(EngineError):
            self._resize()

    def _resize(self) -> bool:
        """Makes the blocks just large enough; whether all executables were moved."""
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
        """Gives all blocks back."""
        for tenant in tenants:
            tenant.let_go()
        blocks, self._blocks, self._sizes = self._blocks, [], ()
        for block in blocks:
            block.release()


def device_arena(arena: Arena | None, opened: Callable[[], Driver]) -> DeviceArena:
    """The arena, which is of the device that is opened; a new one for None."""
    if arena is None:
        return DeviceArena(opened)
    if not isinstance(arena, DeviceArena) or arena.driver is not opened():
        raise InternalError(f"an engine was given an arena of another one: {arena}")
    return arena
