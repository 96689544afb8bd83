"""The functions of the library cuBLASLt that the engine calls, and the numbers that they take.

They are from Nvidia's header `cublasLt.h`. A constant has its name there, without `CUBLASLT_`.
All functions but the last two return a status. Addresses, handles and descriptors are numbers; what
a function returns through a pointer it writes to an address.
"""

from __future__ import annotations

import ctypes
from typing import Any, final

# cublasLtMatmulDescAttributes_t
MATMUL_DESC_TRANSA = 3
MATMUL_DESC_TRANSB = 4
MATMUL_DESC_EPILOGUE = 7
MATMUL_DESC_BIAS_POINTER = 8
# cublasLtMatrixLayoutAttribute_t
MATRIX_LAYOUT_BATCH_COUNT = 5
MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
# cublasLtMatmulPreferenceAttributes_t
MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
MATMUL_PREF_REDUCTION_SCHEME_MASK = 3
MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5
MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6
MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7
MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
# cublasLtReductionScheme_t
REDUCTION_SCHEME_COMPUTE_TYPE = 2
# cublasLtEpilogue_t
EPILOGUE_BIAS = 4

# cublasLtMatmulAlgo_t, which has the same meaning in all processes with this version of the library
AlgorithmData = ctypes.c_uint64 * 8


@final
class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what a heuristic says of it."""

    _fields_ = [
        ("algorithm", AlgorithmData),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


# The parameters of each function. Enumerations are ints.
_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SET_ATTRIBUTE = _POINTER, _INT, _POINTER, _SIZE
FUNCTIONS: dict[str, tuple[type[Any], ...]] = {
    "cublasLtCreate": (_POINTER,),
    "cublasLtMatmulDescCreate": (_POINTER, _INT, _INT),
    "cublasLtMatmulDescSetAttribute": _SET_ATTRIBUTE,
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatrixLayoutCreate": (
        *(_POINTER, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    ),
    "cublasLtMatrixLayoutSetAttribute": _SET_ATTRIBUTE,
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceCreate": (_POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": _SET_ATTRIBUTE,
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    # The handle, the operation, A, B, C, D, the preference, and how many results are wanted where.
    "cublasLtMatmulAlgoGetHeuristic": (*(_POINTER,) * 7, _INT, _POINTER, _POINTER),
    # The handle, the operation, alpha, A, B, beta, C and D with their layouts, the algorithm, the
    # workspace, its bytes, and the stream.
    "cublasLtMatmul": (*(_POINTER,) * 14, _SIZE, _POINTER),
    "cublasLtGetStatusName": (_INT,),
    "cublasLtGetVersion": (),
}


def functions_of(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, whose functions then have the types of their parameters."""
    for name, parameters in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes = parameters
        function.restype = ctypes.c_int
    library.cublasLtGetStatusName.restype = ctypes.c_char_p
    library.cublasLtGetVersion.restype = _SIZE
    return library
