"""Phases: calls of kernels that do not depend on each other, and so may run at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.engines.simd.decide.overlap import Extents, LastTouched
from lamina.engines.simd.emit.kernels import KernelCall, RepeatedCalls


def phase_starts(
    extents: Extents, calls: Sequence[KernelCall], loops: Sequence[RepeatedCalls]
) -> list[bool]:
    """Whether a phase begins with each call, because it depends on a call of the last phase."""
    # A phase also begins with each iteration, and after the last one.
    edges = {edge for loop in loops for edge in (loop.first, loop.last)}
    read, written = LastTouched(extents), LastTouched(extents)
    result: list[bool] = []
    phase = 0
    for number, call in enumerate(calls):
        used = max(written.last(call.reads), written.last(call.writes), read.last(call.writes))
        begins = number == 0 or number in edges or used >= phase
        phase = number if begins else phase
        read.touch(call.reads, number)
        written.touch(call.writes, number)
        result.append(begins)
    return result
