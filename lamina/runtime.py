"""Running networks: the only place where compiler and engine meet.

`Parameters` owns a model's values on an engine; `Inference` and `Evaluation` run forward passes
over them, `Training` changes them. Each holds compiled programs, one for each batch size in use,
and whatever memory those need; `release` gives it back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, final

import numpy as np

from lamina.bill import MemoryBill
from lamina.compiler.pipeline import compile_graph
from lamina.data import Dataset
from lamina.engines.engine import Engine, Executable, Memory
from lamina.errors import (
    DataError,
    DefinitionError,
    DTypeError,
    ReleasedError,
    ShapeError,
)
from lamina.graph import Tensor
from lamina.layers.scope import Variable
from lamina.network import Network
from lamina.program.program import Program
from lamina.shapes import BATCH, Array, DType, Shape, as_dtype, shape_text, static
from lamina.step import (
    Clip,
    Loss,
    Metric,
    Optimizer,
    Spec,
    StepGraph,
    default_targets,
    evaluation_step,
    inference_step,
    training_step,
)

# Predictions run in batches of at most this many examples.
LARGEST_INFERENCE_BATCH = 256


@final
class Parameters:
    """The values of a network's parameters and states, in an engine's memory.

    Args:
        network: whose variables these are.
        engine: where they live.
        dtype: float32 or float64.
        seed: of the first values.
    """

    def __init__(self, network: Network, engine: Engine, dtype: DType, seed: int) -> None:
        self.network = network
        self.engine = engine
        self.dtype = dtype
        self.seed = seed
        record = network.trace(dtype=dtype, training=True).record
        inference = network.trace(dtype=dtype, training=False).record
        self.variables: dict[str, Variable] = {**inference.parameters, **record.parameters}
        self.states: dict[str, Variable] = {**inference.states, **record.states}
        self.memories: dict[str, Memory] = {}
        for variable in (*self.variables.values(), *self.states.values()):
            shape = static(variable.tensor.shape)
            memory = engine.allocate(shape, dtype.numpy)
            first = variable.init(shape, seed, variable.stream)
            memory.write(np.ascontiguousarray(first, dtype.numpy))
            self.memories[variable.name] = memory

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Copies of values by name."""
        return {name: self.memories[name].read() for name in names}

    def write(self, values: Mapping[str, Any]) -> None:
        """Replaces values; all are checked before the first is written.

        Raises:
            DefinitionError: for a name that the network does not have.
            ShapeError, DTypeError: where an array does not fit its parameter.
        """
        known = {**self.variables, **self.states}
        ready: dict[str, Array] = {}
        for name, value in values.items():
            if name not in known:
                raise DefinitionError(
                    f"the network has no parameter {name!r}",
                    facts=(("expected", ", ".join(known) or "none"), ("found", repr(name))),
                    advice="print(network) numbers the layers.",
                )
            shape = static(known[name].tensor.shape)
            array = convert(value, self.dtype, f"parameter {name!r}")
            if array.shape != shape:
                raise ShapeError(
                    f"the parameter {name!r} has another shape",
                    facts=(("expected", shape_text(shape)), ("found", shape_text(array.shape))),
                    advice="Linear weights are (outputs, inputs).",
                )
            ready[name] = array.astype(self.dtype.numpy)
        for name, array in ready.items():
            self.memories[name].write(array)


def convert(value: Any, wanted: DType, name: str) -> Array:
    """An array of data for a place of dtype `wanted`, in a dtype that it may arrive in.

    Lists take the wanted dtype. Integers may arrive for floats (they are cast on the device), and
    float32 for float64; what would lose precision or meaning may not.

    Raises:
        DTypeError: saying how to convert.
    """
    if not isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)
        if value.dtype.kind in "fiub" and (wanted.is_float or value.dtype.kind != "f"):
            value = value.astype(wanted.numpy)
    array = np.asarray(value)
    arriving = as_dtype(array.dtype)
    narrowing = arriving.is_float and wanted.is_float and arriving.rank > wanted.rank
    if narrowing or (arriving.is_float and not wanted.is_float):
        advice = f"Convert it: array.astype('{wanted.name}')"
        advice += ", or make the model with dtype='float64'." if narrowing else "."
        raise DTypeError(
            f"{name} has the wrong dtype",
            facts=(("expected", wanted.name), ("found", arriving.name)),
            advice=advice,
        )
    return np.ascontiguousarray(array).reshape(array.shape)


@dataclass(frozen=True)
class Prepared:
    """A step compiled for one batch size, with memory for one batch.

    Attributes:
        program: what runs.
        executable: the same, on the engine.
        memories: of all buffers that are not the program's own.
        inputs: the names of the input buffers, in order.
    """

    program: Program
    executable: Executable
    memories: Mapping[str, Memory]
    inputs: tuple[str, ...]


def prepare(
    graph: StepGraph, batch: int, engine: Engine, shared: Mapping[str, Memory], name: str
) -> Prepared:
    """Compiles a step for a batch size and allocates what one batch needs."""
    program = compile_graph(graph.graph, batch=batch, name=name)
    memories: dict[str, Memory] = {}
    for buffer in program.buffers.values():
        if buffer.kind == "input":
            memories[buffer.name] = engine.allocate(buffer.shape, buffer.dtype.numpy)
        elif buffer.kind in ("parameter", "state"):
            memories[buffer.name] = shared[buffer.name]
    inputs = tuple(tensor.attributes["name"] for tensor in graph.graph.inputs)
    return Prepared(program, engine.compile(program), memories, inputs)


def as_arrays(value: Any, count: int, name: str) -> tuple[Any, ...]:
    """The arrays of several inputs or targets: a tuple or list of them where count > 1.

    Raises:
        DataError: if there is another number of them.
    """
    if count == 1 and not isinstance(value, tuple):
        return (value,)
    arrays: tuple[Any, ...] = () if value is None else tuple(value)
    if len(arrays) != count:
        raise DataError(
            f"the network has another number of {name}s",
            facts=(("expected", str(count)), ("found", str(len(arrays)))),
            advice=f"Give a tuple with one array for each {name}.",
        )
    return arrays


def check_batch(arrays: Sequence[Array], specs: Sequence[Spec], names: Sequence[str]) -> int:
    """The number of examples in arrays that go together.

    Raises:
        DataError: if there are none, or the arrays disagree.
        ShapeError: if examples have another shape than expected.
    """
    for array, (shape, dtype), name in zip(arrays, specs, names, strict=True):
        if array.ndim != len(shape) or array.shape[1:] != static(shape[1:]):
            raise ShapeError(
                f"{name} has another shape than the network expects",
                facts=(
                    ("expected", shape_text(shape, dtype)),
                    ("found", shape_text(array.shape, as_dtype(array.dtype))),
                ),
                where=name,
                advice=_shape_advice(array.shape, static(shape[1:])),
            )
    counts = [len(array) for array in arrays]
    if counts[0] == 0:
        raise DataError("there are no examples", where=names[0], advice="Give at least one.")
    if len(set(counts)) > 1:
        raise DataError(
            "inputs and targets differ in their number of examples",
            facts=tuple((name, str(count)) for name, count in zip(names, counts, strict=True)),
            advice="Every array has one row for each example.",
        )
    return counts[0]


def _shape_advice(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if found == expected:
        return "The batch axis is missing: array[None] makes a batch of one."
    if found[1:] and np.prod(found[1:]) == np.prod(expected):
        return f"The elements are right in number: array.reshape(-1, {_listed(expected)})."
    return "The first axis is the batch."


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(str(extent) for extent in shape)


@final
class Inference:
    """The forward pass of a model, for any number of examples."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._prepared: dict[tuple[int, tuple[DType, ...]], Prepared] = {}
        self._specs = tuple(_input_spec(t, parameters.dtype) for t in parameters.network.inputs)

    def __call__(self, inputs: Any) -> tuple[Array, ...]:
        """The outputs for arrays of inputs, computed in batches.

        The last batch is filled up with zeros to the next power of two; what comes out for
        those is dropped.
        """
        arrays = self._converted(inputs)
        names = [f"input {n}" for n in range(len(arrays))]
        count = check_batch(arrays, self._specs, names)
        parts: list[list[Array]] = []
        for start in range(0, count, LARGEST_INFERENCE_BATCH):
            stop = min(start + LARGEST_INFERENCE_BATCH, count)
            parts.append(self._run([array[start:stop] for array in arrays], stop - start))
        return tuple(np.concatenate(pieces) for pieces in zip(*parts, strict=True))

    def _converted(self, inputs: Any) -> list[Array]:
        given = as_arrays(inputs, len(self._specs), "input")
        return [
            convert(value, dtype, f"input {n}")
            for n, (value, (_, dtype)) in enumerate(zip(given, self._specs, strict=True))
        ]

    def _run(self, arrays: Sequence[Array], count: int) -> list[Array]:
        batch = 1 << (count - 1).bit_length()
        dtypes = tuple(as_dtype(array.dtype) for array in arrays)
        prepared = self._prepared.get((batch, dtypes))
        if prepared is None:
            parameters = self._parameters
            graph = inference_step(parameters.network, dtype=parameters.dtype, input_dtypes=dtypes)
            shared = with_random_state(parameters)
            prepared = prepare(graph, batch, parameters.engine, shared, "inference")
            self._prepared[batch, dtypes] = prepared
        for name, array in zip(prepared.inputs, arrays, strict=True):
            padding = [(0, batch - count), *[(0, 0)] * (array.ndim - 1)]
            prepared.memories[name].write(np.pad(array, padding))
        prepared.executable.run(prepared.memories)
        outputs = [prepared.executable.output(name) for name, _ in prepared.program.outputs]
        for output in outputs:
            if output.shape[:1] != (batch,):
                raise ShapeError(
                    "an output without the batch as its first axis cannot be predicted in batches",
                    facts=(("found", shape_text(output.shape)),),
                    advice="Use lm.compile for functions of a whole batch.",
                )
        return [output[:count] for output in outputs]


def _input_spec(tensor: Tensor, dtype: DType) -> Spec:
    """Shape and dtype of an input; the model's float type unless the input fixed its own."""
    return tensor.shape, dtype if tensor.attributes.get("flexible") else tensor.dtype


def with_random_state(parameters: Parameters) -> dict[str, Memory]:
    """The model's memories, and a seed and step for layers that draw random numbers."""
    extra: dict[str, Memory] = {}
    for name, value in (("seed", parameters.seed), ("step", 0)):
        extra[name] = parameters.engine.allocate((), np.dtype("int64"))
        extra[name].write(np.array(value, "int64"))
    return parameters.memories | extra


@final
class DeferredLoss:
    """The loss of a step; `float(loss)` waits for the device."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read: Callable[[], float] | None = read
        self._value = 0.0

    def resolve(self) -> float:
        """Reads the value, once."""
        if self._read is not None:
            self._value = self._read()
            self._read = None
        return self._value

    def __float__(self) -> float:
        return self.resolve()

    def __repr__(self) -> str:
        return repr(self.resolve())

    def __format__(self, specification: str) -> str:
        return format(self.resolve(), specification)


@dataclass(frozen=True)
class Recorded:
    """What a run of steps leaves behind, one row for each step.

    Attributes:
        losses: shape (steps,).
        examples: how many examples each step saw, shape (steps,).
        statistics: the sums of each metric, by the name of its output.
    """

    losses: Array
    examples: Array
    statistics: Mapping[str, Array]


class _Attached:
    """What training and evaluation share: steps with targets, attached to a model's parameters."""

    def __init__(
        self,
        parameters: Parameters,
        loss: Loss,
        batch_size: int,
        input_dtypes: Sequence[DType] | None,
        targets: Sequence[Spec] | None,
    ) -> None:
        if batch_size < 1:
            raise DefinitionError(
                "a batch has at least one example",
                facts=(("expected", "batch_size >= 1"), ("found", repr(batch_size))),
            )
        self.batch_size = batch_size
        self._parameters = parameters
        self._loss = loss
        network, dtype = parameters.network, parameters.dtype
        inputs = [_input_spec(tensor, dtype) for tensor in network.inputs]
        arriving = input_dtypes or [dtype for _, dtype in inputs]
        self._input_dtypes = tuple(arriving)
        self._wanted_inputs = inputs
        self._targets = tuple(
            targets if targets is not None else default_targets(network, loss, dtype)
        )
        self._shared: dict[str, Memory] = dict(parameters.memories)
        self._prepared: dict[int, Prepared] = {}
        self._released = False
        self._graph: StepGraph

    def _prepare(self, batch: int) -> Prepared:
        """The step for a batch size, compiled when first asked for."""
        if batch not in self._prepared:
            name = type(self).__name__.lower()
            self._prepared[batch] = prepare(
                self._graph, batch, self._parameters.engine, self._shared, name
            )
        return self._prepared[batch]

    def _specs(self) -> list[Spec]:
        shapes = [shape for shape, _ in self._wanted_inputs]
        return [*zip(shapes, self._input_dtypes, strict=True), *self._targets]

    def _names(self) -> list[str]:
        inputs, targets = len(self._wanted_inputs), len(self._targets)
        return [f"input {n}" for n in range(inputs)] + [f"target {n}" for n in range(targets)]

    def _converted(self, x: Any, y: Any) -> list[Array]:
        """Inputs and targets, checked, in the dtypes the step was compiled for.

        Raises:
            LaminaError: naming the array and what is wrong with it.
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
                        f"{name} has another dtype than the step was compiled for",
                        facts=(("expected", compiled.name), ("found", array.dtype.name)),
                        advice=f"Convert it: array.astype('{compiled.name}').",
                    )
                array = array.astype(compiled.numpy)
            arrays.append(array)
        check_batch(arrays, specs, names)
        self._check_targets(arrays[len(self._wanted_inputs) :])
        return arrays

    def _check_targets(self, targets: Sequence[Array]) -> None:
        check = getattr(self._loss, "check_target", None)
        outputs = self._graph.trace.outputs
        if check is not None and len(targets) == 1 and len(outputs) == 1:
            check(targets[0], outputs[0].shape)

    def _place(self, dataset: Dataset) -> dict[str, Memory]:
        """A data set in the engine's memory, checked."""
        arrays = self._converted(_of(dataset.inputs), _of(dataset.targets))
        names = [tensor.attributes["name"] for tensor in self._graph.graph.inputs]
        placed: dict[str, Memory] = {}
        for name, array in zip(names, arrays, strict=True):
            placed[name] = self._parameters.engine.allocate(array.shape, array.dtype)
            placed[name].write(array)
        return placed

    def _run_batches(
        self, resident: Mapping[str, Memory], batches: Sequence[Array]
    ) -> Recorded:
        """Runs steps on rows of a placed data set, in order."""
        self._require_alive()
        losses: list[Array] = []
        statistics: dict[str, list[Array]] = {}
        for rows in _of_equal_size(batches):
            prepared = self._prepare(rows.shape[1])
            names = [name for name, _ in prepared.program.outputs]
            found = prepared.executable.run_many(prepared.memories, resident, rows, names)
            losses.append(found.pop("loss"))
            for name, values in found.items():
                statistics.setdefault(name, []).append(values)
        return Recorded(
            np.concatenate(losses) if losses else np.zeros(0),
            np.array([len(rows) for rows in batches], np.int64),
            {name: np.concatenate(parts) for name, parts in statistics.items()},
        )

    def release(self) -> None:
        """Gives back all memory that the model does not own; using it afterwards is an error."""
        for prepared in self._prepared.values():
            prepared.executable.release()
        self._prepared, self._shared = {}, {}
        self._released = True

    def _require_alive(self) -> None:
        if self._released:
            kind = type(self).__name__.lower()
            raise ReleasedError(
                f"this {kind} was released: its memory is gone",
                where=type(self).__name__,
                advice="Make a new one with model.training(...); the model still works.",
            )


def _of(arrays: tuple[Array, ...] | Array | None) -> Any:
    if isinstance(arrays, tuple) and len(arrays) == 1:
        return arrays[0]
    return arrays


def _of_equal_size(batches: Sequence[Array]) -> Iterator[Array]:
    """Neighbouring batches of one size as one array (steps, batch)."""
    start = 0
    for position in range(1, len(batches) + 1):
        if position == len(batches) or len(batches[position]) != len(batches[start]):
            yield np.stack(batches[start:position])
            start = position


@final
class Evaluation(_Attached):
    """Loss and metrics of a model on data, in the inference form.

    Args:
        parameters: of the model.
        loss, metrics: what is computed.
        batch_size: of one step.
        input_dtypes, targets: what the data looks like, where it is known.
    """

    def __init__(
        self,
        parameters: Parameters,
        loss: Loss,
        metrics: Sequence[Metric],
        batch_size: int,
        *,
        input_dtypes: Sequence[DType] | None = None,
        targets: Sequence[Spec] | None = None,
    ) -> None:
        super().__init__(parameters, loss, batch_size, input_dtypes, targets)
        self._shared = with_random_state(parameters)
        self._graph = evaluation_step(
            parameters.network,
            loss,
            self._targets,
            dtype=parameters.dtype,
            metrics=metrics,
            input_dtypes=self._input_dtypes,
        )

    def place(self, dataset: Dataset) -> Mapping[str, Memory]:
        """Puts a data set into the engine's memory."""
        return self._place(dataset)

    def run(self, resident: Mapping[str, Memory], examples: int) -> Recorded:
        """Evaluates all examples of a placed data set, in their order."""
        rows = np.arange(examples, dtype=np.int64)
        size = min(self.batch_size, examples)
        return self._run_batches(resident, np.split(rows, range(size, examples, size)))


@final
class Training(_Attached):
    """Attached to a model: activations, gradients, optimizer state. Made by `Model.training`.

    It changes the model's parameters in place and owns everything else; `release`, or the end of
    a `with` block, gives that back and leaves the model as trained.

    Example:
        >>> import numpy as np, lamina as lm
        >>> model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
        >>> with model.training(loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=4) as training:
        ...     loss = training.step(np.ones((4, 2), "float32"), np.zeros((4, 1), "float32"))
        >>> float(loss) >= 0
        True
    """

    def __init__(
        self,
        parameters: Parameters,
        loss: Loss,
        optimizer: Optimizer,
        batch_size: int,
        *,
        metrics: Sequence[Metric] = (),
        clip: Clip | None = None,
        seed: int = 0,
        input_dtypes: Sequence[DType] | None = None,
        targets: Sequence[Spec] | None = None,
    ) -> None:
        super().__init__(parameters, loss, batch_size, input_dtypes, targets)
        self._graph = training_step(
            parameters.network,
            loss,
            optimizer,
            self._targets,
            dtype=parameters.dtype,
            clip=clip,
            metrics=metrics,
            input_dtypes=self._input_dtypes,
        )
        engine = parameters.engine
        self._slots: dict[str, Memory] = {}
        for name, (tensor, first) in self._graph.slots.items():
            memory = engine.allocate(static(tensor.shape), tensor.dtype.numpy)
            memory.write(np.full(static(tensor.shape), first, tensor.dtype.numpy))
            self._slots[name] = memory
        for name, value in (("seed", seed), ("step", 0)):
            self._slots[name] = engine.allocate((), np.dtype("int64"))
            self._slots[name].write(np.array(value, "int64"))
        self._shared |= self._slots
        self._pending: weakref.ref[DeferredLoss] | None = None
        self._prepare(batch_size)

    @property
    def bill(self) -> MemoryBill:
        """What a step of `batch_size` examples needs, in bytes."""
        self._require_alive()
        return MemoryBill(self.batch_size, self._prepare(self.batch_size).program)

    @property
    def steps_done(self) -> int:
        """The number of finished steps; reads it from the device."""
        self._require_alive()
        return int(self._slots["step"].read())

    def step(self, x: Any, y: Any = None) -> DeferredLoss:
        """One training step on a batch of at most `batch_size` examples.

        Args:
            x: inputs, batch first; a tuple of arrays for several inputs.
            y: targets; a tuple for several, None for a loss without targets.

        Returns:
            The loss before the update; `float(loss)` waits for the device.

        Raises:
            ShapeError, DTypeError, DataError: before anything is computed.
            ReleasedError: after `release`.
        """
        self._require_alive()
        arrays = self._converted(x, y)
        count = len(arrays[0])
        if count > self.batch_size:
            raise ShapeError(
                "the batch is larger than the training was made for",
                facts=(("expected", f"at most {self.batch_size}"), ("found", str(count))),
                where="step",
                advice=f"Make it with batch_size={count}, or give fewer examples.",
            )
        self._settle()
        prepared = self._prepare(count)
        for name, array in zip(prepared.inputs, arrays, strict=True):
            prepared.memories[name].write(array)
        prepared.executable.run(prepared.memories)
        loss = DeferredLoss(lambda: float(prepared.executable.output("loss")))
        self._pending = weakref.ref(loss)
        return loss

    def run(
        self, dataset: Dataset, steps: int, seed: int = 0, *, drop_last: bool = False
    ) -> Array:
        """Trains for a number of steps without Python between them.

        Batches are drawn from the data set in shuffled order, epoch after epoch.

        Args:
            dataset: what to train on; it is copied to the device for the time of the run.
            steps: how many.
            seed: of the order of the examples.
            drop_last: leave out the last batch of an epoch where it is smaller.

        Returns:
            The loss of each step, shape (steps,).
        """
        self._require_alive()
        resident = self.place(dataset)
        batches: list[Array] = []
        epoch = 0
        while len(batches) < steps:
            found = self.batches_of(dataset, seed, epoch, drop_last=drop_last)
            if not found:
                raise DataError(
                    "there are fewer examples than a batch holds, and the last one is dropped",
                    facts=(("examples", str(len(dataset))), ("batch", str(self.batch_size))),
                    advice="Leave drop_last out, or take a smaller batch_size.",
                )
            batches += found
            epoch += 1
        return self.run_batches(resident, batches[:steps]).losses

    def batches_of(
        self, dataset: Dataset, seed: int, epoch: int, *, drop_last: bool = False
    ) -> list[Array]:
        """The rows of each batch of an epoch, shuffled; the last may be smaller."""
        order = dataset.order(seed, epoch)
        size = self.batch_size
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if drop_last and len(batches[-1]) < size:
            batches.pop()
        return batches

    def place(self, dataset: Dataset) -> Mapping[str, Memory]:
        """Puts a data set into the engine's memory, for `run_batches`."""
        self._require_alive()
        return self._place(dataset)

    def run_batches(self, resident: Mapping[str, Memory], batches: Sequence[Array]) -> Recorded:
        """Trains on rows of a placed data set, one step for each array of rows."""
        self._settle()
        return self._run_batches(resident, batches)

    def _settle(self) -> None:
        """Reads the last step's loss while it is still there, if anyone holds it."""
        pending = self._pending() if self._pending else None
        if pending is not None:
            pending.resolve()
        self._pending = None

    def state(self) -> dict[str, Array]:
        """Everything needed to go on later: optimizer state, step and seed, by name."""
        self._require_alive()
        return {name: memory.read() for name, memory in self._slots.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Goes on from a state that `state` gave; checked before anything is written.

        Raises:
            DefinitionError: if it belongs to another network or optimizer.
        """
        self._require_alive()
        fits = state.keys() == self._slots.keys() and all(
            np.shape(state[name]) == memory.read().shape for name, memory in self._slots.items()
        )
        if not fits:
            raise DefinitionError(
                "the saved state belongs to another optimizer or network",
                facts=(
                    ("expected", ", ".join(sorted(self._slots))),
                    ("found", ", ".join(sorted(state))),
                ),
                advice="Resume with the same network and the same optimizer.",
            )
        for name, memory in self._slots.items():
            memory.write(np.asarray(state[name], memory.read().dtype))

    def release(self) -> None:
        self._settle()
        super().release()
        self._slots = {}

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._released:
            self.release()


def compile_function(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], engine: Engine
) -> Function:
    """A graph of ops as a function of arrays; see `lamina.compile`."""
    return Function(tuple(inputs), tuple(outputs), engine)


@final
class Function:
    """A compiled graph: called with arrays, it gives arrays. Made by `lamina.compile`."""

    def __init__(
        self, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], engine: Engine
    ) -> None:
        self._network = Network(inputs, outputs)
        self._engine = engine
        self._prepared: dict[int, Prepared] = {}
        dtype = next((t.dtype for t in inputs if t.dtype.is_float), as_dtype("float32"))
        self._graph = inference_step(
            self._network, dtype=dtype, input_dtypes=[t.dtype for t in inputs]
        )
        record = self._graph.trace.record
        if record.parameters or record.states:
            raise DefinitionError(
                "a function of arrays has no parameters, and these tensors come from layers",
                facts=(("found", ", ".join((*record.parameters, *record.states))),),
                where="compile",
                advice="Make a network: lm.Model(lm.Network(inputs=..., outputs=...)).",
            )

    def __call__(self, *arrays: Any) -> tuple[Array, ...]:
        """The outputs for one batch.

        Args:
            arrays: one for each input, batch first, all with the same number of examples.

        Raises:
            LaminaError: where an array does not fit its input.
        """
        specs = [(tensor.shape, tensor.dtype) for tensor in self._network.inputs]
        names = [f"input {n}" for n in range(len(specs))]
        given = as_arrays(arrays, len(specs), "input")
        ready = [
            convert(value, dtype, name).astype(dtype.numpy)
            for value, (_, dtype), name in zip(given, specs, names, strict=True)
        ]
        batch = check_batch(ready, specs, names) if ready else 1
        if batch not in self._prepared:
            self._prepared[batch] = prepare(self._graph, batch, self._engine, {}, "function")
        prepared = self._prepared[batch]
        for name, array in zip(prepared.inputs, ready, strict=True):
            prepared.memories[name].write(array)
        prepared.executable.run(prepared.memories)
        return tuple(prepared.executable.output(name) for name, _ in prepared.program.outputs)


def target_specs(dataset: Dataset) -> tuple[Spec, ...]:
    """Shape, with the batch left open, and dtype of a data set's targets."""
    arrays = _as_tuple(dataset.targets)
    return tuple((_open(array.shape), as_dtype(array.dtype)) for array in arrays)


def input_dtypes(dataset: Dataset) -> tuple[DType, ...]:
    """The dtypes of a data set's inputs."""
    return tuple(as_dtype(array.dtype) for array in _as_tuple(dataset.inputs))


def _open(shape: tuple[int, ...]) -> Shape:
    return (BATCH, *shape[1:])


def _as_tuple(arrays: tuple[Array, ...] | Array | None) -> tuple[Array, ...]:
    if arrays is None:
        return ()
    return arrays if isinstance(arrays, tuple) else (arrays,)
