"""Recurrence: one graph applied in a loop along a time axis.

The graph of one iteration is compiled once, and the program repeats its steps. So the program does
not grow with the sequence. The gradient is a recurrence too, back in time (Werbos: Backpropagation
through time, 1990). It computes each iteration again from the previous state; the compiler decides
which tensors the first loop keeps for it. Gradients of weights are not added up iteration by
iteration: each is one contraction over all iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType, Shape, float32, float64, static
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Flag, Kind, Misfit, Operands, entries_of
from lamina.checks.origin import source_line
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
    described,
    evaluate,
    leaf,
    topological,
)
from lamina.graph.attributes import whole
from lamina.ops import basic as ops
from lamina.ops.arguments import as_tensor, flag_of, refused, tensors_of, whole_of
from lamina.ops.lowering_rules import Repeating
from lamina.ops.recurrence_gradient import Tensors, named_results, recurrence_gradient
from lamina.ops.slicing import slice_axis

__all__ = ["recurrence"]

# (states, elements of the sequences, constants) -> (new states, further results) of an iteration
StepFunction = Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]


@final
@frozen_dataclass
class IterationGraph(Kind):
    """The graph of one iteration: made of ops, without layers, and a function of its inputs."""

    def read(self, value: Any, operands: Operands = ()) -> Graph:
        if not isinstance(value, Graph):
            raise Misfit("the graph of an iteration")
        if problem := _problem_of(value):
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
        if x.op.applies_layer:
            return "there are ops only"
    return "nothing is updated" if body.updates else ""


def _infer_recurrence(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    body: Graph = attributes["body"]
    states: int = attributes["states"]
    sequences: int = attributes["sequences"]
    results = len(body.outputs)
    if len(operands) != len(body.inputs):
        facts = (("expected", str(len(body.inputs))), ("found", str(len(operands))))
        raise DefinitionError("recurrence: the number of operands does not fit", facts=facts)
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
    (length,) = static(operands[states].shape[:1])
    for number, (operand, inner) in enumerate(zip(operands, body.inputs, strict=True)):
        shape: Shape = inner.shape
        if states <= number < states + sequences:
            shape = (length, *shape)
        if (operand.shape, operand.dtype) != (shape, inner.dtype):
            raise ShapeError(
                "recurrence: an operand does not fit the graph of an iteration",
                facts=(("expected", str(shape)), ("found", described(operand))),
                advice="Initial states have the shapes of states; sequences have a time axis.",
            )
    result: int = attributes["result"]
    tensor: Tensor = body.outputs[result][1]
    return (length + 1 if result < states else length, *tensor.shape), tensor.dtype


def _recurrence_reference(
    *operands: Array, body: Graph, states: int, sequences: int, reverse: bool, result: int, **_: int
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
        outputs = evaluate(body, dict(zip(names, values, strict=True)))[0]
        results = [outputs[name] for name, _ in body.outputs]
        current = results[:states]
        for stack, value in zip(stacks, results, strict=True):
            stack.append(value)
    tensor: Tensor = body.outputs[result][1]
    stack = stacks[result][::-1] if reverse else stacks[result]
    return np.stack(stack) if stack else np.zeros((0, *static(tensor.shape)))


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
    for number, (state, (shape, dtype)) in enumerate(zip(new, states, strict=True)):
        if (state.shape, state.dtype) != (shape, dtype):
            raise ShapeError(
                f"recurrence: state {number} changes its shape or dtype",
                facts=(("before", described(leaves[0][number])), ("after", described(state))),
                advice="`step` takes its states and returns new ones of the same shapes.",
            )
    results = (*new, *further)
    return Graph(tuple(x for group in leaves for x in group), named_results(results))


def _results_of(results: object) -> tuple[list[Tensor], list[Tensor]]:
    """The results of the user's function: new states, then further results."""
    groups = [entries_of(group) for group in entries_of(results) or ()]
    listed = [group for group in groups if group is not None]
    if len(groups) != 2 or len(listed) != 2:
        raise DefinitionError(
            "`step` must return its new states and further results",
            facts=(("expected", "a pair of lists of tensors"), ("found", type(results).__name__)),
            where=source_line(),
            advice="Return [state], [] if there are no further results.",
        )
    new, further = ([as_tensor(x) for x in group] for group in listed)
    return new, further


def _sample_step(states: Tensors, elements: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    (state,), (x,), (weight,) = states, elements, constants
    return [ops.tanh(ops.add(ops.matmul(state, weight), x))], []


def _two_states(states: Tensors, elements: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    fast, slow = states
    (x,) = elements
    weight, bias = constants
    mixed = ops.add(ops.matmul(ops.mul(fast, x), weight), bias)
    return [ops.tanh(mixed), ops.add(ops.mul(slow, 0.5), mixed)], [ops.mul(fast, slow)]


def _sample(
    step: StepFunction,
    shapes: tuple[tuple[Shape, ...], tuple[Shape, ...], tuple[Shape, ...]],
    dtype: DType,
    length: int,
    **changed: int,
) -> Sample:
    specs = [[(shape, dtype) for shape in group] for group in shapes]
    states, elements, constants = (tuple(map(static, group)) for group in shapes)
    operands = (*states, *((length, *shape) for shape in elements), *constants)
    loop = {"body": _graph(step, *specs), "states": len(states), "sequences": len(elements)}
    rest = {"reverse": False, "truncate": 0, "result": 0, **changed}
    return Sample(operands, {**loop, **rest}, -1.0, 1.0, dtypes=(dtype.name,) * len(operands))


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
    joint_gradient=recurrence_gradient,
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

    Example:
        >>> x = lm.Input(10, 3)
        >>> by_time = lm.ops.transpose(x, (1, 0, 2))
        >>> first = lm.ops.zeros_like(by_time[0])
        >>> (sums,), _ = lm.ops.recurrence(lambda s, e, c: ([s[0] + e[0]], []), [first], [by_time])
        >>> sums.shape
        (10, batch, 3)
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
    loop: dict[str, Any] = {"body": body, "states": len(initial), "sequences": len(sequences)}
    loop |= {"reverse": reverse, "truncate": truncate or 0}
    operands = (*initial, *sequences, *constants)
    stacks = [apply(RECURRENCE, *operands, **loop, result=n) for n in range(len(body.outputs))]
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
    layers = [x for x in inside if x.op.applies_layer]
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
