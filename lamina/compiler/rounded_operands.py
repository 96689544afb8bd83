"""Operands of products that are stored rounded, for targets on which rounding them again costs.

Mixed precision and TF32 round operands where they are multiplied, and a contraction can round what
it reads. But then each of its tiles rounds the elements again, they are read in float32, and no
library can compute the product. This pass stores them rounded where that costs less:

- A parameter or state gets a rounded copy, a leaf that is updated with it. The first steps of the
  program make the copies; a run may omit them if only the program itself has changed parameters.
- An input gets one step that rounds it. A computed tensor is also, or only, stored rounded to TF32.
  Computed tensors are always stored in 16 bits if they are rounded to 16 bits.

Results are the same, bit by bit. Products that read an operand several times, such as convolutions,
do not count: the elements of windows are rounded where they are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, float32, size_of, static
from lamina.compiler.fusion.costs import is_worth_rounding
from lamina.compiler.simplify import is_widened, keeps_elements
from lamina.graph import LEAF, Graph, Tensor, rebuild, rewrite, users_of
from lamina.ops.conversion import CAST, ROUND_TO_TF32, stored_as_tf32
from lamina.ops.lowering_rules import Contracting, Movement, read_operands
from lamina.program.index import Axis, axis_index
from lamina.program.program import Buffer
from lamina.program.scalar import Apply, Load
from lamina.program.steps import Loop, Store, Write
from lamina.program.target import Target


@frozen_dataclass
class RoundedOperands:
    """A graph whose products read operands that are stored rounded.

    Attributes:
        graph: the graph with copies as further leaves, with the role `"temporary"`.
        stored: the rounded tensors that are stored.
        copies: the parameter or state whose elements a copy has rounded, for each copy.
    """

    graph: Graph
    stored: frozenset[Tensor]
    copies: Mapping[Tensor, Tensor]


@frozen_dataclass
class _Rounding:
    """What a tensor is: the elements of a float32 tensor, rounded and moved.

    Attributes:
        source: the float32 tensor.
        dtype: the dtype to which its elements are rounded: of 16 bits, or float32 for TF32.
    """

    source: Tensor
    dtype: DType

    @property
    def is_of_leaf(self) -> bool:
        return self.source.op is LEAF

    @property
    def lasts(self) -> bool:
        """Whether the source outlives a run of the program."""
        return self.is_of_leaf and self.source.attributes["role"] in ("parameter", "state")


def with_rounded_operands(graph: Graph, target: Target) -> RoundedOperands:
    """The graph with operands that are stored rounded where that costs less."""
    chosen = _chosen(graph, target)
    stored: dict[_Rounding, Tensor] = {}
    copies: dict[Tensor, Tensor] = {}
    new_of: dict[Tensor, Tensor] = {}

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        new_of[node] = new = rebuild(node, operands)
        rounding = _rounding(node)
        if rounding is None or rounding not in chosen:
            return new
        if rounding not in stored and rounding.lasts:
            stored[rounding] = _copy(rounding)
            copies[stored[rounding]] = rounding.source
        elif rounding not in stored:
            stored[rounding] = _rounded_to(new_of[rounding.source], rounding.dtype)
        moved = stored[rounding]
        for movement in _movements(node.operands[0]):
            moved = rebuild(movement, (moved,))
        return moved if rounding.dtype.is_half else stored_as_tf32(moved)

    new = rewrite(graph, rule)
    values = dict(new.updates)
    updates = [
        (copy, _rounded_to(values[of], copy.dtype)) for copy, of in copies.items() if of in values
    ]
    new = replace(new, updates=(*new.updates, *updates))
    return RoundedOperands(new, frozenset(stored.values()) - copies.keys(), copies)


def preparing(copy: str, dtype: DType, source: Buffer) -> Loop:
    """The step that makes a copy in a buffer from the buffer of its source."""
    axis = Axis("i0", source.size)
    at = axis_index(axis)
    primitive = "cast" if dtype.is_half else "round_to_tf32"
    value = Apply(primitive, (Load(source.name, at, source.dtype),), dtype)
    return Loop(copy, (axis,), (Write((), (Store(copy, at, value),)),))


def _rounded_to(tensor: Tensor, dtype: DType) -> Tensor:
    return ops.cast(tensor, dtype) if dtype.is_half else ops.round_to_tf32(tensor)


def _copy(rounding: _Rounding) -> Tensor:
    source, dtype = rounding.source, rounding.dtype
    name = f"{source.attributes['name']} rounded to {dtype.name if dtype.is_half else 'TF32'}"
    attributes = {"name": name, "role": "temporary", "shape": source.shape, "dtype": dtype}
    return Tensor(LEAF, (), attributes, source.shape, dtype)


def _rounding(node: Tensor) -> _Rounding | None:
    """What a tensor is the rounding of; None if it is none, or always stored."""
    # Floats are rounded to 16 bits before they are moved, and to TF32 afterwards.
    if node.op is ROUND_TO_TF32:
        (moved,) = node.operands
        movements = _movements(moved)
        return _Rounding(movements[0].operands[0] if movements else moved, float32)
    if node.op is CAST and node.dtype.is_half:
        (source,) = node.operands
        # Computed tensors are stored in 16 bits anyway.
        if source.op is LEAF and source.dtype == float32:
            return _Rounding(source, node.dtype)
    return None


def _movements(node: Tensor) -> list[Tensor]:
    """The movements by which a tensor has the elements of another one, the last one last."""
    movements: list[Tensor] = []
    while keeps_elements(node):
        movements.append(node)
        (node,) = node.operands
    return movements[::-1]


def _chosen(graph: Graph, target: Target) -> set[_Rounding]:
    """What is stored rounded."""
    tile = target.operand_tile
    if tile is None:
        return set()
    nodes = graph.nodes()
    roundings = {node: rounding for node in nodes if (rounding := _rounding(node)) is not None}
    # How often products would round each element, and the movements between it and the products.
    passes: dict[_Rounding, list[float]] = defaultdict(list)
    for node in nodes:
        if isinstance(node.op.lowering, Contracting):
            ends = [_end(operand, roundings) for operand in node.operands]
            read = [end for end in ends if end is not None]
            for end in read if len(read) == len(ends) else ():
                if end in roundings and _size(end):
                    extents: dict[str, int] = {}
                    for name, operand in zip(("left", "right"), node.operands, strict=True):
                        extents |= zip(node.attributes[name], static(operand.shape), strict=True)
                    multiplications = size_of([*extents.values()])
                    passes[roundings[end]].append(multiplications / _size(end) / tile)
    users, roots = users_of(nodes), set(graph.roots)
    inside: dict[_Rounding, set[Tensor]] = defaultdict(set)
    for node, rounding in roundings.items():
        inside[rounding] |= {node, rounding.source, *_movements(node.operands[0])}

    def is_worth(rounding: _Rounding) -> bool:
        used = {user for node in inside[rounding] - roundings.keys() for user in users[node]}
        floats = [x for x in read_operands(rounding.source) if x.dtype.is_float]
        # Products read what has elements of another tensor through a view.
        is_moved = isinstance(rounding.source.op.lowering, Movement) and len(floats) == 1
        is_separate = rounding.is_of_leaf or is_moved
        return is_worth_rounding(
            target,
            elements=_size(rounding.source),
            dtype=rounding.dtype,
            passes=passes[rounding],
            is_read=is_separate and not rounding.lasts,
            is_additional=is_separate or rounding.source in roots or not used <= inside[rounding],
        )

    return {rounding for rounding in passes if is_worth(rounding)}


def _end(operand: Tensor, roundings: Mapping[Tensor, _Rounding]) -> Tensor | None:
    """The tensor whose elements an operand of a product has, each of them once.

    It is a rounding, or a tensor that is stored for another reason. None if some elements are
    read several times, or more are stored than read.
    """
    node = operand
    while node not in roundings and (is_widened(node) or keeps_elements(node)):
        (node,) = node.operands
    read = roundings[node].source if node in roundings else node
    return node if _size(read) == _size(operand) else None


def _size(node: Tensor) -> int:
    return size_of(static(node.shape))
