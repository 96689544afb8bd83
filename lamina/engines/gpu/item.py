"""A work item: which point it computes, and where it finds the buffers."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager

from lamina.codegen.c import Function, Module
from lamina.codegen.points import Points
from lamina.codegen.primitives import memory_element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import I32, I64, Type, constant
from lamina.program.index import Axis, Gathered, Index
from lamina.program.scalar import indices
from lamina.program.steps import Contraction, inner_axes, scalars_of, stores_of
from lamina.shapes import size_of

# Positions up to this fit 32 bits, with what is added to them while they are computed.
_NARROW = 2**30

# Points of a kernel.
ItemPoints = Points[Function]


# Steps with equal ones share their kernels.
Form = Signature[None]


@contextmanager
def work_item(module: Module, name: str, form: Form, axes: Sequence[Axis]) -> Generator[ItemPoints]:
    """Begins a kernel with a work item for each point of some axes, the last one fastest.

    Inside, the axes have their values; nothing happens in work items behind the last point.
    """
    position = I32 if _is_narrow(form, axes) else I64
    buffers = [(f"b{one.name}", memory_element(one.dtype)) for one in form.buffers]
    numbers: list[tuple[str, Type]] = [("iteration", I32)] if form.iteration is not None else []
    code = module.kernel(name, buffers, numbers)
    bases = {one.name: code.parameters[n] for n, one in enumerate(form.buffers)}
    points = Points(code, bases, {one.name: one.size for one in form.buffers}, position=position)
    if form.iteration is not None:
        iteration = code.parameters[-1]
        wide = iteration if position == I32 else code.convert("zext", iteration, "i64")
        points.fix(form.iteration, wide)
    item = code.item()
    count = size_of([axis.extent for axis in axes])
    inside = code.compare("ult", item, constant(count, I64))
    with code.when(inside) as before, ExitStack() as bound:
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


def _is_narrow(form: Form, axes: Iterable[Axis]) -> bool:
    """Whether all positions of a step fit 32 bits."""
    (step,), within = form.steps, [*axes]
    if isinstance(step, Contraction):
        within += (*step.batch, *step.rows, *step.columns, *step.inner)
    else:
        within += (axis for stage in step.stages for axis in inner_axes(stage))
    if size_of([max(axis.extent, 1) for axis in {*within}]) > _NARROW:
        return False
    stored = (store.index for store in stores_of(step))
    return all(map(_fits, (*stored, *indices(*scalars_of(step)))))


def _fits(index: Index) -> bool:
    if max(map(abs, index.bounds)) > _NARROW:
        return False
    inner = (atom for atom, _ in index.terms if not isinstance(atom, Axis | Gathered))
    return all(atom.divisor <= _NARROW and _fits(atom.index) for atom in inner)
