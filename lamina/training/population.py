"""Training the members of a population, each with its own seed, numbers and examples."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Annotated, Any, final

import numpy as np

from lamina.base.shapes import Array, converted, shape_text
from lamina.checks import checked
from lamina.checks.kinds import AnyOf, Instance, OrNone, Row, Whole
from lamina.data import Dataset, Stream
from lamina.data.arrays import as_tuple, map_arrays
from lamina.data.conversion import to_array
from lamina.data.stream import AnyData, as_data, whole_of
from lamina.errors import DataError, DefinitionError
from lamina.learning.protocols import TrainingOptions
from lamina.network import Network
from lamina.runtime.compiled import RecentPrograms
from lamina.runtime.feeds import Stopped
from lamina.runtime.inference import with_members
from lamina.runtime.parameters import Parameters
from lamina.runtime.streaming import Examples, Streamed
from lamina.step.derive import RATE, TrainingNumbers
from lamina.step.member_numbers import fields_of_members, leaves_of
from lamina.step.names import as_arrays
from lamina.training.batches import Recorded, joined
from lamina.training.epochs import (
    EXAMPLES_AT_ONCE,
    OfDataset,
    Turn,
    batches_after,
    equal_members,
    orders_by,
    steps_of,
)
from lamina.training.interrupt import Interrupt, held_interrupts
from lamina.training.rates import LearningRates, RatesOfMembers
from lamina.training.steps import TrainingSteps
from lamina.training.training import Training

_SEED = Whole(-(2**63))
# One seed for all members, or one for each.
Seeds = Annotated[int | Sequence[int] | None, OrNone(AnyOf((_SEED, Row(_SEED))))]


def each_seed(seeds: Any, members: int) -> Array:
    """A seed for each member, from one for all or a row of them."""
    if isinstance(seeds, tuple | np.ndarray):
        require_count("seeds", seeds, members)
    return np.broadcast_to(np.asarray(seeds, np.int64), members)


def require_count(
    name: str, values: Any, members: int, advice: str = "Give one for each member, or one for all."
) -> None:
    """Raises DefinitionError unless there is one value for each member."""
    if len(values) != members:
        raise DefinitionError(
            f"{name} has another number of values than there are members",
            facts=(("expected", str(members)), ("found", str(len(values)))),
            where=name,
            advice=advice,
        )


def joined_members(
    dataset: Dataset, network: Network, members: int
) -> tuple[Dataset, Array | None]:
    """The examples of each member's own, (members, examples, ...), as one data set.

    Returns:
        It, and the positions of each member's examples, int64 (members, examples); the data set and
        None if all members share the examples.

    Raises:
        DataError: if the arrays have not equally many examples of each member.
    """
    inputs = dataset.input_arrays
    ranks = [len(tensor.shape) for tensor in network.inputs]
    if len(dataset) != members or [array.ndim - 1 for array in inputs] != ranks:
        return dataset, None
    count, arrays = inputs[0].shape[1], (*inputs, *dataset.target_arrays, *dataset.weight_arrays)
    others = [array for array in arrays if array.shape[1:2] != (count,)]
    if others:
        expected = shape_text((members, count))[:-1]
        raise DataError(
            "an array has not as many examples of each member as the inputs",
            facts=(("expected", f"{expected}, ...]"), ("found", shape_text(others[0].shape))),
            advice="The first axis is that of members, the second that of their examples.",
        )

    def joined(_: str, array: Array) -> Array:
        return array.reshape(-1, *array.shape[2:])

    fields = dataset.inputs, dataset.targets, dataset.weights
    flat: list[Any] = [given if given is None else map_arrays(given, joined) for given in fields]
    positions = np.arange(members * count, dtype=np.int64).reshape(members, count)
    return Dataset(*flat[:2], weights=flat[2]), positions


@final
class PopulationTraining(TrainingSteps):
    """Trains the members of a population together. Made by `Population.training`.

    Args:
        options: the options of each member, or one for all.
    """

    def __init__(
        self,
        parameters: Parameters,
        options: Sequence[TrainingOptions],
        dataset: Dataset | None,
        batch_size: int,
        *,
        seeds: Array,
    ) -> None:
        super().__init__(parameters, options[0], dataset, batch_size, seed=seeds)
        self._seeds = seeds
        self.count = len(seeds)
        self._options = options if len(options) == self.count else [options[0]] * self.count
        try:
            given = self._numbers, self._options, parameters.penalties
            self._fields = fields_of_members(*given)
        except BaseException:
            super().release()
            raise
        for name, number in leaves_of(self._numbers).items():
            memory = self._shared[name]
            values = [number.with_values(own) for own in self._fields]
            memory.write(converted(np.asarray(values), memory.dtype))
        # The trainings of single members that somebody has asked for.
        self._members: dict[int, Training] = {}
        # The programs of steps on batches that all members share, on devices with own memory.
        self._common: RecentPrograms[int] = RecentPrograms()

    @cached_property
    def _rates(self) -> RatesOfMembers:
        """Made when it is used: most trainings of many members set no rate."""
        leaves = leaves_of(self._numbers)
        rates: list[LearningRates] = []
        for number, (own, each) in enumerate(zip(self._fields, self._options, strict=True)):
            numbers = TrainingNumbers()
            numbers.of(each.optimizer, "optimizer")
            numbers.leaves = self._numbers.leaves
            memories = {name: self._shared[name].member(number) for name in leaves}
            rates.append(LearningRates(numbers, memories, own))
        return RatesOfMembers(rates)

    @checked
    def member(self, number: Annotated[int, Whole(0)]) -> Training:
        """The training of one member, on the same memory.

        Raises:
            DefinitionError: if there is no such member.
        """
        if number >= self.count:
            raise DefinitionError(
                f"there is no member {number}",
                facts=(("expected", f"0 to {self.count - 1}"), ("found", str(number))),
                where="member",
            )
        self._require_alive()
        if number not in self._members:
            self._members[number] = Training.of_member(self, number, self._rates.members[number])
        return self._members[number]

    @property
    def rates(self) -> dict[str, Array]:
        """The learning rates of the next training step by name, each float64 (members,)."""
        with self._lock.mutex:
            return self._rates.values(self.steps_done)

    @checked
    def set_rates(self, values: Annotated[Mapping[str, Any], Instance(Mapping)]) -> None:
        """Sets learning rates by name, one for all members or a list with one for each.

        Raises:
            DefinitionError: as `Training.set_rates`, or for another number of rates than members.
        """
        for name, value in values.items():
            if isinstance(value, list | tuple | np.ndarray):
                require_count(name, value, self.count)
        rows = {name: np.broadcast_to(np.asarray(v), self.count) for name, v in values.items()}
        with self._lock.mutex:
            self._rates.set(rows, self.steps_done)

    @property
    def rate(self) -> Array:
        """The learning rate of each member, as `Training.rate`; one for all or a list sets it."""
        return self.rates.get(RATE, np.full(self.count, np.nan))

    @rate.setter
    def rate(self, value: Any) -> None:
        self.set_rates(dict.fromkeys(self.rates or {RATE: value}, value))

    def release(self) -> None:
        """Releases all memory that the population does not own."""
        for training in self._members.values():
            training.release()
        with self._lock.mutex:
            self._common.release()
            super().release()

    @property
    def steps_done(self) -> Array:
        """The number of finished training steps of each member, int64 (members,)."""
        with self._lock.mutex:
            self._require_alive()
            return self._slots["step"].read()

    def step(self, x: Any, y: Any = None, weights: Any = None) -> Array:
        """One training step of every member.

        Args:
            x, y, weights: as in `Training.step`, for all members; or with a first axis of members,
                each has its own.

        Returns:
            The losses before the update, float (members,).
        """
        arrays, are_own = self._of_members(x, y, weights)
        count = arrays[0].shape[1 if are_own else 0]
        self._require_fitting(count)
        with self._lock.mutex:
            self._require_alive()
            if are_own:
                compiled = self._program(count)
            else:
                compiled = self._common.get(count, partial(self._compile, own_inputs=False))
            compiled.executable.activate(np.arange(self.count))
            compiled.run(arrays)
            return compiled.executable.output("loss")

    def _of_members(self, x: Any, y: Any, weights: Any) -> tuple[list[Array], bool]:
        """Inputs, targets and weights, and whether they have a first axis of members."""
        given = [*as_arrays(x, self._input_names), *as_arrays(y, self._target_names)]
        given += as_tuple(weights)
        arrays = [to_array(value, "a batch cannot be converted to an array") for value in given]
        ranks = [len(shape) for shape, _ in self._specs()]
        own = with_members(arrays, ranks, self._labels, self.count, "step")
        if own is None:
            ready = self._converted(x, y, weights)
            if self.engine.device.shares_memory is False:
                # It is copied to the device once.
                return ready, False
            return [np.broadcast_to(array, (self.count, *array.shape)) for array in ready], True
        flat = [array.reshape(-1, *array.shape[2:]) for array in own]
        inputs, targets = len(self._wanted_inputs), len(self._batch.targets)
        parts = flat[:inputs], flat[inputs : inputs + targets], flat[inputs + targets :]
        plain = [tuple(part) if len(part) != 1 else part[0] for part in parts]
        ready = self._converted(*(part if len(part) else None for part in plain))
        return [array.reshape(self.count, -1, *array.shape[1:]) for array in ready], True

    @checked
    def run(
        self,
        dataset: AnyData,
        steps: Annotated[int, Whole(0)],
        seeds: Seeds = None,
        *,
        drop_last: bool = False,
    ) -> Array:
        """Trains each member for a number of training steps without Python between them.

        Args:
            dataset, steps, drop_last: the arguments of `Training.run`; arrays with a first axis of
                members are examples of each member's own.
            seeds: the seeds of the order of the examples, one for all members or one for each; by
                default those of the training. A stream gives all members the same batches, in the
                order of the first one's seed.

        Returns:
            The losses of the members, float (members, steps); fewer if an iterator ends before.
        """
        data, done = as_data(dataset), self.steps_done
        own = self._seeds if seeds is None else each_seed(seeds, self.count)
        if (whole := whole_of(data)) is not None:
            # Members have orders of their own, also of sparse matrices.
            data = whole.dense()
        if isinstance(data, Stream):
            if len(np.unique(done)) > 1:
                raise DefinitionError(
                    "the members are at different places of the stream",
                    facts=(("training steps", f"{done.min()} to {done.max()}"),),
                    where="run",
                    advice="training.member(i).run(stream, steps) continues one of them.",
                )
            self._running = np.arange(self.count)
            given = steps, int(own[0]), int(done[0])
            pieces = self._run_stream(data, *given, drop_last=drop_last)
            return joined(pieces).losses if pieces else np.zeros((self.count, 0), self._loss_dtype)
        data, each = joined_members(data, self._parameters.network, self.count)
        examples = len(data) if each is None else each.shape[1]
        losses = np.zeros((self.count, steps), self._loss_dtype)
        ended = np.zeros(self.count, np.int64)
        with held_interrupts() as interrupt, self.uploaded(data) as resident:
            are_there = not isinstance(resident, Streamed)
            for members in equal_members(done):
                batches = self.batches(
                    *(examples, int(done[members[0]]), steps, own[members]), drop_last=drop_last
                )
                if each is not None:
                    batches = _within(each[members], batches)
                groups = self.in_order(resident, batches)
                for piece in self.pieces_of(members, groups, interrupt, are_there=are_there):
                    at = int(ended[members[0]])
                    losses[members, at : at + piece.losses.shape[-1]] = piece.losses
                    ended[members] += piece.losses.shape[-1]
        return losses[:, : int(ended.min())]

    def batches(
        self, examples: int, done: int, steps: int, seeds: Array | None, *, drop_last: bool
    ) -> Iterator[Array]:
        """The next batches of members with equally many examples: (members, batches, batch size).

        Args:
            done: the training steps that are done.
            steps: the training steps to do.
            seeds: those of the orders of the members' examples; None to keep them.
        """
        orders = None if seeds is None else orders_by(self.engine, examples, seeds)
        at_once = EXAMPLES_AT_ONCE // (1 if seeds is None else len(seeds))
        given = examples, self.batch_size, done, steps, orders
        return batches_after(*given, drop_last=drop_last, at_once=at_once)

    @property
    def _loss_dtype(self) -> Any:
        return next(t.dtype.numpy for name, t in self._graph.graph.outputs if name == "loss")

    def pieces_of(
        self,
        members: Array,
        groups: Iterable[tuple[Examples, Array]],
        interrupt: Interrupt,
        *,
        are_there: bool = False,
    ) -> Iterator[Recorded]:
        """Trains some members, by number, as `pieces` does.

        The batches are those of each of them, (members, batches, batch size), or those that all of
        them share, (batches, batch size).
        """
        self._running = members
        return self.pieces(groups, interrupt, are_there=are_there)


@final
class EpochsOfMembers(OfDataset):
    """The epochs of members of a population, each with its own order, on their parts of a data set.

    Args:
        seeds: the seed of each member's order; None if examples stay in their order.
        subsets: the positions of each member's examples; None if it has all of them.
    """

    def __init__(
        self, dataset: Dataset, seeds: Array | None, subsets: Sequence[Array] | None
    ) -> None:
        super().__init__(dataset)
        self._seeds, self._subsets = seeds, subsets

    @contextmanager
    def given_to(self, training: PopulationTraining, *, drop_last: bool) -> Generator[None]:
        self._training, self._drop_last = training, drop_last
        with training.uploaded(self.sample) as self._resident:
            yield

    def turns(self, members: Array, epoch: int, count: int, stopped: Stopped) -> list[Turn]:
        """The batches of so many epochs, of members with equally many examples together."""
        numbers, each = list[int](members.tolist()), self._subsets
        lengths = [len(self.sample) if each is None else len(each[number]) for number in numbers]
        turns: list[Turn] = []
        for group in equal_members(lengths):
            examples, own = lengths[int(group[0])], members[group]
            steps = steps_of(examples, self._training.batch_size, drop_last=self._drop_last)
            given = examples, epoch * steps, count * steps
            seeds = None if self._seeds is None else self._seeds[own]
            batches = self._training.batches(*given, seeds, drop_last=self._drop_last)
            if each is not None:
                places: list[int] = own.tolist()
                batches = _within(np.stack([each[number] for number in places]), batches)
            groups = self._training.in_order(self._resident, batches)
            turns.append(Turn(own, groups, steps, not isinstance(self._resident, Streamed)))
        return turns


def _within(subsets: Array, batches: Iterable[Array]) -> Iterator[Array]:
    """Batches of positions in the subset of each member as batches of examples."""
    for positions in batches:
        shape = len(subsets), *positions.shape[-2:]
        flat = np.broadcast_to(positions, shape).reshape(len(subsets), -1)
        yield np.take_along_axis(subsets, flat, axis=1).reshape(shape)
