"""Contractions with a packed operand: first a loop copies it to a workspace, in runs of neighbours.

Weights of a convolution have their kernel elements as neighbours, while its data has channels. So
a tile of the weights would be read from as many sectors as it has elements, by each work group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lamina.base.shapes import DType, size_of
from lamina.codegen.matrix import half_of
from lamina.engines.gpu.products import Product
from lamina.program.index import row_major
from lamina.program.scalar import Apply, Load, Scalar
from lamina.program.steps import Contraction, Loop, Store, Write
from lamina.program.windows import loaded

OPERANDS = ("left", "right")


def packed_steps(
    step: Contraction, operand: str, workspace: Callable[[int, DType], str]
) -> tuple[Loop, Contraction]:
    """The loop that packs an operand, `"left"` or `"right"`, and the contraction that reads it.

    Conversions to the dtype of the products are done by the contraction, as before: floats of 16
    bits are packed as such, and float32 that will be rounded to TF32 as they are.
    """
    view = step.left if operand == "left" else step.right
    outer = step.m if operand == "left" else step.n
    single = Product(step)
    distances = (single.left if operand == "left" else single.right).distances
    is_along_k = 0 < distances[1] < distances[0]
    axes = (*step.batch, *outer, *step.k) if is_along_k else (*step.batch, *step.k, *outer)
    location = row_major(axes)
    kept = _kept(view)
    name = workspace(size_of([axis.extent for axis in axes]), kept.dtype)
    load = Load(name, location, kept.dtype)
    replaced = _converted(view, load)
    changes = {operand: replaced, f"{operand}_windows": (), "name": f"{step.name}.products"}
    found = replace(step, **changes)
    return Loop(f"{step.name}.packed", axes, (Write((), (Store(name, location, kept),)),)), found


def gains_by_packing(step: Contraction, operand: str) -> bool:
    """Whether an operand is a load without runs of neighbours, and has each element only once."""
    view = step.left if operand == "left" else step.right
    outer = step.m if operand == "left" else step.n
    load = loaded(view)
    windows = step.left_windows if operand == "left" else step.right_windows
    if load is None or load.bounds or windows:
        return False
    single = Product(step)
    side = single.left if operand == "left" else single.right
    low, high = load.index.bounds
    size = size_of([axis.extent for axis in (*step.batch, *outer, *step.k)])
    return side.runs == (1, 1) and size <= high - low + 1


def _kept(view: Scalar) -> Scalar:
    """What the workspace has of a view: its elements before their conversion to what is multiplied.

    That is the last conversion of floats of 16 bits, or the rounding to TF32.
    """
    half = half_of(view)
    if half is not None:
        return half
    if isinstance(view, Apply) and view.primitive == "round_to_tf32":
        return view.operands[0]
    return view


def _converted(view: Scalar, load: Load) -> Scalar:
    """A load from the workspace, converted as the view's elements are."""
    if _kept(view) is view:
        return load
    assert isinstance(view, Apply)
    return replace(view, operands=(load,))
