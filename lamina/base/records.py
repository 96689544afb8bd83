"""Frozen dataclasses that are cheap to define, and their values from JSON.

`dataclass(frozen=True)` writes six methods for each class as text and compiles them: 0.3 ms a
class, and a first training defines two hundred. Here only `__init__` is compiled, when it is first
used; all classes share the code of the other methods.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import (
    Any,
    Generic,
    TypeVar,
    dataclass_transform,
    final,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

_Class = TypeVar("_Class", bound=type[Any])


@overload
def frozen_dataclass(cls: _Class, /) -> _Class: ...
@overload
def frozen_dataclass(
    *, init: bool = True, repr: bool = True, eq: bool = True, kw_only: bool = False
) -> Callable[[_Class], _Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_dataclass(
    cls: Any = None,
    /,
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    kw_only: bool = False,
) -> Any:
    """`dataclass(frozen=True)`, with the same meaning; without slots.

    A base that is a dataclass must be made by this decorator too; subclasses need not.
    """

    def made(cls: Any) -> Any:
        # Without a docstring, dataclass would make one of the signature, and need __init__.
        cls.__doc__ = cls.__doc__ or cls.__name__
        _state.defining = True
        try:
            dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        finally:
            _state.defining = False
        cls.__dataclass_params__ = _PARAMETERS
        methods: dict[str, object] = {"__setattr__": _set, "__delattr__": _delete}
        if init:
            methods["__init__"] = _Init(cls)
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods["__eq__"], methods["__hash__"] = _comparison(cls)
        # A class that defines __eq__ has a __hash__ of None, unless it defines that as well.
        for name, method in methods.items():
            if cls.__dict__.get(name) is None:
                setattr(cls, name, method)
        return cls

    return made if cls is None else made(cls)


def decoded(kind: Any, value: Any) -> Any:
    """A value of a kind, made of what JSON keeps of it: tuples are lists, records are objects."""
    if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
        kinds = _kinds_of(kind)
        return kind(**{name: decoded(kinds[name], item) for name, item in value.items()})
    inner = get_args(kind)
    if value is None or not inner:
        return value
    if get_origin(kind) is tuple:
        items = value if inner[0] is int else [decoded(inner[0], item) for item in value]
        return tuple(items)
    if get_origin(kind) is Mapping:
        return {name: decoded(inner[1], item) for name, item in value.items()}
    return decoded(inner[0], value)


# The kinds of the fields of a record.
_kinds_of = cache(get_type_hints)


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


@final
class _Init:
    """The `__init__` of a class, compiled when it is first looked up, which then replaces this."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # Concurrent threads make equal methods; either may stay.
        self._cls.__init__ = method = _init(self._cls)
        return method.__get__(instance, owner)


class _Factory:
    """The default of a field with a factory, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init(cls: Any) -> Any:
    """The function that sets an instance's fields, compiled from text in the class's module."""
    names: dict[str, object] = {"_set": object.__setattr__, "_factory": _FACTORY}
    positional, by_name, lines = ["self"], ["*"], list[str]()
    annotations: dict[str, Any] = {}
    specs: tuple[Field[Any], ...] = fields(cls)
    for spec in specs:
        name, value, default = spec.name, spec.name, f"_default_{spec.name}"
        if spec.default is not MISSING:
            names[default] = spec.default
        elif spec.default_factory is not MISSING:
            names[default], names[f"_make_{name}"] = _FACTORY, spec.default_factory
            value = f"_make_{name}() if {name if spec.init else default} is _factory else {name}"
        if spec.init:
            annotations[name] = spec.type
            parameter = f"{name}={default}" if default in names else name
            (by_name if spec.kw_only else positional).append(parameter)
        elif spec.default is not MISSING:
            value = default
        if spec.init or default in names:
            lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(by_name if len(by_name) > 1 else [])])
    lines = [f"def __init__({parameters}):", *(f" {line}" for line in [*lines, "pass"])]
    text = "\n ".join([f"def make({', '.join(names)}):", *lines, "return __init__"])
    # File names of generated code begin with "<"; `source_line` skips them.
    code = compile(text, f"<{cls.__module__}.{cls.__qualname__}>", "exec")
    module, namespace = sys.modules.get(cls.__module__), dict[str, Any]()
    exec(code, vars(module) if module else {}, namespace)
    method = namespace["make"](**names)
    method.__qualname__ = f"{cls.__qualname__}.__init__"
    method.__annotations__ = annotations | {"return": None}
    return method


def _comparison(cls: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`__eq__` and `__hash__`, by the values of the fields."""
    every: tuple[Field[Any], ...] = fields(cls)
    compared = _values_of([member.name for member in every if member.compare])
    keys = (member for member in every if (member.compare if member.hash is None else member.hash))
    hashed = _values_of([member.name for member in keys])

    def __eq__(self: object, other: object) -> Any:
        same = other.__class__ is self.__class__
        return compared(self) == compared(other) if same else NotImplemented

    def __hash__(self: object) -> int:
        return hash(hashed(self))

    return __eq__, __hash__


def _values_of(names: list[str]) -> Callable[[object], Any]:
    """A function to the tuple of an object's attributes."""
    if not names:
        return lambda _: ()
    # Of a single name, attrgetter would make no tuple.
    return attrgetter(*(names if len(names) > 1 else names * 2))


@recursive_repr()
def _repr(self: Any) -> str:
    names = (attribute.name for attribute in fields(self) if attribute.repr)
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
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
