"""Recompute: layers whose results are computed again in the backward pass."""

from dataclasses import dataclass

import numpy as np
import pytest
from random_arrays import normal
from training_cases import labels

import lamina as lm
from lamina import ops
from lamina.graph import topological

STEP = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1)}


def dense(depth, wrap, width=64):
    """Blocks of four layers with an activation."""
    layers = [lm.Input(width)]
    for _ in range(depth):
        block = [one for _ in range(4) for one in (lm.Linear(width), lm.Tanh())]
        layers += wrap(*block)
    return lm.Sequential(*layers, lm.Linear(10))


def kept(*layers):
    return layers


def again(*layers):
    return [lm.Recompute(*layers)]


def convolutions(wrap, blocks=4):
    layers = [lm.Input(3, 8, 8), lm.Conv2d(8, 3, padding="same")]
    for _ in range(blocks):
        block = [(lm.Conv2d(8, 3, padding="same"), lm.BatchNorm(), lm.ReLU()) for _ in range(3)]
        layers += wrap(*(layer for one in block for layer in one))
    return lm.Sequential(*layers, lm.GlobalAvgPool(), lm.Linear(10))


def test_a_deep_network_keeps_the_results_of_its_blocks_and_one_block_at_a_time():
    batch, width, blocks = 512, 256, 16
    activation = batch * width * 4
    before = dense(blocks, kept, width).plan(batch, **STEP)
    after = dense(blocks, again, width).plan(batch, **STEP)
    # One activation of each layer; then one of each block, and all activations of one block.
    assert before.arena_bytes == pytest.approx(4 * blocks * activation, rel=0.05)
    assert after.arena_bytes == pytest.approx((blocks + 4) * activation, rel=0.15)
    assert after.persistent_bytes == before.persistent_bytes
    assert after.peak_bytes - before.peak_bytes == after.arena_bytes - before.arena_bytes


@pytest.mark.sampled
def test_convolutions_with_normalization_take_less_memory_too():
    batch = 64
    activation = batch * 8 * 8 * 8 * 4
    before, after = (convolutions(wrap).plan(batch, **STEP) for wrap in (kept, again))
    # Two activations of each of twelve layers; then one of each block, and six of one block.
    assert before.arena_bytes == pytest.approx(24 * activation, rel=0.1)
    assert after.arena_bytes < 14 * activation


def test_a_block_of_blocks_keeps_less_than_the_blocks():
    def deep(wrap):
        layers = [lm.Input(64)]
        for _ in range(6):
            inner = [
                layer
                for _ in range(6)
                for layer in again(lm.Linear(64), lm.Tanh(), lm.Linear(64), lm.Tanh())
            ]
            layers += wrap(*inner)
        return lm.Sequential(*layers, lm.Linear(3))

    single, nested = (deep(wrap).plan(256, **STEP).arena_bytes for wrap in (kept, again))
    assert nested < 0.5 * single


NETWORKS = {
    "dense": lambda wrap: dense(2, wrap, 8),
    "convolutions": lambda wrap: convolutions(wrap, 1),
    "recurrences": lambda wrap: lm.Sequential(
        *(lm.Input(6, 3), *wrap(lm.GRU(5), lm.Dropout(0.2), lm.LSTM(4)), lm.Flatten())
    ),
    "nested": lambda wrap: lm.Sequential(
        lm.Input(9), *wrap(lm.Linear(9), lm.Dropout(0.4), *wrap(lm.Linear(9), lm.ReLU()))
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16", "mixed-float16"])
def test_a_fit_gives_the_same_bits(name, dtype):
    make = NETWORKS[name]
    x, y = normal(20, *make(kept).inputs[0].shape[1:]), labels(20)
    runs = []
    for wrap in (kept, again):
        model = lm.Model(make(wrap), seed=1, dtype=dtype)
        history = model.fit((x, y), epochs=2, batch_size=8, seed=3, **STEP)
        values = [*model.parameters().values(), *model.states().values()]
        runs.append((history["loss"], values, model.predict(x)))
    (before, values, scores), (after, others, again_scores) = runs
    if name == "convolutions" and dtype != "float32":
        # Sums of the normalisation are rounded differently, which moves few roundings to 16 bits.
        np.testing.assert_allclose(after, before, rtol=1e-2)
        return
    assert after == before
    np.testing.assert_array_equal(again_scores, scores)
    for value, recomputed in zip(values, others, strict=True):
        np.testing.assert_array_equal(recomputed, value)


def test_a_network_is_computed_again_and_keeps_the_names_of_its_layers():
    inner = lm.Sequential(lm.Input(4), lm.Linear(4), lm.Tanh())
    net = lm.Sequential(lm.Input(4), lm.Recompute(inner), lm.Linear(2))
    assert list(lm.Model(net).parameters()) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert net.names_of(inner) == ["1.weight", "1.bias"]
    before, after = (dense(2, wrap, 8) for wrap in (kept, again))
    assert list(lm.Model(before).parameters()) == list(lm.Model(after).parameters())
    assert str(before) == str(after)


@pytest.mark.sampled
def test_a_fit_goes_on_with_it_or_without_it(tmp_path):
    """One may begin without it, and resume with it if memory does not suffice."""
    plain, changed, single = (lm.Model(dense(2, wrap, 8), seed=4) for wrap in (kept, again, kept))
    data = normal(20, 8), labels(20)
    how = {**STEP, "batch_size": 8, "seed": 1}
    plain.fit(data, epochs=2, checkpoint=tmp_path / "run.safetensors", **how)
    changed.load_parameters(tmp_path / "run.safetensors")
    np.testing.assert_array_equal(changed.predict(data[0]), plain.predict(data[0]))
    changed.fit(data, epochs=3, checkpoint=tmp_path / "run.safetensors", resume=True, **how)
    single.fit(data, epochs=3, **how)
    np.testing.assert_array_equal(changed.predict(data[0]), single.predict(data[0]))


def test_several_operands_are_kept():
    a, b = lm.Input(4), lm.Input(4)
    joined = lm.Recompute(lm.Add(), lm.Linear(4), lm.ReLU())(a, b)
    model = lm.Model(lm.Network([a, b], joined))
    x, y = normal(5, 4), normal(5, 4, seed=1)
    assert model.predict((x, y)).shape == (5, 4)


@dataclass(frozen=True)
class Block(lm.Layer):
    def forward(self, scope, x):
        return x + scope.layer("inner", lm.Recompute(lm.Linear(4), lm.Tanh()), x)


def test_it_stands_within_a_layer_of_ones_own():
    net = lm.Sequential(lm.Input(4), Block(), lm.Linear(3))
    names = list(lm.Model(net).parameters())
    assert names == ["1.inner.0.weight", "1.inner.0.bias", "2.weight", "2.bias"]
    with lm.Model(net).training(batch_size=4, **STEP) as training:
        assert float(training.step(normal(4, 4), labels(4))) > 0


def test_a_saved_model_is_loaded_with_it(tmp_path):
    net = dense(2, again, 8)
    model = lm.Model(net, seed=4)
    model.save(tmp_path / "model.safetensors")
    loaded = lm.load(tmp_path / "model.safetensors")
    x = normal(3, 8)
    assert loaded.predict(x).tobytes() == model.predict(x).tobytes()
    bills = [network.plan(256, **STEP).peak_bytes for network in (net, loaded.network)]
    assert bills[0] == bills[1]


def test_a_gradient_computes_the_tensors_between_again():
    x = lm.Input(3)
    inner = ops.exp(x)
    y = ops.computed_again(ops.sin(inner), x)
    (slope,) = lm.gradients(y, [x])
    backward = topological([slope])
    assert sum(node.op.name == "exp" for node in backward) >= 1
    assert inner not in backward
    value = np.array([[0.1, 0.2, 0.3]], "float32")
    slopes = lm.compile(inputs=[x], outputs=[slope])(value)[0]
    np.testing.assert_allclose(slopes, np.cos(np.exp(value)) * np.exp(value), rtol=1e-6)
