"""`Dataset`: examples in memory, checked once, and batches of them in a reproducible order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, field
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType, DTypeLike, as_dtype, shape_text
from lamina.checks import Called
from lamina.checks.kinds import ElementType, Misfit, Number, ReadBy, Whole, shown
from lamina.data.arrays import (
    OF_A_PATH,
    Arrays,
    as_tuple,
    bytes_of,
    dense,
    example_text,
    full_text,
    map_arrays,
    named_arrays,
    read_arrays,
    type_text,
)
from lamina.data.conversion import has_columns, is_buffer, is_sparse, listed, to_array
from lamina.errors import DataError, Named
from lamina.foreign import spelling
from lamina.program.philox import ORDER_STREAM, SPLIT_STREAM, permutations

Floats = Annotated[DTypeLike, ElementType(("float",))]
# Inputs, targets, and the weights of the examples if there are any.
Batch = tuple[Any, ...]

# The names of inputs and targets that are recognised, in pairs.
NAME_PAIRS = (("x", "y"), ("inputs", "targets"), ("images", "labels"))


def positions_of(value: Any) -> Array:
    """A row of positions of examples; DataError for anything else."""
    problem = "the positions of examples must be a row of integers"
    positions = to_array(value, problem)
    if positions.ndim != 1 or positions.size == 0 or positions.dtype.kind not in "iu":
        array_type = f"{positions.dtype}{shape_text(positions.shape)}"
        raise DataError(
            problem,
            facts=(("expected", "i64[any number from 1]"), ("found", array_type)),
            advice="numpy.flatnonzero(mask) makes positions of a mask.",
        )
    return positions


def _table_coding(value: Any) -> Any:
    if value is None or (hasattr(value, "columns") and hasattr(value, "classes")):
        return value
    raise Misfit("a Coding", "the coding of a data set of lm.data.from_frame")


def _epochs(value: Any) -> range:
    if isinstance(value, range) and min(value, default=0) >= 0:
        return value
    raise Misfit("a range from 0", "range(0, 10)")


Epoch = Annotated[int, Whole(0)]
_FRACTION = Number("(0, 1)")


def _split_fraction(value: Any) -> float:
    """The fraction of the examples in the first part of a split."""
    try:
        return _FRACTION.read(value)
    except Misfit:
        raise DataError(
            "the fraction of a split must be between 0 and 1",
            facts=(("expected", "0 < fraction < 1"), ("found", shown(value))),
            advice="split(0.9) gives 90% to the first part.",
        ) from None


@frozen_dataclass(eq=False, repr=False)
class Dataset(Named, metaclass=Called):
    """Inputs and targets of examples. Arrays are neither copied nor converted, except by `dtype`.

    For example, images stay uint8 and become floats on the device.

    Args:
        inputs: an array whose first axis counts the examples. For a network with several inputs a
            tuple of such arrays, or a dict by the names of the inputs: `{"image": a, "age": b}`.
            Sparse matrices of SciPy are inputs too: their rows become dense batch by batch.
        targets: an array with as many examples, or None. For a network with several outputs a tuple
            of them, or a dict by the names of the outputs; targets of outputs without a loss are
            not used.
        dtype: a float type; arrays of floats are converted to it, others stay as they are. NumPy
            and pandas make float64, and most models compute with float32.
        coding: the `Coding` of the table from which it was made, if any.
        weights: the weights of the examples in losses and metrics: an array [examples], or with a
            number for each element of a target, 0 or more; for a network with several outputs a
            tuple of them, one for each loss, or a dict by the names of the outputs; or None. Means
            are divided by the sum of the weights.

    Raises:
        DataError: if there are no examples, or the arrays differ in their number, or hold numbers
            that `dtype` cannot.
        DTypeError: if an array is not of floats of 16, 32 or 64 bits, of int8, int16, int32,
            int64, uint8 or uint16, or of bools.

    Lists, tensors on the CPU, and buffers such as `array.array` become arrays. Python's floats in
    lists have no dtype of their own; they are kept exactly, and take the dtype of the model that
    uses them.

    >>> Dataset(np.zeros((4, 3), np.float32), np.array([0, 1, 2, 1]))
    4 examples: x f32[3], y i64[]
    >>> Dataset({"image": np.zeros((4, 3, 8), np.float32), "age": np.zeros((4, 1), np.float32)})
    4 examples: x['image'] f32[3, 8], x['age'] f32[1]
    """

    inputs: Arrays
    targets: Arrays | None = None
    _: KW_ONLY
    dtype: Floats | None = None
    coding: Annotated[Any, ReadBy(_table_coding)] = None
    weights: Arrays | None = None
    column_names: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "column_names", _columns_of(self.inputs))
        dtype = None if self.dtype is None else as_dtype(self.dtype)
        for role in ("inputs", "targets", "weights"):
            if (value := getattr(self, role)) is not None or role == "inputs":
                object.__setattr__(self, role, read_arrays(role, value, dtype))
        (first_name, first), *others = self._named_arrays()
        for name, value in others:
            if value.shape[0] != first.shape[0]:
                raise DataError(
                    f"the {first_name} and the {name} differ in the number of examples",
                    facts=(
                        (first_name, f"{first.shape[0]:,} examples, {full_text(first)}"),
                        (name, f"{value.shape[0]:,} examples, {full_text(value)}"),
                    ),
                    advice="The first axis counts the examples; its extent must be the same in all "
                    "arrays. Pass several inputs or targets as a tuple, or a dict by their names.",
                )

    @classmethod
    def from_arrays(cls, inputs: npt.ArrayLike, targets: npt.ArrayLike | None = None) -> Dataset:
        """A data set from all that NumPy converts to arrays: nested lists, tensors on the CPU.

        >>> Dataset.from_arrays([[0.5, 1.5], [2.5, 3.5]], [0, 1])
        2 examples: x float[2], y i64[]
        """
        if targets is not None:
            targets = listed(targets, "the targets cannot be converted to an array")
        return cls(listed(inputs, "the inputs cannot be converted to an array"), targets)

    @property
    def input_arrays(self) -> tuple[Array, ...]:
        """The inputs as a tuple, in the order in which they were given."""
        return as_tuple(self.inputs)

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one example of each input, without the batch axis."""
        return tuple(array.shape[1:] for array in self.input_arrays)

    @property
    def input_dtypes(self) -> tuple[DType, ...]:
        """The element type of each input."""
        return tuple(as_dtype(array.dtype) for array in self.input_arrays)

    @property
    def target_arrays(self) -> tuple[Array, ...]:
        """The targets as a tuple, in the order in which they were given; empty for none."""
        return as_tuple(self.targets)

    @property
    def target_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each target, without the batch axis."""
        return tuple(array.shape[1:] for array in self.target_arrays)

    @property
    def target_dtypes(self) -> tuple[DType, ...]:
        """The element type of each target."""
        return tuple(as_dtype(array.dtype) for array in self.target_arrays)

    @property
    def weight_arrays(self) -> tuple[Array, ...]:
        """The weights as a tuple, in the order in which they were given; empty for none."""
        return as_tuple(self.weights)

    @property
    def classes(self) -> int:
        """The number of classes: one more than the largest label.

        Raises:
            DataError: if the targets are not labels: missing, not integers, or negative.
        """
        targets = self.targets
        if not isinstance(targets, np.ndarray) or as_dtype(targets.dtype).kind != "int":
            several = f"{len(self.target_arrays)} arrays"
            text = full_text(targets) if isinstance(targets, np.ndarray) else several
            raise DataError(
                "the targets are not class labels",
                facts=(("expected", "one array of integers from 0"), ("found", text)),
                advice="Only targets of an integer type have classes.",
            )
        smallest = int(targets.min())
        if smallest < 0:
            position = int(np.argmin(targets.reshape(len(self), -1).min(axis=1)))
            expected = "integers from 0"
            raise DataError(
                "a class label is negative",
                facts=(("expected", expected), ("found", f"{smallest} in example {position}")),
                advice="Number the classes from 0, or remove the examples that have no class.",
            )
        return int(targets.max()) + 1

    @property
    def is_uncoded_frame(self) -> bool:
        """Whether the inputs were given as a data frame of numbers, which no `Coding` has coded."""
        return bool(self.column_names) and self.coding is None

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(bytes_of(array) for _, array in self._named_arrays())

    @property
    def is_sparse(self) -> bool:
        """Whether an input is a sparse matrix."""
        return any(map(is_sparse, self.input_arrays))

    def dense(self) -> Dataset:
        """The same examples with arrays in place of sparse matrices; itself if it has none."""
        return self._select(slice(None), is_dense=True) if self.is_sparse else self

    def __len__(self) -> int:
        return self.input_arrays[0].shape[0]

    def __repr__(self) -> str:
        fields: list[str] = []
        for letter, arrays in (("x", self.inputs), ("y", self.targets), ("weights", self.weights)):
            each = as_tuple(arrays)
            names = [letter] if len(each) == 1 else [f"{letter}{n}" for n in range(len(each))]
            if isinstance(arrays, Mapping):
                names = [f"{letter}[{name!r}]" for name in arrays]
            fields += [f"{n} {example_text(array)}" for n, array in zip(names, each, strict=True)]
        return f"{len(self)} example{'' if len(self) == 1 else 's'}: {', '.join(fields)}"

    def take(self, indices: Annotated[npt.ArrayLike, ReadBy(positions_of)]) -> Dataset:
        """Copies of the examples at these positions, in this order; a position may be repeated.

        Raises:
            DataError: if `indices` is empty, not a row of integers, or out of range.
        """
        positions = np.asarray(indices)
        self.require_within(positions)
        return self._select(positions)

    def require_within(self, positions: Array) -> None:
        """Raises DataError if a position is outside the data set."""
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= len(self):
            position = str(low if low < 0 else high)
            raise DataError(
                "a position is outside the data set",
                facts=(("expected", f"0 to {len(self) - 1}"), ("found", position)),
                advice="Positions count from 0; negative ones do not count from the end.",
            )

    def subset(self, start: int, stop: int | None = None) -> Dataset:
        """The examples `start` to `stop - 1`, views of this data set's memory.

        Raises:
            DataError: unless 0 <= start < stop <= len.

        >>> Dataset(np.arange(10)).subset(0, 3).inputs
        array([0, 1, 2])
        """
        end = len(self) if stop is None else stop
        if not 0 <= start < end <= len(self):
            bounds = f"start {start}, stop {end}"
            raise DataError(
                "there is no such range of examples in the data set",
                facts=(("expected", f"0 <= start < stop <= {len(self)}"), ("found", bounds)),
                advice="Choose a range that contains at least one example.",
            )
        return self._select(slice(start, end))

    def split(
        self, fraction: Annotated[float, ReadBy(_split_fraction)], seed: int = 0
    ) -> tuple[Dataset, Dataset]:
        """Splits the examples at random: this fraction in the first part, the rest in the second.

        The same seed gives the same parts on every machine. Each part has at least one example.

        Raises:
            DataError: if the fraction is not between 0 and 1, or there is only one example.
        """
        if len(self) < 2:
            raise DataError(
                "a single example cannot be split",
                facts=(("expected", "2 examples or more"), ("found", "1")),
                advice="Use the data set whole.",
            )
        first = min(max(int(fraction * len(self) + 0.5), 1), len(self) - 1)
        (order,) = permutations(len(self), seed, range(1), SPLIT_STREAM)
        return self._select(order[:first]), self._select(order[first:])

    def order(self, seed: int, epoch: Epoch) -> npt.NDArray[np.int64]:
        """The order of the examples in an epoch, int64[len]: the same on every machine.

        >>> sorted(Dataset(np.arange(4)).order(seed=0, epoch=3).tolist())
        [0, 1, 2, 3]
        """
        return self.orders(seed, range(epoch, epoch + 1))[0]

    def orders(self, seed: int, epochs: Annotated[range, ReadBy(_epochs)]) -> npt.NDArray[np.int64]:
        """The orders of several epochs, int64[epochs, len]: faster than one by one.

        >>> Dataset(np.arange(4)).orders(seed=0, epochs=range(3, 5)).shape
        (2, 4)
        """
        return permutations(len(self), seed, epochs, ORDER_STREAM)

    def batches(
        self, batch_size: int, seed: int | None = None, epoch: Epoch = 0, drop_last: bool = False
    ) -> Iterator[Batch]:
        """Pairs (x, y) of one epoch, each an array, tuple or dict as it was given, or None.

        If the examples have weights, the batches are (x, y, weights).

        Args:
            batch_size: examples in a batch; the last may have fewer.
            seed: the seed of `order(seed, epoch)`; None keeps the stored order, and the batches are
                then views of the data set's memory.
            epoch: the number of the epoch; each epoch has another order.
            drop_last: whether a smaller last batch is omitted.

        Raises:
            DataError: at the call, if the batch size is below 1, or if no batch would be left.
        """
        if batch_size < 1 or (drop_last and batch_size > len(self)):
            expected = f"1 to {len(self)}" if drop_last else "1 or more"
            raise DataError(
                "the batch size does not fit the data set",
                where="Dataset.batches",
                facts=(("expected", expected), ("found", str(batch_size))),
                advice="With drop_last=True and a batch larger than the data set, no batch is left."
                if batch_size > 0
                else "Choose a batch size of at least 1.",
            )
        order = None if seed is None else self.order(seed, epoch)
        stop = len(self) - len(self) % batch_size if drop_last else len(self)
        parts = (slice(n, min(n + batch_size, stop)) for n in range(0, stop, batch_size))
        return (self._rows(n if order is None else order[n], is_dense=True) for n in parts)

    def _select(self, rows: slice | Array, *, is_dense: bool = False) -> Dataset:
        inputs, targets, *weights = self._rows(rows, is_dense=is_dense)
        kept = weights[0] if weights else None
        selected = Dataset(inputs, targets, weights=kept, coding=self.coding)
        object.__setattr__(selected, "column_names", self.column_names)
        return selected

    def _rows(self, rows: slice | Array, *, is_dense: bool) -> Batch:
        def taken(_: str, array: Array | None) -> Array | None:
            selected = None if array is None else array[rows]
            return selected if selected is None or not is_dense else dense(selected)

        fields = (self.inputs, self.targets, *(() if self.weights is None else (self.weights,)))
        return tuple(map_arrays(arrays, taken) for arrays in fields)

    def _named_arrays(self) -> list[tuple[str, Array]]:
        named = named_arrays("inputs", self.inputs)
        for role, arrays in (("targets", self.targets), ("weights", self.weights)):
            named += [] if arrays is None else named_arrays(role, arrays)
        return named


def _columns_of(inputs: Any) -> tuple[str, ...]:
    """The names of the columns of the data frames among the inputs."""
    frames: list[Any] = list(filter(has_columns, as_tuple(inputs)))
    if any(hasattr(frame, "collect") for frame in frames):
        return ()  # a lazy frame would compute them; it is refused
    # The columns of PyArrow are arrays.
    columns = [getattr(f, "column_names", None) or getattr(f, "columns", ()) for f in frames]
    return tuple(str(name) for names in columns for name in names)


def as_dataset(value: Dataset | tuple[Any, ...] | Array) -> Dataset:
    """A `Dataset` from a data set, (x, y) or (x, y, weights), or an array of inputs alone.

    >>> as_dataset((np.zeros((2, 5), np.float32), np.ones((2, 1), np.float32)))
    2 examples: x f32[5], y f32[1]
    """
    data = cast(object, value)  # callers without a type checker pass anything
    if isinstance(data, Dataset):
        return data
    if is_sparse(data) or (is_buffer(data) and not isinstance(data, np.generic)):
        return Dataset(cast(Array, data))
    if isinstance(data, tuple) and len(cast(tuple[object, ...], data)) in (2, 3):
        inputs, targets, *weights = cast(tuple[Any, ...], data)
        return Dataset(inputs, targets, weights=weights[0] if weights else None)
    is_plain = isinstance(data, str | bytes | list | tuple | Mapping) or has_columns(value)
    advice = "Wrap it: lamina.data.Dataset(x, y). Several inputs make a tuple, ((a, b), y), or a "
    advice += "dict by their names, ({'image': a, 'age': b}, y)."
    if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not is_plain:
        # An object with examples by number, as PyTorch's data sets.
        advice = (
            "It gives one example at a time; a loader makes batches of it, which fit takes: "
            "torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)."
        )
    elif isinstance(data, str | os.PathLike):
        advice = OF_A_PATH
    elif isinstance(data, float):  # a share
        advice = spelling(["(validation)"], "validation_split")
    kind = type_text(value)
    facts = (("expected", "a Dataset, a pair (x, y) of arrays, or an array"), ("found", kind))
    raise DataError("this is not a data set", facts=facts, advice=advice)


Data = Annotated[Dataset | tuple[Any, Any] | tuple[Any, Any, Any], ReadBy(as_dataset)]
