"""What one recurrence computes and a later one computes again is kept, where that is cheaper.

The gradient of a recurrence is a recurrence back in time that begins each step by computing it once
more, from the state before it. So steps of the two have equal tensors. Those that are dear become
results of the first loop, and sequences for the second. All else is computed again, which takes no
memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, final

from lamina.compiler.fusion.signature import exact
from lamina.graph import Graph, Tensor, apply, leaf, rebuild, rewrite, topological
from lamina.ops.lowering_rules import Contracting, Decomposition, Repeating, is_expensive, loop_of
from lamina.ops.slicing import SLICE, slice_axis
from lamina.program.target import Target
from lamina.records import frozen_dataclass
from lamina.shapes import size_of, static

# Ops that stand for a contraction and movements.
PRODUCTS = (
    *("matmul", "dot", "outer", "einsum"),
    *("conv", "conv_transpose", "conv_weight_gradient"),
)


def keep(graph: Graph, target: Target) -> Graph:
    """The graph in which loops read what earlier ones have kept."""
    loops: dict[object, _Loop] = {}
    for node in graph.nodes():
        if isinstance(node.op.lowering, Repeating) and loop_of(node) not in loops:
            loops[loop_of(node)] = _Loop(node, len(loops))
    if len(loops) < 2:
        return graph
    _choose(loops, target)

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        if isinstance(node.op.lowering, Repeating):
            return loops[loop_of(node)].rebuilt(node, operands)
        return rebuild(node, operands)

    return rewrite(graph, rule)


@frozen_dataclass
class _Changed:
    """A loop that keeps or reads something.

    Attributes:
        node: one of its results.
        tensors: which tensors of a step, as it was before, its results are.
    """

    node: Tensor
    tensors: tuple[Tensor, ...]

    def result(self, number: int) -> Tensor:
        """The stack of all steps."""
        return rebuild(self.node, self.node.operands, result=number)

    def of_each_step(self, tensor: Tensor) -> Tensor:
        """What each step gave for a tensor; of a state, its new value."""
        number = self.tensors.index(tensor)
        stack = self.result(number)
        if number >= self.node.attributes["states"]:
            return stack
        late = 0 if self.node.attributes["reverse"] else 1
        (rows,) = static(stack.shape[:1])
        return slice_axis(stack, 0, late, late + rows - 1)


@final
class _Loop:
    """A recurrence, and what becomes of it.

    Attributes:
        node: one of its results.
        place: its place among the loops; those before it do not depend on it.
        inside: the tensors of a step, operands first.
        kept: those that later loops read.
        read: those that are read, each with the loop and its tensor that has the same value.
    """

    def __init__(self, node: Tensor, place: int) -> None:
        self.node = node
        self.place = place
        self.body: Graph = node.attributes["body"]
        self.states: int = node.attributes["states"]
        self.sequences: int = node.attributes["sequences"]
        self.reverse: bool = node.attributes["reverse"]
        (self.length,) = static(node.operands[self.states].shape[:1])
        self.inside = topological(self.body.roots)
        self.kept: set[Tensor] = set()
        self.read: dict[Tensor, tuple[_Loop, Tensor]] = {}
        self._changed: _Changed | None = None

    def dear(self, target: Target) -> set[Tensor]:
        """What is cheaper to keep for each step than to compute again.

        What is the same in every step, as it follows from constants alone, is not kept; nor is a
        function that is larger than the states, the elements and the products. Results are there
        in any case.
        """
        changing = self.body.inputs[: self.states + self.sequences]
        changes = set(changing)
        for x in self.inside:
            if not changes.isdisjoint(x.operands):
                changes.add(x)
        products = {x for x in self.inside if _is_product(x)}
        functions = {x for x in self.inside if is_expensive(x, target)} - products
        room = max((_size(x) for x in (*changing, *(products & changes))), default=0)
        kept = {x for x in functions if x in changes and _size(x) <= room}
        results = {tensor for _, tensor in self.body.outputs}
        kept |= functions & results
        return kept | (products & (changes | results)) if target.keeps_products else kept

    def needed(self) -> set[Tensor]:
        """What a step computes or reads. A further result that is read is the other loop's."""
        computed = [x for n, (_, x) in enumerate(self.body.outputs) if not self._is_others(n)]
        return set(topological(computed, given=tuple(self.read)))

    def _is_others(self, number: int) -> bool:
        return number >= self.states and self.body.outputs[number][1] in self.read

    def rebuilt(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """One of its results, on other operands."""
        if not self.kept and not self.read:
            return rebuild(node, operands)
        # Where all results are those of others, nothing is left of it.
        if self._changed is None and self.results():
            self._changed = self._with_others(operands)
        number: int = node.attributes["result"]
        tensor = self.body.outputs[number][1]
        if self._is_others(number):
            other, found = self.read[tensor]
            return other.changed.of_each_step(found)
        return self.changed.result(number - sum(self._is_others(n) for n in range(number)))

    @property
    def changed(self) -> _Changed:
        """The loop that was rebuilt; those that read from it come later."""
        assert self._changed is not None, "a loop reads from a later one"
        return self._changed

    def results(self) -> list[tuple[str, Tensor]]:
        """Its results by name: those that it had, and what is kept."""
        own = [one for n, one in enumerate(self.body.outputs) if not self._is_others(n)]
        names, known = {name for name, _ in own}, {tensor for _, tensor in own}
        for tensor in self.inside:
            if tensor in self.kept and tensor not in known:
                own.append((_unused("kept", names), tensor))
        return own

    def _with_others(self, operands: tuple[Tensor, ...]) -> _Changed:
        results = self.results()
        inputs = list(zip(self.body.inputs, operands, strict=True))
        first, last = self.states, self.states + self.sequences
        initial, sequences, constants = inputs[:first], inputs[first:last], inputs[last:]
        replaced: dict[Tensor, Tensor] = {}
        if self.read:
            needed = self.needed()
            names = {str(x.attributes["name"]) for x in self.body.inputs}
            given: list[tuple[Tensor, Tensor]] = []
            for (other, found), own in self._read_by_source(needed):
                sequence = other.changed.of_each_step(found)
                element = leaf(_unused("kept", names), "input", found.shape, found.dtype)
                given.append((element, sequence))
                replaced |= dict.fromkeys(own, element)
            used = [one for one in sequences if one[0] in needed] + given
            # Where nothing changes from step to step, something must say how many there are.
            sequences = used or sequences[-1:]
            constants = [one for one in constants if one[0] in needed]

        def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
            return replaced[node] if node in replaced else rebuild(node, operands)

        inputs = [*initial, *sequences, *constants]
        outputs = rewrite(Graph((), tuple(results)), rule).outputs
        attributes: dict[str, Any] = {
            **self.node.attributes,
            "body": Graph(tuple(x for x, _ in inputs), outputs),
            "sequences": len(sequences),
            "result": 0,
        }
        node = apply(self.node.op, *(operand for _, operand in inputs), **attributes)
        return _Changed(node, tuple(tensor for _, tensor in results))

    def _read_by_source(
        self, needed: set[Tensor]
    ) -> list[tuple[tuple[_Loop, Tensor], list[Tensor]]]:
        """What is read, in the order of the others' results, with the own tensors it stands for."""
        found: dict[tuple[_Loop, Tensor], list[Tensor]] = {}
        for tensor, source in self.read.items():
            if tensor in needed:
                found.setdefault(source, []).append(tensor)

        def order(source: tuple[_Loop, Tensor]) -> tuple[int, int]:
            other, tensor = source
            return other.place, [x for _, x in other.results()].index(tensor)

        return [(source, found[source]) for source in sorted(found, key=order)]


def _unused(name: str, names: set[str]) -> str:
    """A name that is not there yet, and is from now on."""
    number = 0
    while f"{name}{number}" in names:
        number += 1
    names.add(f"{name}{number}")
    return f"{name}{number}"


def _is_product(tensor: Tensor) -> bool:
    """Whether it is a product, or made of some."""
    lowering = tensor.op.lowering
    named = isinstance(lowering, Decomposition) and tensor.op.name in PRODUCTS
    return named or isinstance(lowering, Contracting)


def _size(tensor: Tensor) -> int:
    return size_of(static(tensor.shape))


# Equal tensors ------------------------------------------------------------------------------------


def _choose(loops: Mapping[object, _Loop], target: Target) -> None:
    """Decides what is kept and read.

    The first loop that computes something dear keeps it, if a later one needs it.
    """
    numbers: dict[Hashable, int] = {}
    first: dict[int, tuple[_Loop, Tensor]] = {}
    dear: set[int] = set()
    for loop in loops.values():
        own = _numbered(loop, loops, numbers)
        known = set(first)
        results = [tensor for _, tensor in loop.body.outputs]
        for tensor in (*results, *loop.inside):
            first.setdefault(own[tensor], (loop, tensor))
        dear |= {own[tensor] for tensor in loop.dear(target)} - known
        loop.read = {x: first[n] for x, n in own.items() if n in dear and n in known}
        needed = loop.needed().union(results)
        for tensor, (other, found) in loop.read.items():
            if tensor in needed:
                other.kept.add(found)


def _numbered(
    loop: _Loop, loops: Mapping[object, _Loop], numbers: dict[Hashable, int]
) -> dict[Tensor, int]:
    """The tensors of a step by numbers; the same number, the same value in the same step.

    They are compared with those of loops of as many steps.
    """
    leaves = dict(zip(loop.body.inputs, loop.node.operands, strict=True))
    places = {x: place for place, x in enumerate(leaves)}
    found: dict[Tensor, int] = {}
    for node in loop.inside:
        if node in leaves:
            key = _stands_for(loop, places[node], loops)
        else:
            key = (node.op, _attributes_key(node), *(found[x] for x in node.operands))
        found[node] = numbers.setdefault((loop.length, key), len(numbers))
    return found


def _stands_for(loop: _Loop, place: int, loops: Mapping[object, _Loop]) -> Hashable:
    """What an input of a step is: the state before it, an element of a sequence, a constant."""
    operand = loop.node.operands[place]
    if place < loop.states:
        return "state", loop.place, place
    if place >= loop.states + loop.sequences:
        return "constant", operand
    # The states before each step of another loop are a part of the stack of all.
    (stack,) = operand.operands if operand.op is SLICE else (operand,)
    if operand.op is SLICE and isinstance(stack.op.lowering, Repeating):
        other, number = loops[loop_of(stack)], stack.attributes["result"]
        start = 1 if other.reverse else 0
        if number < other.states:
            part = slice_axis(stack, 0, start, start + static(stack.shape)[0] - 1)
            if part.attributes == operand.attributes:
                return "state", other.place, number
    return "element", operand


def _attributes_key(node: Tensor) -> Hashable:
    return tuple(sorted((name, _key(value)) for name, value in node.attributes.items()))


def _key(value: Any) -> Hashable:
    """A value of an attribute; equal graphs have equal keys."""
    if not isinstance(value, Graph):
        return exact(value)
    numbers = {node: number for number, node in enumerate(value.nodes())}
    inputs = set(value.inputs)
    rows = tuple(
        ("input", x.shape, x.dtype)
        if x in inputs
        else (x.op, _attributes_key(x), *(numbers[y] for y in x.operands))
        for x in numbers
    )
    return (
        *(rows, tuple(numbers[x] for x in value.inputs)),
        tuple(numbers[x] for _, x in value.outputs),
    )
