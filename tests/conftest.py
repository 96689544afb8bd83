"""Options and fixtures of all tests.

`pytest tests/conformance --engine=NAME` runs the conformance suite on another engine than the
interpreter: `cpu`, `opencl:1`, `cuda:0`. An engine is finished when it passes.
"""

from __future__ import annotations

import pytest

from lamina.engines.discovery import open_engine
from lamina.engines.engine import Engine
from lamina.engines.interpreter.engine import InterpreterEngine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        default="interpreter",
        metavar="NAME",
        help="the engine that the conformance tests run on (default: interpreter)",
    )


@pytest.fixture(scope="session")
def engine_name(request: pytest.FixtureRequest) -> str:
    """The engine that was asked for on the command line."""
    return str(request.config.getoption("--engine"))


@pytest.fixture(scope="session")
def engine(engine_name: str) -> Engine:
    """That engine; the interpreter fills its arena with NaN first, so that unwritten reads show."""
    if engine_name == "interpreter":
        return InterpreterEngine(poison=True)
    return open_engine(engine_name)
