"""Warnings about losses whose prediction is certainly of a wrong kind."""

from __future__ import annotations

import linecache
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.errors import LaminaWarning

X = np.linspace(-1, 1, 24, dtype="float32").reshape(6, 4)
LABELS = np.arange(6) % 3
BITS = np.arange(18, dtype="float32").reshape(6, 3) % 2


def net(*layers: lm.Layer) -> lm.Network:
    return lm.Sequential(lm.Input(4), *layers)


def shown_by(network: lm.Network, loss: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        network.plan(batch_size=6, loss=loss, optimizer=lm.SGD(0.1))
    return list(shown)


WRONG = [
    (lm.BCE, [lm.Linear(3)], "raw scores", "Write lm.BCEWithLogits() for raw scores"),
    (lm.BCE, [lm.Linear(3, bias=False)], "raw scores", "lm.BCEWithLogits()"),
    (lm.BCE, [lm.Linear(3), lm.Reshape(3, 1), lm.Flatten()], "raw scores", "lm.BCEWithLogits()"),
    (lm.BCE, [lm.Reshape(1, 4), lm.Conv1d(1, 2)], "raw scores", "lm.BCEWithLogits()"),
    (lm.NLL, [lm.Linear(3)], "raw scores", "Write lm.CrossEntropy() for raw scores"),
    (lm.NLL, [lm.Linear(3), lm.Softmax()], "probabilities", "end in lm.LogSoftmax()"),
    (lm.CrossEntropy, [lm.Linear(3), lm.Softmax()], "probabilities", "Leave the layer before"),
    (lm.CrossEntropy, [lm.Linear(3), lm.LogSoftmax()], "logarithms of", "Leave the layer before"),
    (lm.CrossEntropy, [lm.Linear(3), lm.Sigmoid()], "probabilities", "Leave the layer before"),
    (lm.BCEWithLogits, [lm.Linear(3), lm.Sigmoid()], "probabilities", "Leave the layer before"),
    (lm.BinaryFocal, [lm.Linear(3), lm.Sigmoid()], "probabilities", "Leave the layer before"),
    (lm.SoftMargin, [lm.Linear(3), lm.Sigmoid()], "probabilities", "Leave the layer before"),
    (lm.MultiLabelSoftMargin, [lm.Linear(3), lm.Sigmoid()], "probabilities", "Leave the layer"),
    (lm.Focal, [lm.Linear(3), lm.LogSoftmax()], "logarithms of", "Leave the layer before"),
    (lm.Dice, [lm.Linear(3)], "raw scores", "End in lm.Sigmoid(), or in lm.Softmax(axis=1)"),
    (lm.CTC, [lm.Reshape(2, 2), lm.Linear(3)], "raw scores", "End in lm.LogSoftmax()."),
]


@pytest.mark.parametrize(("loss", "layers", "kind", "advice"), WRONG)
def test_a_prediction_of_a_wrong_kind_is_named_with_both_lines(
    loss: Any, layers: list[lm.Layer], kind: str, advice: str
) -> None:
    (one,) = shown_by(net(*layers), loss())
    text = str(one.message)
    assert one.category is LaminaWarning
    assert text.startswith(f"in {loss.__name__} (test_loss_warnings.py:")
    assert f"the prediction is {kind}" in text
    assert " of net/" in text
    assert advice in text


def test_a_warning_names_the_output_of_a_loss() -> None:
    x = lm.Input(4)
    boxes, classes = lm.Linear(2)(x), lm.Softmax()(lm.Linear(3)(x))
    loss: Any = {"boxes": lm.MSE(), "classes": lm.CrossEntropy()}
    (one,) = shown_by(lm.Network(x, {"boxes": boxes, "classes": classes}), loss)
    text = str(one.message)
    assert text.startswith("in CrossEntropy (test_loss_warnings.py:")
    assert "), for output 'classes': the prediction is probabilities of net/" in text


@dataclass(frozen=True)
class Own(lm.Linear):
    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return lm.ops.clip(super().forward(scope, x), 0.01, 0.99)


RIGHT = [
    (lm.BCE(), [lm.Linear(3), lm.Sigmoid()]),
    (lm.BCE(), [lm.Linear(3), lm.Softmax(), lm.Flatten()]),
    (lm.BCE(), [lm.Linear(3), lm.Hardtanh(low=0.0, high=1.0)]),
    (lm.BCE(), [Own(3)]),
    (lm.BCE(), [lm.Linear(3), lm.Softplus()]),
    (lm.NLL(), [lm.Linear(3), lm.LogSoftmax()]),
    (lm.CrossEntropy(), [lm.Linear(3)]),
    (lm.CrossEntropy(), [lm.Linear(3), lm.ReLU()]),
    (lm.CrossEntropy(), [lm.Linear(6), lm.Reshape(3, 2), lm.Softmax()]),
    (lm.BCEWithLogits(), [lm.Linear(3)]),
    (lm.MSE(), [lm.Linear(3), lm.Sigmoid()]),
    (lm.Dice(), [lm.Linear(3), lm.Sigmoid()]),
    (lm.CTC(), [lm.Reshape(2, 2), lm.Linear(3), lm.LogSoftmax()]),
    (lambda p, t: lm.ops.mean(p * t), [lm.Linear(3), lm.Softmax()]),
]


@pytest.mark.parametrize(("loss", "layers"), RIGHT)
def test_a_prediction_that_may_be_right_gets_no_warning(loss: Any, layers: list[lm.Layer]) -> None:
    assert shown_by(net(*layers), loss) == []


def model() -> lm.Model:
    return lm.Model(net(lm.Linear(3)), engine="interpreter")


USES = {
    "fit": lambda loss: model().fit((X, BITS), loss=loss, optimizer=lm.SGD(0.1), epochs=2),
    "training": lambda loss: model().training(loss=loss, optimizer=lm.SGD(0.1), batch_size=6),
    "evaluate": lambda loss: model().evaluate((X, BITS), loss=loss),
    "plan": lambda loss: net(lm.Linear(3)).plan(batch_size=6, loss=loss, optimizer=lm.SGD(0.1)),
    "verify": lambda loss: lm.verify(net(lm.Linear(3)), loss=loss),
}


@pytest.mark.parametrize("use", USES)
def test_the_warning_is_at_the_line_of_the_call(use: str) -> None:
    loss = lm.BCE()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        USES[use](loss)
    # Building kernels for OpenCL changes the filters, so that Python shows a text again.
    texts = {str(one.message).partition(":")[0] for one in shown}
    assert texts == {"in BCE (test_loss_warnings.py"}
    assert use == "verify" or len(shown) == 1
    assert {one.filename for one in shown} == {__file__}
    assert f'"{use}": lambda loss' in linecache.getline(__file__, shown[0].lineno)
