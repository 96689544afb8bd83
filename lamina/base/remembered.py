"""Results of functions that are kept as long as the value that they were computed of.

A network's graphs, a graph's programs and a program's machine code are computed once for each
combination of further arguments. Whoever holds the network holds them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast, final
from weakref import ref

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# The results that are kept of one value by one function, the latest ones.
_MOST = 8


def remembered(
    of: Callable[[Any], object] = lambda first: first,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorates a function of immutable values, so that it computes each result once.

    Results that depend on somebody's own functions or classes are not kept: these may change.

    Args:
        of: the value, of the first argument, with which the results are kept and freed. They must
            not refer to it.
    """

    def decorated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        results: dict[_Identity, dict[object, Result]] = {}

        def remove(identity: Any) -> None:
            results.pop(identity, None)

        @wraps(function)
        def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
            holder = of(values[0])
            try:
                key = _described((values, options), holder)
            except _OwnError:
                return function(*values, **options)
            identity = _Identity(holder, remove)
            identity.number = id(holder)
            own = results.setdefault(identity, {})
            result = own.pop(key) if key in own else function(*values, **options)
            # The latest is the last.
            own[key] = result
            if len(own) > _MOST:
                own.pop(next(iter(own)), None)
            return result

        return call

    return decorated


@final
class _Identity(ref[Any]):
    """A weak reference that equals those to the same object."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other or (self() is not None and self() is cast(_Identity, other)())


class _OwnError(Exception):
    """A value is neither plain nor a record of Lamina."""


def _described(value: Any, holder: object) -> object:
    """A value as nested tuples that are equal for values of the same types only."""
    kind: Any = cast(object, type(value))
    if value is holder:
        return "holder"
    if value is None or kind in (bool, int, str):
        return kind, value
    if kind is float:
        # Texts distinguish the zeros.
        return kind, repr(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value).items()
        return kind, *((_described(key, holder), _described(v, holder)) for key, v in items)
    if kind in (tuple, list):
        return kind, *(_described(item, holder) for item in value)
    if kind.__module__.startswith("lamina.") and hasattr(kind, "__dataclass_fields__"):
        named = (field.name for field in fields(kind) if field.compare)
        return kind, *(_described(getattr(value, name), holder) for name in named)
    raise _OwnError
