"""Graphs of odd and tiny shapes for the tests of kernels for GPUs."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, DType, bfloat16, float16, float32, float64, int64
from lamina.compiler.pipeline import compile_graph
from lamina.engines.discovery import open_engine
from lamina.engines.engine import Candidate, Device
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.tuning import Timer, Trials
from lamina.graph import Graph, Tensor, leaf
from lamina.learning.by_output import options_of
from lamina.ops.conversion import stored_as_tf32
from lamina.program.index import Axis, axis_index
from lamina.program.program import Buffer, Plan, Program
from lamina.program.scalar import Apply, Load, Local
from lamina.program.steps import Loop, Reduce, Store, Write
from lamina.program.target import Target
from lamina.program.tf32 import rounded_to_tf32
from lamina.step.planning import bill_of
from lamina.step.precision import Precision

# Of a GPU.
TRAITS = Traits(
    is_processor=False,
    local_bytes=1 << 15,
    largest_group=256,
    has_float64=True,
    lanes=1,
    compute_units=4,
    exact_division=True,
    alignment_bytes=128,
    largest_block_bytes=1 << 40,
    fused=True,
)


def trained_convolutions(half: DType | None, device: Device, target: Target) -> Program:
    """Convolutions with normalisation, a linear layer, attention-like rows, and all gradients."""
    net = lm.Sequential(
        *(lm.Input(16, 16, 16), lm.Conv2d(64, 3, padding=1), lm.BatchNorm(), lm.ReLU()),
        *(lm.MaxPool2d(2), lm.Flatten(), lm.Linear(64), lm.LayerNorm(), lm.Linear(10)),
    )
    options = options_of(lm.CrossEntropy(), lm.Adam(), None, (), "test")
    return bill_of(net, 64, options, Precision(float32, half), lambda: device, target).program


Result = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """A graph of some inputs.

    Attributes:
        name: for people.
        shapes: of the inputs.
        result: (inputs) -> the output.
        dtypes: of the inputs; all float32 if it is empty.
        limit: integers are drawn from 0 to this number, which is excluded.
        program: what is run instead of the graph; its states begin with ones.
        is_tf32: whether the inputs are rounded to TF32.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    result: Result
    dtypes: tuple[DType, ...] = ()
    limit: int = 1
    program: Program | None = None
    is_tf32: bool = False

    def graph(self) -> Graph:
        dtypes = self.dtypes or (float32,) * len(self.shapes)
        leaves = [
            leaf(f"x{number}", "input", shape, dtype)
            for number, (shape, dtype) in enumerate(zip(self.shapes, dtypes, strict=True))
        ]
        return Graph(tuple(leaves), (("y", self.result(*leaves)),))

    def feeds(self) -> dict[str, Array]:
        """The inputs, from a fixed seed."""
        generator = np.random.default_rng(0)
        dtypes = self.dtypes or (float32,) * len(self.shapes)
        arrays: dict[str, Array] = {}
        for number, (shape, dtype) in enumerate(zip(self.shapes, dtypes, strict=True)):
            drawn = generator.normal(size=shape)
            if not dtype.is_float:
                drawn = generator.integers(0, self.limit, shape)
            arrays[f"x{number}"] = np.asarray(drawn, dtype.numpy)
            if self.is_tf32:
                arrays[f"x{number}"] = rounded_to_tf32(arrays[f"x{number}"])
        for state in self.program.of_kind("state") if self.program is not None else ():
            arrays[state.name] = np.ones(state.shape, state.dtype.numpy)
        return arrays


def compiled(case: Case, target: Target) -> Program:
    """The program of a case."""
    if case.program is not None:
        return case.program
    return compile_graph(case.graph(), batch=1, name=case.name, target=target)


def assert_close(result: Array, expected: Array, tolerance: float, message: str) -> None:
    """Floats of 16 bits may be rounded to neighbours, if a sum lies halfway between them."""
    half = {"bfloat16": 2.0**-7, "float16": 2.0**-10}.get(expected.dtype.name, 0.0)
    wide = (array.astype("float64") if half else array for array in (result, expected))
    tolerance = max(tolerance, half)
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=2 * tolerance, err_msg=message)


def run_kernel(engine: str, text: str, kernel: str, *arrays: Array) -> None:
    """Runs a kernel of one work item on a device; arrays are its arguments, and change with it."""
    opened: Any = open_engine(engine)
    driver = opened.arena().driver
    buffers = [driver.allocate(max(array.nbytes, 1)) for array in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        driver.queue.write(buffer, array)
    built = driver.build(text)
    driver.queue.launch(driver.kernel(built, kernel, buffers, 1, numbered=False, group=1))
    for buffer, array in zip(buffers, arrays, strict=True):
        driver.queue.read(array, buffer)


def timed_candidates(
    program: Program, family: Any, driver: Any, timer: Timer
) -> tuple[tuple[Candidate, ...], bool]:
    """The times of all candidates for a step, and whether all were begun."""
    with ThreadPoolExecutor() as threads:
        return Trials(program, family, lambda: driver, threads).timed(timer, math.inf)


def _product(m: int, k: int, n: int) -> Case:
    return Case(f"matmul-{m}x{k}x{n}", ((m, k), (k, n)), ops.matmul)


def _transposed(x: Tensor, weight: Tensor) -> Tensor:
    return ops.transpose(ops.transpose(x) @ ops.transpose(weight))


def _conv(x: Tensor, weight: Tensor) -> Tensor:
    return ops.conv(x, weight, strides=(2, 1), padding=((1, 1), (0, 2)), dilations=(1, 2), groups=1)


def _conv_3x3(x: Tensor, weight: Tensor) -> Tensor:
    return ops.conv(x, weight, (1, 1), ((1, 1), (2, 2)), dilations=(1, 1), groups=1)


def _conv_transpose_3x3(x: Tensor, weight: Tensor) -> Tensor:
    return ops.conv_transpose(x, weight, (4, 4), 1, ((1, 1), (1, 1)), dilations=1)


def _rounded(half: DType) -> Callable[[Tensor, Tensor], Tensor]:
    """The product of a rounded float32 and floats of 16 bits, as in mixed precision."""
    return lambda x, weight: ops.rounded(x, half) @ ops.cast(weight, float32)


def _of(change: Callable[[Tensor], Tensor], product: Callable[..., Tensor]) -> Result:
    """The product of changed operands."""
    return lambda x, weight: product(change(x), change(weight))


_tf32 = partial(_of, ops.round_to_tf32)
_stored_tf32 = partial(_of, stored_as_tf32)


def _normalized(x: Tensor) -> Tensor:
    centered = x - ops.mean(x, 0, keepdims=True)
    return centered / ops.sqrt(ops.mean(centered * centered, 0, keepdims=True) + 1e-3)


def _replacing_of_rows(x: Tensor) -> Tensor:
    """The number that is stored for each row replaces one that all items of the row have read."""
    rows = x * ops.cumsum(ops.max(x, 1, keepdims=True), 0)
    return ops.cumsum(rows, 1) + ops.cumsum(ops.sum(rows, 1, keepdims=True), 0)


def _written() -> Program:
    """Stages that overwrite what an earlier one reads, and read what an earlier one writes."""
    rows, inner = Axis("i", 4), Axis("k", 6)
    row, element = axis_index(rows), axis_index(rows) * 6 + axis_index(inner)
    x, old = Load("x0", element, float32), Load("s", row, float32)
    total, kept, largest = (Local(name, float32) for name in ("total", "kept", "largest"))
    product = Apply("multiply", (x, kept), float32)
    backwards = Load("y", row * 6 + 5 - axis_index(inner), float32)
    stages = (
        Reduce("total", "sum", (inner,), x, float32),
        Reduce("kept", "sum", (), old, float32),
        Write((), (Store("s", row, total),)),
        Write((inner,), (Store("y", element, product),)),
        Reduce("largest", "maximum", (inner,), backwards, float32),
        Write((), (Store("z", row, largest),)),
    )
    shapes = {"x0": (4, 6), "s": (4,), "y": (4, 6), "z": (4,)}
    buffers = {
        name: Buffer(name, "input" if name == "x0" else "state", shape, float32)
        for name, shape in shapes.items()
    }
    step = Loop("0.step", (rows,), stages)
    outputs = (("s", "s"), ("y", "y"), ("z", "z"))
    return Program("test", buffers, (step,), outputs, {}, Plan((), 0, ()))


CONTRACTIONS = (
    _product(1, 1, 1),
    _product(16, 12, 8),
    _product(7, 13, 5),
    _product(17, 3, 2),
    _product(1, 37, 5),
    _product(9, 40, 1),
    _product(3, 0, 2),
    Case("layer", ((6, 12), (12, 8), (8,), (6, 8)), lambda x, w, b, y: ops.tanh(x @ w + b) + y),
    Case("transposed", ((12, 8), (4, 12)), _transposed),
    Case("batched", ((3, 5, 4), (3, 4, 6)), ops.matmul),
    # The result replaces the sums that its epilogue reads, in tiles that a single item stores.
    Case("replacing", ((2, 1, 3), (2, 3, 1), (2, 1, 1)), lambda x, y, z: x @ y + ops.cumsum(z, 0)),
    Case("float64", ((4, 6), (6, 10)), ops.matmul, (float64, float64)),
    Case("conv", ((2, 3, 5, 4), (4, 3, 3, 3)), _conv),
    Case("conv-8-channels", ((2, 8, 4, 4), (8, 8, 3, 3)), _conv),
    Case("conv-3x3", ((2, 3, 6, 4), (5, 3, 3, 3)), lambda x, w: ops.exp(_conv_3x3(x, w) * 0.1)),
    Case("conv-transpose-3x3", ((1, 4, 4, 4), (4, 3, 3, 3)), _conv_transpose_3x3),
    Case(
        *("gathered", ((5, 8), (6,), (8, 3)), lambda x, i, w: ops.take(x, i, 0) @ w),
        *((float32, int64, float32), 5),
    ),
    Case("matmul-bf16", ((12, 16), (16, 24)), _rounded(bfloat16), (float32, bfloat16)),
    Case("matmul-f16", ((7, 13), (13, 5)), _rounded(float16), (float32, float16)),
    # Stored in 16 bits and in whole vectors, so that devices copy them asynchronously. More tiles
    # along K than fit into local memory.
    Case("transposed-bf16", ((80, 8), (24, 80)), _transposed, (bfloat16, bfloat16)),
    Case("transposed-f16", ((80, 8), (24, 80)), _transposed, (float16, float16)),
    Case("batched-f16", ((3, 5, 4), (3, 4, 6)), ops.matmul, (float16, float16)),
    Case("matmul-tf32", ((7, 13), (13, 5)), _tf32(ops.matmul)),
    Case("transposed-tf32", ((16, 8), (24, 16)), _tf32(_transposed)),
    Case("stored-tf32", ((20, 32), (32, 24)), _stored_tf32(ops.matmul), is_tf32=True),
    Case("transposed-stored-tf32", ((16, 8), (24, 16)), _stored_tf32(_transposed), is_tf32=True),
    Case("conv-tf32", ((2, 3, 5, 4), (4, 3, 3, 3)), _tf32(_conv)),
    Case(
        *("conv-bf16", ((2, 8, 4, 4), (8, 8, 3, 3))),
        lambda x, w: ops.cast(_conv(ops.cast(x, float32), ops.rounded(w, bfloat16)), bfloat16),
        (bfloat16, float32),
    ),
)
LOOPS = (
    Case("elementwise", ((3, 8), (8,)), lambda x, y: ops.exp(x) * y + 1),
    Case("elementwise-odd", ((3, 5),), lambda x: ops.where(x > 0, x, ops.tanh(x))),
    Case("one", ((1,),), lambda x: ops.exp(x)),
    Case("transposing", ((4, 8), (8, 4)), lambda x, y: ops.transpose(x) + y),
    Case("sum", ((24,),), lambda x: ops.sum(x)),
    Case("sum-of-nothing", ((0, 4),), lambda x: ops.sum(x, 0)),
    Case("columns", ((12, 8),), lambda x: ops.sum(x, 0)),
    Case("rows", ((6, 18),), lambda x: ops.max(x, 1)),
    Case("any", ((6, 18),), lambda x: ops.any(x > 2, 1)),
    Case("argmax", ((6, 17),), lambda x: ops.argmax(x, 1)),
    Case("softmax", ((6, 17),), lambda x: ops.softmax(x, 1)),
    Case("normalized", ((12, 8),), _normalized),
    Case("cumsum", ((3, 19),), lambda x: ops.cumsum(x, 1)),
    Case("cumsum-backwards", ((18,),), lambda x: ops.cumsum(x, 0, reverse=True)),
    Case("cumsum-of-int64", ((3, 12),), lambda x: ops.cumsum(x, 1), (int64,), 9),
    Case("written", ((4, 6),), ops.exp, program=_written()),
    Case("replacing-of-rows", ((6, 17),), _replacing_of_rows),
    # Sums, differences and products of float16, with and without literals, and a quotient.
    Case(
        *("elementwise-f16", ((3, 8), (8,))),
        lambda x, y: (x * y + x - 0.5) * ops.relu(y) * 0.1 / (y * y + 1.0),
        (float16, float16),
    ),
    Case("sorted", ((11, 3), (11,)), lambda x, i: ops.scatter_add(x, i, 7), (float32, int64), 5),
)
CASES = CONTRACTIONS + LOOPS
# For warpgroups: more tiles along K than they keep in local memory; several panels and warpgroups.
# Rows run along K, and along the result, of each operand.
PANELS = (
    Case("panels-bf16", ((72, 200), (200, 264)), ops.matmul, (bfloat16, bfloat16)),
    Case("panels-f16", ((200, 72), (264, 200)), _transposed, (float16, float16)),
    Case("panels-tf32", ((72, 200), (200, 264)), _tf32(ops.matmul)),
    Case("panels-stored-tf32", ((200, 72), (264, 200)), _stored_tf32(_transposed), is_tf32=True),
)
# Large enough for the schedules of large GPUs.
LARGE = (
    Case("matmul-large", ((130, 257), (257, 70)), ops.matmul),
    Case("matmul-long", ((24, 8192), (8192, 40)), ops.matmul),
    Case("matmul-vector", ((1, 3000), (3000, 500)), ops.matmul),
    Case("matmul-batched", ((16, 64, 32), (16, 32, 48)), ops.matmul),
    Case("matmul-large-bf16", ((128, 256), (256, 64)), _rounded(bfloat16), (float32, bfloat16)),
    Case("matmul-large-f16", ((130, 257), (257, 70)), _rounded(float16), (float32, float16)),
    Case("matmul-large-tf32", ((130, 257), (257, 70)), _tf32(ops.matmul)),
    Case("conv-large-tf32", ((4, 16, 20, 20), (32, 16, 3, 3)), _tf32(_conv)),
    Case("conv-large", ((4, 16, 20, 20), (32, 16, 3, 3)), _conv),
    Case("conv-3x3-large", ((4, 64, 30, 30), (64, 64, 3, 3)), _conv_3x3),
    Case("normalized-large", ((8192, 12),), _normalized),
    Case("softmax-large", ((300, 1000),), lambda x: ops.softmax(x, 1)),
    Case("elementwise-large", ((512, 512), (512,)), lambda x, y: ops.exp(x) * y + 1),
    Case("sum-large", ((1 << 17,),), lambda x: ops.sum(x)),
    Case("cumsum-large", ((1 << 15,),), lambda x: ops.cumsum(x * 0.01, 0)),
    Case(
        *("sorted-large", ((5000, 3), (5000,)), lambda x, i: ops.scatter_add(x, i, 700)),
        *((float32, int64), 700),
    ),
)
