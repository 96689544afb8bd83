"""Weight tying: one weight in two layers; values, gradients, files, and errors."""

from dataclasses import dataclass

import numpy as np
import pytest

import lamina as lm
from lamina import ops

COUNT, WIDTH, LENGTH = 9, 6, 5
LOSS, SGD = lm.CrossEntropy(), lm.SGD(0.5, momentum=0.9)


def language_network(bias=True):
    tokens, embedding = lm.Input(LENGTH, dtype="int64"), lm.Embedding(COUNT, WIDTH)
    hidden = lm.Tanh()(lm.Linear(WIDTH)(embedding(tokens)))
    return lm.Network(tokens, lm.TiedLinear(embedding, bias=bias)(hidden)[:, -1])


def sequences(batch=12):
    generator = np.random.default_rng(1)
    return generator.integers(0, COUNT, (batch, LENGTH)), generator.integers(0, COUNT, batch)


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_scores_are_products_with_the_weights_of_the_other_layer(engine):
    model = lm.Model(language_network(), engine=engine, dtype="float64")
    model.set_parameters({"4.bias": np.arange(COUNT) / 10})
    (tokens, _), values = sequences(), model.parameters()
    hidden = np.tanh(values["1.weight"][tokens[:, -1]] @ values["2.weight"].T + values["2.bias"])
    expected = hidden @ values["1.weight"].T + values["4.bias"]
    np.testing.assert_allclose(model.predict(tokens), expected, rtol=1e-9)
    x, encoder = lm.Input(8), lm.Linear(3)
    autoencoder = lm.Network(x, lm.TiedLinear(encoder)(lm.Tanh()(encoder(x))))
    model = lm.Model(autoencoder, engine=engine, dtype="float64")
    inputs, values = np.random.default_rng(0).normal(size=(4, 8)), model.parameters()
    assert set(values) == {"1.weight", "1.bias", "3.bias"}
    hidden = np.tanh(inputs @ values["1.weight"].T + values["1.bias"])
    np.testing.assert_allclose(model.predict(inputs), hidden @ values["1.weight"], rtol=1e-9)


def trained(model, **how):
    """The parameters after a training step."""
    tokens, labels = sequences()
    with model.training(loss=LOSS, optimizer=SGD, batch_size=len(tokens), **how) as training:
        training.step(tokens, labels)
    return model.parameters()


def test_weights_are_tied_after_saving_and_loading(tmp_path):
    model = lm.Model(language_network(bias=False))
    model.save(tmp_path / "tied.safetensors")
    loaded, expected = trained(lm.load(tmp_path / "tied.safetensors")), trained(model)
    assert list(loaded) == list(expected) == ["1.weight", "2.weight", "2.bias"]
    for name, value in expected.items():
        np.testing.assert_array_equal(loaded[name], value)


def test_frozen_weights_stay_in_both_layers():
    model = lm.Model(language_network())
    before = model.parameters()["1.weight"]
    after = trained(model, frozen=["1.weight"])
    np.testing.assert_array_equal(after["1.weight"], before)
    assert after["4.bias"].any()


@dataclass(frozen=True)
class Speaker(lm.Layer):
    """Shares within a layer: by a named inner layer, and by a layer that it applies."""

    embedding: lm.Embedding

    def forward(self, scope, x):
        head = scope.layer("head", lm.TiedLinear(self.embedding), x)
        inner = lm.Linear(3)
        return head + lm.Linear(COUNT)(lm.TiedLinear(inner, bias=False)(inner(x)))


@dataclass(frozen=True)
class Whole(lm.Layer):
    """Both uses are named inner layers of one layer."""

    embedding: lm.Embedding

    def forward(self, scope, x):
        hidden = scope.layer("there", self.embedding, x)
        return scope.layer("back", lm.TiedLinear(self.embedding), hidden)


def applied(shared):
    tokens, embedding = lm.Input(LENGTH, dtype="int64"), lm.Embedding(COUNT, WIDTH)
    given = embedding(tokens) if shared is Speaker else tokens
    return lm.Network(tokens, shared(embedding)(given))


@pytest.mark.cases(
    ("make", "names"),
    (language_network, "1.weight 2.weight 2.bias 4.bias"),
    (lambda: applied(Speaker), "1.weight 2.head.bias 2.0.weight 2.0.bias 2.2.weight 2.2.bias"),
    (lambda: applied(Whole), "1.there.weight 1.back.bias"),
)
def test_shared_weights_are_listed_once(make, names):
    model = lm.Model(make())
    assert list(model.parameters()) == names.split()
    assert model.predict(sequences()[0]).shape[-1] == COUNT
    assert not any(value.any() for name, value in model.parameters().items() if "4.bias" in name)


@dataclass(frozen=True)
class Repeated(lm.Layer):
    """Applies a layer under two names, and one of its own under one name."""

    inner: lm.Layer | lm.Network

    def forward(self, scope, x):
        for number in range(2):
            x = scope.layer(f"l{number}", self.inner, ops.tanh(x))
        return scope.layer("same", lm.Linear(WIDTH), scope.layer("same", lm.Linear(WIDTH), x))


@pytest.mark.parametrize("in_a_network", [False, True])
def test_an_object_has_one_set_of_parameters_under_all_names(in_a_network):
    linear = lm.Linear(WIDTH)
    inner = lm.Sequential(lm.Input(WIDTH), linear) if in_a_network else linear
    alone = lm.Model(lm.Sequential(lm.Input(WIDTH), Repeated(inner)))
    first = "1.l0.1" if in_a_network else "1.l0"
    assert [*alone.parameters()] == [
        f"{name}.{kind}" for name in (first, "1.same") for kind in ("weight", "bias")
    ]
    x = lm.Input(WIDTH)
    model = lm.Model(lm.Network(x, Repeated(inner)(Repeated(inner)(inner(x)))), seed=0)
    assert [*model.parameters()] == [
        f"{name}.{kind}" for name in ("1", "2.same", "3.same") for kind in ("weight", "bias")
    ]
    values = model.parameters()
    inputs = np.random.default_rng(0).normal(size=(5, WIDTH)).astype("float32")
    expected = inputs @ values["1.weight"].T + values["1.bias"]
    for block in ("2", "3"):
        for _ in range(2):
            expected = np.tanh(expected) @ values["1.weight"].T + values["1.bias"]
        for _ in range(2):
            expected = expected @ values[f"{block}.same.weight"].T + values[f"{block}.same.bias"]
    np.testing.assert_allclose(model.predict(inputs), expected, rtol=1e-4, atol=1e-5)
