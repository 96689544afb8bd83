"""Fixtures of the tests of OpenCL devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lamina.engines.discovery import open_engine


@pytest.fixture
def engine(opencl_name: str) -> Any:
    return open_engine(opencl_name)


@pytest.fixture
def driver(engine: Any) -> Any:
    return engine.arena().driver


@pytest.fixture
def on_call(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[..., Any]], None]:
    """Calls a function before each call of a function or method, with the same arguments."""

    def add(owner: Any, name: str, hook: Callable[..., Any]) -> None:
        function = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            hook(*given, **named)
            return function(*given, **named)

        monkeypatch.setattr(owner, name, call)

    return add
