"""The one cost by which fusion decides.

A program costs

    the bytes that its steps read from memory and write to it,
    + the operations that are repeated where a tensor is computed again or a narrow one is packed,
    + the launches of its steps,

all in one unit, the time in which a byte is moved. Two decisions have to count: whether a tensor is
stored or computed again (`Sharing`), and whether a cast to fewer bytes is stored beside what it is
made of or instead of that (`Narrowing`). The others need not: a sum so far and another order move
the same bytes, and a join repeats nothing and saves a launch.

Of two choices that cost the same, the one that holds fewer bytes at a time is taken. For that
alone is a launch given up: by `join_small`, where a join would hold more bytes than it costs.

What is legal is no cost: a group has to be one step, which lowering decides; contractions read
their operands through views; expressions have a greatest depth. Nor is what is promised: what is
generated, such as a dropout mask, takes no memory.
"""

from __future__ import annotations

from typing import final

from lamina.graph import Tensor
from lamina.ops.lowering import Elementwise, Generator
from lamina.program.index import Index
from lamina.program.scalar import Apply, Local, postorder
from lamina.program.target import Target
from lamina.records import frozen_dataclass

# A target's unit is a float that is stored and loaded. Whoever does not load it loads what it is
# made of, so what is left of the unit is its bytes, written.
UNIT_BYTES = 4.0


@final
class Operations:
    """The cost of doing the primitives of tensors once more, for one element each.

    Args:
        target: says what primitives cost.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._known: dict[Tensor, float] = {}

    def of(self, node: Tensor) -> float:
        """The cost of what a tensor's own op does for one element."""
        if node not in self._known:
            self._known[node] = self._counted(node)
        return self._known[node]

    def _counted(self, node: Tensor) -> float:
        lowering = node.op.lowering
        probes = tuple(Local("probe", operand.dtype) for operand in node.operands)
        if isinstance(lowering, Elementwise):
            scalar = lowering.scalar(node, probes)
        elif isinstance(lowering, Generator):
            place = (Index(),) * node.rank
            scalar = lowering.scalar(node, place, lambda operand, _: probes[operand])
        else:
            return 0.0
        done = [part.primitive for part in postorder(scalar) if isinstance(part, Apply)]
        return UNIT_BYTES * sum(map(self.target.cost_of, done))


@frozen_dataclass
class Sharing:
    """A tensor that is needed several times: what it costs to store it, or to compute it again.

    Either way each step that needs it reads one tensor: itself, or the largest of those that it is
    made of. That counts the same and is left out, which is not exact where they differ in width.

    Attributes:
        elements: of the tensor.
        itemsize: bytes of an element.
        steps: how many need it.
        times: how often each element is needed.
        others: how many bytes are read for one element beside the largest of what it is made of.
        operations: the cost of what is done for one element.
        begins: whether it is made of leaves alone, so that no step is there that could store it.
    """

    elements: int
    itemsize: int
    steps: int
    times: float
    others: int
    operations: float
    begins: bool

    def stored(self, target: Target) -> float:
        """It is written once."""
        packing = (1 + self.steps) * target.packing_bytes if self.itemsize < UNIT_BYTES else 0
        launch = target.launch_bytes if self.begins else 0
        return self.elements * (self.itemsize + packing) + launch

    def again(self) -> float:
        """Each step reads the other tensors that it is made of, and repeats its operations."""
        return self.elements * (self.steps * self.others + (self.times - 1) * self.operations)


@frozen_dataclass
class Narrowing:
    """A cast of an anchor to fewer bytes: what it costs to store it, or to cast again.

    Only what differs is counted: what others read of the wide tensor, they read either way.

    Attributes:
        elements: of the tensor.
        wide, narrow: bytes of an element, before and after.
        steps: how many need the cast.
        also_wide: how many of them read the wide tensor as well, whatever becomes of the cast.
        is_stored: whether the wide tensor is stored whatever becomes of the cast.
        operations: the cost of one cast.
    """

    elements: int
    wide: int
    narrow: int
    steps: int
    also_wide: int
    is_stored: bool
    operations: float

    def stored(self, target: Target) -> float:
        """The narrow tensor is written once and read by each step."""
        packing = target.packing_bytes if self.narrow < UNIT_BYTES else 0
        return self.elements * (1 + self.steps) * (self.narrow + packing)

    def again(self) -> float:
        """The wide tensor is read by each step, which casts it, and written if it is not yet."""
        written = 0 if self.is_stored else self.wide
        read = (self.steps - self.also_wide) * self.wide
        return self.elements * (written + read + (self.steps - 1) * self.operations)
