"""top_k: few elements are selected, many are sorted, and the results are the same."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.errors import ShapeError
from lamina.program.steps import Loop, Sort

VALUES = np.array(
    [[1.5, np.nan, -0.0, 0.0, 1.5, -np.inf, np.inf, np.nan, -2.0, 0.5, 1.5, 3.0]], np.float32
)


def model_of(count: int, largest: bool, dtype: str = "float32") -> lm.Model:
    x = lm.Input(VALUES.shape[1], dtype=dtype)
    return lm.Model(lm.Network(x, ops.top_k(x, count, largest=largest)), seed=0)


def sorts(count: int, dtype: str = "float32") -> int:
    """The number of sorts in the program."""
    x = lm.Input(VALUES.shape[1], dtype=dtype)
    program = lm.Network(x, ops.top_k(x, count)).plan(4).program
    loops = [step for step in program.steps if isinstance(step, Loop)]
    return sum(isinstance(stage, Sort) for loop in loops for stage in loop.stages)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_selected_elements_are_the_first_of_the_sorted_ones(count, largest):
    values, positions = model_of(count, largest).predict(VALUES)
    all_values, all_positions = model_of(VALUES.shape[1], largest).predict(VALUES)
    np.testing.assert_array_equal(positions, all_positions[:, :count])
    np.testing.assert_array_equal(values.view(np.int32), all_values[:, :count].view(np.int32))


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("largest", [True, False])
def test_integers_are_selected_in_the_order_of_a_sort(dtype, largest):
    ends = np.iinfo(dtype)
    x = np.array([[5, ends.max, ends.min, 5, 7, ends.min, 0, ends.max, 1, 2, 3, 4]], dtype)
    _, positions = model_of(6, largest, dtype).predict(x)
    order = np.argsort(-x.astype(np.int64) if largest else x, 1, kind="stable")
    np.testing.assert_array_equal(positions, order[:, :6])


def test_few_elements_are_selected_without_a_sort():
    assert [sorts(count) for count in (1, 8, 9, 12)] == [0, 0, 1, 1]
    # Elements of 64 bits are sorted.
    assert sorts(2, "int64") == 1


def test_a_model_in_float64_sorts_what_was_defined_in_float32():
    x = lm.Input(VALUES.shape[1])
    network = lm.Network(x, ops.top_k(x, 3))
    values, positions = lm.Model(network, dtype="float64").predict(VALUES.astype("float64"))
    narrow, same = lm.Model(network).predict(VALUES)
    np.testing.assert_array_equal(positions, same)
    np.testing.assert_array_equal(values, narrow)
    # Two numbers that are equal in float32.
    close = VALUES.astype("float64")
    close[0, :2] = 7.0, 7.0 + 1e-12
    _, order = lm.Model(network, dtype="float64").predict(close)
    assert order[0, :3].tolist() == [7, 6, 1]


@pytest.mark.parametrize("count", [3, 9])
def test_a_batch_with_fewer_elements_is_refused(count):
    x = lm.Input(2)
    function = lm.compile(inputs=[x], outputs=list(ops.top_k(x, count, axis=0)))
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    _, positions = function(rows)
    np.testing.assert_array_equal(positions[:3, 0], [9, 8, 7])
    with pytest.raises(ShapeError) as caught:
        function(rows[:2])
    assert f"top_k: axis 0 has fewer than {count} elements" in str(caught.value)
    assert "Take at most 2." in str(caught.value)
