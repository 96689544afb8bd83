"""The cost of a step, counted from the program alone: operations, and bytes to and from buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.program.index import Axis, Index, axes_of
from lamina.program.program import Buffer
from lamina.program.scalar import CONVERSIONS, Apply, Load, postorder, varying
from lamina.program.steps import Chain, Contraction, Step, Store, inner_axes

# Primitives that only convert or choose numbers.
_NO_ARITHMETIC = frozenset((*CONVERSIONS, "select"))


@frozen_dataclass
class Cost:
    """The operations and memory traffic of a step.

    Attributes:
        operations: floating-point operations; an addition, a multiplication, a comparison and an
            exponential count one each.
        read_bytes: the bytes of the distinct elements that it reads.
        written_bytes: the bytes of the distinct elements that it writes.
    """

    operations: int
    read_bytes: int
    written_bytes: int

    @property
    def bytes(self) -> int:
        """The bytes between buffers and processor if each element is moved once."""
        return self.read_bytes + self.written_bytes


def cost_of(step: Step, buffers: Mapping[str, Buffer], repeated: Axis | None = None) -> Cost:
    """The cost of one step of a program with these buffers, for all iterations if repeated."""
    iterations = (repeated,) if repeated is not None else ()
    operations = 0
    read: dict[str, int] = defaultdict(int)
    written: dict[str, int] = defaultdict(int)
    seen: set[tuple[str, Index]] = set()

    def touch(counts: dict[str, int], access: Load | Store, axes: Iterable[Axis]) -> None:
        if (access.buffer, access.index) not in seen or counts is written:
            seen.add((access.buffer, access.index))
            used = axes_of(access.index)
            counts[access.buffer] += size_of([axis.extent for axis in axes if axis in used])

    for nest in step.nests:
        axes = [axis for axis in (*iterations, *nest.axes) if axis not in nest.once]
        points = size_of([axis.extent for axis in axes])
        at_points = set(varying(*nest.values))
        for scalar in postorder(*nest.values):
            if isinstance(scalar, Apply):
                operations += (points if scalar in at_points else 1) * _operations(scalar)
            elif isinstance(scalar, Load):
                touch(read, scalar, axes)
        operations += points * nest.combining
        for store in nest.stores:
            touch(written, store, axes)
            if store.accumulate:
                operations += points
                read[store.buffer] += size_of([a.extent for a in axes])
    return Cost(operations, _bytes(read, buffers), _bytes(written, buffers))


def _operations(scalar: Apply) -> int:
    floats = any(operand.dtype.is_float for operand in scalar.operands)
    if not floats or scalar.primitive in _NO_ARITHMETIC:
        return 0
    return 2 if scalar.primitive == "multiply_add" else 1


def _bytes(elements: Mapping[str, int], buffers: Mapping[str, Buffer]) -> int:
    """The bytes of the counted elements, at most the size of each buffer."""
    return sum(
        min(count, buffers[name].size) * buffers[name].dtype.itemsize
        for name, count in elements.items()
    )


def space_of(step: Step) -> str:
    """The extents of a step as text.

    For a contraction "m x n x k", after its batch if it has one. For a chain "m x k", and the
    lengths of its products and sums. For a loop its axes, then a colon and the axes that it reduces
    or writes inside them.
    """
    if isinstance(step, Chain):
        b, m, k = step.extents
        lengths = [*(product.axes for product in step.products), *(total.n for total in step.sums)]
        of_each = ", ".join(str(size_of([axis.extent for axis in axes])) for axes in lengths)
        return f"{f'{b} of ' if b > 1 else ''}{m} x {k} : {of_each}"
    if isinstance(step, Contraction):
        b, m, n, k = step.extents
        return f"{f'{b} of ' if b > 1 else ''}{m} x {n} x {k}"
    inner = {axis: None for stage in step.stages for axis in inner_axes(stage)}
    outer_text = " x ".join(str(axis.extent) for axis in step.axes)
    inner_text = ", ".join(str(axis.extent) for axis in inner)
    return f"{outer_text or '1'}{f' : {inner_text}' if inner else ''}"
