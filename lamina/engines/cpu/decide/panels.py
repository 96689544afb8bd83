"""How the columns of a contraction are cut into panels, and what a packed operand consists of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lamina.engines.cpu.decide.packing import Packing
from lamina.engines.cpu.decide.work import Work, counted
from lamina.records import frozen_dataclass


@frozen_dataclass
class Panels:
    """How the columns of a contraction are cut into panels.

    Attributes:
        lanes: of a vector.
        vectors: of a panel; the last one may have fewer.
        columns: how many there are.
    """

    lanes: int
    vectors: int
    columns: int

    @property
    def width(self) -> int:
        """The columns of a panel."""
        return self.vectors * self.lanes

    @property
    def count(self) -> int:
        return -(-self.columns // self.width)

    def kinds(self) -> Iterator[tuple[str, Panel, str, int]]:
        """The panels that differ: a name, the panel, and which ones: a comparison and a limit."""
        full, rest = divmod(self.columns, self.width)
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
    """Some vectors of columns.

    Attributes:
        lanes: of a vector.
        vectors: how many.
        last: how many lanes of the last vector are columns.
    """

    lanes: int
    vectors: int
    last: int

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    @property
    def columns(self) -> int:
        return (self.vectors - 1) * self.lanes + self.last

    @property
    def last_lanes(self) -> int:
        """The lanes that the last vector needs: a power of two, no less than a quarter of one."""
        lanes = self.lanes
        while lanes // 2 >= self.last and lanes * 4 > self.lanes:
            lanes //= 2
        return lanes

    def runs(self, *, wide: bool) -> list[tuple[int, int]]:
        """The first column and the lanes of each vector; of a single one if it may be wide."""
        if wide and self.last == self.lanes:
            return [(0, self.width)]
        return [(number * self.lanes, self.present(number)) for number in range(self.vectors)]

    def present(self, number: int) -> int:
        """The columns in a vector."""
        return self.last if number == self.vectors - 1 else self.lanes


@frozen_dataclass
class PackedRight:
    """A right operand that is packed as a whole, before the contractions that use it.

    Attributes:
        panels: how it is cut.
        inner: the extent of K.
        packing: in which order it is read.
    """

    panels: Panels
    inner: int
    packing: Packing
    # What the steps that pack it or use it call it.
    buffer: ClassVar[str] = "packed"

    @property
    def size(self) -> int:
        """How many elements it has, for each point of a batch."""
        return self.panels.count * self.panels.width * self.inner

    def work(self, batch: int) -> Work:
        """What packing takes."""
        items = batch * self.panels.count
        return Work(items, 1.5 * items * self.inner * self.panels.vectors)
