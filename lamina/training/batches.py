"""Running the batches of a training or an evaluation on the parameters of a model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import tee
from typing import Any, ClassVar

import numpy as np

from lamina.data import Dataset
from lamina.data.reader import Plan, Reader
from lamina.derive import BatchGraph, default_targets
from lamina.elsewhere import Named
from lamina.engines.engine import Memory
from lamina.errors import DataError, DefinitionError, DTypeError, ReleasedError
from lamina.program.program import Program
from lamina.protocols import Loss, Spec
from lamina.records import frozen_dataclass
from lamina.runtime.arrays import as_arrays, check_batch, convert, input_spec, target_specs
from lamina.runtime.compiled import CompiledProgram, RecentPrograms, compile_for_batch
from lamina.runtime.data_sets import Examples as Examples
from lamina.runtime.data_sets import uploaded
from lamina.runtime.feeds import Feed
from lamina.runtime.index_checks import check_indices
from lamina.runtime.parameters import Parameters, release_all
from lamina.runtime.streaming import Streamed
from lamina.shapes import Array, DType, as_dtype, float32


@frozen_dataclass
class Recorded:
    """Losses and sums of metrics of several batches, one row for each.

    Attributes:
        losses: of each batch, shape (batches,).
        examples: the number of examples in each batch, shape (batches,).
        statistics: the sums of each metric, by the name of its output, shape (batches, ...).
        summed: whether losses are sums over the examples of a batch; otherwise means.
    """

    losses: Array
    examples: Array
    statistics: Mapping[str, Array]
    summed: bool = False

    @property
    def loss(self) -> float:
        """The loss over all examples: their mean, or their sum if `summed`."""
        if self.summed:
            return float(self.losses.sum())
        return float((self.losses * self.examples).sum() / self.examples.sum())


def joined(pieces: Sequence[Recorded]) -> Recorded:
    """The rows of several records, one after the other."""

    def together(arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays) if arrays else np.zeros(0)

    names = list(pieces[0].statistics) if pieces else []
    return Recorded(
        together([piece.losses for piece in pieces]),
        together([piece.examples for piece in pieces]),
        {name: together([piece.statistics[name] for piece in pieces]) for name in names},
        summed=any(piece.summed for piece in pieces),
    )


class BatchRunner(Named):
    """Base of `Training` and `Evaluation`: checks batches and runs compiled programs on them.

    Args:
        parameters: of the model.
        loss: decides which targets there are, and checks their values.
        dataset: has the dtypes of the inputs and the shapes and dtypes of the targets; without one
            network and loss decide them.
        batch_size: the largest number of examples in a batch.
    """

    # Of its programs, for people.
    _program_name: ClassVar[str]

    def __init__(
        self,
        parameters: Parameters,
        loss: Loss,
        dataset: Dataset | None,
        batch_size: int,
    ) -> None:
        self.batch_size = batch_size
        self._parameters = parameters
        self._lock = parameters.lock
        self._loss = loss
        network, dtype = parameters.network, parameters.dtype
        inputs = [input_spec(tensor, dtype) for tensor in network.inputs]
        arriving = tuple(dtype for _, dtype in inputs) if dataset is None else dataset.input_dtypes
        arriving = as_arrays(arriving, len(inputs), "input")
        self._input_dtypes: tuple[DType, ...] = tuple(_narrowed(dtype, one) for one in arriving)
        self._wanted_inputs = inputs
        specs = default_targets(network, loss, dtype) if dataset is None else target_specs(dataset)
        # Losses are computed in float32 if the model has floats of 16 bits.
        widest = float32 if dtype.is_half else dtype
        self._targets = tuple((shape, _narrowed(widest, found)) for shape, found in specs)
        self._shared: dict[str, Memory] = dict(parameters.memories)
        self._programs: RecentPrograms[int] = RecentPrograms()
        self._released = False
        self._graph: BatchGraph

    def __getstate__(self) -> dict[str, Any]:
        kind = type(self).__name__.lower()
        raise DefinitionError(
            f"{'an' if kind[0] == 'e' else 'a'} {kind} cannot be copied or pickled",
            where=type(self).__name__,
            advice="Copy the model and make a new training of the copy. state() returns the "
            "optimizer's state, and restore(state) sets it.",
        )

    def _program(self, batch: int) -> CompiledProgram:
        """The program for a batch size, compiled at the first call."""
        return self._programs.get(batch, self._compile)

    def _compile(
        self, batch: int, *, timed: bool = False, program: Program | None = None
    ) -> CompiledProgram:
        parameters = self._parameters
        return compile_for_batch(
            self._graph,
            batch,
            parameters.engine,
            self._shared,
            parameters.lock,
            parameters.arena,
            self._program_name,
            timed=timed,
            program=program,
        )

    def _specs(self) -> list[Spec]:
        shapes = [shape for shape, _ in self._wanted_inputs]
        return [*zip(shapes, self._input_dtypes, strict=True), *self._targets]

    def _names(self) -> list[str]:
        inputs, targets = len(self._wanted_inputs), len(self._targets)
        return [f"input {n}" for n in range(inputs)] + [f"target {n}" for n in range(targets)]

    def _converted(self, x: Any, y: Any) -> list[Array]:
        """Inputs and targets, checked, in the dtypes that the program was compiled for.

        Raises:
            LaminaError: naming the array and its fault.
        """
        given = (
            *as_arrays(x, len(self._wanted_inputs), "input"),
            *as_arrays(y, len(self._targets), "target"),
        )
        arrays: list[Array] = []
        specs, names = self._specs(), self._names()
        wanted = [dtype for _, dtype in (*self._wanted_inputs, *self._targets)]
        for value, (_, compiled), dtype, name in zip(given, specs, wanted, names, strict=True):
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
        check = self._target_check()
        if check is not None:
            check(arrays[-1])
        return arrays

    def _target_check(self) -> Callable[[Array], None] | None:
        """The loss's check of target values, which raises DataError; None if it has none.

        Only losses of one output and one target have a check.
        """
        check = getattr(self._loss, "check_target", None)
        outputs = self._graph.trace.outputs
        if check is None or len(self._targets) != 1 or len(outputs) != 1:
            return None
        return partial(check, prediction_shape=outputs[0].shape)

    @contextmanager
    def uploaded(self, dataset: Dataset) -> Generator[Examples]:
        """Checks a data set, and makes it readable for the engine as long as the block runs."""
        self._require_alive()
        named = dict(zip(self._input_names(), self._arrays_of(dataset), strict=True))
        batch = min(self.batch_size, len(dataset))
        with uploaded(self._parameters.engine, named, batch) as examples:
            yield examples

    @contextmanager
    def fed(
        self,
        reader: Reader,
        sample: Dataset,
        *,
        drop_last: bool = False,
        epochs: int | None = 1,
    ) -> Generator[Feed]:
        """The batches of a stream, where the engine can read them, as long as the block runs.

        Args:
            reader: of the stream; it is closed at the end of the block.
            sample: its first batch.
            drop_last: whether a smaller last batch of an epoch is omitted.
            epochs: to read; None to read without an end.
        """
        self._require_alive()
        plan = Plan(self._arrays_of, self.batch_size, drop_last, epochs)
        named = dict(zip(self._input_names(), self._arrays_of(sample), strict=True))
        feed = Feed(reader, plan, self._parameters.engine, named)
        try:
            yield feed
        finally:
            feed.close()

    def _arrays_of(self, dataset: Dataset) -> list[Array]:
        return self._converted(dataset.input_arrays, dataset.target_arrays)

    def _input_names(self) -> list[str]:
        return [tensor.attributes["name"] for tensor in self._graph.graph.inputs]

    def in_order(self, resident: Examples, batches: Iterable[Array]) -> Iterable[Array]:
        """The batches, which are run in this order; a stream is told."""
        if not isinstance(resident, Streamed):
            return batches
        batches, told = tee(batches)
        resident.begin(self._as_run(told))
        return batches

    def _as_run(self, batches: Iterable[Array]) -> Iterable[Array]:
        """The batches that programs run for some batches."""
        return batches

    def _run_batches(self, resident: Examples, rows: Array) -> Recorded:
        """Runs the program on batches of an uploaded data set, in order.

        Args:
            resident: the data set on the engine, or streamed to it.
            rows: int64 (batches, batch size): the numbers of the examples in each batch.
        """
        with self._lock.mutex:
            self._require_alive()
            compiled = self._program(rows.shape[1])
            names = [name for name, _ in compiled.program.outputs]
            found = compiled.run_many(resident, rows, names)
        examples = np.full(len(rows), rows.shape[1], np.int64)
        losses = found.pop("loss")
        summed = getattr(self._loss, "reduction", "mean") == "sum"
        return Recorded(losses, examples, found, summed=summed)

    def release(self) -> None:
        """Releases all memory that the model does not own; using this object is an error then."""
        with self._lock.mutex:
            # Marked first. If a signal interrupts the rest, the garbage collector frees it.
            self._released = True
            self._lock.settle()
            self._programs.release()
            shared, self._shared = self._shared, {}
            models = self._parameters.memories
            release_all({name: one for name, one in shared.items() if name not in models})

    def _require_alive(self) -> None:
        if self._released:
            kind = type(self).__name__.lower()
            raise ReleasedError(
                f"this {kind} was released: its memory is gone",
                where=type(self).__name__,
                advice="Make a new one with model.training(...); the model still works.",
            )


def _narrowed(model: DType, found: DType) -> DType:
    """The dtype of data in the program: at most the model's float type."""
    return model if found.is_float and found.rank >= model.rank else found


def batches_of_rows(rows: Array, size: int) -> list[Array]:
    """Rows split into batches, in order: arrays (batches, batch size), a smaller last one apart."""
    whole = len(rows) // size * size
    groups = [rows[:whole].reshape(-1, size), rows[whole:].reshape(1, -1)]
    return [group for group in groups if group.size]


def no_whole_batch(dataset: Dataset, batch_size: int, where: str = "") -> DataError:
    """The error for fewer examples than a batch holds, where smaller batches are dropped."""
    return DataError(
        "there are fewer examples than a batch holds, and the last one is dropped",
        facts=(("examples", str(len(dataset))), ("batch", str(batch_size))),
        where=where,
        advice="Leave drop_last out, or take a smaller batch_size.",
    )
