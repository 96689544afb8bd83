"""Records as plain data of files: read by the annotations of their fields, as arguments are.

A file may have been changed, so every value is checked before it is used.

    position = stored(Position, json.loads(text), "position")
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, Union, cast, final, get_args, get_origin, get_type_hints

from lamina.base.records import frozen_dataclass
from lamina.checks.calls import kind_of
from lamina.checks.kinds import Kind, Misfit, Operands, OrNone, ReadBy, Row, refusal, shown
from lamina.errors import FileFormatError

_Record = TypeVar("_Record")


def stored(record: type[_Record], value: Any, name: str) -> _Record:
    """A record of a file, from plain data: a table with its fields."""
    return read_stored(_Fields(record), value, name)


def read_stored(kind: Kind, value: Any, name: str) -> Any:
    """A value of a file in plain form; raises FileFormatError if it is not of the kind."""
    try:
        return kind.read(value)
    except Misfit as misfit:
        error = refusal(misfit, name, value)
    advice = "The file was changed, or written by another version of Lamina."
    raise FileFormatError(error.problem, facts=error.facts, advice=advice)


@final
@frozen_dataclass
class _Fields(Kind):
    """A record, as a table of its fields."""

    record: type

    def read(self, value: Any, operands: Operands = ()) -> Any:
        table = _Table(_ANYTHING).read(value)
        hints = get_type_hints(self.record, include_extras=True)
        kinds = {name: _kind(hint) for name, hint in hints.items()}
        unknown = [name for name in table if name not in kinds]
        needed = [f.name for f in fields(self.record) if f.default is f.default_factory is MISSING]
        absent = [name for name in needed if name not in table]
        if unknown or absent:
            key = f"{'no ' * (not unknown)}{(unknown or absent)[0]!r}"
            raise Misfit(f"a table of {', '.join(kinds)}", value_text=key)
        return self.record(**{n: _within(kinds[n], n, entry) for n, entry in table.items()})


@final
@frozen_dataclass
class _Table(Kind):
    """Values by name."""

    kind: Kind

    def read(self, value: Any, operands: Operands = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Misfit("a table of names", value_text=shown(value))
        table = cast(dict[str, Any], value)
        return {name: _within(self.kind, name, entry) for name, entry in table.items()}


def _within(kind: Kind, name: str, value: Any) -> Any:
    try:
        return kind.read(value)
    except Misfit as misfit:
        raise misfit.within(f".{name}", value) from None


_ANYTHING = ReadBy(lambda value: value)


def _kind(annotation: Any) -> Kind:
    """The kind of an annotation, also of records, tables and tuples, which arguments are not."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        return Row(_kind(parts[0]))
    if origin is Mapping:
        return _Table(_kind(parts[1]))
    if origin in (Union, types.UnionType) and type(None) in parts:
        (other,) = (part for part in parts if part is not type(None))
        return OrNone(_kind(other))
    if isinstance(annotation, type) and hasattr(annotation, "__dataclass_fields__"):
        return _Fields(annotation)
    return _ANYTHING if annotation is Any else cast(Kind, kind_of(annotation))
