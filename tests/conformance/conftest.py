"""The check of many cases in one program, which knows the option `--case`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import harness
import pytest

from lamina.engines.engine import Engine


@pytest.fixture
def check_cases(engine: Engine, pytestconfig: pytest.Config) -> Callable[..., None]:
    """`harness.check_cases` on the engine, of the case of `--case` alone if there is one.

    With a function it takes values of the function's first argument, and names cases after them.
    """

    def check(cases: Iterable[Any], build: Callable[..., Any] | None = None, **how: Any) -> None:
        if build is not None:
            cases = [(str(value).replace(" ", ""), partial(build, value)) for value in cases]
        harness.check_cases(cases, engine, only=pytestconfig.getoption("--case"), **how)

    return check
