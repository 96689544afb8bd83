"""A work item: which point it computes, and where it finds the buffers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from lamina.codegen.builder import Block
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


# Steps with equal ones share their kernels.
Form = Signature[StepSchedule]


@contextmanager
def items_below(code: Function, count: int) -> Generator[tuple[Value, Block]]:
    """The number of the work item, and inside what those do whose number is below the count.

    Gives the block in front too, which is always run.
    """
    item = code.item()
    inside = code.compare("ult", item, constant(count, I64))
    with code.when(inside) as before:
        yield item, before


@contextmanager
def work_item(module: Module, name: str, form: Form, axes: Sequence[Axis]) -> Generator[ItemPoints]:
    """Begins a kernel with a work item for each point of some axes, the last one fastest.

    Inside, the axes have their values; nothing happens in work items behind the last point.
    """
    position = Type(f"i{form.decided.position_bits}")
    buffers = [(f"b{one.name}", memory_element(one.dtype)) for one in form.buffers]
    numbers: list[tuple[str, Type]] = [("iteration", I32)] if form.iteration is not None else []
    code = module.kernel(name, buffers, numbers)
    bases = {one.name: code.parameters[n] for n, one in enumerate(form.buffers)}
    points = Points(code, bases, {one.name: one.size for one in form.buffers}, position=position)
    if form.iteration is not None:
        iteration = code.parameters[-1]
        wide = iteration if position == I32 else code.convert("zext", iteration, "i64")
        points.fix(form.iteration, wide)
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
