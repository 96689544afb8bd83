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

from cuda_machine.engine import DoubledDevice
from lamina.base.shapes import Array

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
cublasLt = pytest.importorskip("nvmath.bindings.cublasLt", reason="nvmath-python is not installed")

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
        self.handle = library.create()
        self.descriptors = {
            "operation": library.matmul_desc_create(68, 0),
            "preference": library.matmul_preference_create(),
        }
        for name, size in self.sizes.items():
            if name != "c":
                self.descriptors[name] = library.matrix_layout_create(*size)
        self.descriptors["c"] = self.descriptors["d"]
        if self.sizes["c"] != self.sizes["d"]:
            self.descriptors["c"] = library.matrix_layout_create(*self.sizes["c"])
        self.pointers = {name: self.allocated(1024) for name in "abd"}
        self.pointers["c"] = self.pointers["d"]
        self.alpha, self.beta = np.ones(1, np.float32), np.zeros(1, np.float32)
        self.result, self.count = library.MatmulHeuristicResult(1), np.zeros(1, np.int32)
        self.stream = int(self.driver.cuStreamCreate(1)[1])

    def allocated(self, size: int) -> int:
        return int(self.driver.cuMemAlloc(size)[1])

    def set(self, of: str, name: str, value: int, dtype: Any = None) -> RawProduct:
        """Sets an attribute of the operation, the preference, or the layout of a matrix."""
        kind = {"operation": "matmul_desc", "preference": "matmul_preference"}.get(
            of, "matrix_layout"
        )
        names = getattr(self.library, f"{kind.title().replace('_', '')}Attribute")
        number = getattr(names, name)
        right = getattr(self.library, f"get_{kind}_attribute_dtype")(number)
        buffer = np.array([value], right if dtype is None else dtype)
        set_attribute = getattr(self.library, f"{kind}_set_attribute")
        set_attribute(self.descriptors[of], int(number), buffer.ctypes.data, buffer.nbytes)
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
        self.library.matmul_algo_get_heuristic(
            *(self.handle, *(self.descriptors[name] for name in names), requested),
            *(self.result.ptr if results is None else results, self.count.ctypes.data),
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
        arguments |= {"algorithm": self.result.ptr, "workspace": 0, "bytes": 0}
        self.library.matmul(*(arguments | {"stream": self.stream} | changed).values())
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
        elif name == "handle":
            self.library.destroy(self.handle)
        else:
            self.library.matmul_preference_destroy(self.descriptors["preference"])
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
UNKNOWN = np.full(10, 5, np.uint64)
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
    (f"{ATTRIBUTE}no", lambda one: one.library.matmul_desc_set_attribute(
        one.descriptors["operation"], 3, 0, 4)),
    (f"{INVALID}an alignment of 12 bytes",
     lambda one: one.set("preference", "MIN_ALIGNMENT_B_BYTES", 12)),
    (f"{INVALID}a batch of 0", lambda one: one.set("a", "BATCH_COUNT", 0)),
    ("operation 2 on a matrix", lambda one: one.set("operation", "TRANSB", 2)),
    ("epilogue 2", lambda one: one.set("operation", "EPILOGUE", 2)),
    ("attribute 6 of the operation", lambda one: one.set("operation", "FILL_MODE", 0)),
    ("compute type 77 with scale type 0", lambda one: one.library.matmul_desc_create(77, 0)),
    ("compute type 68 with scale type 1", lambda one: one.library.matmul_desc_create(68, 1)),
    ("matrices of the type 1", lambda one: one.library.matrix_layout_create(1, 4, 4, 4)),
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
    ("NOT_INITIALIZED: no context is current", lambda one: one.without("context").library.create()),
    ("a handle of another context", lambda one: one.without("context").find()),
    ("NOT_INITIALIZED: no such handle", lambda one: one.without("handle").find()),
    *((f"{INVALID}a null pointer", lambda one, name=name: one.find().multiply(**{name: 0}))
      for name in ("a", "b", "c", "d", "alpha", "beta")),
    ("alpha 2.0 and beta 0.0", lambda one: one.find().scaled(2, 0).multiply()),
    (f"{INVALID}C is D, but their layouts are not the same", lambda one: one.described(
        "c", one.library.matrix_layout_create(0, 4, 3, 4)).find().multiply()),
    ("CUDA_ERROR_INVALID_HANDLE", lambda one: one.find().multiply(stream=12345)),
    # Algorithms, alignments, memory
    ("a product without an algorithm", lambda one: one.multiply(algorithm=0)),
    ("that no heuristic has found", lambda one: one.multiply(algorithm=UNKNOWN.ctypes.data)),
    ("was found for another product", lambda one: one.multiply(
        algorithm=RawProduct(one.device, a=(0, 4, 2, 5)).find().result.ptr)),
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
    assert one.result.workspace_size == 512
    assert one.with_workspace(most=511).multiply().result.workspace_size == 0


def test_accesses_outside_of_memory_are_faults():
    one = RawProduct(DoubledDevice())
    one.find().multiply(a=one.allocated(16))
    one.driver.cuStreamSynchronize(one.stream)
    (fault,) = one.device.double.faults
    assert "cublasLtMatmul accesses 32 bytes" in str(fault)


def test_functions_have_the_parameters_of_the_module(one):
    own = [name for name in dir(type(one.library)) if not name.startswith("_")]
    names = [name for name in own if name.islower() and hasattr(cublasLt, name)]
    assert {"matmul", "matmul_algo_get_heuristic", "matrix_layout_set_attribute"} <= {*names}
    for name in names:
        # The first line of a docstring is "matmul_desc_create(int compute_type, ...) -> intptr_t".
        declared = re.match(r"\w+\((.*?)\)", getattr(cublasLt, name).__doc__)
        assert declared is not None
        expected = [one.split()[-1] for one in declared[1].split(", ") if one]
        assert [*inspect.signature(getattr(one.library, name)).parameters] == expected, name
    with pytest.raises(AttributeError, match="has no matrix_transform"):
        one.library.matrix_transform()


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
