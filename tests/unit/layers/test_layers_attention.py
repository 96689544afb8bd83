"""Attention and transformer blocks: names, masks and dropout; padded sequences of all layers."""

import math

import numpy as np
import pytest
from random_arrays import normal

import lamina as lm
from lamina import ops


def model_of(layer, *shapes, masks=()):
    inputs = [lm.Input(*shape) for shape in shapes]
    inputs += [lm.Input(*shape, dtype="bool") for shape in masks]
    return lm.Model(lm.Network(inputs, layer(*inputs)), seed=1)


# A layer, the shapes of its operands, and the shapes of its weights.
@pytest.mark.cases(
    ("layer", "operands", "weights"),
    (
        lm.TransformerDecoderBlock(2, hidden=16),
        [(5, 8), (4, 6)],
        {
            **{f"attention.{kind}": (8, 8) for kind in ("queries", "keys", "values", "output")},
            **{f"memory_attention.{kind}": (8, 6) for kind in ("keys", "values")},
            **{f"memory_attention.{kind}": (8, 8) for kind in ("queries", "output")},
            **{f"{kind}_norm": (8,) for kind in ("attention", "memory_attention", "feedforward")},
            "hidden": (16, 8),
            "output": (8, 16),
        },
    ),
    (
        lm.MultiHeadAttention(3, features=12, bias=False),
        [(5, 8), (4, 6)],
        {"queries": (12, 8), "keys": (12, 6), "values": (12, 6), "output": (12, 12)},
    ),
    (
        lm.MultiHeadAttention(2, features=12, head_features=5, key_heads=1),
        [(5, 8), (4, 6), (4, 3)],
        {"queries": (10, 8), "keys": (5, 6), "values": (5, 3), "output": (12, 10)},
    ),
    ids=lambda argument: str(argument)[:30],
)
def test_parameters_are_named_after_the_inner_layers(layer, operands, weights):
    model = model_of(layer, *operands)
    prefix = f"{len(operands)}."
    expected = {f"{prefix}{name}.weight": shape for name, shape in weights.items()}
    if getattr(layer, "bias", True):
        expected |= {f"{prefix}{name}.bias": shape[:1] for name, shape in weights.items()}
    assert {name: value.shape for name, value in model.parameters().items()} == expected
    arrays = tuple(normal(2, *shape) for shape in operands)
    result = model.predict(arrays if len(arrays) > 1 else arrays[0])
    assert result.shape == (2, 5, getattr(layer, "features", None) or 8)


def test_weights_start_as_in_pytorch():
    parameters = model_of(lm.MultiHeadAttention(2), (5, 64)).parameters()
    bound = math.sqrt(6 / (64 + 3 * 64))
    for name in ("queries", "keys", "values"):
        assert np.abs(parameters[f"1.{name}.weight"]).max() == pytest.approx(bound, rel=0.01)
        assert not parameters[f"1.{name}.bias"].any()
    assert np.abs(parameters["1.output.weight"]).max() == pytest.approx(1 / 8, rel=0.01)
    assert not parameters["1.output.bias"].any()


def test_two_masks_allow_what_both_allow_and_floats_are_added_up():
    x, keys = lm.Input(5, 8), lm.Input(5, dtype="bool")
    layer, below = lm.MultiHeadAttention(2), ops.constant(np.tri(5, dtype=bool))
    both = lm.Model(lm.Network([x, keys], layer(x, keys, below)), seed=1)
    causal = lm.Model(lm.Network([x, keys], lm.MultiHeadAttention(2, causal=True)(x, keys)), seed=1)
    seen = np.array([[True, True, False, True, True]] * 2)
    arrays = normal(2, 5, 8), seen
    np.testing.assert_allclose(both.predict(arrays), causal.predict(arrays), atol=1e-6)
    half = ops.constant(np.linspace(-1, 1, 25).reshape(5, 5), "float32")
    twice, summed = (
        lm.Model(lm.Network(x, layer(x, *masks)), seed=1)
        for masks in (
            (half, half),
            (ops.constant(np.linspace(-2, 2, 25).reshape(5, 5), "float32"),),
        )
    )
    np.testing.assert_allclose(
        twice.predict(arrays[0]), summed.predict(arrays[0]), rtol=1e-5, atol=1e-6
    )


def test_weights_are_a_further_result():
    x, seen = lm.Input(5, 8), lm.Input(5, dtype="bool")
    layer = lm.MultiHeadAttention(4, key_heads=2, causal=True, returns="weights")
    model = lm.Model(lm.Network([x, seen], layer(x, seen)), seed=1)
    mask = np.array([[True, True, False, True, True]] * 2)
    _, weights = model.predict((normal(2, 5, 8), mask))
    assert weights.shape == (2, 4, 5, 5)
    np.testing.assert_allclose(weights.sum(3), 1, rtol=1e-5)
    assert not weights[..., 2].any()
    assert not weights[:, :, 0, 1:].any()


def test_rotary_scores_depend_on_the_distance_of_positions_only():
    layer = lm.MultiHeadAttention(2, rotary=100.0, returns="weights")
    model = model_of(layer, (6, 8))
    token = normal(1, 1, 8)
    _, weights = model.predict(np.repeat(token, 6, 1))
    scores = np.log(weights[0]) - np.log(weights[0, :, :, :1])
    for query in range(5):
        np.testing.assert_allclose(
            np.diff(scores[:, query, :5]), np.diff(scores[:, query + 1, 1:]), atol=1e-4
        )
    assert np.abs(np.diff(scores[:, 0])).max() > 1e-3


def test_options_of_blocks_reach_their_attention():
    block = lm.TransformerDecoderBlock(
        4, hidden=16, bias=False, key_heads=2, rotary=10.0, dropout=0.0
    )
    model = model_of(block, (5, 8), (4, 6))
    shapes = {name: value.shape for name, value in model.parameters().items()}
    assert shapes["2.attention.keys.weight"] == (4, 8)
    assert shapes["2.memory_attention.keys.weight"] == (4, 6)
    assert not any(name.endswith("bias") for name in shapes)
    plain = lm.TransformerDecoderBlock(4, hidden=16, bias=False, key_heads=2, dropout=0.0)
    other = model_of(plain, (5, 8), (4, 6))
    other.set_parameters(model.parameters())
    arrays = normal(2, 5, 8), normal(2, 4, 6)
    assert not np.allclose(model.predict(arrays), other.predict(arrays), atol=1e-4)


def test_dropped_weights_keep_their_mean():
    """With values of one the outputs are means of the weights' random factors, about one."""
    layer = lm.MultiHeadAttention(1, features=1, dropout=0.5, bias=False)
    model = model_of(layer, (400, 1))
    ones = {name: np.ones((1, 1), "float32") for name in model.parameters()}
    model.set_parameters(ones)
    x = np.ones((8, 400, 1), "float32")
    with model.training(loss=lm.MSE(), optimizer=lm.SGD(1e-9), batch_size=8) as training:
        # The variance of a mean of 400 factors that are 0 or 2.
        assert float(training.step(x, x)) == pytest.approx(1 / 400, rel=0.2)


BATCH, LENGTH, FEATURES = 3, 5, 4
LENGTHS = np.array([5, 2, 0])
COUNTS = np.arange(LENGTH) < LENGTHS[:, None]


def _network(layer, rank):
    """The layer on sequences of different lengths; its results after their ends are left out.

    The mask of an attention has this rank: for keys alone, for queries and keys, or with heads. A
    negative rank stands for a mask of floats.
    """
    x, mask = lm.Input(LENGTH, FEATURES), lm.Input(LENGTH, dtype="bool")
    if isinstance(layer, lm.RNN | lm.LSTM | lm.GRU):
        y = layer(x, ops.sum(ops.cast(mask, "int64"), 1))
    elif isinstance(layer, lm.TransformerDecoderBlock):
        y = layer(x, x, mask, mask)
    else:
        keys = mask if rank == 2 else ops.expand_dims(mask, tuple(range(1, abs(rank) - 1)))
        pairs = keys if rank == 2 else ops.logical_and(keys, ops.expand_dims(keys[..., 0, :], -1))
        y = layer(x, pairs if rank > 0 else ops.where(pairs, 0.0, -np.inf))
    if y.rank == 3:
        y = ops.sum(ops.where(ops.expand_dims(mask, 2), y, 0), 1)
    return lm.Network([x, mask], lm.Linear(2)(y))


@pytest.mark.cases(
    ("layer", "rank"),
    (lm.RNN(3), 2),
    (lm.LSTM(3, layers=2, bidirectional=True), 2),
    (lm.GRU(3, bidirectional=True, returns="last"), 2),
    *((lm.MultiHeadAttention(2), rank) for rank in (2, 3, 4, -4)),
    (lm.TransformerEncoderBlock(2, hidden=6, dropout=0.0), 2),
    (lm.TransformerEncoderBlock(2, hidden=6, dropout=0.0, norm_first=True), 3),
    (lm.TransformerDecoderBlock(2, hidden=6, dropout=0.0), 2),
    ids=lambda value: type(value).__name__ if isinstance(value, lm.Layer) else str(value),
)
@pytest.mark.parametrize("engine", ["interpreter", pytest.param("cpu", marks=pytest.mark.sampled)])
def test_elements_after_the_end_have_no_influence(layer, rank, engine):
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH, LENGTH, FEATURES)).astype("float32")
    y = random.normal(size=(BATCH, 2)).astype("float32")
    results = []
    model = lm.Model(_network(layer, rank), engine=engine, seed=1)
    first = model.parameters()
    with model.training(loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=BATCH) as training:
        for rest in (0.0, 7.0, np.inf, np.nan):
            padded = np.where(COUNTS[..., None], x, np.float32(rest))
            model.set_parameters(first)
            training.step((padded, COUNTS), y)
            parameters = [parameter.ravel() for parameter in model.parameters().values()]
            predicted = model.predict((padded, COUNTS))
            results.append(np.concatenate([*parameters, np.ravel(predicted)]))
    assert np.isfinite(results[0]).all()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_queries_from_another_sequence_keep_their_values():
    # Only the keys are padded: the queries are another sequence of the same length.
    x, memory = lm.Input(LENGTH, FEATURES), lm.Input(LENGTH, FEATURES)
    mask = lm.Input(LENGTH, dtype="bool")
    net = lm.Network([x, memory, mask], lm.MultiHeadAttention(2)(x, memory, mask))
    model, random = lm.Model(net, engine="cpu", seed=0), np.random.default_rng(0)
    a, b = random.normal(size=(2, BATCH, LENGTH, FEATURES)).astype("float32")
    counts = np.ones((BATCH, LENGTH), bool)
    counts[:, -1] = False
    before = model.predict((a, b, counts))
    a[:, -1] += 1
    b[:, -1] = np.nan
    after = model.predict((a, b, counts))
    np.testing.assert_array_equal(after[:, :-1], before[:, :-1])
    assert (after[:, -1] != before[:, -1]).any()
