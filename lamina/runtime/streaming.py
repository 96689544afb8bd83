"""Examples where programs on an engine can read them: shared, copied or streamed.

Large data sets and streams are copied to a device while it works. The batches of an epoch are
divided into chunks, in the order in which they are run. Two chunks are on the device: runs use one
of them while the other one is filled.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import final

import numpy as np

from lamina.base.copies import by_threads, stretches
from lamina.base.shapes import Array, size_of
from lamina.engines.engine import STAGES, Engine, Executable, Memory, Staging
from lamina.engines.room import NOT_ASKED_BYTES, Need, require_room
from lamina.errors import InternalError
from lamina.runtime.memories import release_all

# A data set that takes more of the available memory of a device is streamed.
_RESIDENT_FRACTION = 3 / 4
# The most bytes of a chunk, and the most of the device's available memory in parts of it.
_CHUNK_BYTES = 64 << 20
_FRACTION = 1 / 8
# The size of an example's number.
_NUMBER_BYTES = 8


@final
class Streamed:
    """Examples in the computer's memory that are copied to a device in chunks."""

    def __init__(
        self, arrays: Mapping[str, Array], stages: Sequence[Staging], capacity: int
    ) -> None:
        self._arrays, self._stages, self._capacity = arrays, stages, capacity
        self._chunks: Iterator[tuple[Mapping[str, Array], Array]] = iter(())
        # The batches that are on the device, and where their examples lie there.
        self._loaded: Array | None = None
        self._places: Array = np.zeros((0, 0), np.int64)
        self._used = self._number = 0

    def begin(self, batches: Iterable[Array]) -> None:
        """States the batches that are run next, as arrays (..., batches, batch size) of examples.

        A first axis is that of the members of a population.
        """
        self.begin_chunks((self._arrays, rows) for rows in batches)

    def begin_chunks(self, chunks: Iterable[tuple[Mapping[str, Array], Array]]) -> None:
        """States the arrays from which the next batches are taken, and the batches."""
        self._chunks = self._divided(chunks)
        self._load()

    @property
    def loaded(self) -> Array | None:
        """The batches that are on the device and not yet run; None at the end."""
        return None if self._loaded is None else self._loaded[..., self._used :, :]

    def _divided(
        self, chunks: Iterable[tuple[Mapping[str, Array], Array]]
    ) -> Iterator[tuple[Mapping[str, Array], Array]]:
        for arrays, rows in chunks:
            most = max(1, self._capacity // size_of((*rows.shape[:-2], rows.shape[-1])))
            for start in range(0, rows.shape[-2], most):
                yield arrays, rows[..., start : start + most, :]

    def _load(self) -> None:
        """Copies the next chunk to the stage that is not in use."""
        arrays, self._loaded = next(self._chunks, (self._arrays, None))
        self._used = 0
        if self._loaded is None:
            return
        self._number = (self._number + 1) % STAGES
        stage, shape = self._stages[self._number], self._loaded.shape
        examples = self._loaded.reshape(-1)
        places = np.arange(len(examples), dtype=np.int64)
        if len(shape) > 2:
            # Members have examples in common.
            examples, places = np.unique(examples, return_inverse=True)
        self._places = places.reshape(shape)
        sizes = dict.fromkeys(arrays, 0)
        for name, target in stage.arrays.items():
            source = arrays[name]
            sizes[name] = len(examples) * source[:1].nbytes
            view = target[: sizes[name]].view(source.dtype).reshape(-1, *source.shape[1:])
            # The mode is the one in which NumPy writes to the result directly.
            work = [
                partial(np.take, source, examples[rows], axis=0, out=view[rows], mode="clip")
                for rows in stretches(len(view), view[:1].nbytes)
            ]
            by_threads(work, sizes[name])
        stage.send(sizes)

    def run(self, executable: Executable, rows: Array, recorded: Sequence[str]) -> dict[str, Array]:
        """Runs the next batches, like `Executable.run_many`."""
        outputs: list[dict[str, Array]] = []
        done = 0
        *members, steps, size = rows.shape
        while done < steps:
            used, in_chunk = self._used, self._places.shape[-2]
            if self._loaded is None or self._places.shape[-1] != size:
                raise InternalError("batches are run in another order than was stated")
            count = min(in_chunk - used, steps - done)
            # Batches that all members share are stated without their axis.
            places = self._places[..., used : used + count, :]
            places = np.broadcast_to(places, (*members, count, size))
            memories: Mapping[str, Memory] = self._stages[self._number].memories
            finish = executable.begin_many(memories, places, recorded)
            done, self._used = done + count, used + count
            try:
                if self._used == in_chunk:
                    self._load()
            finally:
                outputs.append(finish())
        axis = int(executable.has_members)
        return {n: np.concatenate([output[n] for output in outputs], axis) for n in recorded}

    def release(self) -> None:
        for stage in self._stages:
            stage.release()


def streamed(engine: Engine, arrays: Mapping[str, Array], batch: int) -> Streamed | None:
    """A data set as a stream; None if the engine has no memory of its own.

    A batch has at most `batch` examples. An EngineError is raised if there is no room for two.
    """
    each = {name: array[:1].nbytes for name, array in arrays.items()}
    most = min(_CHUNK_BYTES, int((engine.available_bytes() or 0) * _FRACTION))
    batches = max(1, most // max(1, batch * sum(each.values())))
    limit = engine.target.largest_block_bytes
    if limit is not None:
        name = max(each, key=lambda name: each[name])
        # The numbers of a chunk's examples are an allocation too.
        largest = max(_NUMBER_BYTES, each[name])
        fits = limit // largest
        require_room(
            f"a batch of {batch:,} example{'s' if batch > 1 else ''} needs",
            [Need("examples", 0, name, batch * largest)],
            engine.available_bytes,
            most=limit,
            where=engine.device.engine,
            advice=f"Take a batch of at most {fits:,} example{'s' if fits > 1 else ''}."
            if fits
            else "Not even one example fits: take smaller examples.",
        )
        batches = min(batches, fits // batch)
    capacity = batches * batch
    stages: list[Staging] = []
    try:
        for _ in range(STAGES):
            stage = engine.staging({name: capacity * size for name, size in each.items()})
            if stage is None:
                return None
            stages.append(stage)
    except BaseException:
        for stage in stages:
            stage.release()
        raise
    return Streamed(arrays, stages, capacity)


# A data set as programs run on it.
Examples = Mapping[str, Memory] | Streamed


@contextmanager
def uploaded(engine: Engine, arrays: Mapping[str, Array], batch: int) -> Generator[Examples]:
    """A data set for programs of an engine; its memory is released after the block.

    Devices that share the host's memory read the arrays where they are. Otherwise the arrays are
    copied. If they take most of the memory of a device, examples are copied when they are needed.

    Args:
        arrays: contiguous arrays by program inputs; they are not changed within the block.
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
            # Stages for one batch each would not be smaller.
            is_small = is_small or batch * STAGES >= min(len(array) for array in arrays.values())
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
