"""Options and fixtures of all tests.

The conformance suite runs on every engine that works on the machine; `pytest tests/conformance
--engine=NAME` runs it on one: `cpu`, `opencl:1`, `cuda:0`. An engine is finished when it passes.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import pytest
from targets import TARGETS, use_costs_of

import lamina as lm
from cuda_machine.engine import machine_without_gpu
from lamina.base.shapes import DType, float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.discovery import devices, open_engine
from lamina.engines.engine import Engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.learning.protocols import TrainingOptions
from lamina.program.program import Program
from lamina.step.derive import default_targets, training_graph
from lamina.training import verification
from lamina.training.interrupt import Interrupt

# Refusals of devices that lack what a program needs.
LACKS = (
    "this device cannot compute with float64",
    "this device ends the loops of a work item too early",
)


# After the name of an OpenCL device: its engine runs the kernels for GPUs.
GPU_KERNELS = "+gpu"


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
        help="run one in N of the conformance tests that take an engine, of tests/processes, and "
        "of the tests that are marked as sampled (default: all with --engine; else one in 32, and "
        "one in 128 of those that are sampled or on OpenCL, where drivers take a quarter of a "
        "second to compile each)",
    )
    parser.addoption(
        "--part",
        type=int,
        default=0,
        metavar="K",
        help="which of the N parts of these tests, from 0 on; each test is in one of them",
    )
    parser.addoption(
        "--sample",
        action="store_true",
        help="run one case of each op, gradient and layer, and the tests of the engine itself: for "
        "engines on which all conformance tests take hours; with --share N one in N of them",
    )
    parser.addoption(
        "--pocl-cache",
        default="",
        metavar="FOLDER",
        help="the folder in which PoCL keeps compiled kernels for later runs; it finds them by a "
        "checksum of their text (default: an empty folder for each run)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Gives these tests, and processes that they start, a program cache of their own.

    Raises:
        pytest.UsageError: for an unknown engine or part.
    """
    if not hasattr(config, "workerinput"):  # the processes of xdist share it
        # PoCL, which has a cache of its own, may still write to it at the end.
        folder = tempfile.TemporaryDirectory(prefix="lamina-cache-", ignore_cleanup_errors=True)
        os.environ["LAMINA_CACHE"] = folder.name
        kept = config.getoption("--pocl-cache")
        os.environ["POCL_CACHE_DIR"] = str(Path(kept or folder.name, "pocl").resolve())
        config.add_cleanup(folder.cleanup)
    # Schedules, and with them the rounding of results, do not depend on times.
    os.environ["LAMINA_TUNE"] = "0"
    engine, share, part = (config.getoption(f"--{name}") for name in ("engine", "share", "part"))
    if share < 0 or part < 0 or (share and part >= share):
        raise pytest.UsageError(f"--share {share} --part {part}: there are parts 0 to N - 1 of N")
    if engine.partition(":")[0] == "cuda":
        machine_without_gpu()
    if engine:
        try:
            open_engine(engine.removesuffix(GPU_KERNELS))
        except EngineError as error:
            raise pytest.UsageError(f"--engine: {error}") from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Which device the conformance tests run on: a GPU, or the machine that runs PTX."""
    engine = config.getoption("--engine")
    if not engine:
        return []
    return [f"{engine}: {open_engine(engine.removesuffix(GPU_KERNELS)).device.description}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take an engine run on the one from `--engine`, or on every one that works here."""
    if "engine_name" in metafunc.fixturenames:
        wanted = str(metafunc.config.getoption("--engine"))
        usable = [device.engine for device in devices() if not device.problem]
        names: list[Any] = [wanted] if wanted else usable
        if wanted.endswith(GPU_KERNELS) and "engine" not in metafunc.fixturenames:
            skip = pytest.mark.skip(reason="opens its engine by name")
            names = [pytest.param(wanted, marks=skip)]
        metafunc.parametrize("engine_name", names, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests that are not in the share of `--share`, or not in the sample."""
    part = config.getoption("--part")
    for item in items:
        if "opencl_name" in getattr(item, "fixturenames", ()):  # drivers take long to compile
            item.add_marker("sampled")
    sampled: set[str] = set()

    def is_chosen(item: pytest.Item) -> bool:
        if config.getoption("--sample") and "conformance" in item.path.parts:
            key = _sample_key(item)
            is_first = bool(key) and key not in sampled
            sampled.add(key)
            wanted = config.getoption("--share")
            return is_first and (not wanted or crc32(key.encode()) % wanted == part)
        share = _share_of(item, config)
        name = item.nodeid.replace(_engine_of(item), "")
        return crc32(name.encode()) % share == part % share

    chosen = [is_chosen(item) for item in items]
    rows = list(zip(items, chosen, strict=True))
    config.hook.pytest_deselected(items=[item for item, is_run in rows if not is_run])
    items[:] = [item for item, is_run in rows if is_run]


# Of these tests, `--sample` runs the first case of each op or layer.
_SAMPLED = (
    "test_halves.py::test_a_training_step_in_mixed_precision",
    "test_mixed_float64.py::test_products_round_their_operands",
    "test_ops.py::test_gradient_equals_its_evaluation",
    "test_ops.py::test_op_equals_its_reference",
    "test_schedules.py::test_contraction_is_right_with_every_schedule",
    "test_schedules.py::test_loops_are_right_with_every_schedule",
    "test_tf32.py::test_a_layer_between_products",
)
# Of these, whose cases are random, it runs the first ones.
_RANDOM, _RANDOM_CASES = "test_random_graphs.py", 12


def _sample_key(item: pytest.Item) -> str:
    """What the sample has one test of: an op, a layer, or the test itself; "" if it has none."""
    function, _, case = item.nodeid.rpartition("/")[2].partition("[")
    number = re.search(r"\d+", case)
    is_early = number is not None and int(number[0]) < _RANDOM_CASES
    if function.startswith("test_engine.py") or (function.startswith(_RANDOM) and is_early):
        return item.nodeid
    if function not in _SAMPLED:
        return ""
    return f"{function} {re.split(r'-[0-9]', case.rstrip(']'))[0]}"


def _engine_of(item: pytest.Item) -> str:
    """The engine of a test; "" if it takes none."""
    parameters = getattr(item, "callspec", None)
    return str(parameters.params.get("engine_name", "")) if parameters is not None else ""


def _share_of(item: pytest.Item, config: pytest.Config) -> int:
    """N, where one in N of the tests of this kind is run."""
    chosen, engine = config.getoption("--share"), _engine_of(item)
    takes_long = engine.startswith("opencl") or item.get_closest_marker("sampled")
    # Comparisons of layers with PyTorch on each engine take a while; trajectories always run.
    compared = engine and chosen and item.get_closest_marker("torch")
    in_part = "processes" in item.path.parts or (engine and "conformance" in item.path.parts)
    if not takes_long and not compared and not in_part:
        return 1
    if chosen or config.getoption("--engine"):
        return chosen or 1
    return 128 if takes_long else 32


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Tests of float64, or of long loops, are skipped on devices that cannot run them."""
    try:
        with _machine_faults(item):
            yield
    except EngineError as error:
        named = "engine_name" in getattr(item, "fixturenames", ())
        if not named or error.problem not in LACKS:
            raise
        pytest.skip(error.problem)


@contextmanager
def _machine_faults(item: pytest.Item) -> Generator[None]:
    """On the machine that runs the cuda engine without a GPU, a test with faults fails."""
    double = machine_without_gpu() if _engine_of(item).startswith("cuda") else None
    try:
        yield
    except BaseException as error:
        for fault in double.recover() if double is not None else ():
            error.add_note(f"{type(fault).__name__}: {fault}")
        raise
    for fault in double.recover() if double is not None else ():
        raise fault


@pytest.fixture(autouse=True)
def costs_of_the_target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test with a `target` of `conformance/targets.py` compiles with its costs."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and (target := callspec.params.get("target")) in TARGETS:
        use_costs_of(target, monkeypatch)


@pytest.fixture(scope="session")
def engine(engine_name: str) -> Engine:
    """An engine; the interpreter fills its arena with NaN first, so that unwritten reads show."""
    if engine_name == "interpreter":
        return InterpreterEngine(poison=True)
    if engine_name.endswith(GPU_KERNELS):
        return _with_gpu_kernels(engine_name.removesuffix(GPU_KERNELS))
    return open_engine(engine_name)


def _with_gpu_kernels(name: str) -> Engine:
    """An OpenCL device that runs the kernels for GPUs, also if it is a processor."""
    from lamina.engines.gpu.driver import Driver
    from lamina.engines.gpu.engine import GpuEngine
    from lamina.engines.gpu.gpus import GpuFamily
    from lamina.engines.opencl.opening import open_device

    def family(driver: Driver) -> GpuFamily:
        return GpuFamily(driver.traits, driver.words, driver.record.engine)

    return GpuEngine("opencl", partial(open_device, name), family)


@pytest.fixture(autouse=True)
def no_earlier_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second after it has ended the fit of another test, Ctrl-C would raise."""
    monkeypatch.setattr(Interrupt, "_last_said", -math.inf)


@pytest.fixture
def quick_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` omits engines that take seconds to compile."""
    found = [one for one in devices() if one.engine in ("cpu", "interpreter")]
    monkeypatch.setattr(verification, "devices", lambda: found)


@pytest.fixture(scope="session")
def opencl_name() -> str:
    """The name of an OpenCL device that works; without one, tests that need it are skipped."""
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
        derived = training_graph(
            network,
            TrainingOptions(loss, optimizer, clip=clip, frozen=frozen),
            targets,
            dtype=dtype,
        )
        return compile_graph(derived.graph, batch=batch, name="training", target=DEFAULT_TARGET)

    return make
