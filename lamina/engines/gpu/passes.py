"""Steps that are run in passes, as several steps that keep values in workspaces.

The sums of a contraction, or the reductions of a loop, are split into shares if there are too few
of them to occupy a device: the first pass computes the shares, the second one combines them. The
stages of a loop become passes of their own if each needs another division of the work. Also
a chain as steps that store its products and weights, and a contraction apart from its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lamina.base.shapes import int64, size_of
from lamina.codegen.axes import flattened, stride_along
from lamina.codegen.matrix import half_of, with_single_axes
from lamina.engines.gpu.packed_operands import packed_steps
from lamina.engines.gpu.products import SECTOR, scatters_along_n
from lamina.engines.gpu.schedule import (
    PACKED,
    STORED,
    WINOGRAD,
    KernelSchedule,
    Pass,
    StepsSchedule,
    WrittenSchedule,
)
from lamina.engines.gpu.winograd import winograd_steps
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.program.index import Axis, Index, axis_index, gathered_index, row_major
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import (
    Apply,
    Bound,
    Literal,
    Load,
    Local,
    Scalar,
    Within,
    operands_of,
    postorder,
)
from lamina.program.steps import (
    COMBINING,
    POSITIONAL,
    Chain,
    Contraction,
    Loop,
    Reduce,
    Scan,
    Sort,
    Stage,
    Step,
    Store,
    Write,
    stage_values,
)

# The steps of each way to run a step as several.
_STEPS: dict[str, Callable[[Any, StepWorkspaces], Sequence[Step]]] = {
    WINOGRAD: winograd_steps,
    STORED: lambda chain, workspaces: stored_steps(chain, workspaces),
    PACKED["left"]: partial(packed_steps, "left"),
    PACKED["right"]: partial(packed_steps, "right"),
}


def passes_of(
    step: Step, decided: WrittenSchedule, workspaces: StepWorkspaces
) -> Sequence[tuple[tuple[Step, ...], KernelSchedule]]:
    """A step as passes that run one after the other: the one or two steps of each kernel."""
    if isinstance(decided, KernelSchedule):
        return [((step,), decided)]
    if isinstance(decided, StepsSchedule):
        assert isinstance(step, Chain if decided.way == STORED else Contraction)
        steps = _STEPS[decided.way](step, workspaces)
        pairs = zip(steps, decided.steps, strict=True)
        return [kernel for pair in pairs for kernel in passes_of(*pair, workspaces)]
    if isinstance(step, Contraction):
        (only,) = decided.passes
        parts = split_contraction(step, only.splits, workspaces)
        return [((part,), schedule) for part, schedule in zip(parts, only.kernels, strict=True)]
    assert isinstance(step, Loop)
    stage, first = step.stages[0], decided.passes[0]
    if isinstance(stage, Sort):
        return [*_sort_passes(step, stage, first.kernels, workspaces)]
    if isinstance(stage, Scan):
        return [*_scan_passes(step, stage, first, workspaces)]
    passes = _loop_passes(ordered(step), decided.passes, workspaces)
    return [((part,), schedule) for part, schedule in passes]


def split_contraction(
    step: Contraction, splits: int, workspaces: StepWorkspaces
) -> tuple[Step, Step]:
    """A contraction whose K is split into equal shares, and the loop that adds up the shares."""
    single = with_single_axes(step, "batch", "m", "n", "k")
    (batch,), (m,), (n,), (k,) = single.batch, single.m, single.n, single.k
    share, inner = Axis("share", splits), Axis("k", k.extent // splits)
    split = Rewrite({k: axis_index(share) * inner.extent + axis_index(inner)})
    store, load = workspaces.kept((share, batch, m, n), Local(step.result, step.dtype))
    shares = Contraction(
        *(f"{step.name}.shares", (share, batch), (m,), (n,), (inner,)),
        *(split.scalar(single.left), split.scalar(single.right), step.result, step.dtype),
        (store,),
    )
    total = Reduce(step.result, "sum", (share,), load, step.dtype)
    return shares, _over_results(step, single, (total, Write((), step.stores)))


def _over_results(step: Contraction, single: Contraction, stages: Sequence[Stage]) -> Loop:
    """The loop over the results of a contraction, which `single` has on single axes.

    If the stores scatter neighbours along n, the loop is in the order of the stores, except that it
    takes whole sectors of the workspace: both memories are accessed in pieces.
    """
    axes = (*step.batch, *step.m, *step.n)
    sectors: dict[Axis, Index] = {}
    if scatters_along_n(step):
        last = step.n[-1]
        outer, lane = Axis(f"{last.name}_sector", last.extent // SECTOR), Axis(last.name, SECTOR)
        sectors[last] = axis_index(outer) * SECTOR + axis_index(lane)
        index = step.stores[0].index
        others = sorted(axes[:-1], key=lambda axis: -(stride_along(index, axis) or 0))
        axes = (outer, *others, lane)
    change = Rewrite(sectors)
    of_single = Rewrite(
        {
            axis: change.index(row_major(merged))
            for axis, merged in zip(
                (*single.batch, *single.m, *single.n), (step.batch, step.m, step.n), strict=True
            )
        }
        | sectors
    )
    return Loop(step.name, axes, of_single.records(stages))


def stored_steps(chain: Chain, workspaces: StepWorkspaces) -> tuple[Step, ...]:
    """A chain as contractions, and the loop between them, which keep values in workspaces."""
    starts: list[Step] = []
    kept: dict[str, Scalar] = {}
    for product in chain.products:
        local = Local(product.result, product.dtype)
        store, kept[product.result] = workspaces.kept((*chain.axes, *chain.k), local)
        starts.append(
            Contraction(
                *(f"{chain.name}.{product.result}", chain.batch, chain.m, chain.k, product.axes),
                *(product.left, product.right, product.result, product.dtype, (store,)),
            )
        )
    change = Rewrite(locals=kept)
    stages: list[Stage] = [*change.records(chain.reductions)]
    stores = list(chain.stores)
    rows: dict[str, Scalar] = {}
    for stage in chain.reductions:
        if stage.local in _locals_in(store.value for total in chain.sums for store in total.stores):
            store, rows[stage.local] = workspaces.kept(chain.axes, Local(stage.local, stage.dtype))
            stores.append(store)
    at_rows = Rewrite(locals=rows)
    weights: list[Store] = []
    ends: list[Step] = []
    for total in chain.sums:
        store, load = workspaces.kept((*chain.axes, *chain.k), change.scalar(total.weight))
        weights.append(store)
        ends.append(
            Contraction(
                *(f"{chain.name}.{total.result}", chain.batch, chain.m, total.n, chain.k),
                *(load, total.right, total.result, total.dtype, at_rows.records(total.stores)),
            )
        )
    stages.append(Write(chain.k, tuple(weights)))
    if stores:
        stages.append(Write((), tuple(stores)))
    return (*starts, Loop(f"{chain.name}.weights", chain.axes, tuple(stages)), *ends)


def without_epilogue(step: Contraction, workspaces: StepWorkspaces) -> tuple[Contraction, Loop]:
    """A contraction that stores its sums only, and the loop that does its stores.

    The sums are stored rounded to the 16 bits of its operands if they are only used so.
    """
    step = replace(step, stores=tuple(map(_rounded_before_selection, step.stores)))
    single = with_single_axes(step, "batch", "m", "n", "k")
    axes = (*single.batch, *single.m, *single.n)
    value = _used_of_sum(single)
    store, load = workspaces.kept(axes, value)
    kept = Rewrite(scalars={value: load})
    sums = replace(single, name=f"{step.name}.sums", stores=(store,))
    return sums, _over_results(step, single, (Write((), kept.records(step.stores)),))


def _rounded_before_selection(store: Store) -> Store:
    """The same store, of a selection of rounded numbers instead of a rounded selection."""
    value = store.value
    if not isinstance(value, Apply) or value.primitive != "cast" or not value.dtype.is_half:
        return store
    (selected,) = value.operands
    if not isinstance(selected, Apply) or selected.primitive != "select":
        return store
    condition, *choices = selected.operands
    casts = (
        Literal(choice.value, value.dtype)
        if isinstance(choice, Literal)
        else Apply("cast", (choice,), value.dtype)
        for choice in choices
    )
    return replace(store, value=Apply("select", (condition, *casts), value.dtype))


def _used_of_sum(step: Contraction) -> Scalar:
    """The sum as the stores of a contraction use it: itself, or its cast to 16 bits."""
    total, values = Local(step.result, step.dtype), [store.value for store in step.stores]
    uses = [scalar for scalar in postorder(*values) if total in operands_of(scalar)]
    half = half_of(step.left)
    if len(uses) == 1 and total not in values and half is not None:
        (use,) = uses
        if use == Apply("cast", (total,), half.dtype):
            return use
    return total


def _loop_passes(
    loop: Loop, passes: Sequence[Pass], workspaces: StepWorkspaces
) -> Iterator[tuple[Step, KernelSchedule]]:
    """The passes of a loop; locals that later passes use are kept in workspaces."""
    kept: dict[str, Scalar] = {}
    done = 0
    for number, pass_ in enumerate(passes):
        stages = loop.stages[done : done + pass_.stages]
        done += pass_.stages
        rewritten = Rewrite(locals=kept)
        stages = [*rewritten.records(stages)]
        used = _locals_of(loop.stages[done:])
        stores: list[Store] = []
        for stage in stages:
            if isinstance(stage, Reduce) and stage.local in used:
                store, load = workspaces.kept(loop.axes, Local(stage.local, stage.dtype))
                stores.append(store)
                kept[stage.local] = load
        if stores:
            stages.append(Write((), tuple(stores)))
        part = Loop(f"{loop.name}.{number}", loop.axes, tuple(stages))
        steps = [_spread(part)] if pass_.splits == 1 else split_loop(part, pass_.splits, workspaces)
        yield from zip(steps, pass_.kernels, strict=True)


def _spread(loop: Loop) -> Loop:
    """The loop with the inner axes of its only stage, a parallel write, as its own axes."""
    stage = loop.stages[0]
    if len(loop.stages) > 1 or not isinstance(stage, Write) or stage.sequential:
        return loop
    return Loop(loop.name, (*loop.axes, *stage.axes), (Write((), stage.stores),))


def split_loop(loop: Loop, splits: int, workspaces: StepWorkspaces) -> tuple[Loop, Loop]:
    """A loop whose first stages, reductions, are split into equal shares, and the loop after it.

    The number of shares divides the size of each of them.
    """
    share = Axis("share", splits)
    # The points of a share are neighbours, in the workspace too.
    axes = (share, *loop.axes)
    shares: list[Stage] = []
    totals: list[Stage] = []
    stores: list[Store] = []
    for stage in leading_reductions(loop.stages):
        axis, replaced = flattened(stage.axes, "r")
        inner = Axis("r", axis.extent // splits)
        split = Rewrite({axis: axis_index(share) * inner.extent + axis_index(inner)})
        value = split.scalar(Rewrite(replaced).scalar(stage.value))
        shares.append(replace(stage, axes=(inner,), value=value))
        store, load = workspaces.kept(axes, Local(stage.local, stage.dtype))
        stores.append(store)
        totals.append(replace(stage, axes=(share,), value=load))
    rest = loop.stages[len(shares) :]
    first = Loop(f"{loop.name}.shares", axes, (*shares, Write((), tuple(stores))))
    return first, Loop(loop.name, loop.axes, (*totals, *rest))


def _sort_passes(
    loop: Loop, sort: Sort, kernels: Sequence[KernelSchedule], workspaces: StepWorkspaces
) -> Iterator[tuple[tuple[Step, ...], KernelSchedule]]:
    """Each pass orders the elements of the pass before, whose positions it reads."""
    axes = (*loop.axes, sort.axis)
    shape = [axis.extent for axis in axes]
    location = row_major(axes)
    value, key = sort.positions, sort.key
    # Each pass reads one workspace and writes the other one.
    names = [workspaces.add(size_of(shape), sort.dtype) for _ in kernels[1:3]]
    for number, kernel in enumerate(kernels):
        target, index = sort.buffer, sort.index
        if number + 1 < len(kernels):
            target, index = names[number % 2], location
        sorting = Loop(f"{loop.name}.{number}", loop.axes, (replace(sort, key=key),))
        move = Loop(f"{loop.name}.moved", axes, (Write((), (Store(target, index, value),)),))
        yield (sorting, move), kernel
        value = Load(target, location, sort.dtype)
        wide = value if sort.dtype == int64 else Apply("cast", (value,), int64)
        position = gathered_index(wide, sort.axis.extent)
        key = Rewrite({sort.axis: position}).scalar(sort.key)


def _scan_passes(
    loop: Loop, scan: Scan, decided: Pass, workspaces: StepWorkspaces
) -> Iterator[tuple[tuple[Step, ...], KernelSchedule]]:
    """Blocks are reduced, the results scanned, and each block begins with those before it."""
    block = Axis("block", decided.splits)
    inner = Axis("inner", scan.axis.extent // decided.splits)
    split = Rewrite({scan.axis: axis_index(block) * inner.extent + axis_index(inner)})
    axes = (*loop.axes, block)
    location = row_major(axes)
    store, total = workspaces.kept(axes, Local("total", scan.dtype))
    running = workspaces.add(size_of([axis.extent for axis in axes]), scan.dtype)
    value = split.scalar(scan.value)
    reduce = Reduce("total", scan.combine, (inner,), value, scan.dtype)
    first, second, third = decided.kernels
    yield (Loop(f"{loop.name}.blocks", axes, (reduce, Write((), (store,)))),), first
    totals = Scan(block, scan.combine, total, running, location, scan.dtype)
    yield (Loop(f"{loop.name}.totals", loop.axes, (totals,)),), second
    later = Bound(axis_index(block), 1, block.extent)
    before = Load(running, location - 1, scan.dtype, (later,))
    combined = Apply(COMBINING[scan.combine], (before, value), scan.dtype)
    begins = Within((later, Bound(axis_index(inner), 0, 1)))
    value = Apply("select", (begins, combined, value), scan.dtype)
    inside = replace(scan, axis=inner, value=value, index=split.index(scan.index))
    yield (Loop(loop.name, axes, (inside,)),), third


def ordered(loop: Loop) -> Loop:
    """The loop with its first reductions in waves.

    A wave has the reductions over axes that depend on the same earlier waves, then the values that
    are computed from them without axes. So all reductions of a wave can be split together.
    """
    waves: dict[str, int] = {}
    sorted_stages: list[tuple[int, bool, Stage]] = []
    rest = list(loop.stages)
    while rest and isinstance(rest[0], Reduce):
        stage = rest.pop(0)
        assert isinstance(stage, Reduce)
        wave = max((waves.get(name, 0) for name in _locals_of([stage])), default=0)
        wave += bool(stage.axes)
        waves[stage.local] = wave
        sorted_stages.append((wave, not stage.axes, stage))
    sorted_stages.sort(key=lambda triple: triple[:2])
    return replace(loop, stages=(*(stage for _, _, stage in sorted_stages), *rest))


def leading_reductions(stages: Sequence[Stage]) -> list[Reduce]:
    """The first stages, as far as they can be split.

    They reduce over axes to a value, not a position, and do not depend on each other.
    """
    reductions: list[Reduce] = []
    for stage in stages:
        earlier = {reduction.local for reduction in reductions}
        if not isinstance(stage, Reduce) or not stage.axes or stage.combine in POSITIONAL:
            break
        if _locals_of([stage]) & earlier:
            break
        reductions.append(stage)
    return reductions


def _locals_of(stages: Iterable[Stage]) -> set[str]:
    return _locals_in(value for stage in stages for value in stage_values(stage))


def _locals_in(values: Iterable[Scalar]) -> set[str]:
    return {node.name for node in postorder(*values) if isinstance(node, Local)}
