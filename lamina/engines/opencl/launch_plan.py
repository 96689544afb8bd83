"""Which calls of kernels share a launch of a device that is a processor.

- *Side by side*: the calls of a phase, which do not depend on each other. Each work item does a
  share of the work of each call.
- *In order*: calls of phases that take less time than a launch, also of phases in a loop. One work
  item runs them one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.pieces import PieceModule
from lamina.engines.gpu.launches import Traits
from lamina.engines.simd.decide.overlap import extents_of
from lamina.engines.simd.emit.kernels import KernelCall, RepeatedCalls, WrittenProgram, phase_starts
from lamina.program.program import Program

# A phase is run by one work item, if that takes at most so many cycles longer than all threads do.
# Drivers take about as long to wake the threads for a launch and to wait for all of them.
_LAUNCH_CYCLES = 80_000
# The work items of a call for each thread: threads that are interrupted do fewer of them.
_ITEMS_PER_THREAD = 4
# The most buffers of a launch: addresses of 8 bytes and offsets of 4. OpenCL guarantees 1024 bytes
# for the arguments of a kernel.
_MOST_BUFFERS = 80


@frozen_dataclass
class PlannedLaunch:
    """The calls of a launch.

    Attributes:
        first: the number of the first call.
        calls: all calls.
        in_order: whether one work item runs them in order.
        loops: the ranges of calls that the work item repeats.
    """

    first: int
    calls: tuple[KernelCall, ...]
    in_order: bool
    loops: tuple[RepeatedCalls, ...] = ()

    def part(self, first: int, last: int) -> PlannedLaunch:
        """A launch of some of the calls."""
        return replace(self, first=self.first + first, calls=self.calls[first:last])


@final
class LaunchPlan:
    """Decides which calls of a program share a launch.

    If `separate`, each call has a launch of its own, so that its time can be measured.
    """

    def __init__(
        self,
        program: Program,
        written: WrittenProgram[PieceModule],
        traits: Traits,
        *,
        separate: bool,
    ) -> None:
        self._sections, self._separate = written.sections, separate
        self._threads = max(traits.compute_units, 1)
        others = dict(written.workspaces.extents)
        free = max((end for _, end in others.values()), default=0)
        for name, size in written.kept.items():
            others[name] = free, free + size
            free += size
        self._extents = extents_of(program, others)
        self._most_items = self._threads * _ITEMS_PER_THREAD
        own_bytes = written.workspaces.thread_bytes
        if own_bytes:
            # The own memory of the work items is one allocation.
            self._most_items = min(self._most_items, max(traits.block_bytes // own_bytes, 1))

    def launches(
        self, calls: Sequence[KernelCall], loops: Sequence[RepeatedCalls]
    ) -> list[PlannedLaunch]:
        """Groups calls into launches: phases side by side, short phases in order."""
        starts = phase_starts(self._extents, calls, loops)
        edges = [number for number, begins in enumerate(starts) if begins or self._separate]
        phases = [
            PlannedLaunch(first, tuple(calls[first:last]), self._is_short(calls[first:last]))
            for first, last in pairwise((*edges, len(calls)))
        ]
        within = {number: loop for loop in loops for number in range(loop.first, loop.last)}

        def repeat_around(launch: PlannedLaunch) -> RepeatedCalls | None:
            """The loop that repeats a launch."""
            loop = within.get(launch.first)
            return None if loop in launch.loops else loop

        planned: list[PlannedLaunch] = []
        for phase in self._with_short_loops(phases, within, calls):
            before = planned[-1] if planned else None
            if before is not None and before.in_order and phase.in_order:
                merged = (*before.calls, *phase.calls)
                is_together = repeat_around(before) == repeat_around(phase)
                if is_together and self._fits(merged):
                    repeated = (*before.loops, *phase.loops)
                    planned[-1] = replace(before, calls=merged, loops=repeated)
                    continue
            planned += self._split(phase)
        return planned

    def _is_short(self, calls: Sequence[KernelCall]) -> bool:
        """Whether one work item runs a phase about as fast as a launch with all threads."""
        cycles = sum(call.slices.work.cycles for call in calls)
        saved = cycles * (1 - 1 / self._threads)
        return not self._separate and saved <= _LAUNCH_CYCLES

    def _with_short_loops(
        self,
        phases: Sequence[PlannedLaunch],
        loop_at: Mapping[int, RepeatedCalls],
        calls: Sequence[KernelCall],
    ) -> Iterator[PlannedLaunch]:
        """The phases; a loop of short phases is one phase."""
        is_short = dict.fromkeys(loop_at.values(), True)
        for phase in phases:
            if phase.first in loop_at:
                is_short[loop_at[phase.first]] &= phase.in_order
        for phase in phases:
            loop = loop_at.get(phase.first)
            repeated = tuple(calls[loop.first : loop.last]) if loop is not None else ()
            if loop is None or not is_short[loop] or not self._fits(repeated):
                yield phase
            elif phase.first == loop.first:
                yield PlannedLaunch(loop.first, repeated, True, (loop,))

    def _fits(self, calls: Sequence[KernelCall]) -> bool:
        """Whether the kernel takes the buffers of all calls."""
        return len(self.buffers(calls)) <= _MOST_BUFFERS

    def _split(self, phase: PlannedLaunch) -> Iterator[PlannedLaunch]:
        """A phase, in several launches if it has too many buffers for one."""
        first = 0
        for number in range(1, len(phase.calls)):
            if not phase.loops and not self._fits(phase.calls[first : number + 1]):
                yield phase.part(first, number)
                first = number
        yield phase.part(first, len(phase.calls))

    def buffers(self, calls: Sequence[KernelCall]) -> list[str]:
        """The buffers of the calls of a launch, each once."""
        sections = [self._sections[call.section] for call in calls]
        return list(dict.fromkeys(name for section in sections for name in section))

    def items(self, call: KernelCall) -> int:
        """The number of work items that share a call's work."""
        return min(-(-call.slices.work.items // call.slices.at_once), self._most_items)
