"""Shapes: dtypes, sizes that depend on the batch, and NumPy's rule of broadcasting."""

import itertools
import sys
from types import ModuleType

import numpy as np
import pytest
from error_texts import error_text

from lamina.base.shapes import (
    BATCH,
    PUBLIC_DTYPES,
    Size,
    add_dims,
    as_dtype,
    bind,
    bind_dim,
    broadcast,
    broadcast_all,
    divide_counts,
    element_count,
    float32,
    float64,
    int32,
    int64,
    is_masked_array,
    normalise_axes,
    normalise_axis,
    promote,
    scale_dim,
    shape_text,
    size_of,
    static,
    uint8,
)
from lamina.errors import DTypeError, ShapeError

pytestmark = pytest.mark.each_case

BATCHES = (1, 2, 3, 7, 64)


@pytest.mark.parametrize("name", PUBLIC_DTYPES)
def test_a_dtype_is_found_by_its_name_its_numpy_dtype_and_itself(name):
    dtype = PUBLIC_DTYPES[name]
    assert as_dtype(name) is as_dtype(dtype.numpy) is as_dtype(dtype) is dtype
    # The name is known once `numpy` has imported ml_dtypes.
    assert dtype.numpy == np.dtype(name)


def test_python_types_stand_for_dtypes_and_elements_have_numpys_sizes():
    assert [as_dtype(python).name for python in (bool, int, float)] == ["bool", "int64", "float32"]
    assert [d.itemsize for d in (uint8, int32, int64, float32, float64)] == [1, 4, 8, 4, 8]


# The call and its error; all are of wrong dtypes, shapes and axes.
REFUSED = {
    "an unknown dtype": (
        DTypeError,
        lambda: as_dtype("float8"),
        """there is no dtype 'float8'
  expected  float32, float64, bfloat16, float16, int32, int64, uint8, int8, int16, uint16, bool
  found     float8
  Convert the array first, for example with array.astype('float32').""",
    ),
    "two types of floats": (
        DTypeError,
        lambda: promote(float32, float64),
        """float32 and float64 are mixed
  left   float32
  right  float64
  Cast one of them: ops.cast(x, 'float64') or ops.cast(x, 'float32').""",
    ),
    "a shape with the batch that must be static": (
        ShapeError,
        lambda: static((3, BATCH)),
        """a fixed shape is needed here
  found  [3, batch]
  The batch size is known only after compilation; keep it out of this argument.""",
    ),
    "shapes that differ": (
        ShapeError,
        lambda: broadcast((BATCH, 4, 3), (5, 3)),
        """the shapes differ in axis -2, 4 against 5
  left   [batch, 4, 3]
  right  [5, 3]
  Dimensions must be equal, or one of them 1; reshape one operand.""",
    ),
    "the batch and a number": (
        ShapeError,
        lambda: broadcast((BATCH, 3), (8, 3)),
        """the shapes differ in axis -2, batch against 8
  left   [batch, 3]
  right  [8, 3]
  Dimensions must be equal, or one of them 1; reshape one operand.""",
    ),
    "a missing axis": (
        ShapeError,
        lambda: normalise_axis(2, 2),
        """there is no axis 2
  expected  an axis from -2 to 1
  found     2
  The tensor has 2 axes; axis 0 is the batch.""",
    ),
    "an axis named twice": (
        ShapeError,
        lambda: normalise_axes((1, -1), 2),
        "an axis is named twice\n  found  (1, -1)\n  Name each axis once.",
    ),
}


@pytest.mark.cases("kind, call, text", REFUSED)
def test_what_does_not_fit_is_refused(kind, call, text):
    assert error_text(kind, call) == text


def test_the_wider_dtype_wins_from_either_side():
    chain = [PUBLIC_DTYPES[name] for name in ("bool", "uint8", "int32", "int64", "float32")]
    for one, other in itertools.combinations_with_replacement(chain, 2):
        assert promote(one, other) is promote(other, one) is other
    assert promote(uint8, float64) is float64


def test_sizes_and_shapes_are_shown_as_formulas():
    shape = (BATCH, 3, Size(2), Size(1, 3), Size(4, -1))
    assert shape_text(shape, float32) == "f32[batch, 3, 2*batch, batch+3, 4*batch-1]"


@pytest.mark.parametrize(
    ("left", "right"), [(Size(2, 1), Size(3, -4)), (Size(2, 1), 5), (3, 4), (7, Size(1))]
)
def test_adding_sizes_and_binding_commute(left, right):
    total = add_dims(left, right)
    for batch in BATCHES:
        assert bind_dim(total, batch) == bind_dim(left, batch) + bind_dim(right, batch)


@pytest.mark.parametrize("dim", [Size(2, 1), Size(1, -3), 6])
def test_scaling_a_size_and_binding_commute(dim):
    for factor, batch in itertools.product((1, 2, 5), BATCHES):
        assert bind_dim(scale_dim(dim, factor), batch) == factor * bind_dim(dim, batch)


def test_sizes_without_the_batch_are_numbers():
    assert add_dims(Size(1, 5), Size(-1, 0)) == 5
    assert bind((BATCH, 3, Size(2, 1)), 10) == (10, 3, 21)
    assert static((3, 4)) == (3, 4)


@pytest.mark.parametrize(
    "shape", [(), (3,), (BATCH, 4), (BATCH, BATCH), (Size(2, 1), 3, Size(1, -1)), (BATCH, 0)]
)
def test_the_count_of_elements_is_a_polynomial_in_the_batch(shape):
    count = element_count(shape)
    for batch in BATCHES:
        value = sum(c * batch**power for power, c in enumerate(count))
        assert value == size_of(bind(shape, batch))
    # An empty shape has no empty powers.
    assert 0 not in shape or count == (0,)


@pytest.mark.cases(
    ("total", "part", "result"),
    ((BATCH, 6), (3,), Size(2)),
    ((BATCH, 6), (BATCH,), 6),
    ((BATCH, BATCH), (BATCH,), BATCH),
    ((12,), (4,), 3),
    ((Size(2, 2), 3), (BATCH, 1), None),
    ((Size(2, 2), 3), (6,), Size(1, 1)),
    ((BATCH, 5), (2,), None),
    ((5,), (BATCH,), None),
    ((BATCH, BATCH), (1,), None),
    ((BATCH, 0), (3,), 0),
    ((6,), (0,), None),
)
def test_counts_are_divided_to_a_whole_dimension_or_not_at_all(total, part, result):
    assert divide_counts(element_count(total), element_count(part)) == result


def test_broadcasting_follows_numpy_for_all_small_shapes():
    shapes = [s for rank in range(4) for s in itertools.product((1, 2, 3), repeat=rank)]
    for left, right in itertools.product(shapes, shapes):
        try:
            expected = np.broadcast_shapes(left, right)
        except ValueError:
            with pytest.raises(ShapeError):
                broadcast(left, right)
        else:
            assert broadcast(left, right) == expected


def test_the_batch_fits_itself_and_1():
    assert broadcast_all([(BATCH, 1), (3,), (1, 1)]) == (BATCH, 3)


def test_axes_count_from_either_end_and_come_back_in_rising_order():
    assert [normalise_axis(axis, 3) for axis in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    assert normalise_axes(None, 3) == (0, 1, 2)
    assert normalise_axes((2, -3), 3) == (0, 2)


def test_arrays_are_none_that_are_masked_while_a_thread_loads_these(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.ma", ModuleType("numpy.ma"))
    assert not is_masked_array(np.ones(2))
