"""Part of a tensor: `x[key]`, as in NumPy.

Ints, slices, `...` and None move elements only. An array of indices, or a mask, takes elements. A
mask is an array of bools whose number of true elements is known: it stands for the arrays of their
coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeGuard, cast

import numpy as np

from lamina.base.shapes import (
    Array,
    Dim,
    Size,
    add_dims,
    as_whole,
    broadcast_all,
    divide_counts,
    int64,
    shape_text,
    static,
)
from lamina.base.shapes import element_count as count_of
from lamina.errors import DTypeError, LaminaError, ShapeError
from lamina.graph import CONSTANT, Tensor, constant, described, operator
from lamina.ops import basic as ops
from lamina.ops.arguments import as_tensor, refused
from lamina.ops.slicing import difference, is_negative, sliced

__all__ = ["getitem"]

# An entry of a key for an axis, or None for a new axis. An array has its elements counted from 0.
Entry = slice | int | Size | Tensor | None


@operator
def getitem(x: Tensor, key: Any) -> Tensor:
    """Part of a tensor, as `x[key]` in NumPy: ints, slices, `...`, None, and arrays.

    Arrays of ints, and tensors of ints, take elements; several of them broadcast. The axes of their
    result come where the arrays are, or first if a slice, `...` or None separates the arrays. Ints
    next to arrays count as arrays. Arrays may count from the end, tensors may not: those out of
    range are clamped. A mask is an array of bools, not a tensor.

    Along an axis that depends on the batch, bounds are not clipped to the extent: `x[:5]` needs a
    batch of at least 5. There an array counts from 0, and there is no mask.
    """
    x = as_tensor(x)
    entries, after = _whole_key(x, key)
    if not any(isinstance(entry, Tensor) for entry in entries):
        return _moved(x, entries)
    # First the axes without arrays; each entry becomes one axis.
    arrays = {
        number: entry if isinstance(entry, Tensor) else constant(np.int64(0))
        for number, entry in enumerate(entries)
        if isinstance(entry, Tensor | int | Size)
    }
    kept = [slice(None) if number in arrays else entry for number, entry in enumerate(entries)]
    for number, entry in enumerate(entries):
        if isinstance(entry, int | Size):
            start = _index_of(x, _axis_of_entry(entries, number), entry)
            kept[number] = slice(start, add_dims(start, 1))
    # Here `...` separates arrays even if it stands for no axis, as in NumPy.
    separated = min(arrays) < after <= max(arrays)
    return _taken(_moved(x, kept), arrays, separated=separated)


def _axis_of_entry(entries: Sequence[Entry], number: int) -> int:
    return sum(entry is not None for entry in entries[:number])


def _moved(x: Tensor, entries: Sequence[Entry]) -> Tensor:
    """Part of a tensor, for a key without arrays."""
    named = [entry for entry in entries if entry is not None]
    ranges = [_range_of(x, axis, entry) for axis, entry in enumerate(named)]
    starts = tuple(start for start, _, _ in ranges)
    stops = tuple(stop for _, stop, _ in ranges)
    part = sliced(x, starts, stops, tuple(abs(step) for _, _, step in ranges))
    part = ops.flip(part, [axis for axis, (_, _, step) in enumerate(ranges) if step < 0])
    dims = iter(part.shape)
    shape = [(entry, 1 if entry is None else next(dims)) for entry in entries]
    return ops.reshape(part, [dim for entry, dim in shape if not isinstance(entry, int | Size)])


def _out_of_range(x: Tensor, axis: int, index: str) -> LaminaError:
    return ShapeError(
        f"index {index} does not fit axis {axis}, which has extent {x.shape[axis]}",
        facts=(("tensor", described(x)), ("index", index)),
        advice="Indices count from 0, negative ones from the end. If the extent depends on the "
        "batch, the step must be 1, or the slice [::-1].",
    )


def _index_of(x: Tensor, axis: int, entry: int | Size) -> Dim:
    dim = x.shape[axis]
    position = add_dims(dim, entry) if isinstance(entry, int) and entry < 0 else entry
    if is_negative(position) or is_negative(difference(dim, add_dims(position, 1))):
        raise _out_of_range(x, axis, str(entry))
    return position


def _range_of(x: Tensor, axis: int, entry: Entry) -> tuple[Dim, Dim, int]:
    """(start, stop, step) with start <= stop; the range is reversed if the step is negative."""
    if not isinstance(entry, slice):
        assert isinstance(entry, int | Size)
        start = _index_of(x, axis, entry)
        return start, add_dims(start, 1), 1
    dim, ends = x.shape[axis], (entry.start, entry.stop, entry.step)
    text = ":".join("" if end is None else str(end) for end in ends)
    limits = _limit(entry.start), _limit(entry.stop)
    step = 1 if entry.step is None else as_whole(entry.step)
    if not step:
        raise _out_of_range(x, axis, text)
    if isinstance(dim, int) and not any(isinstance(limit, Size) for limit in limits):
        chosen = range(*slice(*limits, step).indices(dim))
        if not chosen:
            return 0, 0, step
        return min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1, step
    if step < 0 and (step != -1 or limits != (None, None)):
        raise _out_of_range(x, axis, text)
    pairs = zip(limits, (0, dim), strict=True)
    ends_given = [default if limit is None else limit for limit, default in pairs]
    start, stop = (add_dims(dim, n) if isinstance(n, int) and n < 0 else n for n in ends_given)
    return start, stop, step


def _limit(limit: object) -> Any:
    """An end of a range: a whole number, a size, or None."""
    number = as_whole(limit)
    if number is None and not (limit is None or isinstance(limit, Size)):
        raise refused("an end of a slice", "a whole number, or nothing", limit)
    return limit if number is None else number


def _whole_key(x: Tensor, key: Any) -> tuple[list[Entry], int]:
    """The key with an entry for each axis, masks as indices; the number of the one after `...`."""
    indices: tuple[Any, ...] = cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,)
    entries: list[Any] = [_entry_of(x, entry) for entry in indices]
    # Each entry stands for an axis, but a mask for several, and `...` and None for none.
    axes = [entry.ndim if _is_array(entry, "b") else 1 for entry in entries if entry is not None]
    dots = sum(entry is Ellipsis for entry in entries)
    named = sum(axes) - dots
    if named > x.rank or dots > 1:
        raise ShapeError(
            "too many indices",
            facts=(("tensor", described(x)), ("found", f"{named} indices, {dots} times ...")),
            advice=f"The tensor has {x.rank} axes; write ... at most once.",
        )
    # By identity, as arrays are compared element by element.
    dots_at = next((n for n, entry in enumerate(entries) if entry is Ellipsis), len(entries))
    fill = [slice(None)] * (x.rank - named)
    filled: list[Any] = [*entries[:dots_at], *fill, *entries[dots_at + 1 :]]
    listed: list[Entry] = []
    after = -1
    for number, entry in enumerate(filled):
        if number == dots_at:
            after = len(listed)
        axis = _axis_of_entry(listed, len(listed))
        if _is_array(entry, "b"):
            listed += _coordinates(x, axis, entry)
        elif _is_array(entry, "iu"):
            listed.append(constant(_counted_from_0(x, axis, entry)))
        else:
            listed.append(entry)
    return listed, after


def _is_array(entry: Any, kinds: str) -> TypeGuard[Array]:
    """Whether an entry is an array with elements of some of NumPy's kinds."""
    return isinstance(entry, np.ndarray) and cast(Array, entry).dtype.kind in kinds


def _entry_of(x: Tensor, entry: Any) -> Any:
    """An entry; lists become arrays, and arrays without axes ints."""
    if isinstance(entry, list):
        listed = cast("list[Any]", entry)
        try:
            entry = np.asarray(listed) if listed else np.zeros(0, np.int64)
        except (ValueError, LaminaError):
            raise _no_index(x, listed) from None
    if _is_array(entry, "iu"):
        return entry if entry.ndim else int(entry)
    if _is_array(entry, "b") and entry.ndim:
        return entry
    if isinstance(entry, Tensor) and entry.dtype.kind == "int":
        return entry
    if isinstance(entry, slice | EllipsisType | Size | type(None)):
        return cast(Any, entry)
    number = as_whole(entry)
    if number is None:
        raise _no_index(x, entry)
    return number


def _no_index(x: Tensor, entry: object) -> LaminaError:
    is_mask = isinstance(entry, Tensor) and entry.dtype.kind == "bool"
    entry_type = described(entry) if isinstance(entry, Tensor) else type(entry).__name__
    return DTypeError(
        "a tensor can be indexed with ints, slices, ..., None, and arrays of ints or bools",
        facts=(("tensor", described(x)), ("found", entry_type)),
        advice="How many elements a computed mask selects is not known: use "
        "ops.where(condition, a, b)."
        if is_mask
        else "Convert indices to integers first, for example with np.asarray(indices, int).",
    )


def _coordinates(x: Tensor, axis: int, mask: Array) -> list[Entry]:
    """The indices for which a mask over some axes stands."""
    shape = x.shape[axis : axis + mask.ndim]
    if shape != mask.shape:
        raise ShapeError(
            "the mask does not have the shape of its axes",
            facts=(
                ("tensor", described(x)),
                ("expected", f"{shape_text(shape)}, the extents from axis {axis} on"),
                ("found", shape_text(mask.shape)),
            ),
            advice="Along an axis that depends on the batch, use ops.where(condition, a, b).",
        )
    return [constant(indices) for indices in np.nonzero(mask)]


def _counted_from_0(x: Tensor, axis: int, indices: Array) -> Array:
    dim = x.shape[axis]
    counted = indices.astype(np.int64)
    outside = counted < 0
    if isinstance(dim, int):
        outside = (counted < -dim) | (counted >= dim)
        counted = np.where(counted < 0, counted + dim, counted)
    if outside.any():
        raise _out_of_range(x, axis, str(indices[outside][0]))
    return counted


def _taken(x: Tensor, arrays: dict[int, Tensor], *, separated: bool) -> Tensor:
    """The elements at the indices in arrays, one for each of some axes."""
    axes = list(arrays)
    if len(axes) == 1:
        return ops.take(x, arrays[axes[0]], axes[0])
    try:
        shape = broadcast_all([indices.shape for indices in arrays.values()])
    except LaminaError:
        raise ShapeError(
            "the arrays of indices do not fit together",
            facts=tuple((f"axis {axis}", described(array)) for axis, array in arrays.items()),
            advice="Their shapes must broadcast as in NumPy.",
        ) from None
    others = [axis for axis in range(x.rank) if axis not in arrays]
    adjacent = not separated and axes == list(range(axes[0], axes[-1] + 1))
    first = axes[0] if adjacent else 0
    # An axis that depends on the batch has no stride, so it comes first among the indexed axes.
    axes.sort(key=lambda axis: isinstance(x.shape[axis], int))
    joined = ops.transpose(x, [*others[:first], *axes, *others[first:]])
    extents = tuple(x.shape[axis] for axis in axes)
    extent = divide_counts(count_of(extents), (1,))
    if extent is None:
        raise ShapeError(
            "two axes that depend on the batch cannot be indexed together",
            facts=(("tensor", described(x)),),
            advice="Index one after the other.",
        )
    kept = joined.shape
    flat = ops.reshape(joined, (*kept[:first], extent, *kept[first + len(axes) :]))
    return ops.take(flat, ops.broadcast_to(_flat_indices(x, arrays, axes), shape), first)


def _flat_indices(x: Tensor, arrays: dict[int, Tensor], axes: Sequence[int]) -> Tensor:
    """The index in all axes together, the last axis fastest."""
    limited: list[Tensor] = []
    for axis in axes:
        dim, indices = x.shape[axis], ops.cast(arrays[axis], int64)
        if indices.op is not CONSTANT:  # constants were checked
            last = dim - 1 if isinstance(dim, int) else ops.element_count(x, axis, int64) - 1
            indices = ops.maximum(ops.minimum(indices, last), 0)
        limited.append(indices)
    total, *further = limited
    # Only the first of the axes may depend on the batch.
    for axis, indices in zip(axes[1:], further, strict=True):
        total = total * static((x.shape[axis],))[0] + indices
    return total
