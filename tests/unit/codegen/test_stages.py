"""Stages at points of a nest, as machine code: lanes along inner axes, positions of either size."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import pytest

from lamina.base.shapes import Array, float32, int64
from lamina.codegen import llvm
from lamina.codegen.c import Module
from lamina.codegen.points import Points
from lamina.codegen.stages import Stages, Style, whole, write_nest
from lamina.codegen.values import I32, I64, POINTER, Type, constant
from lamina.codegen.words import OPENCL
from lamina.engines.cpu.machine_code import Library, compiled
from lamina.engines.cpu.processor import host
from lamina.program.index import Axis, Index, axis_index, gathered_index
from lamina.program.scalar import Apply, Bound, Literal, Load, Local, Position
from lamina.program.steps import Reduce, Stage, Store, Write

ROWS, COLUMNS, LANES = 5, 11, 4
ROW, COLUMN = Axis("r", ROWS), Axis("c", COLUMNS)
row, column = axis_index(ROW), axis_index(COLUMN)
HERE = row * COLUMNS + column
# Contiguous, strided, gathered at indices from data, and zero beyond a diagonal.
X = Load("x", HERE, float32)
TRANSPOSED = Load("x", column * ROWS + row, float32)
PICKED = Load("x", gathered_index(Load("indices", column, int64), ROWS * COLUMNS), float32)
BELOW = Load("x", HERE, float32, (Bound(row - column, 0, ROWS),))
HALVED = Load("x", (row * COLUMNS + column) // 2, float32)


def _sum(*terms: Load | Local) -> Apply | Load | Local:
    total: Apply | Load | Local = terms[0]
    for term in terms[1:]:
        total = Apply("add", (total, term), float32)
    return total


STAGES: tuple[Stage, ...] = (
    Reduce("total", "sum", (COLUMN,), _sum(X, TRANSPOSED), float32),
    Reduce("best", "argmax", (COLUMN,), X, int64),
    Write(
        (COLUMN,),
        (
            Store("y", HERE, _sum(Local("total", float32), X, PICKED, BELOW, HALVED)),
            Store("transposed", column * ROWS + row, X),
            Store("offsets", HERE, Position(HERE, int64)),
        ),
    ),
    Write((), (Store("best", row, Local("best", int64)),)),
)


def _arrays() -> dict[str, Array]:
    generator = np.random.default_rng(0)
    shape = ROWS, COLUMNS
    return {
        "x": generator.integers(-50, 50, shape).astype("float32"),
        "indices": generator.integers(0, ROWS * COLUMNS, COLUMNS),
        "y": np.zeros(shape, "float32"),
        "transposed": np.zeros(shape, "float32"),
        "offsets": np.zeros(shape, "int64"),
        "best": np.zeros(ROWS, "int64"),
    }


def _run(style: Style, position: Type) -> dict[str, Array]:
    """Writes the stages in a loop over the rows, and runs them."""
    arrays, processor = _arrays(), host()
    module = llvm.Module(fused=False)
    code = module.function("stages", [(name, POINTER) for name in arrays], internal=False)
    bases = dict(zip(arrays, code.parameters, strict=True))
    sizes = {name: array.size for name, array in arrays.items()}
    points = Points(code, bases, sizes, position=position)
    write_nest(points, [whole(ROW)], lambda: Stages(points, style).write(STAGES))
    library = Library(compiled(module.text(), processor), ("stages",))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))
    function(library.address("stages"))(*(array.ctypes.data for array in arrays.values()))
    return arrays


def _expected() -> Mapping[str, Array]:
    x, indices = _arrays()["x"], _arrays()["indices"]
    flat, offsets = x.ravel(), np.arange(x.size).reshape(x.shape)
    r, c = np.indices(x.shape)
    total = x.sum(1, keepdims=True) + flat.reshape(COLUMNS, ROWS).T.sum(1, keepdims=True)
    y = total + x + flat[indices] + np.where(r >= c, x, 0) + flat[offsets // 2]
    transposed = x.T.reshape(x.shape)
    return {"y": y, "transposed": transposed, "offsets": offsets, "best": x.argmax(1)}


@pytest.mark.parametrize("position", [I32, I64], ids=("32 bits", "64 bits"))
@pytest.mark.parametrize("unrolled", [0, 8], ids=("loops", "unrolled"))
@pytest.mark.parametrize("lanes", [0, LANES, 16], ids=("scalars", "vectors", "one vector"))
def test_lanes_run_along_inner_axes(lanes: int, unrolled: int, position: Type) -> None:
    found = _run(Style(inner_lanes=lanes, unrolled=unrolled, window=0), position)
    for name, value in _expected().items():
        np.testing.assert_array_equal(found[name], value, name)


def test_positions_that_are_read_from_data_are_read_again_after_a_store() -> None:
    module = Module(OPENCL, fused=True)
    code = module.kernel("work", [("indices", "i64"), ("x", "float")], [])
    indices, x = code.parameters
    points = Points(code, {"indices": indices, "x": x}, {"indices": 1, "x": 8})
    first = Load("indices", Index(0), int64)
    halved = Load("x", gathered_index(first, 8) // 2, float32)
    before = points.value(halved)
    assert points.value(halved) == before
    points.store(Store("indices", Index(0), Literal(5, int64)), constant(5, I64))
    points.store(Store("x", Index(0), halved), points.value(halved))
    text = code.written().text
    assert text.count("/ 2ul") == text.count("= *indices") == 2
