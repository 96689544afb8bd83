"""Frozen dataclasses that are cheap to define.

`dataclass(frozen=True)` writes six methods for each class as text and compiles them, which takes
0.3 ms a class. Most of them are never called. Here each method is compiled when it is first used.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from reprlib import recursive_repr
from typing import Any, Generic, TypeVar, dataclass_transform, final, overload

# In the metadata of a field that comes last in the signature: `field(metadata={LAST: True})`.
LAST = "last"
_Class = TypeVar("_Class", bound=type[Any])


@overload
def frozen_dataclass(cls: _Class, /) -> _Class: ...
@overload
def frozen_dataclass(
    *, init: bool = True, repr: bool = True, eq: bool = True
) -> Callable[[_Class], _Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_dataclass(
    cls: Any = None, /, *, init: bool = True, repr: bool = True, eq: bool = True
) -> Any:
    """`dataclass(frozen=True)`, with the same meaning; without slots.

    A base that is a dataclass must be made by this decorator too; subclasses need not.

    Example:
        >>> @frozen_dataclass
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1)
        Point(x=1, y=0)
    """

    def made(cls: Any) -> Any:
        # Without a docstring, dataclass would make one of the signature, and need __init__.
        cls.__doc__ = cls.__doc__ or cls.__name__
        _state.defining = True
        try:
            dataclass(init=False, repr=False, eq=False)(cls)
        finally:
            _state.defining = False
        cls.__dataclass_params__ = _PARAMETERS
        methods: dict[str, object] = {"__setattr__": _set, "__delattr__": _delete}
        if init:
            methods["__init__"] = _WhenUsed("__init__", cls, _init)
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods["__eq__"] = _when_called("__eq__", cls, _eq)
            methods["__hash__"] = _when_called("__hash__", cls, _hash)
        # A class that defines __eq__ has a __hash__ of None, unless it defines that as well.
        for name, method in methods.items():
            if cls.__dict__.get(name) is None:
                setattr(cls, name, method)
        return cls

    return made if cls is None else made(cls)


class _State(threading.local):
    """Whether this thread is making a class."""

    defining = False


_state = _State()


class _Parameters:
    """The parameters that `dataclass` reads from a base: subclasses of a frozen base are frozen.

    The base is frozen, except while `frozen_dataclass` calls `dataclass`: without `frozen=True`, as
    that would compile the methods.
    """

    init = repr = eq = match_args = True
    order = unsafe_hash = kw_only = slots = weakref_slot = False

    @property
    def frozen(self) -> bool:
        return not _state.defining


_PARAMETERS = _Parameters()


class _WhenUsed:
    """A method that is compiled when it is first looked up, and then replaces this object."""

    def __init__(self, name: str, cls: type, make: Callable[[type], Any]) -> None:
        self._name, self._cls, self._make = name, cls, make

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return _replaced(self._name, self._cls, self._make).__get__(instance, owner)


def _when_called(name: str, cls: type, make: Callable[[type], Any]) -> Callable[..., Any]:
    """A method that is compiled when it is first called, and then replaces this function.

    For methods that Python looks up itself: it forgets an exception during the lookup of
    `__hash__` or `__eq__`, such as a signal's, and goes on as if there were no such method.
    """

    def method(self: object, *values: object) -> Any:
        return _replaced(name, cls, make)(self, *values)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    return method


def _replaced(name: str, cls: type, make: Callable[[type], Any]) -> Any:
    # Concurrent threads make equal methods; either may stay.
    method = make(cls)
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    setattr(cls, name, method)
    return method


def _compiled(
    cls: type, name: str, parameters: str, lines: list[str], names: Mapping[str, object]
) -> Any:
    """A function compiled from text, in the class's module; `names` are free names of the text."""
    body = "\n  ".join(lines) or "pass"
    text = f"def _make({', '.join(names)}):\n def {name}({parameters}):\n  {body}\n return {name}"
    found: dict[str, Any] = {}
    # File names of generated code begin with "<"; `source_line` skips them.
    code = compile(text, f"<{cls.__module__}.{cls.__qualname__}>", "exec")
    module = sys.modules.get(cls.__module__)
    exec(code, vars(module) if module else {}, found)
    return found["_make"](**names)


class _Factory:
    """The default of a field with a factory, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init(cls: Any) -> Any:
    every: tuple[Field[Any], ...] = fields(cls)
    names: dict[str, object] = {"_set": object.__setattr__, "_factory": _FACTORY}
    lines: list[str] = []
    for one in every:
        value = one.name
        if one.default is not MISSING:
            names[f"_default_{one.name}"] = one.default
            value = one.name if one.init else f"_default_{one.name}"
        elif one.default_factory is not MISSING:
            names[f"_make_{one.name}"] = one.default_factory
            names[f"_default_{one.name}"] = _FACTORY
            value = f"_make_{one.name}()"
            if one.init:
                value += f" if {one.name} is _factory else {one.name}"
        elif not one.init:
            continue
        lines.append(f"_set(self, {one.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    taken = [one for one in every if one.init]
    parts = ["self", *(_parameter(one, names) for one in taken if not one.kw_only)]
    # Those of bases come first among the fields; some are the last in the signature.
    keywords = sorted((one for one in taken if one.kw_only), key=lambda one: LAST in one.metadata)
    by_name = [_parameter(one, names) for one in keywords]
    parameters = ", ".join([*parts, *(["*", *by_name] if by_name else [])])
    function = _compiled(cls, "__init__", parameters, lines, names)
    function.__annotations__ = {one.name: one.type for one in taken} | {"return": None}
    return function


def _parameter(one: Field[Any], names: Mapping[str, object]) -> str:
    default = f"_default_{one.name}"
    return f"{one.name}={default}" if default in names else one.name


def _eq(cls: Any) -> Any:
    ours, others = (_values(cls, name, lambda one: one.compare) for name in ("self", "other"))
    lines = [f"return {ours} == {others} if other.__class__ is self.__class__ else NotImplemented"]
    return _compiled(cls, "__eq__", "self, other", lines, {})


def _hash(cls: Any) -> Any:
    values = _values(cls, "self", lambda one: one.compare if one.hash is None else one.hash)
    return _compiled(cls, "__hash__", "self", [f"return hash({values})"], {})


def _values(cls: Any, name: str, wanted: Callable[[Field[Any]], bool]) -> str:
    """The text of a tuple of an instance's values."""
    return f"({''.join(f'{name}.{one.name}, ' for one in fields(cls) if wanted(one))})"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"


def _set(self: object, name: str, value: object) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: object, name: str) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_frozen(self: Any, name: str) -> bool:
    """Subclasses that are not dataclasses themselves may have attributes of their own."""
    return "__dataclass_fields__" in self.__class__.__dict__ or name in self.__dataclass_fields__


_Value = TypeVar("_Value")


@final
class cached_property(Generic[_Value]):
    """`functools.cached_property` without a lock: a method that is computed once for an object.

    Until Python 3.12 that one computes while it holds a lock of the class. If the process forks
    meanwhile, the child waits for the lock forever. Here two threads may compute at once; both get
    equal values.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[_Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        # Once it is there, an attribute of the instance is found before this method is called.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
