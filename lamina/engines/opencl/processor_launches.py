"""From calls of kernels for processors to launches.

All launches have one kernel. A number chooses its case, which calls functions:

- *Side by side*: the calls of a phase, which do not depend on each other. Each call has work items
  of its own, and each work item a share of the call's work.
- *In order*: calls of phases that take less time than a launch. One work item runs them one after
  another, also those of a loop.

Each work item is a work group, which the driver gives to a thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import final

from lamina.codegen.c import Function, Module
from lamina.codegen.pieces import PieceModule
from lamina.codegen.values import I32, I64, Value, constant
from lamina.engines.gpu.gather import write_gather
from lamina.engines.gpu.launches import (
    Launch,
    LaunchedCall,
    Launches,
    RepeatedLaunches,
    Traits,
    Workspace,
)
from lamina.engines.simd.decide.overlap import extents_of
from lamina.engines.simd.emit.kernels import KernelCall, RepeatedCalls, WrittenProgram
from lamina.engines.simd.emit.phases import phase_starts
from lamina.program.program import Program
from lamina.records import frozen_dataclass

# A phase is run by one work item, if that takes at most so many cycles longer than all threads do:
# a launch takes about ten microseconds.
_LAUNCH_CYCLES = 30_000
# The work items of a call for each thread: threads that are interrupted do fewer of them.
_ITEMS_PER_THREAD = 4
# The most buffers of a launch. OpenCL guarantees 1024 bytes for the arguments of a kernel.
_MOST_BUFFERS = 100
# The name of the memory that work items have for themselves.
_OWN = "own"
# The name of the kernel.
_KERNEL = "run"


@frozen_dataclass
class _Group:
    """The calls of a launch.

    Attributes:
        first, last: the first call, and the call after the last.
        in_order: whether one work item runs them in order.
        loops: those among them that the work item repeats.
    """

    first: int
    last: int
    in_order: bool
    loops: tuple[RepeatedCalls, ...] = ()

    @property
    def calls(self) -> range:
        return range(self.first, self.last)


@frozen_dataclass
class _Part:
    """A call within a case of the kernel.

    Attributes:
        function: that it calls.
        work: the work items of the call.
        items: the work items of the launch that share them.
        arguments: the positions of its buffers among those of the launch.
    """

    function: str
    work: int
    items: int
    arguments: tuple[int, ...]


@frozen_dataclass
class _Case:
    """What the kernel does for a number.

    Attributes:
        in_order: whether one work item runs the parts in order.
        parts: the calls.
        loops: the ranges of parts that are repeated: (first, last, iterations).
    """

    in_order: bool
    parts: tuple[_Part, ...]
    loops: tuple[tuple[int, int, int], ...]


def launches_of(
    program: Program, written: WrittenProgram[PieceModule], traits: Traits, *, apart: bool
) -> Launches:
    """The launches of a program whose functions are written; completes the text.

    Args:
        program: the program.
        written: its functions and their calls.
        traits: of the device.
        apart: whether each call has a launch of its own, so that its time can be measured.
    """
    return _Launching(program, written, traits, apart=apart).launches()


@final
class _Launching:
    def __init__(
        self,
        program: Program,
        written: WrittenProgram[PieceModule],
        traits: Traits,
        *,
        apart: bool,
    ) -> None:
        self._program, self._written, self._traits = program, written, traits
        self._apart = apart
        self._module: Module = written.module.inner
        # The numbers of the cases of the kernel.
        self._cases: dict[_Case, int] = {}
        self._own_bytes = written.workspaces.thread_bytes
        # The most work items of a call. The own memory of those of a launch is one allocation.
        self._most = traits.compute_units * _ITEMS_PER_THREAD
        self._most_at_once: float = float("inf")
        if self._own_bytes:
            self._most_at_once = max(traits.block_bytes // self._own_bytes, 1)
            self._most = int(min(self._most, self._most_at_once))

    def launches(self) -> Launches:
        written = self._written
        used = [number for number, call in enumerate(written.calls) if call.slices.work.items]
        calls = [written.calls[number] for number in used]
        steps = [written.steps[number] for number in used]
        loops: list[RepeatedCalls] = []
        for loop in written.loops:
            first, last = (bisect_left(used, one) for one in (loop.first, loop.last))
            if first < last:
                loops.append(RepeatedCalls(first, last, loop.iterations))
        groups = self._groups(calls, loops)
        load_groups = self._groups(written.load, ())
        repeats: list[RepeatedLaunches] = []
        starts = [group.first for group in groups]
        for loop in loops:
            if not any(loop in group.loops for group in groups):
                ends = bisect_left(starts, loop.first), bisect_left(starts, loop.last)
                repeats.append(RepeatedLaunches(*ends, loop.iterations))
        repeated = {number for one in repeats for number in range(one.first, one.last)}
        launches = [
            self._launch(group, calls, steps, numbered=number in repeated)
            for number, group in enumerate(groups)
        ]
        no_steps = [0] * len(written.load)
        load = [self._launch(one, written.load, no_steps, numbered=False) for one in load_groups]
        count = max((len(one.buffers) for one in (*launches, *load)), default=0)
        launches, load = ([_padded(one, count) for one in some] for some in (launches, load))
        inputs = [one for one in self._program.of_kind("input") if one.shape and one.bytes]
        gathers = tuple(write_gather(self._module, buffer) for buffer in inputs)
        self._write_kernel(count)
        return Launches(
            self._module.text(),
            tuple(launches),
            tuple(repeats),
            gathers,
            self._workspaces((*launches, *load)),
            written.kept,
            tuple(load),
        )

    # Groups

    def _groups(self, calls: Sequence[KernelCall], loops: Sequence[RepeatedCalls]) -> list[_Group]:
        """The calls of each launch."""
        others = dict(self._written.workspaces.extents)
        free = max((end for _, end in others.values()), default=0)
        for name, size in self._written.kept.items():
            others[name] = free, free + size
            free += size
        starts = phase_starts(extents_of(self._program, others), calls, loops)
        edges = [number for number, begins in enumerate(starts) if begins or self._apart]
        phases = [
            _Group(first, last, self._is_short(calls[first:last]))
            for first, last in pairwise((*edges, len(calls)))
        ]
        within = {number: loop for loop in loops for number in range(loop.first, loop.last)}
        found: list[_Group] = []
        for phase in self._with_short_loops(phases, loops):
            before = found[-1] if found else None
            if before is not None and before.in_order and phase.in_order:
                merged = _Group(before.first, phase.last, True, (*before.loops, *phase.loops))
                is_within = [
                    None if within.get(one.first) in one.loops else within.get(one.first)
                    for one in (before, phase)
                ]
                if is_within[0] == is_within[1] and self._fits(merged, calls):
                    found[-1] = merged
                    continue
            found += self._split(phase, calls)
        return found

    def _is_short(self, calls: Sequence[KernelCall]) -> bool:
        """Whether one work item runs a phase about as fast as a launch with all threads."""
        cycles = sum(call.slices.work.cycles for call in calls)
        saved = cycles * (1 - 1 / max(self._traits.compute_units, 1))
        return not self._apart and saved <= _LAUNCH_CYCLES

    def _with_short_loops(
        self, phases: Sequence[_Group], loops: Sequence[RepeatedCalls]
    ) -> Iterator[_Group]:
        """The phases; a loop of short phases is one phase."""
        left = list(loops)
        for phase in phases:
            while left and left[0].last <= phase.first:
                left.pop(0)
            loop = left[0] if left and left[0].first <= phase.first else None
            inside = [one for one in phases if loop and loop.first <= one.first < loop.last]
            if not loop or not all(one.in_order for one in inside):
                yield phase
            elif phase.first == loop.first:
                yield _Group(loop.first, loop.last, True, (loop,))

    def _fits(self, group: _Group, calls: Sequence[KernelCall]) -> bool:
        """Whether the kernel takes as many buffers, and there is memory for the work items."""
        items = sum(self._items(calls[number]) for number in group.calls)
        return len(self._buffers(group, calls)) <= _MOST_BUFFERS and (
            group.in_order or items <= self._most_at_once
        )

    def _split(self, group: _Group, calls: Sequence[KernelCall]) -> Iterator[_Group]:
        """A phase, in several groups if it is too large for one."""
        first = group.first
        for number in range(group.first + 1, group.last):
            if not group.loops and not self._fits(
                replace(group, first=first, last=number + 1), calls
            ):
                yield replace(group, first=first, last=number)
                first = number
        yield replace(group, first=first)

    def _buffers(self, group: _Group, calls: Sequence[KernelCall]) -> list[str]:
        """The buffers of the calls of a group, each once."""
        sections = self._written.sections
        return list(
            dict.fromkeys(
                name for number in group.calls for name in sections[calls[number].section]
            )
        )

    # Launches

    def _launch(
        self,
        group: _Group,
        calls: Sequence[KernelCall],
        steps: Sequence[int],
        *,
        numbered: bool,
    ) -> Launch:
        buffers = self._buffers(group, calls)
        positions = {name: number for number, name in enumerate(buffers)}
        parts: list[_Part] = []
        launched: list[LaunchedCall] = []
        for number in group.calls:
            call = calls[number]
            names = self._written.sections[call.section]
            items = 1 if group.in_order else self._items(call)
            arguments = tuple(positions[name] for name in names)
            parts.append(_Part(call.function, call.slices.work.items, items, arguments))
            launched.append(LaunchedCall(call.function, names, items, steps[number]))
        loops = tuple(
            (loop.first - group.first, loop.last - group.first, loop.iterations)
            for loop in group.loops
        )
        case = _Case(group.in_order, tuple(parts), loops)
        choice = self._cases.setdefault(case, len(self._cases))
        return Launch(
            _KERNEL,
            ((_OWN,) if self._own_bytes else ()) + tuple(buffers),
            1 if group.in_order else sum(part.items for part in parts),
            steps[group.first],
            group=1,
            numbers=(choice,) if numbered else (choice, 0),
            calls=tuple(launched),
        )

    def _items(self, call: KernelCall) -> int:
        """The number of work items that share a call's work."""
        return min(-(-call.slices.work.items // call.slices.at_once), self._most)

    def _workspaces(self, launches: Sequence[Launch]) -> Mapping[str, Workspace]:
        """The memory of work items in the first block, the shared workspaces in further ones."""
        extents, block_bytes = self._written.workspaces.extents, self._traits.block_bytes
        found: dict[str, Workspace] = {}
        if self._own_bytes:
            items = max(one.items for one in launches)
            found[_OWN] = Workspace(0, items * self._own_bytes)
        before = len(found)
        for name, (start, end) in extents.items():
            if end > start:
                block, offset = divmod(start, block_bytes)
                found[name] = Workspace(offset, end - start, before + block)
        return found

    # The kernel

    def _write_kernel(self, count: int) -> None:
        """Writes the kernel of all launches, which have `count` buffers.

        There is only one, because drivers take long for each: PoCL reads the whole program again,
        and compiles a function once for each kernel that calls it.
        """
        buffers = [(_OWN, "i8")] if self._own_bytes else []
        buffers += [(f"b{number}", "i8") for number in range(count - len(buffers))]
        code = self._module.kernel(_KERNEL, buffers, [("choice", I32), ("iteration", I32)])
        *given, choice, iteration = code.parameters
        item = code.item()
        # The first address of a table is that of the work item's own memory.
        if self._own_bytes:
            skipped = code.multiply(item, constant(self._own_bytes, I64))
            given[0] = code.offset(given[0], skipped, "i8")
        elif given:
            given.insert(0, given[0])
        tables = _Tables(code, given, code.convert("zext", iteration, "i64"))
        for case, number in self._cases.items():
            with code.when(code.compare("eq", choice, constant(number, I32))):
                if case.in_order:
                    _write_in_order(code, case, tables)
                else:
                    _write_side_by_side(code, case, tables, item)
        code.finish()


@final
class _Tables:
    """Tables of addresses in the kernel.

    Args:
        code: of the kernel.
        addresses: that of the work item's own memory, and those of the launch's buffers.
        iteration: the number of the iteration.
    """

    def __init__(self, code: Function, addresses: Sequence[Value], iteration: Value) -> None:
        self._code, self._addresses, self._iteration = code, addresses, iteration
        self._all = code.make_addresses(addresses, iteration)

    def of(self, part: _Part, iteration: Value | None = None) -> Value:
        """The table of a call; the calls of most launches share one."""
        if iteration is None and part.arguments == tuple(range(len(part.arguments))):
            return self._all
        own, *buffers = self._addresses
        chosen = [own, *(buffers[number] for number in part.arguments)]
        return self._code.make_addresses(chosen, iteration or self._iteration)


def _write_in_order(code: Function, case: _Case, tables: _Tables) -> None:
    """Writes the calls of a case that one work item runs."""
    zero = constant(0, I64)
    loop_from = {first: (last, iterations) for first, last, iterations in case.loops}
    number = 0
    while number < len(case.parts):
        last, iterations = loop_from.get(number, (number + 1, 0))
        loop = code.begin_loop(0, iterations) if iterations else None
        for part in case.parts[number:last]:
            table = tables.of(part, loop.index if loop is not None else None)
            code.call_void(part.function, table, zero, zero, constant(part.work, I64))
        if loop is not None:
            code.end_loop(loop)
        number = last


def _write_side_by_side(code: Function, case: _Case, tables: _Tables, item: Value) -> None:
    """Writes the calls of a case that share its work items."""
    before = 0
    for part in case.parts:
        own = code.subtract(item, constant(before, I64)) if before else item
        before += part.items
        if len(case.parts) == 1:
            _write_share(code, part, tables, own)
            continue
        # Numbers of items of earlier calls wrap around, and are large.
        with code.when(code.compare("ult", own, constant(part.items, I64))):
            _write_share(code, part, tables, own)


def _write_share(code: Function, part: _Part, tables: _Tables, item: Value) -> None:
    """Writes the call of a work item for its share of the work."""
    work, count = constant(part.work, I64), constant(part.items, I64)
    following = code.add(item, constant(1, I64))
    first, last = (
        code.binary("udiv", code.multiply(one, work), count) for one in (item, following)
    )
    code.call_void(part.function, tables.of(part), constant(0, I64), first, last)


def _padded(launch: Launch, count: int) -> Launch:
    """The launch with null pointers for the buffers that it does not need."""
    return replace(launch, buffers=launch.buffers + ("",) * (count - len(launch.buffers)))
