"""A work item or a work group: the point that it computes, and its buffers."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

from lamina.base.shapes import size_of
from lamina.codegen.axes import merged_axes
from lamina.codegen.builder import BasicBlock
from lamina.codegen.c import Function, Module
from lamina.codegen.matrix import with_single_axes
from lamina.codegen.points import Points
from lamina.codegen.primitives import memory_element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import I32, I64, Type, Value, constant
from lamina.engines.gpu.chain_rows import single_chain
from lamina.engines.gpu.schedule import (
    ChainSchedule,
    KernelSchedule,
    MatrixChainSchedule,
    MatrixSchedule,
    RowSchedule,
    TiledSchedule,
)
from lamina.program.index import Axis, Index, axis_index
from lamina.program.steps import Chain, Contraction, Loop

# The sums of a work item that take many registers. With fewer sums, work items take fewer registers
# if ptxas decides, so more of them are resident.
_LARGE_BLOCK = 32

# Points of a kernel.
ItemPoints = Points[Function]
# Steps of equal signature share their kernels.
StepSignature = Signature[KernelSchedule]


def contraction_of(signature: StepSignature, *groups: str) -> Contraction:
    """The contraction of a signature, with a single axis in each of some groups of axes."""
    (step,) = signature.steps
    assert isinstance(step, Contraction)
    return with_single_axes(step, *groups)


def chain_of(signature: StepSignature) -> Chain:
    """The chain of a signature, with single axes."""
    (step,) = signature.steps
    assert isinstance(step, Chain)
    return single_chain(step)


def loop_of(signature: StepSignature) -> Loop:
    """The loop of a signature, with neighbouring axes merged."""
    (step,) = signature.steps
    assert isinstance(step, Loop)
    return merged_axes(step)


@contextmanager
def items_below(code: Function, count: int) -> Generator[tuple[Value, BasicBlock]]:
    """Begins code for work items whose number is below the count.

    Yields the number of the work item, and the block before that code, which is always run.
    """
    item = code.item()
    inside = code.compare("ult", item, constant(count, I64))
    with code.when(inside) as before:
        yield item, before


def _kernel(module: Module, name: str, signature: StepSignature, group: int) -> ItemPoints:
    """Begins a kernel with the buffers of a step; `group` is as in `Module.kernel`."""
    position = Type(f"i{signature.decided.position_bits}")
    buffers = [(f"b{one.name}", memory_element(one.dtype)) for one in signature.buffers]
    numbers: list[tuple[str, Type]] = (
        [("iteration", I32)] if signature.iteration is not None else []
    )
    if signature.is_phase:
        code = module.phase(name, buffers, numbers)
    else:
        many_registers = _takes_registers(signature.decided)
        code = module.kernel(name, buffers, numbers, group=group, many_registers=many_registers)
    bases = {one.name: code.parameters[n] for n, one in enumerate(signature.buffers)}
    sizes = {one.name: one.size for one in signature.buffers}
    points = Points(code, bases, sizes, whole_vectors=True, position=position)
    if signature.iteration is not None:
        iteration = code.parameters[len(buffers)]
        wide = iteration if position == I32 else code.convert("zext", iteration, "i64")
        points.fix(signature.iteration, wide)
    return points


def _takes_registers(decided: KernelSchedule) -> bool:
    """Whether work items keep many values, of which ptxas would spill some for more occupancy."""
    if isinstance(decided, TiledSchedule):
        return decided.item_m * decided.item_n >= _LARGE_BLOCK
    return isinstance(decided, MatrixSchedule | RowSchedule | ChainSchedule | MatrixChainSchedule)


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
            extent = points.position(axis.extent)
            value = code.binary("urem", number, extent)
            number = code.binary("udiv", number, extent)
        yield axis, value


@contextmanager
def work_item(
    module: Module, name: str, signature: StepSignature, axes: Sequence[Axis]
) -> Generator[ItemPoints]:
    """Begins a kernel with a work item for each point of some axes, the last one fastest.

    Inside, the axes have their values; work items after the last point do nothing.
    """
    points = _kernel(module, name, signature, 0)
    code = points.code
    count = size_of([axis.extent for axis in axes])
    with items_below(code, count) as (item, before), ExitStack() as bound:
        for number, (axis, value) in enumerate(_coordinates(points, item, axes)):
            bound.enter_context(points.bound(axis, value, before=None if number else before))
        yield points


@contextmanager
def work_group(
    module: Module, name: str, signature: StepSignature, groups: Sequence[Axis], item: Axis
) -> Generator[ItemPoints]:
    """Begins a kernel with a work group for each point of some axes, the last one fastest.

    Inside, these axes have their values, and `item` is the number of the work item in its group.
    """
    points = _kernel(module, name, signature, item.extent)
    code = points.code
    for axis, value in _coordinates(points, code.group(), groups):
        points.fix(axis, value)
    for axis, value in _coordinates(points, code.item_in_group(), [item]):
        points.fix(axis, value)
    yield points


def clamped(points: ItemPoints, axis: Axis, location: Index, bound: ExitStack) -> Index:
    """A location as that of an axis; the last one for those beyond its end."""
    value = points.code.minimum(points.indices(location).start, points.position(axis.extent - 1))
    bound.enter_context(points.bound(axis, value))
    return axis_index(axis)


def clamped_inside(
    points: ItemPoints, axis: Axis, location: Index, bound: ExitStack
) -> tuple[Value, Index]:
    """Whether a location is below the extent of an axis, and what `clamped` returns."""
    code, value = points.code, points.indices(location).start
    is_inside = code.compare("slt", value, points.position(axis.extent))
    value = code.minimum(value, points.position(axis.extent - 1))
    bound.enter_context(points.bound(axis, value))
    return is_inside, axis_index(axis)


@contextmanager
def inside(
    points: ItemPoints, name: str, location: Index, extent: int, *, reads: bool = True
) -> Generator[Index]:
    """Code for a location below an extent; yields the location.

    If it `reads` what results replace, it does so inside.
    """
    code, axis = points.code, Axis(name, extent)
    value = points.indices(location).start
    is_inside = code.compare("slt", value, points.position(extent))
    with (
        code.when(is_inside) as before,
        points.bound(axis, value, before=before),
        points.reading() if reads else nullcontext(),
    ):
        yield axis_index(axis)


def with_products(
    code: Function, totals: Sequence[Value], factors: Iterable[tuple[Value, Value]]
) -> list[Value]:
    """Totals, to each of which the product of two factors is added."""
    return [
        code.multiply_add(left, right, total)
        if total.type.is_float
        else code.add(total, code.multiply(left, right))
        for total, (left, right) in zip(totals, factors, strict=True)
    ]
