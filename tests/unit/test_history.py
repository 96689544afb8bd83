"""The history of a fit: unknown names, before and after the first epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.errors import DefinitionError, UnknownNameError

X = np.linspace(-1, 1, 24, dtype="float32").reshape(6, 4)
LABELS = np.arange(6) % 3


def fitted(**how: Any) -> Any:
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine="interpreter")
    options = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "metrics": [lm.Accuracy()]}
    return model.fit((X, LABELS), validation=(X, LABELS), epochs=1, **options, **how)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("acc", "Here it is called 'accuracy'."),
        ("val_loss", "Here it is called 'validation_loss'."),
        ("val_acc", "Here it is called 'validation_accuracy'."),
        ("los", "Did you mean 'loss'?"),
        ("auc", "fit(metrics=[lm.Accuracy()], validation=...) measures more."),
        (0, "Give a name first: history['loss'][0]."),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_says_what_it_is_called(
    name: Any, advice: str
) -> None:
    with pytest.raises(UnknownNameError) as error:
        fitted()[name]
    known = "loss, accuracy, validation_loss, validation_accuracy"
    assert error.value.facts[0] == ("expected", known)
    assert error.value.advice == advice


def test_an_unknown_name_is_refused_before_the_first_epoch_has_ended() -> None:
    history = fitted()
    early = lm.training.history.History(measured=history.measured)
    assert early["validation_accuracy"] == []
    with pytest.raises(UnknownNameError, match="nothing named 'acc' was measured"):
        early["acc"]
    assert lm.training.history.History()["anything"] == []


def test_a_picture_with_an_unknown_ending_is_refused() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DefinitionError, match=r"pictures cannot be written as \.foo"):
        fitted().plot("curves.foo")
