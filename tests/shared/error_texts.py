"""The texts of errors."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from lamina.errors import InternalError
from lamina.program.check import verify
from lamina.program.program import Program

Kind = TypeVar("Kind", bound=BaseException)


def refused(
    kind: type[Kind] | tuple[type[Kind], ...],
    call: Callable[..., Any],
    *values: Any,
    **options: Any,
) -> Kind:
    """The error that a call raises."""
    with pytest.raises(kind) as caught:
        call(*values, **options)
    return caught.value


def error_text(
    kind: type[Kind] | tuple[type[Kind], ...],
    call: Callable[..., Any],
    *values: Any,
    **options: Any,
) -> str:
    """The text of the error that a call raises."""
    return str(refused(kind, call, *values, **options))


def check_refusal(kind: type[BaseException], call: Callable[[], Any], *parts: str) -> str:
    """A call is refused with a text that has these parts in this order; returns its first line."""
    text = rest = error_text(kind, call)
    for part in parts:
        _, found, rest = rest.partition(part)
        assert found, f"{part!r} is not in its place in {text}"
    return text.splitlines()[0]


def problem_of(broken: Program) -> str:
    """The error of the check of programs."""
    return error_text(InternalError, verify, broken)
