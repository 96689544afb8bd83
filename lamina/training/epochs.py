"""The epochs of a training: batches of a data set in shuffled order, or of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.data import Dataset, Stream
from lamina.data.arrays import as_tuple
from lamina.data.background import Reader
from lamina.data.positions import Position
from lamina.data.stream import whole_of
from lamina.engines.engine import Engine
from lamina.errors import DataError
from lamina.program.philox import ORDER_STREAM
from lamina.runtime.feeds import Stopped
from lamina.runtime.streaming import Examples

if TYPE_CHECKING:
    from lamina.training.batches import BatchRunner

# Several epochs of a small data set are shuffled and run in one call, of about this many examples.
EXAMPLES_AT_ONCE = 1 << 15


def batches_of_rows(rows: Array, size: int) -> list[Array]:
    """Rows split into batches, in order: (..., batches, batch size), a smaller last one apart."""
    whole, shape = rows.shape[-1] // size * size, rows.shape[:-1]
    groups = rows[..., :whole].reshape(*shape, -1, size), rows[..., None, whole:]
    return [group for group in groups if group.size]


# The orders of the examples in some epochs, int64 (epochs, examples); those of several members of a
# population have a first axis of members.
Orders = Callable[[range], Array]


def orders_by(engine: Engine, examples: int, seed: int | Array) -> Orders:
    """The orders of so many examples that follow from a seed, or from that of each member."""
    seeds = np.asarray(seed, np.int64)

    def orders(epochs: range) -> Array:
        numbers = np.array(epochs, np.int64)
        each, every = (array.ravel() for array in np.broadcast_arrays(seeds[..., None], numbers))
        made = engine.permutations(examples, each, every, ORDER_STREAM)
        return made.reshape(*seeds.shape, len(epochs), examples)

    return orders


def batches_after(
    examples: int,
    batch_size: int,
    done: int,
    steps: int,
    orders: Orders | None,
    *,
    drop_last: bool,
    at_once: int = EXAMPLES_AT_ONCE,
) -> Iterator[Array]:
    """The batches of so many training steps after those that are done: (..., batches, batch size).

    The training steps that are done count from the first epoch on. Without orders, examples stay
    as they are. Without a batch: a DataError.
    """
    size = min(batch_size, examples)
    used = examples // batch_size * batch_size if drop_last else examples
    if not used:
        raise no_whole_batch(examples, batch_size)
    epoch, skipped = divmod(done, -(-used // size))
    epochs_at_once = max(1, at_once // examples)
    while steps:
        needed = -(-(skipped + steps) // -(-used // size))
        epochs = range(epoch, epoch + min(epochs_at_once, needed))
        if orders is None:
            rows_of = np.arange(used, dtype=np.int64)[None].repeat(len(epochs), axis=0)
        else:
            rows_of = orders(epochs)[..., :used]
        # If all batches have one size, the batches of several epochs are run at once.
        alone = (
            np.moveaxis(rows_of, -2, 0)
            if used % size
            else rows_of.reshape(1, *rows_of.shape[:-2], -1)
        )
        for order in alone:
            for rows in batches_of_rows(order, size):
                taken = rows[..., skipped : skipped + steps, :]
                skipped = max(skipped - rows.shape[-2], 0)
                steps -= taken.shape[-2]
                if taken.shape[-2]:
                    yield taken
        epoch = epochs.stop


def equal_members(values: Sequence[int] | Array) -> list[Array]:
    """The numbers of members with equal values, in groups."""
    array = np.asarray(values)
    return [np.flatnonzero(array == value) for value in np.unique(array)]


def no_whole_batch(examples: int, batch_size: int, where: str = "") -> DataError:
    """The error for fewer examples than a batch holds, where smaller batches are dropped."""
    return DataError(
        "there are fewer examples than a batch holds, and the last one is dropped",
        facts=(("examples", str(examples)), ("batch", str(batch_size))),
        where=where,
        advice="Leave drop_last out, or take a smaller batch_size.",
    )


def require_epochs(
    data: Dataset | Stream, epochs: int, role: str = "the training data", *, shapes: bool = False
) -> None:
    """Raises DataError if data that can be read once is needed for several epochs, or shapes."""
    if isinstance(data, Stream) and data.is_one_shot and epochs > 1:
        source = f"an iterator ({type(data.source).__name__})"
        raise DataError(
            f"{role} can be read once, and there are {epochs} "
            + ("shapes of networks" if shapes else "epochs"),
            facts=(("expected", "a source that can be iterated again"), ("found", source)),
            where="Population" if shapes else "fit",
            advice="Give the generator function itself, without calling it, or a list of batches"
            + ("." if shapes else "; or train for one epoch."),
        )


def steps_of(examples: int, size: int, *, drop_last: bool) -> int:
    """The training steps of an epoch."""
    return examples // size if drop_last else -(-examples // size)


@frozen_dataclass
class Turn:
    """Batches of some members of a population, as many of each.

    Attributes:
        members: their numbers.
        groups: as in `Epochs.groups`; batches may have a first axis of these members.
        steps: the training steps of an epoch; None if it is not known yet.
        are_there: whether all batches are rows of the same examples, which are there.
    """

    members: Array
    groups: Iterator[tuple[Examples, Array]]
    steps: int | None
    are_there: bool


class Epochs(Protocol):
    """The batches of a fit, epoch by epoch."""

    @property
    def steps(self) -> int | None:
        """The number of training steps of an epoch; None if it is not known yet."""

    @property
    def sample(self) -> Dataset:
        """The data set, or the first batch of a stream."""
        ...

    @property
    def position(self) -> Position | None:
        """Where the stream is; None for a data set."""

    def batch_size(self, wanted: int) -> int:
        """The most examples of a training step."""
        ...

    def given_to(self, training: BatchRunner, *, drop_last: bool) -> AbstractContextManager[None]:
        """Within the block, the training can read the examples, and the other methods be called."""
        ...

    def groups(self, epoch: int, done: int, stopped: Stopped) -> Iterator[tuple[Examples, Array]]:
        """Examples, and their batches after `done` training steps: int64 (batches, batch size)."""
        ...

    def advance(self, steps: int) -> None:
        """Counts training steps as done."""

    def fault(self) -> str:
        """The first example with a value that is not finite, as text for an error."""
        ...

    def close(self) -> None:
        """Ends the reading of a stream."""


class OfDataset:
    """What all epochs of a data set have in common: it is read where it is, as often as needed."""

    position = None  # only streams need one

    def __init__(self, dataset: Dataset) -> None:
        self.sample = dataset

    def batch_size(self, wanted: int) -> int:
        return min(wanted, len(self.sample))

    def advance(self, steps: int) -> None:
        pass

    def fault(self) -> str:
        return fault_of(self.sample)

    def close(self) -> None:
        pass


@final
class EpochsOfDataset(OfDataset):
    """`Epochs` of a data set; without a seed, examples stay in their order."""

    def __init__(self, dataset: Dataset, seed: int | None) -> None:
        super().__init__(dataset)
        self._seed = seed

    @contextmanager
    def given_to(self, training: BatchRunner, *, drop_last: bool) -> Generator[None]:
        self._training, self._drop_last = training, drop_last
        self._orders = None
        if self._seed is not None:
            self._orders = orders_by(training.engine, len(self.sample), self._seed)
        self.steps = steps_of(len(self.sample), training.batch_size, drop_last=drop_last)
        with training.uploaded(self.sample) as self._resident:
            yield

    def groups(self, epoch: int, done: int, stopped: Stopped) -> Iterator[tuple[Examples, Array]]:
        training, before = self._training, epoch * self.steps + done
        size, left = training.batch_size, self.steps - done
        given = len(self.sample), size, before, left, self._orders
        batches = batches_after(*given, drop_last=self._drop_last)
        return training.in_order(self._resident, batches)


@final
class EpochsOfStream:
    """`Epochs` of a stream.

    Args:
        position: the place where the stream begins, from `position`; None for the beginning.
        done: the epochs that are done, and the training steps of the next one.
        keeps_states: whether positions have the state of the source, if it has one.
        seconds: the time in which the first batch must be there.
    """

    def __init__(
        self,
        stream: Stream,
        seed: int | None,
        epochs: int,
        position: Position | None,
        done: tuple[int, int],
        *,
        keeps_states: bool,
        seconds: float,
    ) -> None:
        self._stream = stream
        self._seconds, self._ends_at = seconds, time.monotonic() + seconds
        # The epochs and the training steps that are read; None if their number is not known.
        self._to_read: tuple[int | None, int | None] = epochs, None
        self.steps = each = stream.steps_per_epoch
        if each is not None:
            self._to_read = None, max(0, each * (epochs - done[0]) - done[1])
        elif position is not None and position.epoch >= epochs:
            self._to_read = None, 0
        self._reader = Reader(
            stream,
            position,
            seed=seed,
            resumes=position is not None,
            keeps_states=keeps_states,
            is_over=self._to_read[1] == 0,
        )

    @property
    def sample(self) -> Dataset:
        sample = self._reader.sample_unless(lambda: time.monotonic() >= self._ends_at)
        if sample is None:
            expected = f"a first batch within {self._seconds:g} seconds"
            raise DataError(
                "the stream has given no batch, and the time of the fit is over",
                facts=(("expected", expected), ("found", "none")),
                where="fit",
                advice="Find out why the source waits, or give lm.callbacks.TimeLimit more time.",
            )
        return sample

    def batch_size(self, wanted: int) -> int:
        return wanted if self._stream.regroup else len(self.sample)

    @contextmanager
    def given_to(self, training: BatchRunner, *, drop_last: bool) -> Generator[None]:
        (epochs, steps), dataset = self._to_read, whole_of(self._stream)
        if dataset is not None and self.steps is None:
            self.steps = steps_of(len(dataset), training.batch_size, drop_last=drop_last)
        reader, sample = self._reader, self.sample
        with training.fed(
            reader, sample, drop_last=drop_last, epochs=epochs, steps=steps
        ) as self._feed:
            yield

    def groups(self, epoch: int, done: int, stopped: Stopped) -> Iterator[tuple[Examples, Array]]:
        each = self._stream.steps_per_epoch
        self._done = done
        # After the last training step of an epoch the stream is at the begin of the next one.
        is_ended = each is None and done > 0 and self._feed.position.epoch > epoch
        if not is_ended:
            yield from self._feed.groups(None if each is None else each - done, stopped)
        if not stopped():
            self.steps = self._done

    def turns(self, members: Array, epoch: int, count: int, stopped: Stopped) -> list[Turn]:
        """The batches of one epoch, which members of a population share."""
        assert count == 1
        return [Turn(members, self.groups(epoch, 0, stopped), self.steps, are_there=False)]

    def advance(self, steps: int) -> None:
        self._done += steps
        self._feed.advance(steps)

    @property
    def position(self) -> Position:
        return self._feed.position

    def fault(self) -> str:
        first, arrays = self._feed.examples()
        named = [(f"array {n} of the batch", array) for n, array in enumerate(arrays)]
        return _first_fault(named, first)

    def close(self) -> None:
        self._reader.close()


def fault_of(dataset: Dataset) -> str:
    """The first example with a value that is not finite, as text for an error or a warning."""
    arrays: list[tuple[str, Array]] = []
    for role, data in (("input", dataset.inputs), ("target", dataset.targets)):
        named = data if isinstance(data, Mapping) else dict(enumerate(as_tuple(data)))
        arrays += [(f"{role} {name!r}", array) for name, array in named.items()]
    features = () if dataset.coding is None else dataset.coding.features
    return _first_fault(arrays, columns=dataset.column_names or features)


# The fault of data that has none.
ALL_FINITE = "all finite"


def _first_fault(
    arrays: list[tuple[str, Array]], first: int = 0, columns: Sequence[str] = ()
) -> str:
    """The first element that is not finite; the columns belong to the first array."""
    for name, array in arrays:
        broken = ~np.isfinite(array)
        if broken.any():
            example, *position = map(int, np.unravel_index(broken.argmax(), array.shape))
            where = f", element {position}" if position else ""
            if len(position) == 1:
                is_named = array is arrays[0][1] and array.shape[1] == len(columns)
                column = repr(columns[position[0]]) if is_named else position[0]
                where = f", column {column}"
            return f"{name} is not finite at example {first + example}{where}"
    return ALL_FINITE
