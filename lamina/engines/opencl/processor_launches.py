"""From calls of kernels for processors to launches.

All launches have one kernel. A number chooses its case, which calls functions, side by side or in
order (`processor_groups.py`). Each work item is a work group, which the driver gives to a thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from lamina.engines.opencl.processor_groups import Group, Grouping
from lamina.engines.simd.emit.kernels import KernelCall, RepeatedCalls, WrittenProgram
from lamina.program.program import Program
from lamina.records import frozen_dataclass

# The name of the memory that work items have for themselves.
_OWN = "own"
# The name of the kernel.
_KERNEL = "run"


@frozen_dataclass
class _Called:
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
        in_order: whether one work item runs the calls in order.
        calls: of functions.
        loops: the ranges of calls that are repeated: (first, last, iterations).
    """

    in_order: bool
    calls: tuple[_Called, ...]
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
        self._grouping = Grouping(program, written, traits, apart=apart)
        self._module: Module = written.module.inner
        # The numbers of the cases of the kernel.
        self._cases: dict[_Case, int] = {}
        self._own_bytes = written.workspaces.thread_bytes

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
        groups = self._grouping.groups(calls, loops)
        load_groups = self._grouping.groups(written.load, ())
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

    # Launches

    def _launch(
        self,
        group: Group,
        calls: Sequence[KernelCall],
        steps: Sequence[int],
        *,
        numbered: bool,
    ) -> Launch:
        buffers = self._grouping.buffers(group, calls)
        positions = {name: number for number, name in enumerate(buffers)}
        called: list[_Called] = []
        launched: list[LaunchedCall] = []
        for number in group.calls:
            call = calls[number]
            names = self._written.sections[call.section]
            items = 1 if group.in_order else self._grouping.items(call)
            arguments = tuple(positions[name] for name in names)
            called.append(_Called(call.function, call.slices.work.items, items, arguments))
            launched.append(LaunchedCall(call.function, names, items, steps[number]))
        loops = tuple(
            (loop.first - group.first, loop.last - group.first, loop.iterations)
            for loop in group.loops
        )
        case = _Case(group.in_order, tuple(called), loops)
        choice = self._cases.setdefault(case, len(self._cases))
        return Launch(
            _KERNEL,
            ((_OWN,) if self._own_bytes else ()) + tuple(buffers),
            1 if group.in_order else sum(one.items for one in called),
            steps[group.first],
            group=1,
            numbers=(choice,) if numbered else (choice, 0),
            calls=tuple(launched),
        )

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

    def of(self, called: _Called, iteration: Value | None = None) -> Value:
        """The table of a call; the calls of most launches share one."""
        if iteration is None and called.arguments == tuple(range(len(called.arguments))):
            return self._all
        own, *buffers = self._addresses
        chosen = [own, *(buffers[number] for number in called.arguments)]
        return self._code.make_addresses(chosen, iteration or self._iteration)


def _write_in_order(code: Function, case: _Case, tables: _Tables) -> None:
    """Writes the calls of a case that one work item runs."""
    zero = constant(0, I64)
    loop_from = {first: (last, iterations) for first, last, iterations in case.loops}
    number = 0
    while number < len(case.calls):
        last, iterations = loop_from.get(number, (number + 1, 0))
        loop = code.begin_loop(0, iterations) if iterations else None
        for called in case.calls[number:last]:
            table = tables.of(called, loop.index if loop is not None else None)
            code.call_void(called.function, table, zero, zero, constant(called.work, I64))
        if loop is not None:
            code.end_loop(loop)
        number = last


def _write_side_by_side(code: Function, case: _Case, tables: _Tables, item: Value) -> None:
    """Writes the calls of a case that share its work items."""
    before = 0
    for called in case.calls:
        own = code.subtract(item, constant(before, I64)) if before else item
        before += called.items
        if len(case.calls) == 1:
            _write_share(code, called, tables, own)
            continue
        # Numbers of items of earlier calls wrap around, and are large.
        with code.when(code.compare("ult", own, constant(called.items, I64))):
            _write_share(code, called, tables, own)


def _write_share(code: Function, called: _Called, tables: _Tables, item: Value) -> None:
    """Writes the call of a work item for its share of the work."""
    work, count = constant(called.work, I64), constant(called.items, I64)
    following = code.add(item, constant(1, I64))
    first, last = (
        code.binary("udiv", code.multiply(one, work), count) for one in (item, following)
    )
    code.call_void(called.function, tables.of(called), constant(0, I64), first, last)


def _padded(launch: Launch, count: int) -> Launch:
    """The launch with null pointers for the buffers that it does not need."""
    return replace(launch, buffers=launch.buffers + ("",) * (count - len(launch.buffers)))
