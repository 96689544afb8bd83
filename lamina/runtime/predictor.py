"""A model's forward pass with a program and a lock of its own.

It reads the parameters without the model's lock (`_run_settled`), and does little besides the
arithmetic, so that small batches take little time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, final

import numpy as np

from lamina.base.records import cached_property
from lamina.base.shapes import Array, DType, bind, shape_text
from lamina.data.conversion import is_frame
from lamina.engines.engine import Changes
from lamina.errors import DataError, DefinitionError, DTypeError, ReleasedError, ShapeError
from lamina.learning.protocols import Spec
from lamina.runtime.compiled import CompiledProgram, Placement, RecentPrograms, compile_for_batch
from lamina.runtime.index_checks import check_indices
from lamina.runtime.inference import require_batch
from lamina.runtime.model_lock import ModelLock
from lamina.runtime.parameters import Parameters
from lamina.step.derive import BatchSpecs, inference_graph
from lamina.step.names import Names, as_arrays
from lamina.step.specs import check_batch, converted, input_spec

# An array of a program, its dtype and its shape.
_Bound = tuple[Array, np.dtype[Any], tuple[int, ...]]
# A function that runs a program, and the count of the changes of its parameters.
_Run = tuple[Callable[[], None], Changes]


@final
class Predictor:
    """The forward pass of a model for batches of at most some examples. Made by `Model.predictor`.

    It has a compiled program and memory of its own, and reads the model's parameters where they
    are: after training steps it predicts with the new ones. Several threads may call predictors of
    a model at the same time, each its own.

    Fewer examples than the batch size are padded, if the network computes each example by itself.
    If it mixes the examples of a batch, a program is compiled for each number of examples.

    Example:
        >>> import numpy as np, lamina as lm
        >>> model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
        >>> predict = model.predictor(batch_size=1)
        >>> x, y = np.ones((1, 3), "float32"), np.empty((1, 2), "float32")
        >>> predict(x, out=y) is y
        True
    """

    def __init__(self, parameters: Parameters, batch_size: int) -> None:
        self.batch_size = batch_size
        self._parameters = parameters
        self._model_lock = parameters.lock
        self._lock = ModelLock()
        self._placement = Placement(parameters.engine, self._lock, parameters.engine.arena())
        self._checks = parameters.index_checks
        self._specs: tuple[Spec, ...] = tuple(
            input_spec(tensor, parameters.dtype) for tensor in parameters.network.inputs
        )
        dtypes = [dtype for _, dtype in self._specs]
        self._graph = inference_graph(
            BatchSpecs(parameters.network, parameters.dtype, parameters.rounding, dtypes)
        )
        self._inputs = Names("input", parameters.network.input_names)
        self._names, self._outputs = zip(*self._graph.graph.outputs, strict=True)
        require_batch([tensor.shape for tensor in self._outputs])
        self._programs: RecentPrograms[int] = RecentPrograms()
        with self._model_lock.mutex:
            self._shared = parameters.with_random_state()
        self._released = False
        self._bind()

    def _bind(self) -> None:
        """Prepares the fast path of calls, for a full batch whose inputs are all used."""
        # The arrays are in the arena, where they move when a program enters it.
        self._bound: tuple[_Bound, _Bound, _Run] | None = None
        self._all_bound: tuple[list[_Bound], list[_Bound], _Run] | None = None
        compiled = self._program(self.batch_size)
        bound = compiled.executable.bound()
        order = compiled.ordered(range(len(self._specs)))
        if bound is None or len(order) < len(self._specs):
            return
        inputs = dict(zip(order, bound.inputs, strict=True))
        sources = [_bound(inputs[number]) for number in range(len(order))]
        results = [_bound(bound.outputs[name]) for name in self._names]
        run = bound.run, bound.changes
        if len(sources) == len(results) == 1:
            self._bound = sources[0], results[0], run
        else:
            self._all_bound = sources, results, run

    def __getstate__(self) -> dict[str, Any]:
        raise DefinitionError(
            "a predictor cannot be copied or pickled",
            where="Predictor",
            advice="Copy the model, and make a new predictor: model.predictor(...).",
        )

    def __call__(self, inputs: Any, out: Any = None) -> Any:
        """The outputs for a batch.

        Args:
            inputs: an array, batch first, of at most `batch_size` examples; a tuple of arrays for
                several inputs, or a dict by their names. A data frame is coded first:
                `model.coding.inputs(frame)`.
            out: an array for the output, of its shape and dtype; a tuple of arrays for several
                outputs, or a dict by their names. By default new arrays are made. With it, a full
                batch of arrays of the network's dtypes allocates nothing on the cpu engine.

        Returns:
            An array, batch first; a tuple for several outputs. It is `out`, if that was given.

        Raises:
            ShapeError, DTypeError, DataError: if the arrays do not fit, before anything is
                computed.
        """
        with self._lock.mutex:
            if self._bound is None:
                return self._call_with_several(inputs, out)
            # Written for speed: a forward pass of a small network takes less time than this.
            (source, dtype, shape), (result, out_dtype, out_shape), run = self._bound
            if (
                inputs.__class__ is not np.ndarray
                or inputs.dtype is not dtype
                or inputs.shape != shape
            ):
                return self._checked(inputs, out)
            if out is None:
                out = np.empty(out_shape, out_dtype)
            elif (
                out.__class__ is not np.ndarray
                or out.dtype is not out_dtype
                or out.shape != out_shape
                or not out.flags.writeable
            ):
                return self._checked(inputs, out)
            if self._checks:
                check_indices(self._checks, (inputs,))
            source[...] = inputs
            self._run_settled(run)
            out[...] = result
            return out

    def _call_with_several(self, inputs: Any, out: Any) -> Any:
        """The same for several inputs or outputs."""
        if self._all_bound is None:
            return self._checked(inputs, out)
        sources, results, run = self._all_bound
        arrays = _tuple_of(inputs)
        if out is None:
            targets = tuple([np.empty(shape, dtype) for _, dtype, shape in results])
        else:
            targets = _tuple_of(out)
        if not (_fit(arrays, sources) and _fit(targets, results, written=True)):
            return self._checked(inputs, out)
        if self._checks:
            check_indices(self._checks, arrays)
        for (source, _, _), array in zip(sources, arrays, strict=True):
            source[...] = array
        self._run_settled(run)
        for (result, _, _), target in zip(results, targets, strict=True):
            target[...] = result
        return targets if len(results) > 1 else targets[0]

    def _checked(self, inputs: Any, out: Any) -> Any:
        """What a call does with arrays of any type and number."""
        if self._released:
            raise ReleasedError(
                "this predictor was released: its memory is gone",
                where="Predictor",
                advice="Make a new one with model.predictor(...); the model still works.",
            )
        arrays, count = self._converted(inputs)
        targets = self._empty(count)
        if out is not None:
            network = self._parameters.network
            names = Names("output", network.output_names, shown=network.has_output_names)
            destinations = as_arrays(out, names)
            for number, (target, like) in enumerate(zip(destinations, targets, strict=True)):
                _check_target(target, number, like.shape, self._outputs[number].dtype)
            targets = list(destinations)
        if count < self.batch_size and self._mixes_examples:
            self._run(count, arrays, targets)
            self._bind()
        else:
            self._run(self.batch_size, arrays, targets)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def release(self) -> None:
        """Releases its memory; calling it is an error then."""
        with self._lock.mutex:
            self._released, self._bound, self._all_bound = True, None, None
            self._programs.release()

    def _run(self, size: int, arrays: Sequence[Array], targets: Sequence[Array]) -> None:
        """Runs the program for a batch size on as many examples or fewer; copies its results."""
        compiled = self._program(size)
        bound, count = compiled.executable.bound(), len(arrays[0])
        if bound is not None:
            for source, array in zip(bound.inputs, compiled.ordered(arrays), strict=True):
                source[:count] = array
                source[count:] = 0
            self._run_alone((bound.run, bound.changes))
            for name, target in zip(self._names, targets, strict=True):
                target[...] = bound.outputs[name][:count]
            return
        with self._model_lock.mutex:
            compiled.run([_padded(array, size) for array in arrays])
            for name, target in zip(self._names, targets, strict=True):
                if count == size and target.flags.c_contiguous:
                    compiled.executable.read_into(name, target)
                else:
                    target[...] = compiled.executable.output(name)[:count]

    def _run_settled(self, run: _Run) -> None:
        """Runs a program with parameters that belong together, if possible without waiting."""
        # Changes are counted when they begin, under the lock of the model. So a run without the
        # lock has read parameters that belong together, if no change was going on when it began,
        # and none has begun since.
        compute, changes = run
        before = changes.count
        if changes.completed == before:
            compute()
        if changes.completed != before or changes.count != before:
            self._run_alone(run)

    def _run_alone(self, run: _Run) -> None:
        """Runs a program while no other thread changes the parameters."""
        compute, changes = run
        with self._model_lock.mutex:
            # A change that was interrupted counts as complete; the lock is free.
            changes.complete()
            compute()

    @cached_property
    def _mixes_examples(self) -> bool:
        """Whether results of an example depend on other examples of the batch, found by trial."""
        # The first half of a batch is computed with different second halves, NaN among them.
        # Results that do not depend on the second half have the same bits.
        generator, half = np.random.default_rng(0), self.batch_size // 2
        examples = [
            _random(generator, bind(shape, self.batch_size), dtype.numpy)
            for shape, dtype in self._specs
        ]
        others = [
            [np.zeros_like(array) for array in examples],
            [_random(generator, array.shape, array.dtype) for array in examples],
            [np.full_like(array, _extreme(array.dtype)) for array in examples],
        ]
        halves: list[list[Array]] = []
        with self._model_lock.mutex:
            for other in others:
                for array, padding in zip(examples, other, strict=True):
                    array[half:] = padding[half:]
                results = self._empty(self.batch_size)
                self._run(self.batch_size, examples, results)
                halves.append([result[:half] for result in results])
        return any(
            first.tobytes() != again.tobytes()
            for results in halves[1:]
            for first, again in zip(halves[0], results, strict=True)
        )

    def _converted(self, inputs: Any) -> tuple[list[Array], int]:
        """The inputs as arrays of the program's dtypes, and the number of examples."""
        if is_frame(inputs) and not isinstance(inputs, Mapping):
            raise DataError(
                "a predictor takes arrays, not data frames",
                facts=(("expected", "an array"), ("found", type(inputs).__name__)),
                where="predictor",
                advice="Code the frame as in training: predict(model.coding.inputs(frame)); for a "
                "model that was trained on arrays: predict(frame.to_numpy()).",
            )
        arrays = converted(inputs, self._inputs, self._specs)
        count = check_batch(arrays, self._specs, self._inputs.labels)
        if count > self.batch_size:
            raise ShapeError(
                "there are more examples than the predictor was made for",
                facts=(("expected", f"at most {self.batch_size:,}"), ("found", f"{count:,}")),
                where="predictor",
                advice=f"Make it with batch_size={count}; model.predict takes any number.",
            )
        check_indices(self._checks, arrays)
        ready = [
            array.astype(dtype.numpy, copy=False)
            for array, (_, dtype) in zip(arrays, self._specs, strict=True)
        ]
        return ready, count

    def _empty(self, count: int) -> list[Array]:
        return [np.empty(bind(tensor.shape, count), tensor.dtype.numpy) for tensor in self._outputs]

    def _program(self, count: int) -> CompiledProgram:
        return self._programs.get(count, self._compile)

    def _compile(self, count: int) -> CompiledProgram:
        return compile_for_batch(self._graph, count, self._placement, self._shared, "inference")


def _tuple_of(value: Any) -> tuple[Any, ...]:
    return cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)


def _bound(array: Array) -> _Bound:
    return array, array.dtype, array.shape


def _fit(arrays: Sequence[Any], bound: Sequence[_Bound], *, written: bool = False) -> bool:
    """Whether arrays have exactly the dtypes and shapes of a program's, and can be written."""
    if len(arrays) != len(bound):
        return False
    for array, (_, dtype, shape) in zip(arrays, bound, strict=True):
        if (
            array.__class__ is not np.ndarray
            or array.dtype is not dtype
            or array.shape != shape
            or (written and not array.flags.writeable)
        ):
            return False
    return True


def _check_target(target: object, number: int, shape: tuple[int, ...], dtype: DType) -> None:
    """Raises DTypeError or ShapeError if an array of the caller cannot hold an output."""
    expected, kind = shape_text(shape, dtype), ShapeError
    array = cast(Array, target)
    if not isinstance(target, np.ndarray):
        kind, problem = DTypeError, "the outputs are written to arrays"
        expected, actual = f"an array {expected}", type(target).__name__
    elif array.dtype != dtype.numpy:
        kind, problem = DTypeError, "out has another dtype than the output"
        expected, actual = dtype.name, array.dtype.name
    elif array.shape != shape:
        problem, actual = "out has another shape than the output", shape_text(array.shape, dtype)
    elif not array.flags.writeable:
        problem, expected = "out cannot be written", "an array that can be written"
        actual = "a read-only array"
    else:
        return
    facts = (("expected", expected), ("found", actual))
    advice = f"Make it by np.empty({shape}, '{dtype.name}')."
    raise kind(problem, facts=facts, where=f"out {number}", advice=advice)


def _padded(array: Array, size: int) -> Array:
    """An array of so many examples; those that are missing are zeros."""
    missing = np.zeros((size - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate((array, missing)) if len(missing) else array


def _random(generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Random numbers; the program clamps integers that are indices."""
    if dtype.kind in "iub":
        return generator.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def _extreme(dtype: np.dtype[Any]) -> float:
    """NaN, or the largest integer."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).max
    return 1 if dtype.kind == "b" else np.nan
