"""The ready transformer: its shapes, and the positions that each one attends to."""

from __future__ import annotations

import numpy as np
import pytest

import lamina as lm


def test_an_encoder_scores_tokens_at_each_position_or_classes_of_the_sequence() -> None:
    net = lm.networks.transformer_encoder(11, 7, 8, 2, 2, 16)
    assert net.outputs[0].shape[1:] == (11, 7)
    assert lm.networks.transformer_encoder(11, 7, 8, 2, 2, 16, classes=3).outputs[0].shape[1:] == (
        3,
    )


def test_a_causal_encoder_attends_to_earlier_positions_only() -> None:
    tokens = np.random.default_rng(0).integers(0, 11, (4, 7))
    changed = tokens.copy()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    for causal in (True, False):
        model = lm.Model(lm.networks.transformer_encoder(11, 7, 8, 2, 2, 16, causal=causal))
        before, after = model.predict(tokens), model.predict(changed)
        assert np.array_equal(before[:, :, :5], after[:, :, :5]) == causal
        assert (before[:, :, 5:] != after[:, :, 5:]).all()


@pytest.mark.sampled
def test_a_causal_encoder_learns_the_next_token() -> None:
    """Each sequence counts on from a random start."""
    starts = np.random.default_rng(0).integers(0, 10, (2000, 1))
    numbers = (starts + np.arange(9)) % 10
    net = lm.networks.transformer_encoder(10, 8, 16, 2, 1, 32, causal=True, dropout=0.0)
    model = lm.Model(net)
    x, y = numbers[:, :-1], numbers[:, 1:]
    model.fit((x, y), epochs=3, batch_size=50, loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-2))
    assert (model.predict(x).argmax(1) == y).mean() > 0.99
