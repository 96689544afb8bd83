"""Recurrence: one graph applied in a loop along a time axis.

The graph of one iteration is compiled once, and the program repeats its steps. So the program does
not grow with the sequence. The gradient is a recurrence too, back in time (Werbos: Backpropagation
through time, 1990). It computes each iteration again from the previous state; the compiler decides
which tensors the first loop keeps for it. Gradients of weights are not added up iteration by
iteration: each is one contraction over all iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, final

import numpy as np

from lamina.calls import checked_as_given as checked
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import (
    LEAF,
    Attributes,
    Graph,
    Op,
    Sample,
    Samples,
    Tensor,
    apply,
    constant,
    described,
    evaluate,
    leaf,
    source_line,
    topological,
)
from lamina.graph.attributes import whole
from lamina.graph.kinds import Flag, Kind, Misfit, Operands, entries_of
from lamina.ops.arguments import as_tensor, flag_of, refused, tensors_of, whole_of
from lamina.ops.arithmetic import add, mul
from lamina.ops.broadcast import broadcast_to, sum_axes
from lamina.ops.comparison import where
from lamina.ops.conversion import cast
from lamina.ops.differentiate import gradients
from lamina.ops.elementwise import tanh
from lamina.ops.linalg import contract, matmul
from lamina.ops.lowering_rules import Contracting, Repeating
from lamina.ops.movement import reshape, squeeze
from lamina.ops.slicing import slice_axis
from lamina.records import frozen_dataclass
from lamina.shapes import Array, DType, Shape, float32, float64, scale_dim, static

Tensors = Sequence[Tensor]
# (states, elements of the sequences, constants) -> (new states, further results) of an iteration
StepFunction = Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]


@final
@frozen_dataclass
class IterationGraph(Kind):
    """The graph of one iteration: made of ops, without layers, and a function of its inputs."""

    def read(self, value: Any, operands: Operands = ()) -> Graph:
        if not isinstance(value, Graph):
            raise Misfit("the graph of an iteration")
        problem = _problem_of(value)
        if problem:
            raise Misfit(f"the graph of an iteration, in which {problem}")
        return value


def _problem_of(body: Graph) -> str:
    """The condition of an iteration that a graph violates; "" if none."""
    inputs = set(body.inputs)
    if len(inputs) < len(body.inputs) or any(x.op is not LEAF for x in inputs):
        return "each input is a separate leaf"
    for kind, names in (
        ("inputs", [x.attributes["name"] for x in body.inputs]),
        ("results", [name for name, _ in body.outputs]),
    ):
        if len(set(names)) < len(names):
            return f"all {kind} have different names"
    for x in topological(body.roots):
        if x.op is LEAF and x not in inputs:
            return "each leaf is an input"
        if x.op.name == "layer":
            return "there are ops only"
    return "nothing is updated" if body.updates else ""


def _length(operands: Tensors, attributes: Attributes) -> int:
    first: int = attributes["states"]
    (length,) = static(operands[first].shape[:1])
    return length


def _infer_recurrence(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    body: Graph = attributes["body"]
    states: int = attributes["states"]
    sequences: int = attributes["sequences"]
    results = len(body.outputs)
    if len(operands) != len(body.inputs):
        raise DefinitionError(
            "recurrence: the number of operands does not fit",
            facts=(("expected", str(len(body.inputs))), ("found", str(len(operands)))),
        )
    counts = {
        "result": range(results),
        "states": range(results + 1),
        "sequences": range(1, len(operands) - states + 1),
    }
    for name, allowed in counts.items():
        if attributes[name] not in allowed:
            raise DefinitionError(f"recurrence: {name}={attributes[name]!r} is out of range")
    for number, ((name, tensor), state) in enumerate(
        zip(body.outputs[:states], body.inputs, strict=False)
    ):
        if (tensor.shape, tensor.dtype) != (state.shape, state.dtype):
            raise ShapeError(
                f"recurrence: state {number} changes its shape or dtype",
                facts=(("before", described(state)), ("after", f"{described(tensor)} {name}")),
            )
    if not operands[states].rank:
        raise ShapeError("recurrence: a sequence has no axis of time")
    length = _length(operands, attributes)
    for number, (operand, own) in enumerate(zip(operands, body.inputs, strict=True)):
        shape: Shape = own.shape
        if states <= number < states + sequences:
            shape = (length, *shape)
        if (operand.shape, operand.dtype) != (shape, own.dtype):
            raise ShapeError(
                "recurrence: an operand does not fit the graph of an iteration",
                facts=(("expected", str(shape)), ("found", described(operand))),
                advice="Initial states have the shapes of states; sequences have a time axis.",
            )
    result: int = attributes["result"]
    tensor: Tensor = body.outputs[result][1]
    return (length + 1 if result < states else length, *tensor.shape), tensor.dtype


def _recurrence_reference(
    *operands: Array,
    body: Graph,
    states: int,
    sequences: int,
    reverse: bool,
    truncate: int,
    result: int,
) -> Array:
    length = operands[states].shape[0]
    current = list(operands[:states])
    stacks: list[list[Array]] = [[array] for array in current]
    stacks += [[] for _ in body.outputs[states:]]
    names = [tensor.attributes["name"] for tensor in body.inputs]
    for iteration in range(length):
        time = length - 1 - iteration if reverse else iteration
        elements = [array[time] for array in operands[states : states + sequences]]
        values = [*current, *elements, *operands[states + sequences :]]
        found, _ = evaluate(body, dict(zip(names, values, strict=True)))
        results = [found[name] for name, _ in body.outputs]
        current = results[:states]
        for stack, value in zip(stacks, results, strict=True):
            stack.append(value)
    tensor: Tensor = body.outputs[result][1]
    stack = stacks[result][::-1] if reverse else stacks[result]
    return np.stack(stack) if stack else np.zeros((0, *static(tensor.shape)))


# Gradient -----------------------------------------------------------------------------------------


class _Backward:
    """Builds the recurrence back in time: the gradient of some results of one loop."""

    def __init__(self, upstream: Mapping[Tensor, Tensor]) -> None:
        self.node = node = next(iter(upstream))
        attributes = node.attributes
        self.body: Graph = attributes["body"]
        self.states: int = attributes["states"]
        self.sequences: int = attributes["sequences"]
        self.reverse: bool = attributes["reverse"]
        self.length = _length(node.operands, attributes)
        # By the number of the result. Gradients of two tensors that are the same result are added.
        self.upstream: dict[int, Tensor] = {}
        for result, arriving in upstream.items():
            number: int = result.attributes["result"]
            known = self.upstream.get(number)
            self.upstream[number] = arriving if known is None else add(known, arriving)
        # The values of each leaf of the iteration over time: a tensor with the time as first axis.
        self.stacks: dict[Tensor, Tensor] = {}
        self.outputs: list[Tensor] = []
        self._continues: Tensor | None = None
        self._names = {str(x.attributes["name"]) for x in self.body.inputs}

    def result(self, number: int) -> Tensor:
        """A result of the recurrence that is differentiated, by its number."""
        attributes = {**self.node.attributes, "result": number}
        return apply(RECURRENCE, *self.node.operands, **attributes)

    def of_iterations(self, stack: Tensor, *, before: bool) -> Tensor:
        """The states before, or after, each iteration, from a stack with the initial state."""
        late = before == self.reverse
        return slice_axis(stack, 0, int(late), self.length + int(late))

    def build(self) -> tuple[Tensor | None, ...]:
        inputs = self.body.inputs
        own, elements = inputs[: self.states], inputs[self.states :][: self.sequences]
        floats = [x for x in inputs if x.dtype.is_float]
        for number, state in enumerate(own):
            self.stacks[state] = self.of_iterations(self.result(number), before=True)
        first = self.states
        self.stacks |= dict(zip(elements, self.node.operands[first:], strict=False))
        # The gradients of states, which pass between iterations; integer states have none.
        flowing = {
            number: self._leaf(f"gradient{number}", state)
            for number, state in enumerate(own)
            if state.dtype.is_float
        }
        flows = dict(zip(floats, gradients(self._total(flowing), floats), strict=True))
        back = [flows[own[number]] for number in flowing]
        through = [self._stacked(flows[x]) if x in flows else None for x in elements]
        constants = [
            self._over_time(flows[x]) if x in flows else None
            for x in inputs[first + self.sequences :]
        ]
        results = self._recurrence(list(flowing.values()), back)
        initial = dict(zip(flowing, results, strict=False))
        found = [
            self._of_initial(initial[number], number) if number in flowing else None
            for number in range(self.states)
        ]
        later = results[len(flowing) :]
        found += [build(later) if build else None for build in (*through, *constants)]
        return tuple(found)

    def _total(self, flowing: Mapping[int, Tensor]) -> Tensor:
        """The sum of an iteration's results times their upstream gradients, to differentiate."""
        new = [tensor for _, tensor in self.body.outputs]
        seeds = [(new[number], self._truncated(leaf_)) for number, leaf_ in flowing.items()]
        for number, arriving in self.upstream.items():
            seed = self._leaf(f"upstream{number}", new[number])
            is_state = number < self.states
            self.stacks[seed] = self.of_iterations(arriving, before=False) if is_state else arriving
            seeds.append((new[number], seed))
        total = constant(0.0, float64)
        for tensor, seed in seeds:
            product = sum_axes(mul(tensor, seed), tuple(range(tensor.rank)))
            total = add(total, cast(product, float64))
        return total

    def _of_initial(self, stack: Tensor, number: int) -> Tensor:
        """The gradient of an initial state, from the gradients of the states before iterations."""
        found = self._initial_row(stack)
        if number in self.upstream:
            found = add(found, self._initial_row(self.upstream[number]))
        return found

    def _initial_row(self, stack: Tensor) -> Tensor:
        row = self.length if self.reverse else 0
        return squeeze(slice_axis(stack, 0, row, row + 1), 0)

    def _truncated(self, gradient: Tensor) -> Tensor:
        """The gradient from the next iteration; zero where the recurrence truncates it."""
        every: int = self.node.attributes["truncate"]
        if not every:
            return gradient
        iterations = np.arange(self.length)[:: -1 if self.reverse else 1]
        if self._continues is None:
            stack = constant((iterations + 1) % every != 0)
            self._continues = self._leaf("continues", constant(True))
            self.stacks[self._continues] = stack
        return where(self._continues, gradient, 0)

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
        name = tensor.op.name
        if name in ("reshape", "transpose"):
            operand = self._over_time(tensor.operands[0])
            return lambda results: apply(tensor.op, operand(results), **tensor.attributes)
        if name == "add" and all(x.shape == tensor.shape for x in tensor.operands):
            left, right = (self._over_time(x) for x in tensor.operands)
            return lambda results: add(left(results), right(results))
        if isinstance(tensor.op.lowering, Contracting):
            one, other = (self._stacked(x) for x in tensor.operands)
            left, right = tensor.attributes["left"], tensor.attributes["right"]
            time = next(f"t{n}" for n in count() if f"t{n}" not in (*left, *right))
            labels = ((time, *left), (time, *right), tensor.attributes["output"])
            return lambda results: contract(one(results), other(results), *labels)
        if name == "conv_weight_gradient":
            # It sums over the batch, so the batches of all iterations are joined to one.
            one, other = (self._stacked(x) for x in tensor.operands)
            return lambda results: apply(
                tensor.op, _as_batch(one(results)), _as_batch(other(results)), **tensor.attributes
            )
        if name == "sum":
            whole = self._stacked(tensor.operands[0])
            axes = (0, *(axis + 1 for axis in tensor.attributes["axes"]))
            return lambda results: sum_axes(whole(results), axes)
        stack = self._stacked(tensor)
        return lambda results: sum_axes(stack(results), (0,))

    def _recurrence(self, flowing: Tensors, back: Tensors) -> list[Tensor]:
        """The results of the recurrence: stacks of the gradients of states, then of `outputs`."""
        new = [*back, *self.outputs]
        inside = topological(new)
        # If no sequence is used, one is kept: its length is the number of iterations.
        elements = [x for x in self.stacks if x in inside] or list(self.stacks)[-1:]
        given = self.node.operands[self.states + self.sequences :]
        constants = self.body.inputs[self.states + self.sequences :]
        used = [(x, y) for x, y in zip(constants, given, strict=True) if x in inside]
        zeros = [broadcast_to(constant(0.0, x.dtype), x.shape) for x in flowing]
        sequences = [self.stacks[x] for x in elements]
        attributes: dict[str, Any] = {
            "body": Graph((*flowing, *elements, *(x for x, _ in used)), _named(new)),
            "states": len(flowing),
            "sequences": len(elements),
            "reverse": not self.reverse,
            "truncate": 0,
        }
        operands = (*zeros, *sequences, *(y for _, y in used))
        return [apply(RECURRENCE, *operands, **attributes, result=n) for n in range(len(new))]


def _as_batch(stack: Tensor) -> Tensor:
    """The batches of all iterations as one batch."""
    (length,) = static(stack.shape[:1])
    return reshape(stack, (scale_dim(stack.shape[1], length), *stack.shape[2:]))


def _named(results: Tensors) -> tuple[tuple[str, Tensor], ...]:
    """The results of an iteration with names."""
    return tuple((f"result{n}", tensor) for n, tensor in enumerate(results))


def _recurrence_gradient(upstream: Mapping[Tensor, Tensor]) -> tuple[Tensor | None, ...]:
    return _Backward(upstream).build()


# The op -------------------------------------------------------------------------------------------


def _graph(
    step: StepFunction,
    states: Sequence[tuple[Shape, DType]],
    elements: Sequence[tuple[Shape, DType]],
    constants: Sequence[tuple[Shape, DType]],
) -> Graph:
    """The graph of one iteration, from shapes and dtypes."""
    kinds = (("state", states), ("element", elements), ("constant", constants))
    leaves = [
        [leaf(f"{word}{n}", "input", shape, dtype) for n, (shape, dtype) in enumerate(specs)]
        for word, specs in kinds
    ]
    new, further = _results_of(step(*leaves))
    if len(new) != len(states):
        raise DefinitionError(
            "an iteration must return as many states as it takes",
            facts=(("taken", str(len(states))), ("returned", str(len(new)))),
            advice="`step` returns new states in the order of the old ones, then further results.",
        )
    for number, (one, (shape, dtype)) in enumerate(zip(new, states, strict=True)):
        if (one.shape, one.dtype) != (shape, dtype):
            raise ShapeError(
                f"recurrence: state {number} changes its shape or dtype",
                facts=(("before", described(leaves[0][number])), ("after", described(one))),
                advice="`step` takes its states and returns new ones of the same shapes.",
            )
    results = (*new, *further)
    return Graph(tuple(x for group in leaves for x in group), _named(results))


def _results_of(given: object) -> tuple[list[Tensor], list[Tensor]]:
    """The results of the user's function: new states, then further results."""
    groups = [entries_of(group) for group in entries_of(given) or ()]
    listed = [group for group in groups if group is not None]
    if len(groups) != 2 or len(listed) != 2:
        raise DefinitionError(
            "`step` must return its new states and further results",
            facts=(("expected", "a pair of lists of tensors"), ("found", type(given).__name__)),
            where=source_line(),
            advice="Return [state], [] if there are no further results.",
        )
    new, further = ([as_tensor(x) for x in group] for group in listed)
    return new, further


def _sample_step(states: Tensors, elements: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    (state,), (x,), (weight,) = states, elements, constants
    return [tanh(add(matmul(state, weight), x))], []


def _two_states(states: Tensors, elements: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    fast, slow = states
    (x,) = elements
    weight, bias = constants
    mixed = add(matmul(mul(fast, x), weight), bias)
    return [tanh(mixed), add(mul(slow, 0.5), mixed)], [mul(fast, slow)]


def _sample(
    step: StepFunction,
    shapes: tuple[tuple[Shape, ...], tuple[Shape, ...], tuple[Shape, ...]],
    dtype: DType,
    length: int,
    *,
    result: int = 0,
    reverse: bool = False,
    truncate: int = 0,
) -> Sample:
    specs = [[(shape, dtype) for shape in group] for group in shapes]
    body = _graph(step, *specs)
    states, elements, constants = (tuple(map(static, group)) for group in shapes)
    operands = (*states, *((length, *shape) for shape in elements), *constants)
    attributes = {
        "body": body,
        "states": len(states),
        "sequences": len(elements),
        "reverse": reverse,
        "truncate": truncate,
        "result": result,
    }
    return Sample(operands, attributes, -1.0, 1.0, dtypes=(dtype.name,) * len(operands))


_ONE = (((2, 3),), ((2, 3),), ((3, 3),))
_TWO = (((3,), (3,)), ((3,),), ((3, 3), (3,)))

RECURRENCE = Op(
    "recurrence",
    _infer_recurrence,
    None,
    _recurrence_reference,
    Repeating(),
    Samples(
        lambda: [
            _sample(_sample_step, _ONE, float64, 4),
            _sample(_sample_step, _ONE, float64, 5, reverse=True),
            # A truncated gradient is not the derivative of the result.
            replace(_sample(_sample_step, _ONE, float64, 5, truncate=2), differentiable=False),
            _sample(_two_states, _TWO, float64, 3),
            _sample(_two_states, _TWO, float64, 3, result=1),
            _sample(_two_states, _TWO, float64, 4, result=2, reverse=True),
            _sample(_sample_step, _ONE, float64, 1),
            replace(_sample(_sample_step, _ONE, float32, 3), differentiable=False),
        ]
    ),
    joint_gradient=_recurrence_gradient,
    operands=(1, None),
    attributes={
        "body": IterationGraph(),
        "states": whole(0),
        "sequences": whole(1),
        "reverse": Flag(),
        "truncate": whole(0),
        "result": whole(0),
    },
)


@checked
def recurrence(
    step: StepFunction,
    initial: Tensors,
    sequences: Tensors,
    constants: Tensors = (),
    *,
    reverse: bool = False,
    truncate: int | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """A loop along time. Each iteration passes its states to the next one.

    Args:
        step: a function that builds one iteration from (states, elements, constants), and returns
            the new states and further results. It is called once, and must not use other tensors.
        initial: the first states.
        sequences: tensors with the time as their first axis, one or more; an iteration gets one
            element of each.
        constants: tensors that every iteration gets, such as weights.
        reverse: whether time runs backwards.
        truncate: the gradients of states end after every `truncate` iterations, counted from
            the first one (truncated backpropagation, Williams and Peng 1990); None: no truncation.

    Returns:
        The states after each iteration, and its further results, all with the time as first axis.

    Raises:
        ShapeError: if sequences differ in length, or a state changes its shape.
        DefinitionError: without sequences, or if `step` uses other tensors.

    Example:
        >>> import lamina as lm
        >>> x = lm.Input(10, 3)
        >>> by_time = lm.ops.transpose(x, (1, 0, 2))
        >>> first = lm.ops.zeros_like(by_time[0])
        >>> (sums,), _ = lm.ops.recurrence(lambda s, e, c: ([s[0] + e[0]], []), [first], [by_time])
        >>> sums.shape
        (10, Size(coefficient=1, offset=0), 3)
    """
    if not callable(step):
        raise refused("step", "a function (states, elements, constants)", step)
    initial = tensors_of("initial", initial)
    sequences = tensors_of("sequences", sequences)
    constants = tensors_of("constants", constants)
    reverse = flag_of("reverse", reverse)
    truncate = truncate if truncate is None else whole_of("truncate", truncate, 1)
    _check_sequences(sequences)
    body = _graph(
        step,
        [(x.shape, x.dtype) for x in initial],
        [(x.shape[1:], x.dtype) for x in sequences],
        [(x.shape, x.dtype) for x in constants],
    )
    _check_body(body)
    attributes: dict[str, Any] = {
        "body": body,
        "states": len(initial),
        "sequences": len(sequences),
        "reverse": reverse,
        "truncate": truncate or 0,
    }
    operands = (*initial, *sequences, *constants)
    stacks = [
        apply(RECURRENCE, *operands, **attributes, result=n) for n in range(len(body.outputs))
    ]
    (length,) = static(sequences[0].shape[:1])
    # The stack of a state begins with the initial state, or ends with it.
    first = 0 if reverse else 1
    states = [slice_axis(stack, 0, first, first + length) for stack in stacks[: len(initial)]]
    return states, stacks[len(initial) :]


def _check_sequences(sequences: Tensors) -> None:
    """Raises DefinitionError or ShapeError for sequences without one common, fixed length."""
    lengths = {x.shape[:1] for x in sequences}
    if not sequences:
        raise DefinitionError(
            "a recurrence needs a sequence",
            facts=(("sequences", "none"),),
            advice="Give a tensor with the time as its first axis, for example ops.arange(n).",
        )
    if len(lengths) != 1 or () in lengths:
        raise ShapeError(
            "recurrence: the sequences differ in length",
            facts=tuple((f"sequence {n}", described(x)) for n, x in enumerate(sequences)),
            advice="Their first axis is the time.",
        )
    if not isinstance(sequences[0].shape[0], int):
        raise ShapeError(
            "the first axis of a sequence must be the time, but it is the batch",
            facts=(("sequence 0", described(sequences[0])),),
            advice="ops.transpose(x, (1, 0, 2)) brings another axis to the front.",
        )


def _check_body(body: Graph) -> None:
    """Raises DefinitionError if an iteration applies layers, or uses tensors from outside."""
    inside = topological(body.roots)
    layers = [x for x in inside if x.op.name == "layer"]
    if layers:
        raise DefinitionError(
            "`step` applies a layer",
            facts=(("found", type(layers[0].attributes["layer"]).__name__),),
            advice="Write it with ops, and pass the parameters as constants.",
        )
    outside = [x for x in inside if x.op is LEAF and x not in body.inputs]
    if outside:
        raise DefinitionError(
            "`step` uses a tensor that was not passed to it",
            facts=(("found", described(outside[0])),),
            advice="Pass it as one of the constants.",
        )
