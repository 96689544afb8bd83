"""Recurrent layers: lengths, states, dropout and costs."""

import numpy as np
import pytest
from random_arrays import normal

import lamina as lm
from lamina.base.shapes import float64
from lamina.graph import Graph, bind_batch, evaluate

KINDS = pytest.mark.parametrize("kind", [lm.RNN, lm.LSTM, lm.GRU])
BATCH, LENGTH, INPUTS = 6, 5, 3
X = normal(BATCH, LENGTH, INPUTS)


def with_lengths(layer, dtype="int64"):
    x, lengths = lm.Input(LENGTH, INPUTS), lm.Input(dtype=dtype)
    return lm.Model(lm.Network([x, lengths], layer(x, lengths)), seed=1)


@KINDS
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_a_padded_sequence_gives_the_result_of_the_short_sequence(kind, dtype):
    layer = kind(4, layers=2, bidirectional=True, returns="last")
    model = with_lengths(layer, dtype)
    alone = lm.Model(lm.Sequential(lm.Input(2, INPUTS), layer))
    values = model.parameters().items()
    alone.set_parameters({"1." + name.split(".")[1]: value for name, value in values})
    padded = model.predict((X, np.full(BATCH, 2, dtype)))
    np.testing.assert_allclose(padded, alone.predict(X[:, :2]), atol=1e-6)


@KINDS
def test_the_last_state_of_an_empty_sequence_is_zero(kind):
    model = with_lengths(kind(4, bidirectional=True, returns="last"))
    found = model.predict((X, np.zeros(BATCH, "int64")))
    np.testing.assert_array_equal(found, np.zeros((BATCH, 8)))


def handed_on(probability, training, layers=2):
    """The outputs, for weights with which the first layer gives ones and the others copy."""
    layer = lm.RNN(50, layers=layers, dropout=probability, activation="relu")
    trace = lm.Sequential(lm.Input(20, 1), layer).trace(dtype=float64, training=training)
    parameters = trace.record.parameters.items()
    feeds = {name: np.zeros(variable.tensor.shape) for name, variable in parameters}
    feeds["1.bias_ih_l0"] += 1
    for number in range(1, layers):
        feeds[f"1.weight_ih_l{number}"] += np.eye(50)
    feeds |= {"input0": np.zeros((8, 20, 1)), "seed": np.int64(1), "step": np.int64(2)}
    graph = Graph(trace.inputs, (("y", trace.outputs[0]),))
    outputs, _ = evaluate(bind_batch(graph, 8), feeds)
    return outputs["y"]


def test_dropout_drops_between_layers_and_scales_the_rest():
    found = handed_on(0.25, training=True)
    np.testing.assert_allclose(np.unique(found), [0, 4 / 3])
    assert (found == 0).mean() == pytest.approx(0.25, abs=0.02)
    # Each iteration has a mask of its own.
    assert (found[:, 0] != found[:, 1]).any()


def test_dropout_does_nothing_in_inference_nor_after_the_last_layer():
    np.testing.assert_array_equal(handed_on(0.25, training=False), 1.0)
    np.testing.assert_array_equal(handed_on(0.25, training=True, layers=1), 1.0)


def test_a_summary_counts_every_iteration_of_a_layer():
    def flops(length):
        net = lm.Sequential(lm.Input(length, INPUTS), lm.LSTM(16), lm.LSTM(8, returns="last"))
        return int(str(net).splitlines()[-1].split()[-1].replace(",", ""))

    products = 2 * 4 * (16 * INPUTS + 16 * 16 + 8 * 16 + 8 * 8)
    assert 10 * products < flops(10) < 1.4 * 10 * products
    assert flops(30) == 3 * flops(10)


@pytest.mark.sampled
def test_a_training_step_is_explained_profiled_and_drawn(tmp_path):
    net = lm.Sequential(lm.Input(LENGTH, INPUTS), lm.GRU(4, returns="last"), lm.Linear(2))
    model = lm.Model(net, engine="cpu")
    step = (BATCH, lm.CrossEntropy(), lm.Adam(1e-3))
    assert "5 times 6 x 12 x 4" in str(model.explain(*step))
    assert "5 times 6 x 12 x 4" in str(model.profile(*step))
    bill = net.plan(*step)
    bill.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1000
    assert bill.peak_bytes == bill.lower_bound_bytes
