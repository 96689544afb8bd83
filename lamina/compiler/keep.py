"""Keeps tensors of a recurrence for a later recurrence that would compute them again.

The gradient of a recurrence is a recurrence back in time. Each of its iterations first recomputes
the forward iteration from the previous state, so the iterations of both loops have equal tensors.
The expensive ones become results of the first loop and sequences of the second. The others are
computed again, which takes no memory. Equal tensors are found by value numbering.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, final

from lamina.base.shapes import size_of, static
from lamina.compiler.simplify import attributes_key, exact
from lamina.graph import Graph, Tensor, apply, leaf, rebuild, rewrite, topological
from lamina.ops.lowering_rules import Recurrence, Repeating, is_expensive, loop_key
from lamina.ops.slicing import SLICE, slice_axis


def keep(graph: Graph) -> Graph:
    """The graph in which loops read tensors that earlier loops have kept."""
    loops: dict[object, _Loop] = {}
    for node in graph.nodes():
        if isinstance(node.op.lowering, Repeating) and loop_key(node) not in loops:
            loops[loop_key(node)] = _Loop(node, len(loops))
    if len(loops) < 2:
        return graph
    _choose_kept(loops)

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        if isinstance(node.op.lowering, Repeating):
            return loops[loop_key(node)].rebuilt_result(node, operands)
        return rebuild(node, operands)

    return rewrite(graph, rule)


@final
class _Loop(Recurrence):
    """A recurrence before and after it is rebuilt.

    Loops of smaller numbers do not depend on it. Later loops read the `kept` tensors of an
    iteration. `sources` has, for each tensor that is read instead of computed, an earlier loop and
    the equal tensor of that loop.
    """

    def __init__(self, node: Tensor, number: int) -> None:
        super().__init__(node)
        self.node = node
        self.number = number
        self.tensors = topological(self.body.roots)
        self.kept: set[Tensor] = set()
        self.sources: dict[Tensor, tuple[_Loop, Tensor]] = {}
        self._rebuilt: Tensor | None = None

    def worth_keeping(self) -> set[Tensor]:
        """The tensors that are cheaper to keep for each iteration than to compute again.

        Two kinds are not kept: tensors that depend on constants alone, which are the same in every
        iteration; and functions with more elements than every state, sequence element and product.
        Results are stored in any case.
        """
        varying_inputs = self.body.inputs[: self.states + self.sequences]
        varying = set(varying_inputs)
        for x in self.tensors:
            if not varying.isdisjoint(x.operands):
                varying.add(x)
        # They add up products of all of their operands: they become contractions.
        products = {x for x in self.tensors if 0 < x.op.multiplies == x.op.operands}
        functions = {x for x in self.tensors if is_expensive(x)} - products
        sizes = {x: size_of(static(x.shape)) for x in (*varying_inputs, *functions, *products)}
        largest = max((sizes[x] for x in (*varying_inputs, *(products & varying))), default=0)
        kept = {x for x in functions if x in varying and sizes[x] <= largest}
        results = {tensor for _, tensor in self.body.outputs}
        kept |= functions & results
        # A product would otherwise read all of its operands again.
        return kept | (products & (varying | results))

    def needed_tensors(self) -> set[Tensor]:
        """The tensors that an iteration computes or reads, without results of other loops."""
        computed = [x for n, (_, x) in enumerate(self.body.outputs) if not self._is_read(n)]
        return set(topological(computed, boundary=tuple(self.sources)))

    def _is_read(self, number: int) -> bool:
        """Whether a result is read from another loop. New states are always computed."""
        return number >= self.states and self.body.outputs[number][1] in self.sources

    def rebuilt_result(self, node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """A result of this loop on new operands, or of the rebuilt loop if it changes."""
        if not self.kept and not self.sources:
            return rebuild(node, operands)
        # A loop whose results are all read from other loops disappears.
        if self._rebuilt is None and self.results():
            self._rebuilt = self._rebuild(operands)
        number: int = node.attributes["result"]
        tensor = self.body.outputs[number][1]
        if self._is_read(number):
            other, original = self.sources[tensor]
            return other.stack_of(original)
        return self._result(number - sum(self._is_read(n) for n in range(number)))

    def _result(self, number: int) -> Tensor:
        """A result of the rebuilt loop by its number: its values in all iterations."""
        assert self._rebuilt is not None, "a loop reads from a later one"
        return rebuild(self._rebuilt, self._rebuilt.operands, result=number)

    def stack_of(self, tensor: Tensor) -> Tensor:
        """The values of a result of the rebuilt loop in all iterations; of a state, its new values.

        Loops that read from this one are rebuilt later.
        """
        number = [result for _, result in self.results()].index(tensor)
        stack = self._result(number)
        if number >= self.states:
            return stack
        start = 0 if self.reverse else 1
        (rows,) = static(stack.shape[:1])
        return slice_axis(stack, 0, start, start + rows - 1)

    def results(self) -> list[tuple[str, Tensor]]:
        """The results of the rebuilt loop by name: those still computed, and the kept tensors."""
        results = [output for n, output in enumerate(self.body.outputs) if not self._is_read(n)]
        names, returned = {name for name, _ in results}, {tensor for _, tensor in results}
        for tensor in self.tensors:
            if tensor in self.kept and tensor not in returned:
                results.append((_unused("kept", names), tensor))
        return results

    def _rebuild(self, operands: tuple[Tensor, ...]) -> Tensor:
        """The loop on these operands; kept tensors become results, and read ones sequences."""
        results = self.results()
        inputs = list(zip(self.body.inputs, operands, strict=True))
        first, last = self.states, self.states + self.sequences
        initial, sequences, constants = inputs[:first], inputs[first:last], inputs[last:]
        replaced: dict[Tensor, Tensor] = {}
        if self.sources:
            needed = self.needed_tensors()
            names = {str(x.attributes["name"]) for x in self.body.inputs}
            read: list[tuple[Tensor, Tensor]] = []
            for (other, original), tensors in self._read_from_others(needed):
                sequence = other.stack_of(original)
                element = leaf(_unused("kept", names), "input", original.shape, original.dtype)
                read.append((element, sequence))
                replaced |= dict.fromkeys(tensors, element)
            used = [pair for pair in sequences if pair[0] in needed] + read
            # If no sequence is used, one stays, because its length is the number of iterations.
            sequences = used or sequences[-1:]
            constants = [pair for pair in constants if pair[0] in needed]

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
        return apply(self.node.op, *(operand for _, operand in inputs), **attributes)

    def _read_from_others(
        self, needed: set[Tensor]
    ) -> list[tuple[tuple[_Loop, Tensor], list[Tensor]]]:
        """The tensors read from other loops, in their order, each with those that it replaces."""
        replaced: dict[tuple[_Loop, Tensor], list[Tensor]] = {}
        for tensor, source in self.sources.items():
            if tensor in needed:
                replaced.setdefault(source, []).append(tensor)

        def order(source: tuple[_Loop, Tensor]) -> tuple[int, int]:
            other, tensor = source
            return other.number, [x for _, x in other.results()].index(tensor)

        return [(source, replaced[source]) for source in sorted(replaced, key=order)]


def _unused(name: str, names: set[str]) -> str:
    """A new name, which is added to the names."""
    number = 0
    while f"{name}{number}" in names:
        number += 1
    names.add(f"{name}{number}")
    return f"{name}{number}"


def _choose_kept(loops: Mapping[object, _Loop]) -> None:
    """The first loop that computes an expensive tensor keeps it, if a later loop needs it."""
    numbers: dict[Hashable, int] = {}
    first: dict[int, tuple[_Loop, Tensor]] = {}
    expensive: set[int] = set()
    for loop in loops.values():
        number_of = _value_numbers(loop, loops, numbers)
        earlier = set(first)
        results = [tensor for _, tensor in loop.body.outputs]
        for tensor in (*results, *loop.tensors):
            first.setdefault(number_of[tensor], (loop, tensor))
        expensive |= {number_of[tensor] for tensor in loop.worth_keeping()} - earlier
        available = expensive & earlier
        loop.sources = {x: first[n] for x, n in number_of.items() if n in available}
        needed = loop.needed_tensors().union(results)
        for tensor, (other, original) in loop.sources.items():
            if tensor in needed:
                other.kept.add(original)


def _value_numbers(
    loop: _Loop, loops: Mapping[object, _Loop], numbers: dict[Hashable, int]
) -> dict[Tensor, int]:
    """The value number of each tensor of an iteration.

    Tensors of equal numbers have equal values in iterations at the same time. Only loops of the
    same length have numbers in common: `numbers` has those so far, by this length and the key of
    the value.
    """
    leaves = dict(zip(loop.body.inputs, loop.node.operands, strict=True))
    input_numbers = {x: number for number, x in enumerate(leaves)}
    number_of: dict[Tensor, int] = {}
    for node in loop.tensors:
        if node in leaves:
            key = _input_key(loop, input_numbers[node], loops)
        else:
            key = (node.op, attributes_key(node, _key), *(number_of[x] for x in node.operands))
        number_of[node] = numbers.setdefault((loop.length, key), len(numbers))
    return number_of


def _input_key(loop: _Loop, number: int, loops: Mapping[object, _Loop]) -> Hashable:
    """The key of an iteration's input: of a state, an element of a sequence, or a constant."""
    operand = loop.node.operands[number]
    if number < loop.states:
        return "state", loop.number, number
    if number >= loop.states + loop.sequences:
        return "constant", operand
    # A sequence may be the states before each iteration of another loop: a slice of its stack.
    (stack,) = operand.operands if operand.op is SLICE else (operand,)
    if operand.op is SLICE and isinstance(stack.op.lowering, Repeating):
        other, result = loops[loop_key(stack)], stack.attributes["result"]
        start = 1 if other.reverse else 0
        if result < other.states:
            states = slice_axis(stack, 0, start, start + static(stack.shape)[0] - 1)
            if states.attributes == operand.attributes:
                return "state", other.number, result
    return "element", operand


def _key(value: Any) -> Hashable:
    """An attribute's value as a key; graphs of equal structure have equal keys."""
    if not isinstance(value, Graph):
        return exact(value)
    numbers = {node: number for number, node in enumerate(value.nodes())}
    inputs = set(value.inputs)
    rows = tuple(
        ("input", x.shape, x.dtype)
        if x in inputs
        else (x.op, attributes_key(x, _key), *(numbers[y] for y in x.operands))
        for x in numbers
    )
    return (
        *(rows, tuple(numbers[x] for x in value.inputs)),
        tuple(numbers[x] for _, x in value.outputs),
    )
