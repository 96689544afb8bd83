"""Checks of the arguments of records and functions, before their code runs.

An unknown option is an error that lists the known ones. Each argument is checked by the kind in the
annotation of its parameter, and passed on in plain form: NumPy's numbers as Python's. This holds
for Lamina's records, their methods, and functions that are `checked`. Of a user's class only the
number and the names of the options are checked, and the values of options that it inherits from
Lamina's classes and does not declare again; NumPy's numbers become Python's.

    features: Count
    probability: Annotated[float, Number("[0, 1)")]
    bias: bool = True

`bool`, `int`, `float`, `str`, `Literal[...]`, paths and Lamina's classes are kinds without
`Annotated`, and so are their unions with None. Arguments with other annotations, such as a union of
other types, are not checked here; the function checks them.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import FrozenInstanceError
from functools import partial, wraps
from itertools import pairwise
from traceback import extract_tb
from types import FunctionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

import numpy as np

from lamina.base.records import cached_property, frozen_dataclass
from lamina.checks.foreign_calls import advice_on_call, advice_on_option
from lamina.checks.kinds import (
    FilePath,
    Flag,
    Instance,
    Kind,
    Misfit,
    Number,
    OrNone,
    Text,
    Whole,
    Word,
    is_data,
    read_each,
    refusal,
    shown,
)
from lamina.checks.origin import Origin, located, source_line
from lamina.errors import DefinitionError, LaminaError
from lamina.foreign import spelling

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Called(ABCMeta):
    """The metaclass of records that users make: layers, losses, optimizers and the like.

    Lamina's records also check the arguments of their public methods. Errors without a place get
    the record's class and the line that made it, if the record has a `source`.
    """

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        if "__module__" not in namespace:  # a class made by `type(name, bases, {...})`
            module = sys._getframe(1).f_globals.get("__name__", "__main__")  # pyright: ignore[reportPrivateUsage]
            namespace = {"__module__": module, **namespace}
        if _is_own(namespace["__module__"]):
            for method, function in list(namespace.items()):
                public = method == "__call__" or not method.startswith("_")
                # Layers check their operands before they call `forward`.
                inner = method in _INNER or "forward" in namespace
                if public and not inner and isinstance(function, FunctionType):
                    namespace[method] = _checked_method(function)
        return super().__new__(mcs, name, bases, namespace, **options)

    def __call__(cls: type[Result], *values: Any, **options: Any) -> Result:
        interface: Interface | None = cls.__dict__.get("__interface__")
        if interface is None:
            kinds = {name: kind.of_class(cls) for name, kind in _kinds_of_class(cls).items()}
            is_ours = _is_own(cls.__module__)
            interface = Interface(cls.__name__, inspect.signature(cls), kinds, cls, is_ours)
            type.__setattr__(cls, "__interface__", interface)
        make: Callable[..., Any] = partial(cast(Any, ABCMeta.__call__), cls)
        try:
            return interface.call(make, values, options)
        except LaminaError as error:
            if hasattr(cls, "source"):
                error.at(str(Origin(cls.__name__, source_line())))
            raise
        except FrozenInstanceError as error:
            if extract_tb(error.__traceback__)[-2].name != "__init__":
                raise
            raise without_init(cls, "a frozen dataclass has no __init__ that assigns") from None

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of `__init__`, which editors show for a call of the class."""
        # The option `name` comes last: `Layer` has it, and fields of bases would come first.
        signature = inspect.signature(cls.__init__)
        parameters = list(signature.parameters.values())[1:]
        parameters.sort(key=lambda parameter: (parameter.kind, parameter.name == "name"))
        return signature.replace(parameters=parameters)


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, with its arguments checked like the fields of records."""
    name = _name_of(function)
    interfaces: list[Interface] = []

    @wraps(function)
    def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
        if not interfaces:
            # Made at the first call, because annotations may name types that are imported later.
            kinds = _kinds_of(function)
            interfaces.append(Interface(name, inspect.signature(function), kinds, None))
        return interfaces[0].call(function, values, options)

    return call


def _checked_method(function: Callable[..., Result]) -> Callable[..., Result]:
    """A method, with its arguments checked; its errors say which record it is a method of."""
    call = checked(function)

    @wraps(function)
    def method(record: Any, *values: Any, **options: Any) -> Result:
        try:
            return call(record, *values, **options)
        except LaminaError as error:
            if hasattr(record, "source"):
                error.at(str(Origin(type(record).__name__, record.source)))
            raise

    return method


def without_init(cls: type, problem: str) -> DefinitionError:
    """The error for a user's class that is no frozen dataclass: the arguments become fields."""
    advice = f"Write @dataclass(frozen=True) above class {cls.__name__}"
    init: Any = cls.__init__
    if isinstance(init, FunctionType) and not _is_own(init.__module__):
        parameters = list(inspect.signature(init).parameters.values())[1:]
        named = (p for p in parameters if p.kind not in (p.VAR_POSITIONAL, _ANY))
        typed = (p.replace(annotation=object) if p.annotation is p.empty else p for p in named)
        usual = "a field for each attribute, such as first: lm.Layer = lm.Linear(3)"
        advice += f", and in it, in place of __init__: {'; '.join(map(str, typed)) or usual}"
    return DefinitionError(
        problem,
        facts=(("found", f"class {cls.__name__}"),),
        where=str(Origin(cls.__name__, source_line())),
        advice=f"{advice}.",
    )


def checked_as_given(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function of tensors, with its arguments checked by the records of ops.

    NumPy's numbers are not converted, as their dtype matters. Errors without a source line get the
    current layer and line.
    """

    @wraps(function)
    def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return function(*values, **options)
        except LaminaError as error:
            located(error)
            raise
        except TypeError:
            # Checked only after a TypeError: a check in every call would cost time.
            interface = Interface(_name_of(function), inspect.signature(function), {}, None)
            misfit = interface.misfit(values, options)
            if misfit is None:
                raise
            raise misfit from None

    return call


def refused(misfit: Misfit, name: str, value: object, called: str) -> DefinitionError:
    """The error for an argument, with the user's line."""
    return refusal(misfit, name, value, where=str(Origin(called, source_line())))


def _name_of(function: Callable[..., Any]) -> str:
    """The name by which users know a function or a class."""
    name = function.__qualname__
    for special in (".__init__", ".__new__", ".__call__"):
        name = name.removesuffix(special)
    return name


@frozen_dataclass
class Interface:
    """A callable, as users know it.

    Attributes:
        kinds: the kinds of the parameters, by name; parameters without a known kind are missing.
        is_lamina: whether it is part of Lamina, not the user's.
    """

    name: str
    signature: inspect.Signature
    kinds: Mapping[str, Kind]
    owner: type | None
    is_lamina: bool = True

    def call(
        self, function: Callable[..., Result], values: Sequence[Any], options: Mapping[str, Any]
    ) -> Result:
        """Calls a function of this interface with plain values."""
        if not self.kinds and self.is_lamina:
            try:
                return function(*values, **options)
            except TypeError:
                misfit = self.misfit(values, options)
                if misfit is None:
                    raise
                raise misfit from None
        if self._fits(values, options):
            try:
                by_position = [*map(self._read, self.positional, values)]
                by_name = {name: self._read(name, value) for name, value in options.items()}
            except DefinitionError as error:
                if not error.advice:
                    error.advice = advice_on_call(self, values, options)
                raise
            return function(*by_position, **by_name)
        misfit = self.misfit(values, options)
        if misfit is not None:
            raise misfit
        bound = self.signature.bind(*values, **options)
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._read(name, value)
        return function(*bound.args, **bound.kwargs)

    def misfit(self, values: Sequence[Any], options: Mapping[str, Any]) -> DefinitionError | None:
        """The error for a wrong number or wrong names of arguments; None if they fit."""
        try:
            self.signature.bind(*values, **options)
            return None
        except TypeError as error:
            problem = str(error)
        empty = inspect.Parameter.empty
        method = not _OWNERS.isdisjoint(self.signature.parameters)
        users = [p for p in self.signature.parameters.values() if p.name not in _OWNERS]
        parameters = [p.replace(default=empty, annotation=empty) for p in users]
        bare = self.signature.replace(parameters=parameters, return_annotation=empty)
        facts = (("expected", f"{self.name}{bare}"),)
        takes_any = any(parameter.kind == _ANY for parameter in parameters)
        others = (name for name in options if name not in self.accepted)
        advice, unknown = "", "" if takes_any else next(others, "")
        if unknown:
            problem = f"there is no option {unknown!r}"
            facts += (("found", f"{unknown}={shown(options[unknown])}"),)
            advice = advice_on_option(self, unknown, values, options)
        elif problem.startswith("missing"):
            lacking = problem.split("'")[1]
            advice = spelling([f"{self.name}()"], f"{lacking}=missing")
        else:
            positional = values[1:] if method else values
            pairs = [pair for pair in pairwise(positional) if all(map(is_data, pair))]
            if pairs:
                tuples = all(isinstance(value, tuple) for value in pairs[0])
                names = [f"({option})" for option in self.accepted]
                advice = spelling(names, "tuples" if tuples else "targets")
            if not advice and problem.startswith("too many positional"):
                if self.owner is not None:
                    facts += (("found", self.text(values, options)),)
                advice = self._advice_on_surplus(values, positional, options)
        where = str(Origin(self.name, source_line()))
        return DefinitionError(problem, facts=facts, where=where, advice=advice)

    def _advice_on_surplus(
        self, values: Sequence[Any], positional: Sequence[Any], options: Mapping[str, Any]
    ) -> str:
        """What to write in place of too many positional arguments; `values` may begin with self."""
        advice = advice_on_call(self, values, options)
        if not advice and len(positional) > 1 and all(isinstance(x, int) for x in positional[1:]):
            advice = spelling([f"{self.name}()"], "2,3")
        if advice:
            return advice
        surplus = values[len(self.positional)]
        for name, parameter in self.signature.parameters.items():
            is_free = parameter.kind == parameter.KEYWORD_ONLY and name not in ("name", *options)
            if is_free and self.accepts(name, surplus):
                return f"Give it by name: {name}=..."
        return ""

    @cached_property
    def positional(self) -> tuple[str, ...]:
        """The parameters that may be passed by position."""
        parameters = self.signature.parameters.values()
        return tuple(p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD)

    @cached_property
    def required(self) -> frozenset[str]:
        parameters = self.signature.parameters.values()
        return frozenset(p.name for p in parameters if p.default is p.empty)

    @cached_property
    def _count(self) -> int:
        return len(self.signature.parameters)

    @cached_property
    def _usual(self) -> bool:
        """Whether all parameters may be passed by name."""
        usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return all(p.kind in usual for p in self.signature.parameters.values())

    def _fits(self, values: Sequence[Any], options: Mapping[str, Any]) -> bool:
        """Whether the arguments fit the signature; False also if this quick check cannot tell."""
        # `Signature.bind` takes several times as long.
        if not self._usual or len(values) > len(self.positional):
            return False
        if not options and len(values) == self._count:
            return True
        names = {*self.positional[: len(values)], *options}
        are_known = names <= self.signature.parameters.keys() and self.required <= names
        return are_known and len(names) == len(values) + len(options)

    def _read(self, name: str, value: Any) -> Any:
        """An argument in plain form, read by the kind of its parameter."""
        kind = self.kinds.get(name)
        if kind is None and self.is_lamina:
            return value
        how = self.signature.parameters[name].kind
        if kind is None:
            return {n: _plain(v) for n, v in value.items()} if how == _ANY else _plain(value)
        try:
            if how == inspect.Parameter.VAR_POSITIONAL:
                return read_each(kind, value)
            return kind.read(value)
        except Misfit as misfit:
            raise refused(misfit, name, value, self.name) from None
        except LaminaError as error:
            raise error.at(str(Origin(f"{self.name}, {name}", source_line()))) from None

    @cached_property
    def accepted(self) -> tuple[str, ...]:
        """The parameters that take one value each."""
        several = (inspect.Parameter.VAR_POSITIONAL, _ANY)
        parameters = self.signature.parameters.items()
        return tuple(n for n, p in parameters if p.kind not in several and n not in _OWNERS)

    def accepts(self, option: str, value: Any) -> bool:
        """Whether it takes a value for an option."""
        try:
            if option in self.kinds:
                self.kinds[option].read(value)
        except (Misfit, LaminaError):
            return False
        return option in self.accepted

    def text(self, values: Sequence[Any], options: Mapping[str, Any]) -> str:
        texts = [*map(_shown, values), *(f"{name}={_shown(v)}" for name, v in options.items())]
        return f"{self.name}({', '.join(texts)})"


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, also in a list or tuple."""
    if isinstance(value, np.generic):
        return cast(Any, value).item()
    kind = type(cast(object, value))
    if kind is not tuple and kind is not list:  # named tuples are not converted
        return value
    entries = cast(Sequence[Any], value)
    if not any(isinstance(entry, np.generic) for entry in entries):
        return entries
    plain = [_plain(entry) for entry in entries]
    return tuple(plain) if kind is tuple else plain


# The kinds of parameters --------------------------------------------------------------------------


def _is_own(module: str) -> bool:
    return module.startswith("lamina.")


def _kinds_of_class(cls: type) -> dict[str, Kind]:
    """The kinds of a class's options: of its fields, if it is a dataclass, or of its `__init__`."""
    maker = next(base for base in cls.__mro__ if "__init__" in base.__dict__)
    kinds: dict[str, Kind] = {}
    if "__dataclass_fields__" not in maker.__dict__:
        return _kinds_of(maker.__init__)
    for base in reversed(maker.__mro__):
        # Fields that a user's class declares again are no longer checked.
        kinds = {n: kind for n, kind in kinds.items() if n not in inspect.get_annotations(base)}
        if _is_own(base.__module__):
            kinds |= _declared(inspect.get_annotations(base), vars(sys.modules[base.__module__]))
    # The annotations of an explicit `__init__` replace the fields' annotations.
    return kinds | _kinds_of(maker.__init__)


def _kinds_of(function: Callable[..., Any]) -> dict[str, Kind]:
    if not isinstance(function, FunctionType) or not _is_own(function.__module__):
        return {}
    return _declared(inspect.get_annotations(function), cast(Any, function).__globals__)


def _declared(annotations: Mapping[str, Any], names: dict[str, Any]) -> dict[str, Kind]:
    """The kinds in annotations; `names` is the namespace in which text is evaluated."""
    kinds: dict[str, Kind] = {}
    for parameter, annotation in annotations.items():
        # A name may be imported for the type checker only.
        with suppress(NameError):
            kind = kind_of(eval(annotation, names) if isinstance(annotation, str) else annotation)
            if kind is not None:
                kinds[parameter] = kind
    return kinds


def kind_of(annotation: Any) -> Kind | None:
    """The kind of a parameter; None if its annotation has none."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        declared = [part for part in parts[1:] if isinstance(part, Kind)]
        return declared[-1] if declared else kind_of(parts[0])
    if origin is Literal:
        return Word(tuple(parts)) if all(isinstance(part, str) for part in parts) else None
    if origin in (Union, types.UnionType):
        kinds = [kind_of(part) for part in parts if part is not type(None)]
        if set(parts) - {type(None)} == {str, os.PathLike[str]}:
            kinds = [FilePath()]
        if len(kinds) != 1 or kinds[0] is None:
            return None
        return OrNone(kinds[0]) if type(None) in parts else kinds[0]
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    plain_class = isinstance(annotation, type) and _is_own(annotation.__module__)
    protocol = getattr(cast(object, annotation), "_is_protocol", False)
    return Instance(annotation) if plain_class and not protocol else None


_SIMPLE: dict[Any, Kind] = {bool: Flag(), int: Whole(), float: Number(), str: Text()}

_ANY = inspect.Parameter.VAR_KEYWORD
# Methods that Lamina calls with checked arguments; `check_target` runs in every training step.
_INNER = {"forward", "check_target"}
_OWNERS = {"self", "cls"}


def _shown(value: Any) -> str:
    return "x" if hasattr(value, "rank") else shown(value)
