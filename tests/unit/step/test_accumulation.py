"""Gradient accumulation: batches that are divided into micro-batches."""

import itertools
from typing import Any

import numpy as np
import pytest
from callback_cases import bits
from error_texts import error_text
from random_arrays import normal
from training_cases import labels, same

import lamina as lm

X, Y = normal(50, 6), labels(50)
# Of each example, with micro-batches whose examples all count nothing.
WEIGHTS = np.where(np.arange(50) % 10 < 4, 0.0, np.linspace(0.1, 3.0, 50)).astype("float32")
IGNORED = np.where(np.arange(50) % 10 < 4, -1, Y)


def network(*more: Any) -> lm.Network:
    decayed = lm.Linear(9, weight_regularizer=lm.L2(1e-2))
    return lm.Sequential(lm.Input(6), decayed, lm.Tanh(), *more, lm.Linear(3))


def fitted(micro_batch: int | None, *more: Any, dtype: str = "float32", **how: Any) -> Any:
    """The history of a fit, and the parameters after it."""
    model = lm.Model(network(*more), seed=1, dtype=dtype)
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(1e-2), "epochs": 3, **how}
    history = model.fit(
        (X, Y), batch_size=16, micro_batch=micro_batch, metrics=[lm.Accuracy()], **how
    )
    return history, model.parameters()


HOW = {
    "mean": {},
    "sum": {"loss": lm.CrossEntropy(reduction="sum")},
    "clipped": {"clip": lm.ClipGlobalNorm(0.1), "optimizer": lm.SGD(0.5)},
    "averaged": {"optimizer": lm.EMA(lm.SGD(0.1, momentum=0.9), decay=0.9)},
    "frozen": {"frozen": ["1.*"]},
    "dropped": {"drop_last": True},
    # A rate that falls with the training steps shows that batches are counted.
    "scheduled": {"optimizer": lm.SGD(lm.schedules.StepDecay(0.5, every=2, factor=0.1))},
    "by path": {"optimizer": lm.ByPath({"*.bias": lm.SGD(0.1)}, default=lm.Adam(1e-2))},
}


@pytest.mark.parametrize("micro", [1, 5, 8])
@pytest.mark.parametrize("name", HOW)
def test_a_divided_batch_trains_like_the_whole_one(name, micro):
    """The last batch of an epoch has 2 examples, and 16 is no multiple of 5."""
    undivided, expected = fitted(None, **HOW[name])
    divided, parameters = fitted(micro, **HOW[name])
    np.testing.assert_allclose(divided["loss"], undivided["loss"], rtol=1e-6)
    assert divided["accuracy"] == undivided["accuracy"]
    for name, value in expected.items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-4, atol=1e-6)
    for name, value in undivided.averaged_parameters.items():
        np.testing.assert_allclose(divided.averaged_parameters[name], value, rtol=1e-4, atol=1e-6)


def test_micro_batches_of_the_size_of_a_batch_change_nothing():
    (whole, expected), (found, values) = fitted(None), fitted(16)
    assert found["loss"] == whole["loss"]
    assert same(values, expected)


def test_single_steps_are_those_of_a_run():
    data = lm.data.Dataset(X[:32], Y[:32], weights=WEIGHTS[:32])
    results: list[Any] = []
    for run in (True, False):
        model = lm.Model(network(lm.Dropout(0.5)), seed=1)
        how: Any = {"micro_batch": 6, "data": data}
        with model.training(lm.CrossEntropy(), lm.Adam(0.01), 16, **how) as training:
            order = data.order(5, 0).reshape(2, 16)
            steps = (training.step(X[rows], Y[rows], WEIGHTS[rows]) for rows in order)
            losses = training.run(data, steps=2, seed=5) if run else steps
            results.append(([float(loss) for loss in losses], bits(model)))
    assert results[0] == results[1]


def test_each_micro_batch_draws_random_numbers_of_its_own():
    """With the same numbers, both halves of a batch of equal examples would have one loss."""
    x = np.ones((1, 50), "float32")

    def spread(outputs, _):
        # The sum of the kept elements, which differs from mask to mask.
        return lm.ops.mean(outputs * lm.ops.constant(np.arange(50, dtype="float32")))

    net = lm.Sequential(lm.Input(50), lm.Dropout(0.5), lm.Rescale(1.0), lm.Linear(50))
    model = lm.Model(net, seed=0)
    data = lm.data.Dataset(np.repeat(x, 8, axis=0))
    with model.training(spread, lm.SGD(0.0), 2, micro_batch=1, data=data) as training:
        losses = training.run(data, steps=4)
    assert len(set(losses.tolist())) == 4


def test_statistics_are_those_of_micro_batches():
    means: list[Any] = []
    for size, micro in ((4, None), (8, 4)):
        model = lm.Model(network(lm.BatchNorm(momentum=0.5)), seed=1)
        with model.training(lm.CrossEntropy(), lm.SGD(0.0), size, micro_batch=micro) as training:
            for start in range(0, 16, size):
                training.step(X[start : start + size], Y[start : start + size])
        means.append(model.states())
    for name, value in means[0].items():
        np.testing.assert_array_equal(means[1][name], value)


@pytest.mark.parametrize("dtype", ["mixed-float16", "mixed-bfloat16", "bfloat16", "float64"])
def test_other_precisions_train_like_whole_batches(dtype):
    undivided, expected = fitted(None, dtype=dtype, optimizer=lm.SGD(0.1))
    divided, parameters = fitted(4, dtype=dtype, optimizer=lm.SGD(0.1))
    near = {"float64": 1e-12, "bfloat16": 0.05}.get(dtype, 2e-3)
    np.testing.assert_allclose(divided["loss"], undivided["loss"], rtol=near)
    for name, value in expected.items():
        np.testing.assert_allclose(
            parameters[name].astype("float64"), value.astype("float64"), rtol=near, atol=near
        )


def test_an_overflow_in_one_micro_batch_skips_the_whole_training_step():
    x = X.copy()
    x[3] = np.inf
    model = lm.Model(network(), seed=1, dtype="mixed-float16")
    before = model.parameters()
    with model.training(lm.CrossEntropy(), lm.SGD(0.1), 8, micro_batch=2) as training:
        scale = training.loss_scale
        training.step(x[:8], Y[:8])
        assert training.skipped_steps == 1
        assert training.loss_scale == scale / 2
        assert same(model.parameters(), before)
        training.step(X[:8], Y[:8])
        assert training.steps_done == 2
        assert training.skipped_steps == 1


def test_the_bill_has_the_activations_of_a_micro_batch_and_sums_of_gradients():
    net = lm.Sequential(
        lm.Input(64), lm.Linear(256), lm.Tanh(), lm.Linear(256), lm.Tanh(), lm.Linear(3)
    )
    step = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(1e-3)}
    undivided, small = net.plan(1024, **step), net.plan(64, **step)
    bill = net.plan(1024, **step, micro_batch=64)
    assert bill.gradient_bytes == bill.parameter_bytes == undivided.parameter_bytes
    assert undivided.gradient_bytes == 0
    assert bill.arena_bytes <= 1.01 * small.arena_bytes
    assert bill.peak_bytes < undivided.peak_bytes / 2
    assert bill.state_bytes == pytest.approx(undivided.state_bytes + bill.gradient_bytes, abs=64)
    rows = str(bill).splitlines()
    assert any(row.startswith("sums of gradients") for row in rows)
    assert any(row.startswith("inputs and targets, 64 examples") for row in rows)
    assert not any(row.startswith("sums of gradients") for row in str(undivided).splitlines())
    with lm.Model(net).training(batch_size=1024, micro_batch=64, **step) as training:
        assert training.bill.peak_bytes == bill.peak_bytes
        assert str(training.bill) == str(bill)


def test_an_error_within_a_batch_leaves_no_sums(monkeypatch):
    """The next batch begins with new sums."""
    losses: list[bytes] = []
    for fails in (False, True):
        model = lm.Model(network(), seed=1)
        with model.training(lm.CrossEntropy(), lm.SGD(0.1), 8, micro_batch=2) as training:
            if fails:
                runs = itertools.count()
                compiled = training._program(2)
                run = compiled.executable.run

                def failing(inputs, runs=runs, run=run):
                    if next(runs) == 2:
                        raise KeyboardInterrupt
                    run(inputs)

                monkeypatch.setattr(compiled.executable, "run", failing)
                with pytest.raises(KeyboardInterrupt):
                    training.step(X[:8], Y[:8])
                monkeypatch.setattr(compiled.executable, "run", run)
            training.step(X[8:16], Y[8:16])
        losses.append(bits(model))
    assert losses[0] == losses[1]


def two_outputs() -> lm.Network:
    x = lm.Input(6)
    hidden = lm.Tanh()(lm.Linear(9, weight_regularizer=lm.L2(1e-2))(x))
    return lm.Network(x, {"boxes": lm.Linear(4)(hidden), "classes": lm.Linear(3)(hidden)})


BOXES = normal(50, 4)
ENTROPY, IGNORING = lm.CrossEntropy(), lm.CrossEntropy(ignore_index=-1)
BY_NAME = lm.ByOutput(
    {"boxes": lm.MSE(reduction="sum"), "classes": ENTROPY}, factors={"boxes": 0.01}
)
BOTH = lm.ByOutput([lm.MSE(), IGNORING], factors=[0.5, 2.0])
EACH = (WEIGHTS, WEIGHTS[::-1].copy())
WEIGHTED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "examples": (network, (X, Y, WEIGHTS), {"loss": ENTROPY}),
    "float64 examples": (network, (X, Y, WEIGHTS.astype("float64")), {"loss": ENTROPY}),
    "sum": (network, (X, Y, WEIGHTS), {"loss": lm.CrossEntropy(reduction="sum")}),
    "classes": (network, (X, Y), {"loss": ENTROPY, "class_weights": [0.2, 1.0, 5.0]}),
    "balanced": (network, (X, Y), {"loss": ENTROPY, "class_weights": "balanced"}),
    "both": (network, (X, Y, WEIGHTS), {"loss": ENTROPY, "class_weights": {1: 4.0}}),
    "of the loss": (network, (X, Y), {"loss": lm.CrossEntropy(class_weights=[0.2, 1.0, 5.0])}),
    "ignored": (network, (X, IGNORED), {"loss": IGNORING}),
    "outputs": (two_outputs, (X, (BOXES, Y)), {"loss": BY_NAME}),
    "weighted outputs": (two_outputs, (X, (BOXES, IGNORED), WEIGHTS), {"loss": BOTH}),
    "weights of each output": (two_outputs, (X, (BOXES, Y), EACH), {"loss": [lm.MAE(), ENTROPY]}),
    "one output": (two_outputs, (X, IGNORED), {"loss": {"classes": IGNORING}}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("micro", [1, 3, 8])
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_count_in_a_divided_batch_as_in_the_whole_one(name, micro):
    """The unshuffled micro-batches of 1 and 3 examples include some without any weight."""
    made, data, how = WEIGHTED[name]
    metrics: Any = {"classes": [lm.Accuracy(ignore_index=-1)]}
    if made is network:
        metrics = [lm.Accuracy(ignore_index=-1), lm.AUROC(logits=True)]
        metrics = metrics[:1] if name == "ignored" else metrics
    results: list[Any] = []
    how = {"optimizer": lm.SGD(0.1, momentum=0.9), "batch_size": 16, "epochs": 3, **how}
    how |= {"shuffle": False, "metrics": metrics, "record": ["gradient_norm"]}
    for size in (None, micro):
        model = lm.Model(made(), seed=1)
        history = model.fit(data, micro_batch=size, **how)
        results.append((history.values, model.parameters()))
    (expected, parameters), (values, divided) = results
    assert values.keys() == expected.keys()
    for key, numbers in expected.items():
        if key != "seconds":
            np.testing.assert_allclose(values[key], numbers, rtol=1e-5, err_msg=key)
    for key, value in parameters.items():
        np.testing.assert_allclose(divided[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("classes", [None, {2: 3.0}])
def test_a_stream_with_weights_is_divided_as_its_data_set(classes):
    weights = np.linspace(0.0, 2.0, len(X), dtype="float32")

    def batches():
        for start in range(0, len(X), 7):
            rows = slice(start, start + 7)
            yield {"x": X[rows], "y": Y[rows], "weights": weights[rows]}

    results: list[dict[str, Any]] = []
    for data, micro in (((X, Y, weights), 3), (batches, 3), (batches, None)):
        model = lm.Model(network(), seed=1)
        how: Any = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "shuffle": False}
        model.fit(data, batch_size=16, micro_batch=micro, class_weights=classes, **how)
        results.append(model.parameters())
    for name, expected in results[0].items():
        np.testing.assert_array_equal(results[1][name], expected)
        np.testing.assert_allclose(results[2][name], expected, rtol=1e-4, atol=1e-6)


def test_balanced_classes_of_a_stream_are_refused():
    model = lm.Model(network(), engine="interpreter")
    how: Any = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "class_weights": "balanced"}
    assert error_text(lm.errors.DefinitionError, model.fit, [(X, Y)], **how) == (
        "in class_weights: balanced weights of classes need the data\n"
        "  A stream is not read beforehand: give the weights as a list or a dict. For "
        "training(...), give all of the data: data=(x, y)."
    )


def test_a_batch_without_weights_trains_nothing_and_has_no_loss():
    data = lm.data.Dataset(X[:8], Y[:8], weights=np.zeros(8, "float32"))
    for micro in (None, 3):
        model = lm.Model(lm.Sequential(lm.Input(6), lm.Linear(3)), seed=1)
        before, how = model.parameters(), {"micro_batch": micro, "data": data}
        with model.training(lm.CrossEntropy(), lm.SGD(0.1), 8, **how) as training:
            assert float(training.step(X[:8], Y[:8], np.zeros(8, "float32"))) == 0.0
        assert same(model.parameters(), before)


def test_examples_that_do_not_count_in_half_precision_leave_the_scale():
    """The loss of a micro-batch without elements is NaN: no overflow."""
    model = lm.Model(network(), seed=1, dtype="mixed-float16")
    loss, y = lm.CrossEntropy(ignore_index=-1), np.array([-1, -1, 0, 1], "int64")
    with model.training(loss, lm.SGD(0.1), 4, micro_batch=2) as training:
        assert np.isfinite(float(training.step(X[:4], y)))
        assert training.skipped_steps == 0
