"""The double of cuBLASLt refuses what the library's documentation forbids or leaves open.

`test_cuda_products.py` shows that right calls have right results.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from cuda_machine.cublaslt_descriptors import ATTRIBUTES, Description, Layout, Preference
from cuda_machine.cublaslt_double import HEURISTIC_RESULT
from cuda_machine.engine import DoubledDevice
from lamina.base.shapes import Array
from lamina.engines.cuda.cublaslt_functions import FUNCTIONS

# The attributes of each kind of descriptor, and the function that sets them.
SET = {
    "operation": (Description, "cublasLtMatmulDescSetAttribute"),
    "preference": (Preference, "cublasLtMatmulPreferenceSetAttribute"),
    "layout": (Layout, "cublasLtMatrixLayoutSetAttribute"),
}
Size = tuple[int, int, int, int]


class RawProduct:
    """Calls of the double for a valid product, of which a test changes one argument.

    Its methods return it. `sizes` are the type, the rows, the columns and the leading dimension of
    each matrix.
    """

    def __init__(self, device: DoubledDevice, **changed: Size) -> None:
        self.device, self.library, self.driver = device, device.library, device.double.driver
        sizes = {"a": (0, 4, 2, 4), "b": (0, 2, 3, 2), "c": (0, 4, 3, 4), "d": (0, 4, 3, 4)}
        self.sizes: dict[str, Size] = sizes | changed
        self.context = self.driver.cuDevicePrimaryCtxRetain(0)[1]
        if int(self.driver.cuCtxGetCurrent()[1]):
            self.driver.cuCtxPopCurrent()
        self.driver.cuCtxPushCurrent(self.context)
        library = self.library
        library.failure, library.workspace = "", 0
        self.handle = self.created("cublasLtCreate")
        self.descriptors = {
            "operation": self.operation(68, 0),
            "preference": self.created("cublasLtMatmulPreferenceCreate"),
        }
        for name, size in self.sizes.items():
            if name != "c":
                self.descriptors[name] = self.layout(size)
        self.descriptors["c"] = self.descriptors["d"]
        if self.sizes["c"] != self.sizes["d"]:
            self.descriptors["c"] = self.layout(self.sizes["c"])
        self.pointers = {name: self.allocated(1024) for name in "abd"}
        self.pointers["c"] = self.pointers["d"]
        self.alpha, self.beta = np.ones(1, np.float32), np.zeros(1, np.float32)
        self.result, self.count = np.zeros(1, HEURISTIC_RESULT), np.zeros(1, np.int32)
        self.stream = int(self.driver.cuStreamCreate(1)[1])

    def created(self, function: str, *arguments: int) -> int:
        """What a function writes to its first argument."""
        handle = np.zeros(1, np.uint64)
        getattr(self.library, function)(handle.ctypes.data, *arguments)
        return int(handle[0])

    def operation(self, compute_type: int, scale_type: int) -> int:
        return self.created("cublasLtMatmulDescCreate", compute_type, scale_type)

    def layout(self, size: Size) -> int:
        return self.created("cublasLtMatrixLayoutCreate", *size)

    def allocated(self, size: int) -> int:
        return int(self.driver.cuMemAlloc(size)[1])

    def set(self, of: str, name: str, value: int, dtype: Any = None) -> RawProduct:
        """Sets an attribute of the operation, the preference, or the layout of a matrix."""
        kind = of if of in SET else "layout"
        numbers, function = SET[kind]
        number = numbers[name]
        right, _ = ATTRIBUTES[kind].get(number, (np.int32, 0))
        buffer = np.array([value], right if dtype is None else dtype)
        given = self.descriptors[of], int(number), buffer.ctypes.data, buffer.nbytes
        getattr(self.library, function)(*given)
        return self

    def align(self, size: int) -> RawProduct:
        """Promises an alignment of all matrices."""
        for matrix in "ABCD":
            self.set("preference", f"MIN_ALIGNMENT_{matrix}_BYTES", size)
        return self

    def batch(self, **strides: int) -> RawProduct:
        """Makes matrices batches of two."""
        for name, stride in strides.items():
            self.set(name, "BATCH_COUNT", 2).set(name, "STRIDED_BATCH_OFFSET", stride)
        return self

    def with_bias(self, address: int) -> RawProduct:
        return self.set("operation", "EPILOGUE", 4).set("operation", "BIAS_POINTER", address)

    def with_workspace(self, most: int = 512) -> RawProduct:
        """Has an algorithm that takes a workspace of 512 bytes."""
        self.library.workspace = 512
        return self.set("preference", "MAX_WORKSPACE_BYTES", most).find()

    def find(self, requested: int = 1, results: int | None = None) -> RawProduct:
        """Asks for an algorithm."""
        names = ("operation", *"abcd", "preference")
        self.library.cublasLtMatmulAlgoGetHeuristic(
            *(self.handle, *(self.descriptors[name] for name in names), requested),
            *(self.result.ctypes.data if results is None else results, self.count.ctypes.data),
        )
        return self

    def multiply(self, **changed: int) -> RawProduct:
        """Calls the product, with some arguments changed."""
        arguments = {"handle": self.handle, "operation": self.descriptors["operation"]}
        arguments["alpha"] = self.alpha.ctypes.data
        for name in "abcd":
            if name == "c":
                arguments["beta"] = self.beta.ctypes.data
            arguments |= {name: self.pointers[name], f"{name} layout": self.descriptors[name]}
        arguments |= {"algorithm": self.result.ctypes.data, "workspace": 0, "bytes": 0}
        self.library.cublasLtMatmul(*(arguments | {"stream": self.stream} | changed).values())
        return self

    def multiply_moved(self, name: str, by: int) -> RawProduct:
        """Calls the product with a matrix that begins later; C stays D."""
        self.pointers[name] += by
        self.pointers["c"] = self.pointers["d"]
        return self.multiply()

    def scaled(self, alpha: float, beta: float) -> RawProduct:
        self.alpha[:], self.beta[:] = alpha, beta
        return self

    def without(self, name: str) -> RawProduct:
        """Destroys something."""
        if name == "context":
            self.driver.cuCtxPopCurrent()
        else:
            self.library.cublasLtMatmulPreferenceDestroy(self.descriptors["preference"])
        return self

    def of_handle(self, handle: int) -> RawProduct:
        """Has another handle."""
        self.handle = handle
        return self

    def described(self, name: str, descriptor: int) -> RawProduct:
        """Has another descriptor for something."""
        self.descriptors[name] = descriptor
        return self

    def computed(self, a: Array, b: Array, old: float, beta: float, schemes: int = 0) -> Array:
        """The result of these matrices, as float32."""
        self.scaled(1, beta).set("preference", "REDUCTION_SCHEME_MASK", schemes).find()
        matrices = {"a": a, "b": b, "d": np.full((4, 3), old, a.dtype)}
        for name, values in matrices.items():
            flat = np.ascontiguousarray(values.ravel(order="F"))
            where = self.pointers[name], flat.ctypes.data, flat.nbytes, self.stream
            self.driver.cuMemcpyHtoDAsync(*where)
        self.multiply().scaled(1, 0)
        found = np.zeros(12, a.dtype)
        where = found.ctypes.data, self.pointers["d"], found.nbytes, self.stream
        self.driver.cuMemcpyDtoHAsync(*where)
        return found.reshape((4, 3), order="F").astype(np.float32)


@pytest.fixture(scope="module")
def device() -> DoubledDevice:
    return DoubledDevice()


@pytest.fixture
def one(device: DoubledDevice) -> RawProduct:
    return RawProduct(device)


# No number of an algorithm.
UNKNOWN = np.full(8, 5, np.uint64)
INVALID, SUPPORTED = "INVALID_VALUE: ", "NOT_SUPPORTED: "
ATTRIBUTE = "INVALID_VALUE: the attribute has "
REFUSED: list[tuple[str, Callable[[RawProduct], object]]] = [
    (f"{ATTRIBUTE}4 bytes", lambda one: one.set("operation", "TRANSA", 1, np.int64)),
    (f"{ATTRIBUTE}4 bytes", lambda one: one.set("operation", "EPILOGUE", 4, np.uint64)),
    (f"{ATTRIBUTE}8 bytes", lambda one: one.set("operation", "BIAS_POINTER", 256, np.uint32)),
    (f"{ATTRIBUTE}4 bytes", lambda one: one.set("a", "BATCH_COUNT", 2, np.int64)),
    (f"{ATTRIBUTE}8 bytes", lambda one: one.set("a", "STRIDED_BATCH_OFFSET", 2, np.int32)),
    (f"{ATTRIBUTE}8", lambda one: one.set("preference", "MAX_WORKSPACE_BYTES", 1, np.uint32)),
    (f"{ATTRIBUTE}4", lambda one: one.set("preference", "MIN_ALIGNMENT_A_BYTES", 16, np.uint64)),
    (f"{ATTRIBUTE}no", lambda one: one.library.cublasLtMatmulDescSetAttribute(
        one.descriptors["operation"], 3, 0, 4)),
    (f"{INVALID}an alignment of 12 bytes",
     lambda one: one.set("preference", "MIN_ALIGNMENT_B_BYTES", 12)),
    (f"{INVALID}a batch of 0", lambda one: one.set("a", "BATCH_COUNT", 0)),
    ("operation 2 on a matrix", lambda one: one.set("operation", "TRANSB", 2)),
    ("epilogue 2", lambda one: one.set("operation", "EPILOGUE", 2)),
    ("attribute 6 of the operation", lambda one: one.set("operation", "FILL_MODE", 0)),
    ("compute type 74 with scale type 0", lambda one: one.operation(74, 0)),
    ("compute type 68 with scale type 1", lambda one: one.operation(68, 1)),
    ("matrices of the type 1", lambda one: one.layout((1, 4, 4, 4))),
    # Sizes and types
    *((text, lambda one, sizes=sizes: RawProduct(one.device, **sizes).find()) for text, sizes in (
        (f"{INVALID}A has 4 rows, but 3 in a column", {"a": (0, 4, 2, 3)}),
        (f"{INVALID}B has 2 rows, but 1 in a column", {"b": (0, 2, 3, 1)}),
        (f"{INVALID}C has 4 rows, but 2 in a column", {"c": (0, 4, 3, 2)}),
        (f"{INVALID}D has 4 rows, but 3 in a column", {"d": (0, 4, 3, 3)}),
        ("A without elements", {"a": (0, 0, 2, 4)}),
        (f"{INVALID}4 x 5 times 2 x 3 is no 4 x 3", {"a": (0, 4, 5, 4)}),
        (f"{INVALID}4 x 2 times 2 x 5 is no 4 x 3", {"b": (0, 2, 5, 2)}),
        (f"{INVALID}C is 3 x 4", {"c": (0, 3, 4, 4)}),
        (f"{SUPPORTED}types 0, 14, 0, 0", {"b": (14, 2, 3, 2)}),
        (f"{SUPPORTED}types 0, 0, 2, 2", {"c": (2, 4, 3, 4), "d": (2, 4, 3, 4)}),
        (f"{SUPPORTED}types 2, 2, 0, 14",
         {"a": (2, 4, 2, 4), "b": (2, 2, 3, 2), "d": (14, 4, 3, 4)}),
    )),
    (f"{INVALID}2 x 4 times 2 x 3 is no 4 x 3",
     lambda one: one.set("operation", "TRANSA", 1).find()),
    (f"{INVALID}batches of different lengths", lambda one: one.batch(a=8, b=6).find()),
    ("the matrices A of a batch are 0 elements apart",
     lambda one: one.batch(a=0, b=6, d=12).find()),
    ("results of a batch that overlap", lambda one: one.batch(a=8, b=6, d=11).find()),
    # A bias
    (f"{INVALID}a bias without an address",
     lambda one: one.set("operation", "EPILOGUE", 4).find()),
    (f"{SUPPORTED}a bias of another type than D",
     lambda one: one.with_bias(256).set("operation", "BIAS_DATA_TYPE", 14).find()),
    ("a bias for each product of a batch",
     lambda one: one.with_bias(256).set("operation", "BIAS_BATCH_STRIDE", 4).find()),
    ("the bias is not aligned as the heuristic saw it",
     lambda one: one.with_bias(256).find().with_bias(260).multiply()),
    # What does not exist
    (f"{INVALID}no room for results", lambda one: one.find(requested=0)),
    (f"{INVALID}no room for results", lambda one: one.find(results=0)),
    ("is no layout that exists",
     lambda one: one.described("a", one.descriptors["operation"]).find()),
    (f"{INVALID}no layout", lambda one: one.described("a", 0).find()),
    ("is no preference that", lambda one: one.without("preference").without("preference")),
    ("NOT_INITIALIZED: no context is current",
     lambda one: one.without("context").created("cublasLtCreate")),
    ("a handle of another context", lambda one: one.without("context").find()),
    ("NOT_INITIALIZED: no such handle", lambda one: one.of_handle(1).find()),
    *((f"{INVALID}a null pointer", lambda one, name=name: one.find().multiply(**{name: 0}))
      for name in ("a", "b", "c", "d", "alpha", "beta")),
    ("alpha 2.0 and beta 0.0", lambda one: one.find().scaled(2, 0).multiply()),
    (f"{INVALID}C is D, but their layouts are not the same", lambda one: one.described(
        "c", one.layout((0, 4, 3, 4))).find().multiply()),
    ("CUDA_ERROR_INVALID_HANDLE", lambda one: one.find().multiply(stream=12345)),
    # Algorithms, alignments, memory
    ("a product without an algorithm", lambda one: one.multiply(algorithm=0)),
    ("that no heuristic has found", lambda one: one.multiply(algorithm=UNKNOWN.ctypes.data)),
    ("was found for another product", lambda one: one.multiply(
        algorithm=RawProduct(one.device, a=(0, 4, 2, 5)).find().result.ctypes.data)),
    *(("is not aligned to 16 bytes, as was promised",
       lambda one, name=name: one.align(16).find().multiply_moved(name, 16).multiply_moved(name, 8))
      for name in "abd"),
    ("B is not aligned to its elements", lambda one: one.align(1).find().multiply_moved("b", 2)),
    (f"{INVALID}a workspace of 0 bytes", lambda one: one.with_workspace().multiply()),
    (f"{INVALID}a workspace of 511 bytes",
     lambda one: one.with_workspace().multiply(workspace=one.allocated(512), bytes=511)),
    (f"{INVALID}a workspace of 512 bytes", lambda one: one.with_workspace().multiply(bytes=512)),
    ("not aligned to 256 bytes",
     lambda one: one.with_workspace().multiply(workspace=one.allocated(1024) + 16, bytes=512)),
    ("the workspace overlaps A",
     lambda one: one.with_workspace().multiply(workspace=one.pointers["a"], bytes=512)),
    ("the workspace overlaps D",
     lambda one: one.with_workspace().multiply(workspace=one.pointers["d"], bytes=512)),
    ("D overlaps A", lambda one: one.find().multiply(c=one.pointers["a"], d=one.pointers["a"])),
    ("D overlaps C, but is not C",
     lambda one: one.scaled(1, 1).align(4).find().multiply(c=one.pointers["d"] + 4)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "call"), REFUSED)
def test_what_is_refused(one, text, call):
    with pytest.raises(Exception, match=re.escape(text)) as caught:
        call(one)
    assert type(caught.value).__name__ in ("CublasLtError", "OutsideTheDouble", "CudaError")


def test_a_workspace_is_taken_where_it_is_allowed(one):
    one.with_workspace().multiply(workspace=one.allocated(512), bytes=512)
    assert one.result["workspace_bytes"] == 512
    assert one.with_workspace(most=511).multiply().result["workspace_bytes"] == 0


def test_accesses_outside_of_memory_are_faults():
    one = RawProduct(DoubledDevice())
    one.find().multiply(a=one.allocated(16))
    one.driver.cuStreamSynchronize(one.stream)
    (fault,) = one.device.double.faults
    assert "cublasLtMatmul accesses 32 bytes" in str(fault)


def test_the_engine_gets_statuses_and_nothing_that_ctypes_would_change(one):
    functions = one.library.functions
    operation = one.descriptors["operation"]
    assert functions.cublasLtMatmulDescSetAttribute(operation, 3, 0, 4) == 7
    assert functions.cublasLtGetStatusName(7) == b"CUBLAS_STATUS_INVALID_VALUE"
    assert functions.cublasLtMatmulDescDestroy(operation) == 0
    for wrong in (-1, 1 << 64):
        with pytest.raises(Exception, match=f"{wrong} in cublasLtMatmulPreferenceDestroy, which"):
            functions.cublasLtMatmulPreferenceDestroy(wrong)
    for name, parameters in FUNCTIONS.items():
        own = one.library if hasattr(one.library, name) else functions
        assert len(inspect.signature(getattr(own, name)).parameters) == len(parameters)


def test_scalars_are_read_in_the_call_and_the_old_result_with_beta(one):
    a = np.arange(8, dtype=np.float32).reshape(4, 2) - 3
    b = np.arange(6, dtype=np.float32).reshape(2, 3) * 0.5
    np.testing.assert_array_equal(one.computed(a, b, np.nan, 0), a @ b)
    np.testing.assert_array_equal(one.computed(a, b, 100, 1), a @ b + 100)


@pytest.mark.parametrize(
    ("schemes", "expected"), [(0, 60000), (2, 60000), (4, np.inf), (7, np.inf)]
)
def test_parts_of_sums_are_rounded_if_that_is_allowed(device, schemes, expected):
    float16 = 2
    sizes = {name: (float16, *size[1:]) for name, size in RawProduct(device).sizes.items()}
    one = RawProduct(device, **sizes)
    # The first product of a sum is too large for float16, the sum is not.
    a, b = np.tile(np.float16([2, -1]), (4, 1)), np.full((2, 3), 60000, np.float16)
    assert (one.computed(a, b, 0, 0, schemes) == expected).all()
