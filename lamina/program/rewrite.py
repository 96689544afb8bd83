"""Rewriting: replaces axes, buffers and scalars in steps, scalars and index expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast, final

from lamina.program import steps
from lamina.program.index import Atom, Axis, Index, Quotient, Remainder, gathered_index
from lamina.program.scalar import Apply, Bound, Load, Local, Position, Scalar, Within, postorder
from lamina.program.windows import Sliding

_Record = TypeVar(
    "_Record", bound=steps.Step | steps.Stage | steps.Store | steps.InnerProduct | steps.WeightedSum
)

# What is rewritten in each record, in the order of the text. `index` is an element of the record's
# buffer.
_REWRITTEN: Mapping[type, tuple[str, ...]] = {
    steps.Loop: ("stages",),
    steps.Reduce: ("value",),
    steps.Write: ("stores",),
    steps.Scan: ("value", "index"),
    steps.Sort: ("key", "index"),
    steps.SegmentSum: ("value", "key", "segment"),
    steps.Store: ("index", "value"),
    steps.Contraction: ("left", "right", "stores"),
    steps.Chain: ("products", "reductions", "stores", "sums"),
    steps.InnerProduct: ("left", "right"),
    steps.WeightedSum: ("weight", "right", "stores"),
}


@final
class Rewrite:
    """Replaces axes, buffers, locals and loads wherever they occur.

    An expression without replacements stays the same object. A `Rewrite` keeps its results, so
    subexpressions that several scalars share are still shared afterwards.

    The axes that a step or a stage iterates are not replaced; the caller sets the new ones.
    Windows along replaced axes are dropped.

    Args:
        axes: the index expression that replaces each axis.
        locals: the scalar that replaces each local, by name.
        buffer: the function that renames a buffer. It is called in the order of the text: operands
            before stores, the index of a store before its value.
        place: the function of a buffer's old name and an index in it that returns the index in the
            new buffer; by default the same.
        load: the function that replaces a load, whose index and bounds are rewritten before.
        scalars: the scalars that replace others, wherever they occur.

    Example:
        >>> i, j = Axis("i", 12), Axis("j", 4)
        >>> print(Rewrite({i: Index(0, ((j, 3),))}).index(Index(2, ((i, 5),))))
        15*j + 2
    """

    def __init__(
        self,
        axes: Mapping[Axis, Index] | None = None,
        locals: Mapping[str, Scalar] | None = None,
        *,
        buffer: Callable[[str], str] = str,
        place: Callable[[str, Index], Index] | None = None,
        load: Callable[[Load], Scalar] | None = None,
        scalars: Mapping[Scalar, Scalar] | None = None,
    ) -> None:
        self._axes = axes or {}
        self._locals = locals or {}
        self._buffer = buffer
        self._place = place
        self._load = load
        self._scalars: dict[Scalar, Scalar] = {**(scalars or {})}
        # None for indices without replacements.
        self._indices: dict[Index, Index | None] = {}

    def record(self, record: _Record) -> _Record:
        """A step, or a part of a step."""
        new: dict[str, Any] = {}
        for name in _REWRITTEN[type(record)]:
            value: Any = getattr(record, name)
            if name == "index":
                new["buffer"], new["index"] = self._location(cast(Any, record).buffer, value)
            elif isinstance(value, tuple):
                new[name] = self.records(cast(tuple[Any, ...], value))
            else:
                new[name] = self.index(value) if isinstance(value, Index) else self.scalar(value)
        if isinstance(record, steps.Contraction):
            for key in ("left_windows", "right_windows"):
                windows: tuple[Sliding, ...] = getattr(record, key)
                new[key] = tuple(window for window in windows if window.axes.isdisjoint(self._axes))
        return replace(record, **new)

    def records(self, records: Sequence[_Record]) -> tuple[_Record, ...]:
        return tuple(self.record(record) for record in records)

    def scalar(self, scalar: Scalar) -> Scalar:
        rewritten = self._scalars
        for node in postorder(scalar, without=rewritten):
            rewritten[node] = self._rewritten(node)
        return rewritten[scalar]

    def _rewritten(self, scalar: Scalar) -> Scalar:
        """The new scalar, given that its operands are rewritten already."""
        if isinstance(scalar, Apply):
            operands = tuple([self._scalars[operand] for operand in scalar.operands])
            if all(new is old for new, old in zip(operands, scalar.operands, strict=True)):
                return scalar
            return Apply(scalar.primitive, operands, scalar.dtype)
        if isinstance(scalar, Load):
            new = self._rewritten_load(scalar)
            return new if self._load is None else self._load(new)
        if isinstance(scalar, Position):
            index = self.index(scalar.index)
            return scalar if index is scalar.index else Position(index, scalar.dtype)
        if isinstance(scalar, Within):
            bounds = self.bounds(scalar.bounds)
            return scalar if bounds is scalar.bounds else Within(bounds, scalar.dtype)
        return self._locals.get(scalar.name, scalar) if isinstance(scalar, Local) else scalar

    def _rewritten_load(self, load: Load) -> Load:
        buffer, index = self._location(load.buffer, load.index)
        bounds = self.bounds(load.bounds)
        if buffer == load.buffer and index is load.index and bounds is load.bounds:
            return load
        return Load(buffer, index, load.dtype, bounds)

    def _location(self, buffer: str, index: Index) -> tuple[str, Index]:
        """The new buffer of an element, and its index in that buffer."""
        new, offset = self._buffer(buffer), self.index(index)
        return new, offset if self._place is None else self._place(buffer, offset)

    def bounds(self, bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
        indices = [self.index(bound.index) for bound in bounds]
        if all(new is bound.index for new, bound in zip(indices, bounds, strict=True)):
            return bounds
        pairs = zip(indices, bounds, strict=True)
        return tuple(Bound(index, bound.low, bound.high) for index, bound in pairs)

    def index(self, index: Index) -> Index:
        if index not in self._indices:
            self._indices[index] = self._rewritten_index(index)
        new = self._indices[index]
        return index if new is None else new

    def _rewritten_index(self, index: Index) -> Index | None:
        changed = [(self._atom(atom), atom, coefficient) for atom, coefficient in index.terms]
        if all(new is None for new, _, _ in changed):
            return None
        result = Index(index.constant)
        for new, atom, coefficient in changed:
            result += (Index(0, ((atom, 1),)) if new is None else new) * coefficient
        return result

    def _atom(self, atom: Atom) -> Index | None:
        """The index expression that replaces an atom; None if the atom stays."""
        if isinstance(atom, Axis):
            return self._axes.get(atom)
        if isinstance(atom, Quotient | Remainder):
            inner = self.index(atom.index)
            if inner is atom.index:
                return None
            return inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
        value = self.scalar(atom.value)
        return None if value is atom.value else gathered_index(value, atom.extent)
