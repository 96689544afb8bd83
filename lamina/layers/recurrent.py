"""Recurrent layers: a cell that goes along a sequence, with its own last state in hand.

All steps are one loop of the program, whatever the length. What a cell takes from its input is one
product for all steps, made before the loop; only the product with the state is made in it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from lamina import ops
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Tensor, described
from lamina.graph.kinds import Count, Depth, Fraction
from lamina.layers.checks import EMBEDDING, require_float
from lamina.layers.init import Uniform
from lamina.layers.layer import Layer
from lamina.layers.scope import InitializerOption, RegularizerOption, Scope, initializer
from lamina.records import frozen_dataclass
from lamina.shapes import int64, static

Tensors = Sequence[Tensor]


@frozen_dataclass
class _Recurrent(Layer, ABC):
    features: Count
    layers: Depth = 1
    bidirectional: bool = False
    returns: Literal["all", "last"] = "all"
    dropout: Fraction = 0.0
    bias: bool = True
    truncate: Count | None = None
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    @abstractmethod
    def _step(
        self, states: Tensors, given: Tensor, product: Tensor, bias: Tensor | None
    ) -> Tensors:
        """The new states, the output first.

        Args:
            states: before the step.
            given: what the cell takes from its input, [batch, gates * features].
            product: the output before the step times the weight, of the same shape.
            bias: what is added to the product.
        """

    def forward(self, scope: Scope, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Builds all layers, one after the other."""
        if x.rank != 3 or not isinstance(x.shape[1], int):
            indices = x.rank == 2 and x.dtype.kind == "int"
            raise ShapeError(
                f"{type(self).__name__} needs sequences of features",
                facts=(("expected", "f32[batch, length, features]"), ("found", described(x))),
                advice=EMBEDDING if indices else "Add lm.Reshape(length, features) before it.",
            )
        require_float(self, x)
        (length,) = static(x.shape[1:2])
        inside = None if lengths is None else _mask(scope, lengths, x, length)
        last: list[Tensor] = []
        for layer in range(self.layers):
            if layer and self.dropout and scope.training:
                stay = 1.0 - self.dropout
                x = x * (scope.bernoulli(x.shape, stay) * (1.0 / stay))
            outputs: list[Tensor] = []
            last = []
            for reverse in (False, True) if self.bidirectional else (False,):
                suffix = f"_l{layer}{'_reverse' if reverse else ''}"
                states = self._direction(scope, x, inside, suffix, reverse)
                last.append(states[0 if reverse else length - 1])
                if inside is not None:
                    states = ops.where(inside, states, 0)
                outputs.append(ops.transpose(states, (1, 0, 2)))
            x = outputs[0] if len(outputs) == 1 else ops.concat(outputs, 2)
        if self.returns == "all":
            return x
        return last[0] if len(last) == 1 else ops.concat(last, 1)

    def _direction(
        self, scope: Scope, x: Tensor, inside: Tensor | None, suffix: str, reverse: bool
    ) -> Tensor:
        """The outputs of one layer in one direction: [length, batch, features]."""
        (inputs,) = static(x.shape[2:])
        rows, bound = self.gates * self.features, 1.0 / math.sqrt(self.features)
        own = Uniform(-bound, bound)

        def weight(name: str, columns: int) -> Tensor:
            init = initializer(self.weight_init, own)
            shape = (rows, columns)
            return scope.parameter(f"{name}{suffix}", shape, init, self.weight_regularizer)

        from_input = weight("weight_ih", inputs)
        from_state = weight("weight_hh", self.features)
        given = ops.matmul(x, ops.transpose(from_input))
        constants = [from_state]
        if self.bias:
            biases = [
                scope.parameter(f"{name}{suffix}", (rows,), initializer(self.bias_init, own))
                for name in ("bias_ih", "bias_hh")
            ]
            given = given + biases[0]
            constants.append(biases[1])
        sequences = [ops.transpose(given, (1, 0, 2))]
        if inside is not None:
            sequences.append(inside)

        def step(states: Tensors, elements: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
            product = ops.matmul(states[0], ops.transpose(fixed[0]))
            new = self._step(states, elements[0], product, fixed[1] if self.bias else None)
            if inside is not None:
                pairs = zip(new, states, strict=True)
                new = [ops.where(elements[1], after, before) for after, before in pairs]
            return new, []

        first = ops.full((x.shape[0], self.features), 0.0, x.dtype)
        found, _ = ops.recurrence(
            step,
            [first] * self.states,
            sequences,
            constants,
            reverse=reverse,
            truncate=self.truncate,
        )
        return found[0]


def _mask(scope: Scope, lengths: Tensor, x: Tensor, length: int) -> Tensor:
    """Which steps lie inside the sequences: [length, batch, 1]."""
    if lengths.shape != x.shape[:1] or lengths.dtype.kind != "int":
        wrong = DTypeError if lengths.shape == x.shape[:1] else ShapeError
        raise wrong(
            "lengths are one whole number for each sequence",
            facts=(("expected", "i64[batch]"), ("found", described(lengths))),
            advice='A mask has them as sums: ops.sum(ops.cast(mask, "int64"), 1).'
            if lengths.shape == x.shape[:2]
            else 'Take them as lm.Input(dtype="int64").',
        )
    scope.limit_indices(
        lengths,
        length + 1,
        what="lengths",
        advice=f"The sequences have room for {length} steps; 0 is the length of an empty one.",
    )
    steps = ops.reshape(ops.arange(length, int64), (length, 1))
    return ops.expand_dims(ops.less(steps, ops.cast(lengths, int64)), -1)


def _parts(tensor: Tensor, count: int) -> tuple[Tensor, ...]:
    """The last axis in equal parts."""
    return ops.split(tensor, count, -1)


@frozen_dataclass
class RNN(_Recurrent):
    """The simple recurrent layer: h = activation(W_ih x + b_ih + W_hh h + b_hh).

    Takes f32 or f64 [batch, length, inputs], and if sequences differ in length their lengths,
    integers [batch] from 0 to the length, as a second tensor; gives [batch, length, features] with
    zeros behind the end, or the last state, [batch, features], zeros for an empty sequence. In both
    directions there are twice as many features. After Elman: Finding structure in time (Cognitive
    Science 14, 1990).

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (features, inputs),
    `weight_hh_l0` (features, features), `bias_ih_l0`, `bias_hh_l0`, for other layers with their
    numbers, for the way back with `_reverse` behind.

    Args:
        features: of the state.
        layers: how many are stacked; each goes along the outputs of the one before.
        bidirectional: whether a second cell goes along backwards; its outputs stand beside.
        returns: `"all"` states, or the `"last"` one: behind the end of each sequence, for the way
            back at its beginning.
        dropout: probability, between layers, as PyTorch's.
        bias: whether biases are added.
        truncate: after so many steps gradients go no further back; None: they go all the way.
        weight_init, bias_init: first values; by default uniform within 1 / sqrt(features).
        weight_regularizer: a penalty on all weights, such as `lm.L2(1e-4)`.
        activation: `"tanh"` or `"relu"`.

    Raises:
        DefinitionError: for a number out of range.
        ShapeError: when applied to something else than sequences of features.
        DTypeError: when applied to integers, or if lengths are no integers.

    Example:
        >>> import lamina as lm
        >>> lm.RNN(32)(lm.Input(100, 8)).shape
        (Size(coefficient=1, offset=0), 100, 32)
    """

    activation: Literal["tanh", "relu"] = "tanh"

    gates = 1

    def _step(
        self, states: Tensors, given: Tensor, product: Tensor, bias: Tensor | None
    ) -> Tensors:
        total = given + (product if bias is None else product + bias)
        return [ops.tanh(total) if self.activation == "tanh" else ops.relu(total)]


@frozen_dataclass
class LSTM(_Recurrent):
    """Long short-term memory: a state that gates let in, keep, and let out.

    With the gates i, f, o = sigmoid(..) and g = tanh(..) of W_ih x + b_ih + W_hh h + b_hh, which
    lie in the order i, f, g, o: c = f c + i g, h = o tanh(c). Takes and gives tensors as `RNN`
    does; the result is h. After Hochreiter and Schmidhuber (Neural Computation 9, 1997); the gate
    f is that of Gers, Schmidhuber, Cummins (2000).

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (4 features, inputs), and so
    on.

    Args:
        features: of the state.
        layers: how many are stacked.
        bidirectional: whether a second cell goes along backwards; its outputs stand beside.
        returns: `"all"` states, or the `"last"` one.
        dropout: probability, between layers.
        bias: whether biases are added.
        truncate: after so many steps gradients go no further back; None: they go all the way.
        weight_init, bias_init: first values; by default uniform within 1 / sqrt(features).
        weight_regularizer: a penalty on all weights.

    Raises:
        DefinitionError: for a number out of range.
        ShapeError: when applied to something else than sequences of features.
        DTypeError: when applied to integers, or if lengths are no integers.

    Example:
        >>> import lamina as lm
        >>> lm.LSTM(64, layers=2, bidirectional=True, returns="last")(lm.Input(100, 8)).shape
        (Size(coefficient=1, offset=0), 128)
    """

    gates = 4
    states = 2

    def _step(
        self, states: Tensors, given: Tensor, product: Tensor, bias: Tensor | None
    ) -> Tensors:
        total = given + (product if bias is None else product + bias)
        let_in, keep, new, let_out = _parts(total, 4)
        cell = ops.sigmoid(keep) * states[1] + ops.sigmoid(let_in) * ops.tanh(new)
        return [ops.sigmoid(let_out) * ops.tanh(cell), cell]


@frozen_dataclass
class GRU(_Recurrent):
    """The gated recurrent unit: a state that is replaced bit by bit.

    With r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh) and
    n = tanh(W_in x + b_in + r (W_hn h + b_hn)): h = (1 - z) n + z h. The gates lie in the order
    r, z, n. Takes and gives tensors as `RNN` does. After Cho et al. (EMNLP 2014), in the form of
    PyTorch and cuDNN.

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (3 features, inputs), and so
    on.

    Args:
        features: of the state.
        layers: how many are stacked.
        bidirectional: whether a second cell goes along backwards; its outputs stand beside.
        returns: `"all"` states, or the `"last"` one.
        dropout: probability, between layers.
        bias: whether biases are added.
        truncate: after so many steps gradients go no further back; None: they go all the way.
        weight_init, bias_init: first values; by default uniform within 1 / sqrt(features).
        weight_regularizer: a penalty on all weights.

    Raises:
        DefinitionError: for a number out of range.
        ShapeError: when applied to something else than sequences of features.
        DTypeError: when applied to integers, or if lengths are no integers.

    Example:
        >>> import lamina as lm
        >>> lm.GRU(32, returns="last")(lm.Input(100, 8)).shape
        (Size(coefficient=1, offset=0), 32)
    """

    gates = 3

    def _step(
        self, states: Tensors, given: Tensor, product: Tensor, bias: Tensor | None
    ) -> Tensors:
        old = product if bias is None else product + bias
        reset_x, update_x, new_x = _parts(given, 3)
        reset_h, update_h, new_h = _parts(old, 3)
        update = ops.sigmoid(update_x + update_h)
        new = ops.tanh(new_x + ops.sigmoid(reset_x + reset_h) * new_h)
        return [new + update * (states[0] - new)]
