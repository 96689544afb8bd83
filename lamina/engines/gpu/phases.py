"""Small kernels in one: a single work group runs them one after the other, as its phases.

A kernel that takes less time than its launch leaves most of a GPU unused anyway. In a phase the
kernel's groups are parts of one large group, some at a time, each with its share of the local
memory. All parts come by the same number of barriers, so a barrier of a part is one of the whole
group; parts without work wait at it too. Between two phases there is a barrier, which makes stores
visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.c import Function, Module
from lamina.codegen.values import I32, I64, Value, constant
from lamina.engines.gpu.contraction_costs import BARRIER, LOAD_LATENCY
from lamina.engines.gpu.launches import Launch, LaunchedCall, RepeatedLaunches
from lamina.engines.gpu.rates import Rates
from lamina.engines.gpu.schedule import (
    WARP,
    ChainSchedule,
    KernelSchedule,
    MatrixChainSchedule,
    MatrixSchedule,
    TiledSchedule,
)
from lamina.program.cost import Cost

# The work items of a kernel with phases. A work item may then have 128 registers.
ITEMS = 512
# The clocks of a launch in a graph, if it begins before the one before it has ended. On an H100
# `benchmarks/device_check.py` measures 0.6 us for an empty kernel, and 1.3 us for each kernel of
# tiny-step, most of which wait for one or two loads.
LAUNCH = 1700
# The clocks of an operation that needs the result of the one before.
_OPERATION = 8
# The most buffers of a kernel, whose arguments may take 4 KiB, and the most phases: compilers take
# long for a large kernel, while several small ones are compiled at a time.
_MOST_BUFFERS, _MOST_PHASES = 400, 24
# Kernels whose work items need more registers and local memory than those of phases have.
_WITH_TILES = (MatrixSchedule, TiledSchedule, ChainSchedule, MatrixChainSchedule)


@frozen_dataclass
class Joined:
    """Launches that become the phases of one kernel.

    Attributes:
        first, last: the first of the launches, and the launch after the last.
        loops: the repeated ones among them, all launches of each loop.
    """

    first: int
    last: int
    loops: tuple[RepeatedLaunches, ...] = ()


def extra_clocks(launch: Launch, decided: KernelSchedule, cost: Cost, rates: Rates) -> float | None:
    """The clocks that a kernel takes longer as a phase, besides its launch; None if it is none.

    `cost` is that of its step, `rates` are those of the device.
    """
    group = max(launch.group, 1)
    # Barriers of work items in one warp that are in different places are legal, but slow.
    splits_warps = bool(launch.group) and bool(group % WARP) and bool(launch.items % WARP)
    if isinstance(decided, _WITH_TILES) or ITEMS % group or splits_warps:
        return None
    rounds = -(-launch.items // ITEMS)
    # Groups on other compute units would do the other rounds, and a share of the work. Some groups
    # wait while others are busy.
    waiting = (rounds - 1) * (LOAD_LATENCY + _OPERATION * cost.operations / launch.items)
    busy = max(cost.operations / rates.lanes, cost.bytes / rates.cache_bytes)
    return max(waiting, busy) if launch.items > group else 0.0


def joined_launches(
    launches: Sequence[Launch], extra: Sequence[float | None], repeats: Sequence[RepeatedLaunches]
) -> list[Joined]:
    """The launches that become phases, as far as this is expected to take less time.

    `extra` is what `extra_clocks` returns for each.
    """
    found: list[Joined] = []
    # The present run: whole loops, and launches that are not repeated.
    run = _Run(launches)
    starts = {one.first: one for one in repeats}
    number = 0
    while number < len(launches):
        loop = starts.get(number)
        last = number + 1 if loop is None else loop.last
        clocks = _sum(extra[number:last])
        if clocks is None or not run.takes(number, last):
            found += run.end()
        if clocks is not None:
            run.add(number, last, clocks, loop)
        elif loop is not None:
            # Within an iteration.
            within = joined_launches(launches[number:last], extra[number:last], ())
            found += (Joined(number + one.first, number + one.last) for one in within)
        number = last
    return [*found, *run.end()]


def _sum(extra: Sequence[float | None]) -> float | None:
    """The sum for launches that all are small; None if one is not."""
    small = [one for one in extra if one is not None and one <= LAUNCH - BARRIER]
    return sum(small) if len(small) == len(extra) else None


@final
class _Run:
    """Neighbouring launches that may become one."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = launches
        self._begin(0)

    def _begin(self, first: int) -> None:
        self._first = self._last = first
        self._loops: list[RepeatedLaunches] = []
        self._clocks, self._count = 0.0, 0

    def takes(self, first: int, last: int) -> bool:
        """Whether further launches follow, and the kernel can have their phases and buffers."""
        row = self._launches[self._first : last]
        fits = len(row) <= _MOST_PHASES and len(buffers_of(row)) <= _MOST_BUFFERS
        return first == self._last and fits

    def add(self, first: int, last: int, clocks: float, loop: RepeatedLaunches | None) -> None:
        if not self._count:
            self._begin(first)
        count = 1 if loop is None else loop.count
        self._last = last
        self._clocks += count * clocks
        self._count += count * (last - first)
        self._loops += () if loop is None else (loop,)

    def end(self) -> Iterator[Joined]:
        """The launches of the run, if they are worth it; a new one begins."""
        if self._clocks < (self._count - 1) * (LAUNCH - BARRIER):
            yield Joined(self._first, self._last, tuple(self._loops))
        self._begin(self._last)


def buffers_of(launches: Sequence[Launch]) -> tuple[str, ...]:
    """The buffers of launches, each once."""
    return tuple(dict.fromkeys(name for one in launches for name in one.buffers))


@frozen_dataclass
class Phase:
    """A launch as a phase: its function, and whether it takes the number of the iteration."""

    launch: Launch
    function: Function
    takes_iteration: bool


def write_phases(
    module: Module,
    name: str,
    phases: Sequence[Phase],
    loops: Sequence[RepeatedLaunches],
    most_local_bytes: int,
    *,
    is_repeated: bool,
) -> Launch:
    """Writes the kernel of phases, and returns its launch.

    Args:
        module: for the kernel; has the functions of the phases.
        name: of the kernel.
        phases: the phases.
        loops: those that are repeated within the kernel, by their numbers.
        most_local_bytes: of a launch.
        is_repeated: whether the kernel itself is repeated.
    """
    launches = [one.launch for one in phases]
    buffers = buffers_of(launches)
    numbers = [("iteration", I32)] if is_repeated else []
    code = module.kernel(
        name,
        [(f"b{number}", "i8") for number in range(len(buffers))],
        numbers,
        group=ITEMS,
        many_registers=True,
    )
    writer = _Writer(code, dict(zip(buffers, code.parameters, strict=False)), most_local_bytes)
    starts = {one.first: one for one in loops}
    number = 0
    while number < len(phases):
        loop = starts.get(number)
        last = number + 1 if loop is None else loop.last
        iteration = code.parameters[-1] if is_repeated else None
        opened = None
        if loop is not None:
            opened = code.begin_loop(0, loop.count, rolled=True)
            iteration = code.convert("trunc", opened.index, "i32")
        for phase in phases[number:last]:
            writer.write(phase, iteration)
        if opened is not None:
            code.end_loop(opened)
        number = last
    return Launch(
        *(name, buffers, ITEMS, launches[0].step, ITEMS),
        local_bytes=writer.local_bytes,
        calls=tuple(
            LaunchedCall(one.function.name, one.launch.buffers, one.launch.items, one.launch.step)
            for one in phases
        ),
    )


@final
class _Writer:
    """Writes the calls of phases; `local_bytes` are those of all groups of a phase together."""

    def __init__(self, code: Function, buffers: Mapping[str, Value], most: int) -> None:
        self._code, self._buffers, self._most = code, buffers, most
        self._item = code.item_in_group()
        self._local = code.launched("i8", 0)
        self.local_bytes = 0

    def write(self, phase: Phase, iteration: Value | None) -> None:
        code, function, launch = self._code, phase.function, phase.launch
        group = max(launch.group, 1)
        groups = launch.items // group
        # Shares of the local memory are aligned to vectors.
        local_bytes = -(-function.local_bytes // 16) * 16
        parts = min(ITEMS // group, groups)
        if local_bytes:
            warp = max(WARP // group, 1)
            parts = min(parts, max(self._most // local_bytes // warp, 1) * warp)
        self.local_bytes = max(self.local_bytes, parts * local_bytes)
        part = code.binary("udiv", self._item, constant(group, I64))
        item = code.binary("urem", self._item, constant(group, I64))
        local = code.offset(self._local, code.multiply(part, constant(local_bytes, I64)), "i8")
        barriers = int(function.iterations.barriers)
        rounds = -(-groups // parts)
        opened = code.begin_loop(0, rounds, rolled=True)
        end = constant(groups, I64)
        number = code.add(code.multiply(opened.index, constant(parts, I64)), part)
        if parts * group < ITEMS:
            exists = code.compare("ult", part, constant(parts, I64))
            number = code.select(exists, number, end)
        numbers = [iteration] if phase.takes_iteration and iteration is not None else []
        with code.when(code.compare("ult", number, end)):
            given = (self._buffers[name] for name in launch.buffers)
            code.call_void(function.name, *given, *numbers, number, item, local)
        if barriers:
            with code.otherwise():
                waiting = code.begin_loop(0, barriers, rolled=True)
                code.phase_barrier()
                code.end_loop(waiting)
        # The next groups overwrite the local memory, the next phase reads what was stored.
        code.phase_barrier()
        code.end_loop(opened)
