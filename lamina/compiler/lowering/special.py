"""Scans, sorts and scatters: each is a separate loop with some sequential axes."""

from __future__ import annotations

from lamina.base.shapes import static
from lamina.compiler.lowering.pull import (
    IterationRow,
    Puller,
    axis_indices,
    buffer_and_index,
    iterating,
    numbered_axes,
)
from lamina.errors import InternalError
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Scanning, Scattering, Sorting
from lamina.program.index import Axis, axes_of, axis_index
from lamina.program.scalar import Literal
from lamina.program.steps import Loop, Scan, Sort, Store, Write


def lower_special(node: Tensor, puller: Puller, location: str | IterationRow, name: str) -> Loop:
    """The loop of a scan, a sort or a scatter."""
    lowering = node.op.lowering
    if isinstance(lowering, Scattering):
        return _lower_scatter(node, lowering, puller, location, name)
    if not isinstance(lowering, Scanning | Sorting):
        raise InternalError(f"{node.op.name} has no lowering rule")
    shape = static(node.shape)
    along: int = node.attributes["axis"]
    axes = numbered_axes("i", shape)
    coordinates = tuple(
        axis_index(axis) * -1 + (axis.extent - 1)
        if number == along and node.attributes.get("reverse", False)
        else axis_index(axis)
        for number, axis in enumerate(axes)
    )
    value = puller.pull(node.operands[0], coordinates)
    target = buffer_and_index(location, coordinates, shape)
    if isinstance(lowering, Scanning):
        stage = Scan(axes[along], lowering.combine, value, *target, node.dtype)
    else:
        stage = Sort(axes[along], lowering.key(node, value), *target, node.dtype)
    others = (axis for number, axis in enumerate(axes) if number != along)
    return Loop(name, iterating(others), (stage,))


def _lower_scatter(
    node: Tensor, lowering: Scattering, puller: Puller, location: str | IterationRow, name: str
) -> Loop:
    """Zeros first, then additions in order.

    An axis along which the values keep their coordinate in the result is parallel.
    """
    shape = static(node.shape)
    values = node.operands[0]
    axes = numbered_axes("k", static(values.shape))
    coordinates = lowering.destination(
        node, axis_indices(axes), lambda n, at: puller.pull(node.operands[n], at)
    )
    parallel: dict[int, Axis] = {}
    for number, coordinate in enumerate(coordinates):
        for axis in iterating(axes):
            alone = all(axis not in axes_of(c) for n, c in enumerate(coordinates) if n != number)
            if coordinate == axis_index(axis) and axis.extent == shape[number] and alone:
                parallel[number] = axis
    cleared = tuple(
        parallel.get(number, Axis(f"i{number}", extent)) for number, extent in enumerate(shape)
    )
    outer = tuple(parallel.values())
    zero = Store(*buffer_and_index(location, axis_indices(cleared), shape), Literal(0, node.dtype))
    value = puller.pull(values, axis_indices(axes))
    addition = Store(*buffer_and_index(location, coordinates, shape), value, accumulate=True)
    return Loop(
        name,
        outer,
        (
            Write(tuple(a for a in iterating(cleared) if a not in outer), (zero,)),
            Write(
                tuple(a for a in iterating(axes) if a not in outer), (addition,), sequential=True
            ),
        ),
    )
