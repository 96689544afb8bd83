"""Small kernels in one: a single work group runs them one after the other, as its phases.

A kernel that takes less time than its launch leaves most of a GPU unused anyway. In a phase the
kernel's groups are parts of one large group, some at a time, each with its share of the local
memory. All parts come by the same number of barriers, so a barrier of a part is one of the whole
group; parts without work wait at it too. Between two phases there is a barrier, which makes stores
visible.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext

from lamina.base.records import frozen_dataclass
from lamina.codegen.c import Function, Module
from lamina.codegen.values import I32, Value
from lamina.engines.gpu.contraction_costs import BARRIER, LOAD_LATENCY
from lamina.engines.gpu.launches import Launch, Rates, RepeatedLaunches
from lamina.engines.gpu.schedule import (
    VECTOR_BYTES,
    WARP,
    ChainSchedule,
    KernelSchedule,
    TileSchedule,
    whole_steps,
)
from lamina.program.cost import Cost

# The work items of a kernel with phases. A work item may then have 128 registers.
ITEMS = 512
# The clocks of a launch in a graph, if it begins before the one before it has ended. On an H100
# `benchmarks/device_check.py` measures 0.6 us for an empty kernel, and 1.3 us for each kernel of
# tiny-step; most of them wait for one or two loads.
LAUNCH = 1700
# The clocks of an operation that needs the result of the one before.
_OPERATION = 8
# The most buffers of a kernel, whose arguments may take 4 KiB, and the most phases: compilers take
# long for a large kernel, while several small ones are compiled at a time.
_MOST_BUFFERS, _MOST_PHASES = 400, 24
# Kernels whose work items need more registers and local memory than work items of phases have.
_WITH_TILES = (TileSchedule, ChainSchedule)


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


@frozen_dataclass
class _Piece:
    """A launch that is not repeated, or a whole loop, with the clocks of an iteration."""

    first: int
    last: int
    times: int
    clocks: float
    loop: RepeatedLaunches | None


def extra_clocks(launch: Launch, decided: KernelSchedule, cost: Cost, rates: Rates) -> float | None:
    """The clocks that a kernel takes longer as a phase, besides its launch; None if it is none.

    `cost` is its step's cost, `rates` are the device's rates.
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
    all_joined: list[Joined] = []
    # The present run of neighbours.
    run: list[_Piece] = []

    def end() -> None:
        """Joins the launches of the run, if they are worth it; a new one begins."""
        clocks = sum(piece.times * piece.clocks for piece in run)
        count = sum(piece.times * (piece.last - piece.first) for piece in run)
        if run and clocks < (count - 1) * (LAUNCH - BARRIER):
            loops = tuple(piece.loop for piece in run if piece.loop is not None)
            all_joined.append(Joined(run[0].first, run[-1].last, loops))
        run.clear()

    starts = {repeat.first: repeat for repeat in repeats}
    number = 0
    while number < len(launches):
        loop = starts.get(number)
        last = number + 1 if loop is None else loop.last
        extras = extra[number:last]
        small = [added for added in extras if added is not None and added <= LAUNCH - BARRIER]
        clocks = sum(small) if len(small) == len(extras) else None
        row = launches[run[0].first if run else number : last]
        if clocks is None or len(row) > _MOST_PHASES or len(buffers_of(row)) > _MOST_BUFFERS:
            end()
        if clocks is not None:
            run.append(_Piece(number, last, 1 if loop is None else loop.count, clocks, loop))
        elif loop is not None:
            # Within an iteration.
            within = joined_launches(launches[number:last], extra[number:last], ())
            all_joined += (Joined(number + joined.first, number + joined.last) for joined in within)
        number = last
    end()
    return all_joined


def buffers_of(launches: Sequence[Launch]) -> tuple[str, ...]:
    """The buffers of launches, each once."""
    return tuple(dict.fromkeys(name for launch in launches for name in launch.buffers))


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
    """Writes the kernel of phases, and returns its launch; it may be repeated itself.

    The module has the functions of the phases. `loops` are repeated within the kernel; their
    launches are the numbers of phases. A launch has at most `most_local_bytes`.
    """
    launches = [phase.launch for phase in phases]
    buffers = buffers_of(launches)
    code = module.kernel(
        name,
        [(f"b{number}", "i8") for number in range(len(buffers))],
        [("iteration", I32)] if is_repeated else [],
        group=ITEMS,
        many_registers=True,
    )
    addresses, item = dict(zip(buffers, code.parameters, strict=False)), code.item_in_group()
    local, local_bytes = code.launched("i8", 0), 0
    starts = {repeat.first: repeat for repeat in loops}
    number = 0
    while number < len(phases):
        loop = starts.get(number)
        last = number + 1 if loop is None else loop.last
        iteration = code.parameters[-1] if is_repeated else None
        with nullcontext() if loop is None else _rolled(code, loop.count) as index:
            if index is not None:
                iteration = code.convert("trunc", index, "i32")
            for phase in phases[number:last]:
                parts, part_bytes = _parts_of(phase, most_local_bytes)
                local_bytes = max(local_bytes, parts * part_bytes)
                numbers = [iteration] if phase.takes_iteration and iteration is not None else []
                arguments = [*(addresses[name] for name in phase.launch.buffers), *numbers]
                _write_phase(code, phase, parts, arguments, item, (local, part_bytes))
        number = last
    return Launch(
        *(name, buffers, ITEMS, launches[0].step, ITEMS),
        local_bytes=local_bytes,
        calls=tuple(
            Launch(phase.function.name, phase.launch.buffers, phase.launch.items, phase.launch.step)
            for phase in phases
        ),
    )


def _parts_of(phase: Phase, most_local_bytes: int) -> tuple[int, int]:
    """The groups of a phase that run at the same time, and the local memory of each."""
    group = max(phase.launch.group, 1)
    # Shares of the local memory are aligned to vectors.
    local_bytes = whole_steps(phase.function.local_bytes, VECTOR_BYTES)
    parts = min(ITEMS // group, phase.launch.items // group)
    if local_bytes:
        warp = max(WARP // group, 1)
        parts = min(parts, max(most_local_bytes // local_bytes // warp, 1) * warp)
    return parts, local_bytes


def _write_phase(
    code: Function,
    phase: Phase,
    parts: int,
    arguments: Sequence[Value],
    item_in_all: Value,
    local: tuple[Value, int],
) -> None:
    group = max(phase.launch.group, 1)
    groups, (begin, local_bytes) = phase.launch.items // group, local
    part, item = item_in_all // group, item_in_all % group
    share = code.offset(begin, part * local_bytes, "i8")
    barriers = int(phase.function.iterations.barriers)
    with _rolled(code, -(-groups // parts)) as index:
        number = index * parts + part
        if parts * group < ITEMS:
            number = code.select(code.compare("ult", part, parts), number, groups)
        with code.when(code.compare("ult", number, groups)):
            code.call_void(phase.function.name, *arguments, number, item, share)
        if barriers:
            with code.otherwise(), _rolled(code, barriers):
                code.phase_barrier()
        # The next groups overwrite the local memory, the next phase reads what was stored.
        code.phase_barrier()


@contextmanager
def _rolled(code: Function, count: int) -> Generator[Value]:
    """A loop that compilers must not unroll; yields its index."""
    opened = code.begin_loop(0, count, rolled=True)
    yield opened.index
    code.end_loop(opened)
