"""Initial values: distributions, fans, repeatability."""

import math

import numpy as np
import pytest

from lamina import ops
from lamina.base.shapes import int64
from lamina.graph import Graph, constant, evaluate
from lamina.layers import init

ALL = [
    init.Zeros(),
    init.Constant(0.25),
    init.Uniform(-1.0, 2.0),
    init.Normal(mean=1.0, deviation=0.5),
    init.XavierUniform(),
    init.XavierNormal(),
    init.KaimingUniform(),
    init.KaimingNormal(mode="fan_out", nonlinearity="relu"),
    init.Orthogonal(),
    init.RandomSigns(),
]


@pytest.mark.parametrize("initializer", ALL, ids=repr)
def test_values_are_float64_of_the_shape_and_follow_from_seed_and_stream(initializer):
    first = initializer((4, 3, 2), seed=7, stream=5)
    assert (first.shape, first.dtype) == ((4, 3, 2), np.float64)
    np.testing.assert_array_equal(first, initializer((4, 3, 2), seed=7, stream=5))
    for seed, stream in ((8, 5), (7, 6), (7 + (1 << 32), 5)) if initializer in ALL[2:] else ():
        assert not np.array_equal(first, initializer((4, 3, 2), seed=seed, stream=stream))


def evaluated(tensor):
    outputs, _ = evaluate(Graph((), (("x", tensor),)), {})
    return outputs["x"]


@pytest.mark.parametrize("count", [1, 3, 10, 5 * (1 << 13) + 3])
def test_each_piece_of_uniform_numbers_is_that_of_the_op_at_its_own_step(count):
    piece, stream = 1 << 13, 4 + (1 << 32)
    numbers = init.Uniform(0.0, 1.0)((count,), 9, stream)
    for number in range(math.ceil(count / piece)):
        drawn = numbers[number * piece : (number + 1) * piece]
        step = constant(-1 - number, int64)
        op = ops.uniform(drawn.shape, constant(9, int64), step, stream, dtype="float64")
        np.testing.assert_array_equal(drawn, evaluated(op))
    assert np.unique(numbers).size == count


def test_normal_numbers_are_those_of_the_op_before_the_first_step():
    op = ops.normal((10,), constant(9, int64), constant(-1, int64), 4, dtype="float64")
    np.testing.assert_array_equal(init.Normal()((2, 5), 9, 4).ravel(), evaluated(op))


def test_options_shift_and_scale_the_numbers():
    shape = (1000, 3)
    uniform, normal = init.Uniform(0.0, 1.0)(shape, 1, 2), init.Normal()(shape, 1, 2)
    np.testing.assert_allclose(init.Uniform(-1.0, 3.0)(shape, 1, 2), 4 * uniform - 1, rtol=1e-12)
    shifted = init.Normal(mean=2.0, deviation=0.5)(shape, 1, 2)
    np.testing.assert_allclose(shifted, 0.5 * normal + 2, rtol=1e-12)


@pytest.mark.cases(
    ("initializer", "deviation"),
    (init.XavierUniform(gain=2.0), 2.0 * math.sqrt(2 / (40 * 9 + 60 * 9))),
    (init.XavierNormal(), math.sqrt(2 / (40 * 9 + 60 * 9))),
    (init.KaimingUniform(), math.sqrt(2 / (40 * 9))),
    (init.KaimingUniform(slope=math.sqrt(5.0)), math.sqrt(1 / (3 * 40 * 9))),
    (init.KaimingNormal(mode="fan_out"), math.sqrt(2 / (60 * 9))),
    (init.KaimingNormal(nonlinearity="tanh"), 5 / 3 / math.sqrt(40 * 9)),
    (init.KaimingNormal(slope=0.5), math.sqrt(2 / 1.25 / (40 * 9))),
    ids=repr,
)
def test_deviation_follows_from_the_fans(initializer, deviation):
    values = initializer((60, 40, 3, 3), seed=3, stream=1)
    np.testing.assert_allclose(values.std(), deviation, rtol=0.02)
    np.testing.assert_allclose(values.mean(), 0.0, atol=0.02 * deviation)
    is_uniform = "Uniform" in type(initializer).__name__
    assert (0.99 < np.abs(values).max() / (math.sqrt(3) * deviation) <= 1) == is_uniform


def test_gains_are_those_of_pytorch(torch):
    standard = init.Normal()((3, 4), 1, 2)
    for word in ("linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"):
        gain = torch.nn.init.calculate_gain(word, 0.3 if word == "leaky_relu" else None)
        values = init.KaimingNormal(slope=0.3, nonlinearity=word)((3, 4), 1, 2)
        np.testing.assert_allclose(values, standard * gain / 2, rtol=1e-12)


@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (8, 3), (6, 2, 2)])
def test_orthogonal_rows_or_columns_are_orthonormal(shape):
    matrix = init.Orthogonal(gain=2.0)(shape, seed=0, stream=0).reshape(shape[0], -1) / 2.0
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-12)


def test_orthogonal_signs_are_not_those_of_the_factorisation():
    corners = [init.Orthogonal()((3, 3), seed=seed, stream=0)[0, 0] for seed in range(40)]
    assert 10 <= sum(corner > 0 for corner in corners) <= 30
