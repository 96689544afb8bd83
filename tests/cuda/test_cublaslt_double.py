"""The double of cuBLASLt refuses what the library's documentation forbids or leaves open.

`test_cuda_products.py` shows that right calls have right results.
"""

import ctypes
import inspect
import re

import numpy as np
import pytest
from doubles import DoubledDevice

from cuda_machine.cublaslt_double import ATTRIBUTES
from lamina.engines.cuda.cublaslt_functions import FUNCTIONS, HeuristicResult

# The functions that set attributes of a descriptor.
SET = {
    "operation": "cublasLtMatmulDescSetAttribute",
    "preference": "cublasLtMatmulPreferenceSetAttribute",
    "layout": "cublasLtMatrixLayoutSetAttribute",
}
SIZES = {"a": (0, 4, 2, 4), "b": (0, 2, 3, 2), "c": (0, 4, 3, 4), "d": (0, 4, 3, 4)}
ASKED = "handle operation a_layout b_layout c_layout d_layout preference requested results count"
MULTIPLIED = (
    "handle operation alpha a a_layout b b_layout beta c c_layout d d_layout algorithm workspace "
    "bytes stream"
)


class RawProduct:
    """Calls of the double for a valid product; a test changes some arguments.

    Its methods return it. `sizes` are the type, the rows, the columns and the leading dimension of
    each matrix.
    """

    def __init__(self, device, **sizes):
        self.device, self.library, self.driver = device, device.library, device.double.driver
        if int(self.driver.cuCtxGetCurrent()[1]):
            self.driver.cuCtxPopCurrent()
        self.driver.cuCtxPushCurrent(self.driver.cuDevicePrimaryCtxRetain(0)[1])
        self.library.failure, self.library.workspace = "", 0
        self.alpha, self.beta = ctypes.c_float(1), ctypes.c_float(0)
        self.result, self.count = HeuristicResult(), ctypes.c_int()
        written = {"alpha": self.alpha, "beta": self.beta, "count": self.count}
        written |= {"results": self.result, "algorithm": self.result}
        self.given = {name: ctypes.addressof(variable) for name, variable in written.items()}
        self.given |= {"requested": 1, "workspace": 0, "bytes": 0}
        self.given["handle"] = self.created("cublasLtCreate")
        self.given["operation"] = self.created("cublasLtMatmulDescCreate", 68, 0)
        self.given["preference"] = self.created("cublasLtMatmulPreferenceCreate")
        self.given["stream"] = int(self.driver.cuStreamCreate(1)[1])
        sizes = SIZES | sizes
        for name in "abd":
            self.given |= {name: self.allocated(1024), f"{name}_layout": self.layout(*sizes[name])}
        self.given |= {"c": self.given["d"], "c_layout": self.given["d_layout"]}
        if sizes["c"] != sizes["d"]:
            self.given["c_layout"] = self.layout(*sizes["c"])

    def created(self, function, *arguments):
        """What a function writes to its first argument."""
        handle = ctypes.c_uint64()
        getattr(self.library, function)(ctypes.addressof(handle), *arguments)
        return handle.value

    def layout(self, *size):
        return self.created("cublasLtMatrixLayoutCreate", *size)

    def allocated(self, size):
        return int(self.driver.cuMemAlloc(size)[1])

    def set(self, of, name, value, dtype=None):
        """Sets an attribute of the operation, the preference, or the layout of a matrix."""
        kind = of if of in SET else "layout"
        rows = {label: (number, right) for number, (label, right, _) in ATTRIBUTES[kind].items()}
        number, right = rows[name]
        buffer = np.array([value], right if dtype is None else dtype)
        getattr(self.library, SET[kind])(self.given[of], number, buffer.ctypes.data, buffer.nbytes)
        return self

    def align(self, size):
        """Promises an alignment of all matrices."""
        for matrix in "ABCD":
            self.set("preference", f"MIN_ALIGNMENT_{matrix}_BYTES", size)
        return self

    def batch(self, **strides):
        """Makes matrices batches of two."""
        for name, stride in strides.items():
            layout = f"{name}_layout"
            self.set(layout, "BATCH_COUNT", 2).set(layout, "STRIDED_BATCH_OFFSET", stride)
        return self

    def with_bias(self, address):
        return self.set("operation", "EPILOGUE", 4).set("operation", "BIAS_POINTER", address)

    def with_workspace(self, most=512):
        """Has an algorithm that takes a workspace of 512 bytes."""
        self.library.workspace = 512
        return self.set("preference", "MAX_WORKSPACE_BYTES", most).find()

    def find(self, **changed):
        """Asks for an algorithm."""
        arguments = self.given | changed
        self.library.cublasLtMatmulAlgoGetHeuristic(*(arguments[name] for name in ASKED.split()))
        return self

    def multiply(self, **changed):
        """Calls the product, with some arguments changed."""
        arguments = self.given | changed
        self.library.cublasLtMatmul(*(arguments[name] for name in MULTIPLIED.split()))
        return self

    def move(self, by, matrices):
        """Has some matrices begin later."""
        for name in matrices:
            self.given[name] += by
        return self

    def scaled(self, alpha, beta):
        self.alpha.value, self.beta.value = alpha, beta
        return self

    def without(self, name):
        """Destroys something."""
        if name == "context":
            self.driver.cuCtxPopCurrent()
        else:
            self.library.cublasLtMatmulPreferenceDestroy(self.given["preference"])
        return self

    def computed(self, a, b, old, beta, schemes=0):
        """The result of these matrices, as float32."""
        self.scaled(1, beta).set("preference", "REDUCTION_SCHEME_MASK", schemes).find()
        stream, result = self.given["stream"], np.zeros(12, a.dtype)
        for name, values in {"a": a, "b": b, "d": np.full((4, 3), old, a.dtype)}.items():
            flat = np.ascontiguousarray(values.ravel(order="F"))
            self.driver.cuMemcpyHtoDAsync(self.given[name], flat.ctypes.data, flat.nbytes, stream)
        self.multiply().scaled(1, 0)
        self.driver.cuMemcpyDtoHAsync(result.ctypes.data, self.given["d"], result.nbytes, stream)
        return result.reshape((4, 3), order="F").astype(np.float32)


@pytest.fixture(scope="module")
def device():
    return DoubledDevice()


@pytest.fixture
def raw(device):
    return RawProduct(device)


# No number of an algorithm.
UNKNOWN = np.full(8, 5, np.uint64)
INVALID, SUPPORTED = "INVALID_VALUE: ", "NOT_SUPPORTED: "
ATTRIBUTE = "INVALID_VALUE: the attribute has "
REFUSED = [
    (f"{ATTRIBUTE}4 bytes", lambda raw: raw.set("operation", "TRANSA", 1, np.int64)),
    (f"{ATTRIBUTE}4 bytes", lambda raw: raw.set("operation", "EPILOGUE", 4, np.uint64)),
    (f"{ATTRIBUTE}8 bytes", lambda raw: raw.set("operation", "BIAS_POINTER", 256, np.uint32)),
    (f"{ATTRIBUTE}4 bytes", lambda raw: raw.set("a_layout", "BATCH_COUNT", 2, np.int64)),
    (f"{ATTRIBUTE}8 bytes", lambda raw: raw.set("a_layout", "STRIDED_BATCH_OFFSET", 2, np.int32)),
    (f"{ATTRIBUTE}8", lambda raw: raw.set("preference", "MAX_WORKSPACE_BYTES", 1, np.uint32)),
    (f"{ATTRIBUTE}4", lambda raw: raw.set("preference", "MIN_ALIGNMENT_A_BYTES", 16, np.uint64)),
    (f"{ATTRIBUTE}no", lambda raw: raw.library.cublasLtMatmulDescSetAttribute(
        raw.given["operation"], 3, 0, 4)),
    (f"{INVALID}an alignment of 12 bytes",
     lambda raw: raw.set("preference", "MIN_ALIGNMENT_B_BYTES", 12)),
    (f"{INVALID}a batch of 0", lambda raw: raw.set("a_layout", "BATCH_COUNT", 0)),
    ("operation 2 on a matrix", lambda raw: raw.set("operation", "TRANSB", 2)),
    ("epilogue 2", lambda raw: raw.set("operation", "EPILOGUE", 2)),
    ("attribute 6 of the operation", lambda raw: raw.library.cublasLtMatmulDescSetAttribute(
        raw.given["operation"], 6, 0, 4)),
    ("compute type 74 with scale type 0",
     lambda raw: raw.created("cublasLtMatmulDescCreate", 74, 0)),
    ("compute type 68 with scale type 1",
     lambda raw: raw.created("cublasLtMatmulDescCreate", 68, 1)),
    ("matrices of the type 1", lambda raw: raw.layout(1, 4, 4, 4)),
    # Sizes and types
    *((text, lambda raw, sizes=sizes: RawProduct(raw.device, **sizes).find()) for text, sizes in (
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
     lambda raw: raw.set("operation", "TRANSA", 1).find()),
    (f"{INVALID}batches of different lengths", lambda raw: raw.batch(a=8, b=6).find()),
    ("the matrices A of a batch are 0 elements apart",
     lambda raw: raw.batch(a=0, b=6, d=12).find()),
    ("results of a batch that overlap", lambda raw: raw.batch(a=8, b=6, d=11).find()),
    # A bias
    (f"{INVALID}a bias without an address",
     lambda raw: raw.set("operation", "EPILOGUE", 4).find()),
    ("the bias is not aligned as the heuristic saw it",
     lambda raw: raw.with_bias(256).find().with_bias(260).multiply()),
    # What does not exist
    (f"{INVALID}no room for results", lambda raw: raw.find(requested=0)),
    (f"{INVALID}no room for results", lambda raw: raw.find(results=0)),
    ("is no layout that exists", lambda raw: raw.find(a_layout=raw.given["operation"])),
    (f"{INVALID}no layout", lambda raw: raw.find(a_layout=0)),
    ("is no preference that", lambda raw: raw.without("preference").without("preference")),
    ("NOT_INITIALIZED: no context is current",
     lambda raw: raw.without("context").created("cublasLtCreate")),
    ("a handle of another context", lambda raw: raw.without("context").find()),
    ("NOT_INITIALIZED: no such handle", lambda raw: raw.find(handle=1)),
    *((f"{INVALID}a null pointer", lambda raw, name=name: raw.find().multiply(**{name: 0}))
      for name in ("a", "b", "c", "d", "alpha", "beta")),
    ("alpha 2.0 and beta 0.0", lambda raw: raw.find().scaled(2, 0).multiply()),
    (f"{INVALID}C is D, but their layouts are not the same",
     lambda raw: raw.find().multiply(c_layout=raw.layout(0, 4, 3, 4))),
    ("CUDA_ERROR_INVALID_HANDLE", lambda raw: raw.find().multiply(stream=12345)),
    # Algorithms, alignments, memory
    ("a product without an algorithm", lambda raw: raw.multiply(algorithm=0)),
    ("that no heuristic has found", lambda raw: raw.multiply(algorithm=UNKNOWN.ctypes.data)),
    ("was found for another product",
     lambda raw: raw.find().multiply(a_layout=raw.layout(0, 4, 2, 5))),
    *(("is not aligned to 16 bytes, as was promised", lambda raw, moved=moved: raw.align(16).find()
       .move(16, moved).multiply().move(8, moved).multiply()) for moved in ("a", "b", "cd")),
    ("B is not aligned to its elements", lambda raw: raw.align(1).find().move(2, "b").multiply()),
    (f"{INVALID}a workspace of 0 bytes", lambda raw: raw.with_workspace().multiply()),
    (f"{INVALID}a workspace of 511 bytes",
     lambda raw: raw.with_workspace().multiply(workspace=raw.allocated(512), bytes=511)),
    (f"{INVALID}a workspace of 512 bytes", lambda raw: raw.with_workspace().multiply(bytes=512)),
    ("not aligned to 256 bytes",
     lambda raw: raw.with_workspace().multiply(workspace=raw.allocated(1024) + 16, bytes=512)),
    ("the workspace overlaps A",
     lambda raw: raw.with_workspace().multiply(workspace=raw.given["a"], bytes=512)),
    ("the workspace overlaps D",
     lambda raw: raw.with_workspace().multiply(workspace=raw.given["d"], bytes=512)),
    ("D overlaps A", lambda raw: raw.find().multiply(c=raw.given["a"], d=raw.given["a"])),
    ("D overlaps C, but is not C",
     lambda raw: raw.scaled(1, 1).align(4).find().multiply(c=raw.given["d"] + 4)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "call"), REFUSED)
def test_what_is_refused(raw, text, call):
    with pytest.raises(Exception, match=re.escape(text)) as caught:
        call(raw)
    assert type(caught.value).__name__ in ("CublasLtError", "OutsideTheDouble", "CudaError")


def test_a_workspace_is_taken_where_it_is_allowed(raw):
    raw.with_workspace().multiply(workspace=raw.allocated(512), bytes=512)
    assert raw.result.workspace_bytes == 512
    assert raw.with_workspace(most=511).multiply().result.workspace_bytes == 0


def test_accesses_outside_of_memory_are_faults():
    raw = RawProduct(DoubledDevice())
    raw.find().multiply(a=raw.allocated(16))
    raw.driver.cuStreamSynchronize(raw.given["stream"])
    (fault,) = raw.device.double.faults
    assert "cublasLtMatmul accesses 32 bytes" in str(fault)


def test_the_engine_gets_statuses_and_nothing_that_ctypes_would_change(raw):
    functions = raw.library.functions
    operation = raw.given["operation"]
    assert functions.cublasLtMatmulDescSetAttribute(operation, 3, 0, 4) == 7
    assert functions.cublasLtGetStatusName(7) == b"CUBLAS_STATUS_INVALID_VALUE"
    assert functions.cublasLtMatmulDescDestroy(operation) == 0
    for wrong in (-1, 1 << 64):
        with pytest.raises(Exception, match=f"{wrong} in cublasLtMatmulPreferenceDestroy, which"):
            functions.cublasLtMatmulPreferenceDestroy(wrong)
    for name, parameters in FUNCTIONS.items():
        owner = raw.library if hasattr(raw.library, name) else functions
        assert len(inspect.signature(getattr(owner, name)).parameters) == len(parameters)


def test_scalars_are_read_in_the_call_and_the_old_result_with_beta(raw):
    a = np.arange(8, dtype=np.float32).reshape(4, 2) - 3
    b = np.arange(6, dtype=np.float32).reshape(2, 3) * 0.5
    np.testing.assert_array_equal(raw.computed(a, b, np.nan, 0), a @ b)
    np.testing.assert_array_equal(raw.computed(a, b, 100, 1), a @ b + 100)


@pytest.mark.parametrize(
    ("schemes", "expected"), [(0, 60000), (2, 60000), (4, np.inf), (7, np.inf)]
)
def test_parts_of_sums_are_rounded_if_that_is_allowed(device, schemes, expected):
    float16 = 2
    sizes = {name: (float16, *size[1:]) for name, size in SIZES.items()}
    raw = RawProduct(device, **sizes)
    # The first product of a sum is too large for float16, the sum is not.
    a, b = np.tile(np.float16([2, -1]), (4, 1)), np.full((2, 3), 60000, np.float16)
    assert (raw.computed(a, b, 0, 0, schemes) == expected).all()
