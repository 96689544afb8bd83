"""The gradient of a recurrence: a recurrence back in time.

Werbos: Backpropagation through time (1990). `recurrence` has the op, and explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import count
from typing import Any

import numpy as np

from lamina.base.shapes import Array, float64, scale_dim, static
from lamina.graph import Graph, Tensor, apply, constant, leaf, topological
from lamina.ops import basic as ops
from lamina.ops.arithmetic import ADD
from lamina.ops.broadcast import SUM, sum_axes
from lamina.ops.convolution import CONV_WEIGHT_GRADIENT
from lamina.ops.differentiate import gradients
from lamina.ops.lowering_rules import Contracting, Recurrence
from lamina.ops.movement import RESHAPE, TRANSPOSE
from lamina.ops.slicing import slice_axis

Tensors = Sequence[Tensor]


def recurrence_gradient(upstream: Mapping[Tensor, Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of the operands of a recurrence, from the gradients of some of its results."""
    return _Backward(upstream).build()


def named_results(results: Tensors) -> tuple[tuple[str, Tensor], ...]:
    """The results of an iteration with names."""
    return tuple((f"result{n}", tensor) for n, tensor in enumerate(results))


class _Backward(Recurrence):
    """Builds the recurrence back in time: the gradient of some results of one loop."""

    def __init__(self, upstream: Mapping[Tensor, Tensor]) -> None:
        self.node = next(iter(upstream))
        super().__init__(self.node)
        # By the number of the result. Gradients of two tensors that are the same result are added.
        self.upstream: dict[int, Tensor] = {}
        for result, arriving in upstream.items():
            number: int = result.attributes["result"]
            earlier = self.upstream.get(number)
            self.upstream[number] = arriving if earlier is None else ops.add(earlier, arriving)
        # The values of each leaf of the iteration over time: a tensor with the time as first axis.
        self.stacks: dict[Tensor, Tensor] = {}
        self.outputs: list[Tensor] = []
        self._continues: Tensor | None = None
        self._names = {str(x.attributes["name"]) for x in self.body.inputs}

    def result(self, number: int) -> Tensor:
        """A result of the recurrence that is differentiated, by its number."""
        attributes = {**self.node.attributes, "result": number}
        return apply(self.node.op, *self.node.operands, **attributes)

    def of_iterations(self, stack: Tensor, *, before: bool) -> Tensor:
        """The states before, or after, each iteration, from a stack with the initial state."""
        late = before == self.reverse
        return slice_axis(stack, 0, int(late), self.length + int(late))

    def build(self) -> tuple[Tensor | None, ...]:
        inputs = self.body.inputs
        states, elements = inputs[: self.states], inputs[self.states :][: self.sequences]
        floats = [x for x in inputs if x.dtype.is_float]
        for number, state in enumerate(states):
            stack = self.of_iterations(self.result(number), before=True)
            self.stacks[state] = self._detached(stack)
        first = self.states
        self.stacks |= dict(zip(elements, self.node.operands[first:], strict=False))
        # The gradients of states, which pass between iterations; integer states have none.
        of_states = {
            number: self._leaf(f"gradient{number}", state)
            for number, state in enumerate(states)
            if state.dtype.is_float
        }
        flows = dict(zip(floats, gradients(self._total(of_states), floats), strict=True))
        back = [flows[states[number]] for number in of_states]
        through = [self._stacked(flows[x]) if x in flows else None for x in elements]
        constants = [
            self._over_time(flows[x]) if x in flows else None
            for x in inputs[first + self.sequences :]
        ]
        results = self._recurrence(list(of_states.values()), back)
        initial = dict(zip(of_states, results, strict=False))
        operand_gradients = [
            self._of_initial(initial[number], number) if number in of_states else None
            for number in range(self.states)
        ]
        later = results[len(of_states) :]
        operand_gradients += [build(later) if build else None for build in (*through, *constants)]
        return tuple(operand_gradients)

    def _total(self, of_states: Mapping[int, Tensor]) -> Tensor:
        """The sum of an iteration's results times their upstream gradients, to differentiate."""
        new = [tensor for _, tensor in self.body.outputs]
        seeds = [(new[number], self._truncated(leaf_)) for number, leaf_ in of_states.items()]
        for number, arriving in self.upstream.items():
            seed = self._leaf(f"upstream{number}", new[number])
            is_state = number < self.states
            self.stacks[seed] = self.of_iterations(arriving, before=False) if is_state else arriving
            seeds.append((new[number], seed))
        total = constant(0.0, float64)
        for tensor, seed in seeds:
            product = sum_axes(ops.mul(tensor, seed), tuple(range(tensor.rank)))
            total = ops.add(total, ops.cast(product, float64))
        return total

    def _of_initial(self, stack: Tensor, number: int) -> Tensor:
        """The gradient of an initial state, from the gradients of the states before iterations."""
        row = self.length if self.reverse else 0
        arriving = [stack, *([self.upstream[number]] if number in self.upstream else [])]
        return reduce(ops.add, (ops.squeeze(slice_axis(x, 0, row, row + 1), 0) for x in arriving))

    def _detached(self, stack: Tensor) -> Tensor:
        """The states before iterations, without a gradient where the recurrence truncates it.

        Second derivatives have no gradient there either: both alternatives are the stack.
        """
        every: int = self.node.attributes["truncate"]
        if not every or every >= self.length or not stack.dtype.is_float:
            return stack
        iterations = self._iterations()
        starts = constant((iterations % every == 0) & (iterations > 0))
        shape = (self.length, *(1,) * (stack.rank - 1))
        return ops.where(ops.reshape(starts, shape), ops.stop_gradient(stack), stack)

    def _iterations(self) -> Array:
        """The number of the iteration at each time."""
        return np.arange(self.length)[:: -1 if self.reverse else 1]

    def _truncated(self, gradient: Tensor) -> Tensor:
        """A state's gradient from the iteration after it; zero at every `truncate`-th iteration."""
        every: int = self.node.attributes["truncate"]
        if not every:
            return gradient
        if self._continues is None:
            stack = constant((self._iterations() + 1) % every != 0)
            self._continues = self._leaf("continues", constant(True))
            self.stacks[self._continues] = stack
        return ops.where(self._continues, gradient, 0)

    def _leaf(self, name: str, like: Tensor) -> Tensor:
        """A leaf of the iteration back in time, with a unique name."""
        while name in self._names:
            name += "'"
        self._names.add(name)
        return leaf(name, "input", like.shape, like.dtype)

    def _stacked(self, tensor: Tensor) -> Callable[[Tensors], Tensor]:
        """The stack of a tensor over all iterations, as a function of the recurrence's results."""
        if tensor in self.stacks:
            return lambda _: self.stacks[tensor]
        if tensor not in self.outputs:
            self.outputs.append(tensor)
        number = self.outputs.index(tensor)
        return lambda results: results[number]

    def _over_time(self, tensor: Tensor) -> Callable[[Tensors], Tensor]:
        """The sum of a tensor over all iterations, as a function of the recurrence's results.

        Where possible, one op over the stacks of its operands gives the sum.
        """
        if tensor.op in (RESHAPE, TRANSPOSE):
            operand = self._over_time(tensor.operands[0])
            return lambda results: apply(tensor.op, operand(results), **tensor.attributes)
        if tensor.op is ADD and all(x.shape == tensor.shape for x in tensor.operands):
            left, right = (self._over_time(x) for x in tensor.operands)
            return lambda results: ops.add(left(results), right(results))
        if isinstance(tensor.op.lowering, Contracting):
            first, second = (self._stacked(x) for x in tensor.operands)
            left, right = tensor.attributes["left"], tensor.attributes["right"]
            time = next(f"t{n}" for n in count() if f"t{n}" not in (*left, *right))
            labels = ((time, *left), (time, *right), tensor.attributes["output"])
            return lambda results: ops.contract(first(results), second(results), *labels)
        if tensor.op is CONV_WEIGHT_GRADIENT:
            # It sums over the batch, so the batches of all iterations are joined to one.
            first, second = (self._stacked(x) for x in tensor.operands)
            return lambda results: apply(
                tensor.op, *(_as_batch(x(results)) for x in (first, second)), **tensor.attributes
            )
        if tensor.op is SUM:
            stacked = self._stacked(tensor.operands[0])
            axes = (0, *(axis + 1 for axis in tensor.attributes["axes"]))
            return lambda results: sum_axes(stacked(results), axes)
        stack = self._stacked(tensor)
        return lambda results: sum_axes(stack(results), (0,))

    def _recurrence(self, of_states: Tensors, back: Tensors) -> list[Tensor]:
        """The results of the recurrence: stacks of the gradients of states, then of `outputs`."""
        new = [*back, *self.outputs]
        inside = topological(new)
        # If no sequence is used, one is kept: its length is the number of iterations.
        elements = [x for x in self.stacks if x in inside] or list(self.stacks)[-1:]
        arguments = self.node.operands[self.states + self.sequences :]
        constants = self.body.inputs[self.states + self.sequences :]
        used = [(x, y) for x, y in zip(constants, arguments, strict=True) if x in inside]
        zeros = [ops.broadcast_to(constant(0.0, x.dtype), x.shape) for x in of_states]
        sequences = [self.stacks[x] for x in elements]
        body = Graph((*of_states, *elements, *(x for x, _ in used)), named_results(new))
        loop: dict[str, Any] = {"body": body, "states": len(of_states), "sequences": len(elements)}
        loop |= {"reverse": not self.reverse, "truncate": 0}
        operands = (*zeros, *sequences, *(y for _, y in used))
        return [apply(self.node.op, *operands, **loop, result=n) for n in range(len(new))]


def _as_batch(stack: Tensor) -> Tensor:
    """The batches of all iterations as one batch."""
    (length,) = static(stack.shape[:1])
    return ops.reshape(stack, (scale_dim(stack.shape[1], length), *stack.shape[2:]))
