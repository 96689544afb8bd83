"""Losses of sequences without alignment: connectionist temporal classification."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Annotated, Any, cast

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Shape, int64, static
from lamina.checks.kinds import Whole
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Tensor, constant, described
from lamina.learning.losses.loss import Elements, Loss, Reduction, Target
from lamina.learning.losses.scores import SCORES, doubt
from lamina.learning.target_checks import check_values

__all__ = ["CTC"]

_TOO_SHORT = (
    "A prediction needs a time for each label, and one between equal labels: leave shorter ones "
    "out, or take lm.CTC(zero_infinity=True), in which they have the loss 0."
)
# Stands for the logarithm of the probability 0: sums of it stay finite and have gradients.
_NEVER = -1e30


@frozen_dataclass(kw_only=True)
class CTC(Loss):
    """-log of the probability of all alignments of a label sequence with a longer prediction.

    From Graves et al.: Connectionist temporal classification (2006), formulas 5 to 8 and 14. An
    alignment has one label or blank at each time; equal labels in a row, and then blanks, are left
    out of it. Takes log-probabilities, f32 or f64 [batch, time, classes], as `LogSoftmax` gives
    them; PyTorch has [time, batch, classes]. The target is a tensor of labels, integers [batch,
    longest], in which the labels before the first negative number count; or a tuple (labels,
    input_lengths), or (labels, input_lengths, target_lengths), with integers [batch]. A time from
    the input length on does not count. Lengths are at least 0, and at most the numbers of times and
    of labels.

    Gradients are with respect to the log-probabilities. PyTorch's are with respect to the scores
    before a log-softmax; after `LogSoftmax` both give the same.

    Args:
        blank: the class number of the blank.
        zero_infinity: a target that no alignment has, because the prediction is too short, has the
            loss 0 and no gradient; otherwise the loss is infinite.
        reduction: `"mean"` divides the loss of each example by the length of its target, at least
            1, and takes the mean over the batch, as PyTorch; `"sum"`, or `"none"` for the loss of
            each example.

    Example:
        >>> log_probabilities = lm.LogSoftmax()(lm.Input(50, 28))
        >>> lm.CTC()(log_probabilities, lm.Input(10, dtype="int64")).shape
        ()
    """

    blank: Annotated[int, Whole(0)] = 0
    zero_infinity: bool = False
    reduction: Reduction = "mean"

    @property
    def of_infinity(self) -> str:
        """The advice on an infinite loss; "" if it has another reason."""
        return "" if self.zero_infinity else _TOO_SHORT

    def target(self, prediction: Tensor) -> Target:
        return prediction.shape[:2], int64

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        others = np.delete(np.arange(prediction_shape[-1]), self.blank)
        labels = others[np.floor(np.abs(noise) * 1000).astype(int) % len(others)]
        return np.where(np.arange(int(noise.shape[-1])) == 0, labels, -1)

    def check_target(self, array: Any, prediction_shape: Shape) -> None:
        steps, classes = static(prediction_shape[1:])
        labels, *length_arrays = cast(
            "tuple[Array, ...]", array if isinstance(array, tuple) else (array,)
        )
        named = (("input", "times", steps), ("target", "labels", labels.shape[1]))
        for lengths, (name, elements, most) in zip(length_arrays, named, strict=False):
            check_values(
                self,
                lengths,
                cast(Array, (lengths >= 0) & (lengths <= most)),
                problem=f"{name} lengths out of range",
                expected=f"0..{most}",
                advice=f"Each is the number of {elements} that count; the arrays have {most}.",
            )
        fits = cast(Array, (labels < classes) & (labels != self.blank))
        if len(length_arrays) > 1:
            ended = cast(Array, np.arange(labels.shape[1]) >= length_arrays[1][:, None])
            fits = cast(Array, fits & (labels >= 0) | ended)
        else:
            fits &= (labels < 0) | ~np.logical_or.accumulate(labels < 0, 1)
        check_values(
            self,
            labels,
            fits,
            expected=f"class numbers up to {classes - 1}, but {self.blank}, or -1 for none",
            advice="The blank is no label: fill labels up with -1 at their end, and number them "
            "around it.",
        )

    def doubt(self, prediction: Any) -> str:
        return doubt(
            prediction, (SCORES,), "logarithms of probabilities", "End in lm.LogSoftmax()."
        )

    def elements(self, prediction: Tensor, target: Any) -> Elements:
        labels, input_lengths, target_lengths = self._targets(prediction, target)
        steps, classes = static(prediction.shape[1:])
        batch, (longest,) = labels.shape[0], static(labels.shape[1:])
        # The states are the labels, and blanks before, between and after them.
        states = 2 * longest + 1
        pairs = ops.stack([ops.full(labels.shape, self.blank, int64), labels], 2)
        extended = ops.reshape(pairs, (batch, 2 * longest))
        extended = ops.pad(extended, ((0, 0), (0, 1)), self.blank)
        is_class = ops.logical_and(extended >= 0, extended < classes)
        indices = ops.broadcast_to(ops.where(is_class, extended, 0), (steps, batch, states))
        by_time = ops.transpose(ops.clip(prediction, low=_NEVER), (1, 0, 2))
        of_states = ops.take_along_axis(by_time, indices, 2)
        # A label is also reached from the one before it, without a blank, if the two differ.
        two_before = ops.pad(extended, ((0, 0), (2, 0)), -1)[:, :states]
        is_label = constant(np.arange(states) % 2 == 1)
        skips = ops.logical_and(is_label, ops.not_equal(extended, two_before))
        # Before the first time it is in the first blank: from there it reaches the first label too.
        start = constant(np.where(np.arange(states) < 1, 0.0, _NEVER), prediction.dtype)
        last = _after_all_times(
            ops.broadcast_to(start, (batch, states)), of_states, skips, input_lengths
        )
        numbers, end = ops.arange(states), ops.expand_dims(2 * target_lengths, 1)
        total = _log_sum(
            ops.max(ops.where(ops.equal(numbers, end), last, _NEVER), 1),
            ops.max(ops.where(ops.equal(numbers, end - 1), last, _NEVER), 1),
        )
        never = total < 0.1 * _NEVER
        each = ops.where(never, 0.0 if self.zero_infinity else math.inf, -total)
        if self.reduction == "mean":
            each = each / ops.cast(ops.maximum(target_lengths, 1), each.dtype)
        counted = ops.arange(longest) < ops.expand_dims(target_lengths, 1)
        valid = ops.all((labels >= 0) & (labels < classes) | ~counted, 1)
        for lengths, most in ((input_lengths, steps), (target_lengths, longest)):
            valid = valid & (lengths >= 0) & (lengths <= most)
        return Elements(ops.where(valid, each, math.nan))

    def _targets(self, prediction: Tensor, target: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Labels, input lengths and target lengths, int64."""
        several = isinstance(target, list | tuple)
        tensors = tuple(cast(Sequence[Tensor], target)) if several else (cast(Tensor, target),)
        labels, *length_tensors = tensors
        fits = prediction.rank == 3 and labels.rank == 2 and len(tensors) <= 3
        if not fits or any(lengths.shape != labels.shape[:1] for lengths in length_tensors):
            raise ShapeError(
                "the labels do not fit the prediction",
                facts=(
                    ("expected", "[batch, time, classes] and labels [batch, longest]"),
                    ("prediction", described(prediction)),
                    ("found", ", ".join(described(tensor) for tensor in tensors)),
                ),
                advice="Fill the labels up with -1 to the longest; the targets are labels, or "
                "(labels, input_lengths, target_lengths).",
            )
        for tensor in tensors:
            if tensor.dtype.kind != "int":
                raise DTypeError(
                    "labels and lengths are integers",
                    facts=(("expected", "i64"), ("found", described(tensor))),
                    advice="Convert the targets: y.astype('int64').",
                )
        (steps,) = static(prediction.shape[1:2])
        labels, *length_tensors = (ops.cast(tensor, "int64") for tensor in tensors)
        if len(length_tensors) < 2:
            ended = ops.cumsum(ops.cast(labels < 0, "int64"), 1)
            length_tensors.append(ops.sum(ops.cast(ops.equal(ended, 0), "int64"), 1))
        if len(length_tensors) < 2:
            length_tensors.insert(0, ops.full(labels.shape[:1], steps, int64))
        return labels, length_tensors[0], length_tensors[1]


def _after_all_times(initial: Tensor, of_states: Tensor, skips: Tensor, lengths: Tensor) -> Tensor:
    """The logarithm of the probability to be in each state at the end, [batch, states].

    Args:
        initial: the states before the first time, [batch, states].
        of_states: the log-probability of each state's class, [time, batch, states].
        skips: whether a state may be reached from the one two before it, [batch, states].
        lengths: the times that count, [batch].
    """
    steps, _, states = of_states.shape
    assert isinstance(states, int)

    def iteration(
        before: Sequence[Tensor], elements: Sequence[Tensor], constants: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        (state,), (scores, time), (skip, length) = before, elements, constants
        one_before = ops.pad(state, ((0, 0), (1, 0)), _NEVER)[:, :states]
        two_before = ops.pad(state, ((0, 0), (2, 0)), _NEVER)[:, :states]
        reached = _log_sum(state, one_before, ops.where(skip, two_before, _NEVER))
        counts = ops.expand_dims(time < length, 1)
        return [ops.where(counts, ops.clip(reached + scores, low=_NEVER), state)], []

    times = ops.arange(steps)
    (stack,), _ = ops.recurrence(iteration, [initial], [of_states, times], [skips, lengths])
    return stack[-1]


def _log_sum(*values: Tensor) -> Tensor:
    """log(exp(x) + exp(y) + ...) of finite tensors, without overflow."""
    largest = ops.stop_gradient(reduce(ops.maximum, values))
    return largest + ops.log(reduce(add, [ops.exp(x - largest) for x in values]))
