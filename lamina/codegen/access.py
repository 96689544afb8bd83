"""Loads and stores of vectors: contiguous, strided, or gathered element by element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder, Module
from lamina.codegen.nest import Nest
from lamina.codegen.positions import LaneIndices, Positions
from lamina.codegen.primitives import element, from_memory, memory_element, to_memory
from lamina.codegen.values import I64, POINTER, Type, Value, undefined
from lamina.program.index import Index
from lamina.program.scalar import Load
from lamina.program.steps import Store


@final
@frozen_dataclass
class Access:
    """Reads and writes buffers at the current point of a nest.

    Attributes:
        code: the function that is being written.
        nest: the loop nest around the current point.
        positions: the writer of its index expressions.
        bases: the address of each buffer.
        sizes: the number of elements of each buffer.
        calling: whether strided vectors are loaded and stored by calls of functions that are
            written once in a module, which keeps their callers short.
        whole_vectors: whether buffers are aligned to vectors, and contiguous vectors are loaded in
            one piece even if a bound fails in all of their lanes: then from the buffer's start.
        loaded: the loaded buffers. After a store they must be loaded again.
    """

    code: Builder
    nest: Nest
    positions: Positions
    bases: Mapping[str, Value]
    sizes: Mapping[str, int]
    calling: bool
    whole_vectors: bool
    loaded: set[str] = field(default_factory=set[str])

    def load(self, load: Load) -> Value:
        """The value of a load, a vector if it depends on the lanes."""
        lanes = self.nest.lanes.count
        self.loaded.add(load.buffer)
        if not self.sizes[load.buffer]:
            return self.code.constant(0, Type(element(load.dtype)))
        inside = self.positions.within(load.bounds) if load.bounds else None
        if inside is not None and inside.number is not None:
            # LLVM 22.1 compiles loads with some constant masks as if they had others.
            if not inside.number:
                return self.code.constant(0, Type(element(load.dtype)))
            inside = None
        indices = self.positions.indices(load.index)
        mask_varies = inside is not None and bool(inside.type.lanes)
        if indices.vector is None and not indices.stride and not mask_varies:
            return self._load_element(load, indices.start, inside)
        if indices.vector is None and indices.stride in (1, -1):
            return self._run(load, indices, inside, lanes)
        if inside is None and indices.vector is None:
            return self._strided(load, indices, lanes)
        return self._gathered(load, indices, inside, lanes)

    def address(self, load: Load) -> tuple[Value, Value | None]:
        """The address of the contiguous elements of a load, and whether its bounds hold there.

        If they do not hold, the address is the buffer's.
        """
        start = self.positions.indices(load.index).start
        inside = self.positions.within(load.bounds) if load.bounds else None
        start = self._or_zero(inside, start)
        element = memory_element(load.dtype)
        return self.code.offset(self.bases[load.buffer], start, element), inside

    def _run(self, load: Load, indices: LaneIndices, inside: Value | None, lanes: int) -> Value:
        """Contiguous elements, forwards or backwards."""
        code = self.code
        type = Type(memory_element(load.dtype))
        forwards = indices.stride == 1
        backwards = range(lanes - 1, -1, -1)
        start = indices.start
        if not forwards:
            start = start - (lanes - 1)
        selected = None
        uniform = inside is not None and not inside.type.lanes
        if self.whole_vectors and uniform and self.sizes[load.buffer] >= lanes:
            selected, inside = inside, None
            start = self._or_zero(selected, start)
        address = code.offset(self.bases[load.buffer], start, type.element)
        if inside is None:
            loaded = code.load(address, type.wide(lanes), self._alignment(load.index, type))
        else:
            mask = self._mask(inside, lanes)
            mask = mask if forwards else code.shuffle(mask, None, backwards)
            loaded = self._masked_load(address, mask, type.wide(lanes))
        loaded = loaded if forwards else code.shuffle(loaded, None, backwards)
        return self._or_zero(selected, from_memory(code, loaded, load.dtype))

    def _alignment(self, index: Index, type: Type) -> int:
        """The known alignment of a vector that begins at an index; 0 if only of an element."""
        lanes = self.nest.lanes
        count = lanes.count
        if not self.whole_vectors or count & (count - 1) or lanes.multiple % count:
            return 0
        steps = [step for atom, step in index.terms if atom != lanes.axis]
        aligned = all(step % count == 0 for step in (*steps, index.constant))
        forwards = (lanes.axis, 1) in index.terms
        return count * type.bytes if aligned and forwards else 0

    def _load_element(self, load: Load, index: Value, inside: Value | None) -> Value:
        code = self.code
        type = Type(memory_element(load.dtype))
        # Element 0 always exists.
        index = self._or_zero(inside, index)
        address = code.offset(self.bases[load.buffer], index, type.element)
        return self._or_zero(inside, from_memory(code, code.load(address, type), load.dtype))

    def _mask(self, inside: Value, lanes: int) -> Value:
        """Whether bounds hold, for each lane."""
        return inside if inside.type.lanes else self.code.splat(inside, lanes)

    def _or_zero(self, inside: Value | None, value: Value) -> Value:
        """The value where bounds hold, zero elsewhere."""
        return value if inside is None else self.code.select(inside, value, 0)

    def _masked_load(self, address: Value, mask: Value, type: Type) -> Value:
        code = self.code
        # Unless the number of lanes is a power of two, LLVM 22.1 reads masked-out lanes on AVX2.
        wide = type.wide(1 << (type.lanes - 1).bit_length())
        mask = code.padded(mask, wide.lanes, False)
        loaded = code.masked_load(address, mask, wide)
        return loaded if wide == type else code.shuffle(loaded, None, range(type.lanes))

    def _strided(self, load: Load, indices: LaneIndices, lanes: int) -> Value:
        code = self.code
        type = Type(memory_element(load.dtype))
        start = code.offset(self.bases[load.buffer], indices.start, type.element)
        result = undefined(type.wide(lanes))
        if self.calling:
            function = _write_strided_load(code.module, result.type)
            result = code.call(function, result.type, start, indices.stride)
        else:
            for lane in range(lanes):
                address = code.offset(start, lane * indices.stride, type.element)
                result = code.insert(result, code.load(address, type), lane)
        return from_memory(code, result, load.dtype)

    def _gathered(
        self, load: Load, indices: LaneIndices, inside: Value | None, lanes: int
    ) -> Value:
        """One element after the other, from any indices."""
        code = self.code
        type = Type(memory_element(load.dtype))
        vector = indices.vector
        if vector is None:
            vector = self.positions.counted(indices.start, indices.stride)
        if inside is not None:
            inside = self._mask(inside, lanes)
            vector = self._or_zero(inside, vector)
        result = undefined(type.wide(lanes))
        for lane in range(lanes):
            index = code.extract(vector, lane)
            address = code.offset(self.bases[load.buffer], index, type.element)
            result = code.insert(result, code.load(address, type), lane)
        return self._or_zero(inside, from_memory(code, result, load.dtype))

    def store(self, store: Store, value: Value, indices: LaneIndices) -> None:
        """Writes (or adds) a value: a vector if there are lanes."""
        code = self.code
        dtype = store.value.dtype
        base = self.bases[store.buffer]
        type = Type(memory_element(dtype))
        lanes = value.type.lanes
        if not lanes or (indices.vector is None and indices.stride == 1):
            address = code.offset(base, indices.start, type.element)
            align = self._alignment(store.index, type) if lanes else 0
            if store.accumulate:
                old = from_memory(code, code.load(address, type.wide(lanes), align), dtype)
                value = old + value
            code.store(to_memory(code, value, dtype), address, align)
            return
        vector = indices.vector
        stored = to_memory(code, value, dtype)
        start = code.offset(base, indices.start, type.element) if vector is None else base
        if vector is None and self.calling and not store.accumulate:
            function = _write_strided_store(code.module, stored.type)
            code.call_void(function, stored, start, indices.stride)
            return
        for lane in range(lanes):
            offset = lane * indices.stride if vector is None else code.extract(vector, lane)
            address = code.offset(start, offset, type.element)
            element = code.extract(stored, lane)
            if store.accumulate:
                element = code.load(address, type) + element
            code.store(element, address)


def _write_strided_load(module: Module, type: Type) -> str:
    """Writes `load_strided(address, stride)`, once in a module; returns its name."""
    name = f"load_strided_{type.suffix}"
    if not module.has(name):
        code = module.function(name, (("address", POINTER), ("stride", I64)), result=type)
        address, stride = code.parameters
        result = undefined(type)
        for lane in range(type.lanes):
            result = code.insert(result, code.load(address, type.scalar), lane)
            if lane + 1 < type.lanes:
                address = code.offset(address, stride, type.element)
        code.finish(result)
    return name


def _write_strided_store(module: Module, type: Type) -> str:
    """Writes `store_strided(vector, address, stride)`, once in a module; returns its name."""
    name = f"store_strided_{type.suffix}"
    if not module.has(name):
        parameters = (("vector", type), ("address", POINTER), ("stride", I64))
        code = module.function(name, parameters)
        vector, address, stride = code.parameters
        for lane in range(type.lanes):
            code.store(code.extract(vector, lane), address)
            if lane + 1 < type.lanes:
                address = code.offset(address, stride, type.element)
    return name
