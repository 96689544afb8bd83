"""The double of the library cuBLASLt, on the memory of the driver's double.

    cuda = CudaDouble()
    cuda.cublaslt.cublasLtCreate(address)
    status = cuda.cublaslt.functions.cublasLtCreate(address)

Each function takes the arguments of the library's, all of them numbers, and raises `CublasLtError`
where cuBLASLt documents a status. A call that the documentation leaves open raises
`OutsideTheDouble`. `functions` return the status, as the library does. Products run when their
stream does, and can be captured.

Sections in quotation marks are those of Nvidia's documentation of cuBLAS.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cuda_machine.cublaslt_descriptors import (
    INVALID_VALUE,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    STATUSES,
    SUCCESS,
    Bytes,
    CublasLtError,
    Descriptor,
    DescriptorCalls,
    Problem,
    problem_of,
)
from cuda_machine.driver_state import Context, OutsideTheDouble, State
from cuda_machine.faults import Fault
from lamina.engines.cuda.cublaslt_functions import FUNCTIONS, HeuristicResult

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

    def data(self, problem: Problem) -> tuple[int, ...]:
        """The eight numbers of a cublasLtMatmulAlgo_t."""
        packed = int.from_bytes(one.bit_length() for one in self.alignments)
        own = MARK, _checksum(problem), packed, self.workspace, self.schemes, self.place
        return (*own, 0, 0)

    @staticmethod
    def of_data(data: Sequence[int], problem: Problem) -> Algorithm:
        """The algorithm of such data, if a heuristic has found it for this problem."""
        mark, checksum, packed, workspace, schemes, place, *_ = data
        if mark != MARK:
            raise OutsideTheDouble("an algorithm that no heuristic has found")
        if checksum != _checksum(problem):
            raise OutsideTheDouble("an algorithm that was found for another product")
        alignments = tuple(1 << one >> 1 for one in packed.to_bytes(5))
        return Algorithm(alignments, workspace, schemes, place)


def _checksum(problem: Problem) -> int:
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

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.functions = Functions(self)
        self.workspace, self.proposals = 0, 2
        self.failure: Literal["", "status", "empty", "state", "call"] = ""
        self.problems: list[Problem] = []
        self.called: list[Algorithm] = []
        self._handles: dict[int, Context] = {}
        # The data of the algorithms whose kernels are loaded.
        self._loaded: set[tuple[int, ...]] = set()

    def alive(self) -> list[str]:
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
        layouts = tuple(self.find("layout", one) for one in (Adesc, Bdesc, Cdesc, Ddesc))
        wanted = self.find("preference", preference)
        if requestedAlgoCount < 1 or not heuristicResultsArray or not returnAlgoCount:
            raise CublasLtError(INVALID_VALUE, "no room for results")
        problem = problem_of(operation, layouts)
        if self.failure == "status":
            raise CublasLtError(NOT_SUPPORTED, "no heuristic")
        count = 0 if self.failure == "empty" else min(self.proposals, requestedAlgoCount)
        ctypes.c_int.from_address(returnAlgoCount).value = count
        for place in range(count):
            algorithm = self._algorithm(place, operation, wanted)
            address = heuristicResultsArray + place * ctypes.sizeof(HeuristicResult)
            result = HeuristicResult.from_address(address)
            result.algorithm[:] = algorithm.data(problem)
            result.workspace_bytes = algorithm.workspace
            result.state = NOT_SUPPORTED if self.failure == "state" else SUCCESS
            result.waves = 1.0

    def _algorithm(self, place: int, operation: Descriptor, wanted: Descriptor) -> Algorithm:
        bias = operation["BIAS_POINTER"]
        promised = (wanted[f"MIN_ALIGNMENT_{matrix}_BYTES"] for matrix in "ABCD")
        workspace = self.workspace if self.workspace <= wanted["MAX_WORKSPACE_BYTES"] else 0
        schemes = wanted["REDUCTION_SCHEME_MASK"]
        return Algorithm((*promised, min(bias & -bias, 256)), workspace, schemes, place)

    def cublasLtMatmul(
        self, lightHandle, computeDesc, alpha, A, Adesc, B, Bdesc, beta, C, Cdesc, D, Ddesc,
        algo, workspace, workspaceSizeInBytes, stream,
    ):  # fmt: skip
        self._check_handle(lightHandle)
        operation = self.find("operation", computeDesc)
        layouts = tuple(self.find("layout", one) for one in (Adesc, Bdesc, Cdesc, Ddesc))
        problem = problem_of(operation, layouts)
        if not all((alpha, beta, A, B, C, D)):
            raise CublasLtError(INVALID_VALUE, "a null pointer")
        scale, kept = (ctypes.c_float.from_address(one).value for one in (alpha, beta))
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
        found = self.state.find_stream(stream)
        if found.context is not self._handles[lightHandle]:
            raise OutsideTheDouble("a stream of another context than the handle's")

        def run() -> float:
            return product.run(algorithm, workspace)

        # The first call loads the kernel, which a capture can prohibit ("Lazy Loading").
        if data not in self._loaded:
            self.state.check_unsafe_call()
            self._loaded.add(data)
        self.state.run_or_capture(found, run)

    def _check_handle(self, handle: int) -> None:
        context = self._handles.get(handle)
        if context is None:
            raise CublasLtError(NOT_INITIALIZED, "no such handle")
        # "cublasLtCreate()": a handle is tied to the device that was current.
        if not self.state.thread.contexts or self.state.current() is not context:
            raise OutsideTheDouble("a handle of another context than the current one")


class Functions:
    """The double's functions as ctypes has those of the library: they return a status."""

    def __init__(self, double: CublasLtDouble) -> None:
        self._double = double

    def cublasLtGetVersion(self) -> int:
        return 130000

    def cublasLtGetStatusName(self, status: int) -> bytes:
        return STATUSES[status].encode()

    def __getattr__(self, name: str) -> Callable[..., int]:
        function, parameters = getattr(self._double, name), FUNCTIONS[name]

        def call(*arguments: int) -> int:
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


def _check_addresses(algorithm: Algorithm, problem: Problem, addresses: tuple[int, ...]) -> None:
    """Heuristics exclude algorithms that need larger alignments than they were promised."""
    matrices = problem.a, problem.b, problem.c, problem.d
    rows = zip("ABCD", addresses, algorithm.alignments, matrices, strict=False)
    for name, address, alignment, one in rows:
        if address % alignment:
            raise OutsideTheDouble(f"{name} is not aligned to {alignment} bytes, as was promised")
        if address % one.dtype.itemsize:
            raise OutsideTheDouble(f"{name} is not aligned to its elements")
    if problem.has_bias and addresses[4] % algorithm.alignments[4]:
        raise OutsideTheDouble("the bias is not aligned as the heuristic saw it")


def _check_workspace(algorithm: Algorithm, address: int, size: int) -> None:
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

    def check_overlaps(self, workspace: int, workspace_bytes: int) -> None:
        """The result overlaps no factor, and the workspace overlaps nothing."""
        one = self.problem
        result = range(self.d, self.d + one.d.bytes)
        scratch = range(workspace, workspace + workspace_bytes)
        for name, address, matrix in (("A", self.a, one.a), ("B", self.b, one.b)):
            own = range(address, address + matrix.bytes)
            if _meet(own, result):
                raise OutsideTheDouble(f"D overlaps {name}")
            if _meet(own, scratch):
                raise OutsideTheDouble(f"the workspace overlaps {name}")
        if _meet(result, scratch):
            raise OutsideTheDouble("the workspace overlaps D")
        if self.c and self.c != self.d and _meet(range(self.c, self.c + one.c.bytes), result):
            raise OutsideTheDouble("D overlaps C, but is not C")

    def run(self, algorithm: Algorithm, workspace: int) -> float:
        one = self.problem
        a, b = self._bytes(self.a, one.a.bytes), self._bytes(self.b, one.b.bytes)
        c = self._bytes(self.c, one.c.bytes) if self.c else None
        bias = None
        if self.bias:
            bias = self._bytes(self.bias, one.d.rows * one.d.dtype.itemsize)
        result = one.compute(a, b, c, bias, algorithm.schemes)
        for batch, column in np.ndindex(one.d.batch, one.d.columns):
            element = batch * one.d.stride + column * one.d.leading
            address = self.d + element * one.d.dtype.itemsize
            data = result[batch, :, column].tobytes()
            self._memory(address, len(data)).write(address, data)
        size = algorithm.workspace
        if size:
            self._memory(workspace, size).write(workspace, b"\xa5" * size)
        return result.size * one.inner * MILLISECONDS_PER_MULTIPLICATION

    def _bytes(self, address: int, size: int) -> Bytes:
        return np.frombuffer(self._memory(address, size).read(address, size), np.uint8)

    def _memory(self, address: int, size: int) -> Any:
        for one in self.state.allocations.values():
            if one.address <= address and address + size <= one.address + one.size:
                return one.context.device.memory
        raise Fault(f"cublasLtMatmul accesses {size} bytes at {address:#x}, in no allocation")


def _meet(one: range, other: range) -> bool:
    return bool(one) and bool(other) and one.start < other.stop and other.start < one.stop
