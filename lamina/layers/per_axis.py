"""Arguments with one value for each axis after the channels: their kinds, and how layers read them.

Convolutions, pooling, upsampling and augmentation have such arguments.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import replace
from numbers import Integral
from typing import Annotated, Any, ClassVar, TypeVar, cast

from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import (
    Either,
    Kind,
    Misfit,
    Operands,
    OrNone,
    Row,
    Whole,
    Word,
    entries_of,
    read_each,
    refusal,
)
from lamina.errors import ShapeError
from lamina.graph import LEAF, Tensor, described
from lamina.layers.checks import origin_text, require_float
from lamina.layers.layer import Layer


@frozen_dataclass
class ForEachAxis(Kind):
    """A whole number for all axes of a layer, or one for each; any rank, 1 to 3, if it is None.

    With `pairs`, each axis may have two, (before, after). Words such as `"same"` stand for numbers.
    """

    lowest: int = 1
    rank: int | None = None
    allows_none: bool = False
    pairs: bool = False
    words: tuple[str, ...] = ()

    def read(self, value: Any, operands: Operands = ()) -> Any:
        if self.words and isinstance(value, str):
            return Word(self.words).read(value)
        number = OrNone(Whole(self.lowest)) if self.allows_none else Whole(self.lowest)
        if isinstance(value, Integral):
            return number.read(value)
        entries = entries_of(value) or ()
        rank = self.rank or min(max(len(entries), 1), 3)
        if not self.pairs:
            if len(entries) != rank:
                raise _not_one_for_each(rank)
            return read_each(number, entries)
        rows = [row if isinstance(row, Integral) else entries_of(row) or () for row in entries]
        if len(rows) != rank or not all(isinstance(x, Integral) or len(x) == 2 for x in rows):
            raise Misfit(
                f"a whole number, or for {_each(rank)} one or a pair",
                f"{{name}}=1 or {{name}}={((1, 2),) * rank}",
            )
        return read_each(Either(number, Row(number)), tuple(rows))

    def of_class(self, owner: type) -> Kind:
        return replace(self, rank=getattr(owner, "axes", None))


_Entry = TypeVar("_Entry")

# A number for all axes, or one for each.
Numbers = Annotated[int | tuple[int, ...], ForEachAxis()]
# Widths of padding: the same for all axes, or for each axis a number or a pair (before, after).
Pairs = Annotated[int | tuple[int | tuple[int, int], ...], ForEachAxis(0, pairs=True)]
Padding = Annotated[
    str | int | tuple[int | tuple[int, int], ...],
    ForEachAxis(0, pairs=True, words=("same", "valid")),
]


def numbers_of(
    layer: Layer, name: str, value: _Entry | tuple[_Entry, ...], rank: int
) -> list[_Entry]:
    """One number for each axis; DefinitionError if there are as many entries as other axes."""
    several = cast(tuple[_Entry, ...], value)
    numbers = list(several) if isinstance(value, tuple) else [cast(_Entry, value)] * rank
    if len(numbers) != rank:
        raise refusal(_not_one_for_each(rank), name, several, where=origin_text(layer))
    return numbers


def pairs_of(value: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """A pair of widths for each axis."""
    widths = (value,) * rank if isinstance(value, int) else value
    return tuple((width, width) if isinstance(width, int) else width for width in widths)


def _not_one_for_each(rank: int) -> Misfit:
    return Misfit(
        f"a whole number, or one for {_each(rank)}",
        f"{{name}}=3 or {{name}}={tuple(range(3, 3 + rank))}",
    )


def _each(rank: int) -> str:
    return "its axis" if rank == 1 else f"each of {rank} axes"


def check_image(layer: Layer, x: Tensor, rank: int) -> None:
    """Checks that a tensor has floats, and batch, channels and `rank` further axes."""
    names = ("length", "height, width", "depth, height, width")[rank - 1]
    if x.rank != rank + 2:
        extents = ", ".join(map(str, (1, *x.shape[1:])))
        shape = extents if x.rank == rank + 1 else f"channels, {names}"
        advice = f"Put lm.Reshape({shape}) before it."
        if x.rank > rank + 2:
            advice = f"lm.{type(layer).__name__[:-2]}{x.rank - 2}d has as many axes."
        elif x.op is LEAF:
            advice = f"Write the channels in lm.Input as well: lm.Input({shape})."
        raise ShapeError(
            f"{type(layer).__name__} needs channels and {rank} further "
            f"{'axis' if rank == 1 else 'axes'}",
            facts=(("expected", f"f32[batch, channels, {names}]"), ("found", described(x))),
            advice=advice,
        )
    require_float(layer, x)


class OfWindows(Layer, ABC):
    """The base of layers of windows along the axes after the channels; `axes` is their number."""

    axes: ClassVar[int]

    def _numbers(self, *names: str) -> list[list[int]]:
        """The numbers of some fields, one for each axis."""
        return [numbers_of(self, name, getattr(self, name), self.axes) for name in names]
