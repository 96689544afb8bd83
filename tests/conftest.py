"""Options and fixtures of all tests.

The conformance suite runs on every engine that works on the machine; `pytest tests/conformance
--engine=NAME` runs it on one: `cpu`, `opencl:1`, `cuda:0`. An engine is finished when it passes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import pytest

import lamina as lm
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.discovery import devices, open_engine
from lamina.engines.engine import Engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.program.program import Program
from lamina.shapes import DType, float32
from lamina.step import default_targets, training_step


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        default="",
        metavar="NAME",
        help="the engine that the conformance tests run on (default: every one that works here)",
    )
    parser.addoption(
        "--share",
        type=int,
        default=0,
        metavar="N",
        help="run one in N of the tests that are sampled, always the same ones: those on OpenCL, "
        "where drivers take a quarter of a second to compile what a test needs, and those that are "
        "marked so (default: 1 with --engine, else 32)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Compiled programs are kept for these tests alone, also by processes that they start."""
    # PoCL, which keeps one of its own, may still write to it in the end.
    folder = tempfile.TemporaryDirectory(prefix="lamina-cache-", ignore_cleanup_errors=True)
    os.environ["LAMINA_CACHE"] = folder.name
    os.environ["POCL_CACHE_DIR"] = str(Path(folder.name) / "pocl")
    config.add_cleanup(folder.cleanup)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take an engine run on the one asked for, or on every one that works here."""
    if "engine_name" in metafunc.fixturenames:
        wanted = str(metafunc.config.getoption("--engine"))
        usable = [device.engine for device in devices() if not device.problem]
        metafunc.parametrize("engine_name", [wanted] if wanted else usable, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that are sampled, as `--share` says."""
    share = config.getoption("--share") or (1 if config.getoption("--engine") else 32)

    def is_chosen(item: pytest.Item) -> bool:
        parameters = getattr(item, "callspec", None)
        engine = parameters.params.get("engine_name", "") if parameters is not None else ""
        name = item.nodeid.replace(str(engine), "")
        is_dear = str(engine).startswith("opencl") or item.get_closest_marker("sampled")
        return not is_dear or crc32(name.encode()) % share == 0

    left_out = [item for item in items if not is_chosen(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_chosen(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Tests of float64 are skipped on devices that have none."""
    try:
        yield
    except EngineError as error:
        named = "engine_name" in getattr(item, "fixturenames", ())
        if not named or error.problem != "this device cannot compute with float64":
            raise
        pytest.skip(error.problem)


@pytest.fixture(scope="session")
def engine(engine_name: str) -> Engine:
    """An engine; the interpreter fills its arena with NaN first, so that unwritten reads show."""
    if engine_name == "interpreter":
        return InterpreterEngine(poison=True)
    return open_engine(engine_name)


@pytest.fixture(scope="session")
def opencl_name() -> str:
    """The name of an OpenCL device that works; tests that need one are skipped without."""
    found = [one for one in devices() if one.engine.startswith("opencl")]
    usable = [one.engine for one in found if not one.problem]
    if not usable:
        pytest.skip("no OpenCL device, or no pyopencl: see lamina devices")
    return usable[0]


class ProgramMaker(Protocol):
    def __call__(
        self,
        layers: Sequence[Any] | lm.Network,
        loss: Any,
        optimizer: Any,
        batch: int = 16,
        *,
        clip: Any = None,
        dtype: DType = float32,
        frozen: Sequence[str] = (),
    ) -> Program: ...


@pytest.fixture(scope="session")
def training_program() -> ProgramMaker:
    """Compiles the training step of a network, or of layers in a row."""

    def make(
        layers: Sequence[Any] | lm.Network,
        loss: Any,
        optimizer: Any,
        batch: int = 16,
        *,
        clip: Any = None,
        dtype: DType = float32,
        frozen: Sequence[str] = (),
    ) -> Program:
        network = layers if isinstance(layers, lm.Network) else lm.Sequential(*layers)
        targets = default_targets(network, loss, dtype)
        step = training_step(
            network, loss, optimizer, targets, dtype=dtype, clip=clip, frozen=frozen
        )
        return compile_graph(step.graph, batch=batch, name="training", target=DEFAULT_TARGET)

    return make
