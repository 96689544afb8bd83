"""How N is split into panels, and the layout of a packed right operand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lamina.base.records import frozen_dataclass
from lamina.engines.simd.decide.packing import Packing
from lamina.engines.simd.decide.work import Work, counted


@frozen_dataclass
class Panels:
    """How the N axis of a contraction is split into panels.

    Attributes:
        lanes: of a vector.
        vectors: per panel; the last panel may have fewer.
        n: the extent of N.
    """

    lanes: int
    vectors: int
    n: int

    @property
    def width(self) -> int:
        """The columns of a full panel."""
        return self.vectors * self.lanes

    @property
    def count(self) -> int:
        return -(-self.n // self.width)

    def kinds(self) -> Iterator[tuple[str, Panel, str, int]]:
        """The full panels and the last, partial one, as (name, panel, comparison, limit).

        A panel is of a kind if the comparison of its number with the limit holds.
        """
        full, rest = divmod(self.n, self.width)
        if full:
            yield "full", Panel(self.lanes, self.vectors, self.lanes), "slt", full
        if rest:
            vectors = -(-rest // self.lanes)
            last = rest - (vectors - 1) * self.lanes
            yield "rest", Panel(self.lanes, vectors, last), "eq", full

    def __str__(self) -> str:
        return f"{counted(self.count, 'panel')} of {self.vectors} x {self.lanes} lanes"


@frozen_dataclass
class Panel:
    """The vectors of one panel.

    Attributes:
        lanes: of a vector.
        vectors: their number.
        last: the lanes of the last vector that hold columns; the others are padding.
    """

    lanes: int
    vectors: int
    last: int

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    @property
    def n(self) -> int:
        """The columns of the panel, without padding."""
        return (self.vectors - 1) * self.lanes + self.last

    @property
    def last_lanes(self) -> int:
        """The lanes of the last vector: a power of two, at least a quarter of a full vector."""
        lanes = self.lanes
        while lanes // 2 >= self.last and lanes * 4 > self.lanes:
            lanes //= 2
        return lanes

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The vectors, the lanes of each, and the lanes of the last one."""
        return self.vectors, self.lanes, self.last_lanes

    @property
    def label(self) -> str:
        """For names of functions."""
        return f"{self.vectors}x{self.lanes}_{self.last_lanes}"

    def lanes_of(self, number: int) -> int:
        """The lanes of vector `number`."""
        return self.last_lanes if number == self.vectors - 1 else self.lanes

    def runs(self, *, wide: bool) -> list[tuple[int, int]]:
        """(first column, lanes) of each vector; one vector of the whole panel if `wide`."""
        if wide and self.last == self.lanes:
            return [(0, self.width)]
        return [(number * self.lanes, self.present(number)) for number in range(self.vectors)]

    def present(self, number: int) -> int:
        """The columns in vector `number`, without padding."""
        return self.last if number == self.vectors - 1 else self.lanes


@frozen_dataclass
class PackedRight:
    """The layout of a right operand that is packed as a whole, before the contractions that use it.

    Attributes:
        panels: how N is split.
        k: the number of steps along K: pairs if they are paired.
        packing: the order in which the operand is read.
        paired: whether it consists of pairs of bfloat16 along K.
    """

    panels: Panels
    k: int
    packing: Packing
    paired: bool
    # The name of the packed buffer in the steps that write or read it.
    buffer: ClassVar[str] = "packed"

    @property
    def size(self) -> int:
        """The number of elements, padding included, for each matrix of the batch."""
        return self.panels.count * self.panel_size

    @property
    def panel_size(self) -> int:
        """The number of elements of a panel; a pair is one."""
        return self.k * self.panels.width

    def work(self, batch: int) -> Work:
        """The work of packing: a work item for each panel of each matrix of the batch."""
        items = batch * self.panels.count
        return Work(items, 1.5 * items * self.k * self.panels.vectors)
