"""What lies after the end of a sequence changes neither results nor gradients."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops

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
    ids=lambda one: type(one).__name__ if isinstance(one, lm.Layer) else str(one),
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
            parameters = [one.ravel() for one in model.parameters().values()]
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
