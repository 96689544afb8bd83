"""Counting the changes of memories: operands packed from them are then packed again."""

from __future__ import annotations

from typing import final


@final
class Changes:
    """Counts the changes of any of several memories."""

    def __init__(self) -> None:
        self.count = 0
