"""`Population`: many networks of one definition, trained and run by one program."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast, final

import numpy as np
import numpy.typing as npt

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, shape_text
from lamina.checks import checked
from lamina.checks.kinds import (
    AnyOf,
    Count,
    FloatType,
    Function,
    Instance,
    OrNone,
    ReadBy,
    Row,
    Whole,
    Word,
)
from lamina.data import Coding, Dataset, Stream, as_dataset
from lamina.data.dataset import Data, positions_of
from lamina.data.stream import AnyData, as_data, as_inputs, whole_of
from lamina.engines.discovery import DEFAULT_ENGINE, open_engine
from lamina.errors import DefinitionError, Named, ShapeError, errors_at
from lamina.files.model_file import ModelFile, read_model, write_model
from lamina.learning.by_output import Losses, Metrics, as_loss, as_metrics
from lamina.learning.protocols import BatchSize, Clip, Optimizer, TrainingOptions
from lamina.learning.weighting import numbers_of
from lamina.model import GivenClassWeights, Model
from lamina.network import Network
from lamina.runtime import Inference, Parameters
from lamina.step.member_numbers import groups_of
from lamina.step.precision import Products, precision_of
from lamina.training.callbacks.hooks import AnyCallback, check_callbacks
from lamina.training.epochs import require_epochs
from lamina.training.evaluation import BATCH_SIZE, directions_of, evaluating_members, summary
from lamina.training.history import SMALLEST, Best
from lamina.training.population import (
    PopulationTraining,
    Seeds,
    each_seed,
    joined_members,
    require_count,
)
from lamina.training.population_fit import Histories, PopulationFit, fitted_together
from lamina.training.search import Comparison, Make, Search, Space, trials_of

_ADVICE = "lm.Sequential(...) and lm.Network(...) make one; model.network is that of a model."
_NETWORK = Instance(Network, "a member is made of a network", _ADVICE)
# One network for all members, or the network of each.
Networks = Annotated[Network | Sequence[Network], AnyOf((_NETWORK, Row(_NETWORK)))]
OptionalCount = Annotated[int | None, OrNone(Whole(1))]
# The positions of the examples of each member.
Subsets = Annotated[Sequence[npt.ArrayLike] | None, OrNone(Row(ReadBy(positions_of)))]


# What makes network and optimizer of a trial, and the trials.
_MAKE = Function("lambda rate: (network, lm.Adam(rate))", "a function of hyper-parameters")
OfTrial = Annotated[Make, _MAKE]
_PARAMETERS = Instance(Mapping)
Trials = Annotated[Space, AnyOf((_PARAMETERS, Row(_PARAMETERS, example="{'rate': [0.01, 0.1]}")))]


@final
class Population(Named):
    """Networks with parameters of their own, in an engine's memory, that are trained together.

    A training step of all members of one shape is one run of one program. Each member becomes the
    network that would be trained alone with its seed, its numbers and its examples.

    Args:
        network: the definition of all members, or a list with one for each. Members whose networks
            differ in the strengths of regularizers alone share a program; those of another shape
            have another one.
        members: the number of networks; not needed with a list.
        engine, dtype, precision: the arguments of `Model`.
        seeds: the seed of each member, or one for all; by default 0, 1, 2 and so on.
        lanes: whether the cpu engine may compute several small members in the lanes of a vector.
            That is faster, and adds up numbers in another order than for a network alone, so that
            results differ by rounding.

    Raises:
        DefinitionError: for another number of seeds or networks than members.
        EngineError: for an engine that does not exist, or has not enough memory.

    Example:
        >>> import numpy as np, lamina as lm
        >>> population = lm.Population(lm.Sequential(lm.Input(3), lm.Linear(2)), members=4)
        >>> population.predict(np.zeros((5, 3), "float32")).shape
        (4, 5, 2)
    """

    @checked
    def __init__(
        self,
        network: Networks,
        members: OptionalCount = None,
        engine: str = DEFAULT_ENGINE,
        *,
        seeds: Seeds = None,
        dtype: FloatType = "float32",
        precision: Products = "float32",
        lanes: bool = True,
    ) -> None:
        networks = _networks_of(network, members)
        opened = open_engine(engine)
        types = precision_of(dtype, lambda: opened.device, precision)
        count = len(networks)
        own = np.arange(count) if seeds is None else each_seed(seeds, count)
        groups: list[tuple[Array, Parameters]] = []
        for numbers in groups_of(networks, types.dtype):
            of_group = [networks[number] for number in numbers]
            made = partial(Parameters, of_group[0], opened, types, 0, seeds=own[numbers])
            groups.append((np.array(numbers), made(networks=of_group, may_use_lanes=lanes)))
        self._set_groups(groups)

    def _set_groups(self, groups: Sequence[tuple[Array, Parameters]]) -> None:
        self._groups = [_Group(numbers, own, Inference(own)) for numbers, own in groups]
        places = {
            number: (group, place)
            for group in self._groups
            for place, number in enumerate(group.members)
        }
        self._places = [places[number] for number in range(len(places))]

    @classmethod
    def of_parameters(cls, parameters: Parameters) -> Population:
        """A population with these parameters."""
        population = cls.__new__(cls)
        population._set_groups([(np.arange(parameters.members or 0), parameters)])
        return population

    def __repr__(self) -> str:
        first = self._groups[0].parameters
        counts = sorted({group.parameters.network.parameter_count() for group in self._groups})
        count = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        kind = f"{count} parameters, {first.precision}"
        return f"Population({len(self)} members of {kind}, engine={first.engine.device.engine!r})"

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> Model:
        """A member as a model in the same memory: what changes one changes the other."""
        group, place = self._places[range(len(self))[number]]
        return Model.of_parameters(group.parameters.member(place))

    def __iter__(self) -> Iterator[Model]:
        return (self[number] for number in range(len(self)))

    @property
    def groups(self) -> list[tuple[Array, Population]]:
        """The members of each shape: their numbers, and a population of them in the same memory."""
        return [(group.numbers, self.of_parameters(group.parameters)) for group in self._groups]

    @property
    def _parameters(self) -> Parameters:
        """The parameters of all members, which have one shape."""
        if len(self._groups) == 1:
            return self._groups[0].parameters
        raise DefinitionError(
            "the members have networks of several shapes",
            facts=(("shapes", str(len(self._groups))),),
            where="Population",
            advice="population.groups has a population for each shape, population[i] the models.",
        )

    @property
    def network(self) -> Network:
        """The definition; of members with several strengths of regularizers, the first one's."""
        return self._parameters.network

    @property
    def seeds(self) -> Array:
        """The seed of each member, int64 (members,)."""
        return self._together([np.asarray(group.parameters.seeds) for group in self._groups])

    @property
    def coding(self) -> Coding | None:
        """The coding of the table on which the members were trained; None for arrays."""
        return self._groups[0].parameters.coding

    def _data(
        self,
        data: Any,
        coding: Coding | None,
        role: str = "the training data",
        *,
        is_training: bool = False,
    ) -> tuple[Dataset | Stream, Sequence[Array] | None]:
        """A data set, coded as those that the members take, or a stream.

        Returns:
            It, and the positions of the examples of each member, if they have examples of their
            own.
        """
        given = as_data(data, coding, is_training=is_training)
        if (whole := whole_of(given)) is not None:
            network = self._groups[0].parameters.network
            joined, positions = joined_members(whole.dense(), network, len(self))
            return joined, None if positions is None else list(positions)
        require_epochs(given, len(self._groups), role, shapes=True)
        return given, None

    def _together(self, each: Sequence[Array]) -> Array:
        """Arrays of the groups, with a first axis of members, as one of all members."""
        if len(each) == 1:
            return each[0]
        shapes = {array.shape[1:] for array in each}
        if len(shapes) > 1:
            raise ShapeError(
                "the outputs of the members have several shapes",
                facts=(("found", ", ".join(shape_text(shape) for shape in sorted(shapes))),),
                where="Population",
                advice="population[i] is a model of its own, population.groups those of one shape.",
            )
        joined = np.empty((len(self), *each[0].shape[1:]), np.result_type(*each))
        for group, array in zip(self._groups, each, strict=True):
            joined[group.numbers] = array
        return joined

    @checked
    def predict(self, inputs: Any, *, mean: bool = False) -> Any:
        """The outputs of all members for any number of examples.

        Args:
            inputs: as in `Model.predict`; or arrays with a first axis of members, for inputs of
                each member's own.
            mean: whether to return the mean over the members, the prediction of the ensemble.

        Returns:
            An array (members, examples, ...), or (examples, ...) for the mean; a tuple of them for
            several outputs.
        """
        given = as_inputs(inputs, self.coding)
        if isinstance(given, Stream):
            require_epochs(given, len(self._groups), "the stream", shapes=True)
            each = [group.inference.of_stream(given) for group in self._groups]
        elif (own := self._groups[0].inference.own_inputs(given, len(self))) is None:
            each = [group.inference(given) for group in self._groups]
        else:
            each = [
                group.inference.of_members([array[group.numbers] for array in own])
                for group in self._groups
            ]
        outputs = tuple(self._together(arrays) for arrays in zip(*each, strict=True))
        if mean:
            outputs = tuple(output.mean(axis=0, dtype=output.dtype) for output in outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    @checked
    def evaluate(
        self,
        data: AnyData,
        loss: Losses,
        metrics: Metrics = (),
        batch_size: BatchSize = BATCH_SIZE,
        *,
        subsets: Subsets = None,
    ) -> dict[str, Array]:
        """Loss and metrics of each member on a data set or a stream, in inference mode.

        Args:
            data, loss, metrics, batch_size: the arguments of `Model.evaluate`; arrays with a first
                axis of members are examples of each member's own.
            subsets: the positions of the examples of each member; by default all.

        Returns:
            `{"loss": ..., "accuracy": ...}`: arrays with a first axis of members.
        """
        examples, each = self._data(data, self.coding, "the data")
        own, measured = self._subsets("subsets", subsets, examples, each), as_metrics(metrics)
        rows: dict[int, dict[str, Any]] = {}
        for group in self._groups:
            given = group.parameters, examples, as_loss(loss), measured
            how: dict[str, Any] = {"subsets": group.rows(own), "batch_size": batch_size}
            with evaluating_members(*given, **how) as measure:
                recorded = measure(range(len(group.numbers)))
            for place, number in enumerate(group.members):
                rows[number] = summary(recorded[place], measured)
        return {name: np.array([rows[n][name] for n in range(len(self))]) for name in rows[0]}

    @checked
    def training(
        self,
        loss: Losses,
        optimizer: Optimizer | Sequence[Optimizer],
        batch_size: BatchSize,
        *,
        metrics: Metrics = (),
        clip: Clip | Sequence[Clip] | None = None,
        frozen: Sequence[str] = (),
        seeds: Seeds = None,
        data: Data | None = None,
    ) -> PopulationTraining:
        """Creates a training of the members, which changes their parameters.

        Args:
            loss, batch_size, metrics, frozen, data: the arguments of `Model.training`.
            optimizer, clip: one for all members, or a list with one for each. They may differ in
                numbers: rates, schedules, decays, momentum, limits.
            seeds: the seeds of random layers and of the order of examples, one for all or one for
                each; by default the members' own.

        Raises:
            DefinitionError: if the optimizers of two members need different programs, because one
                has momentum, for example, and the other has none; or if the members have networks
                of several shapes.
        """
        parameters = self._parameters
        options = self._options(loss, optimizer, metrics, clip, frozen)
        dataset = None
        if data is not None:
            coding = self.coding
            joined, _ = self._data(as_dataset(data), coding, is_training=True)
            dataset = cast(Dataset, joined)
        own = self._seeds(seeds)
        return PopulationTraining(parameters, options, dataset, batch_size, seeds=own)

    @checked
    def fit(
        self,
        train: AnyData,
        *,
        loss: Losses,
        optimizer: Optimizer | Sequence[Optimizer],
        validation: AnyData | None = None,
        subsets: Subsets = None,
        validation_subsets: Subsets = None,
        epochs: Count = 1,
        batch_size: BatchSize = 32,
        metrics: Metrics = (),
        clip: Clip | Sequence[Clip] | None = None,
        frozen: Sequence[str] = (),
        class_weights: GivenClassWeights = None,
        seeds: Seeds = None,
        drop_last: bool = False,
        progress: bool | None = None,
        shuffle: bool = True,
        record: Annotated[Sequence[str], Row(Word(("rate", "gradient_norm")))] = (),
        callbacks: Sequence[AnyCallback] = (),
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Histories:
        """Trains all members for some epochs.

        Args:
            train, loss, validation, epochs, batch_size, metrics, frozen, class_weights, drop_last,
                progress, shuffle, record: the arguments of `Model.fit`, for all members. A stream
                gives all of them the same batches, in the order of the first one's seed. Arrays
                with a first axis of members are examples of each member's own.
            optimizer, clip, seeds: the arguments of `training`.
            subsets: the positions of the examples on which each member is trained: folds, or
                samples with repetition; by default all.
            validation_subsets: the positions of the validation examples of each member.
            callbacks: as in `Model.fit`. Each member has copies of its own, which see it as a model
                and stop it alone.
            checkpoint, resume: as in `Model.fit`. Members that have stopped stay so.

        Returns:
            The history of each member. A member whose values become infinite or NaN is restored to
            its state before that epoch and stops, with a warning; the others go on.

        Raises:
            DefinitionError, DataError, ShapeError, DTypeError: before the first training step, if
                data or options do not fit.

        Example:
            >>> digits = lm.data.digits()
            >>> network = lm.Sequential(lm.Input(1, 8, 8), lm.Flatten(), lm.Linear(10))
            >>> population = lm.Population(network, members=3)
            >>> histories = population.fit(digits, loss=lm.CrossEntropy(), epochs=2,
            ...                            optimizer=[lm.SGD(rate) for rate in (0.01, 0.1, 1.0)])
            >>> histories["loss"].shape
            (3, 2)
        """
        data, each = self._data(train, self.coding, is_training=True)
        coding, targets, validated, each_validated = self.coding, None, None, None
        if isinstance(data, Dataset):
            coding, targets = data.coding or coding, data.target_arrays
        if validation is not None:
            validated, each_validated = self._data(validation, coding, "the validation data")
        weights = numbers_of(class_weights, targets)
        further = {"class_weights": weights, "gradient_norm": "gradient_norm" in record}
        options = self._options(loss, optimizer, metrics, clip, frozen, **further)
        own = self._seeds(seeds)
        trained = self._subsets("subsets", subsets, data, each)
        given = "validation_subsets", validation_subsets, validated, each_validated
        validating = self._subsets(*given)
        if checkpoint is not None:
            # A file holds members of one shape.
            _ = self._parameters
        fits = [
            PopulationFit(
                models=self.__getitem__,
                numbers=group.numbers,
                parameters=group.parameters,
                options=[options[number % len(options)] for number in group.members],
                train=data,
                coding=coding,
                subsets=group.rows(trained),
                validation=validated,
                validation_subsets=group.rows(validating),
                epochs=epochs,
                batch_size=batch_size,
                seeds=own[group.numbers],
                stream_seed=int(own[0]),
                drop_last=drop_last,
                shuffle=shuffle,
                record_rate="rate" in record,
                progress=progress,
                callbacks=callbacks,
                checkpoint=checkpoint,
                resume=resume,
            )
            for group in self._groups
        ]
        try:
            return fitted_together(fits)
        finally:
            # The members of all shapes take the same tables.
            for group in self._groups:
                group.parameters.coding = self.coding

    @classmethod
    @checked
    def search(
        cls,
        make: OfTrial,
        space: Trials,
        train: Data,
        *,
        loss: Losses,
        trials: OptionalCount = None,
        validation: Data | None = None,
        folds: Annotated[int, Whole(2)] = 5,
        epochs: Count = 1,
        batch_size: BatchSize = 32,
        metrics: Metrics = (),
        monitor: str = "loss",
        best: Best = None,
        clip: Clip | None = None,
        class_weights: GivenClassWeights = None,
        callbacks: Sequence[AnyCallback] = (),
        engine: str = DEFAULT_ENGINE,
        dtype: FloatType = "float32",
        precision: Products = "float32",
        seed: int = 0,
        progress: bool | None = None,
    ) -> Search:
        """Trains the networks of several hyper-parameters together, and compares them.

        Args:
            make: a function that returns network and optimizer of a trial, whose parameters it gets
                by name.
            space: by name the choices, `{"rate": [0.01, 0.1]}`, or a distribution: one of
                scipy.stats, or a function of a NumPy generator. Or a list of the trials themselves,
                `[{"rate": 0.01}, ...]`.
            train, loss, epochs, batch_size, metrics, clip, class_weights, callbacks, progress: the
                arguments of `fit`.
            trials: the number of random trials; by default the whole grid of choices.
            validation: the data on which trials are compared. By default there are `folds`: each
                trial is trained as many times, without another part of the data, which measures it.
            monitor: `"loss"` or the name of a metric with one number.
            best: whether `"min"` or `"max"` of it is best; by default what the metric says.
            engine, dtype, precision: the arguments of `Model`.
            seed: the seed of random trials, of the folds, and of the networks of the first fold;
                the networks of each further fold have the next seed.

        Example:
            >>> digits = lm.data.digits()
            >>> def make(rate):
            ...     net = lm.Sequential(lm.Input(1, 8, 8), lm.Flatten(), lm.Linear(10))
            ...     return net, lm.Adam(rate)
            >>> found = lm.Population.search(make, {"rate": [1e-6, 1e-2]}, digits, folds=3,
            ...                              loss=lm.CrossEntropy())
            >>> found.best
            {'rate': 0.01}
        """
        check_callbacks(callbacks)
        data = as_dataset(train)
        by_output = cast(Iterable[str], loss) if isinstance(loss, Mapping) else ()
        directions = directions_of(by_output, as_metrics(metrics))
        if best is not None and monitor in directions:
            directions[monitor] = best == SMALLEST
        common: dict[str, Any] = {"loss": loss, "metrics": metrics}
        how: dict[str, Any] = {"clip": clip, "class_weights": class_weights, "callbacks": callbacks}
        how |= {"epochs": epochs, "batch_size": batch_size, "progress": progress}
        comparison = Comparison(
            partial(cls, engine=engine, dtype=dtype, precision=precision),
            make,
            data,
            None if validation is None else as_dataset(validation),
            folds,
            seed,
            monitor,
            directions,
            fitted=common | how,
            measured=common,
            is_watched=len(callbacks) > 0,
        )
        return comparison.run(trials_of(space, trials, seed))

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters, `{"1.weight": array, ...}`, with a first axis of members."""
        return self._parameters.read(list(self._parameters.variables))

    def states(self) -> dict[str, Array]:
        """Copies of the states of layers, such as running averages, by name."""
        return self._parameters.read(list(self._parameters.states))

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Replaces parameters or states of all members.

        Args:
            values: arrays by name, with a first axis of members.

        Raises:
            DefinitionError, ShapeError, DTypeError: before anything is changed.
        """
        self._parameters.write(values)

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes network, parameters and states to a safetensors file, atomically.

        Raises:
            DataError: if the file cannot be written.
        """
        values = self._parameters.read(list(self._parameters.memories))
        precision, seed = self._parameters.precision, self._parameters.seed
        file = partial(ModelFile, self.network, precision, seed, values, seeds=self.seeds)
        write_model(path, file(networks=self._parameters.networks, coding=self.coding))

    @classmethod
    @checked
    def load(
        cls,
        path: str | os.PathLike[str],
        engine: str = DEFAULT_ENGINE,
        *,
        lanes: bool = True,
        layers: Annotated[Sequence[type], Row(Instance(type), example="[MyLayer]")] = (),
    ) -> Population:
        """A population from a file; runs no code from it.

        Args:
            path: a file written by `Population.save`.
            engine, lanes: the arguments of `Population`.
            layers: the classes of your own layers, as in `lm.load`.

        Raises:
            FileFormatError: if the file is missing, truncated, damaged, or of one model.
        """
        saved = read_model(path, layers)
        with errors_at(os.fspath(path)):
            saved.require_members(several=True)
        given = saved.network, open_engine(engine), saved.precision, saved.seed, saved.values
        made = partial(Parameters, *given, seeds=saved.seeds, networks=saved.networks)
        parameters = made(may_use_lanes=lanes)
        parameters.coding = saved.coding
        return cls.of_parameters(parameters)

    def _options(
        self,
        loss: Losses,
        optimizer: Any,
        metrics: Metrics,
        clip: Any,
        frozen: Sequence[str],
        **further: Any,
    ) -> list[TrainingOptions]:
        """The options of each member, or one for all."""
        each: dict[str, Any] = {"optimizer": optimizer, "clip": clip}
        lists: dict[str, Sequence[Any]] = {
            name: one for name, one in each.items() if isinstance(one, list | tuple)
        }
        for name, values in lists.items():
            require_count(name, values, len(self))
        measured = as_metrics(metrics)
        made: list[TrainingOptions] = []
        for number in range(len(self) if lists else 1):
            own: dict[str, Any] = each | {name: values[number] for name, values in lists.items()}
            own |= {"metrics": measured, "frozen": frozen, **further}
            made.append(TrainingOptions(as_loss(loss), **own))
        return made

    def _seeds(self, seeds: Any) -> Array:
        return self.seeds if seeds is None else each_seed(seeds, len(self))

    def _subsets(
        self, name: str, subsets: Any, data: Dataset | Stream | None, each: Sequence[Array] | None
    ) -> Sequence[Array] | None:
        """The positions of the examples of each member, within the data set.

        Args:
            each: those of examples of their own, if they have some.
        """
        if subsets is None:
            return each
        if each is not None:
            raise DefinitionError(
                f"members with examples of their own have no {name}",
                facts=(("expected", "one of them"), ("found", "both")),
                where="Population",
                advice="Join the examples along one axis, and give positions in it.",
            )
        if data is None:
            raise DefinitionError(
                f"there is no validation data for {name}",
                facts=(("expected", "validation=(x, y)"), ("found", "None")),
                where="fit",
            )
        if isinstance(data, Stream):
            raise DefinitionError(
                f"the examples of a stream have no positions for {name}",
                facts=(("expected", "a data set, or (x, y)"), ("found", repr(data))),
                where="Population",
                advice=f"Give arrays, or leave {name} out.",
            )
        advice = "Give a list with the positions of the examples of each member."
        require_count(name, subsets, len(self), advice)
        for number, positions in enumerate(subsets):
            with errors_at(f"{name}[{number}]"):
                data.require_within(positions)
        return [np.asarray(positions, np.int64) for positions in subsets]


@final
@frozen_dataclass
class _Group:
    """The members of one shape.

    Attributes:
        numbers: the numbers of these members in the population.
    """

    numbers: Array
    parameters: Parameters
    inference: Inference

    @property
    def members(self) -> list[int]:
        """The numbers."""
        return self.numbers.tolist()

    def rows(self, values: Sequence[Any] | None) -> list[Any] | None:
        """Those of the values of all members that belong to these."""
        return None if values is None else [values[number] for number in self.members]


def _networks_of(network: Any, members: int | None) -> list[Network]:
    """The network of each member."""
    if isinstance(network, Network):
        if members is None:
            raise DefinitionError(
                "a population has a number of members",
                facts=(("expected", "members=4, or a list of networks"), ("found", "None")),
                where="Population",
            )
        return [network] * members
    listed = list(network)
    if members not in (None, len(listed)) or not listed:
        raise DefinitionError(
            "there is another number of networks than of members",
            facts=(("networks", str(len(listed))), ("members", str(members))),
            where="Population",
            advice="Give a network for each member, and leave members out.",
        )
    return listed
