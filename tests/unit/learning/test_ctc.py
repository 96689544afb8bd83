"""Connectionist temporal classification: values, lengths, training, and the text of errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from error_texts import error_text

import lamina as lm
from lamina.errors import DataError


def _losses(prediction: np.ndarray, labels: np.ndarray, **options: Any) -> np.ndarray:
    x = lm.Input(*prediction.shape[1:], dtype="float64")
    y = lm.Input(*labels.shape[1:], dtype="int64")
    return lm.compile([x, y], lm.CTC(**options)(x, y), engine="interpreter")(prediction, labels)[0]


def test_ctc_of_one_time_is_the_cross_entropy_of_its_label() -> None:
    shares = np.log(np.random.default_rng(0).dirichlet(np.ones(4), (6, 1)))
    labels = np.array([1, 3, 1, 1, 2, 3])
    found = _losses(shares, labels[:, None], reduction="none")
    np.testing.assert_allclose(found, -shares[np.arange(6), 0, labels], rtol=1e-12)


def test_ctc_adds_up_all_alignments() -> None:
    # Labels a, a need a blank between them: in four times there are 5 alignments of probability
    # 1/3 each time: a-a., a-.a and the like.
    shares = np.log(np.full((1, 4, 3), 1 / 3))
    labels = np.array([[1, 1, -1]])
    found = _losses(shares, labels, reduction="sum")
    letters = np.array(np.meshgrid(*[range(3)] * 4)).reshape(4, -1).T
    count = 0
    for word in letters:
        merged = [one for n, one in enumerate(word) if n == 0 or one != word[n - 1]]
        count += [one for one in merged if one] == [1, 1]
    np.testing.assert_allclose(found, -np.log(count / 3**4), rtol=1e-12)


@pytest.mark.parametrize(
    ("lengths", "problem", "expected", "found"),
    [
        (([8, 7], [1, 2]), "input lengths out of range", "0..7", "8 at example 0"),
        (([7, -1], [1, 2]), "input lengths out of range", "0..7", "-1 at example 1"),
        (([7, 7], [1, 4]), "target lengths out of range", "0..3", "4 at example 1"),
        (([7, 7], [-1, 2]), "target lengths out of range", "0..3", "-1 at example 0"),
        (([7, 7], [3, 2]), "targets out of range", "class numbers up to 3", "-1 at example 0"),
    ],
)
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_refuses_lengths_that_the_arrays_do_not_have(
    lengths: Any, problem: str, expected: str, found: str, zero_infinity: bool
) -> None:
    loss = lm.CTC(zero_infinity=zero_infinity)
    model = lm.Model(lm.Sequential(lm.Input(7, 4), lm.LogSoftmax()))
    x, labels = np.zeros((2, 7, 4), "float32"), np.array([[1, 2, -1], [3, 1, -1]])
    target = (labels, *(np.array(one) for one in lengths))
    text = error_text(DataError, lambda: model.evaluate((x, target), loss=loss))
    assert f"{problem}\n" in text
    assert f"expected  {expected}" in text
    assert f"found     {found}" in text
    # Without a check of data, as in a compiled function, such an example has no loss.
    inputs = [lm.Input(7, 4), *(lm.Input(*shape, dtype="int64") for shape in ((3,), (), ()))]
    each = lm.CTC(zero_infinity=zero_infinity, reduction="none")
    value = each(inputs[0], tuple(inputs[1:]))
    (result,) = lm.compile(inputs, value, engine="interpreter")(x, *target)
    wrong = int(found[-1])
    assert np.isnan(result[wrong])
    assert not np.isnan(result[1 - wrong])


@pytest.mark.sampled
def test_a_network_learns_sequences_without_alignment() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(1, 4, (12, 2))
    # Each label is shown for some times; the network must name them in order.
    shown = np.repeat(labels, 4, axis=1)
    x = np.eye(4, dtype="float32")[shown]
    net = lm.Sequential(lm.Input(8, 4), lm.Linear(5), lm.LogSoftmax())
    model = lm.Model(net, engine="cpu", seed=0)
    how: dict[str, Any] = {"optimizer": lm.Adam(0.05), "batch_size": 12, "epochs": 150}
    history = model.fit((x, (labels, np.full(12, 8))), loss=lm.CTC(blank=4), **how)
    assert history["loss"][0] > 3 > 1.5 > history["loss"][-1]
    again = lm.Model(net, engine="cpu", seed=0).fit((x, labels), loss=lm.CTC(blank=4), **how)
    np.testing.assert_allclose(again["loss"], history["loss"], rtol=1e-5)
