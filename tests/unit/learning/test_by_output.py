"""A loss and metrics for each output of a network, by name or in order."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_texts import error_text

import lamina as lm
from lamina import ops
from lamina.errors import DataError, DefinitionError, DTypeError

generator = np.random.default_rng(0)
X = generator.normal(size=(40, 3)).astype("float32")
BOXES = generator.normal(size=(40, 2)).astype("float32")
LABELS = generator.integers(0, 4, 40)
DATA = (X, (BOXES, LABELS))
HOW: dict[str, Any] = {"optimizer": lm.SGD(0.1), "batch_size": 16}
BOTH = {"boxes": lm.MSE(), "classes": lm.CrossEntropy()}


def network() -> lm.Network:
    x = lm.Input(3)
    return lm.Network(x, {"boxes": lm.Linear(2)(x), "classes": lm.Linear(4)(x)})


def model() -> lm.Model:
    return lm.Model(network(), engine="interpreter", seed=0)


def losses_of(own: lm.Model) -> tuple[float, float]:
    boxes, scores = own.predict(X)
    each = np.log(np.exp(scores).sum(1)) - scores[np.arange(40), LABELS]
    return float(((boxes - BOXES) ** 2).mean()), float(each.mean())


def test_the_loss_is_the_sum_of_the_losses_of_the_outputs() -> None:
    own = model()
    box, label = losses_of(own)
    for loss in (BOTH, list(BOTH.values()), lm.ByOutput(BOTH)):
        found = own.evaluate(DATA, loss, batch_size=16)
        assert list(found) == ["loss", "boxes_loss", "classes_loss"]
        expected = [box + label, box, label]
        np.testing.assert_allclose(list(found.values()), expected, rtol=1e-5)


def test_factors_scale_the_losses_in_the_total_only() -> None:
    own = model()
    box, label = losses_of(own)
    for factors in ({"boxes": 0.25}, [0.25, 1.0]):
        losses = BOTH if isinstance(factors, dict) else list(BOTH.values())
        found = own.evaluate(DATA, lm.ByOutput(losses, factors=factors))
        np.testing.assert_allclose(
            list(found.values()), [0.25 * box + label, box, label], rtol=1e-5
        )


def test_a_fit_is_that_of_the_sum_as_a_function() -> None:
    def total(outputs: Any, targets: Any) -> lm.Tensor:
        return 0.25 * lm.MSE()(outputs[0], targets[0]) + lm.CrossEntropy()(outputs[1], targets[1])

    one, other = model(), model()
    first = one.fit(DATA, loss=lm.ByOutput(BOTH, factors={"boxes": 0.25}), epochs=2, **HOW)
    second = other.fit(DATA, loss=total, epochs=2, **HOW)
    np.testing.assert_allclose(first["loss"], second["loss"], rtol=1e-6)
    for name, value in one.parameters().items():
        np.testing.assert_allclose(value, other.parameters()[name], rtol=1e-5, atol=1e-7)


def test_an_output_without_a_loss_is_not_trained_and_has_no_target() -> None:
    own = model()
    before = own.parameters()
    history = own.fit((X, LABELS), loss={"classes": lm.CrossEntropy()}, **HOW)
    assert list(history) == ["loss", "classes_loss"]
    after = own.parameters()
    np.testing.assert_array_equal(before["1.weight"], after["1.weight"])
    assert (before["2.weight"] != after["2.weight"]).any()
    again = model()
    assert again.fit((X, LABELS), loss=[None, lm.CrossEntropy()], **HOW).values == history.values


def test_metrics_are_given_by_output_too() -> None:
    own = model()

    def distance(prediction: lm.Tensor, target: lm.Tensor) -> lm.Tensor:
        return ops.sum(abs(prediction - target), 1)

    history = own.fit(
        DATA,
        loss=BOTH,
        metrics={"classes": [lm.Accuracy(), lm.AUROC(logits=True)], "boxes": distance},
        validation=DATA,
        **HOW,
    )
    boxes, scores = own.predict(X)
    expected = {
        "validation_classes_accuracy": (scores.argmax(1) == LABELS).mean(),
        "validation_boxes_distance": np.abs(boxes - BOXES).sum(1).mean(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(history[name], [value], rtol=1e-5)
    assert "classes_auroc" in history


def test_weights_are_of_all_losses_or_of_each() -> None:
    own = model()
    boxes, scores = own.predict(X)
    first, second = generator.random(40), generator.random(40)
    each = np.log(np.exp(scores).sum(1)) - scores[np.arange(40), LABELS]
    squares = ((boxes - BOXES) ** 2).mean(1)
    for weights, (one, other) in ((first, (first, first)), ((first, second), (first, second))):
        found = own.evaluate((*DATA, weights), BOTH, {"classes": lm.Accuracy()}, batch_size=16)
        box, label = np.average(squares, weights=one), np.average(each, weights=other)
        right = np.average(scores.argmax(1) == LABELS, weights=other)
        np.testing.assert_allclose(
            list(found.values()), [box + label, box, label, right], rtol=1e-5
        )


def test_outputs_without_names_are_numbered() -> None:
    x = lm.Input(3)
    net = lm.Network(x, [lm.Linear(2)(x), lm.Linear(4)(x)])
    assert net.output_names == ("output0", "output1")
    own = lm.Model(net, engine="interpreter")
    found = own.evaluate(DATA, {"output1": lm.CrossEntropy(), "output0": lm.MSE()})
    assert list(found) == ["loss", "output0_loss", "output1_loss"]


def test_names_of_outputs_are_saved_copied_and_pickled(tmp_path: Path) -> None:
    own = model()
    path = tmp_path / "both.safetensors"
    own.save(path)
    names = ("boxes", "classes")
    assert lm.load(path, engine="interpreter").network.output_names == names
    assert copy.deepcopy(own.network).output_names == names
    assert pickle.loads(pickle.dumps(own.network)).output_names == names
    one = lm.Sequential(lm.Input(3), lm.Linear(2))
    assert pickle.loads(pickle.dumps(one)).output_names == ("output0",)


def test_names_of_layers_inputs_and_outputs_are_kept_together(tmp_path: Path) -> None:
    x = lm.Input(3, name="x")
    layers = lm.Linear(2, name="boxes"), lm.Linear(4, name="head")
    outputs = {"boxes": layers[0](x), "classes": layers[1](x)}
    own = lm.Model(lm.Network(x, outputs, name="both"), engine="interpreter")
    path = tmp_path / "both.safetensors"
    own.save(path)
    loaded = lm.load(path, engine="interpreter")
    for net in (loaded.network, copy.deepcopy(own.network)):
        assert (net.name, net.output_names) == ("both", ("boxes", "classes"))
    assert loaded.parameters().keys() == {"boxes.weight", "boxes.bias", "head.weight", "head.bias"}
    found = loaded.evaluate(DATA, {"classes": lm.CrossEntropy(), "boxes": lm.MSE()})
    assert found == own.evaluate(DATA, {"classes": lm.CrossEntropy(), "boxes": lm.MSE()})


def test_a_plan_a_profile_and_a_verification_take_losses_by_output() -> None:
    net, step = network(), {"loss": BOTH, "optimizer": lm.SGD(0.1)}
    assert net.plan(4, **step).peak_bytes > 0
    assert model().explain(4, **step).costs
    assert lm.verify(net, BOTH).passed


def test_losses_of_other_outputs_are_refused() -> None:
    text = error_text(
        DefinitionError, lambda: model().evaluate(DATA, {"box": lm.MSE(), "classes": lm.MSE()})
    )
    assert "the losses do not fit the outputs of the network" in text
    assert "outputs  boxes, classes" in text
    assert "losses   box, classes" in text
    assert text.endswith("The outputs are named 'boxes' and 'classes'.")
    text = error_text(DefinitionError, lambda: model().evaluate(DATA, [lm.MSE()]))
    assert "the losses do not fit the outputs" in text
    assert text.endswith("Give one loss for each output, with None for one that is not trained.")


def test_losses_by_name_of_outputs_without_names_are_refused() -> None:
    x = lm.Input(3)
    unnamed = lm.Model(lm.Network(x, [lm.Linear(4)(x), lm.Linear(5)(x)]))
    text = error_text(DefinitionError, lambda: unnamed.evaluate(DATA, {"boxes": lm.MSE()}))
    assert "outputs  output0, output1" in text
    assert text.endswith("Name the outputs: lm.Network(inputs, outputs={'boxes': boxes, ...}).")


def test_a_target_of_another_dtype_is_named_by_its_output() -> None:
    x, (boxes, classes) = DATA
    floats = (x, (boxes, classes.astype("float32")))
    text = error_text(DTypeError, lambda: model().evaluate(floats, BOTH))
    assert "class numbers must be integers" in text
    assert "  target      y[1], of the output 'classes'" in text
    assert text.endswith("Convert the targets: y[1].astype('int64').")


def test_classes_of_two_targets_cannot_be_balanced() -> None:
    how = {"loss": BOTH, "optimizer": lm.SGD(0.1), "class_weights": "balanced"}
    text = error_text(DataError, lambda: model().fit(DATA, **how))
    assert "only class numbers can be balanced" in text
    assert text.endswith("Give each loss its weights: lm.CrossEntropy(class_weights=[...]).")


def test_another_number_of_targets_is_refused() -> None:
    text = error_text(DataError, lambda: model().evaluate((X, LABELS), BOTH))
    assert "the data has another number of targets than the losses take" in text
    assert "expected  2 targets" in text
    assert "Give a tuple with one target for each output that has a loss." in text
    text = error_text(DataError, lambda: model().evaluate([(X, BOXES, LABELS)], BOTH))
    assert text.endswith(
        "  The third value of (x, y, z) is the weights of the examples. Several targets make a "
        "tuple: (x, (y, z))."
    )
    assert model().evaluate([(X, (BOXES, LABELS))], BOTH) == model().evaluate(DATA, BOTH)
    text = error_text(DataError, lambda: model().evaluate((*DATA, (np.ones(40),) * 3), BOTH))
    assert "the data has another number of weights than there are losses" in text


def test_targets_are_checked_by_the_loss_of_their_output() -> None:
    wrong = LABELS.copy()
    wrong[5] = 9
    text = error_text(DataError, lambda: model().evaluate((X, (BOXES, wrong)), BOTH))
    assert "in CrossEntropy: labels out of range" in text
    assert "found     9 at example 5" in text


def test_wrong_losses_and_factors_are_refused() -> None:
    text = error_text(DefinitionError, lambda: lm.ByOutput({}))
    assert "the losses are given as a dict, by outputs, or as a list" in text
    text = error_text(DefinitionError, lambda: lm.ByOutput({"boxes": 3}))
    assert "this is not a loss" in text
    text = error_text(DefinitionError, lambda: lm.ByOutput(BOTH, factors={"box": 1.0}))
    assert "the factors do not fit the losses" in text
    with pytest.raises(DefinitionError, match="the factors do not fit the losses"):
        lm.ByOutput(list(BOTH.values()), factors=[1.0])
    text = error_text(DefinitionError, lambda: lm.ByOutput(BOTH, factors={"boxes": -1.0}))
    assert "the factor of a loss is a number of at least 0" in text


def test_metrics_of_other_outputs_are_refused() -> None:
    text = error_text(
        DefinitionError, lambda: model().evaluate(DATA, BOTH, {"box": [lm.Accuracy()]})
    )
    assert "the metrics do not fit the outputs of the network" in text
    assert text.endswith("The outputs are named 'boxes' and 'classes'.")
    text = error_text(DefinitionError, lambda: model().evaluate(DATA, BOTH, [lm.Accuracy()]))
    assert "a metric compares one output with one target" in text
    assert "metrics={'classes': [lm.Accuracy()]}" in text


def test_names_of_outputs_are_words() -> None:
    x = lm.Input(3)
    for name in ("a b", "", 1, "0"):
        text = error_text(DefinitionError, lambda name=name: lm.Network(x, {name: lm.Linear(2)(x)}))
        assert "the name of an output is a word of letters, digits and underscores" in text


def test_weights_of_classes_belong_to_one_output() -> None:
    text = error_text(
        DefinitionError, lambda: model().fit(DATA, loss=BOTH, class_weights=[1.0, 2.0], **HOW)
    )
    assert "weights of classes need one output and one target" in text
    assert "lm.CrossEntropy(class_weights=[...])" in text
