"""Descriptors of cuBLASLt as the double has them, and the product that they ask for.

Sections in quotation marks are those of Nvidia's documentation of cuBLAS.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cuda_machine.driver_state import OutsideTheDouble, State

# "cudaDataType_t", and the one that is computed in ("cublasComputeType_t").
TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
COMPUTE_32F, COMPUTE_32F_FAST_TF32, R_32F = 68, 77, 0
# "cublasLtEpilogue_t"
EPILOGUE_DEFAULT, EPILOGUE_BIAS = 1, 4
# "cublasStatus_t"
SUCCESS, NOT_INITIALIZED, INVALID_VALUE, NOT_SUPPORTED = 0, 1, 7, 15
STATUSES = {
    NOT_INITIALIZED: "CUBLAS_STATUS_NOT_INITIALIZED",
    INVALID_VALUE: "CUBLAS_STATUS_INVALID_VALUE",
    NOT_SUPPORTED: "CUBLAS_STATUS_NOT_SUPPORTED",
}


class CublasLtError(Exception):
    """What the double's functions raise; `status` is the number that the library would return."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"{STATUSES[status]}: {why}")
        self.status = status


# The attributes that the double knows, by their numbers: names, types, and values before they are
# set ("cublasLtMatmulDescAttributes_t", "cublasLtMatrixLayoutAttribute_t",
# "cublasLtMatmulPreferenceAttributes_t"). A pointer has eight bytes.
ATTRIBUTES: dict[str, dict[int, tuple[str, type[Any], int]]] = {
    "operation": {
        3: ("TRANSA", np.int32, 0),
        4: ("TRANSB", np.int32, 0),
        7: ("EPILOGUE", np.uint32, EPILOGUE_DEFAULT),
        8: ("BIAS_POINTER", np.uint64, 0),
    },
    "layout": {5: ("BATCH_COUNT", np.int32, 1), 6: ("STRIDED_BATCH_OFFSET", np.int64, 0)},
    "preference": {
        1: ("MAX_WORKSPACE_BYTES", np.uint64, 0),
        # All schemes.
        3: ("REDUCTION_SCHEME_MASK", np.uint32, 7),
        **{n: (f"MIN_ALIGNMENT_{'ABCD'[n - 5]}_BYTES", np.uint32, 256) for n in range(5, 9)},
    },
}


@dataclass(eq=False)
class Descriptor:
    """A descriptor: what it was created with, and its attributes."""

    handle: int
    kind: str
    created: tuple[int, ...]
    attributes: dict[str, int]

    def __getitem__(self, name: str) -> int:
        return self.attributes[name]


class DescriptorCalls:
    """Creates, sets and destroys descriptors. Their handles are numbers that nothing else has."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.descriptors: dict[int, Descriptor] = {}

    def find(self, kind: str, handle: int) -> Descriptor:
        """A living descriptor. Uses of others are undefined, and so are those of other kinds."""
        found = self.descriptors.get(handle)
        if handle == 0:
            raise CublasLtError(INVALID_VALUE, f"no {kind}")
        if found is None or found.kind != kind:
            raise OutsideTheDouble(f"{handle:#x} is no {kind} that exists")
        return found

    def cublasLtMatmulDescCreate(self, matmulDesc, computeType, scaleType):
        """The double computes in float32, and multiplies float32 that are rounded to TF32."""
        if computeType not in (COMPUTE_32F, COMPUTE_32F_FAST_TF32) or scaleType != R_32F:
            raise OutsideTheDouble(f"compute type {computeType} with scale type {scaleType}")
        self._create(matmulDesc, "operation", computeType, scaleType)

    def cublasLtMatrixLayoutCreate(self, matLayout, type, rows, cols, ld):
        if type not in TYPES:
            raise OutsideTheDouble(f"matrices of the type {type}")
        self._create(matLayout, "layout", type, rows, cols, ld)

    def cublasLtMatmulPreferenceCreate(self, pref):
        self._create(pref, "preference")

    def cublasLtMatmulDescDestroy(self, matmulDesc):
        del self.descriptors[self.find("operation", matmulDesc).handle]

    def cublasLtMatrixLayoutDestroy(self, matLayout):
        del self.descriptors[self.find("layout", matLayout).handle]

    def cublasLtMatmulPreferenceDestroy(self, pref):
        del self.descriptors[self.find("preference", pref).handle]

    def cublasLtMatmulDescSetAttribute(self, matmulDesc, attr, buf, sizeInBytes):
        self._set(self.find("operation", matmulDesc), attr, buf, sizeInBytes)

    def cublasLtMatrixLayoutSetAttribute(self, matLayout, attr, buf, sizeInBytes):
        self._set(self.find("layout", matLayout), attr, buf, sizeInBytes)

    def cublasLtMatmulPreferenceSetAttribute(self, pref, attr, buf, sizeInBytes):
        self._set(self.find("preference", pref), attr, buf, sizeInBytes)

    def _create(self, address: int, kind: str, *created: int) -> None:
        handle = self.state.new_handle()
        attributes = {name: value for name, _, value in ATTRIBUTES[kind].values()}
        self.descriptors[handle] = Descriptor(handle, kind, created, attributes)
        ctypes.c_uint64.from_address(address).value = handle

    def _set(self, descriptor: Descriptor, attribute: int, buffer: int, size: int) -> None:
        if attribute not in ATTRIBUTES[descriptor.kind]:
            raise OutsideTheDouble(f"attribute {attribute} of the {descriptor.kind}")
        name, kind, _ = ATTRIBUTES[descriptor.kind][attribute]
        dtype = np.dtype(kind)
        if not buffer:
            raise CublasLtError(INVALID_VALUE, "the attribute has no buffer")
        if size != dtype.itemsize:
            raise CublasLtError(INVALID_VALUE, f"the attribute has {dtype.itemsize} bytes")
        value = int(np.frombuffer(ctypes.string_at(buffer, size), dtype)[0])
        # Refuses values that an attribute cannot have, or that the double does not compute.
        if "TRANS" in name and value not in (0, 1):
            raise OutsideTheDouble(f"operation {value} on a matrix")
        if "EPILOGUE" in name and value not in (EPILOGUE_DEFAULT, EPILOGUE_BIAS):
            raise OutsideTheDouble(f"epilogue {value}")
        if "BATCH_COUNT" in name and value < 1:
            raise CublasLtError(INVALID_VALUE, f"a batch of {value}")
        if "ALIGNMENT" in name and value & (value - 1):
            raise CublasLtError(INVALID_VALUE, f"an alignment of {value} bytes")
        descriptor.attributes[name] = value


# Products

Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]
# A/B and C/D of CUBLAS_COMPUTE_32F ("cublasLtMatmul()", "Datatypes Supported"): the bias has the
# type of D.
SUPPORTED = {(0, 0), (2, 2), (14, 14), (2, 0), (14, 0)}

# CUBLASLT_REDUCTION_SCHEME_INPLACE and CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
ROUNDING_SCHEMES = 1 | 4


@dataclass(frozen=True)
class Layouted:
    """A matrix, or one for each product of a batch, in column-major order."""

    type: int
    rows: int
    columns: int
    leading: int
    batch: int
    stride: int

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return TYPES[self.type]

    @property
    def bytes(self) -> int:
        """From the first element of the first matrix to the last one of the last matrix."""
        last = (self.batch - 1) * self.stride + (self.columns - 1) * self.leading + self.rows
        return last * self.dtype.itemsize

    def view(self, memory: Bytes) -> NDArray[np.generic]:
        """The matrices within these bytes: [batch, rows, columns]."""
        elements = memory.view(self.dtype)
        size = self.dtype.itemsize
        strides = self.stride * size, size, self.leading * size
        shape = self.batch, self.rows, self.columns
        return np.lib.stride_tricks.as_strided(elements, shape, strides)


@dataclass(frozen=True)
class Problem:
    """All that an algorithm is found for, besides the addresses of the matrices.

    Attributes:
        a, b, c, d: the matrices.
        a_transposed, b_transposed: whether they are transposed before they are multiplied.
        has_bias: whether a vector is added to each column.
        is_tf32: whether tensor cores for TF32 may multiply float32.
    """

    a: Layouted
    b: Layouted
    c: Layouted
    d: Layouted
    a_transposed: bool
    b_transposed: bool
    has_bias: bool
    is_tf32: bool = False

    @property
    def inner(self) -> int:
        """The length of the sums."""
        return self.a.rows if self.a_transposed else self.a.columns

    def compute(
        self, a: Bytes, b: Bytes, c: Bytes | None, bias: Bytes | None, schemes: int
    ) -> NDArray[np.generic]:
        """The result [batch, rows, columns], in the type of D.

        Sums are computed in float64 and rounded to float32: they are as exact as those of any order
        of addition. What is added to them is added in float32 ("scaleType"), and the result is
        rounded to the type of D when it is stored.

        Args:
            a, b: the memory of the factors.
            c, bias: that of what is added, or None.
            schemes: how parts of sums may be combined ("cublasLtReductionScheme_t"). If they may be
                rounded to the type of D, they are.
        """
        left, right = (
            matrix.view(memory).astype(np.float64) for matrix, memory in ((self.a, a), (self.b, b))
        )
        if self.is_tf32:
            left, right = map(_as_tf32, (left, right))
        if self.a_transposed:
            left = left.swapaxes(1, 2)
        if self.b_transposed:
            right = right.swapaxes(1, 2)
        # Infinities and NaN are results like others.
        with np.errstate(all="ignore"):
            total = self._sums(left, right, schemes)
            if c is not None:
                total = total + self.c.view(c).astype(np.float32)
            if bias is not None:
                total = total + bias.view(self.d.dtype).astype(np.float32)[None, :, None]
            return total.astype(self.d.dtype)

    def _sums(self, left: Doubles, right: Doubles, schemes: int) -> NDArray[np.float32]:
        if not schemes & ROUNDING_SCHEMES or self.d.dtype == np.float32 or self.inner < 2:
            return np.matmul(left, right).astype(np.float32)
        half = self.inner // 2
        first = np.matmul(left[..., :half], right[:, :half]).astype(self.d.dtype)
        rest = np.matmul(left[..., half:], right[:, half:])
        return (first.astype(np.float64) + rest).astype(np.float32)


def _as_tf32(factors: Doubles) -> Doubles:
    """Float32 without those that are not rounded to TF32, which become NaN.

    How they are rounded is not documented ("cublasComputeType_t").
    """
    bits = factors.astype(np.float32).view(np.uint32)
    return np.where(bits & 0x1FFF, np.nan, factors)


def problem_of(operation: Descriptor, layouts: tuple[Descriptor, ...]) -> Problem:
    """The problem of some descriptors, if it obeys the rules."""
    a, b, c, d = map(_layouted, "ABCD", layouts)
    transposed = operation["TRANSA"] == 1, operation["TRANSB"] == 1
    _check_sizes(a, b, c, d, transposed)
    is_tf32 = operation.created[0] == COMPUTE_32F_FAST_TF32
    if is_tf32 and (a.type, d.type) != (R_32F, R_32F):
        raise CublasLtError(NOT_SUPPORTED, f"types {a.type} and {d.type} as TF32")
    if (a.type, d.type) not in SUPPORTED or a.type != b.type or c.type != d.type:
        raise CublasLtError(NOT_SUPPORTED, f"types {a.type}, {b.type}, {c.type}, {d.type}")
    has_bias = operation["EPILOGUE"] == EPILOGUE_BIAS
    # "CUBLASLT_MATMUL_DESC_BIAS_POINTER": heuristics depend on the address.
    if has_bias and not operation["BIAS_POINTER"]:
        raise CublasLtError(INVALID_VALUE, "a bias without an address")
    return Problem(a, b, c, d, *transposed, has_bias, is_tf32)


def _layouted(name: str, descriptor: Descriptor) -> Layouted:
    type_, rows, columns, leading = descriptor.created
    batch, stride = descriptor["BATCH_COUNT"], descriptor["STRIDED_BATCH_OFFSET"]
    if rows < 1 or columns < 1:
        raise OutsideTheDouble(f"{name} without elements")
    # "CUBLASLT_MATRIX_LAYOUT_LD": large enough that columns do not overlap.
    if leading < rows:
        raise CublasLtError(INVALID_VALUE, f"{name} has {rows} rows, but {leading} in a column")
    # "cublasGemmStridedBatchedEx()": the offset must not be zero.
    if batch > 1 and stride < 1:
        raise OutsideTheDouble(f"the matrices {name} of a batch are {stride} elements apart")
    return Layouted(type_, rows, columns, leading, batch, stride)


def _check_sizes(
    a: Layouted, b: Layouted, c: Layouted, d: Layouted, transposed: tuple[bool, bool]
) -> None:
    (rows, inner), (right_inner, columns) = (
        (one.columns, one.rows) if is_so else (one.rows, one.columns)
        for one, is_so in zip((a, b), transposed, strict=True)
    )
    if inner != right_inner or (rows, columns) != (d.rows, d.columns):
        found = f"{rows} x {inner} times {right_inner} x {columns} is no {d.rows} x {d.columns}"
        raise CublasLtError(INVALID_VALUE, found)
    # "cublasLtMatmul()": C and D have the same type, size, batch and order.
    if (c.rows, c.columns) != (d.rows, d.columns):
        raise CublasLtError(INVALID_VALUE, f"C is {c.rows} x {c.columns}")
    if len({one.batch for one in (a, b, c, d)}) > 1:
        raise CublasLtError(INVALID_VALUE, "batches of different lengths")
    sizes = (d.batch, d.stride), (d.columns, d.leading), (d.rows, 1)
    grid = np.ix_(*(np.arange(count) * step for count, step in sizes))
    indices = grid[0] + grid[1] + grid[2]
    if len(np.unique(indices)) < indices.size:
        # "cublasGemmStridedBatchedEx()": results must not overlap.
        raise OutsideTheDouble("results of a batch that overlap")
