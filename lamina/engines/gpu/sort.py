"""Kernels that sort: each work item finds the rank of one element by counting those before it."""

from __future__ import annotations

from lamina.codegen.c import Module
from lamina.codegen.primitives import EMITTERS
from lamina.engines.gpu.work_item import StepSignature, work_item
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.steps import Loop, Sort, Store
from lamina.shapes import size_of


def write_sort(module: Module, name: str, signature: StepSignature) -> int:
    """Writes the kernel of a loop with only a sort; returns the number of its work items."""
    assert isinstance(signature.steps[0], Loop)
    (sort,) = signature.steps[0].stages
    assert isinstance(sort, Sort)
    own = Axis("element", sort.axis.extent)
    axes = (*signature.steps[0].axes, own)
    items = size_of([axis.extent for axis in axes])
    if not items:
        return 0
    at_own = Rewrite({sort.axis: axis_index(own)})
    with work_item(module, name, signature, axes) as points:
        code, dtype = points.code, sort.key.dtype
        key = points.value(at_own.scalar(sort.key))
        with points.loop(sort.axis, (points.position(0),)) as opened:
            other = points.value(sort.key)
            before = EMITTERS["less"](code, dtype, (other, key))
            # A stable sort: equal keys keep their order.
            equal = EMITTERS["equal"](code, dtype, (other, key))
            earlier = code.compare("slt", opened.index, points.axis(own))
            before = code.binary("or", before, code.binary("and", equal, earlier))
            (rank,) = opened.carried
            following = code.add(rank, points.position(1))
            (rank,) = code.end_loop(opened, (code.select(before, following, rank),))
        position = at_own.scalar(sort.positions)
        with points.bound(sort.axis, rank):
            points.store_all([Store(sort.buffer, sort.index, position)])
    return items
