"""Running the batches of a training or an evaluation, also divided into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import tee
from typing import Any, ClassVar, Self, cast, final

import numpy as np

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import Array, as_dtype
from lamina.data import Dataset
from lamina.data.arrays import as_tuple
from lamina.data.background import Plan, Reader
from lamina.data.conversion import convert, rounded_to, to_array
from lamina.engines.engine import Engine, Memory
from lamina.errors import (
    DataError,
    DefinitionError,
    DTypeError,
    EngineError,
    InternalError,
    Named,
    ReleasedError,
)
from lamina.learning.by_output import LossTerm
from lamina.learning.objective import TERMS, Objective, TargetCheck
from lamina.learning.protocols import Loss, Spec
from lamina.learning.weighting import check_weights
from lamina.program.program import Program
from lamina.runtime.compiled import CompiledProgram, RecentPrograms, compile_for_batch, run_turns
from lamina.runtime.feeds import Feed
from lamina.runtime.index_checks import check_indices, index_checks
from lamina.runtime.memories import release_all
from lamina.runtime.parameters import Parameters
from lamina.runtime.streaming import Examples, Streamed, uploaded
from lamina.step.derive import BatchGraph
from lamina.step.micro_batches import EXAMPLES
from lamina.step.names import Names, as_arrays, names_of_targets, names_of_weights, unnamed
from lamina.step.specs import batch_specs, check_batch, input_spec
from lamina.training.epochs import batches_of_rows


@frozen_dataclass
class Recorded:
    """Losses and sums of metrics of several batches, one row for each.

    Those of a population have a first axis of members.

    Attributes:
        statistics: arrays by the name of the output: the sums of each metric, shape (batches, ...);
            the values of terms of the loss and their divisors, shape (batches,); the rows of
            metrics that keep examples, shape (all examples, ...).
        kept: the names of the statistics with a row for each example.
    """

    losses: Array
    examples: Array
    statistics: Mapping[str, Array]
    terms: tuple[LossTerm, ...] = ()
    kept: frozenset[str] = frozenset()

    def of_member(self, position: int) -> Recorded:
        """The rows of one member of a population."""
        statistics = {name: values[position] for name, values in self.statistics.items()}
        return replace(self, losses=self.losses[position], statistics=statistics)

    def by_steps(self, steps: int) -> list[Recorded]:
        """The rows of each so many training steps, of one member."""
        ends = np.cumsum(self.examples)
        parts: list[Recorded] = []
        # Of thousands of short epochs these take long one by one.
        is_plain = not self.statistics and not self.terms[0].summed
        losses = _means(self.losses, self.examples, steps) if is_plain else []
        for start in range(0, len(self.examples) - steps + 1, steps):
            rows = slice(start, start + steps)
            first = int(ends[start - 1]) if start else 0
            kept = slice(first, int(ends[start + steps - 1]))
            statistics = {
                name: values[kept if name in self.kept else rows]
                for name, values in self.statistics.items()
            }
            given = self.losses[rows], self.examples[rows], statistics, self.terms, self.kept
            parts.append(Recorded(*given))
        for part, loss in zip(parts, losses, strict=False):
            vars(part)["loss"] = loss
        return parts

    @cached_property
    def loss(self) -> float:
        """The loss over all examples: the mean of the batches, by what each was divided by."""
        if not any(name.startswith(TERMS) for name in self.statistics):
            return self._over_batches(self.losses, self.terms[0])
        penalties = self.statistics.get("penalty")
        total = 0.0 if penalties is None else _mean(penalties, self.examples)
        if not self.terms[0].name:
            losses = self.losses if penalties is None else self.losses - penalties
            return total + self._over_batches(losses, self.terms[0])
        return total + sum(
            term.factor * self.losses_by_output[f"{term.name}_loss"] for term in self.terms
        )

    @property
    def losses_by_output(self) -> dict[str, float]:
        """The loss of each output, `"boxes_loss"`, if there are losses by output."""
        return {
            f"{term.name}_loss": self._over_batches(self.statistics[f"loss.{term.name}"], term)
            for term in self.terms
            if term.name
        }

    def _over_batches(self, values: Array, term: LossTerm) -> float:
        """A term of the loss over all batches: the mean over all elements, or the sum."""
        if term.summed:
            return float(values.sum(dtype=np.float64))
        return _mean(values, self.statistics.get(f"divisor.{term.name}", self.examples))


def _mean(values: Array, divisors: Array) -> float:
    """The mean of means, each weighted by its divisor; batches without elements do not count."""
    return _means(values, divisors, len(values))[0] if len(values) else math.nan


def _means(values: Array, divisors: Array, steps: int) -> list[float]:
    """The mean of each so many values."""
    rows = len(values) // max(steps, 1)
    values, divisors = (each[: rows * steps].reshape(rows, steps) for each in (values, divisors))
    weights = divisors.astype(np.float64)
    with np.errstate(invalid="ignore"):
        means = np.where(weights > 0, values * weights, 0.0).sum(axis=1) / weights.sum(axis=1)
    return means.tolist()


def joined(pieces: Sequence[Recorded]) -> Recorded:
    """The rows of several records, one after the other."""
    if not pieces:
        return Recorded(np.zeros(0), np.zeros(0), {})
    first = pieces[0]
    axis = first.losses.ndim - 1
    return Recorded(
        np.concatenate([piece.losses for piece in pieces], axis),
        np.concatenate([piece.examples for piece in pieces]),
        {
            name: np.concatenate([piece.statistics[name] for piece in pieces], axis)
            for name in first.statistics
        },
        first.terms,
        first.kept,
    )


class BatchRunner(Named):
    """Base of `Training` and `Evaluation`: checks batches and runs compiled programs on them.

    Args:
        dataset: data with the dtypes of inputs and the shapes and dtypes of targets; without it,
            network and loss decide them. If its examples have weights, all batches have them.
    """

    # Of its programs, for people.
    _program_name: ClassVar[str]
    # Of a population: whether each member has batches of its own, and the members that run now.
    _own_inputs = False
    # What to do about many batch sizes, each of which compiles a program; "" if nobody chose them.
    _advice_on_sizes = ""
    _running: Array | None = None

    def __init__(
        self, parameters: Parameters, loss: Loss, dataset: Dataset | None, batch_size: int
    ) -> None:
        self.batch_size = batch_size
        self._parameters = parameters
        self._lock = parameters.lock
        self._loss = loss
        network, dtype = parameters.network, parameters.dtype
        self._batch = batch_specs(network, dtype, parameters.rounding, loss, dataset)
        self._input_names = Names("input", network.input_names)
        self._wanted_inputs = [input_spec(tensor, dtype) for tensor in network.inputs]
        self._shared: dict[str, Memory] = dict(parameters.memories)
        self._programs: RecentPrograms[int] = RecentPrograms(self._advice_on_sizes)
        self._released = False
        self._graph: BatchGraph

    def __getstate__(self) -> dict[str, Any]:
        raise DefinitionError(
            "a training cannot be copied or pickled",
            where="Training",
            advice="Copy the model and make a new training of the copy. state() returns the "
            "optimizer's state, and restore(state) sets it.",
        )

    @property
    def engine(self) -> Engine:
        """The engine on which it runs."""
        return self._parameters.engine

    def _program(self, batch: int) -> CompiledProgram:
        return self._programs.get(batch, self._compile)

    def _compile(
        self,
        batch: int,
        timed: bool = False,
        program: Program | None = None,
        own_inputs: bool | None = None,
    ) -> CompiledProgram:
        placement, shared, name = self._parameters.placement, self._shared, self._program_name
        return compile_for_batch(
            *(self._graph, batch, placement, shared, name),
            timed=timed,
            program=program,
            own_inputs=self._own_inputs if own_inputs is None else own_inputs,
        )

    def _specs(self) -> list[Spec]:
        shapes = [shape for shape, _ in self._wanted_inputs]
        return [
            *zip(shapes, self._batch.input_dtypes, strict=True),
            *self._batch.targets,
            *self._batch.weights,
        ]

    @cached_property
    def _target_names(self) -> Names:
        objective, network = self._objective(), self._parameters.network
        counts = [len(numbers) for numbers in objective.targets]
        return names_of_targets(network, list(zip(objective.terms, counts, strict=True)))

    @cached_property
    def _labels(self) -> list[str]:
        """The names of inputs, targets and weights in errors."""
        weights = unnamed("weight", len(self._batch.weights))
        if len(self._batch.weights) == len(self.terms):
            weights = names_of_weights(self._parameters.network, self._loss)
        return [*self._input_names.labels, *self._target_names.labels, *weights.labels]

    def _converted(self, x: Any, y: Any, weights: Any = None) -> list[Array]:
        """Inputs, targets and weights, checked, in the dtypes the program was compiled for."""
        values = (
            *as_arrays(x, self._input_names),
            *as_arrays(y, self._target_names),
            *self._weight_arrays(weights),
        )
        arrays: list[Array] = []
        specs, names = self._specs(), self._labels
        dtypes = [
            dtype for _, dtype in (*self._wanted_inputs, *self._batch.targets, *self._batch.weights)
        ]
        for value, (_, compiled), dtype, name in zip(values, specs, dtypes, names, strict=True):
            array = convert(value, dtype, name)
            if as_dtype(array.dtype) != compiled:
                if as_dtype(array.dtype).rank > compiled.rank:
                    raise DTypeError(
                        f"{name} has another dtype than the program was compiled for",
                        facts=(("expected", compiled.name), ("found", array.dtype.name)),
                        advice=f"Convert it: array.astype('{compiled.name}').",
                    )
                array = array.astype(compiled.numpy)
            arrays.append(array)
        check_batch(arrays, specs, names)
        check_indices(self._parameters.index_checks, arrays)
        for positions, check in self._target_checks:
            targets = tuple([arrays[len(self._wanted_inputs) + position] for position in positions])
            check(targets[0] if len(targets) == 1 else targets)
        for position in range(len(arrays) - len(self._batch.weights), len(arrays)):
            check_weights(arrays[position], names[position])
        return arrays

    def _weight_arrays(self, weights: Any) -> list[Array]:
        """The weights of examples, in the dtype of the loss: they lose no more than a rounding."""
        count = len(self._batch.weights)
        if count and isinstance(weights, Mapping):
            weights = as_arrays(weights, names_of_weights(self._parameters.network, self._loss))
        several = isinstance(weights, tuple)
        values = cast(tuple[Any, ...], weights) if several else (weights,) * (weights is not None)
        if len(values) != count:
            raise DataError(
                "the examples need weights" if count else "the examples have weights here only",
                facts=(("expected", f"{count} arrays of weights"), ("found", str(len(values)))),
                where="weights",
                advice="A training is made for weights by data=lm.data.Dataset(x, y, weights=...); "
                "all of its batches have them then.",
            )
        arrays: list[Array] = []
        for n, (weight, (_, dtype)) in enumerate(zip(values, self._batch.weights, strict=True)):
            array = to_array(weight, "the weights cannot be converted to an array")
            if array.dtype.kind == "f":
                array = rounded_to(array, dtype, self._labels[n - count])
            arrays.append(array.astype(dtype.numpy) if array.dtype.kind in "iub" else array)
        return arrays

    @cached_property
    def _target_checks(self) -> Sequence[TargetCheck]:
        """The checks of target values, with the numbers of the targets that each takes."""
        objective = self._graph.objective
        if objective is None:
            return ()
        labels = self._labels[len(self._wanted_inputs) :]
        limited = index_checks(objective.index_limits, labels, "target")
        numbers = tuple(range(len(self._batch.targets)))

        def check(given: Any) -> None:
            check_indices(limited, as_tuple(given))

        return (*objective.checks, *[(numbers, check)] * bool(limited))

    @contextmanager
    def uploaded(self, dataset: Dataset) -> Generator[Examples]:
        """Checks a data set, and makes it readable for the engine as long as the block runs."""
        self._require_alive()
        # The examples of one training step, of all members of a population.
        members = self._parameters.members if self._own_inputs else None
        batch = min(self.batch_size * (members or 1), len(dataset))
        with uploaded(self._parameters.engine, self._named_arrays(dataset), batch) as examples:
            yield examples

    @contextmanager
    def fed(
        self,
        reader: Reader,
        sample: Dataset,
        *,
        drop_last: bool = False,
        epochs: int | None = 1,
        steps: int | None = None,
    ) -> Generator[Feed]:
        """The batches of a stream, where engines can read them; at the end the reader is closed."""
        self._require_alive()
        plan = Plan(self._arrays_of, self.batch_size, drop_last, epochs, steps)
        engine, sample_arrays = self._parameters.engine, self._named_arrays(sample)
        with closing(Feed(reader, plan, engine, sample_arrays)) as feed:
            yield feed

    def _arrays_of(self, dataset: Dataset) -> list[Array]:
        return self._converted(dataset.inputs, dataset.targets, dataset.weights)

    def _named_arrays(self, dataset: Dataset) -> dict[str, Array]:
        names = [tensor.attributes["name"] for tensor in self._graph.graph.inputs]
        return dict(zip(names, self._arrays_of(dataset), strict=True))

    def in_order(
        self, resident: Examples, batches: Iterable[Array]
    ) -> Iterator[tuple[Examples, Array]]:
        """The batches with their examples; they are run in this order, and a stream is told."""
        if isinstance(resident, Streamed):
            batches, told = tee(batches)
            resident.begin(self._as_run(told))
        for rows in batches:
            yield resident, rows

    def _as_run(self, batches: Iterable[Array]) -> Iterable[Array]:
        """The batches that programs run for some batches."""
        return map(self._rows_of_all, batches)

    def _rows_of_all(self, rows: Array) -> Array:
        """The batches of all members of a population, from those of the running ones."""
        members, count = self._running, self._parameters.members
        if members is None or count is None or not self._own_inputs:
            return rows
        shape = (count, *rows.shape[-2:])
        if len(members) == count:
            return np.broadcast_to(rows, shape)
        every = np.zeros(shape, np.int64)
        every[members] = rows
        return every

    def _run_batches(self, resident: Examples, *turns: Array) -> Recorded:
        """Runs programs on batches of several sizes, int64 (batches, batch size) each, in order."""
        with self._lock.mutex:
            self._require_alive()
            programs = [self._program(rows.shape[-1]) for rows in turns]
            names = [name for name, _ in programs[0].program.outputs]
            results = self._run_turns(list(zip(programs, turns, strict=True)), resident, names)
        counts = [rows.shape[-2] for rows in turns]
        examples = np.repeat(np.array([rows.shape[-1] for rows in turns], np.int64), counts)
        objective, axis = self._objective(), results[0]["loss"].ndim - 1
        for name in objective.kept:
            # All rows of a turn.
            for outputs in results:
                shape = outputs[name].shape
                outputs[name] = outputs[name].reshape(*shape[:axis], -1, *shape[axis + 2 :])
        outputs = results[0]
        if len(turns) > 1:
            outputs = {n: np.concatenate([each[n] for each in results], axis) for n in names}
        losses = outputs.pop("loss")
        return Recorded(losses, examples, outputs, objective.terms, objective.kept)

    def _run_turns(
        self,
        turns: Sequence[tuple[CompiledProgram, Array]],
        resident: Examples,
        names: Sequence[str],
    ) -> list[dict[str, Array]]:
        """Runs programs on batches: their outputs, with an axis of members before that of batches.

        With rows of their own, the running members have those of their positions.
        """
        members = self._running
        if members is None or self._parameters.members is None:
            return run_turns(turns, resident, names)
        for compiled, _ in turns:
            compiled.executable.activate(members)
        given = [(compiled, self._rows_of_all(rows)) for compiled, rows in turns]
        each = run_turns(given, resident, names)
        return [{name: values[members] for name, values in outputs.items()} for outputs in each]

    @property
    def statistics(self) -> frozenset[str]:
        """The names of what is recorded of each batch, besides its loss."""
        return frozenset(name for name, _ in self._graph.graph.outputs) - {"loss"}

    @property
    def terms(self) -> tuple[LossTerm, ...]:
        """The losses that are added up."""
        return self._objective().terms

    def _objective(self) -> Objective:
        objective = self._graph.objective
        if objective is None:
            raise InternalError("only graphs with a loss are run over a data set")
        return objective

    def release(self) -> None:
        """Releases all memory that the model does not own; using this object is an error then."""
        with self._lock.mutex:
            # Marked first. If a signal interrupts the rest, the garbage collector frees it.
            self._released = True
            self._lock.settle()
            self._programs.release()
            shared, self._shared = self._shared, {}
            models = self._parameters.memories
            release_all({name: memory for name, memory in shared.items() if name not in models})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._released:
            self.release()

    def _require_alive(self) -> None:
        if self._released:
            raise ReleasedError(
                "this training was released: its memory is gone",
                where="Training",
                advice="Make a new one with model.training(...); the model still works.",
            )


@final
class Accumulation:
    """Divides batches into micro-batches, and updates the parameters after each batch."""

    def __init__(self, size: int, update: CompiledProgram, sums: Mapping[str, Memory]) -> None:
        self.size = size
        self.update = update
        self._examples = sums[EXAMPLES]

    def in_order(self, batches: Iterable[Array]) -> Iterator[Array]:
        """The micro-batches of batches, as arrays (micro-batches, examples) of rows."""
        for rows in batches:
            for batch in rows:
                yield from batches_of_rows(batch, self.size)

    def run(self, rows: Array, run_micro: Callable[[Array], Recorded]) -> Recorded:
        """Trains on batches, int64 (batches, batch size), one after the other."""
        recorded: list[Recorded] = []
        for batch in rows:
            with self.whole():
                pieces = [run_micro(group) for group in batches_of_rows(batch, self.size)]
                self.update.run([])
                executable = self.update.executable
                scalars = {name: executable.scalar(name) for name, _ in self.update.program.outputs}
            micro, loss = joined(pieces), scalars.pop("loss")
            statistics = {
                name: values
                if name in micro.kept
                else values.sum(axis=0, keepdims=True, dtype=values.dtype)
                for name, values in micro.statistics.items()
            }
            # Losses by output are means or sums over the micro-batches.
            for name, value in micro.losses_by_output.items():
                key = f"loss.{name.removesuffix('_loss')}"
                statistics[key] = np.full(1, value, statistics[key].dtype)
            statistics |= {name: np.full(1, value) for name, value in scalars.items()}
            losses, examples = np.full(1, loss, micro.losses.dtype), np.full(1, len(batch))
            recorded.append(Recorded(losses, examples, statistics, micro.terms, micro.kept))
        return joined(recorded)

    @contextmanager
    def whole(self) -> Generator[None]:
        """Forgets the sums if the block does not end: the next batch begins new ones."""
        try:
            yield
        except BaseException:
            with suppress(EngineError):
                self._examples.write(np.zeros((), np.int64))
            raise
