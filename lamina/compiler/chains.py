"""Chains: contractions that need each other's results only element by element become one step.

The scores of an attention are the result of a contraction. A loop normalises their rows, and
another contraction multiplies them. Each score is used once, so none needs to be stored: a `Chain`
computes them where they are used (Milakov, Gimelshein: Online normalizer calculation for softmax,
2018; Dao: FlashAttention-2, 2023). The same holds for the gradients of an attention, whose
weights are functions of two products. A product that several chains use is computed in each.

Only buffers count here, not ops: a buffer is *hidden* if all of its readers compute its elements
anew. Chains are formed for targets that want them (`Target.chains`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.program.index import Axis, Index, axes_of, axis_index
from lamina.program.program import Buffer, Repeat, replaced_steps
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Load, Local, Scalar, indices, loads, postorder
from lamina.program.steps import (
    Chain,
    Contraction,
    InnerProduct,
    Loop,
    Reduce,
    Step,
    Store,
    WeightedSum,
    Write,
    reads_of,
    writes_of,
)

# Shorter rows and columns are stored: few bytes, and each product is computed once. Longer sums of
# a row are not kept by work items.
LEAST_LENGTH, LONGEST_SUM = 128, 256
# Operands that change more slowly than the others are weights of a layer: their products have few
# rows or long sums.
_LASTING = ("parameter", "state", "constant")

# The coordinates of an element, in terms of the axes of another step.
_Coordinates = Mapping[Axis, Index]


def join_chains(
    buffers: dict[str, Buffer],
    steps: Sequence[Step],
    repeats: Sequence[Repeat],
    outputs: Iterable[str],
    copies: Iterable[str] = (),
) -> tuple[list[Step], list[Repeat]]:
    """The steps with chains in place of the steps that they join; drops the hidden buffers.

    The outputs are read after the last step. The copies are of weights.
    """
    lasting = {name for name, buffer in buffers.items() if buffer.kind in _LASTING}.union(copies)
    free = {name for name, buffer in buffers.items() if buffer.kind == "temporary"}
    chains = _Search(steps, repeats, free.difference(outputs), lasting).chains()
    if not chains:
        return list(steps), list(repeats)
    parts = [part for chain in chains for part in chain.parts]
    # All steps that vanish or move for chains.
    joined = {number for part in parts for number in (part.number, *part.hidden.values())}
    placed = {chain.place: chain for chain in chains}

    def replacements(number: int, step: Step) -> Sequence[Step]:
        if number in placed:
            return (placed[number].step(step.name),)
        return () if number in joined else (step,)

    new, moved = replaced_steps((replacements(n, step) for n, step in enumerate(steps)), repeats)
    unread = free.difference(outputs, *map(reads_of, new))
    for number, step in enumerate(new):
        if isinstance(step, Chain):
            # What no other step reads of its rows is not stored.
            kept = tuple(store for store in step.stores if store.buffer not in unread)
            new[number] = replace(step, stores=kept)
    for name in free.difference(*(reads_of(step) | writes_of(step) for step in new)):
        del buffers[name]
    return new, moved


class _Unfit(Exception):
    """A contraction is not the end of a chain."""


@dataclass
class _Part:
    """A contraction as the end of a chain.

    Attributes:
        number: the number of the contraction.
        batch, m, k: the axes of the chain.
        products: the products, by the buffer from which they come.
        loop: the number of the loop that reduces the rows; None if there is none.
        reductions, stores: the loop's reductions and stores.
        total: the contraction's own sum.
        hidden: the buffers whose elements it computes anew, and the steps that stored them.
    """

    number: int
    batch: tuple[Axis, ...]
    m: tuple[Axis, ...]
    k: tuple[Axis, ...]
    products: dict[str, InnerProduct] = field(default_factory=dict[str, InnerProduct])
    loop: int | None = None
    reductions: tuple[Reduce, ...] = ()
    stores: tuple[Store, ...] = ()
    total: WeightedSum | None = None
    hidden: dict[str, int] = field(default_factory=dict[str, int])

    def fits(self, other: _Part) -> bool:
        """Whether both are over the same points and share products."""
        shared = self.products.keys() & other.products.keys()
        return (
            bool(shared)
            and (self.batch, self.m, self.k) == (other.batch, other.m, other.k)
            and self.loop == other.loop
            and all(self.products[name] == other.products[name] for name in shared)
        )


@frozen_dataclass
class _Joined:
    """Parts that become one chain.

    Attributes:
        parts: the parts, in order.
        place: the number of the step in whose place it runs: the last of its parts, or the first.
    """

    parts: tuple[_Part, ...]
    place: int

    @property
    def loops(self) -> frozenset[int]:
        return frozenset(part.loop for part in self.parts if part.loop is not None)

    def step(self, name: str) -> Chain:
        """The chain. The names of its locals depend on their order alone."""
        first = self.parts[0]
        products = dict(pair for part in self.parts for pair in part.products.items()).values()
        with_loop = next((part for part in self.parts if part.loop is not None), first)
        locals_ = {
            product.result: Local(f"s{number}", product.dtype)
            for number, product in enumerate(products)
        } | {
            reduce.local: Local(f"r{number}", reduce.dtype)
            for number, reduce in enumerate(with_loop.reductions)
        }
        change = Rewrite(locals=locals_)
        sums: list[WeightedSum] = []
        for number, part in enumerate(self.parts):
            assert part.total is not None
            total = Local(f"sum{number}", part.total.dtype)
            renaming = Rewrite(locals={**locals_, part.total.result: total})
            sums.append(replace(renaming.record(part.total), result=total.name))
        return Chain(
            *(name, first.batch, first.m, first.k),
            tuple(replace(product, result=locals_[product.result].name) for product in products),
            tuple(
                replace(change.record(reduce), local=locals_[reduce.local].name)
                for reduce in with_loop.reductions
            ),
            change.records(with_loop.stores),
            tuple(sums),
        )


@final
class _Search:
    """Finds the chains in the steps of a program."""

    def __init__(
        self, steps: Sequence[Step], repeats: Sequence[Repeat], free: set[str], lasting: set[str]
    ) -> None:
        self.steps = steps
        self._repeated = {n for repeat in repeats for n in range(repeat.first, repeat.last)}
        self._writers: dict[str, list[int]] = {}
        self._readers: dict[str, list[int]] = {}
        self._reads = [reads_of(step) for step in steps]
        self.writes = [writes_of(step) for step in steps]
        for number in range(len(steps)):
            for name in self.writes[number]:
                self._writers.setdefault(name, []).append(number)
            for name in self._reads[number]:
                self._readers.setdefault(name, []).append(number)
        self._free, self._lasting = free, lasting

    def chains(self) -> list[_Joined]:
        parts = [part for number in range(len(self.steps)) for part in self._part(number)]
        while parts:
            parts = self._acceptable(parts)
            groups = self._groups(parts)
            places = {
                number: group.place
                for group in groups
                for number in (*group.loops, *(part.number for part in group.parts))
            }
            loops = Counter(loop for group in groups for loop in group.loops)
            refused = {
                part.number
                for group in groups
                if not self._is_in_order(group, places)
                or any(loops[loop] > 1 for loop in group.loops)
                for part in group.parts
            }
            if not refused:
                return groups
            parts = [part for part in parts if part.number not in refused]
        return []

    def _part(self, number: int) -> list[_Part]:
        """The contraction of a number as the end of a chain, if it is one."""
        step = self.steps[number]
        if not isinstance(step, Contraction) or number in self._repeated or not all(step.extents):
            return []
        if self._reads[number] & self.writes[number]:
            return []
        for swapped in (False, True):
            try:
                part = _Reader(self, number, step, swapped).part()
            except _Unfit:
                continue
            if self._is_worthwhile(part):
                return [part]
        return []

    def _is_worthwhile(self, part: _Part) -> bool:
        assert part.total is not None
        products = part.products.values()
        sums = [part.total.n, *(product.axes for product in products)]
        lengths = [size_of([axis.extent for axis in axes]) for axes in (part.m, part.k)]
        operands = [side for product in products for side in (product.left, product.right)]
        read = {load.buffer for load in loads(part.total.right, *operands)}
        return (
            min(lengths) >= LEAST_LENGTH
            and all(size_of([axis.extent for axis in axes]) <= LONGEST_SUM for axes in sums)
            and self._lasting.isdisjoint(read)
        )

    def writer(self, name: str) -> int | None:
        """The step that stores a temporary, if it is a single one that may be joined."""
        writers = self._writers.get(name, [])
        if name not in self._free or len(writers) != 1 or writers[0] in self._repeated:
            return None
        return writers[0]

    def _acceptable(self, parts: list[_Part]) -> list[_Part]:
        """The parts whose hidden buffers need not be stored."""
        while True:
            hidden = {name: n for part in parts for name, n in part.hidden.items()}
            makers = set(hidden.values())
            ends = {part.number: part for part in parts}
            loops = {part.loop for part in parts}
            refused: set[str] = set()
            for name, maker in hidden.items():
                readers = self._readers[name]
                kept: set[str] = set()
                if maker in loops:
                    # What it stores at each of its own points, a chain may store for its rows.
                    step = self.steps[maker]
                    at_rows = (nest for nest in step.nests if nest.axes == step.axes)
                    kept = {store.buffer for nest in at_rows for store in nest.stores}
                is_read = any(
                    (reader not in ends or name not in ends[reader].hidden) and reader not in makers
                    for reader in readers
                )
                is_stored = self.writes[maker] - hidden.keys() - kept
                if is_read or is_stored:
                    refused.add(name)
            if not refused:
                return parts
            parts = [part for part in parts if refused.isdisjoint(part.hidden)]

    def _groups(self, parts: Sequence[_Part]) -> list[_Joined]:
        """Parts over the same points that share products are one chain, if they can be."""
        groups: list[_Joined] = []
        for part in parts:
            for number, group in enumerate(groups):
                joined = self._joined((*group.parts, part))
                if all(map(part.fits, group.parts)) and joined is not None:
                    groups[number] = joined
                    break
            else:
                groups.append(_Joined((part,), part.number))
        return groups

    def _joined(self, parts: tuple[_Part, ...]) -> _Joined | None:
        """Parts as one chain at the place of the last one or the first; None: neither is right."""
        chains = (_Joined(parts, part.number) for part in (parts[-1], parts[0]))
        return next((chain for chain in chains if self._is_in_order(chain, {})), None)

    def _is_in_order(self, group: _Joined, places: Mapping[int, int]) -> bool:
        """Whether the steps of a chain may run at its place, and need no results of each other.

        Other steps run at their `places`, by default at their numbers.
        """
        ends = [part.number for part in group.parts]
        moved = dict.fromkeys((*ends, *group.loops), True)
        for part in group.parts:
            for maker in part.hidden.values():
                moved.setdefault(maker, False)
        written = frozenset[str]().union(*(self.writes[number] for number in ends))
        if any(written & self._reads[number] for number in moved):
            return False
        for number, stores in moved.items():
            for other in range(len(self.steps)):
                place = places.get(other, other)
                is_kept = (other < number) == (place < group.place)
                if other in moved or is_kept:
                    continue
                if self.writes[other] & self._reads[number]:
                    return False
                touched = self._reads[other] | self.writes[other]
                if stores and self.writes[number] & touched:
                    return False
        return True


@final
class _Reader:
    """Reads a contraction as the end of a chain: computes anew what its weights load."""

    def __init__(self, search: _Search, number: int, step: Contraction, swapped: bool) -> None:
        self._search, self._step = search, step
        self._weight, self._right = (step.right, step.left) if swapped else (step.left, step.right)
        self._m, self._n = (step.n, step.m) if swapped else (step.m, step.n)
        self._part = _Part(number, step.batch, self._m, step.k)
        self._canonical: dict[Axis, Index] = {}

    def part(self) -> _Part:
        """The part; raises `_Unfit` if there is none."""
        part, step = self._part, self._step
        weight = self._computed(self._weight)
        if not part.products:
            raise _Unfit
        stores = tuple(replace(store, value=self._computed(store.value)) for store in step.stores)
        self._check(weight, stores)
        n = tuple(Axis(f"n{number}", axis.extent) for number, axis in enumerate(self._n))
        change = Rewrite(dict(zip(self._n, map(axis_index, n), strict=True)))
        # Names of axes by their place in the buffers that are not stored: equal in all chains that
        # share a product.
        named = Rewrite(self._canonical)
        total = WeightedSum(step.result, n, weight, self._right, step.dtype, stores)
        return replace(
            part,
            batch=self._renamed(part.batch),
            m=self._renamed(part.m),
            k=self._renamed(part.k),
            products={name: named.record(product) for name, product in part.products.items()},
            reductions=tuple(
                replace(named.record(reduce), axes=self._renamed(reduce.axes))
                for reduce in part.reductions
            ),
            stores=named.records(part.stores),
            total=change.record(named.record(total)),
        )

    def _check(self, weight: Scalar, stores: Sequence[Store]) -> None:
        """Raises `_Unfit` if stores need single products, or buffers are read that are gone."""
        part = self._part
        at_rows = [store.value for store in (*stores, *part.stores)]
        products = part.products.values()
        inner = {product.result for product in products}
        if inner & {local.name for local in postorder(*at_rows) if isinstance(local, Local)}:
            raise _Unfit
        operands = [side for product in products for side in (product.left, product.right)]
        values = [reduce.value for reduce in part.reductions]
        gone = set(part.hidden)
        if part.loop is not None:
            gone |= self._search.writes[part.loop]
        for load in loads(weight, self._right, *operands, *values, *at_rows):
            if load.buffer in gone:
                raise _Unfit

    def _renamed(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(
            axis for old in axes if old.extent > 1 for axis in axes_of(self._canonical[old])
        )

    def _computed(self, scalar: Scalar) -> Scalar:
        """A scalar whose loads of buffers that need not be stored are computed."""
        return Rewrite(load=self._replacement).scalar(scalar)

    def _replacement(self, load: Load) -> Scalar:
        number = self._search.writer(load.buffer)
        if number is None:
            return load
        maker = self._search.steps[number]
        over = axes_of(load.index)
        is_inner = not over.isdisjoint(self._m) and not over.isdisjoint(self._step.k)
        if isinstance(maker, Contraction) and is_inner:
            return self._product(load, number, maker)
        if isinstance(maker, Loop) and (is_inner or self._part.loop == number):
            return self._of_loop(load, number, maker)
        return load

    def _hide(self, load: Load, store: Store) -> dict[Axis, Index]:
        """Notes a hidden buffer; returns the coordinates of the element that is loaded."""
        at = _coordinates(store.index, load)
        if not self._canonical:
            every = {*self._step.batch, *self._m, *self._step.k}
            ordered = sorted(load.index.terms, key=lambda term: -term[1])
            axes = [atom for atom, _ in ordered if isinstance(atom, Axis)]
            if {axis for axis in every if axis.extent > 1} != set(axes):
                raise _Unfit
            self._canonical = {
                axis: axis_index(Axis(f"a{place}", axis.extent)) for place, axis in enumerate(axes)
            }
        return at

    def _product(self, load: Load, number: int, maker: Contraction) -> Scalar:
        """An element of a contraction's result, computed from its sum."""
        part = self._part
        store = next(candidate for candidate in maker.stores if candidate.buffer == load.buffer)
        if store.accumulate or maker is self._step:
            raise _Unfit
        at = self._hide(load, store) | {axis: Index() for axis in maker.axes if axis.extent == 1}
        if set(at) != set(maker.axes):
            raise _Unfit
        part.hidden[load.buffer] = number
        inner = tuple(Axis(f"d{place}", axis.extent) for place, axis in enumerate(maker.k))
        at |= dict(zip(maker.k, map(axis_index, inner), strict=True))
        change = Rewrite(at)
        sides = [change.scalar(maker.left), change.scalar(maker.right)]
        rows, columns = set(self._m), set(self._step.k)
        used = [{axis for index in indices(side) for axis in axes_of(index)} for side in sides]
        if used[0] & columns or used[1] & rows:
            sides, used = sides[::-1], used[::-1]
        if used[0] & columns or used[1] & rows:
            raise _Unfit
        result = f"sum of {number}"
        product = InnerProduct(result, inner, sides[0], sides[1], maker.dtype)
        if part.products.setdefault(str(number), product) != product:
            raise _Unfit
        local = Local(result, maker.dtype)
        return self._computed(Rewrite(at, {maker.result: local}).scalar(store.value))

    def _of_loop(self, load: Load, number: int, loop: Loop) -> Scalar:
        """What a loop over the rows stores, computed from its reductions."""
        part = self._part
        if part.loop not in (None, number):
            raise _Unfit
        if not all(isinstance(stage, Reduce | Write) for stage in loop.stages):
            raise _Unfit
        stage, store = next(
            (stage, store)
            for stage in loop.stages
            if isinstance(stage, Write)
            for store in stage.stores
            if store.buffer == load.buffer
        )
        if store.accumulate or stage.sequential:
            raise _Unfit
        at = self._hide(load, store) if stage.axes else _coordinates(store.index, load)
        at |= {axis: Index() for axis in (*loop.axes, *stage.axes) if axis.extent == 1}
        if set(at) != {*loop.axes, *stage.axes}:
            raise _Unfit
        if stage.axes:
            part.hidden[load.buffer] = number
        locals_ = self._join(number, loop, {axis: at[axis] for axis in loop.axes})
        return self._computed(Rewrite(at, locals_).scalar(store.value))

    def _join(self, number: int, loop: Loop, at: _Coordinates) -> dict[str, Scalar]:
        """Takes the reductions of a loop and what it stores at its points; returns its locals."""
        part = self._part
        reduces = [stage for stage in loop.stages if isinstance(stage, Reduce)]
        locals_: dict[str, Scalar] = {
            reduce.local: Local(f"{reduce.local} of {number}", reduce.dtype) for reduce in reduces
        }
        if part.loop is not None:
            return locals_
        # The points of the loop are the rows, and it reduces over all columns.
        used = {axis for index in at.values() for axis in axes_of(index)}
        rows = {axis for axis in (*part.batch, *self._m) if axis.extent > 1}
        if used != rows:
            raise _Unfit
        part.loop = number
        columns = self._step.k
        reductions: list[Reduce] = []
        for reduce in reduces:
            inner: dict[Axis, Index] = dict(at)
            if reduce.axes:
                if [axis.extent for axis in reduce.axes] != [axis.extent for axis in columns]:
                    raise _Unfit
                inner |= dict(zip(reduce.axes, map(axis_index, columns), strict=True))
            value = self._computed(Rewrite(inner, locals_).scalar(reduce.value))
            local = f"{reduce.local} of {number}"
            reductions.append(
                Reduce(local, reduce.combine, columns if reduce.axes else (), value, reduce.dtype)
            )
        part.reductions = tuple(reductions)
        change = Rewrite(at, locals_)
        part.stores = tuple(
            replace(store, value=self._computed(store.value))
            for stage in loop.stages
            if isinstance(stage, Write) and not stage.axes
            for store in change.records(stage.stores)
        )
        return locals_


def _coordinates(stored: Index, load: Load) -> dict[Axis, Index]:
    """The axes of the step that stores an element, at the element that another step loads."""
    if load.bounds or stored.constant != load.index.constant:
        raise _Unfit
    axes = {coefficient: atom for atom, coefficient in load.index.terms}
    if len(stored.terms) != len(axes) or len(load.index.terms) != len(axes):
        raise _Unfit
    coordinates: dict[Axis, Index] = {}
    for atom, coefficient in stored.terms:
        other = axes.get(coefficient)
        if not isinstance(atom, Axis) or not isinstance(other, Axis):
            raise _Unfit
        if atom.extent != other.extent:
            raise _Unfit
        coordinates[atom] = axis_index(other)
    return coordinates
