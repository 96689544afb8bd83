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
        batch: the most examples of a batch.

    Yields:
        The memories, by the inputs; or the stream.
    """
    stream = None
    resident = _shared(engine, arrays)
    if resident is None and not _is_small(engine, arrays):
        stream = streamed(engine, arrays, batch)
    if stream is not None:
        try:
            yield stream
        finally:
            stream.release()
        return
    if resident is None:
        copied: dict[str, Memory] = {}
        try:
            for name, array in arrays.items():
                copied[name] = engine.allocate(array.shape, array.dtype)
                copied[name].write(array)
        except BaseException:
            release_all(copied)
            raise
        resident = copied
    try:
        yield resident
    finally:
        release_all(resident)


def _shared(engine: Engine, arrays: Mapping[str, Array]) -> dict[str, Memory] | None:
    """The arrays as memories without a copy; None if one of them has to be copied."""
    resident: dict[str, Memory] = {}
    if _has_too_large(engine, arrays):
        return None
    try:
        for name, array in arrays.items():
            memory = engine.shared(array)
            if memory is None:
                release_all(resident)
                return None
            resident[name] = memory
    except BaseException:
        release_all(resident)
        raise
    return resident


def _has_too_large(engine: Engine, arrays: Mapping[str, Array]) -> bool:
    limit = engine.target.largest_block_bytes
    return limit is not None and any(array.nbytes > limit for array in arrays.values())


def _is_small(engine: Engine, arrays: Mapping[str, Array]) -> bool:
    """Whether a data set leaves room on the device, and each array can be one allocation."""
    if _has_too_large(engine, arrays):
        return False
    total = sum(array.nbytes for array in arrays.values())
    available = engine.available_bytes() if total > NOT_ASKED_BYTES else None
    return available is None or total <= available * _RESIDENT_FRACTION
