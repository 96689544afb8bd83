"""Upsampling: sequences, images and volumes in another size, interpolated axis by axis.

Each mode is a linear function of each axis. `"nearest"` reads elements; the other modes are
products with constant matrices, so neither their forward nor their backward pass has scatters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType, float64, static
from lamina.checks.kinds import Either, Number, OrNone, Row
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Tensor, constant, described
from lamina.layers.checks import require_float
from lamina.layers.layer import Layer
from lamina.layers.per_axis import ForEachAxis
from lamina.layers.pooling import along_axis, means
from lamina.layers.scope import Scope, in_float32

__all__ = ["Upsample"]

Mode = Literal[
    "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"
]  # fmt: skip
_FACTOR = Number("(0, inf)")
Factors = Annotated[
    float | Sequence[float] | None, OrNone(Either(_FACTOR, Row(_FACTOR, least=1, example="(2, 2)")))
]
Sizes = Annotated[int | tuple[int, ...] | None, OrNone(ForEachAxis())]

# What a mode takes: the ranks of tensors, and their name and shape for errors.
_IMAGES = "images", "[batch, channels, height, width]"
_TAKEN: Mapping[str, tuple[tuple[int, ...], str, str]] = {
    **dict.fromkeys(("nearest", "nearest-exact", "area"), ((3, 4, 5), *_IMAGES)),
    **dict.fromkeys(("bilinear", "bicubic"), ((4,), *_IMAGES)),
    "linear": ((3,), "sequences", "[batch, channels, length]"),
    "trilinear": ((5,), "volumes", "[batch, channels, depth, height, width]"),
}
_WITH_CORNERS = ("linear", "bilinear", "bicubic", "trilinear")


@frozen_dataclass(kw_only=True)
class Upsample(Layer):
    """Sequences, images or volumes in another size, larger or smaller.

    Takes [batch, channels, ...] with one to three further axes and gives [batch, channels, *size].
    Modes `"nearest"` and `"nearest-exact"` take any dtype, the others f32 or f64. Values and
    gradients are as in PyTorch's `interpolate`, except that PyTorch ignores a scale that leaves
    the size of an axis as it is.

    Args:
        scale: the factor, or one for each axis after the channels; the size is the extent times
            the factor, rounded down, and positions are divided by the factor (PyTorch's
            `recompute_scale_factor=False`).
        size: the size of the result, in place of `scale`, or one for each axis after the channels.
        mode: `"nearest"` takes the element at the rounded down position, `"nearest-exact"` the
            nearest one; `"linear"`, `"bilinear"` and `"trilinear"` blend the two nearest along each
            axis of a sequence, an image or a volume; `"bicubic"` blends four along each axis of an
            image (Keys 1981, a = -0.75); `"area"` gives means, as `AdaptiveAvgPool`.
        align_corners: whether, in the modes that blend, the corner elements of tensor and result
            coincide (True), or elements are the centres of equal intervals (False). As in PyTorch.

    Example:
        >>> lm.Upsample(scale=2)(lm.Input(3, 8, 8)).shape
        (batch, 3, 16, 16)
        >>> lm.Upsample(size=(5, 7), mode="bicubic")(lm.Input(3, 8, 8)).shape
        (batch, 3, 5, 7)
    """

    scale: Factors = None
    size: Sizes = None
    mode: Mode = "nearest"
    align_corners: bool = False

    def __post_init__(self) -> None:
        if (self.scale is None) == (self.size is None):
            facts = (("expected", "scale=2 or size=(16, 16)"), ("found", repr(self)))
            raise DefinitionError("Upsample takes a scale or a size", facts=facts)
        if self.align_corners and self.mode not in _WITH_CORNERS:
            raise DefinitionError(
                "align_corners applies to modes that blend elements only",
                facts=(("expected", "mode='bilinear'"), ("found", f"mode={self.mode!r}")),
                advice="Leave align_corners out.",
            )

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        ranks, kind, shape = _TAKEN[self.mode]
        if x.rank not in ranks:
            raise ShapeError(
                f"Upsample in mode {self.mode!r} takes {kind}",
                facts=(("expected", shape), ("found", described(x))),
                advice="Bring the tensor into this shape with lm.Reshape.",
            )
        if not self.mode.startswith("nearest"):
            require_float(self, x)
        for axis, (size, factor) in enumerate(_sizes(self, x), start=2):
            (extent,) = static((x.shape[axis],))
            if self.mode == "nearest" and size % extent == 0 and factor in (None, size // extent):
                x = _repeated(x, axis, size // extent)
            elif self.mode.startswith("nearest"):
                positions = nearest_positions(extent, size, factor, x.dtype, self.mode)
                x = ops.take(x, constant(positions), axis)
            elif size != extent or (factor or 1) != 1:
                x = along_axis(x, axis, _MATRICES[self.mode](self, extent, size, factor))
        return x


# The largest extent of a result: a matrix has as many rows.
_LARGEST = 2**20


def _sizes(layer: Upsample, x: Tensor) -> Sequence[tuple[int, float | None]]:
    """For each axis after the channels the size, and the factor if that was given."""
    count = x.rank - 2
    option: Any = layer.size if layer.scale is None else layer.scale
    listed: tuple[Any, ...] = (option,) * count if isinstance(option, int | float) else option
    if len(listed) != count:
        raise ShapeError(
            "Upsample has a wrong number of factors or sizes for this tensor",
            facts=(
                ("given", str(option)),
                ("expected", f"{count} of them"),
                ("found", described(x)),
            ),
            advice="Give one for each axis after the channels, or one for all.",
        )
    extents = static(x.shape[2:])
    sizes: list[tuple[int, float | None]] = [
        (entry, None) if layer.scale is None else (math.floor(extent * entry), float(entry))
        for extent, entry in zip(extents, listed, strict=True)
    ]
    if not all(1 <= size <= _LARGEST for size, _ in sizes):
        raise ShapeError(
            "the result of Upsample would be empty or too large",
            facts=(
                ("expected", f"1 to {_LARGEST} elements along each axis"),
                ("given", str(option)),
                ("found", described(x)),
            ),
        )
    return sizes


def _repeated(x: Tensor, axis: int, factor: int) -> Tensor:
    """Each element repeated `factor` times along one axis."""
    if factor == 1:
        return x
    (extent,) = static((x.shape[axis],))
    expanded = ops.expand_dims(x, axis + 1)
    shape = (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :])
    merged = (*x.shape[:axis], extent * factor, *x.shape[axis + 1 :])
    return ops.reshape(ops.broadcast_to(expanded, shape), merged)


def nearest_positions(old: int, new: int, factor: float | None, dtype: DType, mode: str) -> Array:
    """The index of the element of each position of the result."""
    # Indices are computed in the tensor's float type, as by PyTorch: there a product may round to
    # the next whole number.
    kind = np.float64 if dtype == float64 else np.float32
    step = kind(old) / kind(new) if factor is None else kind(1.0 / factor)
    positions = np.arange(new).astype(kind)
    half = kind(0.5)
    if mode == "nearest-exact":
        centres = step * (positions + half) - half
        elements = np.floor((centres + half).astype(np.float32))
    else:
        elements = np.floor((positions * step).astype(np.float32))
    return np.minimum(elements.astype(np.int64), old - 1)


def _positions(layer: Upsample, old: int, new: int, factor: float | None) -> Array:
    """The position in the tensor of each element of the result."""
    if layer.align_corners:
        return np.arange(new) * ((old - 1) / max(new - 1, 1))
    return (np.arange(new) + 0.5) * (old / new if factor is None else 1.0 / factor) - 0.5


def _linear(layer: Upsample, old: int, new: int, factor: float | None) -> Array:
    """The float64 matrix (new, old) of linear interpolation between equally spaced elements."""
    # Beyond the centres of the outermost elements, these elements are repeated.
    position = np.clip(_positions(layer, old, new, factor), 0, old - 1)
    return np.maximum(0.0, 1.0 - np.abs(position[:, None] - np.arange(old)))


def _cubic(layer: Upsample, old: int, new: int, factor: float | None) -> Array:
    """The float64 matrix (new, old) of cubic convolution: Keys (1981), with a = -0.75."""
    position = _positions(layer, old, new, factor)
    first = np.floor(position).astype(int)
    matrix = np.zeros((new, old))
    for offset in (-1, 0, 1, 2):
        distance = np.abs(position - first - offset)
        near = (1.25 * distance - 2.25) * distance**2 + 1.0
        far = -0.75 * (((distance - 5.0) * distance + 8.0) * distance - 4.0)
        element = np.clip(first + offset, 0, old - 1)
        np.add.at(matrix, (np.arange(new), element), np.where(distance <= 1, near, far))
    return matrix


def _area(_layer: Upsample, old: int, new: int, _factor: float | None) -> Array:
    return means(old, new)


_MATRICES: Mapping[str, Callable[[Upsample, int, int, float | None], Array]] = {
    "linear": _linear,
    "bilinear": _linear,
    "trilinear": _linear,
    "bicubic": _cubic,
    "area": _area,
}
