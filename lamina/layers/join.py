"""Layers that join several tensors into one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add, mul

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Dim
from lamina.checks import checked
from lamina.checks.kinds import Count
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.graph.tensor import Tensors
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope

__all__ = ["Add", "Concat", "Multiply", "concat"]


@frozen_dataclass(kw_only=True)
class Concat(Layer):
    """Joins tensors end to end along one axis.

    Takes two or more tensors of one dtype that are equal in all other axes, and gives one whose
    extent along the axis is the sum of theirs.

    Args:
        axis: the axis of the tensors with their batch, from 1: channels or features by default.

    Example:
        >>> lm.Concat()(lm.Input(10), lm.Input(5)).shape
        (batch, 15)
    """

    axis: Count = 1

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        _check_branches("Concat", operands, free_axis=self.axis)
        if operands[0].rank <= self.axis:
            raise ShapeError(
                f"the branches have no axis {self.axis}",
                facts=(("found", described(operands[0])),),
                advice=f"They have axes 0 (the batch) to {operands[0].rank - 1}.",
            )
        return ops.concat(operands, self.axis)


@checked
def concat(tensors: Tensors, axis: Count = 1) -> Tensor:
    """Joins tensors end to end along one axis: `Concat(axis=axis)` applied to them.

    Args:
        tensors: two or more tensors, equal in dtype and in all other axes.
        axis: the axis of the tensors with their batch, from 1.

    Raises:
        DefinitionError, ShapeError: as for `Concat`.

    Example:
        >>> lm.concat([lm.Input(10), lm.Input(5)]).shape
        (batch, 15)
    """
    return Concat(axis=axis)(*tensors)


@frozen_dataclass
class Add(Layer):
    """The sum of two or more tensors of one shape: the end of a residual block.

    Example:
        >>> x = lm.Input(10)
        >>> y = lm.Add()(x, lm.Linear(10)(x))
    """

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        _check_branches("Add", operands)
        return reduce(add, operands)


@frozen_dataclass
class Multiply(Layer):
    """The elementwise product of two or more tensors.

    Extents must be equal, or 1 in tensors that are then broadcast along the axis. For example, a
    gate with one value for each channel, [batch, 16, 1, 1], can be multiplied with
    [batch, 16, 32, 32].

    Example:
        >>> x = lm.Input(10)
        >>> y = lm.Multiply()(x, lm.Sigmoid()(x))
    """

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        _check_branches("Multiply", operands, repeat=True)
        return reduce(mul, operands)


def _check_branches(
    name: str, operands: Sequence[Tensor], free_axis: int | None = None, repeat: bool = False
) -> None:
    """Raises ShapeError, which names the first pair that differs, unless all have one shape.

    Args:
        free_axis: an axis along which extents may differ.
        repeat: whether an extent of 1 fits any other extent.
    """
    if len(operands) < 2:
        raise ShapeError(
            f"{name} joins two tensors or more",
            facts=(("expected", f"{name}()(left, right)"), ("found", f"{len(operands)} tensor")),
            advice="In Sequential a layer has one input; use lm.Network to join branches.",
        )
    for number, right in enumerate(operands):
        for left in operands[:number]:
            axes = [
                axis
                for axis, (a, b) in enumerate(zip(left.shape, right.shape, strict=False))
                if a != b and axis != free_axis and not (repeat and 1 in (a, b))
            ]
            if left.rank != right.rank or axes:
                which = "two branches"
                if len(operands) > 2:
                    which = f"branches {operands.index(left) + 1} and {number + 1}"
                raise ShapeError(
                    f"the {which} differ in shape",
                    facts=(("left", described(left)), ("right", described(right))),
                    advice=_advice_on_shapes(left, right, axes, free_axis),
                )


def _advice_on_shapes(left: Tensor, right: Tensor, axes: list[int], free_axis: int | None) -> str:
    """The difference and the fix: `Axes 2 and 3 differ, 16 against 32: ...`."""
    if left.rank != right.rank:
        return (
            f"The left branch has {left.rank} axes, the right one {right.rank}: "
            "add lm.Flatten() or lm.Reshape() to one of them."
        )
    pairs = [(left.shape[axis], right.shape[axis]) for axis in axes]
    if len(set(pairs)) == 1:
        pairs = pairs[:1]
    subject = f"Axis {axes[0]} differs" if len(axes) == 1 else f"Axes {_listed(axes)} differ"
    sizes = f"{_listed([a for a, _ in pairs])} against {_listed([b for _, b in pairs])}"
    return f"{subject}, {sizes}: {_fix(left.rank, axes, pairs, free_axis)}"


def _fix(rank: int, axes: list[int], pairs: list[tuple[Dim, Dim]], free_axis: int | None) -> str:
    if axes[0] == 0:
        return "each branch must keep the batch as its first axis."
    if axes[0] >= 2:
        if stride := _common_ratio(pairs):
            return f"give the shortcut stride={stride} as well."
        return "give both branches the same padding and stride."
    if free_axis is not None:
        return f"only axis {free_axis} may differ."
    if axes == [1]:
        kind = "features" if rank == 2 else "channels"
        return f"give both branches the same number of {kind}."
    return "give both branches the same shape."


def _common_ratio(pairs: list[tuple[Dim, Dim]]) -> int | None:
    """The ratio of the branches' extents, if it is the same whole number for all pairs."""
    ratios: set[tuple[bool, int]] = set()
    for a, b in pairs:
        if not isinstance(a, int) or not isinstance(b, int) or not min(a, b):
            return None
        ratio, rest = divmod(max(a, b), min(a, b))
        if rest:
            return None
        ratios.add((a > b, ratio))
    return ratios.pop()[1] if len(ratios) == 1 else None


def _listed(items: Sequence[object]) -> str:
    """`1`, `1 and 2`, `1, 2 and 3`."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
