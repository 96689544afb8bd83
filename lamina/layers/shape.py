"""Layers that change the shape or the scale of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Dim, divide_counts, element_count, float32, shape_text
from lamina.checks import refused
from lamina.checks.kinds import Kind, Misfit, Operands, Whole, entries_of, read_each
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import axis_within_example
from lamina.layers.layer import Layer, OwnName
from lamina.layers.scope import Scope

__all__ = ["Flatten", "Identity", "Rescale", "Reshape"]


@frozen_dataclass
class Identity(Layer):
    """The tensor itself: a layer that may stand for another one.

    Takes any dtype and shape.

    Example:
        >>> lm.Identity()(lm.Input(3)).shape
        (batch, 3)
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return x


@frozen_dataclass(kw_only=True)
class Flatten(Layer):
    """All axes after the batch as one, or some of them.

    Takes any dtype [batch, ...] and gives [batch, features]; one scalar per example becomes
    [batch, 1]. Elements keep their order, the last axis running fastest.

    Args:
        first, last: the first and the last axis that become one; negative numbers count from the
            end.

    Example:
        >>> lm.Flatten()(lm.Input(3, 8, 8)).shape
        (batch, 192)
        >>> lm.Flatten(first=2)(lm.Input(3, 8, 8)).shape
        (batch, 3, 64)
    """

    first: Annotated[int, Whole()] = 1
    last: Annotated[int, Whole()] = -1

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        if x.rank == 1 and (self.first, self.last) == (1, -1):
            return ops.reshape(x, (x.shape[0], 1))
        first, last = (axis_within_example(self, axis, x) for axis in (self.first, self.last))
        features = 1
        for dim in x.shape[first : last + 1]:
            if not isinstance(dim, int):
                raise ShapeError(
                    "only axes that do not depend on the batch can be flattened",
                    facts=(("found", described(x)),),
                    advice="The batch must be the first axis: use ops.transpose.",
                )
            features *= dim
        if last < first:
            facts = (("axes", f"{self.first} to {self.last}"), ("found", described(x)))
            raise ShapeError("the last axis to flatten comes before the first", facts=facts)
        return ops.reshape(x, (*x.shape[:first], features, *x.shape[last + 1 :]))


def _no_dimensions(advice: str = "") -> Misfit:
    return Misfit(
        "Reshape(1, 28, 28)",
        problem="these are not the dimensions of an example",
        advice=advice or "Give whole numbers above zero, without the batch; one of them may be -1.",
    )


_EXTENT = Whole(-1)


@frozen_dataclass
class _Dimension(Kind):
    """An extent of an example, -1 for the extent that follows from the others; or a row of them."""

    several: bool = False

    def read(self, value: Any, operands: Operands = ()) -> Any:
        entries = entries_of(value)
        if entries and not self.several:
            raise _no_dimensions(f"Write Reshape({', '.join(map(str, entries))}).")
        listed = entries if self.several else (value,)
        try:
            extents = read_each(_EXTENT, listed or ())
        except Misfit:
            raise _no_dimensions() from None
        if listed is None or 0 in extents:
            raise _no_dimensions()
        return extents if self.several else extents[0]


@frozen_dataclass(init=False)
class Reshape(Layer):
    """Each example in another shape.

    Takes any dtype [batch, ...] and gives [batch, *shape]; elements keep their order.

    Args:
        dimensions: the new shape of one example, without the batch; one may be -1 and follows
            from the others. Without dimensions each example becomes a scalar.
        shape: the same as one tuple.

    Example:
        >>> lm.Reshape(1, 28, -1)(lm.Input(784)).shape
        (batch, 1, 28, 28)
    """

    shape: tuple[int, ...]

    def __init__(
        self,
        *dimensions: Annotated[int, _Dimension()],
        shape: Annotated[Sequence[int], _Dimension(several=True)] = (),
        name: OwnName = None,
    ) -> None:
        object.__setattr__(self, "shape", (*dimensions, *shape))
        object.__setattr__(self, "name", name)
        if self.shape.count(-1) > 1 or (dimensions and shape):
            raise refused(_no_dimensions(), "shape", self.shape, "Reshape")

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        count = element_count(x.shape[1:])
        fixed = tuple(dim for dim in self.shape if dim != -1)
        missing: Dim | None = divide_counts(count, element_count(fixed))
        shape = tuple(missing if dim == -1 else dim for dim in self.shape)
        if missing is None or (missing != 1 and -1 not in self.shape):
            size = "*".join(map(str, fixed)) or "1"
            fit = "a multiple of " if -1 in self.shape else ""
            expected = f"{fit}{size} elements for {shape_text(self.shape)}"
            raise ShapeError(
                "an example has another number of elements",
                facts=(("expected", expected), ("found", described(x))),
                advice="Both shapes, without the batch, must have the same number of elements.",
            )
        return ops.reshape(x, (x.shape[0], *(1 if dim is None else dim for dim in shape)))


@frozen_dataclass
class Rescale(Layer):
    """y = x scale + offset, in the float type of the model.

    Takes any dtype and shape. `Rescale(1 / 255)` brings images of bytes to [0, 1] on the device.

    Args:
        scale: the factor.
        offset: the summand of the product.

    Example:
        >>> lm.Rescale(1 / 127.5, offset=-1.0)(lm.Input(28, 28, dtype="uint8")).dtype.name
        'float32'
    """

    scale: float
    _: KW_ONLY
    offset: float = 0.0

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        # Integers may be larger than the numbers of float16.
        scaled = ops.cast(x, float32 if scope.dtype.is_half else scope.dtype)
        if self.scale != 1.0:
            scaled = scaled * self.scale
        return ops.cast(scaled + self.offset if self.offset else scaled, scope.dtype)
