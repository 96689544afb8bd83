"""TabM: the formula of its layers, and the outputs of the package of its authors."""

import numpy as np
import pytest

import lamina as lm

X = np.random.default_rng(0).standard_normal((20, 8)).astype("float32")
NET = lm.networks.tabm(8, 3, members=16, width=24, blocks=2)


def reference(values, x):
    """Of each member: x scaled by r, times the shared weight, scaled by s."""
    x = x[:, None]
    for layer in (1, 4):
        r, weight, s, bias = (values[f"{layer}.{name}"] for name in ("r", "weight", "s", "bias"))
        x = np.maximum((x * r) @ weight.T * s + bias, 0)
    return np.einsum("bki,kif->bkf", x, values["7.weight"]) + values["7.bias"]


def test_outputs_are_those_of_the_formula():
    model = lm.Model(NET, seed=3)
    values = model.parameters()
    np.testing.assert_allclose(model.predict(X), reference(values, X), rtol=1e-4, atol=1e-5)
    assert set(np.unique(values["1.r"])) == {-1.0, 1.0}
    assert (values["4.r"] == 1).all()
    assert (values["1.s"] == 1).all()


def test_members_of_an_input_that_has_them():
    layer = lm.LinearBatchEnsemble(5)
    assert str(layer(lm.Input(4, 3)).shape) == "(batch, 4, 5)"
    with pytest.raises(lm.errors.ShapeError, match="LinearEnsemble needs an axis of members"):
        lm.LinearEnsemble(5)(lm.Input(3))


def test_outputs_equal_those_of_the_package(torch):
    tabm = pytest.importorskip("tabm")
    torch.manual_seed(0)
    theirs = tabm.TabM.make(n_num_features=8, d_out=3, d_block=24, k=16, n_blocks=2).eval()
    model = lm.from_torch(NET, theirs.state_dict())
    expected = theirs(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-5)
    assert NET.parameter_count() == sum(p.numel() for p in theirs.parameters())
