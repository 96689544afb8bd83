"""The double of cuBLASLt refuses what the library's documentation forbids or leaves open."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cublaslt_cases import DoubledDevice, RawProduct
from nvmath.bindings import cublasLt

from cuda_machine.driver_state import OutsideTheDouble

Change = Callable[[RawProduct], object]


@pytest.fixture(scope="module")
def device() -> DoubledDevice:
    return DoubledDevice()


@pytest.fixture
def one(device: DoubledDevice) -> RawProduct:
    device.library.failure, device.library.workspace = "", 0
    return RawProduct(device)


def operation(name: str, value: int, dtype: Any = None) -> Change:
    return lambda one: one.set(
        *("operation", one.operation, getattr(one.library.MatmulDescAttribute, name), value, dtype)
    )


def layout(matrix: str, name: str, value: int, dtype: Any = None) -> Change:
    return lambda one: one.set(
        *("layout", one.layouts[matrix], getattr(one.library.MatrixLayoutAttribute, name)),
        *(value, dtype),
    )


def preference(name: str, value: int, dtype: Any = None) -> Change:
    return lambda one: one.set(
        *("preference", one.preference, getattr(one.library.MatmulPreferenceAttribute, name)),
        *(value, dtype),
    )


def refused(change: Callable[[], object], text: str) -> None:
    """A call is refused, with a status of cuBLASLt or as outside of the double."""
    with pytest.raises(Exception, match=text) as caught:
        change()
    assert type(caught.value).__name__ in ("CublasLtError", "OutsideTheDouble")


# What is refused when an attribute is set.
ATTRIBUTES: list[tuple[Change, str]] = [
    (operation("TRANSA", 1, np.int64), "INVALID_VALUE: the attribute has 4 bytes"),
    (operation("EPILOGUE", 4, np.uint64), "INVALID_VALUE: the attribute has 4 bytes"),
    (operation("BIAS_POINTER", 256, np.uint32), "INVALID_VALUE: the attribute has 8 bytes"),
    (layout("a", "BATCH_COUNT", 2, np.int64), "INVALID_VALUE: the attribute has 4 bytes"),
    (layout("a", "STRIDED_BATCH_OFFSET", 2, np.int32), "INVALID_VALUE: the attribute has 8 bytes"),
    (preference("MAX_WORKSPACE_BYTES", 1, np.uint32), "INVALID_VALUE: the attribute has 8 bytes"),
    (preference("MIN_ALIGNMENT_A_BYTES", 16, np.uint64), "INVALID_VALUE: the attribute has 4"),
    (preference("MIN_ALIGNMENT_B_BYTES", 12), "INVALID_VALUE: an alignment of 12 bytes"),
    (layout("a", "BATCH_COUNT", 0), "INVALID_VALUE: a batch of 0"),
    (operation("TRANSB", 2), "operation 2 on a matrix"),
    (operation("EPILOGUE", 2), "epilogue 2"),
    (operation("FILL_MODE", 0), "attribute 6 of the operation"),
]


@pytest.mark.parametrize(("change", "text"), ATTRIBUTES, ids=[text for _, text in ATTRIBUTES])
def test_attributes_have_their_sizes_and_values(one: RawProduct, change: Change, text: str) -> None:
    refused(lambda: change(one), text)


def test_an_attribute_is_read_from_memory(one: RawProduct) -> None:
    set_attribute = one.library.matmul_desc_set_attribute
    refused(lambda: set_attribute(one.operation, 3, 0, 4), "INVALID_VALUE: the attribute has no")


def test_the_double_computes_in_float32_alone(one: RawProduct) -> None:
    tf32 = 77
    refused(lambda: one.library.matmul_desc_create(tf32, 0), "compute type 77 with scale type 0")
    refused(lambda: one.library.matmul_desc_create(68, 1), "compute type 68 with scale type 1")
    refused(lambda: one.library.matrix_layout_create(1, 4, 4, 4), "matrices of the type 1")


# Sizes of a product that no heuristic takes.
SIZES: list[tuple[dict[str, tuple[int, int, int, int]], str]] = [
    ({"a": (0, 4, 2, 3)}, "INVALID_VALUE: A has 4 rows, but 3 in a column"),
    ({"b": (0, 2, 3, 1)}, "INVALID_VALUE: B has 2 rows, but 1 in a column"),
    ({"d": (0, 4, 3, 3)}, "INVALID_VALUE: D has 4 rows, but 3 in a column"),
    ({"c": (0, 4, 3, 2)}, "INVALID_VALUE: C has 4 rows, but 2 in a column"),
    ({"a": (0, 0, 2, 4)}, "A without elements"),
    ({"a": (0, 4, 5, 4)}, "INVALID_VALUE: 4 x 5 times 2 x 3 is no 4 x 3"),
    ({"b": (0, 2, 5, 2)}, "INVALID_VALUE: 4 x 2 times 2 x 5 is no 4 x 3"),
    ({"c": (0, 3, 4, 4)}, "INVALID_VALUE: C is 3 x 4"),
    ({"b": (14, 2, 3, 2)}, "NOT_SUPPORTED: types 0, 14, 0, 0"),
    ({"c": (2, 4, 3, 4), "d": (2, 4, 3, 4)}, "NOT_SUPPORTED: types 0, 0, 2, 2"),
    (
        {"a": (2, 4, 2, 4), "b": (2, 2, 3, 2), "d": (14, 4, 3, 4)},
        "NOT_SUPPORTED: types 2, 2, 0, 14",
    ),
]


@pytest.mark.parametrize(("sizes", "text"), SIZES, ids=[text for _, text in SIZES])
def test_matrices_fit_each_other(
    device: DoubledDevice, sizes: dict[str, tuple[int, int, int, int]], text: str
) -> None:
    valid = RawProduct(device).sizes
    refused(RawProduct(device, valid | sizes).find, text)


def test_the_transpose_of_a_factor_has_other_sizes(one: RawProduct) -> None:
    operation("TRANSA", 1)(one)
    refused(one.find, "INVALID_VALUE: 2 x 4 times 2 x 3 is no 4 x 3")


BATCHES: list[tuple[dict[str, int], str]] = [
    ({"a": 8, "b": 6}, "INVALID_VALUE: batches of different lengths"),
    ({"a": 0, "b": 6, "d": 12}, "the matrices A of a batch are 0 elements apart"),
    ({"a": 8, "b": 6, "d": 11}, "results of a batch that overlap"),
]


@pytest.mark.parametrize(("strides", "text"), BATCHES, ids=[text for _, text in BATCHES])
def test_batches_have_one_length_and_results_of_their_own(
    one: RawProduct, strides: dict[str, int], text: str
) -> None:
    one.batch(2, **strides)
    refused(one.find, text)


def test_a_bias_has_an_address_and_the_type_of_the_result(one: RawProduct) -> None:
    operation("EPILOGUE", 4)(one)
    refused(one.find, "INVALID_VALUE: a bias without an address")
    operation("BIAS_POINTER", one.allocated(64))(one)
    one.find()
    operation("BIAS_DATA_TYPE", 14)(one)
    refused(one.find, "NOT_SUPPORTED: a bias of another type than D")
    operation("BIAS_DATA_TYPE", 0)(one)
    operation("BIAS_BATCH_STRIDE", 4)(one)
    refused(one.find, "a bias for each product of a batch")


def test_a_heuristic_needs_room_for_results(one: RawProduct) -> None:
    refused(lambda: one.find(requested=0), "INVALID_VALUE: no room for results")
    refused(lambda: one.find(results=0), "INVALID_VALUE: no room for results")


def test_descriptors_exist_and_are_of_their_kind(one: RawProduct) -> None:
    one.layouts["a"] = one.operation
    refused(one.find, "is no layout that exists")
    one.layouts["a"] = 0
    refused(one.find, "INVALID_VALUE: no layout")
    one.library.matmul_preference_destroy(one.preference)
    refused(lambda: one.library.matmul_preference_destroy(one.preference), "is no preference that")


def test_handles_exist_and_belong_to_the_current_context(one: RawProduct) -> None:
    one.driver.cuCtxPopCurrent()
    refused(one.library.create, "NOT_INITIALIZED: no context is current")
    refused(one.find, "a handle of another context than the current one")
    one.driver.cuCtxPushCurrent(one.context)
    one.library.destroy(one.handle)
    refused(one.find, "NOT_INITIALIZED: no such handle")


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "alpha", "beta"])
def test_no_pointer_is_null(one: RawProduct, name: str) -> None:
    one.find()
    refused(lambda: one.multiply(**{name: 0}), "INVALID_VALUE: a null pointer")


def test_results_are_not_scaled(one: RawProduct) -> None:
    one.find()
    one.alpha[:] = 2
    refused(one.multiply, "alpha 2.0 and beta 0.0")


def test_in_place_the_layouts_are_the_same(one: RawProduct) -> None:
    one.layouts["c"] = one.library.matrix_layout_create(0, 4, 3, 4)
    one.find()
    refused(one.multiply, "INVALID_VALUE: C is D, but their layouts are not the same")


def test_an_algorithm_was_found_for_the_product(one: RawProduct, device: DoubledDevice) -> None:
    refused(lambda: one.multiply(algorithm=0), "a product without an algorithm")
    unknown = np.full(10, 5, np.uint64)
    refused(lambda: one.multiply(algorithm=unknown.ctypes.data), "that no heuristic has found")
    other = RawProduct(device, one.sizes | {"a": (0, 4, 2, 5)})
    other.find()
    refused(lambda: one.multiply(algorithm=other.result.ptr), "was found for another product")


@pytest.mark.parametrize("name", ["a", "b", "d"])
def test_matrices_are_aligned_as_promised(one: RawProduct, name: str) -> None:
    for matrix in "ABCD":
        preference(f"MIN_ALIGNMENT_{matrix}_BYTES", 16)(one)
    one.find()
    one.pointers[name] += 16
    one.pointers["c"] = one.pointers["d"]
    one.multiply()
    one.pointers[name] += 8
    one.pointers["c"] = one.pointers["d"]
    refused(one.multiply, "is not aligned to 16 bytes, as was promised")


def test_matrices_are_aligned_to_their_elements(one: RawProduct) -> None:
    for matrix in "ABCD":
        preference(f"MIN_ALIGNMENT_{matrix}_BYTES", 1)(one)
    one.find()
    one.pointers["b"] += 2
    refused(one.multiply, "B is not aligned to its elements")


def test_the_bias_is_aligned_as_the_heuristic_saw_it(one: RawProduct) -> None:
    bias = one.allocated(256)
    operation("EPILOGUE", 4)(one)
    operation("BIAS_POINTER", bias)(one)
    one.find()
    operation("BIAS_POINTER", bias + 4)(one)
    refused(one.multiply, "the bias is not aligned as the heuristic saw it")


def test_the_workspace_is_large_enough_and_aligned(one: RawProduct) -> None:
    one.library.workspace = 512
    preference("MAX_WORKSPACE_BYTES", 512)(one)
    one.find()
    assert one.result.workspace_size == 512
    refused(one.multiply, "INVALID_VALUE: a workspace of 0 bytes")
    one.workspace, one.workspace_bytes = one.allocated(1024), 511
    refused(one.multiply, "INVALID_VALUE: a workspace of 511 bytes")
    one.workspace_bytes = 512
    refused(lambda: one.multiply(workspace=one.workspace + 16), "not aligned to 256 bytes")
    refused(lambda: one.multiply(workspace=0), "INVALID_VALUE: a workspace of 512 bytes")
    one.multiply()


def test_algorithms_without_a_workspace_are_found_where_none_is_allowed(one: RawProduct) -> None:
    one.library.workspace = 512
    preference("MAX_WORKSPACE_BYTES", 511)(one)
    one.find()
    assert one.result.workspace_size == 0
    one.multiply()


def test_memory_overlaps_nowhere(one: RawProduct) -> None:
    one.library.workspace = 512
    preference("MAX_WORKSPACE_BYTES", 512)(one)
    one.find()
    one.workspace, one.workspace_bytes = one.pointers["a"], 512
    refused(one.multiply, "the workspace overlaps A")
    one.workspace = one.pointers["d"]
    refused(one.multiply, "the workspace overlaps D")
    one.workspace = one.allocated(512)
    refused(lambda: one.multiply(c=one.pointers["a"], d=one.pointers["a"]), "D overlaps A")
    one.beta[:] = 1
    other = one.pointers["d"] + 0
    one.pointers["d"] = one.allocated(1024)
    one.multiply(c=other)
    for matrix in "CD":
        preference(f"MIN_ALIGNMENT_{matrix}_BYTES", 4)(one)
    one.find()
    refused(lambda: one.multiply(c=one.pointers["d"] + 4), "D overlaps C, but is not C")


def test_products_run_in_a_stream_of_the_context(one: RawProduct) -> None:
    one.find()
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_HANDLE"):
        one.multiply(stream=12345)


def test_accesses_outside_of_memory_are_faults() -> None:
    one = RawProduct(DoubledDevice())
    one.find()
    one.multiply(a=one.allocated(16))
    one.driver.cuStreamSynchronize(one.stream)
    (fault,) = one.device.double.faults
    assert "cublasLtMatmul accesses 32 bytes" in str(fault)


def test_what_is_not_destroyed_is_alive() -> None:
    one = RawProduct(DoubledDevice())
    kinds = sorted(line.split()[0] for line in one.library.alive())
    assert kinds == ["handle", "layout", "layout", "layout", "operation", "preference"]
    for layout in {*one.layouts.values()}:
        one.library.matrix_layout_destroy(layout)
    one.library.matmul_desc_destroy(one.operation)
    one.library.matmul_preference_destroy(one.preference)
    one.library.destroy(one.handle)
    assert one.library.alive() == []


def test_functions_have_the_parameters_of_the_module(one: RawProduct) -> None:
    own = [name for name in dir(type(one.library)) if not name.startswith("_")]
    names = [name for name in own if name.islower() and hasattr(cublasLt, name)]
    assert {"matmul", "matmul_algo_get_heuristic", "matrix_layout_set_attribute"} <= {*names}
    for name in names:
        # The first line of a docstring is "matmul_desc_create(int compute_type, ...) -> intptr_t".
        declared = re.match(r"\w+\((.*?)\)", getattr(cublasLt, name).__doc__)
        assert declared is not None
        expected = [one.split()[-1] for one in declared[1].split(", ") if one]
        found = [*inspect.signature(getattr(one.library, name)).parameters]
        assert found == expected, name


def test_functions_that_are_not_doubled_are_missing(one: RawProduct) -> None:
    with pytest.raises(AttributeError, match="has no matrix_transform"):
        one.library.matrix_transform()


# Results

A = np.arange(8, dtype=np.float32).reshape(4, 2) - 3
B = np.arange(6, dtype=np.float32).reshape(2, 3) * 0.5


def test_a_product_is_computed_in_column_major_order(one: RawProduct) -> None:
    one.write(one.pointers["a"], A)
    one.write(one.pointers["b"], B)
    one.find()
    one.multiply()
    np.testing.assert_array_equal(one.read(one.pointers["d"], (4, 3)), A @ B)


def test_without_beta_the_old_result_is_not_read(one: RawProduct) -> None:
    one.write(one.pointers["a"], A)
    one.write(one.pointers["b"], B)
    one.write(one.pointers["d"], np.full((4, 3), np.nan, np.float32))
    one.find()
    one.multiply()
    np.testing.assert_array_equal(one.read(one.pointers["d"], (4, 3)), A @ B)


def test_with_beta_the_product_is_added_in_place(one: RawProduct) -> None:
    one.write(one.pointers["a"], A)
    one.write(one.pointers["b"], B)
    one.write(one.pointers["d"], np.full((4, 3), 100, np.float32))
    one.find()
    one.beta[:] = 1
    one.multiply()
    # Scalars are read in the call.
    one.beta[:] = 0
    np.testing.assert_array_equal(one.read(one.pointers["d"], (4, 3)), A @ B + 100)


def test_a_bias_is_added_to_each_column(one: RawProduct) -> None:
    bias = np.float32([1, 20, 300, 4000])
    address = one.allocated(64)
    one.write(address, bias)
    one.write(one.pointers["a"], A)
    one.write(one.pointers["b"], B)
    operation("EPILOGUE", 4)(one)
    operation("BIAS_POINTER", address)(one)
    one.find()
    one.multiply()
    expected = A @ B + bias[:, None]
    np.testing.assert_array_equal(one.read(one.pointers["d"], (4, 3)), expected)


def test_parts_of_sums_are_rounded_if_that_is_allowed(device: DoubledDevice) -> None:
    float16 = 2
    sizes = {name: (float16, *size[1:]) for name, size in RawProduct(device).sizes.items()}
    one = RawProduct(device, sizes)
    # The first product of a sum is too large for float16, the sum is not.
    one.write(one.pointers["a"], np.tile(np.float16([2, -1]), (4, 1)))
    one.write(one.pointers["b"], np.full((2, 3), 60000, np.float16))
    sums: list[float] = []
    for schemes in (7, 2):
        preference("REDUCTION_SCHEME_MASK", schemes)(one)
        one.find()
        one.multiply()
        sums.append(float(one.read(one.pointers["d"], (4, 3), np.float16)[0, 0]))
    assert sums == [np.inf, 60000]


def test_a_captured_product_is_computed_at_each_launch(one: RawProduct) -> None:
    one.find()
    driver = one.driver
    modes = driver.CUstreamCaptureMode
    driver.cuStreamBeginCapture(one.stream, modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    # The library may load its kernels, which the capture prohibits otherwise.
    before = driver.cuThreadExchangeStreamCaptureMode(modes.CU_STREAM_CAPTURE_MODE_RELAXED)[1]
    one.multiply()
    driver.cuThreadExchangeStreamCaptureMode(before)
    graph = driver.cuGraphInstantiate(driver.cuStreamEndCapture(one.stream)[1], 0)[1]
    for factor in (1, 2):
        one.write(one.pointers["a"], factor * A)
        one.write(one.pointers["b"], B)
        driver.cuGraphLaunch(graph, one.stream)
        found = one.read(one.pointers["d"], (4, 3))
        np.testing.assert_array_equal(found, factor * A @ B)


def test_the_workspace_has_no_meaning_after_a_product(one: RawProduct) -> None:
    one.library.workspace = 256
    preference("MAX_WORKSPACE_BYTES", 256)(one)
    one.workspace, one.workspace_bytes = one.allocated(256), 256
    one.write(one.workspace, np.zeros((8, 8), np.float32))
    one.find()
    one.multiply()
    assert one.read(one.workspace, (8, 8)).all()


@pytest.mark.parametrize(
    ("failure", "count", "state"), [("empty", 0, None), ("state", 1, 15), ("", 1, 0)]
)
def test_heuristics_fail_as_a_test_asks(
    one: RawProduct, failure: Any, count: int, state: int | None
) -> None:
    one.library.failure = failure
    one.find()
    assert one.count[0] == count
    assert state is None or one.result.state == state


def test_a_heuristic_fails_with_a_status(one: RawProduct) -> None:
    one.library.failure = "status"
    refused(one.find, "NOT_SUPPORTED: no heuristic")


def test_refusals_that_the_documentation_leaves_open_are_none_of_cublaslt() -> None:
    assert not issubclass(OutsideTheDouble, DoubledDevice().library.cuBLASLtError)
