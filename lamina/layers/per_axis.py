"""Arguments with one value for each axis after the channels: their kinds, and how layers read them.

Convolutions, pooling, upsampling and augmentation have such arguments.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
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
from lamina.graph import Tensor, described
from lamina.layers.checks import origin_text, require_float
from lamina.layers.layer import Layer


@frozen_dataclass
class ForEachAxis(Kind):
    """A whole number for all axes of a layer, or one for each; of any rank if that is None."""

    lowest: int = 1
    rank: int | None = None
    allows_none: bool = False

    def read(self, value: Any, operands: Operands = ()) -> Any:
        number = OrNone(Whole(self.lowest)) if self.allows_none else Whole(self.lowest)
        if isinstance(value, Integral):
            return number.read(value)
        entries = entries_of(value)
        rank = self.rank or _some_rank(entries)
        if entries is None or len(entries) != rank:
            raise _not_one_for_each(rank)
        return read_each(number, entries)

    def of_class(self, owner: type) -> Kind:
        return ForEachAxis(self.lowest, getattr(owner, "axes", None), self.allows_none)


@frozen_dataclass
class PairForEachAxis(Kind):
    """Widths of padding: a number for all axes, or for each axis a number or (before, after).

    Words such as `"same"` may stand for widths. The rank is as for `ForEachAxis`.
    """

    words: tuple[str, ...] = ()
    rank: int | None = None

    def read(self, value: Any, operands: Operands = ()) -> Any:
        if self.words and isinstance(value, str):
            return Word(self.words).read(value)
        if isinstance(value, Integral):
            return _WIDTH.read(value)
        entries = entries_of(value)
        rank = self.rank or _some_rank(entries)
        pairs = [
            entry if isinstance(entry, Integral) else entries_of(entry) for entry in entries or ()
        ]
        if len(pairs) != rank or not all(
            isinstance(entry, Integral) or (entry and len(entry) == 2) for entry in pairs
        ):
            raise Misfit(
                f"a whole number, or for {_each(rank)} one or a pair",
                f"{{name}}=1 or {{name}}={tuple((1, 2) for _ in range(rank))}",
            )
        return read_each(_WIDTHS, tuple(pairs))

    def of_class(self, owner: type) -> Kind:
        return PairForEachAxis(self.words, getattr(owner, "axes", None))


_WIDTH = Whole(0)
_WIDTHS = Either(_WIDTH, Row(_WIDTH))

_Entry = TypeVar("_Entry")

# A number for all axes, or one for each.
Numbers = Annotated[int | tuple[int, ...], ForEachAxis()]
# Widths of padding: the same for all axes, or for each axis a number or a pair (before, after).
Pairs = Annotated[int | tuple[int | tuple[int, int], ...], PairForEachAxis()]
Padding = Annotated[
    str | int | tuple[int | tuple[int, int], ...], PairForEachAxis(("same", "valid"))
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
    found = (value,) * rank if isinstance(value, int) else value
    return tuple((one, one) if isinstance(one, int) else one for one in found)


def _some_rank(given: Sequence[Any] | None) -> int:
    """The number of axes for which there are entries, from 1 to 3."""
    return min(max(len(given or ()), 1), 3)


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
        raise ShapeError(
            f"{type(layer).__name__} needs channels and {rank} further "
            f"{'axis' if rank == 1 else 'axes'}",
            facts=(("expected", f"f32[batch, channels, {names}]"), ("found", described(x))),
            advice=f"Write the channels in lm.Input as well: lm.Input(1{', 28' * rank}).",
        )
    require_float(layer, x)


class OfWindows(Layer, ABC):
    """The base of layers of windows along the axes after the channels; `axes` is their number."""

    axes: ClassVar[int]

    def _numbers(self, *names: str) -> list[list[int]]:
        """The numbers of some fields, one for each axis."""
        return [numbers_of(self, name, getattr(self, name), self.axes) for name in names]
