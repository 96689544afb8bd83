"""Schedules whose contractions cuBLASLt computes, in the CUDA engine on doubles."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from alternatives import legal_schedules
from cublaslt_cases import Product
from doubles import DoubledDevice
from error_texts import error_text
from gpu_cases import Case, compiled, timed_candidates

from lamina import ops
from lamina.engines.cuda import requirements
from lamina.engines.cuda.calls import CudaError, made_of
from lamina.engines.cuda.family import LEAST_K, LEAST_SIDE, is_large
from lamina.engines.engine import Candidate
from lamina.engines.gpu import tuning
from lamina.engines.gpu.family import compile_program, with_memories
from lamina.engines.gpu.plain_products import plain_product
from lamina.engines.gpu.schedule import LibrarySchedule
from lamina.errors import EngineError, InternalError

LAYER = Case("layer", ((6, 5), (5, 7), (7,)), lambda x, w, b: ops.matmul(x, w) + b)
RELU = Case("relu", ((6, 5), (5, 7), (7,)), lambda x, w, b: ops.relu(ops.matmul(x, w) + b))


ADDED = Case("added", ((3, 4), (4, 5), (3, 5)), lambda x, y, z: ops.matmul(x, y) + z)
SQUARE = Case("product", ((512, 512), (512, 512)), ops.matmul)
NAMED = "the library's product"


@pytest.fixture
def device():
    return DoubledDevice()


@pytest.fixture
def layer(device):
    """The program of a layer."""
    return compiled(LAYER, device.engine.target)


def by_library(device, program):
    """The last legal schedule: cuBLASLt computes all that it can."""
    *_, last = legal_schedules(device.family, program)
    return last


def run(device, case, schedule=None, feeds=None):
    program = compiled(case, device.engine.target)
    executable = device.engine.compile(program, {}, schedule=schedule)
    try:
        executable.run(list((feeds or case.feeds()).values()))
        return executable.output("y")
    finally:
        executable.release()


# An epilogue other than a bias has a kernel of its own, and its sums a workspace.
@pytest.mark.parametrize(
    ("case", "workspace", "text", "workspaces"),
    [
        (LAYER, 0, "0: the library's product 7 x 6 x 5 of float32, plus a bias", {}),
        (LAYER, 4096, "; a workspace of 4096 bytes", {"workspace 0 of 0.add": 4096}),
        (RELU, 0, "0: the library's product 7 x 6 x 5 of float32, then a point for each work ",
         {"workspace 0 of 0.relu": 168}),
        (RELU, 4096, "then a point for each work item; positions of 32 bits",
         {"workspace 0 of 0.relu": 168, "workspace 1 of 0.relu": 4096}),
    ],
)  # fmt: skip
def test_a_program_calls_the_library_and_gives_everything_back(
    device, case, workspace, text, workspaces
):
    device.library.workspace = workspace
    program = compiled(case, device.engine.target)
    schedule = by_library(device, program)
    assert text in str(schedule)
    launches = device.family.write(program, schedule)
    assert {name: buffer.bytes for name, buffer in launches.workspaces.items()} == workspaces
    ends = [buffer.offset + buffer.bytes for buffer in launches.workspaces.values()]
    assert launches.workspace_bytes == max(ends, default=0)
    product, *epilogue = launches.launches
    assert product.product is not None
    if workspace:
        assert product.buffers[-1] == [*workspaces][-1]
    if case is RELU:
        assert product.buffers[2] == "workspace 0 of 0.relu"
        assert "workspace 0 of 0.relu" in epilogue[0].buffers
    feeds = case.feeds()
    # NaN is kept.
    feeds["x2"][3] = np.nan
    expected = feeds["x0"] @ feeds["x1"] + feeds["x2"]
    expected = np.maximum(expected, 0) if case is RELU else expected
    result = run(device, case, schedule, feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert len({*device.library.problems}) == 1
    assert {line.split()[0] for line in device.library.alive()} == {"handle"}


@pytest.mark.parametrize(("capability", "most"), [((8, 9), 4 << 20), ((9, 0), 32 << 20)])
def test_the_workspace_is_at_most_the_recommended_one(capability, most):
    device = DoubledDevice(capability)
    plain = plain_product(Product().step())
    device.library.workspace = most
    first, second = device.driver.library_algorithms(plain.product)
    assert (first.number, second.number, first.workspace_bytes) == (0, 1, most)
    device.library.workspace = most + 1
    other = replace(plain.product, right=replace(plain.product.right, start=64))
    assert device.driver.library_algorithms(other)[0].workspace_bytes == 0


@pytest.mark.parametrize("failure", ["status", "empty", "state"])
def test_without_an_algorithm_our_kernels_run_a_step(device, layer, failure, monkeypatch):
    monkeypatch.setattr("lamina.engines.cuda.family.is_large", lambda step: True)
    assert NAMED in str(device.family.decide(layer))
    assert isinstance(device.family.candidates(layer)[0], LibrarySchedule)
    device.library.failure = failure
    device.driver._library()._algorithms.clear()
    assert NAMED not in str(device.family.decide(layer))
    assert LibrarySchedule not in map(type, device.family.candidates(layer))
    assert NAMED not in str(by_library(device, layer))
    assert NAMED not in device.engine.listing(layer, 0, "schedule")


def a_millisecond(schedule, repeat, runs):
    """Times a candidate."""
    repeat()
    return 1e-3


def test_a_candidate_that_the_library_refuses_is_not_chosen(device, layer):
    program = with_memories(layer)
    first, *_, library = device.family.candidates(program)
    assert isinstance(library, LibrarySchedule)
    family = SimpleNamespace(
        candidates=lambda program: [library, first],
        text_of_candidate=str,
        expected_seconds=device.family.expected_seconds,
        decide=device.family.decide,
        write=device.family.write,
    )
    device.library.failure = "call"
    candidates, complete = timed_candidates(program, family, device.driver, a_millisecond)
    assert complete
    assert candidates[0] == Candidate(
        str(library), None, "the CUDA driver failed at creating a program's kernels"
    )
    assert candidates[1].seconds == 1e-3


def test_candidates_are_built_by_threads_once_each_and_those_that_are_refused_dropped(
    device, on_call
):
    program = with_memories(compiled(RELU, device.engine.target))
    builders = []

    def building(text):
        builders.append(threading.get_ident())
        if len(builders) == 2:
            raise InternalError("NVRTC refuses a kernel")

    on_call(device.driver, "build", building)
    texts = [str(schedule) for schedule in device.family.candidates(program)]
    candidates, complete = timed_candidates(program, device.family, device.driver, a_millisecond)
    assert complete
    assert len(builders) == len(candidates) == len(texts) > 2
    assert threading.get_ident() not in builders
    assert [candidate.schedule for candidate in candidates] == texts
    problems = [candidate.problem for candidate in candidates if candidate.problem]
    assert problems == ["NVRTC refuses a kernel"]
    assert sum(candidate.seconds == 1e-3 for candidate in candidates) == len(texts) - 1


def test_candidates_of_the_next_steps_are_built_while_those_of_a_step_are_timed(
    device, monkeypatch, on_call, tmp_path
):
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "LEAST_SHARE", 0.0)
    monkeypatch.setattr(tuning, "LEAST_LAUNCHES", 0)
    case = Case(
        "twice", ((6, 5), (5, 7), (7, 3)), lambda x, w, v: ops.matmul(ops.relu(ops.matmul(x, w)), v)
    )
    program = compiled(case, device.engine.target)
    begun, timed = [], []
    on_call(tuning, "Trials", lambda *_: begun.append(len(timed)))

    def timer(schedule, repeat, runs):
        timed.append(runs)
        return 1e-3

    tuned = tuning.Tuner(lambda: device.driver, device.family, timer).tune(program)
    assert len(tuned) == 2
    # Both were begun before any was timed.
    assert begun == [0, 0]
    assert timed
    # A later process finds them, and begins none.
    assert tuning.Tuner(lambda: device.driver, device.family, timer).tune(program) == tuned
    assert begun == [0, 0]


def test_large_products_are_computed_by_the_library_by_default(device):
    def product(m, n, k):
        return compiled(Case("product", ((m, k), (k, n)), ops.matmul), device.engine.target)

    large, small = product(512, 512, 512), product(512, 512, 511)
    assert str(device.family.decide(large)) == f"0: {NAMED} 512 x 512 x 512 of float32"
    assert NAMED in device.engine.listing(large, None, "schedule")
    assert NAMED not in str(device.family.decide(small))
    assert isinstance(device.family.candidates(large)[0], LibrarySchedule)
    assert isinstance(device.family.candidates(small)[-1], LibrarySchedule)
    for m, n, k, less in ((LEAST_SIDE, 4096, 4096, 0), (4096, 4096, LEAST_K, 2)):
        least = [m, n, k]
        assert is_large(product(*least).steps[0])
        least[less] -= 1
        assert not is_large(product(*least).steps[0])


def test_convolutions_are_no_candidates_for_the_library(device):
    def conv(x, weight):
        return ops.conv(x, weight, strides=1, padding=1, dilations=1, groups=1)

    program = compiled(Case("conv", ((2, 3, 6, 6), (4, 3, 3, 3)), conv), device.engine.target)
    assert LibrarySchedule not in map(type, device.family.candidates(program))


def test_forced_schedules_replace_the_default(device):
    program = compiled(SQUARE, device.engine.target)
    second = device.family.candidates(program)[1]
    assert device.family.decide(program, {0: second}).steps == (second,)


def test_calls_of_the_library_are_listed(device):
    program = compiled(SQUARE, device.engine.target)
    line = "// step 0: the library's 512 x 512 x 512 of float32: x1, x0, contract"
    assert device.engine.listing(program, 0, "cuda") == line
    assert device.engine.listing(program, None, "cuda").splitlines()[0] == line


def test_calls_of_the_library_are_kept_in_the_cache(device):
    device.library.workspace = 256
    for case in (LAYER, RELU, ADDED):
        program = compiled(case, device.engine.target)
        schedule = by_library(device, program)
        assert NAMED in str(schedule)
        first = compile_program(program, device.family, schedule)
        assert compile_program(program, device.family, schedule) == first
        assert first == device.family.write(program, schedule)


def test_steps_with_calls_of_the_library_are_timed(device, layer):
    schedule = by_library(device, layer)
    executable = device.engine.compile(layer, {}, timed=True, schedule=schedule)
    executable.run(list(LAYER.feeds().values()))
    assert executable.step_seconds()[0] > 0
    executable.release()


def test_each_algorithm_is_a_candidate(device, layer):
    device.library.proposals = 20
    candidates = device.family.candidates(layer)
    library = [schedule for schedule in candidates if isinstance(schedule, LibrarySchedule)]
    assert [schedule.algorithm.number for schedule in library] == [*range(8)]
    text = f"{NAMED} 7 x 6 x 5 of float32, plus a bias"
    assert [*map(str, library)] == [text, *(f"{text}; its choice {n}" for n in range(2, 9))]
    schedules = [device.family.decide(layer, {0: schedule}) for schedule in library]
    assert [*legal_schedules(device.family, layer)][-2:] == [schedules[-1], schedules[0]]
    results = [run(device, LAYER, schedule) for schedule in schedules for _ in range(2)]
    assert len({result.tobytes() for result in results}) == 1
    assert {algorithm.place for algorithm in device.library.called} == {*range(8)}


def test_the_first_call_of_a_product_is_not_captured(device, monkeypatch):
    # Otherwise the library could not load its kernels.
    monkeypatch.setattr("lamina.engines.cuda.driver.library_call", lambda calls: nullcontext())
    device.library.workspace = 300
    for case in (LAYER, RELU, ADDED):
        feeds = case.feeds()
        schedule = by_library(device, compiled(case, device.engine.target))
        free = device.driver.available_bytes()
        results = [run(device, case, schedule, feeds) for _ in range(2)]
        np.testing.assert_array_equal(*results)
        assert device.driver.available_bytes() == free
    # The second program of a product needs no such call.
    assert len(device.library.problems) == 3 * 3


def refused(size):
    raise CudaError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")


@pytest.mark.parametrize("is_in_pieces", [False, True])
def test_without_memory_for_another_result_the_first_call_is_captured(
    device, layer, monkeypatch, is_in_pieces
):
    product = device.driver.product

    def made(*arguments):
        with monkeypatch.context() as patch:
            if is_in_pieces:
                patch.setattr(device.driver, "allocate", refused)
            else:
                patch.setattr(device.driver, "available_bytes", lambda: 6 * 7 * 4 - 1)
            return product(*arguments)

    monkeypatch.setattr(device.driver, "product", made)
    x, weight, bias = LAYER.feeds().values()
    result = run(device, LAYER, by_library(device, layer))
    np.testing.assert_allclose(result, x @ weight + bias, rtol=1e-5, atol=1e-6)
    assert len(device.library.problems) == 1


def missing(load):
    """A driver that loads cuBLASLt by this function."""
    device = DoubledDevice()
    device.driver._api = made_of(device.double.driver, device.double.nvrtc, load)
    return device.driver


def asked(driver):
    found = plain_product(Product().step())
    driver.library_algorithms(found.product)


@pytest.mark.parametrize("error", [OSError, RuntimeError, ImportError])
def test_a_missing_library_is_an_error_with_the_remedy(error, monkeypatch):
    def absent(name):
        raise error("libcublasLt.so.13: cannot open shared object file\nmore")

    monkeypatch.setattr(requirements.importlib, "import_module", absent)
    assert error_text(EngineError, lambda: asked(missing(requirements.cublaslt_library))) == (
        "in cuda: the cuda engine needs the package nvidia-cublas, for products of matrices\n"
        "  expected  nvidia-cublas 13.0 or later\n"
        "  found     libcublasLt.so.13: cannot open shared object file\n"
        "  Install the packages with: pip install 'lamina[cuda]'."
    )


def test_a_handle_of_the_library_is_made_only_when_it_is_needed(device, layer):
    run(device, Case("sum", ((6, 5),), lambda x: ops.sum(x, 0)))
    device.family.decide(layer)
    assert device.library.alive() == []
    device.family.candidates(layer)
    assert len(device.library.alive()) == 1
