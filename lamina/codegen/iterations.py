"""The number of iterations of a function's loops: some devices end loops after a limit."""

from __future__ import annotations

import math
from typing import final

from lamina.codegen.values import Value
from lamina.errors import EngineError


@final
class Iterations:
    """Counts the iterations of loops while a function is written.

    Attributes:
        total: the most tests of the conditions of all loops in one call: a loop of n iterations
            tests n + 1 times. Infinite if that is unknown.
        barriers: the barriers that each work item comes by.
    """

    def __init__(self) -> None:
        self.total = self.barriers = 0.0
        # Of all loops that are open, the product of their iterations.
        self._products = [1.0]

    def begin(self, start: Value, stop: Value, step: int, most: int | None) -> None:
        """Counts a loop, whose body follows, and which has at most so many iterations."""
        first, last = start.number, stop.number
        if isinstance(first, int) and isinstance(last, int):
            count = float(max(-(-(last - first) // step), 0))
        else:
            count = math.inf if most is None else float(most)
        self.total += self._products[-1] * (count + 1)
        self._products.append(self._products[-1] * count)

    def add_barrier(self) -> None:
        """Counts a barrier within the loops that are open."""
        self.barriers += self._products[-1]

    def end(self) -> None:
        """The body of the loop that began last ends here."""
        self._products.pop()

    def require(self, most: int, name: str) -> None:
        """Checks the total of a function of that name.

        Raises:
            EngineError: if there are more.
        """
        if self.total <= most:
            return
        total = f"{self.total:,.0f}" if math.isfinite(self.total) else "an unknown number"
        raise EngineError(
            "this device ends the loops of a work item too early",
            facts=(("at most", f"{most:,} iterations"), ("needed", f"{total} in {name}")),
            advice="Use another device or engine. With a smaller batch, loops may be shorter.",
        )
