"""Recurrent layers: a cell applied along a sequence, to each element and the previous state.

The iterations are one loop of the program, for any length. The product of the inputs and their
weight is computed for all iterations before the loop. Only the product with the state is computed
in the loop.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import KW_ONLY
from typing import Literal

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import int64, static
from lamina.checks.kinds import Count, Depth, Probability
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Tensor, described
from lamina.layers.cells import (
    CellActivation,
    ElmanUnit,
    GatedRecurrentUnit,
    LongShortTermMemory,
    RecurrentUnit,
    Tensors,
    initial_states,
)
from lamina.layers.checks import EMBEDDING, require_float
from lamina.layers.dropout import dropout_factors
from lamina.layers.init import Uniform
from lamina.layers.scope import InitializerOption, RegularizerOption, Scope, parameter_of

__all__ = ["GRU", "LSTM", "RNN"]


@frozen_dataclass
class _Recurrent(RecurrentUnit, ABC):
    features: Count
    _: KW_ONLY
    layers: Depth = 1
    bidirectional: bool = False
    returns: Literal["all", "last", "states"] = "all"
    dropout: Probability = 0.0
    bias: bool = True
    truncate: Count | None = None
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    def _projected(self) -> int | None:
        """The features of the output, if a product after the formula makes it."""
        return None

    def forward(self, scope: Scope, x: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        if x.rank != 3 or not isinstance(length := x.shape[1], int):
            indices = x.rank == 2 and x.dtype.kind == "int"
            raise ShapeError(
                f"{type(self).__name__} needs sequences of features",
                facts=(("expected", "f32[batch, length, features]"), ("found", described(x))),
                advice=EMBEDDING if indices else "Add lm.Reshape(length, features) before it.",
            )
        require_float(self, x)
        lengths = [other for other in others if not _is_state(other)]
        inside = None
        if lengths:
            inside = _mask(scope, lengths, x, length)
            # NaN after the end of a sequence must not reach the gradients of the weights.
            x = ops.where(ops.transpose(inside, (1, 0, 2)), x, 0)
        initial = self._initial(x, [other for other in others if _is_state(other)])
        final: list[Tensors] = []
        for layer in range(self.layers):
            if layer and self.dropout and scope.training:
                x = x * dropout_factors(scope, x.shape, self.dropout)
            outputs: list[Tensor] = []
            for reverse in (False, True) if self.bidirectional else (False,):
                suffix = f"_l{layer}{'_reverse' if reverse else ''}"
                first = initial[len(final)]
                stacks = self._direction(scope, x, inside, first, suffix)
                final.append([stack[0 if reverse else length - 1] for stack in stacks])
                y = stacks[0] if inside is None else ops.where(inside, stacks[0], 0)
                outputs.append(ops.transpose(y, (1, 0, 2)))
            x = outputs[0] if len(outputs) == 1 else ops.concat(outputs, 2)
        if self.returns == "all":
            return x
        if self.returns == "states":
            return x, *(_stacked(states) for states in zip(*final, strict=True))
        last = [states[0] for states in final[-1 - self.bidirectional :]]
        return last[0] if len(last) == 1 else ops.concat(last, 1)

    def _initial(self, x: Tensor, initial: Tensors) -> list[Tensors]:
        """The initial states of each layer and direction."""
        count = self.layers * (1 + self.bidirectional)
        each = (count,) if count > 1 and initial else ()
        widths = (self._projected() or self.features, self.features)[: self.states]
        states = initial_states(self, initial, [(x.shape[0], *each, width) for width in widths], x)
        if not each:
            return [states] * count
        return [[state[:, number] for state in states] for number in range(count)]

    def _direction(
        self, scope: Scope, x: Tensor, inside: Tensor | None, initial: Tensors, suffix: str
    ) -> Tensors:
        """The states of one layer in one direction: [length, batch, features]."""
        (inputs,) = static(x.shape[2:])
        outputs, bound = self.gates * self.features, 1.0 / math.sqrt(self.features)
        usual, projected = Uniform(-bound, bound), self._projected()

        def parameter(name: str, *shape: int) -> Tensor:
            return parameter_of(self, scope, f"{name}{suffix}", shape, usual)

        weight_ih = parameter("weight_ih", outputs, inputs)
        constants = [parameter("weight_hh", outputs, projected or self.features)]
        from_input = ops.matmul(x, ops.transpose(weight_ih))
        if self.bias:
            from_input = from_input + parameter("bias_ih", outputs)
            constants.append(parameter("bias_hh", outputs))
        if projected is not None:
            constants.append(parameter("weight_hr", projected, self.features))
        sequences = [ops.transpose(from_input, (1, 0, 2))]
        if inside is not None:
            sequences.append(inside)

        def iteration(
            states: Tensors, elements: Tensors, fixed: Tensors
        ) -> tuple[Tensors, Tensors]:
            product = ops.matmul(states[0], ops.transpose(fixed[0]))
            new = self._next(states, elements[0], product, fixed[1] if self.bias else None)
            if projected is not None:
                new = [ops.matmul(new[0], ops.transpose(fixed[-1])), *new[1:]]
            if inside is not None:
                pairs = zip(new, states, strict=True)
                new = [ops.where(elements[1], after, before) for after, before in pairs]
            return new, []

        loop, reverse = (iteration, initial, sequences, constants), suffix.endswith("_reverse")
        return ops.recurrence(*loop, reverse=reverse, truncate=self.truncate)[0]


def _is_state(tensor: Tensor) -> bool:
    """Whether a tensor after the sequences is an initial state; all others are lengths."""
    return tensor.dtype.is_float and tensor.rank > 1


def _stacked(states: Tensors) -> Tensor:
    """The states of all layers and directions: [batch, states, features], or a single one."""
    if len(states) == 1:
        return states[0]
    return ops.concat([ops.expand_dims(state, 1) for state in states], 1)


def _mask(scope: Scope, operands: Tensors, x: Tensor, length: int) -> Tensor:
    """A mask of the positions before the end of each sequence: [length, batch, 1]."""
    lengths = operands[-1]
    if len(operands) > 1 or lengths.shape != x.shape[:1] or lengths.dtype.kind != "int":
        wrong = DTypeError if lengths.shape == x.shape[:1] else ShapeError
        raise wrong(
            "lengths are one whole number for each sequence",
            facts=(("expected", "i64[batch]"), ("found", described(lengths))),
            advice='Lengths follow from a mask: ops.sum(ops.cast(mask, "int64"), 1).'
            if lengths.shape == x.shape[:2]
            else 'Take them as lm.Input(dtype="int64").',
        )
    scope.limit_indices(
        lengths,
        length + 1,
        what="lengths",
        advice=f"The sequences have {length} positions; 0 is the length of an empty sequence.",
    )
    positions = ops.reshape(ops.arange(length, int64), (length, 1))
    return ops.expand_dims(ops.less(positions, ops.cast(lengths, int64)), -1)


@frozen_dataclass(kw_only=True)
class RNN(ElmanUnit, _Recurrent):
    """The simple recurrent layer: h = activation(W_ih x + b_ih + W_hh h + b_hh).

    Takes f32 or f64 [batch, length, inputs]. Two kinds of tensors may follow. If sequences differ
    in length, their lengths, integers [batch] from 0 to the length. To start from other states than
    zeros, the initial state, [batch, features]; of several layers or both directions
    [batch, layers * directions, features], the backward direction of a layer after the forward one.

    Gives [batch, length, features] with zeros after the end of each sequence, or the last state,
    [batch, features], which for an empty sequence is the initial one. A bidirectional layer gives
    twice as many features. With `returns="states"` it gives a tuple: the outputs, and the final
    state, in the shape of an initial one. After Elman: Finding structure in time (Cognitive
    Science 14, 1990).

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (features, inputs),
    `weight_hh_l0` (features, features), `bias_ih_l0`, `bias_hh_l0`; further layers have their
    number, and the backward direction has the suffix `_reverse`.

    Args:
        features: the number of elements of the state.
        layers: the number of layers; each takes the outputs of the one before.
        bidirectional: whether a second cell runs backwards; its outputs are appended as features.
        returns: `"all"` outputs; or the `"last"` one of the last layer: at the end of each
            sequence, for the backward direction at its beginning; or `"states"`, a tuple of all
            outputs and the final states of all layers.
        dropout: the probability of an element between layers to become zero, as PyTorch's.
        bias: whether biases are added.
        truncate: the number of iterations after which gradients of the states stop (truncated
            backpropagation through time); None: no truncation.
        weight_init, bias_init: first values; by default uniform within 1 / sqrt(features).
        weight_regularizer: a penalty on all weights, such as `lm.L2(1e-4)`.
        activation: `"tanh"` or `"relu"`.

    Example:
        >>> lm.RNN(32)(lm.Input(100, 8)).shape
        (batch, 100, 32)
    """

    activation: CellActivation = "tanh"


@frozen_dataclass(kw_only=True)
class LSTM(LongShortTermMemory, _Recurrent):
    """Long short-term memory: a cell state with input, forget and output gates.

    i, f, o = sigmoid(..) and g = tanh(..) of W_ih x + b_ih + W_hh h + b_hh, whose rows are in the
    order i, f, g, o; c = f c + i g, h = o tanh(c). Takes and gives tensors as `RNN` does; the
    outputs are h. It has two states: `lm.LSTM(20)(x, h, c)` starts from them, and
    `returns="states"` gives the outputs and the final h and c. After Hochreiter and Schmidhuber
    (Neural Computation 9, 1997); the forget gate f is from Gers, Schmidhuber, Cummins (2000).

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (4 features, inputs), ...

    Args:
        features, layers, bidirectional, returns, dropout, bias, truncate: the arguments of `RNN`.
        weight_init, bias_init, weight_regularizer: the arguments of `RNN`.
        projection: the features of h, which then is the product of o tanh(c) and the weight
            `weight_hr_l0`, (projection, features); c keeps its features. After Sak, Senior,
            Beaufays (2014). None: no product.

    Example:
        >>> lm.LSTM(64, layers=2, bidirectional=True, returns="last")(lm.Input(100, 8)).shape
        (batch, 128)
    """

    projection: Count | None = None

    def _projected(self) -> int | None:
        return self.projection


@frozen_dataclass
class GRU(GatedRecurrentUnit, _Recurrent):
    """The gated recurrent unit: a state with a reset gate and an update gate.

    With r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh) and
    n = tanh(W_in x + b_in + r (W_hn h + b_hn)): h = (1 - z) n + z h. The rows of the weights are in
    the order r, z, n. Takes and gives tensors as `RNN` does. After Cho et al. (EMNLP 2014), with
    the formulas of PyTorch and cuDNN.

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (3 features, inputs), ...
    It takes the arguments of `RNN`, except the activation.

    Example:
        >>> lm.GRU(32, returns="last")(lm.Input(100, 8)).shape
        (batch, 32)
    """
