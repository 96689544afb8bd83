"""A data set where programs on an engine can read it: shared, copied or streamed."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from lamina.base.shapes import Array
from lamina.engines.engine import Engine, Memory
from lamina.engines.room import NOT_ASKED_BYTES
from lamina.runtime.parameters import release_all
from lamina.runtime.streaming import Streamed, streamed

# A data set as programs run on it.
Examples = Mapping[str, Memory] | Streamed
# A data set that takes more of the available memory of a device is streamed.
_RESIDENT_FRACTION = 3 / 4


@contextmanager
def uploaded(engine: Engine, arrays: Mapping[str, Array], batch: int) -> Generator[Examples]:
    """A data set for programs of an engine; its memory is released after the block.

    Devices that share the host's memory read the arrays where they are. Otherwise the arrays are
    copied. If they take most of the memory of a device, examples are copied when they are needed.

    Args:
        arrays: contiguous, by the inputs of the programs; they are not changed within the block.
    """
    memories: dict[str, Memory] = {}
    limit = engine.target.largest_block_bytes
    fits = limit is None or all(array.nbytes <= limit for array in arrays.values())
    try:
        for name, array in arrays.items() if fits else ():
            memory = engine.shared(array)
            if memory is None:
                break
            memories[name] = memory
        if len(memories) < len(arrays):
            release_all(memories)
            memories = {}
            total = sum(array.nbytes for array in arrays.values())
            available = engine.available_bytes() if fits and total > NOT_ASKED_BYTES else None
            is_small = available is None or total <= available * _RESIDENT_FRACTION
            stream = None if fits and is_small else streamed(engine, arrays, batch)
            if stream is not None:
                try:
                    yield stream
                finally:
                    stream.release()
                return
            for name, array in arrays.items():
                memories[name] = engine.allocate(array.shape, array.dtype)
                memories[name].write(array)
        yield memories
    finally:
        release_all(memories)
