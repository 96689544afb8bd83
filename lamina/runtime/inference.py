"""Forward passes: of a model, and of any graph of ops."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any, final

import numpy as np

from lamina.base.records import cached_property
from lamina.base.shapes import BATCH, Array, DType, Shape, as_dtype, bind, shape_text, size_of
from lamina.data import Stream
from lamina.data.background import Plan, Reader
from lamina.data.conversion import ArrayType, is_exact, is_ranged, to_array, type_of
from lamina.data.stream import STEP_EXAMPLES
from lamina.engines.engine import Memory
from lamina.errors import LaminaError, ShapeError, errors_at
from lamina.graph import Tensor
from lamina.inspect.explanation import Profile
from lamina.runtime.compiled import CompiledProgram, RecentPrograms, compile_for_batch
from lamina.runtime.index_checks import check_indices
from lamina.runtime.parameters import Parameters
from lamina.runtime.profile import profiled
from lamina.step.derive import BatchGraph, BatchSpecs, inference_graph
from lamina.step.names import Names, as_arrays
from lamina.step.specs import check_batch, converted, input_spec

# The batch size of predictions is a power of two between these bounds: the largest one with which
# every tensor takes at most so many bytes: less than the caches of a processor, or what keeps a GPU
# with memory of its own busy.
LARGEST_BATCH, SMALLEST_BATCH = 4096, 16
LARGEST_TENSOR_BYTES, LARGEST_ON_GPU = 8 << 20, 64 << 20

# The number of examples, the dtypes of the inputs, and whether each member has its own.
_Key = tuple[int, tuple[DType, ...], bool]


@final
class Inference:
    """The forward pass of a model, for any number of examples."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._shared: dict[str, Memory] = {}
        self._programs: RecentPrograms[_Key] = RecentPrograms()
        # The type of the last input, and the key of its program.
        self._last: tuple[ArrayType, _Key] | None = None
        self._specs = tuple(input_spec(t, parameters.dtype) for t in parameters.network.inputs)
        self._names = Names("input", parameters.network.input_names)
        self._labels = self._names.labels

    def __reduce__(self) -> tuple[type[Inference], tuple[Parameters]]:
        # A copy has its own programs, its own seed, and its own counter for random numbers.
        return Inference, (self._parameters,)

    def __call__(self, inputs: Any) -> tuple[Array, ...]:
        """The outputs for arrays of inputs, computed in batches of 16 to 4,096 examples.

        The batch size is the largest with which no tensor takes more than 8 MiB (64 MiB on a GPU
        with memory of its own), but at least 16.
        The last batch may be smaller. Batches are not padded, so a network that mixes the examples
        of a batch sees real examples only. Without examples the outputs have none.
        """
        key = self._exact_key(inputs)
        if key is not None:
            with self._parameters.lock.mutex:
                return self._run((inputs,), key)
        arrays = converted(inputs, self._names, self._specs)
        if all(array.ndim and not len(array) for array in arrays):
            # No examples have the outputs of one, without its row.
            row = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in arrays)
            return tuple(self._rows(output, 0, 0) for output in self(row))
        count = check_batch(arrays, self._specs, self._labels)
        check_indices(self._parameters.index_checks, arrays)
        with self._parameters.lock.mutex:
            size = count if count <= SMALLEST_BATCH else self._largest_batch
            if count > size:
                return self._in_batches(arrays, size)
            key = _key_of(arrays)
            # The numbers of another integer type are checked each time.
            if len(arrays) == 1 and not is_ranged(key[1][0], self._specs[0][1]):
                self._last = type_of(arrays[0]), key
            return self._run(arrays, key)

    def own_inputs(self, inputs: Any, members: int) -> list[Array] | None:
        """Inputs of each member's own, with an axis of members; None if all share them."""
        ranks = [len(shape) for shape, _ in self._specs]
        if isinstance(inputs, np.ndarray) and [inputs.ndim] == ranks:
            return None
        problem = "the inputs cannot be converted to an array"
        arrays = [to_array(array, problem) for array in as_arrays(inputs, self._names)]
        return with_members(arrays, ranks, self._labels, members, "predict")

    def of_members(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs of each member for inputs of its own, (members, examples, ...)."""
        members, count = inputs[0].shape[:2]
        if not count:
            # No examples have the outputs of one, without its row.
            rows = [np.zeros((members, 1, *array.shape[2:]), array.dtype) for array in inputs]
            return tuple(output[:, :0] for output in self.of_members(rows))
        try:
            flat = self._checked(tuple(array.reshape(-1, *array.shape[2:]) for array in inputs))
        except LaminaError:
            for number in range(members):
                # Its error says where, in the inputs of the member.
                with errors_at(f"member {number}"):
                    self._checked(tuple(array[number] for array in inputs))
            raise
        arrays = [array.reshape(members, -1, *array.shape[1:]) for array in flat]
        results: list[tuple[Array, ...]] = []
        with self._parameters.lock.mutex:
            size = min(count, self._largest_batch)
            for start in range(0, count, size):
                rows = [np.ascontiguousarray(array[:, start : start + size]) for array in arrays]
                results.append(self._run(rows, _key_of(rows, own_inputs=True)))
        return tuple(np.concatenate(outputs, axis=1) for outputs in zip(*results, strict=True))

    def _exact_key(self, inputs: Any) -> _Key | None:
        """The key of the program, if the inputs need no check: one array of the last one's type."""
        # A forward pass of a small network takes less time than a full check.
        if self._last is None or self._parameters.index_checks:
            return None
        expected, key = self._last
        return key if is_exact(inputs, expected) else None

    def of_stream(self, stream: Stream) -> tuple[Array, ...]:
        """The outputs for the inputs of a stream, which is read in the background.

        Its batches are regrouped as in `__call__`, unless the stream keeps them. Of a stream
        with `steps_per_epoch` it reads the examples that `evaluate` reads by default.
        """
        steps = stream.steps_per_epoch
        limit: Any = {}
        if steps is not None:
            limit = {"examples": steps * STEP_EXAMPLES} if stream.regroup else {"steps": steps}
        results: list[tuple[Array, ...]] = []
        with closing(Reader(stream)) as reader:
            sample = reader.sample()
            size = self._largest_batch if stream.regroup else len(sample)
            reader.begin(Plan(lambda batch: self._checked(batch.inputs), size, **limit))
            while (chunk := reader.take()) is not None:
                for batch in (rows for group in chunk.groups for rows in group):
                    rows = [array[batch] for array in chunk.arrays]
                    with self._parameters.lock.mutex:
                        results.append(self._run(rows, _key_of(rows)))
                reader.give_back(chunk)
        axis = len(self._members)
        return tuple(np.concatenate(outputs, axis) for outputs in zip(*results, strict=True))

    def _checked(self, inputs: Any) -> list[Array]:
        arrays = converted(inputs, self._names, self._specs)
        check_batch(arrays, self._specs, self._labels)
        check_indices(self._parameters.index_checks, arrays)
        return arrays

    @cached_property
    def _largest_batch(self) -> int:
        graph = _graph_of(self._parameters).graph

        def size(tensor: Tensor, batch: int) -> int:
            return size_of(bind(tensor.shape, batch)) * tensor.dtype.itemsize

        # Leaves do not count: they are the caller's arrays and the model's parameters.
        computed = [tensor for tensor in graph.nodes() if tensor.operands]
        growing = [tensor for tensor in computed if size(tensor, 1) != size(tensor, 2)]

        def largest_bytes(batch: int) -> int:
            return max((size(tensor, batch) for tensor in growing), default=0)

        shares = self._parameters.engine.device.shares_memory
        most = LARGEST_ON_GPU if shares is False else LARGEST_TENSOR_BYTES
        batch = LARGEST_BATCH
        while batch > SMALLEST_BATCH and largest_bytes(batch) > most:
            batch //= 2
        return batch

    def profile(self, inputs: Any, seconds: float = 0.5) -> Profile:
        """The time of each step of the program of a forward pass."""
        arrays = self._checked(inputs)
        compile_ = partial(self._compile, _key_of(arrays))
        return profiled(compile_, arrays, self._parameters, seconds)

    def program(self, arrays: Sequence[Array]) -> CompiledProgram:
        """The program for a batch of these shapes and types."""
        with self._parameters.lock.mutex:
            return self._programs.get(_key_of(arrays), self._compile)

    def _run(self, arrays: Sequence[Array], key: _Key) -> tuple[Array, ...]:
        compiled = self._programs.get(key, self._compile)
        compiled.run(arrays)
        output = compiled.executable.output
        return tuple([output(name) for name, _ in compiled.program.outputs])

    def _in_batches(self, arrays: Sequence[Array], size: int) -> tuple[Array, ...]:
        count = len(arrays[0])
        results: dict[str, Array] = {}
        for start in range(0, count, size):
            rows = [array[start : start + size] for array in arrays]
            compiled = self.program(rows)
            compiled.run(rows)
            for name, buffer in compiled.program.outputs:
                spec = compiled.program.buffers[buffer]
                if name not in results:
                    shape = (*self._members, count, *spec.shape[1:])
                    results[name] = np.empty(shape, spec.dtype.numpy)
                rows = self._rows(results[name], start, start + size)
                compiled.executable.read_into(name, rows)
        return tuple(results.values())

    @property
    def _members(self) -> tuple[int, ...]:
        """The axis of members that outputs of a population have first."""
        members = self._parameters.members
        return () if members is None else (members,)

    def _rows(self, output: Array, start: int, stop: int) -> Array:
        """The rows of some examples."""
        return output[(slice(None),) * len(self._members) + (slice(start, stop),)]

    def _compile(self, key: _Key, timed: bool = False) -> CompiledProgram:
        (batch, dtypes, own_inputs), parameters = key, self._parameters
        self._shared = self._shared or parameters.with_random_state()
        graph = _graph_of(parameters, dtypes)
        require_batch([tensor.shape for _, tensor in graph.graph.outputs])
        placement, shared = parameters.placement, self._shared
        given = graph, batch, placement, shared, "inference"
        return compile_for_batch(*given, timed=timed, own_inputs=own_inputs)


def _key_of(arrays: Sequence[Array], *, own_inputs: bool = False) -> _Key:
    dtypes = tuple(as_dtype(array.dtype) for array in arrays)
    return arrays[0].shape[1 if own_inputs else 0], dtypes, own_inputs


def with_members(
    arrays: Sequence[Array], ranks: Sequence[int], labels: Sequence[str], members: int, where: str
) -> list[Array] | None:
    """Arrays with a first axis of members; those that members share are repeated.

    Args:
        ranks: their ranks without that axis.

    Returns:
        None if all are shared.

    Raises:
        ShapeError: for another number of members.
    """
    own = [array.ndim == rank + 1 for array, rank in zip(arrays, ranks, strict=False)]
    if not any(own):
        return None
    for array, is_own, name in zip(arrays, own, labels, strict=False):
        if is_own and len(array) != members:
            raise ShapeError(
                f"{name} has another number of members than the population",
                facts=(("expected", str(members)), ("found", str(len(array)))),
                where=where,
                advice="The first axis is that of members; leave it out if all share a batch.",
            )
    return [
        array if is_own else np.broadcast_to(array, (members, *array.shape))
        for array, is_own in zip(arrays, own, strict=True)
    ]


def require_batch(shapes: Sequence[Shape]) -> None:
    """Raises ShapeError unless the first axis of all outputs is the batch."""
    for shape in shapes:
        if shape[:1] != (BATCH,):
            raise ShapeError(
                "an output whose first axis is not the batch cannot be predicted in batches",
                facts=(("found", shape_text(shape)),),
                advice="Use lm.compile for functions of a whole batch.",
            )


def _graph_of(parameters: Parameters, dtypes: Sequence[DType] = ()) -> BatchGraph:
    return inference_graph(
        BatchSpecs(parameters.network, parameters.dtype, parameters.rounding, dtypes)
    )
