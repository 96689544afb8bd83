"""Results of functions that are kept as long as the value that they were computed of.

A network's graphs, a graph's programs and a program's machine code are computed once for each
combination of further arguments. Whoever holds the network holds them all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from functools import cache, wraps
from threading import RLock
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast, final
from weakref import ref

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# The results that are kept of one value by one function, the latest ones.
_MOST = 8
_MISSING: Any = object()


def remembered(
    of: Callable[[Any], object] = lambda first: first,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorates a function of immutable values, so that it computes each result once.

    Results that depend on somebody's own functions or classes are not kept: these may change.

    Args:
        of: a function from the first argument to the value with which the results are kept and
            freed. They must not refer to it.
    """

    def decorated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        results: dict[_Identity, dict[object, Any]] = {}
        # A callback of the garbage collector may run while its thread holds it.
        lock = RLock()

        def remove(identity: Any) -> None:
            results.pop(identity, None)

        @wraps(function)
        def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
            holder = of(values[0])
            try:
                key = plain_key((values, options), holder)
            except OwnCodeError:
                return function(*values, **options)
            identity = _Identity(holder, remove)
            identity.number = id(holder)
            with lock:
                result = results.setdefault(identity, {}).get(key, _MISSING)
            if result is _MISSING:
                # Threads may compute it at the same time; all results are equal.
                result = function(*values, **options)
            with lock:
                kept = results.setdefault(identity, {})
                # The latest is the last.
                kept.pop(key, None)
                kept[key] = result
                if len(kept) > _MOST:
                    del kept[next(iter(kept))]
            return result

        return call

    return decorated


@final
class _Identity(ref[Any]):
    """A weak reference that is equal to another one of the same object."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other or (self() is not None and self() is cast(_Identity, other)())


class OwnCodeError(Exception):
    """A value is neither plain nor a record of Lamina."""


def plain_key(
    value: Any, holder: object = None, *, own: bool = False, seen: dict[int, int] | None = None
) -> Hashable:
    """A value as nested tuples, which are equal for equal values of the same types.

    A record that stands in two places is distinguished from two equal records.

    Args:
        holder: a value that is known by its identity.
        own: whether functions and records of other modules than Lamina's may be in it.
        seen: the numbers of the records so far, by identity, of values with one key; changed.

    Raises:
        OwnCodeError: for any other value than the `holder`, plain values and records.
    """
    kind: Any = cast(object, type(value))
    seen = {} if seen is None else seen
    if value is None or kind in (bool, int, str):
        return kind, value
    if value is holder:
        return "holder"
    if kind is float:
        # Texts distinguish the zeros.
        return kind, repr(value)
    if kind in (tuple, list):
        return kind, *[plain_key(item, holder, own=own, seen=seen) for item in value]
    if own or kind.__module__.startswith("lamina."):
        names = _compared(kind)
        if names is not None:
            if id(value) in seen:
                return kind, seen[id(value)]
            seen[id(value)] = len(seen)
            fields_of = [getattr(value, name) for name in names]
            return kind, *[plain_key(field, holder, own=own, seen=seen) for field in fields_of]
        if kind is FunctionType:
            return kind, value
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return kind, *[plain_key(pair, holder, own=own, seen=seen) for pair in pairs]
    raise OwnCodeError


@cache
def _compared(kind: type) -> list[str] | None:
    """The fields of a record that count when two are compared; None for another class."""
    # `hasattr` would make the error for a name that the class lacks.
    if not any("__dataclass_fields__" in vars(base) for base in kind.__mro__):
        return None
    return [field.name for field in fields(kind) if field.compare]
