"""`Stream`: examples from a source of batches that is read while the device computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, size_of
from lamina.checks import Called
from lamina.checks.kinds import Count, OrNone, ReadBy, Whole, shown
from lamina.data.arrays import as_tuple
from lamina.data.conversion import (
    has_columns,
    is_bare_row,
    is_buffer,
    is_frame,
    is_named,
    is_rows,
    is_sparse,
    to_array,
)
from lamina.data.dataset import NAME_PAIRS, Batch, Dataset, as_dataset
from lamina.errors import DataError

if TYPE_CHECKING:
    from lamina.data.coding import Coding

# The name of the weights of examples in a batch with names.
_WEIGHTS = "weights"
# The examples of a step in `predict`; in `evaluate` too, unless it gets another batch size.
STEP_EXAMPLES = 256
# Bytes of the examples that are read before they are needed.
BUFFER_BYTES = 64 << 20
# About the bytes of a batch of dense rows.
_BATCH_BYTES = 1 << 20

ShuffleWindow = Annotated[int, Whole(0, 1 << 31)]


def _source(value: Any) -> Any:
    """What can be read as batches, perhaps several times."""
    if type(value) is list or is_stream(value):
        source = cast(Any, value)
        if not hasattr(source, "__iter__"):
            _named_arguments(source)
        return source
    expected = "a generator function, a data loader, or a list of batches"
    raise DataError(
        "this is not a source of batches",
        facts=(("expected", expected), ("found", shown(value))),
        advice="A source gives batches (x, y) each time it is iterated, or called; "
        "lm.data.in_chunks(path) is one, of a large file.",
    )


@frozen_dataclass(eq=False, repr=False)
class Stream(metaclass=Called):
    """Examples that a background thread reads in batches while the device computes.

    `fit`, `evaluate`, `predict` and `Training.run` take it in place of a data set, and make one
    of any source that they are given. A source is read once in each epoch:

    - a generator function, or another function that returns an iterable. If it has a parameter
      `epoch`, it gets the number of the epoch, from 0; if it has a parameter `skip`, it gets the
      number of batches to omit at the beginning, which is not 0 in a resumed fit; if it has a
      parameter `seed`, it gets the seed of the order, or None for the order in which the examples
      are stored, as in evaluation and prediction;
    - an object that can be iterated again: a list of batches, a `DataLoader` of PyTorch, a loader
      of `grain`;
    - an iterator, such as a running generator, for a single epoch.

    A batch is `(x, y)`, x alone, or `(x, y, weights)` with the weights of the examples, each an
    array, a tuple, or a dict by the names of inputs or outputs; `{"x": x, "y": y}` and the other
    names that `load` knows, also with `"weights"`; another dict, of the inputs by their names; or a
    `Dataset`. Its arrays may be all that a `Dataset` takes.

    Args:
        source: the source of the batches.
        window: examples that are shuffled together. Each epoch is divided into blocks of so many
            examples, in the order of the source; the first block is shorter by a random number.
            Each block is permuted. Lengths and permutations are functions of the seed and the
            epoch, on every machine. Two blocks are in memory. 0 keeps the order of the source, as
            evaluation and prediction always do.
        seed: the seed of the window; by default the seed of the fit.
        steps_per_epoch: the number of training steps after which an epoch ends; the next one
            continues from there, and a source that ends is read again. `evaluate` and `predict` end
            after so many batches, of 256 examples by default, or with the source. Sources without
            an end need it: nothing else ends their epochs.
        regroup: whether to join and divide the batches of the source, so that all have the
            `batch_size` of the fit. Otherwise they are taken as they are, and a program is compiled
            for each size.
        buffer_bytes: the bytes of examples that are read before they are needed; at least two
            batches or windows are.

    Raises:
        DataError: if the source cannot be iterated.

    Example:
        >>> import numpy as np, lamina as lm
        >>> def batches(epoch):
        ...     for number in range(3):
        ...         x = np.random.default_rng([epoch, number]).normal(size=(10, 4))
        ...         yield x.astype("float32"), x[:, :3].argmax(axis=1)
        >>> data = lm.data.Stream(batches, window=20)
        >>> model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)))
        >>> history = model.fit(data, loss=lm.CrossEntropy(), optimizer=lm.Adam(), epochs=2)
        >>> len(history)
        2
    """

    source: Annotated[Any, ReadBy(_source)]
    _: KW_ONLY
    window: ShuffleWindow = 0
    seed: Annotated[int | None, OrNone(Whole())] = None
    steps_per_epoch: Annotated[int | None, OrNone(Whole(1))] = None
    regroup: bool = True
    buffer_bytes: Count = BUFFER_BYTES

    def __post_init__(self) -> None:
        if self.window and not self.regroup:
            raise DataError(
                "a window shuffles examples, but the batches are taken as they are",
                facts=(("window", str(self.window)), ("regroup", "False")),
                where="Stream",
                advice="Leave out regroup=False, or shuffle in the source.",
            )

    @property
    def is_one_shot(self) -> bool:
        """Whether the source is an iterator, which can be read once."""
        return isinstance(self.source, Iterator)

    @property
    def nbytes(self) -> int:
        """The bytes that are read before they are needed, about `buffer_bytes`."""
        return self.buffer_bytes

    def __repr__(self) -> str:
        options = [f"window={self.window}"] if self.window else []
        if self.steps_per_epoch is not None:
            options.append(f"steps_per_epoch={self.steps_per_epoch}")
        if not self.regroup:
            options.append("regroup=False")
        return f"Stream({', '.join([_name(self.source), *options])})"


def as_data(
    value: Any, coding: Coding | None = None, *, is_training: bool = False
) -> Dataset | Stream:
    """A data set or a stream, as it is; arrays as a data set; anything else as a stream."""
    if is_frame(value) or is_rows(value):
        advice = "Code them: lm.data.from_frame(frame, target='NAME'); for further frames "
        advice += "model.coding.dataset(frame)."
        if isinstance(value, Mapping):
            advice += " Arrays by the names of inputs are lm.data.Dataset({'age': array, ...})."
        kind = "rows" if is_rows(value) else type(cast(Any, value)).__name__
        raise _uncoded("a Dataset", kind, advice)
    if is_stream(value):
        return value if isinstance(value, Stream) else Stream(value)
    dataset = as_dataset(value)
    _require_coded(dataset, coding, is_training=is_training)
    return Stream(SparseRows(dataset)) if dataset.is_sparse else dataset


def _require_coded(dataset: Dataset, coding: Coding | None, *, is_training: bool = False) -> None:
    """Checks that a table is coded as those that a model with a coding takes."""
    if coding is None:
        return
    if dataset.coding is not None:
        from lamina.data.coding import require_equal  # only tables need it

        require_equal(coding, dataset.coding, is_training=is_training)
    if dataset.is_uncoded_frame and coding.columns:
        advice = "The model was trained on coded columns. With targets of your own: "
        advice += "(model.coding.inputs(frame), y)."
        raise _uncoded("model.coding.dataset(frame)", repr(dataset), advice)


def _uncoded(expected: str, found: str, advice: str) -> DataError:
    facts = (("expected", expected), ("found", found))
    return DataError("the columns of a data frame are not coded", facts=facts, advice=advice)


@final
@frozen_dataclass(eq=False)
class SparseRows:
    """A source of batches: the examples of a data set with sparse inputs, in its order."""

    dataset: Dataset

    def __call__(self, epoch: int, skip: int, seed: int | None) -> Iterator[Batch]:
        """The batches of an epoch, shuffled if there is a seed."""
        dataset = self.dataset
        each = sum(size_of(x.shape[1:]) * x.dtype.itemsize for x in dataset.input_arrays)
        size = max(1, _BATCH_BYTES // max(1, each))
        order: Array | None = None if seed is None else dataset.order(seed, epoch)
        for start in range(skip * size, len(dataset), size):
            stop = min(start + size, len(dataset))
            rows = np.arange(start, stop) if order is None else order[start:stop]
            (batch,) = dataset.take(rows).batches(size)
            yield batch


def whole_of(data: Dataset | Stream) -> Dataset | None:
    """All examples of a training; None for a stream, whose examples are not known."""
    if isinstance(data, Dataset):
        return data
    source = data.source
    return source.dataset if isinstance(source, SparseRows) else None


def as_inputs(value: Any, coding: Coding | None) -> Any:
    """The inputs of a prediction: a stream, or arrays as they are given, perhaps by name."""
    if isinstance(value, Dataset):
        _require_coded(value, coding)
        return as_data(Dataset(value.inputs)) if value.is_sparse else value.inputs
    if coding is not None and not coding.columns and not isinstance(value, str | Path):
        coding = None  # of pictures, which are given as arrays
    names = {column.name for column in coding.columns} if coding else ()
    if coding is not None and (is_frame(value) or is_rows(value, names)):
        return coding.inputs(value)
    if coding is not None and is_bare_row(value):
        raise _no_names(value, coding)
    if is_rows(value):
        advice = "Give an array [examples, features]. A model that was trained on "
        advice += "lm.data.from_frame(...) takes rows."
        raise _uncoded("an array", "rows", advice)
    if is_frame(value):
        if isinstance(value, Mapping):
            named = cast(Any, value)  # by the names of inputs
            return as_data(Dataset(named)) if _has_sparse(named) else named
        return to_array(value, "the inputs cannot be converted to an array")
    if isinstance(value, str | Path):
        if coding is not None:
            return coding.inputs(value)
        raise DataError(
            "predict takes arrays, not the path of a file",
            facts=(("expected", "an array"), ("found", repr(str(value)))),
            where="predict",
            advice="Read the file: lm.data.load(path).inputs, or numpy.load(path).",
        )
    if is_stream(value):
        return as_data(value)
    return as_data(Dataset(value)) if _has_sparse(value) else value


def _no_names(value: Any, coding: Coding) -> DataError:
    names = [repr(column.name) for column in coding.columns]
    more = ", ..." if len(names) > 2 else ""
    row = ", ".join(f"{name}: value" for name in names[:2])
    row_type = f"a {type(value).__name__} of {len(value)} values"
    return DataError(
        "a row of a table has no names of columns",
        facts=(("expected", f"a dict {{{row}{more}}}, or a data frame"), ("found", row_type)),
        where="predict",
        advice=f"A row by its names: model.predict({{{row}{more}}}). A row of a frame as a frame: "
        "frame.iloc[[0]].",
    )


def _has_sparse(inputs: Any) -> bool:
    return is_sparse(inputs) or any(map(is_sparse, as_tuple(inputs)))


def is_stream(value: Any) -> bool:
    """Whether a value is a stream or a source of batches, not arrays or a mistake."""
    if isinstance(value, Stream):
        return True
    if isinstance(value, list):
        items = cast(list[Any], value)
        return bool(items) and all(map(_is_batch, items))
    framed = hasattr(value, "shape") or has_columns(value)
    is_data = framed or is_buffer(value) or isinstance(value, cast(Any, (Dataset, tuple)))
    if is_data or isinstance(value, str | bytes | Mapping | type):
        return False
    return hasattr(value, "__iter__") or callable(value)


def _is_batch(value: Any) -> bool:
    if isinstance(value, Mapping | Dataset):
        return True
    items: tuple[Any, ...] = tuple(cast(Any, value)) if isinstance(value, list | tuple) else ()
    return any(hasattr(item, "shape") or isinstance(item, tuple | Mapping) for item in items)


def as_batch(value: Any) -> Dataset:
    """A batch of a source as a data set."""
    if isinstance(value, Dataset):
        return value
    if is_named(value):
        return _named_batch(cast(Mapping[str, Any], value))
    if isinstance(value, tuple | list):
        fields: tuple[Any, ...] = tuple(cast(Any, value))
        if not 1 <= len(fields) <= 3:
            raise DataError(
                "a batch is neither inputs nor a pair (inputs, targets)",
                facts=(("expected", "(x, y)"), ("found", f"{len(fields)} values")),
                advice="Several inputs make a tuple, and so do several targets: ((a, b), (y, z)). "
                "A third value is the weights of the examples.",
            )
        inputs, *others = map(_arrays, fields)
        targets, weights = (*others, None, None)[:2]
        return Dataset(inputs, targets, weights=weights)
    return Dataset(value)


def is_one_example(value: Any) -> bool:
    """Whether an item of a source is one example, not a batch: a number has no axis of examples."""
    fields: tuple[Any, ...] = tuple(cast(Any, value)) if isinstance(value, tuple | list) else ()
    return 2 <= len(fields) <= 3 and any(np.ndim(x) == 0 for x in fields if x is not None)


def _arrays(value: Any) -> Any:
    """A list of arrays, as data loaders make them, as a tuple."""
    if isinstance(value, list):
        items = cast(list[Any], value)
        if items and all(hasattr(item, "shape") for item in items):
            return tuple(items)
    return cast(Any, value)


def _named_batch(batch: Mapping[str, Any]) -> Dataset:
    """The inputs and targets of a batch with the names of a pair; otherwise inputs by name."""
    for inputs, targets in NAME_PAIRS:
        if inputs in batch and set(batch) <= {inputs, targets, _WEIGHTS}:
            fields = _arrays(batch[inputs]), _arrays(batch.get(targets))
            return Dataset(*fields, weights=_arrays(batch.get(_WEIGHTS)))
    if not any(targets in batch for _, targets in NAME_PAIRS):
        return Dataset(batch)
    pairs = ", ".join(f"{inputs}/{targets}" for inputs, targets in NAME_PAIRS)
    expected = f"{pairs}; and {_WEIGHTS}, if the examples have any"
    raise DataError(
        "the names in a batch do not tell inputs from targets",
        facts=(("expected", expected), ("found", ", ".join(map(str, batch)) or "no names")),
        advice="Give pairs: ({'a': batch['a'], 'b': batch['b']}, batch['c']) for batch in loader.",
    )


def opened(source: Any, epoch: int, skip: int, seed: int | None) -> tuple[Any, bool]:
    """An iterator over the batches of an epoch, and whether it omits the first `skip` itself."""
    if hasattr(source, "__iter__"):
        return iter(source), not skip
    names = _named_arguments(source)
    values = {"epoch": epoch, "skip": skip, "seed": seed}
    batches = source(**{name: value for name, value in values.items() if name in names})
    if not hasattr(batches, "__iter__"):
        raise DataError(
            "the function does not return batches",
            facts=(("expected", "an iterable of batches"), ("found", shown(batches))),
            where=_name(source),
            advice="Write yield x, y in it, or return a list or a loader.",
        )
    return iter(batches), "skip" in names or not skip


def depends_on_epochs_before(source: Any) -> bool:
    """Whether the batches of an epoch may depend on how often the source was read before."""
    # A loader that shuffles draws the next random numbers of its generator in each epoch.
    if isinstance(source, list | Iterator):
        return False
    return hasattr(source, "__iter__") or not _named_arguments(source)


_ARGUMENTS = frozenset(("epoch", "skip", "seed"))


def _named_arguments(function: Callable[..., Any]) -> frozenset[str]:
    """Which of `epoch`, `skip` and `seed` a source takes."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # a function of another language
        return frozenset()
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    taken = frozenset(p.name for p in parameters if p.kind in by_name) & _ARGUMENTS
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    for parameter in parameters:
        is_needed = parameter.default is parameter.empty and parameter.kind not in variable
        if is_needed and parameter.name not in taken:
            raise DataError(
                f"the function needs an argument {parameter.name!r}",
                facts=(("expected", "no arguments, or epoch, skip and seed"),),
                where=_name(function),
                advice=f"Wrap it: lambda: {_name(function)}(...).",
            )
    return taken


def _name(source: Any) -> str:
    return getattr(source, "__name__", type(source).__name__)


# Data sets, pairs of arrays, streams, and sources of batches.
AnyData = Annotated[Any, ReadBy(as_data)]
