"""The ready recurrent classifier: its inputs, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest

import lamina as lm
from lamina.errors import DefinitionError

LSTM_CLASSIFIER = lm.networks.lstm_classifier


def test_a_classifier_takes_features_or_tokens_and_optionally_lengths() -> None:
    net = LSTM_CLASSIFIER(5, 7, inputs=3, features=8, layers=2, bidirectional=False)
    assert [x.shape[1:] for x in (*net.inputs, *net.outputs)] == [(7, 3), (5,)]
    assert net.parameter_count() == 4 * 8 * (3 + 8 + 2) + 4 * 8 * (8 + 8 + 2) + 5 * 9
    net = LSTM_CLASSIFIER(5, 7, vocabulary=11, features=8, lengths=True)
    assert [x.shape[1:] for x in (*net.inputs, *net.outputs)] == [(7,), (), (5,)]
    assert net.parameter_count() == 11 * 8 + 2 * 4 * 8 * (8 + 8 + 2) + 5 * 17


@pytest.mark.parametrize("both", [{}, {"inputs": 3, "vocabulary": 11}])
def test_a_classifier_takes_either_features_or_tokens(both: dict[str, int]) -> None:
    with pytest.raises(DefinitionError) as error:
        LSTM_CLASSIFIER(5, 7, **both)
    assert str(error.value).startswith("in test_networks_recurrent.py:")
    assert "lstm_classifier takes either inputs or a vocabulary" in str(error.value)


@pytest.mark.sampled
def test_a_classifier_learns_the_first_token_of_sequences_of_different_lengths() -> None:
    generator = np.random.default_rng(0)
    things, lengths = generator.integers(0, 6, (1000, 12)), generator.integers(1, 13, 1000)
    model = lm.Model(
        LSTM_CLASSIFIER(6, 12, vocabulary=6, features=16, bidirectional=False, lengths=True)
    )
    data = ((things, lengths), things[:, 0])
    model.fit(data, epochs=12, batch_size=50, loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-2))
    assert (model.predict((things, lengths)).argmax(1) == things[:, 0]).mean() > 0.95
