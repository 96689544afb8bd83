"""Opening devices: the one that a name selects, and processes that cannot open any."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any, Generic, TypeVar, final

from lamina.base.records import frozen_dataclass
from lamina.engines.engine import LISTING, Device
from lamina.errors import EngineError
from lamina.foreign import did_you_mean

Handle = TypeVar("Handle")


@frozen_dataclass
class FoundDevice(Generic[Handle]):
    """A device that was found, whether or not it can be used.

    Attributes:
        record: the description of the device.
        handle: the driver's object; None if the driver fails.
    """

    record: Device
    handle: Handle


Found = TypeVar("Found", bound=FoundDevice[Any])


def chosen_device(
    name: str,
    devices: Sequence[Found],
    *,
    language: str,
    text_of: Callable[[Device], str],
    nearest: Callable[[str, Sequence[Device]], str],
    more: str = "",
) -> Found:
    """The device of the name of an engine, as `"opencl:1"`, or as `"opencl:radeon"`.

    After the colon is a number, or a part of a device's text. `nearest` names a usable device that
    is similar to the wanted one; "" for none. `more` follows "lists all devices" in the advice.

    Raises:
        EngineError: if there is none, or it cannot be used.
    """
    engine, _, selector = name.partition(":")
    query = selector.lower()
    if query.isdecimal():
        missing = f"there is no {language} device number {query}"
        named = [device for device in devices if device.record.engine == f"{engine}:{query}"]
    else:
        missing = f"no {language} device is named {selector!r}"
        named = [device for device in devices if query in text_of(device.record).lower()]
    for device in named:
        if not device.record.problem:
            return device
    rows = [device.record for device in named or devices]
    remedies = {row.remedy for row in rows if row.remedy} if named else set[str]()
    near = "" if named else did_you_mean(nearest(query, rows))
    listing = f"{near} {LISTING} all devices{more}.".lstrip()
    raise EngineError(
        f"this {language} device cannot be used" if named else missing,
        facts=tuple(
            (row.engine, row.description + (f": {row.problem}" if row.problem else ""))
            for row in rows
        ),
        where=name,
        advice=remedies.pop() if len(remedies) == 1 else listing,
    )


@final
class OwnProcess:
    """A process's use of a driver: one thread at a time lists devices, one at a time opens them.

    Drivers do not work in a process that was forked from one that has used them.

    Attributes:
        was_forked: whether this process was forked from one that has used the driver.
    """

    def __init__(self, language: str, engine: str) -> None:
        self._language, self._engine = language, engine
        # Threads that open a device at the same time share its driver. Opening takes as long as a
        # self-test, so there is another lock for listing.
        self._open_lock, self._list_lock = Lock(), Lock()
        self._is_used = self.was_forked = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._note)

    def _note(self) -> None:
        self.was_forked = self._is_used

    def opening(self) -> AbstractContextManager[None]:
        """Lets a thread use the driver to open a device, and list devices too; see `require`."""
        return self._using(self._open_lock)

    def listing(self) -> AbstractContextManager[None]:
        """Lets a thread use the driver to list devices; see `require`."""
        return self._using(self._list_lock)

    @contextmanager
    def _using(self, lock: Lock) -> Generator[None]:
        self.require()
        # Before the lock: a process that is forked while it is held is refused, and does not wait.
        self._is_used = True
        with lock:
            yield

    def require(self) -> None:
        """Refuses a forked process: EngineError, with the alternatives."""
        if self.was_forked:
            raise EngineError(
                f"{self._language} cannot be used in a process that was forked from one that has "
                "used it",
                where=self._engine,
                advice="Start new processes: multiprocessing.get_context('spawn'); or use "
                f"{self._language} in the children only.",
            )
