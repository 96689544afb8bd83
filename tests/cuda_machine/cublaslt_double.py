"""The double of the library cuBLASLt, on the memory of the driver's double.

    cuda = CudaDouble()
    cuda.cublaslt.cublasLtCreate(address)
    status = cuda.cublaslt.functions.cublasLtCreate(address)

Each function takes the arguments of the library's, all of them numbers, and raises `CublasLtError`
where cuBLASLt documents a status. A call that the documentation leaves open raises
`OutsideTheDouble`. `functions` return the status, as the library does. Products run when their
stream does, and can be captured.

Quotation marks enclose sections of Nvidia's documentation of cuBLAS.
"""

import ctypes
import zlib
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from cuda_machine.driver_state import OutsideTheDouble, State
from cuda_machine.faults import Fault
from lamina.engines.cuda.cublaslt_functions import FUNCTIONS, HeuristicResult

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

    def __init__(self, status, why):
        super().__init__(f"{STATUSES[status]}: {why}")
        self.status = status


# The attributes that the double knows, by their numbers: names, types, and values before they are
# set ("cublasLtMatmulDescAttributes_t", "cublasLtMatrixLayoutAttribute_t",
# "cublasLtMatmulPreferenceAttributes_t"). A pointer has eight bytes.
ATTRIBUTES = {
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

    def __getitem__(self, name):
        return self.attributes[name]


class DescriptorCalls:
    """Creates, sets and destroys descriptors. Their handles are numbers that nothing else has."""

    def __init__(self, state):
        self.state = state
        self.descriptors = {}

    def find(self, kind, handle):
        """A living descriptor. Uses of dead ones and of other kinds are undefined."""
        descriptor = self.descriptors.get(handle)
        if handle == 0:
            raise CublasLtError(INVALID_VALUE, f"no {kind}")
        if descriptor is None or descriptor.kind != kind:
            raise OutsideTheDouble(f"{handle:#x} is no {kind} that exists")
        return descriptor

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

    def _create(self, address, kind, *created):
        handle = self.state.new_handle()
        attributes = {name: value for name, _, value in ATTRIBUTES[kind].values()}
        self.descriptors[handle] = Descriptor(handle, kind, created, attributes)
        ctypes.c_uint64.from_address(address).value = handle

    def _set(self, descriptor, attribute, buffer, size):
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
    def dtype(self):
        return TYPES[self.type]

    @property
    def bytes(self):
        """From the first element of the first matrix to the last one of the last matrix."""
        last = (self.batch - 1) * self.stride + (self.columns - 1) * self.leading + self.rows
        return last * self.dtype.itemsize

    def view(self, memory):
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
    def inner(self):
        """The length of the sums."""
        return self.a.rows if self.a_transposed else self.a.columns

    def compute(self, a, b, c, bias, schemes):
        """The result [batch, rows, columns], in the type of D.

        Sums are computed in float64 and rounded to float32, as exact as sums in any order. What
        is added to them is added in float32 ("scaleType"), and the result is rounded to the type of
        D when it is stored.

        Args:
            a, b: the memory of the factors.
            c, bias: the memory of what is added, or None.
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

    def _sums(self, left, right, schemes):
        if not schemes & ROUNDING_SCHEMES or self.d.dtype == np.float32 or self.inner < 2:
            return np.matmul(left, right).astype(np.float32)
        half = self.inner // 2
        first = np.matmul(left[..., :half], right[:, :half]).astype(self.d.dtype)
        rest = np.matmul(left[..., half:], right[:, half:])
        return (first.astype(np.float64) + rest).astype(np.float32)


def _as_tf32(factors):
    """Float32 without those that are not rounded to TF32, which become NaN.

    How they are rounded is not documented ("cublasComputeType_t").
    """
    bits = factors.astype(np.float32).view(np.uint32)
    return np.where(bits & 0x1FFF, np.nan, factors)


def problem_of(operation, layouts):
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


def _layouted(name, descriptor):
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


def _check_sizes(a, b, c, d, transposed):
    (rows, inner), (right_inner, columns) = (
        (matrix.columns, matrix.rows) if is_so else (matrix.rows, matrix.columns)
        for matrix, is_so in zip((a, b), transposed, strict=True)
    )
    if inner != right_inner or (rows, columns) != (d.rows, d.columns):
        message = f"{rows} x {inner} times {right_inner} x {columns} is no {d.rows} x {d.columns}"
        raise CublasLtError(INVALID_VALUE, message)
    # "cublasLtMatmul()": C and D have the same type, size, batch and order.
    if (c.rows, c.columns) != (d.rows, d.columns):
        raise CublasLtError(INVALID_VALUE, f"C is {c.rows} x {c.columns}")
    if len({matrix.batch for matrix in (a, b, c, d)}) > 1:
        raise CublasLtError(INVALID_VALUE, "batches of different lengths")
    sizes = (d.batch, d.stride), (d.columns, d.leading), (d.rows, 1)
    grid = np.ix_(*(np.arange(count) * step for count, step in sizes))
    indices = grid[0] + grid[1] + grid[2]
    if len(np.unique(indices)) < indices.size:
        # "cublasGemmStridedBatchedEx()": results must not overlap.
        raise OutsideTheDouble("results of a batch that overlap")


# The simulated clock's milliseconds for a multiplication.
MILLISECONDS_PER_MULTIPLICATION = 1e-9
WORKSPACE_ALIGNMENT = 256
# Begins the data of the double's algorithms.
MARK = 0x1A31A


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that a heuristic has found for a problem.

    It may count on alignments of A, B, C, D and the bias, needs a workspace (all in bytes), and may
    combine parts of sums by these schemes. Its data have the same meaning in all processes.
    """

    alignments: tuple[int, ...]
    workspace: int
    schemes: int
    place: int = 0

    def data(self, problem):
        """The eight numbers of a cublasLtMatmulAlgo_t."""
        packed = int.from_bytes(alignment.bit_length() for alignment in self.alignments)
        numbers = MARK, _checksum(problem), packed, self.workspace, self.schemes, self.place
        return (*numbers, 0, 0)

    @staticmethod
    def of_data(data, problem):
        """The algorithm of such data, if a heuristic has found it for this problem."""
        mark, checksum, packed, workspace, schemes, place, *_ = data
        if mark != MARK:
            raise OutsideTheDouble("an algorithm that no heuristic has found")
        if checksum != _checksum(problem):
            raise OutsideTheDouble("an algorithm that was found for another product")
        alignments = tuple(1 << length >> 1 for length in packed.to_bytes(5))
        return Algorithm(alignments, workspace, schemes, place)


def _checksum(problem):
    return zlib.crc32(repr(problem).encode())


class CublasLtDouble(DescriptorCalls):
    """Has the functions of the library that are named here.

    Attributes:
        functions: what the engine calls: they return the status.
        workspace: the bytes of a workspace that its algorithms use if they may.
        proposals: the number of algorithms for a problem.
        failure: how heuristics fail: with a status, without a result, or with a result that is no
            success; "" if they do not. "call": the calls of products fail.
        problems, called: the problems and the algorithms of all products, in the order of the
            calls.
    """

    def __init__(self, state):
        super().__init__(state)
        self.functions = Functions(self)
        self.workspace, self.proposals = 0, 2
        self.failure = ""
        self.problems = []
        self.called = []
        self._handles = {}
        # The data of the algorithms whose kernels are loaded.
        self._loaded = set()

    def alive(self):
        """What was created and not destroyed, one line each."""
        found = [f"{one.kind} {one.handle:#x}" for one in self.descriptors.values()]
        return [*found, *(f"handle {handle:#x}" for handle in self._handles)]

    def cublasLtCreate(self, lightHandle):
        """Writes a handle for the current context ("cublasLtCreate()")."""
        if not self.state.thread.contexts:
            raise CublasLtError(NOT_INITIALIZED, "no context is current")
        handle = self.state.new_handle()
        self._handles[handle] = self.state.current()
        ctypes.c_uint64.from_address(lightHandle).value = handle

    def cublasLtMatmulAlgoGetHeuristic(
        self, lightHandle, operationDesc, Adesc, Bdesc, Cdesc, Ddesc, preference,
        requestedAlgoCount, heuristicResultsArray, returnAlgoCount,
    ):  # fmt: skip
        self._check_handle(lightHandle)
        operation = self.find("operation", operationDesc)
        layouts = tuple(self.find("layout", handle) for handle in (Adesc, Bdesc, Cdesc, Ddesc))
        preferences = self.find("preference", preference)
        if requestedAlgoCount < 1 or not heuristicResultsArray or not returnAlgoCount:
            raise CublasLtError(INVALID_VALUE, "no room for results")
        problem = problem_of(operation, layouts)
        if self.failure == "status":
            raise CublasLtError(NOT_SUPPORTED, "no heuristic")
        count = 0 if self.failure == "empty" else min(self.proposals, requestedAlgoCount)
        ctypes.c_int.from_address(returnAlgoCount).value = count
        for place in range(count):
            algorithm = self._algorithm(place, operation, preferences)
            address = heuristicResultsArray + place * ctypes.sizeof(HeuristicResult)
            result = HeuristicResult.from_address(address)
            result.algorithm[:] = algorithm.data(problem)
            result.workspace_bytes = algorithm.workspace
            result.state = NOT_SUPPORTED if self.failure == "state" else SUCCESS
            result.waves = 1.0

    def _algorithm(self, place, operation, preferences):
        bias = operation["BIAS_POINTER"]
        promised = (preferences[f"MIN_ALIGNMENT_{matrix}_BYTES"] for matrix in "ABCD")
        workspace = self.workspace if self.workspace <= preferences["MAX_WORKSPACE_BYTES"] else 0
        schemes = preferences["REDUCTION_SCHEME_MASK"]
        return Algorithm((*promised, min(bias & -bias, 256)), workspace, schemes, place)

    def cublasLtMatmul(
        self, lightHandle, computeDesc, alpha, A, Adesc, B, Bdesc, beta, C, Cdesc, D, Ddesc,
        algo, workspace, workspaceSizeInBytes, stream,
    ):  # fmt: skip
        self._check_handle(lightHandle)
        operation = self.find("operation", computeDesc)
        layouts = tuple(self.find("layout", handle) for handle in (Adesc, Bdesc, Cdesc, Ddesc))
        problem = problem_of(operation, layouts)
        if not all((alpha, beta, A, B, C, D)):
            raise CublasLtError(INVALID_VALUE, "a null pointer")
        scale, kept = (ctypes.c_float.from_address(address).value for address in (alpha, beta))
        if scale != 1.0 or kept not in (0.0, 1.0):
            raise OutsideTheDouble(f"alpha {scale} and beta {kept}")
        # In place, C == D and Cdesc == Ddesc ("cublasLtMatmul()").
        if C == D and Cdesc != Ddesc:
            raise CublasLtError(INVALID_VALUE, "C is D, but their layouts are not the same")
        if not algo:
            # The implicit heuristic allows no workspace; the double has none.
            raise OutsideTheDouble("a product without an algorithm")
        data = tuple((ctypes.c_uint64 * 8).from_address(algo))
        algorithm = Algorithm.of_data(data, problem)
        bias = operation["BIAS_POINTER"] if problem.has_bias else 0
        _check_addresses(algorithm, problem, (A, B, C, D, bias))
        _check_workspace(algorithm, workspace, workspaceSizeInBytes)
        product = _Product(self.state, problem, A, B, C if kept else 0, D, bias)
        product.check_overlaps(workspace, workspaceSizeInBytes)
        if self.failure == "call":
            raise CublasLtError(NOT_SUPPORTED, "an algorithm of another version")
        self.problems.append(problem)
        self.called.append(algorithm)
        stream = self.state.find_stream(stream)
        if stream.context is not self._handles[lightHandle]:
            raise OutsideTheDouble("a stream of another context than the handle's")

        def run():
            return product.run(algorithm, workspace)

        # The first call loads the kernel, which a capture can prohibit ("Lazy Loading").
        if data not in self._loaded:
            self.state.check_unsafe_call()
            self._loaded.add(data)
        self.state.run_or_capture(stream, run)

    def _check_handle(self, handle):
        context = self._handles.get(handle)
        if context is None:
            raise CublasLtError(NOT_INITIALIZED, "no such handle")
        # "cublasLtCreate()": a handle is tied to the device that was current.
        if not self.state.thread.contexts or self.state.current() is not context:
            raise OutsideTheDouble("a handle of another context than the current one")


class Functions:
    """The double's functions in the form that ctypes gives the library's: they return a status."""

    def __init__(self, double):
        self._double = double

    def cublasLtGetVersion(self):
        return 130000

    def cublasLtGetStatusName(self, status):
        return STATUSES[status].encode()

    def __getattr__(self, name):
        function, parameters = getattr(self._double, name), FUNCTIONS[name]

        def call(*arguments):
            for parameter, value in zip(parameters, arguments, strict=True):
                # A null pointer is None.
                if (parameter(value).value or 0) != value:
                    raise OutsideTheDouble(f"{value} in {name}, which ctypes would change")
            try:
                function(*arguments)
            except CublasLtError as error:
                return error.status
            return SUCCESS

        return call


def _check_addresses(algorithm, problem, addresses):
    """Heuristics exclude algorithms that need larger alignments than they were promised."""
    matrices = problem.a, problem.b, problem.c, problem.d
    rows = zip("ABCD", addresses, algorithm.alignments, matrices, strict=False)
    for name, address, alignment, matrix in rows:
        if address % alignment:
            raise OutsideTheDouble(f"{name} is not aligned to {alignment} bytes, as was promised")
        if address % matrix.dtype.itemsize:
            raise OutsideTheDouble(f"{name} is not aligned to its elements")
    if problem.has_bias and addresses[4] % algorithm.alignments[4]:
        raise OutsideTheDouble("the bias is not aligned as the heuristic saw it")


def _check_workspace(algorithm, address, size):
    """ "cublasLtMatmul()": at least as large as the algorithm needs, aligned to 256 bytes."""
    if size < algorithm.workspace or (algorithm.workspace and not address):
        raise CublasLtError(INVALID_VALUE, f"a workspace of {size} bytes")
    if address % WORKSPACE_ALIGNMENT:
        raise CublasLtError(INVALID_VALUE, "a workspace that is not aligned to 256 bytes")


@dataclass(frozen=True)
class _Product:
    """A product with its addresses; 0 for a C that is not read, and for no bias."""

    state: State
    problem: Problem
    a: int
    b: int
    c: int
    d: int
    bias: int

    def check_overlaps(self, workspace, workspace_bytes):
        """The result overlaps no factor, and the workspace overlaps nothing."""
        problem = self.problem
        result = range(self.d, self.d + problem.d.bytes)
        scratch = range(workspace, workspace + workspace_bytes)
        for name, address, matrix in (("A", self.a, problem.a), ("B", self.b, problem.b)):
            factor = range(address, address + matrix.bytes)
            if _meet(factor, result):
                raise OutsideTheDouble(f"D overlaps {name}")
            if _meet(factor, scratch):
                raise OutsideTheDouble(f"the workspace overlaps {name}")
        if _meet(result, scratch):
            raise OutsideTheDouble("the workspace overlaps D")
        if self.c and self.c != self.d and _meet(range(self.c, self.c + problem.c.bytes), result):
            raise OutsideTheDouble("D overlaps C, but is not C")

    def run(self, algorithm, workspace):
        problem = self.problem
        a, b = self._bytes(self.a, problem.a.bytes), self._bytes(self.b, problem.b.bytes)
        c = self._bytes(self.c, problem.c.bytes) if self.c else None
        bias = None
        if self.bias:
            bias = self._bytes(self.bias, problem.d.rows * problem.d.dtype.itemsize)
        result = problem.compute(a, b, c, bias, algorithm.schemes)
        for batch, column in np.ndindex(problem.d.batch, problem.d.columns):
            element = batch * problem.d.stride + column * problem.d.leading
            address = self.d + element * problem.d.dtype.itemsize
            data = result[batch, :, column].tobytes()
            self._memory(address, len(data)).write(address, data)
        size = algorithm.workspace
        if size:
            self._memory(workspace, size).write(workspace, b"\xa5" * size)
        return result.size * problem.inner * MILLISECONDS_PER_MULTIPLICATION

    def _bytes(self, address, size):
        return np.frombuffer(self._memory(address, size).read(address, size), np.uint8)

    def _memory(self, address, size):
        for one in self.state.allocations.values():
            if one.address <= address and address + size <= one.address + one.size:
                return one.context.device.memory
        raise Fault(f"cublasLtMatmul accesses {size} bytes at {address:#x}, in no allocation")


def _meet(one, other):
    return bool(one) and bool(other) and one.start < other.stop and other.start < one.stop
