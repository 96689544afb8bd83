"""Stages at points of a nest."""

from __future__ import annotations

from lamina.base.shapes import float32, int64
from lamina.codegen.c import Module
from lamina.codegen.points import Points
from lamina.codegen.values import I64, constant
from lamina.codegen.words import OPENCL
from lamina.program.index import Index, gathered_index
from lamina.program.scalar import Literal, Load
from lamina.program.steps import Store


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
