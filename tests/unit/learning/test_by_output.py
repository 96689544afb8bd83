"""A loss and metrics for each output of a network, by name or in order."""

import numpy as np

import lamina as lm
from lamina import ops

generator = np.random.default_rng(0)
X = generator.normal(size=(40, 3)).astype("float32")
BOXES = generator.normal(size=(40, 2)).astype("float32")
LABELS = generator.integers(0, 4, 40)
DATA = (X, (BOXES, LABELS))
HOW = {"optimizer": lm.SGD(0.1), "batch_size": 16}
BOTH = {"boxes": lm.MSE(), "classes": lm.CrossEntropy()}


def network():
    x = lm.Input(3)
    return lm.Network(x, {"boxes": lm.Linear(2)(x), "classes": lm.Linear(4)(x)})


def model():
    return lm.Model(network(), engine="interpreter", seed=0)


def losses_of(detector):
    boxes, scores = detector.predict(X)
    each = np.log(np.exp(scores).sum(1)) - scores[np.arange(40), LABELS]
    return float(((boxes - BOXES) ** 2).mean()), float(each.mean())


def test_the_loss_is_the_sum_of_the_losses_of_the_outputs():
    detector = model()
    box, label = losses_of(detector)
    for loss in (BOTH, list(BOTH.values()), lm.ByOutput(BOTH)):
        results = detector.evaluate(DATA, loss, batch_size=16)
        assert list(results) == ["loss", "boxes_loss", "classes_loss"]
        expected = [box + label, box, label]
        np.testing.assert_allclose(list(results.values()), expected, rtol=1e-5)
    # Outputs without names are numbered.
    x = lm.Input(3)
    detector = lm.Model(lm.Network(x, [lm.Linear(2)(x), lm.Linear(4)(x)]), engine="interpreter")
    results = detector.evaluate(DATA, {"output1": lm.CrossEntropy(), "output0": lm.MSE()})
    assert list(results) == ["loss", "output0_loss", "output1_loss"]


def test_factors_scale_the_losses_in_the_total_only():
    detector = model()
    box, label = losses_of(detector)
    for factors in ({"boxes": 0.25}, [0.25, 1.0]):
        losses = BOTH if isinstance(factors, dict) else list(BOTH.values())
        results = detector.evaluate(DATA, lm.ByOutput(losses, factors=factors))
        np.testing.assert_allclose(
            list(results.values()), [0.25 * box + label, box, label], rtol=1e-5
        )


def test_a_fit_is_that_of_the_sum_as_a_function():
    def total(outputs, targets):
        return 0.25 * lm.MSE()(outputs[0], targets[0]) + lm.CrossEntropy()(outputs[1], targets[1])

    by_output, by_function = model(), model()
    first = by_output.fit(DATA, loss=lm.ByOutput(BOTH, factors={"boxes": 0.25}), epochs=2, **HOW)
    second = by_function.fit(DATA, loss=total, epochs=2, **HOW)
    np.testing.assert_allclose(first["loss"], second["loss"], rtol=1e-6)
    for name, value in by_output.parameters().items():
        np.testing.assert_allclose(value, by_function.parameters()[name], rtol=1e-5, atol=1e-7)


def test_an_output_without_a_loss_is_not_trained_and_has_no_target():
    detector = model()
    before = detector.parameters()
    history = detector.fit((X, LABELS), loss={"classes": lm.CrossEntropy()}, **HOW)
    assert list(history) == ["loss", "classes_loss"]
    after = detector.parameters()
    np.testing.assert_array_equal(before["1.weight"], after["1.weight"])
    assert (before["2.weight"] != after["2.weight"]).any()
    again = model()
    assert again.fit((X, LABELS), loss=[None, lm.CrossEntropy()], **HOW).values == history.values


def test_metrics_are_given_by_output_too():
    detector = model()

    def distance(prediction, target):
        return ops.sum(abs(prediction - target), 1)

    history = detector.fit(
        DATA,
        loss=BOTH,
        metrics={"classes": [lm.Accuracy(), lm.AUROC(logits=True)], "boxes": distance},
        validation=DATA,
        **HOW,
    )
    boxes, scores = detector.predict(X)
    expected = {
        "validation_classes_accuracy": (scores.argmax(1) == LABELS).mean(),
        "validation_boxes_distance": np.abs(boxes - BOXES).sum(1).mean(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(history[name], [value], rtol=1e-5)
    assert "classes_auroc" in history


def test_weights_are_of_all_losses_or_of_each():
    detector = model()
    boxes, scores = detector.predict(X)
    first, second = generator.random(40), generator.random(40)
    nll = np.log(np.exp(scores).sum(1)) - scores[np.arange(40), LABELS]
    squares = ((boxes - BOXES) ** 2).mean(1)
    metrics = {"classes": lm.Accuracy()}
    for weights in (first, (first, second)):
        of_box, of_label = weights if isinstance(weights, tuple) else (first, first)
        values = detector.evaluate((*DATA, weights), BOTH, metrics, batch_size=16)
        box, label = np.average(squares, weights=of_box), np.average(nll, weights=of_label)
        right = np.average(scores.argmax(1) == LABELS, weights=of_label)
        np.testing.assert_allclose(
            list(values.values()), [box + label, box, label, right], rtol=1e-5
        )
