"""Options and fixtures of all tests.

Tests that take an engine run on the interpreter and on cpu; `pytest tests/conformance
--engine=NAME` runs all of the conformance tests on one: `cpu`, `opencl:1`, `cuda:0`. An engine is
finished when they pass.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from emulated import emulate
from harness import LACKS, training_step
from targets import TARGETS, use_costs_of
from training_cases import network

import lamina as lm
from cuda_machine.engine import machine_without_gpu
from lamina.base.shapes import float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.discovery import devices, open_engine
from lamina.engines.engine import Device, Engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.program.target import Target
from lamina.training import verification
from lamina.training.interrupt import Interrupt

# Tests of one folder read cases of tests of another one.
sys.path += [str(folder) for folder in Path(__file__).parent.glob("unit/*/")]

# After the name of an OpenCL device: its engine runs the kernels for GPUs.
GPU_KERNELS = "+gpu"


# Of the tests that are marked as sampled, of tests/processes, and of all cases of a test but the
# first, one in so many runs by default.
SAMPLED_PARTS = 128


def _part(text: str) -> tuple[int, int]:
    """K and N of the option `--part K/N`."""
    number, count = (int(one) for one in text.split("/"))
    if not 0 <= number < count:
        raise argparse.ArgumentTypeError(f"there are parts 0/{count} to {count - 1}/{count}")
    return number, count


def pytest_addoption(parser):
    parser.addoption(
        "--engine",
        default="",
        metavar="NAME",
        help="the engine that tests run on which take one (default: the interpreter, and cpu)",
    )
    parser.addoption(
        "--part",
        type=_part,
        default=None,
        metavar="K/N",
        help="run part K of N, from 0/N on, of the tests that take an engine, of tests/processes, "
        "of tests marked as sampled, and of all cases of a test but the first (default: all of the "
        f"paths that are named; without paths one in {SAMPLED_PARTS} of the last three)",
    )
    parser.addoption(
        "--case",
        default="",
        metavar="NAME",
        help="run only this case of the tests that check many in one program; a failure names it",
    )
    parser.addoption(
        "--emulate",
        choices=("amx", "avx512"),
        help="the cpu engine finds a processor with these vectors and instructions on bfloat16",
    )
    parser.addoption(
        "--pocl-cache",
        default="",
        metavar="FOLDER",
        help="the folder in which PoCL keeps compiled kernels for later runs; it finds them by a "
        "checksum of their text (default: an empty folder for each run)",
    )


def pytest_configure(config):
    """Gives these tests, and processes that they start, a program cache of their own.

    Raises:
        pytest.UsageError: for an unknown engine.
    """
    config.stash[BY_DEFAULT] = _is_by_default(config)
    if not hasattr(config, "workerinput"):  # the processes of xdist share it
        # PoCL, which has a cache of its own, may still write to it at the end.
        folder = tempfile.TemporaryDirectory(prefix="lamina-cache-", ignore_cleanup_errors=True)
        os.environ["LAMINA_CACHE"] = folder.name
        kept = config.getoption("--pocl-cache")
        os.environ["POCL_CACHE_DIR"] = str(Path(kept or folder.name, "pocl").resolve())
        config.add_cleanup(folder.cleanup)
    # Schedules, and with them the rounding of results, do not depend on times.
    os.environ["LAMINA_TUNE"] = "0"
    if config.getoption("--emulate"):
        patches = pytest.MonkeyPatch()
        config.add_cleanup(patches.undo)
        emulate(patches, config.getoption("--emulate"))
    engine = config.getoption("--engine")
    if engine.partition(":")[0] == "cuda":
        machine_without_gpu()
    if engine:
        try:
            open_engine(engine.removesuffix(GPU_KERNELS))
        except EngineError as error:
            raise pytest.UsageError(f"--engine: {error}") from None


def pytest_report_header(config):
    """Which device the conformance tests run on: a GPU, or the machine that runs PTX."""
    engine = config.getoption("--engine")
    if not engine:
        return []
    return [f"{engine}: {open_engine(engine.removesuffix(GPU_KERNELS)).device.description}"]


def pytest_pycollect_makeitem(obj):
    """`@pytest.mark.cases("x, y", (1, 2), (3, 4))` is `parametrize` with a row for each case.

    Rows may also be in a dict, by names of the cases.
    """
    marks = getattr(obj, "pytestmark", None)
    if isinstance(marks, list):
        marks[:] = [_parametrized(mark) if mark.name == "cases" else mark for mark in marks]


def _parametrized(mark: pytest.Mark) -> pytest.Mark:
    names, *rows = mark.args
    named = rows[0] if len(rows) == 1 and isinstance(rows[0], dict) else {}
    ids: dict[str, Any] = {"ids": list(named)} if named else {}
    return pytest.mark.parametrize(names, [*named.values()] or rows, **ids, **mark.kwargs).mark


def pytest_generate_tests(metafunc):
    """Tests that take an engine run on the one from `--engine`, or on the interpreter and cpu."""
    if "engine_name" in metafunc.fixturenames:
        chosen = str(metafunc.config.getoption("--engine"))
        names: list[Any] = [chosen] if chosen else ["interpreter", "cpu"]
        if chosen.endswith(GPU_KERNELS) and "engine" not in metafunc.fixturenames:
            skip = pytest.mark.skip(reason="opens its engine by name")
            names = [pytest.param(chosen, marks=skip)]
        metafunc.parametrize("engine_name", names, scope="session")


@pytest.hookimpl(wrapper=True, specname="pytest_generate_tests")
def pytest_mark_further_cases(metafunc):
    """Marks all cases of a test but the first; those that are not in the part are not made."""
    result = yield
    test, by_default = metafunc.definition, metafunc.config.stash[BY_DEFAULT]
    has_each = "conformance" in test.path.parts or test.get_closest_marker("each_case")
    engines, made = set(), []
    for case in metafunc._calls:  # pytest has no public list of them
        engine, marks = str(case.params.get("engine_name", "")), [*case.marks]
        if engine in engines and not has_each:
            marks += [pytest.mark.further.mark, *[pytest.mark.sampled.mark] * by_default]
        engines.add(engine)
        # A test without any case would be made without values.
        if not made or _is_in_part(test, f"{test.nodeid}[{case.id}]", engine, marks):
            made.append(replace(case, marks=marks))
    metafunc._calls[:] = made
    return result


def pytest_itemcollected(item):
    """Marks the tests that take an engine or PyTorch, and those on OpenCL as sampled."""
    if _engine_of(item):
        item.add_marker("engine")
    # Drivers of OpenCL take long to compile.
    for fixture, mark in (("torch", "torch"), ("opencl_name", "sampled")):
        if fixture in getattr(item, "fixturenames", ()):
            item.add_marker(mark)


def pytest_collection_modifyitems(config, items):
    """Deselects the tests that are not in the part of `--part`."""
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (chosen if _is_in_part(item, item.nodeid, _engine_of(item)) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


# Whether all that `pytest` finds is run; xdist gives its processes paths.
BY_DEFAULT = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Says to a process of xdist how the run was begun."""
    node.workerinput["by_default"] = node.config.stash[BY_DEFAULT]


def _is_by_default(config: pytest.Config) -> bool:
    found = getattr(config, "workerinput", {}).get("by_default")
    chosen = any(map(config.getoption, ("keyword", "markexpr", "engine", "part")))
    is_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen
    return bool(is_all if found is None else found)


def _is_in_part(
    test: pytest.Item, case: str, engine: str, marks: Collection[pytest.Mark] = ()
) -> bool:
    """Whether a case, with its further marks, is run; parts have the same for each engine."""
    names = {mark.name for mark in (*test.iter_markers(), *marks)}
    in_processes = "processes" in test.path.parts and "each_case" not in names
    is_sampled = in_processes or "sampled" in names
    part = test.config.getoption("--part")
    if part is None and test.config.stash[BY_DEFAULT] and is_sampled:
        part = (0, SAMPLED_PARTS)
    if part is None or not (engine or is_sampled or "further" in names):
        return True
    number, count = part
    return crc32(case.replace(engine, "").encode()) % count == number


def _engine_of(item: pytest.Item) -> str:
    """The engine of a test; "" if it takes none."""
    parameters = getattr(item, "callspec", None)
    return str(parameters.params.get("engine_name", "")) if parameters is not None else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Tests of float64, or of long loops, are skipped on devices that cannot run them."""
    try:
        with _machine_faults(item):
            yield
    except EngineError as error:
        if not item.get_closest_marker("engine") or error.problem not in LACKS:
            raise
        pytest.skip(error.problem)


@contextmanager
def _machine_faults(item: pytest.Item) -> Generator[None]:
    """On the machine that runs the cuda engine without a GPU, a test with faults fails."""
    double = machine_without_gpu() if _engine_of(item).startswith("cuda") else None
    recover = double.recover if double is not None else tuple
    try:
        yield
    except BaseException as error:
        for fault in recover():
            error.add_note(f"{type(fault).__name__}: {fault}")
        raise
    for fault in recover():
        raise fault


@pytest.fixture(autouse=True)
def costs_of_the_target(request, monkeypatch):
    """A test with a `target` of `conformance/targets.py` compiles with its costs."""
    callspec = getattr(request.node, "callspec", None)
    target = callspec.params.get("target") if callspec is not None else None
    if isinstance(target, Target) and target in TARGETS:
        use_costs_of(target, monkeypatch)


@pytest.fixture
def model():
    """A model of the small network."""
    return lm.Model(network())


@pytest.fixture
def path(tmp_path):
    """The path of a file that is not there yet."""
    return tmp_path / "file"


@pytest.fixture(scope="session")
def engine(engine_name):
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
    from lamina.engines.opencl.engine import open_device

    def family(driver: Driver) -> GpuFamily:
        return GpuFamily(driver.traits, driver.words, driver.record.engine)

    return GpuEngine("opencl", partial(open_device, name), family)


@pytest.fixture
def on_call(monkeypatch):
    """Calls a function before each call of a function or method, with the same arguments."""

    def add(owner, name, hook):
        function = getattr(owner, name)

        def call(*arguments, **named):
            hook(*arguments, **named)
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    return add


@pytest.fixture(autouse=True)
def no_earlier_ctrl_c(monkeypatch):
    """Within a second after it has ended the fit of another test, Ctrl-C would raise."""
    monkeypatch.setattr(Interrupt, "_last_said", -math.inf)


@pytest.fixture
def quick_verification(monkeypatch):
    """`verify` omits engines that take seconds to compile."""
    quick = [device for device in devices() if device.engine in ("cpu", "interpreter")]
    monkeypatch.setattr(verification, "devices", lambda: quick)


@pytest.fixture(scope="session")
def opencl_name():
    """The name of an OpenCL device that works; without one, tests that need it are skipped."""
    installed = [device for device in devices() if device.engine.startswith("opencl")]
    usable = [device.engine for device in installed if not device.problem]
    if not usable:
        pytest.skip("no OpenCL device, or no pyopencl: see lamina devices")
    return usable[0]


@pytest.fixture
def tensor_cores(monkeypatch):
    """The cpu engine says that it multiplies TF32, so operands of products are rounded."""
    device = Device("cpu", "a device with tensor cores", None, has_tf32=True)
    monkeypatch.setattr("lamina.engines.cpu.engine.CpuEngine.device", device)


@pytest.fixture(scope="session")
def torch():
    """PyTorch; without it, tests that take it are skipped."""
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="session")
def training_program():
    """Compiles the training step of a network, or of layers in a row."""

    def make(layers, loss, optimizer, batch=16, *, dtype=float32, **options):
        network = layers if isinstance(layers, lm.Network) else lm.Sequential(*layers)
        made = training_step(network, loss, optimizer, dtype=dtype, **options)
        return compile_graph(made.graph, batch=batch, name="training", target=DEFAULT_TARGET)

    return make
