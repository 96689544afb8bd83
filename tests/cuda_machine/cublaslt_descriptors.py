"""Descriptors of cuBLASLt as the double has them: their attributes, and what is refused.

Sections in quotation marks are those of Nvidia's documentation of cuBLAS.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from nvmath.bindings import cublasLt

from cuda_machine.driver_state import OutsideTheDouble, State

# "cudaDataType_t", and the one that is computed in ("cublasComputeType_t").
TYPES = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
COMPUTE_32F, R_32F = 68, 0
# "cublasStatus_t"
STATUSES = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
}
NOT_INITIALIZED, INVALID_VALUE, NOT_SUPPORTED = STATUSES

Description = cublasLt.MatmulDescAttribute
Layout = cublasLt.MatrixLayoutAttribute
Preference = cublasLt.MatmulPreferenceAttribute
Epilogue = cublasLt.Epilogue


class CublasLtError(Exception):
    """What the functions of the module raise; `status` is the number of cuBLASLt's status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"{STATUSES[status]}: {why}")
        self.status = status


# The attributes that the double knows: their types, and their values before they are set
# ("cublasLtMatmulDescAttributes_t", "cublasLtMatrixLayoutAttribute_t",
# "cublasLtMatmulPreferenceAttributes_t"). A pointer has eight bytes.
ATTRIBUTES: dict[str, dict[int, tuple[type[Any], int]]] = {
    "operation": {
        Description.TRANSA: (np.int32, 0),
        Description.TRANSB: (np.int32, 0),
        Description.EPILOGUE: (np.uint32, int(Epilogue.DEFAULT)),
        Description.BIAS_POINTER: (np.uint64, 0),
        # -1: the type of D.
        Description.BIAS_DATA_TYPE: (np.int32, -1),
        Description.BIAS_BATCH_STRIDE: (np.int64, 0),
    },
    "layout": {Layout.BATCH_COUNT: (np.int32, 1), Layout.STRIDED_BATCH_OFFSET: (np.int64, 0)},
    "preference": {
        Preference.MAX_WORKSPACE_BYTES: (np.uint64, 0),
        # All schemes.
        Preference.REDUCTION_SCHEME_MASK: (np.uint32, 7),
        Preference.MIN_ALIGNMENT_A_BYTES: (np.uint32, 256),
        Preference.MIN_ALIGNMENT_B_BYTES: (np.uint32, 256),
        Preference.MIN_ALIGNMENT_C_BYTES: (np.uint32, 256),
        Preference.MIN_ALIGNMENT_D_BYTES: (np.uint32, 256),
    },
}


@dataclass(eq=False)
class Descriptor:
    """A descriptor: what it was created with, and its attributes."""

    handle: int
    kind: str
    created: tuple[int, ...]
    attributes: dict[int, int] = field(default_factory=dict[int, int])

    def __getitem__(self, name: Any) -> int:
        return self.attributes.get(name, ATTRIBUTES[self.kind][name][1])

    def copy(self) -> Descriptor:
        return Descriptor(self.handle, self.kind, self.created, dict(self.attributes))


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

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        """The double computes in float32 alone: TF32, for example, is none of its types."""
        if (compute_type, scale_type) != (COMPUTE_32F, R_32F):
            raise OutsideTheDouble(f"compute type {compute_type} with scale type {scale_type}")
        return self._create("operation", compute_type, scale_type)

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        if type not in TYPES:
            raise OutsideTheDouble(f"matrices of the type {type}")
        return self._create("layout", type, rows, cols, ld)

    def matmul_preference_create(self) -> int:
        return self._create("preference")

    def matmul_desc_destroy(self, matmul_desc: int) -> None:
        del self.descriptors[self.find("operation", matmul_desc).handle]

    def matrix_layout_destroy(self, mat_layout: int) -> None:
        del self.descriptors[self.find("layout", mat_layout).handle]

    def matmul_preference_destroy(self, pref: int) -> None:
        del self.descriptors[self.find("preference", pref).handle]

    def matmul_desc_set_attribute(
        self, matmul_desc: int, attr: int, buf: int, size_in_bytes: int
    ) -> None:
        self._set(self.find("operation", matmul_desc), attr, buf, size_in_bytes)

    def matrix_layout_set_attribute(
        self, mat_layout: int, attr: int, buf: int, size_in_bytes: int
    ) -> None:
        self._set(self.find("layout", mat_layout), attr, buf, size_in_bytes)

    def matmul_preference_set_attribute(
        self, pref: int, attr: int, buf: int, size_in_bytes: int
    ) -> None:
        self._set(self.find("preference", pref), attr, buf, size_in_bytes)

    def _create(self, kind: str, *created: int) -> int:
        handle = self.state.new_handle()
        self.descriptors[handle] = Descriptor(handle, kind, created)
        return handle

    def _set(self, descriptor: Descriptor, attribute: int, buffer: int, size: int) -> None:
        known = ATTRIBUTES[descriptor.kind].get(attribute)
        if known is None:
            raise OutsideTheDouble(f"attribute {attribute} of the {descriptor.kind}")
        dtype = np.dtype(known[0])
        if not buffer:
            raise CublasLtError(INVALID_VALUE, "the attribute has no buffer")
        if size != dtype.itemsize:
            raise CublasLtError(INVALID_VALUE, f"the attribute has {dtype.itemsize} bytes")
        value = int(np.frombuffer(ctypes.string_at(buffer, size), dtype)[0])
        _check_value(descriptor.kind, attribute, value)
        descriptor.attributes[attribute] = value


def _check_value(kind: str, attribute: int, value: int) -> None:
    """Refuses values that an attribute cannot have, or that the double does not compute."""
    if kind == "operation" and attribute in (Description.TRANSA, Description.TRANSB):
        if value not in (0, 1):
            raise OutsideTheDouble(f"operation {value} on a matrix")
    elif kind == "operation" and attribute == Description.EPILOGUE:
        if value not in (Epilogue.DEFAULT, Epilogue.BIAS):
            raise OutsideTheDouble(f"epilogue {value}")
    elif kind == "layout" and attribute == Layout.BATCH_COUNT:
        if value < 1:
            raise CublasLtError(INVALID_VALUE, f"a batch of {value}")
    elif kind == "preference" and attribute in range(5, 9) and value & (value - 1):
        raise CublasLtError(INVALID_VALUE, f"an alignment of {value} bytes")
