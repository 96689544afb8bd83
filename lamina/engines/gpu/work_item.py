"""A work item: the point that it computes, and its buffers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from lamina.codegen.builder import BasicBlock
from lamina.codegen.c import Function, Module
from lamina.codegen.points import Points
from lamina.codegen.primitives import memory_element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import I32, I64, Type, Value, constant
from lamina.engines.gpu.schedule import StepSchedule
from lamina.program.index import Axis
from lamina.shapes import size_of

# Points of a kernel.
ItemPoints = Points[Function]


# Steps of equal signature share their kernels.
StepSignature = Signature[StepSchedule]


@contextmanager
def items_below(code: Function, count: int) -> Generator[tuple[Value, BasicBlock]]:
    """Begins code for work items whose number is below the count.

    Yields the number of the work item, and the block before that code, which is always run.
    """
    item = code.item()
    inside = code.compare("ult", item, constant(count, I64))
    with code.when(inside) as before:
        yield item, before


@contextmanager
def work_item(
    module: Module, name: str, signature: StepSignature, axes: Sequence[Axis]
) -> Generator[ItemPoints]:
    """Begins a kernel with a work item for each point of some axes, the last one fastest.

    Inside, the axes have their values; work items after the last point do nothing.
    """
    position = Type(f"i{signature.decided.position_bits}")
    buffers = [(f"b{one.name}", memory_element(one.dtype)) for one in signature.buffers]
    numbers: list[tuple[str, Type]] = (
        [("iteration", I32)] if signature.iteration is not None else []
    )
    code = module.kernel(name, buffers, numbers)
    bases = {one.name: code.parameters[n] for n, one in enumerate(signature.buffers)}
    points = Points(
        code, bases, {one.name: one.size for one in signature.buffers}, position=position
    )
    if signature.iteration is not None:
        iteration = code.parameters[-1]
        wide = iteration if position == I32 else code.convert("zext", iteration, "i64")
        points.fix(signature.iteration, wide)
    count = size_of([axis.extent for axis in axes])
    with items_below(code, count) as (item, before), ExitStack() as bound:
        if position == I32:
            item = code.convert("trunc", item, "i32")
        for number, axis in enumerate(reversed(axes)):
            value = item
            if number + 1 < len(axes):
                extent = constant(axis.extent, position)
                value = code.binary("urem", item, extent)
                item = code.binary("udiv", item, extent)
            bound.enter_context(points.bound(axis, value, before=None if number else before))
        yield points
    code.finish()
