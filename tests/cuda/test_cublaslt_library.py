"""Numbers, records and parameters of cuBLASLt, as Nvidia's header and the library have them.

Where the package nvidia-cublas is installed. Descriptors need no GPU.
"""

import ctypes
import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from cuda_machine import cublaslt_double as double
from cuda_machine.cublaslt_double import CublasLtDouble
from lamina.engines.cuda import cublaslt_functions as lt
from lamina.engines.cuda.calls import CudaError, LibraryCalls
from lamina.engines.cuda.cublaslt import _Description
from lamina.engines.cuda.requirements import _path_of, cublaslt_library
from lamina.engines.gpu.plain_products import Matrix, MatrixProduct
from lamina.errors import EngineError


@pytest.fixture(scope="module")
def library():
    try:
        return cublaslt_library()
    except EngineError as error:
        pytest.skip(f"needs cuBLASLt: pip install nvidia-cublas ({error.facts})")


@pytest.fixture(scope="module")
def header(library):
    """Without its comments."""
    path = Path(_path_of("cublasLt")).parents[1] / "include" / "cublasLt.h"
    if not path.exists():
        pytest.skip("the header cublasLt.h is not installed")
    text = path.read_text(encoding="utf-8")
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def numbers():
    """The numbers of the engine and of its double, with their names in the header."""
    for name, value in vars(lt).items():
        if name.isupper() and type(value) is int:
            yield f"CUBLASLT_{name}", value
    yield "CUBLASLT_EPILOGUE_DEFAULT", double.EPILOGUE_DEFAULT
    yield "CUBLASLT_EPILOGUE_BIAS", double.EPILOGUE_BIAS
    prefixes = {"operation": "MATMUL_DESC", "layout": "MATRIX_LAYOUT", "preference": "MATMUL_PREF"}
    for kind, prefix in prefixes.items():
        for number, (name, *_) in double.ATTRIBUTES[kind].items():
            yield f"CUBLASLT_{prefix}_{name}", number


def test_numbers_are_those_of_the_header(header):
    known = {name: int(value) for name, value in re.findall(r"(CUBLASLT_\w+) = (\d+),", header)}
    found = [*numbers()]
    assert len(found) > 25
    assert {name: known.get(name) for name, _ in found} == dict(found)


KINDS = {"size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64}
HANDLES = re.compile(
    r"\*|\[\]|cublasLt(Handle|MatmulDesc|MatrixLayout|MatmulPreference)_t|Stream_t"
)


@pytest.mark.parametrize("name", lt.FUNCTIONS)
def test_parameters_are_those_of_the_header(header, name):
    (declared,) = re.findall(rf"\b{name}\(([^)]*)\);", header)
    parameters = [" ".join(text.split()) for text in declared.split(",") if text != "void"]
    expected = [
        ctypes.c_void_p if HANDLES.search(text) else KINDS.get(text.split()[0], ctypes.c_int)
        for text in parameters
    ]
    assert [*lt.FUNCTIONS[name]] == expected
    if hasattr(CublasLtDouble, name):
        names = [*inspect.signature(getattr(CublasLtDouble, name)).parameters]
        assert names == ["self", *(re.findall(r"\w+", parameter)[-1] for parameter in parameters)]


def test_the_record_of_an_algorithm_has_the_size_of_the_headers():
    # uint64_t[8], size_t, an enumeration, float, int[4]
    assert ctypes.sizeof(lt.HeuristicResult) == 96
    offsets = [getattr(lt.HeuristicResult, name).offset for name, *_ in lt.HeuristicResult._fields_]
    assert offsets == [0, 64, 72, 76, 80]


def test_the_library_has_the_statuses_that_the_double_returns(library):
    for status, name in double.STATUSES.items():
        assert library.cublasLtGetStatusName(status) == name.encode()
    assert LibraryCalls(lambda: library).version() >= 130000


def matrix(rows, columns, dtype):
    return Matrix(0, rows, columns, rows + 3, rows * columns + 40, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_descriptors_have_the_attributes_that_the_engine_sets(library, dtype):
    left, right, result = matrix(6, 4, dtype), matrix(5, 6, dtype), matrix(4, 5, "float32")
    product = MatrixProduct(3, left, right, True, True, result, bias_start=2)
    calls = LibraryCalls(lambda: library)
    bias = 0x1230

    def read(kind, descriptor, attribute, value):
        function, size = getattr(library, f"cublasLt{kind}GetAttribute"), ctypes.c_size_t()
        function.argtypes = (*lt.FUNCTIONS["cublasLtMatmulDescSetAttribute"], ctypes.c_void_p)
        arguments = descriptor, attribute, ctypes.addressof(value), ctypes.sizeof(value)
        assert function(*arguments, ctypes.addressof(size)) == 0
        assert size.value == ctypes.sizeof(value)
        return value.value

    with _Description(calls, product, bias) as described:
        for attribute, value, expected in (
            (lt.MATMUL_DESC_TRANSA, ctypes.c_int32(), 1),
            (lt.MATMUL_DESC_TRANSB, ctypes.c_int32(), 1),
            (lt.MATMUL_DESC_EPILOGUE, ctypes.c_uint32(), lt.EPILOGUE_BIAS),
            (lt.MATMUL_DESC_BIAS_POINTER, ctypes.c_uint64(), bias),
            # CUBLASLT_MATMUL_DESC_COMPUTE_TYPE and CUBLASLT_MATMUL_DESC_SCALE_TYPE
            (0, ctypes.c_int32(), 68),
            (1, ctypes.c_int32(), 0),
        ):
            assert read("MatmulDesc", described.operation, attribute, value) == expected
        assert described.layouts[2] == described.layouts[3]
        for layout, operand in zip(described.layouts, (left, right, result), strict=False):
            # CUBLASLT_MATRIX_LAYOUT_TYPE, then its rows, columns and leading dimension.
            kinds = {0: ctypes.c_uint32, 2: ctypes.c_uint64, 3: ctypes.c_uint64, 4: ctypes.c_int64}
            kinds[lt.MATRIX_LAYOUT_BATCH_COUNT] = ctypes.c_int32
            kinds[lt.MATRIX_LAYOUT_STRIDED_BATCH_OFFSET] = ctypes.c_int64
            values = [read("MatrixLayout", layout, key, kind()) for key, kind in kinds.items()]
            type_ = {"float32": 0, "float16": 2, "bfloat16": 14}[operand.dtype]
            sizes = operand.rows, operand.columns, operand.leading
            assert values == [type_, *sizes, 3, operand.batch_stride]


def test_a_wrong_size_of_an_attribute_is_an_error(library):
    calls = LibraryCalls(lambda: library)
    handle, value = ctypes.c_void_p(), ctypes.c_uint8()
    calls.cublasLtMatmulDescCreate(ctypes.addressof(handle), 68, 0)
    text = "CUBLAS_STATUS_INVALID_VALUE in cublasLtMatmulDescSetAttribute"
    with pytest.raises(CudaError, match=text):
        calls.cublasLtMatmulDescSetAttribute(handle.value, 3, ctypes.addressof(value), 1)
    calls.cublasLtMatmulDescDestroy(handle.value)
