"""Contractions through cuBLASLt in the CUDA engine, on doubles of the driver and the library."""

from dataclasses import replace
from itertools import product as combinations

import numpy as np
import pytest
from cublaslt_cases import RESULT, Product, Stored
from doubles import DoubledDevice, OutsideTheDouble

from lamina.base.shapes import bfloat16, float16, float32
from lamina.engines.gpu.plain_products import plain_product
from lamina.errors import EngineError
from lamina.program.index import axis_index
from lamina.program.scalar import Apply, Load


@pytest.fixture
def device():
    return DoubledDevice()


def computed(device, step, feeds, change=lambda product: product, runs=1, numbers=(None,)):
    """The result's buffer after some runs of captured launches of a product."""
    plain = plain_product(step)
    driver, product = device.driver, change(plain.product)
    algorithm, *_ = driver.library_algorithms(product)
    size = algorithm.workspace_bytes
    buffers = {"": None, "workspace": driver.allocate(size) if size else None}
    for name, values in feeds.items():
        buffers[name] = driver.allocate(values.nbytes)
        driver.queue.write(buffers[name], values)
    used = [buffers[name] for name in (*plain.buffers, "workspace")]
    with driver.errors("creating a program's kernels"):
        called = driver.product(product, algorithm, used)
        sequence = driver.sequence([(called, number) for number in numbers])
    for _ in range(runs):
        driver.queue.run(sequence)
    result = np.zeros_like(feeds["result"])
    driver.queue.read(result, buffers["result"])
    for buffer in buffers.values():
        if buffer is not None:
            driver.release(buffer)
    assert device.double.faults == []
    return result


def assert_computed(device, case, step, **more):
    feeds = case.feeds(**more)
    tolerance = 1e-5 if case.stored == float32 else 2.0**-7
    np.testing.assert_allclose(
        computed(device, step, feeds).astype(np.float64),
        case.expected(step, feeds).astype(np.float64),
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.mark.cases(
    ("left", "right", "result", "batch"), *combinations(("m", "k"), ("k", "n"), ("m", "n"), (1, 3))
)
@pytest.mark.parametrize("gap", [0, 3])
def test_matrices_are_read_and_written_along_any_axis(device, left, right, result, batch, gap):
    matrices = (Stored(unit, gap, gap) for unit in (left, right, result))
    case = Product(batch, 5, 7, 6, *matrices)
    assert_computed(device, case, case.step())


@pytest.mark.parametrize(
    ("factors", "stored"),
    [(bfloat16, bfloat16), (float16, float16), (bfloat16, float32), (float16, float32)],
    ids=str,
)
@pytest.mark.parametrize(("left", "right", "result"), [("k", "n", "n"), ("m", "k", "m")])
def test_floats_of_16_bits_are_added_up_in_float32(device, factors, stored, left, right, result):
    layouts = Stored(left), Stored(right, 1), Stored(result, 2, 1)
    case = Product(2, 9, 4, 33, *layouts, factors, stored)
    assert_computed(device, case, case.step())


@pytest.mark.parametrize(("m", "n", "k"), [*combinations((1, 2, 17), (1, 9), (1, 13))])
def test_sizes_may_be_odd_or_one(device, m, n, k):
    for left, right, result in (("k", "n", "n"), ("m", "k", "m")):
        case = Product(1, m, n, k, Stored(left), Stored(right), Stored(result))
        assert_computed(device, case, case.step())


@pytest.mark.parametrize(("result", "start"), [("n", 0), ("n", 3), ("m", 1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_bias_is_added(device, result, start, batch):
    case = Product(batch, 5, 7, 6, result=Stored(result))
    axis = case.axes[result]
    bias = Load("bias", axis_index(axis) + start, float32)
    step = case.step(Apply("add", (bias, RESULT), float32))
    assert_computed(device, case, step, bias=start + axis.extent)


@pytest.mark.parametrize("added", [Stored("n"), Stored("n", 2, 3)], ids=["same", "another"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_matrix_is_added(device, added, batch):
    case = Product(batch, 5, 7, 6)
    index = case.index(added, "m", "n")
    step = case.step(Apply("add", (RESULT, Load("other", index, float32)), float32))
    assert_computed(device, case, step, other=index.bounds[1] + 1)


@pytest.mark.parametrize("how", [{"runs": 2}, {"numbers": (0, 1)}], ids=["runs", "iterations"])
def test_sums_are_accumulated_in_place_at_each_launch(device, how):
    case = Product(2, 5, 7, 6, result=Stored("n", 1, 2))
    step, feeds = case.step(accumulate=True), case.feeds()
    once = case.expected(step, feeds)
    twice = case.expected(step, {**feeds, "result": once})
    sums = computed(device, step, feeds, **how)
    np.testing.assert_allclose(sums, twice, rtol=1e-5, atol=1e-5)


def test_parts_of_sums_are_never_rounded_to_16_bits(device):
    case = Product(1, 2, 3, 2, factors=float16, stored=float16)
    feeds = case.feeds()
    # The first product of each sum is too large for float16, the sum is not.
    feeds["left"][:4] = [2, -1, 2, -1]
    feeds["right"][:6] = 60000
    assert (computed(device, case.step(), feeds)[:6] == 60000).all()


SQUARE = Product(2, 6, 6, 6, Stored("k", 1, 2), Stored("n", 2, 2), Stored("n", 0, 2))
WRONG = {
    "leading of left": lambda one: replace(one, left=_moved(one.left, leading=1)),
    "leading of right": lambda one: replace(one, right=_moved(one.right, leading=1)),
    "leading of result": lambda one: replace(one, result=_moved(one.result, leading=1)),
    "left begins later": lambda one: replace(one, left=_moved(one.left, start=1)),
    "result begins later": lambda one: replace(one, result=_moved(one.result, start=1)),
    "batches of left": lambda one: replace(one, left=_moved(one.left, batch_stride=-1)),
    "batches of right": lambda one: replace(one, right=_moved(one.right, batch_stride=1)),
    "left transposed": lambda one: replace(one, left_transposed=not one.left_transposed),
    "right transposed": lambda one: replace(one, right_transposed=not one.right_transposed),
    "one product": lambda one: replace(one, batch=1),
    "added": lambda one: replace(one, added=None),
}


def _moved(matrix, **by):
    return replace(matrix, **{name: getattr(matrix, name) + step for name, step in by.items()})


@pytest.mark.parametrize("name", WRONG)
def test_wrong_descriptions_are_refused_or_have_wrong_results(device, name):
    step = SQUARE.step(accumulate=True)
    feeds = {key: np.pad(values, (0, 20)) for key, values in SQUARE.feeds().items()}
    right = computed(device, step, feeds)
    try:
        wrong = computed(device, step, feeds, WRONG[name])
    except OutsideTheDouble:
        return
    assert np.abs(right - wrong).max() > 0.01


@pytest.mark.parametrize("matrix", ["left", "right", "result"])
def test_columns_that_overlap_are_refused(device, matrix):
    step, feeds = SQUARE.step(), SQUARE.feeds()

    def change(one):
        return replace(one, **{matrix: replace(getattr(one, matrix), leading=5)})

    # The driver's errors are told as ours.
    text = r"CUBLAS_STATUS_INVALID_VALUE in cublasLtMatmulAlgoGetHeuristic"
    with pytest.raises(EngineError, match=text) as caught:
        computed(device, step, feeds, change)
    # All descriptors were destroyed, though the error still refers to the frames.
    assert caught.value.__cause__ is not None
    assert {line.split()[0] for line in device.library.alive()} == {"handle"}
