"""Contractions with a packed operand: first a loop copies it to a workspace, in runs of neighbours.

Weights of a convolution have their kernel elements as neighbours, while its data has channels. So
a tile of the weights would be read from as many sectors as it has elements, by each work group.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.base.shapes import size_of
from lamina.codegen.matrix import half_of
from lamina.engines.gpu.products import Operand, Product
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.index import Axis
from lamina.program.scalar import Apply, Scalar
from lamina.program.steps import Contraction, Loop, Write
from lamina.program.tf32 import ROUNDED
from lamina.program.windows import loaded


def packed_steps(
    operand: str, step: Contraction, workspaces: StepWorkspaces
) -> tuple[Loop, Contraction]:
    """The loop that packs an operand, `"left"` or `"right"`, and the contraction that reads it.

    Conversions to the dtype of the products are done by the contraction, as before: floats of 16
    bits are packed as such, and float32 that will be rounded to TF32 as they are.
    """
    view, outer, side = _operand(step, operand)
    is_along_k = 0 < side.distances[1] < side.distances[0]
    axes = (*step.batch, *outer, *step.k) if is_along_k else (*step.batch, *step.k, *outer)
    kept = _kept(view)
    store, load = workspaces.kept(axes, kept)
    # A load from the workspace is converted as the view's elements are.
    converted = load
    if kept is not view:
        assert isinstance(view, Apply)
        converted = replace(view, operands=(load,))
    changes = {operand: converted, f"{operand}_windows": (), "name": f"{step.name}.products"}
    packing = Loop(f"{step.name}.packed", axes, (Write((), (store,)),))
    return packing, replace(step, **changes)


def gains_by_packing(step: Contraction, operand: str) -> bool:
    """Whether an operand is a load without runs of neighbours, and has each element only once."""
    view, outer, side = _operand(step, operand)
    load = loaded(view)
    windows = step.left_windows if operand == "left" else step.right_windows
    if load is None or load.bounds or windows:
        return False
    low, high = load.index.bounds
    size = size_of([axis.extent for axis in (*step.batch, *outer, *step.k)])
    return side.runs == (1, 1) and size <= high - low + 1


def _operand(step: Contraction, operand: str) -> tuple[Scalar, tuple[Axis, ...], Operand]:
    """The view of an operand, its axes besides batch and K, and what is known about it."""
    if operand == "left":
        return step.left, step.m, Product(step).left
    return step.right, step.n, Product(step).right


def _kept(view: Scalar) -> Scalar:
    """What the workspace has of a view: its elements before their conversion to what is multiplied.

    That is the last conversion of floats of 16 bits, or the rounding to TF32.
    """
    half = half_of(view)
    if half is not None:
        return half
    if isinstance(view, Apply) and view.primitive in ROUNDED:
        return view.operands[0]
    return view
