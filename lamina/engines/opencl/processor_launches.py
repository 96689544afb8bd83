"""From calls of kernels for processors to launches.

All launches have one kernel, `run`. A number chooses one of its cases, which calls the functions of
a launch, side by side or in order (`launch_plan.py`). Each work item is a work group, which the
driver gives to a thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.c import Function, Module
from lamina.codegen.pieces import PieceModule
from lamina.codegen.values import I32, I64, Value, constant
from lamina.engines.gpu.gather import write_gather
from lamina.engines.gpu.launches import Launch, Launches, RepeatedLaunches, Traits, Workspace
from lamina.engines.opencl.launch_plan import LaunchPlan, PlannedLaunch
from lamina.engines.simd.emit.kernels import RepeatedCalls, WrittenProgram
from lamina.program.program import Program

# The name of the memory that work items have for themselves.
_OWN = "own"
# The name of the kernel.
_KERNEL = "run"


def launches_of(
    program: Program, written: WrittenProgram[PieceModule], traits: Traits, *, separate: bool
) -> Launches:
    """The launches of a program whose functions are written; completes the text.

    If `separate`, each call has a launch of its own, so that its time can be measured.
    """
    plan = LaunchPlan(program, written, traits, separate=separate)
    writer = _Writer(written, plan)
    used = [number for number, call in enumerate(written.calls) if call.slices.work.items]
    calls = [written.calls[number] for number in used]
    loops = _loops_of(used, written.loops)
    planned = plan.launches(calls, loops)
    repeats = _repeats_of(planned, loops)
    repeated = {number for repeat in repeats for number in range(repeat.first, repeat.last)}
    launches = [
        writer.launch(launch, numbered=number in repeated) for number, launch in enumerate(planned)
    ]
    load = [writer.launch(launch) for launch in plan.launches(written.load, ())]
    count = max((len(launch.buffers) for launch in (*launches, *load)), default=0)
    module = written.module.inner
    gather = write_gather(module, program, {}, counted=False)
    writer.write_kernel(module, count)
    return Launches(
        module.text(),
        tuple(_padded(launch, count) for launch in launches),
        tuple(repeats),
        gather,
        _workspaces(written, traits, (*launches, *load)),
        written.kept,
        tuple(_padded(launch, count) for launch in load),
    )


def _loops_of(used: Sequence[int], loops: Sequence[RepeatedCalls]) -> list[RepeatedCalls]:
    """The loops of the calls that are used, by their numbers among those."""
    renumbered: list[RepeatedCalls] = []
    for loop in loops:
        first, last = (bisect_left(used, number) for number in (loop.first, loop.last))
        if first < last:
            renumbered.append(RepeatedCalls(first, last, loop.iterations))
    return renumbered


def _repeats_of(
    planned: Sequence[PlannedLaunch], loops: Sequence[RepeatedCalls]
) -> list[RepeatedLaunches]:
    """The loops that are not within a launch."""
    starts = [launch.first for launch in planned]
    within = {loop for launch in planned for loop in launch.loops}
    return [
        RepeatedLaunches(
            bisect_left(starts, loop.first), bisect_left(starts, loop.last), loop.iterations
        )
        for loop in loops
        if loop not in within
    ]


def _workspaces(
    written: WrittenProgram[PieceModule], traits: Traits, launches: Sequence[Launch]
) -> Mapping[str, Workspace]:
    """The memory of work items in the first block, the shared workspaces in further ones."""
    workspaces: dict[str, Workspace] = {}
    own_bytes = written.workspaces.thread_bytes
    if own_bytes:
        items = max((launch.items for launch in launches), default=1)
        workspaces[_OWN] = Workspace(0, items * own_bytes)
    before = len(workspaces)
    for name, (start, end) in written.workspaces.extents.items():
        if end > start:
            block, offset = divmod(start, traits.block_bytes)
            workspaces[name] = Workspace(offset, end - start, before + block)
    return workspaces


def _padded(launch: Launch, count: int) -> Launch:
    """The launch with null pointers for the buffers that it does not need."""
    return replace(launch, buffers=launch.buffers + ("",) * (count - len(launch.buffers)))


@frozen_dataclass
class _CallInCase:
    """A call within a case: its work, the items that share it, and which buffers it takes."""

    function: str
    work: int
    items: int
    arguments: tuple[int, ...]


@frozen_dataclass
class _Case:
    """What the kernel does for a number; loops are ranges of calls: (first, last, iterations)."""

    in_order: bool
    calls: tuple[_CallInCase, ...]
    loops: tuple[tuple[int, int, int], ...]


@final
class _Writer:
    """Makes launches, and then writes the kernel with their cases."""

    def __init__(self, written: WrittenProgram[PieceModule], plan: LaunchPlan) -> None:
        self._sections, self._plan = written.sections, plan
        self._own_bytes = written.workspaces.thread_bytes
        # The number of each case of the kernel.
        self._cases: dict[_Case, int] = {}

    def launch(self, planned: PlannedLaunch, *, numbered: bool = False) -> Launch:
        """The launch of some calls; `numbered` if it is repeated."""
        buffers = self._plan.buffers(planned.calls)
        positions = {name: number for number, name in enumerate(buffers)}
        in_case: list[_CallInCase] = []
        launched: list[Launch] = []
        for call in planned.calls:
            names = self._sections[call.section]
            items = 1 if planned.in_order else self._plan.items(call)
            arguments = tuple(positions[name] for name in names)
            in_case.append(_CallInCase(call.function, call.slices.work.items, items, arguments))
            launched.append(Launch(call.function, names, items, call.step))
        loops = tuple(
            (loop.first - planned.first, loop.last - planned.first, loop.iterations)
            for loop in planned.loops
        )
        case = _Case(planned.in_order, tuple(in_case), loops)
        number = self._cases.setdefault(case, len(self._cases))
        return Launch(
            _KERNEL,
            (*self._own, *buffers),
            max(call.items for call in in_case),
            launched[0].step,
            group=1,
            numbers=(number,) if numbered else (number, 0),
            calls=tuple(launched),
        )

    @property
    def _own(self) -> tuple[str, ...]:
        return (_OWN,) if self._own_bytes else ()

    def write_kernel(self, module: Module, count: int) -> None:
        """Writes the kernel of all launches, which have `count` buffers.

        There is only one, because drivers take long for each: PoCL reads the whole program again,
        and compiles a function once for each kernel that calls it.
        """
        buffers = [(name, "i8") for name in self._own]
        buffers += [(f"b{number}", "i8") for number in range(count - len(buffers))]
        code = module.kernel(_KERNEL, buffers, [("number", I32), ("iteration", I32)])
        *addresses, number, iteration = code.parameters
        item = code.item()
        # The first address of a table is the work item's own memory.
        if self._own_bytes:
            skipped = code.multiply(item, constant(self._own_bytes, I64))
            addresses[0] = code.offset(addresses[0], skipped, "i8")
        elif addresses:
            addresses.insert(0, addresses[0])
        tables = _Tables(code, addresses, code.convert("zext", iteration, "i64"))
        for case, case_number in self._cases.items():
            with code.when(code.compare("eq", number, constant(case_number, I32))):
                if case.in_order:
                    _write_in_order(code, case, tables)
                else:
                    _write_side_by_side(code, case, tables, item)


@final
class _Tables:
    """Tables of addresses in the kernel: one of all buffers, and one for other calls.

    The first address is the work item's own memory; the launch's buffers follow.
    """

    def __init__(self, code: Function, addresses: Sequence[Value], iteration: Value) -> None:
        self._code, self._addresses, self._iteration = code, addresses, iteration
        self._all, self._other = code.declare_addresses(), code.declare_addresses()
        code.set_addresses(self._all, addresses, iteration)

    def of(self, call: _CallInCase, iteration: Value | None = None) -> Value:
        """The table for a call that follows; most calls use the table of all buffers."""
        if iteration is None and call.arguments == tuple(range(len(call.arguments))):
            return self._all
        memory, *buffers = self._addresses
        chosen = [memory, *(buffers[number] for number in call.arguments)]
        self._code.set_addresses(self._other, chosen, iteration or self._iteration)
        return self._other


def _write_in_order(code: Function, case: _Case, tables: _Tables) -> None:
    """Writes the calls of a case that one work item runs."""
    zero = constant(0, I64)
    loops = {first: (last, iterations) for first, last, iterations in case.loops}
    number = 0
    while number < len(case.calls):
        last, iterations = loops.get(number, (number + 1, 0))
        loop = code.begin_loop(0, iterations) if iterations else None
        for call in case.calls[number:last]:
            table = tables.of(call, loop.index if loop is not None else None)
            code.call_void(call.function, table, zero, zero, constant(call.work, I64))
        if loop is not None:
            code.end_loop(loop)
        number = last


def _write_side_by_side(code: Function, case: _Case, tables: _Tables, item: Value) -> None:
    """Writes the calls of a case; each work item does its share of each."""
    most = max(call.items for call in case.calls)
    for call in case.calls:
        work, count = constant(call.work, I64), constant(call.items, I64)
        is_shared = call.items < most
        with code.when(code.compare("ult", item, count)) if is_shared else nullcontext():
            following = code.add(item, constant(1, I64))
            first = code.binary("udiv", code.multiply(item, work), count)
            last = code.binary("udiv", code.multiply(following, work), count)
            code.call_void(call.function, tables.of(call), constant(0, I64), first, last)
