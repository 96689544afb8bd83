"""Models of several networks on the same parameters."""

import copy
import pickle
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from error_texts import error_text
from random_arrays import normal

import lamina as lm
from lamina.errors import DefinitionError, ShapeError

ENGINES = ["interpreter", "cpu"]


def full(value, *shape):
    return np.full(shape, value, "float32")


def same(left, right):
    """Whether the values, in their order, have the same bits."""
    pairs = zip(left.values(), right.values(), strict=True)
    return all(one.tobytes() == other.tobytes() for one, other in pairs)


def coder(size=6):
    """An autoencoder, its encoder, and its decoder, which has states."""
    encoder = lm.Sequential(lm.Input(size), lm.Linear(5), lm.Tanh(), lm.Linear(2))
    decoder = lm.Sequential(lm.Input(2), lm.Linear(5), lm.BatchNorm(), lm.ReLU(), lm.Linear(size))
    x = lm.Input(size)
    return lm.Network(x, decoder(encoder(x))), encoder, decoder


DECODER_NAMES = ["4.weight", "4.bias", "5.weight", "5.bias", "7.weight", "7.bias"]


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_share_the_parameters_of_the_whole(engine):
    network, encoder, decoder = coder()
    parent, x = lm.Model(network, engine=engine), normal(7, 6)
    codes, part = parent.part(encoder).predict(x), parent.part(decoder)
    assert codes.shape == (7, 2)
    assert part.predict(codes).tobytes() == parent.predict(x).tobytes()
    part.set_parameters({"1.weight": full(3, 5, 2), "2.running_mean": full(2, 5)})
    assert (parent.parameters()["4.weight"] == 3).all()
    assert (parent.states()["5.running_mean"] == 2).all()
    parent.set_parameters({"7.bias": list(range(6))})
    assert part.parameters()["4.bias"].tolist() == [0, 1, 2, 3, 4, 5]
    last = lm.Network(z := lm.Input(5), decoder.nodes[-1].attributes["layer"](z))
    innermost = part.part(last)
    innermost.set_parameters({"1.bias": full(9, 6)})
    assert (parent.parameters()["7.bias"] == 9).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fit_of_whole_or_part_changes_both(engine):
    network, _, decoder = coder()
    parent = lm.Model(network, engine=engine)
    part = parent.part(decoder)
    x, codes = normal(8, 6), normal(8, 2)
    for model, data in ((parent, (x, x)), (part, (codes, x))):
        before, answers = part.parameters(), part.predict(codes)
        model.fit(data, loss=lm.MSE(), optimizer=lm.Adam(0.1), batch_size=4)
        assert not same(part.parameters(), before)
        assert (part.predict(codes) != answers).any()
        shared = {name: parent.parameters()[name] for name in DECODER_NAMES}
        assert same(part.parameters(), shared)
        moved = {name: parent.states()[name] for name in ("5.running_mean", "5.running_variance")}
        assert same(part.states(), moved)


def test_packed_weights_follow_changes_through_whole_and_part():
    # Large enough that the cpu engine keeps a packed copy of the weights.
    network, _, decoder = coder(128)
    parent = lm.Model(network)
    part, codes, x = parent.part(decoder), normal(64, 2), normal(64, 128)
    before = part.predict(codes), parent.predict(x)
    parent.fit((x, x), loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=64)
    fresh = lm.Model(decoder)
    fresh.set_parameters(part.parameters() | part.states())
    np.testing.assert_array_equal(part.predict(codes), fresh.predict(codes))
    assert (part.predict(codes) != before[0]).any()
    part.set_parameters({"4.weight": full(0, 128, 5)})
    bias = np.broadcast_to(part.parameters()["4.bias"], (64, 128))
    np.testing.assert_array_equal(parent.predict(x), bias)
    assert (before[1] != bias).any()


def test_a_part_keeps_engine_dtype_and_seed():
    network, encoder, _ = coder()
    part = lm.Model(network, engine="interpreter", seed=7, dtype="float64").part(encoder)
    assert repr(part) == "Model(47 parameters, float64, engine='interpreter')"
    assert part.seed == 7


def test_a_layer_that_is_applied_twice_is_one_layer_in_a_part():
    shared, first, x = lm.Linear(4), lm.Linear(4), lm.Input(4)
    parent = lm.Model(lm.Network(x, shared(lm.Tanh()(shared(lm.Tanh()(first(x)))))))
    z = lm.Input(4)
    part = parent.part(lm.Network(z, shared(shared(shared(z)))))
    assert list(part.parameters()) == ["1.weight", "1.bias"]
    part.set_parameters({"1.weight": np.eye(4, dtype="float32"), "1.bias": full(0, 4)})
    assert (parent.parameters()["3.weight"] == np.eye(4)).all()
    assert (parent.parameters()["1.weight"] != np.eye(4)).any()


@dataclass(frozen=True)
class Twice(lm.Layer):
    """Layers within a layer: one that is a field, and one that is made each time."""

    inner: lm.Layer

    def forward(self, scope, x):
        scale = scope.parameter("scale", (), lm.init.Constant(2.0))
        return lm.Linear(4)(lm.Tanh()(self.inner(x))) * scale


def test_inner_layers_are_shared_between_whole_and_part():
    inner, x, z = lm.Linear(4), lm.Input(4), lm.Input(4)
    outer = Twice(inner)
    parent = lm.Model(lm.Network(x, outer(lm.ReLU()(lm.Linear(4)(x)))))
    part = parent.part(lm.Network(z, outer(z)))
    assert same(part.parameters(), dict(list(parent.parameters().items())[2:]))
    part.set_parameters({"1.scale": 5.0, "1.2.bias": full(1, 4)})
    parameters = parent.parameters()
    assert parameters["3.scale"] == 5
    assert (parameters["3.2.bias"] == 1).all()
    only_inner = parent.part(lm.Network(z, inner(z)))
    only_inner.set_parameters({"1.bias": full(7, 4)})
    assert (parent.parameters()["3.0.bias"] == 7).all()


def test_a_saved_part_and_a_saved_whole_are_complete(tmp_path):
    network, _, decoder = coder()
    parent = lm.Model(network, seed=3)
    parent.fit((normal(8, 6), normal(8, 6)), loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=8)
    part, codes = parent.part(decoder), normal(3, 2)
    part.set_parameters({"1.bias": full(1, 5)})
    for number, model in enumerate((parent, part)):
        model.save(tmp_path / str(number))
        again = lm.load(tmp_path / str(number))
        assert same(again.parameters() | again.states(), model.parameters() | model.states())
    assert again.predict(codes).tobytes() == part.predict(codes).tobytes()
    parent.set_parameters({"7.bias": full(0, 6)})
    assert again.predict(codes).tobytes() != part.predict(codes).tobytes()


def test_a_part_copied_with_the_whole_shares_and_one_copied_alone_does_not():
    network, encoder, _ = coder()
    parent = lm.Model(network)
    part = parent.part(encoder)
    both = parent, part
    for parent_copy, part_copy in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        part_copy.set_parameters({"1.bias": full(4, 5)})
        assert (parent_copy.parameters()["1.bias"] == 4).all()
        assert (parent.parameters()["1.bias"] != 4).any()
    alone = copy.deepcopy(part)
    alone.set_parameters({"1.bias": full(4, 5)})
    assert (parent.parameters()["1.bias"] != 4).any()


def test_the_whole_waits_while_a_part_is_in_use():
    network, _, decoder = coder()
    parent = lm.Model(network)
    part = parent.part(decoder)
    asked, answered = threading.Event(), threading.Event()

    def ask():
        asked.set()
        parent.parameters()
        answered.set()

    with part._parameters.lock.mutex:
        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(5)
        assert not answered.wait(0.05)
    thread.join()
    assert answered.is_set()


def test_names_of_returns_names_of_the_whole_in_the_order_of_the_part():
    network, encoder, decoder = coder()
    assert network.names_of(decoder) == DECODER_NAMES
    assert network.names_of(encoder) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert network.names_of(network) == list(lm.Model(network).parameters())
    bill = network.plan(8, lm.MSE(), lm.Adam(), frozen=network.names_of(encoder))
    assert bill.state_bytes == lm.Model(decoder).network.plan(8, lm.MSE(), lm.Adam()).state_bytes


def test_a_layer_that_is_only_equal_is_refused():
    network, _, _ = coder()
    other = lm.Sequential(lm.Input(6), lm.Linear(5))
    for use in (lm.Model(network).part, network.names_of):
        where, _, text = error_text(DefinitionError, use, other).partition(": ")
        assert where.startswith("in net/1:Linear (test_parts.py:")
        assert text == (
            "the part has a parameter that the whole does not have\n"
            "  in the part   1.weight\n"
            "  in the whole  1.weight, 1.bias, 3.weight, 3.bias, 4.weight, 4.bias, 5.weight, "
            "5.bias, 7.weight, 7.bias, 5.running_mean, 5.running_variance\n"
            "  Apply the same layer objects again, or the same networks; equal layers are other "
            "layers."
        )


def test_a_layer_in_another_shape_is_refused():
    shared = lm.Linear(3)
    parent = lm.Model(lm.Sequential(lm.Input(4), lm.Tanh(), shared))
    part = lm.Sequential(lm.Input(5), shared)
    where, _, text = error_text(ShapeError, parent.part, part).partition(": ")
    assert where.startswith("in net/1:Linear (test_parts.py:")
    assert text == (
        "the parameter '1.weight' of the part has another shape in the whole\n"
        "  in the part   [3, 5]\n"
        "  in the whole  [3, 4]   2.weight\n"
        "  The layer is applied to tensors of other shapes there."
    )


def test_a_part_of_anything_but_a_network_is_refused():
    network, wrong = coder()[0], lm.Linear(3)
    where, _, text = error_text(DefinitionError, lm.Model(network).part, wrong).partition(": ")
    assert where.startswith("in Model.part (error_texts.py:")
    assert text.startswith("a model is made of a network\n")
    assert error_text(DefinitionError, network.names_of, wrong).partition(": ")[2] == (
        "a part of a network is a network\n"
        "  expected  Network\n"
        "  found     Linear\n"
        "  Make one of the layers, and use it in the other: lm.Sequential(...)."
    )
