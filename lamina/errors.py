"""The errors that Lamina raises: expected, found, where, and advice.

All derive from `LaminaError`. This is the layout of a message:

    in net/4:Add (resnet.py:14): the two branches differ in shape
      left    f32[batch, 32, 16, 16]
      right   f32[batch, 32, 32, 32]
      Axes 2 and 3 differ, 16 against 32: give the shortcut stride=2 as well.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from lamina.foreign import unknown_attribute


class LaminaError(Exception):
    """The base of all errors raised by Lamina.

    Args:
        problem: what is wrong: one sentence, lower case, without a full stop.
        facts: rows of (name, value), such as expected and found.
        advice: what to do about it: a full sentence.
        where: the layer path and source line, the file, or the argument; callers may add it later
            with `at`.
    """

    def __init__(
        self,
        problem: str,
        *,
        facts: tuple[tuple[str, str], ...] = (),
        advice: str = "",
        where: str = "",
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.facts = facts
        self.advice = advice
        self.where = where

    def at(self, where: str) -> LaminaError:
        """Sets `where`, unless code closer to the fault has set it already; returns self."""
        if not self.where:
            self.where = where
        return self

    def __str__(self) -> str:
        lines = [f"in {self.where}: {self.problem}" if self.where else self.problem]
        width = max((len(name) for name, _ in self.facts), default=0) + 2
        lines += [f"  {name:<{width}}{value}" for name, value in self.facts]
        if self.advice:
            lines.append(f"  {self.advice}")
        return "\n".join(lines)


@contextmanager
def errors_at(where: str) -> Generator[None]:
    """Says in errors where they are found, unless code closer to the fault has."""
    try:
        yield
    except LaminaError as error:
        error.at(where)
        raise


class ShapeError(LaminaError):
    """Shapes that do not fit together."""


class DTypeError(LaminaError):
    """Element types that do not fit, or that would be converted with loss."""


class DefinitionError(LaminaError):
    """An invalid layer, loss, optimizer or network, for example by a bad hyper-parameter."""


class GradientError(LaminaError):
    """A derivative that does not exist, or a gradient of a tensor that has none."""


class DataError(LaminaError):
    """Data that cannot be used: empty, of uneven length, labels out of range."""


class UnknownNameError(LaminaError, KeyError):
    """A name that does not exist."""


class FileFormatError(LaminaError):
    """A file that is truncated, damaged, or of another kind than expected."""


class EngineError(LaminaError):
    """An unknown engine, or a device that is missing or too small."""


class LargestBlockError(EngineError):
    """A buffer that is larger than the largest allocation of a device."""


class MissingExtraError(LaminaError):
    """An optional package that is needed and not installed."""


class ReleasedError(LaminaError):
    """Use of a training whose memory was already released."""


class NonFiniteError(LaminaError):
    """A loss that became NaN or infinite during training."""


class LaminaWarning(UserWarning):
    """A warning about the user's code: it runs, but probably does not do what was meant."""


class InternalError(LaminaError):
    """A broken invariant inside Lamina: always a defect, never the user's fault."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for an optional package that is not installed."""
    return MissingExtraError(
        f"{purpose} needs the package {package}, which is not installed",
        advice=f'Install it with: pip install "lamina[{extra}]"',
    )


def imported_extra(module: str, extra: str, purpose: str, package: str = "") -> Any:
    """A module of an optional package; raises MissingExtraError if that is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(package or module, extra, purpose) from error


class UnknownAttribute(AttributeError):
    """An attribute that a module or the objects of a class do not have.

    Its text, with advice, is made when it is read, because `hasattr` reads none.
    """

    def __init__(self, owner: type | ModuleType, name: str) -> None:
        # Without `obj`, as Python would then add a proposal of its own.
        super().__init__(name=name)
        self._owner = owner

    def __reduce__(self) -> tuple[type[AttributeError], tuple[str]]:
        return AttributeError, (str(self),)

    def __str__(self) -> str:
        return unknown_attribute(self._owner, str(self.name))


# Tracebacks show the name that everybody knows.
UnknownAttribute.__name__ = UnknownAttribute.__qualname__ = "AttributeError"
UnknownAttribute.__module__ = "builtins"


class Named:
    """The base of classes whose unknown attributes get advice: `model.summary`.

    Attributes that exist are found before this method is called.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # otherwise type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__") and any(name in vars(c) for c in type(self).__mro__):
                # A property that exists raised an AttributeError: the same one again.
                return object.__getattribute__(self, name)
            raise UnknownAttribute(type(self), name)


class _NamedModule(ModuleType):
    def __getattr__(self, name: str) -> NoReturn:
        raise UnknownAttribute(self, name)


def names_known(module: str) -> None:
    """Gives advice for unknown names of a module."""
    sys.modules[module].__class__ = _NamedModule
