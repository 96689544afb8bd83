"""Activations: values, first and second derivatives against NumPy and PyTorch, at kinks too."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
from layer_values import run
from random_arrays import normal64

from lamina import layers as lm

pytestmark = pytest.mark.each_case

KINKS = np.array(
    [
        [-30.0, -2.0, -1.0, -0.5, -0.0, 0.0, 1e-3, 0.5, -3.0, 0.3],
        [1, 2, 3, 6, 19, 30, 0.1, -7, 9, -0.3],
    ]
)


def _softmax(x, axis):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _exponential(x, alpha):
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _silu(x):
    return x / (1 + np.exp(-x))


def _gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


# The functions of the second half in GLU.
GATES = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": _silu,
    "gelu": _gelu,
    "relu": lambda x: np.maximum(x, 0),
    "none": lambda x: x,
}


def _gated(x, word):
    first, second = np.split(x, 2, -1)
    return first * GATES[word](second)


# The parameters of activations, as `run` names them without and with an upstream gradient.
WEIGHTS = {"PReLU": dict.fromkeys(("0.weight", ".weight"), np.array([0.25]))}
ACTIVATIONS = [
    (lm.Tanh(), np.tanh),
    (lm.Sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
    (lm.ReLU(), lambda x: np.maximum(x, 0)),
    (lm.LeakyReLU(), lambda x: np.where(x > 0, x, 0.01 * x)),
    (lm.LeakyReLU(slope=0.3), lambda x: np.where(x > 0, x, 0.3 * x)),
    (lm.ELU(), lambda x: _exponential(x, 1.0)),
    (lm.ELU(alpha=2.0), lambda x: _exponential(x, 2.0)),
    (lm.SELU(), lambda x: 1.0507009873554805 * _exponential(x, 1.6732632423543772)),
    (lm.GELU(), _gelu),
    (
        lm.GELU(approximate="tanh"),
        lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    ),
    (lm.SiLU(), _silu),
    (lm.Softplus(), lambda x: np.logaddexp(x, 0)),
    (lm.Softmax(), lambda x: _softmax(x, -1)),
    (lm.LogSoftmax(axis=1), lambda x: np.log(_softmax(x, 1))),
    (lm.Hardtanh(), lambda x: np.clip(x, -1, 1)),
    (lm.Hardtanh(low=-0.5, high=3.0), lambda x: np.clip(x, -0.5, 3)),
    (lm.Softplus(beta=2.0), lambda x: np.logaddexp(2 * x, 0) / 2),
    (lm.LogSigmoid(), lambda x: -np.logaddexp(-x, 0)),
    (lm.Mish(), lambda x: x * np.tanh(np.logaddexp(x, 0))),
    (lm.Softsign(), lambda x: x / (1 + np.abs(x))),
    (lm.Tanhshrink(), lambda x: x - np.tanh(x)),
    (lm.Softmin(), lambda x: _softmax(-x, -1)),
    *((lm.GLU(activation=word), partial(_gated, word=word)) for word in GATES),
    (lm.PReLU(), lambda x: np.where(x > 0, x, 0.25 * x)),
    (lm.Threshold(0.3, -2.0), lambda x: np.where(x > 0.3, x, -2)),
    (lm.CELU(), lambda x: _exponential(x, 1.0)),
    (lm.CELU(alpha=0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0) / 0.5))),
    (lm.Hardshrink(), lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    (lm.Hardshrink(threshold=0.3), lambda x: np.where(np.abs(x) > 0.3, x, 0)),
    (lm.Softshrink(), lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
    (lm.Softshrink(threshold=0.3), lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.3, 0)),
    (lm.ReLU6(), lambda x: np.clip(x, 0, 6)),
    (lm.Hardsigmoid(), lambda x: np.clip(x + 3, 0, 6) / 6),
    (lm.Hardswish(), lambda x: x * np.clip(x + 3, 0, 6) / 6),
    (lm.RReLU(low=0.2, high=0.4), lambda x: np.where(x > 0, x, 0.3 * x)),
    (lm.RReLU(low=0.25, high=0.25), lambda x: np.where(x > 0, x, 0.25 * x)),
]


@pytest.mark.parametrize(
    ("layer", "formula"), ACTIVATIONS, ids=[repr(layer) for layer, _ in ACTIVATIONS]
)
def test_activation_has_the_values_of_its_formula(layer, formula):
    for x in (KINKS, normal64(3, 4)):
        expected = formula(x)
        values = run(layer, x, variables=WEIGHTS.get(type(layer).__name__))
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-13)
    x = np.array([[np.nan, 1.0]])
    assert np.isnan(run(layer, x, variables=WEIGHTS.get(type(layer).__name__))[0, 0])


def module_of(torch, layer):
    """PyTorch's module that is equal to an activation."""
    name = type(layer).__name__
    if name == "Hardsigmoid":  # the slope of PyTorch's module is a float32
        return lambda x: torch.nn.functional.relu6(x + 3) / 6
    if name == "GLU" and layer.activation != "sigmoid":
        gate = getattr(torch.nn.functional, layer.activation, lambda x: x)
        return lambda x: x.chunk(2, -1)[0] * gate(x.chunk(2, -1)[1])
    # The options are in PyTorch's order; PReLU has the same slope.
    options = [field.name for field in dataclasses.fields(layer) if field.name in TAKEN]
    values = [] if name == "PReLU" else [getattr(layer, option) for option in options]
    return getattr(torch.nn, name)(*values).double().eval()


TAKEN = ("axis", "slope", "alpha", "approximate", "beta", "low", "high", "threshold", "value")
# The second derivatives of these at the kinks are other ones in PyTorch.
OTHER_SECOND = ("ELU", "SELU", "CELU")


@pytest.mark.parametrize("layer", [layer for layer, _ in ACTIVATIONS], ids=repr)
def test_activation_agrees_with_pytorch_at_kinks(layer, torch):
    name = type(layer).__name__
    # The softplus of PyTorch is the identity above 20.
    tolerance = 5e-9 if name == "Softplus" else 1e-12
    x = torch.tensor(KINKS, requires_grad=True)
    y = module_of(torch, layer)(x)
    weights = np.cos(np.arange(y.numel())).reshape(y.shape)
    (first,) = torch.autograd.grad((y * torch.tensor(weights)).sum(), x, create_graph=True)
    second = np.zeros_like(KINKS)
    if first.requires_grad:
        second = torch.autograd.grad((first * first).sum(), x)[0].numpy()
    variables = WEIGHTS.get(name)
    result = run(layer, KINKS, variables=variables)
    np.testing.assert_allclose(result, y.detach().numpy(), tolerance, tolerance)
    result = run(layer, KINKS, upstream=weights, variables=variables)
    np.testing.assert_allclose(result, first.detach().numpy(), tolerance, tolerance)
    result = run(layer, KINKS, upstream=weights, variables=variables, twice=True)
    compared = KINKS != 0 if name in OTHER_SECOND else np.full(KINKS.shape, True)
    np.testing.assert_allclose(result[compared], second[compared], tolerance, tolerance)


def test_exponential_activations_have_finite_slopes_far_out():
    x = np.array([[-1e4, 1e4, 800.0, -800.0]])
    approximate = lm.GELU(approximate="tanh")
    for layer in (lm.ELU(), lm.SELU(), lm.GELU(), approximate, lm.SiLU(), lm.Softplus()):
        assert np.isfinite(run(layer, x)).all()
        assert np.isfinite(run(layer, x, upstream=np.ones_like(x))).all()


def test_rrelu_draws_a_slope_for_each_element():
    x = -np.ones((50, 40))
    slopes = -run(lm.RReLU(low=0.1, high=0.3), x, training=True)
    assert 0.1 <= slopes.min() < 0.11
    assert 0.29 < slopes.max() <= 0.3
    assert len(np.unique(slopes)) > 1990
    assert abs(slopes.mean() - 0.2) < 0.005
    gradient = run(lm.RReLU(low=0.1, high=0.3), x, training=True, upstream=np.ones_like(x))
    np.testing.assert_allclose(gradient, slopes, rtol=1e-12)
    assert (run(lm.RReLU(), -x, training=True) == 1).all()
