"""Numbers that anyone can check by hand or find in a textbook."""

from __future__ import annotations

import numpy as np
import pytest

import lamina as lm


def test_the_sigmoid_and_its_derivative() -> None:
    x = lm.Input()
    y = lm.ops.sigmoid(x)
    f = lm.compile(inputs=[x], outputs=[y, *lm.gradients(y, [x])])
    value, slope = f(np.array([-0.6, 0.0, 0.2, 0.5, 0.7, 1.0], "float32"))
    assert value.round(2).tolist() == pytest.approx([0.35, 0.50, 0.55, 0.62, 0.67, 0.73])
    assert slope.round(2).tolist() == pytest.approx([0.23, 0.25, 0.25, 0.24, 0.22, 0.20])


def test_the_derivatives_of_x3_exp_of_x1_plus_x2() -> None:
    inputs = [lm.Input(dtype="float64") for _ in range(3)]
    x1, x2, x3 = inputs
    y = x3 * lm.ops.exp(x1 + x2)
    first = lm.gradients(y, inputs)
    second = [derivative for slope in first for derivative in lm.gradients(slope, inputs)]
    f = lm.compile(inputs=inputs, outputs=[y, *first, *second])
    values = list(np.random.default_rng(0).uniform(-2, 2, (3, 20)))
    power = np.exp(values[0] + values[1])
    whole, zero = values[2] * power, np.zeros(20)
    expected = [whole, whole, whole, power]
    expected += [whole, whole, power, whole, whole, power, power, power, zero]
    np.testing.assert_allclose(f(*values), expected, rtol=1e-14, atol=0)


def test_a_network_of_two_four_and_one_neurons() -> None:
    net = lm.Sequential(lm.Input(2), lm.Linear(4), lm.Tanh(), lm.Linear(1), lm.Sigmoid())
    model = lm.Model(net)
    model.set_parameters(
        {
            "1.weight": [[0.3, 0.6], [0.1, 2.0], [0.9, 3.7], [0.0, 1.0]],
            "1.bias": [-0.7, -0.2, -1.1, -2.0],
            "3.weight": [[0.75, 0.15, 0.22, 0.33]],
            "3.bias": [-0.3],
        }
    )
    assert model.predict([[0.3, 0.9]]).item() == pytest.approx(0.4352, abs=5e-5)
