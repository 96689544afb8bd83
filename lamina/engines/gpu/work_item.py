"""A work item or a work group: the point that it computes, and its buffers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TypeVar

from lamina.base.shapes import size_of
from lamina.codegen.builder import BasicBlock
from lamina.codegen.c import Function, Module
from lamina.codegen.points import Points
from lamina.codegen.primitives import memory_element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import I32, Type, Value
from lamina.engines.gpu.schedule import (
    ChainSchedule,
    KernelSchedule,
    MatrixSchedule,
    RowSchedule,
    TiledSchedule,
    TreeSchedule,
)
from lamina.program.index import Axis, Index, axis_index
from lamina.program.scalar import postorder
from lamina.program.steps import Chain, Contraction, Loop, scalars_of

# The sums of a work item that take many registers. With fewer sums, work items take fewer registers
# if ptxas decides, so more of them are resident.
_LARGE_BLOCK = 32

Kind = TypeVar("Kind", Loop, Contraction, Chain)
# Points of a kernel.
ItemPoints = Points[Function]
# The axes with a work item at each point, or a work group if the schedule has groups, the last axis
# fastest; and a function that writes the code there, where the axes have their values.
Body = tuple[Sequence[Axis], Callable[[ItemPoints], None]]
# Steps of equal signature share their kernels.
StepSignature = Signature[KernelSchedule]


def step_of(signature: StepSignature, kind: type[Kind]) -> Kind:
    """The only step of a signature, which is of a kind."""
    (step,) = signature.steps
    assert isinstance(step, kind)
    return step


@contextmanager
def items_below(code: Function, count: int) -> Generator[tuple[Value, BasicBlock]]:
    """Begins code for work items whose number is below the count.

    Yields the number of the work item, and the block before that code, which is always run.
    """
    item = code.item()
    with code.when(code.compare("ult", item, count)) as before:
        yield item, before


def _kernel(module: Module, name: str, signature: StepSignature, group: int) -> ItemPoints:
    """Begins a kernel with the buffers of a step; `group` is as in `Module.kernel`."""
    position = Type(f"i{signature.decided.position_bits}")
    buffers = [(f"b{buffer.name}", memory_element(buffer.dtype)) for buffer in signature.buffers]
    numbers: list[tuple[str, Type]] = (
        [("iteration", I32)] if signature.iteration is not None else []
    )
    if signature.is_phase:
        code = module.phase(name, buffers, numbers)
    else:
        many_registers = _takes_registers(signature)
        code = module.kernel(name, buffers, numbers, group=group, many_registers=many_registers)
    bases = {buffer.name: code.parameters[n] for n, buffer in enumerate(signature.buffers)}
    sizes = {buffer.name: buffer.size for buffer in signature.buffers}
    points = Points(code, bases, sizes, whole_vectors=True, position=position)
    if signature.iteration is not None:
        iteration = code.parameters[len(buffers)]
        wide = iteration if position == I32 else code.convert("zext", iteration, "i64")
        points.fix(signature.iteration, wide)
    return points


def _takes_registers(signature: StepSignature) -> bool:
    """Whether work items keep so many values that ptxas would spill some for more occupancy."""
    decided = signature.decided
    if isinstance(decided, TiledSchedule):
        return decided.item_m * decided.item_n >= _LARGE_BLOCK
    if isinstance(decided, TreeSchedule):
        # Vectors of 16 bits, or rounded to them, are in registers before and after the conversion.
        rounded = (x.dtype.is_half for x in postorder(*scalars_of(signature.steps[0])))
        return decided.lanes > 1 and any(rounded)
    return isinstance(decided, MatrixSchedule | RowSchedule | ChainSchedule)


def _coordinates(
    points: ItemPoints, number: Value, axes: Sequence[Axis]
) -> Iterator[tuple[Axis, Value]]:
    """The value of each axis at a point of this number, the last axis first and fastest."""
    code = points.code
    if points.position(0).type == I32:
        number = code.convert("trunc", number, "i32")
    for left, axis in zip(range(len(axes) - 1, -1, -1), reversed(axes), strict=True):
        value = number
        if left:
            value, number = number % axis.extent, number // axis.extent
        yield axis, value


def write_kernel(module: Module, name: str, signature: StepSignature, body: Body) -> int:
    """Writes a kernel; returns the number of its work items."""
    (axes, write), group = body, signature.decided.group
    count = size_of([axis.extent for axis in axes])
    if not count:
        return 0
    points = _kernel(module, name, signature, group)
    code = points.code
    if group:
        for axis, value in _coordinates(points, code.group(), axes):
            points.fix(axis, value)
        item = item_of(signature.decided)
        for axis, value in _coordinates(points, code.item_in_group(), [item]):
            points.fix(axis, value)
        write(points)
        return count * group
    # Work items after the last point do nothing.
    with items_below(code, count) as (number, before), ExitStack() as bound:
        for place, (axis, value) in enumerate(_coordinates(points, number, axes)):
            bound.enter_context(points.bound(axis, value, before=None if place else before))
        write(points)
    return count


def item_of(decided: KernelSchedule) -> Axis:
    """The axis that numbers the work items of a group."""
    return Axis("item", decided.group)


@contextmanager
def along_lanes(points: ItemPoints, lane: Axis) -> Generator[Index]:
    """Inside, vectors run along an axis of lanes, unless it has only one; yields its index."""
    if lane.extent == 1:
        yield Index()
        return
    with points.along(lane, points.position(0), lane.extent, multiple=lane.extent):
        yield axis_index(lane)


def clamped(points: ItemPoints, axis: Axis, location: Index, bound: ExitStack) -> Index:
    """A location, bound to an axis; beyond the axis' end, its last location."""
    value = points.code.minimum(points.indices(location).start, axis.extent - 1)
    bound.enter_context(points.bound(axis, value))
    return axis_index(axis)


def clamped_inside(
    points: ItemPoints, axis: Axis, location: Index, bound: ExitStack
) -> tuple[Value, Index]:
    """Whether a location is below the extent of an axis, and what `clamped` returns."""
    value = points.indices(location).start
    is_inside = value < axis.extent
    value = points.code.minimum(value, axis.extent - 1)
    bound.enter_context(points.bound(axis, value))
    return is_inside, axis_index(axis)


@contextmanager
def inside(
    points: ItemPoints, name: str, location: Index, extent: int, *, reads: bool = True
) -> Generator[Index]:
    """Code for a location below an extent; yields the location.

    If it `reads` what results replace, it does so inside.
    """
    axis, value = Axis(name, extent), points.indices(location).start
    with (
        points.code.when(value < extent) as before,
        points.bound(axis, value, before=before),
        points.reading() if reads else nullcontext(),
    ):
        yield axis_index(axis)


def with_products(
    code: Function, totals: Sequence[Value], factors: Iterable[tuple[Value, Value]]
) -> list[Value]:
    """Totals, with the product of two factors added to each."""
    return [
        code.multiply_add(left, right, total) if total.type.is_float else total + left * right
        for total, (left, right) in zip(totals, factors, strict=True)
    ]
