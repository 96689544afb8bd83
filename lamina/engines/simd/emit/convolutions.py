"""Contractions over windows: one writer for each algorithm."""

from __future__ import annotations

from lamina.engines.simd.decide.schedule import WindowSchedule
from lamina.engines.simd.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD,
    WINOGRAD_WEIGHT_GRADIENT,
    reading,
)
from lamina.engines.simd.emit.col2im import Col2im
from lamina.engines.simd.emit.context import Context, WrittenKernel
from lamina.engines.simd.emit.implicit_gemm import ImplicitGemm
from lamina.engines.simd.emit.weight_gradient import WeightGradient
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.engines.simd.emit.winograd_forward import WinogradForward
from lamina.engines.simd.emit.winograd_weight_gradient import WinogradWeightGradient
from lamina.program.steps import Contraction

_WRITERS: dict[str, type[WindowWriter]] = {
    IMPLICIT_GEMM: ImplicitGemm,
    WEIGHT_GRADIENT: WeightGradient,
    COL2IM: Col2im,
    **dict.fromkeys(WINOGRAD.values(), WinogradForward),
    **dict.fromkeys(WINOGRAD_WEIGHT_GRADIENT.values(), WinogradWeightGradient),
}


def emit_windows(
    context: Context, name: str, step: Contraction, schedule: WindowSchedule
) -> list[WrittenKernel]:
    """Writes the functions of a contraction over windows."""
    windowed = reading(step, schedule.algorithm, paired=schedule.paired)
    return _WRITERS[schedule.algorithm](context, name, windowed, schedule).write()
