"""Drivers do not work in a process that was forked from one that has used them."""

from __future__ import annotations

import os
from typing import final

from lamina.errors import EngineError


@final
class OwnProcess:
    """Whether this process was forked from one that has used a driver.

    Args:
        language: the driver's API, for people.
        engine: the name of the engine.

    Attributes:
        was_forked: whether this process was forked from one that has used the driver.
    """

    def __init__(self, language: str, engine: str) -> None:
        self._language, self._engine = language, engine
        self._is_used = self.was_forked = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._note)

    def _note(self) -> None:
        self.was_forked = self._is_used

    def use(self) -> None:
        """States that this process uses the driver from now on; see `require`."""
        self.require()
        self._is_used = True

    def require(self) -> None:
        """Refuses a forked process.

        Raises:
            EngineError: with the alternatives.
        """
        if self.was_forked:
            raise EngineError(
                f"{self._language} cannot be used in a process that was forked from one that has "
                "used it",
                where=self._engine,
                advice="Start new processes: multiprocessing.get_context('spawn'); or use "
                f"{self._language} in the children only.",
            )
