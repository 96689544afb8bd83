"""Products of matrices by cuBLASLt: descriptors, algorithms, and calls.

Sections in quotation marks are from Nvidia's documentation of cuBLAS. Products have the compute
type CUBLAS_COMPUTE_32F: float32 is multiplied and added up as such, and never rounded to TF32;
floats of 16 bits are multiplied exactly, and added up in float32 ("cublasComputeType_t"). Factors
that are stored rounded to TF32 have CUBLAS_COMPUTE_32F_FAST_TF32, which does not change them.

Equal products have equal results, bit by bit, on equal GPUs with one version of the library, since
each call has a workspace of its own ("Results Reproducibility"): it says that all routines do, and
that only workspaces which the library chooses for several streams are an exception. Sums that are
split along K are combined in a fixed order ("GEMM Algorithms Numerical Behavior"). An algorithm is
a part of the schedule, so a product has the same one in all processes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.engines.cuda import cublaslt_functions as lt
from lamina.engines.cuda.calls import CudaError, LibraryCalls
from lamina.engines.gpu.plain_products import Algorithm, Matrix, MatrixProduct

# "cudaDataType_t", "cublasComputeType_t" and "cublasOperation_t"
_TYPES = {"float32": 0, "tf32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
_AS_IT_IS, _TRANSPOSED = 0, 1
# The largest alignment that algorithms ask for ("cublasLtMatmulPreferenceAttributes_t"), and the
# one that workspaces need ("cublasLtMatmul()").
_ALIGNMENT_BYTES = 256
# The algorithms that the heuristic is asked for. Tuning times all of them.
_PROPOSALS = 8
_NOT_SUPPORTED = "CUBLAS_STATUS_NOT_SUPPORTED"


@frozen_dataclass
class Addresses:
    """Where the matrices of a product begin on the device; 0 if nothing is added."""

    left: int
    right: int
    result: int
    bias: int
    added: int


def addresses_of(product: MatrixProduct, buffers: Sequence[int]) -> Addresses:
    """Where the matrices begin in buffers, in the order in which drivers take them."""
    left, right, result, bias, added = buffers
    bias_bytes = (product.bias_start or 0) * np.dtype(np.float32).itemsize
    return Addresses(
        *(_begin(product.left, left), _begin(product.right, right)),
        *(_begin(product.result, result), bias + bias_bytes),
        0 if product.added is None else _begin(product.added, added),
    )


def _begin(matrix: Matrix, buffer: int) -> int:
    return buffer + matrix.start * matrix.itemsize


@final
class CublasLt:
    """cuBLASLt on a device, whose context is current in all calls.

    Its handle is never destroyed: it is used until the process ends, as the context is.

    Raises:
        EngineError: if the library is missing.
    """

    def __init__(self, calls: LibraryCalls, capability: tuple[int, int]) -> None:
        self._calls = calls
        handle = ctypes.c_void_p()
        calls.cublasLtCreate(ctypes.addressof(handle))
        self._handle = handle.value
        # The sizes that "cublasSetWorkspace()" recommends, also for "cublasLtMatmul()".
        self._most_workspace_bytes = 32 << 20 if capability >= (9, 0) else 4 << 20
        self._algorithms: dict[MatrixProduct, tuple[Algorithm, ...]] = {}

    def algorithms(self, product: MatrixProduct) -> tuple[Algorithm, ...]:
        """The algorithms that the library proposes for a product, in its order.

        All buffers are expected to be aligned to 256 bytes.
        """
        if product not in self._algorithms:
            buffers = addresses_of(product, (_ALIGNMENT_BYTES,) * 5)
            with closing(_Description(self._calls, product, buffers.bias)) as described:
                self._algorithms[product] = tuple(self._proposed(described, buffers))
        return self._algorithms[product]

    def call_of(
        self, product: MatrixProduct, algorithm: Algorithm, bias: int
    ) -> Callable[[Addresses, int, int], None]:
        """The function that enqueues a product with a bias at this address, which may be 0.

        Its arguments are the addresses, the address of the workspace, aligned to 256 bytes or 0 for
        none, and the stream.
        """
        described = _Description(self._calls, product, bias)
        data = lt.AlgorithmData(*algorithm.data)
        # They are read in the call, and become a part of a captured graph ("CUDA Graphs Support").
        alpha, beta = ctypes.c_float(1.0), ctypes.c_float(product.added is not None)

        def enqueue(buffers: Addresses, workspace: int, stream: int) -> None:
            # This function keeps the descriptors, the algorithm and the scalars alive. If beta is
            # 0, C is not read ("cublasGemmStridedBatchedEx()").
            left, right, third, result = described.layouts
            added = buffers.added or buffers.result
            self._calls.cublasLtMatmul(
                *(self._handle, described.operation, ctypes.addressof(alpha)),
                *(buffers.left, left, buffers.right, right),
                *(ctypes.addressof(beta), added, third, buffers.result, result),
                *(ctypes.addressof(data), workspace, algorithm.workspace_bytes, stream),
            )

        return enqueue

    def _proposed(self, described: _Description, buffers: Addresses) -> Iterator[Algorithm]:
        """What the heuristic finds for a product; nothing if there is no algorithm."""
        results, count = (lt.HeuristicResult * _PROPOSALS)(), ctypes.c_int()
        pointers = {
            lt.MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: buffers.left,
            lt.MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: buffers.right,
            lt.MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: buffers.added or buffers.result,
            lt.MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: buffers.result,
        }
        limits: dict[int, Any] = {
            lt.MATMUL_PREF_MAX_WORKSPACE_BYTES: ctypes.c_uint64(self._most_workspace_bytes),
            # Parts of a sum that is split along K are stored as float32, and added up by a kernel
            # of its own: not in the dtype of the result, and not in the order in which groups end
            # ("cublasLtReductionScheme_t").
            lt.MATMUL_PREF_REDUCTION_SCHEME_MASK: ctypes.c_uint32(lt.REDUCTION_SCHEME_COMPUTE_TYPE),
        }
        for name, pointer in pointers.items():
            limits[name] = ctypes.c_uint32(min(pointer & -pointer, _ALIGNMENT_BYTES))
        with ExitStack() as stack:
            preference = _made(self._calls, stack, "MatmulPreference", limits)
            try:
                self._calls.cublasLtMatmulAlgoGetHeuristic(
                    *(self._handle, described.operation, *described.layouts, preference),
                    *(_PROPOSALS, ctypes.addressof(results), ctypes.addressof(count)),
                )
            except CudaError as error:
                if error.status != _NOT_SUPPORTED:
                    raise
                return
        usable = (result for result in results[: count.value] if result.state == 0)
        for number, result in enumerate(usable):
            yield Algorithm(number, tuple(result.algorithm), result.workspace_bytes)


@final
class _Description:
    """The descriptors of a product, destroyed with the last reference or by `close`.

    The layouts describe the left, the right, the added matrix and the result. The last two are one
    object if their matrices have the same layout.
    """

    def __init__(self, calls: LibraryCalls, product: MatrixProduct, bias: int) -> None:
        with ExitStack() as stack:
            self.operation = _operation(calls, stack, product, bias)
            left, right, result = (
                _layout(calls, stack, matrix, product.batch)
                for matrix in (product.left, product.right, product.result)
            )
            added = result
            # A matrix of the same layout may begin elsewhere.
            if product.added is not None and replace(product.added, start=product.result.start) != (
                product.result
            ):
                added = _layout(calls, stack, product.added, product.batch)
            self.layouts = left, right, added, result
            self.close = weakref.finalize(self, stack.pop_all().close)


def _operation(calls: LibraryCalls, stack: ExitStack, product: MatrixProduct, bias: int) -> int:
    compute = _COMPUTE_32F_FAST_TF32 if product.left.dtype == "tf32" else _COMPUTE_32F
    transposed = {
        lt.MATMUL_DESC_TRANSA: product.left_transposed,
        lt.MATMUL_DESC_TRANSB: product.right_transposed,
    }
    attributes: dict[int, Any] = {
        name: ctypes.c_int32(_TRANSPOSED if is_transposed else _AS_IT_IS)
        for name, is_transposed in transposed.items()
    }
    if product.bias_start is not None:
        attributes[lt.MATMUL_DESC_EPILOGUE] = ctypes.c_uint32(lt.EPILOGUE_BIAS)
        # Heuristics read the alignment of this address ("cublasLtMatmulDescAttributes_t").
        attributes[lt.MATMUL_DESC_BIAS_POINTER] = ctypes.c_uint64(bias)
    return _made(calls, stack, "MatmulDesc", attributes, compute, _TYPES["float32"])


def _layout(calls: LibraryCalls, stack: ExitStack, matrix: Matrix, batch: int) -> int:
    size = matrix.rows, matrix.columns, matrix.leading
    attributes: dict[int, Any] = {}
    if batch > 1:
        attributes[lt.MATRIX_LAYOUT_BATCH_COUNT] = ctypes.c_int32(batch)
        stride = ctypes.c_int64(matrix.batch_stride)
        attributes[lt.MATRIX_LAYOUT_STRIDED_BATCH_OFFSET] = stride
    return _made(calls, stack, "MatrixLayout", attributes, _TYPES[matrix.dtype], *size)


def _made(
    calls: LibraryCalls, stack: ExitStack, kind: str, attributes: Mapping[int, Any], *arguments: int
) -> int:
    """A descriptor with attributes, which it copies; destroyed with the stack."""
    create, destroy, set_attribute = (
        getattr(calls, f"cublasLt{kind}{what}") for what in ("Create", "Destroy", "SetAttribute")
    )
    handle = ctypes.c_void_p()
    create(ctypes.addressof(handle), *arguments)
    assert handle.value is not None
    stack.callback(destroy, handle.value)
    for name, value in attributes.items():
        set_attribute(handle.value, name, ctypes.addressof(value), ctypes.sizeof(value))
    return handle.value
