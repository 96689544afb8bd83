"""The costs that fusion compares.

A program costs

    the bytes that its steps read from memory and write to it,
    + the operations that are repeated where a tensor is computed again or a narrow one is packed,
    + the launches of its steps,

all in one unit, the time to move a byte. Four decisions compare costs: whether a tensor that
several steps need is stored or computed again (`is_worth_sharing`); whether one is that a step
needs at several coordinates (`is_worth_rereading`); whether a cast to fewer bytes is stored, in
addition to its operand or instead of it (`is_worth_narrowing`); and whether an operand of products
is stored rounded (`is_worth_rounding`). Other decisions need no comparison.
Storing a running sum, or another order of axes, moves the same bytes. A join repeats nothing and
saves a launch.

Of two choices of equal cost, the one with fewer live bytes is taken. Only `join_small` pays a
launch for fewer live bytes: it omits a join that would keep more bytes alive than a launch costs.

Legality is a constraint, not a cost: a group has to be one step, which lowering decides;
contractions read their operands through views; the depth of expressions is bounded; generated
tensors, such as dropout masks, take no memory.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, size_of, static
from lamina.compiler.buffers import is_leaf
from lamina.graph import Tensor
from lamina.ops.conversion import CAST
from lamina.ops.indexing import TAKE, TAKE_ALONG_AXIS
from lamina.ops.lowering_rules import Elementwise, Generator, Movement, read_operands
from lamina.ops.movement import RESHAPE
from lamina.program import primitive_costs
from lamina.program.index import Index
from lamina.program.scalar import Apply, Local, postorder
from lamina.program.target import Target

# The bytes of a target's unit of cost, a float that is stored and loaded. Only its store counts: a
# step that does not load the float loads its sources instead.
UNIT_BYTES = 4.0
# The cost, in bytes, of packing a value narrower than a float when it is written, or of unpacking
# it when it is read.
_PACKING_BYTES = 1.0
# The cost of rounding what a tile of a product reads, as a share of its bytes: they go through
# registers, and cannot be copied while the tile before is multiplied.
_ROUNDED_SHARE = 0.5
# The simple primitives of a gather: its index is limited at both ends, and its element is loaded.
_GATHER = 3


def _is_packed(dtype: DType) -> bool:
    """Whether elements are packed and unpacked; floats of 16 bits take only few instructions."""
    return dtype.itemsize < UNIT_BYTES and not dtype.is_half


@final
class Operations:
    """The cost of computing tensors once more, for one element each."""

    def __init__(self) -> None:
        self._counts: dict[Tensor, float] = {}

    def of(self, node: Tensor) -> float:
        """The cost of a tensor's own op for one element, in bytes."""
        if node not in self._counts:
            self._counts[node] = self._counted(node)
        return self._counts[node]

    def with_gathers(self, node: Tensor) -> float:
        """The same, and what reading an element at a computed index costs."""
        gathers = isinstance(node.op.lowering, Movement) and node.op.indices is not None
        return self.of(node) + gathers * _GATHER * primitive_costs.SIMPLE_COST * UNIT_BYTES

    def _counted(self, node: Tensor) -> float:
        lowering = node.op.lowering
        probes = tuple(Local("probe", operand.dtype) for operand in node.operands)
        if isinstance(lowering, Elementwise):
            scalar = lowering.scalar(node, probes)
        elif isinstance(lowering, Generator):
            origin = (Index(),) * node.rank
            scalar = lowering.scalar(node, origin, lambda operand, _: probes[operand])
        else:
            return 0.0
        primitives = [call.primitive for call in postorder(scalar) if isinstance(call, Apply)]
        return UNIT_BYTES * sum(map(primitive_costs.cost_of_primitive, primitives))


def is_worth_sharing(
    target: Target,
    *,
    elements: int,
    dtype: DType,
    steps: int,
    times: float,
    other_bytes: int,
    operations: float,
    reads_only_leaves: bool,
) -> bool:
    """Whether storing a tensor that is needed several times costs less than recomputing it.

    In both cases each step that needs the tensor reads one tensor: this one, or the largest of its
    sources. These reads are omitted on both sides, which is not exact if their elements differ in
    size.

    Args:
        target: the costs of the device.
        elements, dtype: the number of elements of the tensor, and their dtype.
        steps: the number of steps that need it.
        times: the number of times that each element is needed.
        other_bytes: the bytes that an element reads from all sources but the largest.
        operations: the cost of computing one element, in bytes.
        reads_only_leaves: whether all sources are leaves; storing then takes an additional step.
    """
    packing = (1 + steps) * _PACKING_BYTES if _is_packed(dtype) else 0
    storing = elements * (dtype.itemsize + packing) + (
        target.launch_bytes if reads_only_leaves else 0
    )
    # Each step reads the other sources, and all but one repeat the operations.
    return storing < elements * (steps * other_bytes + (times - 1) * operations)


def is_worth_rereading(
    target: Target,
    *,
    elements: int,
    dtype: DType,
    evaluations: int,
    operations: float,
    reads_only_leaves: bool,
) -> bool:
    """Whether storing a tensor that a step reads at several coordinates costs less.

    Reads are omitted on both sides: the step reads the tensor, or its sources, at all coordinates.

    Args:
        target, elements, dtype, operations, reads_only_leaves: the arguments of `is_worth_sharing`.
        evaluations: the number of elements that the step computes, some of them again, if the
            tensor is not stored.
    """
    packing = 2 * _PACKING_BYTES if _is_packed(dtype) else 0
    launch = target.launch_bytes if reads_only_leaves else 0
    return elements * (operations + dtype.itemsize + packing) + launch < evaluations * operations


def is_worth_narrowing(
    *,
    elements: int,
    wide: int,
    narrow: int,
    packed: bool,
    steps: int,
    also_wide: int,
    is_stored: bool,
    operations: float,
) -> bool:
    """Whether storing a cast of an anchor to fewer bytes costs less than casting again.

    Only differences count: other steps read the wide tensor either way.

    Args:
        elements: the number of elements of the tensor.
        packed: whether elements are packed when they are written.
        wide, narrow: the bytes of an element, before and after the cast.
        steps: the number of steps that need the cast.
        also_wide: the number of these steps that read the wide tensor in either case.
        is_stored: whether the wide tensor is stored in either case.
        operations: the cost of casting one element, in bytes.
    """
    packing = _PACKING_BYTES if packed else 0
    storing = elements * (1 + steps) * (narrow + packing)
    # Each step reads and casts the wide tensor, which is written if it is not yet.
    moved = (0 if is_stored else wide) + (steps - also_wide) * wide
    return storing < elements * (moved + (steps - 1) * operations)


def is_worth_rounding(
    target: Target,
    *,
    elements: int,
    dtype: DType,
    passes: Sequence[float],
    is_read: bool,
    is_additional: bool,
) -> bool:
    """Whether storing an operand of products rounded costs less than rounding it when it is read.

    Args:
        target: the costs of the device.
        elements: the number of elements of the operand.
        dtype: the dtype of the rounded elements.
        passes: the number of tiles that read each element, for each product with the operand.
        is_read: whether the step that rounds the operand is the only reason to read it.
        is_additional: whether the operand is stored in float32 too.
    """
    narrow = dtype.itemsize
    storing = (narrow if is_additional else 0) + (UNIT_BYTES if is_read else 0)
    rounding = sum(UNIT_BYTES - narrow + _ROUNDED_SHARE * narrow * tiles for tiles in passes)
    return elements * storing + target.launch_bytes < elements * rounding


# The levels that an op with deep index expressions adds to an expression. Such ops are gathers,
# whose index is loaded, and reshapes, whose coordinates depend on all axes. Without this bound,
# each op in a chain of reshapes and transposes would double the size of an index.
GATHER_DEPTH, RESHAPE_DEPTH = 20, 12

# An operand costs nothing to read if the tensors computed from it are larger by at least this
# factor: it stays in a cache.
_CACHED_RATIO = 64


@frozen_dataclass
class Expression:
    """The stored tensors that a tensor's expression reads, and the tensors that it computes."""

    sources: tuple[Tensor, ...]
    computed: tuple[Tensor, ...]

    def takes_no_memory(self, node: Tensor) -> bool:
        """Whether it is computed from almost nothing, or a leaf, moved and rounded to 16 bits.

        Generated tensors must not take memory. Rounding is part of reading the leaf.
        """
        if size_of(static(node.shape)) > 1 and not self.large_sources(node):
            return True
        lowerings = [tensor.op.lowering for tensor in self.computed if tensor.op is not CAST]
        moved = all(isinstance(lowering, Movement) for lowering in lowerings)
        is_rounded = any(tensor.op is CAST and tensor.dtype.is_half for tensor in self.computed)
        return moved and is_rounded and all(map(is_leaf, self.sources))

    def large_sources(self, node: Tensor) -> list[Tensor]:
        """The sources that do not stay in a cache while the tensor is computed."""
        cached_size = max(size_of(static(node.shape)) // _CACHED_RATIO, 1)
        return [source for source in self.sources if size_of(static(source.shape)) > cached_size]


def expression_of(node: Tensor, anchors: Container[Tensor]) -> Expression:
    """The expression of a tensor down to leaves and anchors."""
    sources: dict[Tensor, None] = {}
    computed: dict[Tensor, None] = {}
    pending = [node]
    while pending:
        tensor = pending.pop()
        if tensor is not node and (is_leaf(tensor) or tensor in anchors):
            sources[tensor] = None
        elif tensor not in computed:
            computed[tensor] = None
            pending.extend(read_operands(tensor))
    return Expression(tuple(sources), tuple(computed))


def own_depth(node: Tensor) -> int:
    """The number of levels that a tensor adds to the expressions of its operands."""
    if node.op in (TAKE, TAKE_ALONG_AXIS):
        return GATHER_DEPTH
    if node.op is RESHAPE:
        before, after = ([n for n in x.shape if n != 1] for x in (node.operands[0], node))
        return RESHAPE_DEPTH if before != after else 1
    return 1
