"""Predictors: values, padding, errors, threads, and what a call allocates."""

import copy
import threading
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from error_texts import error_text
from random_arrays import normal
from training_cases import in_threads, network

import lamina as lm
from lamina.errors import (
    DataError,
    DefinitionError,
    DTypeError,
    LaminaError,
    ReleasedError,
    ShapeError,
)
from lamina.runtime import compile_for_batch


@pytest.fixture
def batches(monkeypatch):
    """The batch sizes for which predictors compile programs."""
    sizes = []

    def recorded(graph, batch, *others, **how):
        sizes.append(batch)
        return compile_for_batch(graph, batch, *others, **how)

    monkeypatch.setattr("lamina.runtime.predictor.compile_for_batch", recorded)
    return sizes


def centred(x):
    return x - lm.ops.mean(x, 0, keepdims=True)


def largest(x):
    """The largest element of the batch, for each example; NaN is ignored."""
    finite = lm.ops.where(lm.ops.equal(x, x), x, -1e9)
    return x * 0.0 + lm.ops.max(finite, 0, keepdims=True)


@pytest.mark.parametrize(
    ("size", "count"), [(1, 1), (2, 2), (7, 7), (8, 1), (8, 2), (8, 5), (8, 7)]
)
def test_predicts_what_the_model_predicts_and_pads_smaller_batches(
    size, count, engine_name, batches
):
    model = lm.Model(network(), engine=engine_name)
    predict, x = model.predictor(size), normal(count, 4)
    predict(normal(size, 4))
    predicted = predict(x)
    np.testing.assert_allclose(predicted, model.predict(x), rtol=size != count and 1e-5, atol=1e-6)
    out, strided = np.empty((count, 3), "float32"), np.zeros((3, 2 * count), "float32").T[::2]
    assert predict(x, out=out) is out
    predict(x, out=strided)
    np.testing.assert_array_equal(out, predicted)
    np.testing.assert_array_equal(strided, predicted)
    assert batches == [size]


# Products of the larger size read their weights from a packed copy.
@pytest.mark.parametrize("size", [4, 300])
def test_predicts_with_the_present_parameters(size, engine_name):
    model = lm.Model(
        lm.Sequential(lm.Input(size), lm.Linear(size), lm.Tanh(), lm.Linear(3)), engine=engine_name
    )
    predict, x = model.predictor(64), normal(64, size)
    before = predict(x)
    with model.training(lm.MSE(), lm.SGD(0.1), batch_size=64) as training:
        training.step(x, np.zeros((64, 3), "float32"))
        np.testing.assert_array_equal(predict(x), model.predict(x))
    assert not np.array_equal(predict(x), before)
    model.set_parameters({"1.weight": normal(size, size)})
    np.testing.assert_array_equal(predict(x), model.predict(x))


def test_several_inputs_and_outputs(engine_name):
    a, b = lm.Input(3), lm.Input(2, dtype="int64")
    embedded = lm.Flatten()(lm.Embedding(10, 4)(b))
    unused = lm.Input(5)
    joined = lm.Linear(2)(lm.concat([embedded, a]))
    model = lm.Model(lm.Network([a, unused, b], [joined, lm.Tanh()(a)]), engine=engine_name)
    x = normal(4, 3), normal(4, 5), np.arange(8).reshape(4, 2)
    expected = model.predict(x)
    for predict in (model.predictor(4), model.predictor(6)):
        outs = np.empty((4, 2), "float32"), np.empty((4, 3), "float32")
        for outputs in (predict(x), predict(x, out=outs), outs):
            for output, reference in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(output, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [centred, largest])
def test_batches_are_not_padded_if_the_network_mixes_their_examples(layer, batches):
    model = lm.Model(lm.Sequential(lm.Input(3), layer, lm.Linear(2)))
    predict = model.predictor(8)
    for count in (3, 8, 5, 8, 3):
        x = normal(count, 3) - 5
        np.testing.assert_allclose(predict(x), model.predict(x), rtol=1e-5, atol=1e-5)
    assert batches == [8, 3, 5]


def test_random_layers_do_not_look_like_mixed_examples(batches):
    @dataclass(frozen=True)
    class Noise(lm.Layer):
        def forward(self, scope, x):
            return x + scope.normal(x.shape)

    model, x = lm.Model(lm.Sequential(lm.Input(3), Noise())), normal(2, 3)
    np.testing.assert_array_equal(model.predictor(4)(x), model.predict(x))
    assert batches == [4]


def test_other_dtypes_are_converted(model):
    predict = model.predictor(2)
    integers = np.arange(8, dtype="uint8").reshape(2, 4)
    expected = predict(integers.astype("float32"))
    transposed, fixed = (np.asfortranarray(integers.astype("float32")) for _ in range(2))
    fixed.flags.writeable = False
    for rows in (integers, integers.tolist(), transposed, fixed):
        np.testing.assert_array_equal(predict(rows), expected)


def test_inputs_keep_their_memory_after_the_call():
    model = lm.Model(lm.Sequential(lm.Input(2000), lm.Linear(3)))
    predict, x = model.predictor(1), normal(1, 2000)
    first, held = predict(x), x.copy()
    # A padded or converted batch must not leave the address of an older array.
    predict(x.tolist())
    x[...] = 0
    np.testing.assert_array_equal(predict(held), first)


def pair_of_networks():
    """Two inputs, which the program has in another order, and two outputs."""
    a, b = lm.Input(3), lm.Input(2)
    hidden = lm.Linear(2)(b)
    return lm.Network([a, b], [lm.Linear(4)(lm.concat([hidden, a])), lm.Tanh()(hidden)])


def allocated(call):
    """The bytes that 100 calls have left, and the largest number meanwhile."""
    call()
    tracemalloc.start()
    try:
        for _ in range(3):
            call()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            call()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before, peak - before


def test_a_call_allocates_nothing_and_is_not_slowed_by_checks(monkeypatch):
    model = lm.Model(pair_of_networks())
    predict, x = model.predictor(3), (normal(3, 3), normal(3, 2))
    outs = np.empty((3, 4), "float32"), np.empty((3, 2), "float32")
    # Other arrays are converted: this is what calls of full batches do without.
    monkeypatch.setattr("lamina.runtime.predictor.as_arrays", None)
    results = predict(x)
    assert predict(x, out=outs) is outs
    for result, written, expected in zip(results, outs, model.predict(x), strict=True):
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(written, expected)
    single, row, out = lm.Model(network()).predictor(3), normal(3, 4), np.empty((3, 3), "float32")
    # Views of shapes and flags live for a moment; an array of the output would take more.
    for call, most in ((lambda: single(row, out=out), 1000), (lambda: predict(x, out=outs), 1500)):
        left, peak = allocated(call)
        assert left < 200
        assert peak < most


READ_ONLY = np.frombuffer(bytes(24), "float32")


@pytest.mark.parametrize(
    "further", [[np.empty((3, 2))], [np.empty((2, 2), "float32")], [READ_ONLY.reshape(3, 2)], []]
)
def test_several_arrays_that_do_not_fit_are_checked(further):
    model = lm.Model(pair_of_networks())
    predict, x = model.predictor(3), (normal(3, 3), normal(3, 2))
    out = (np.empty((3, 4), "float32"), *further)
    assert "out" in error_text(LaminaError, predict, x, out=out)
    lists = tuple(array.tolist() for array in x)
    for output, expected in zip(predict(lists), model.predict(x), strict=True):
        np.testing.assert_array_equal(output, expected)


def test_threads_with_their_own_predictors_see_whole_sets_of_parameters():
    model = lm.Model(lm.Sequential(lm.Input(400), lm.Linear(400), lm.Linear(400), lm.Linear(1)))
    x, done = np.ones((1, 400), "float32"), threading.Event()
    sets = [{name: np.full_like(v, k) for name, v in model.parameters().items()} for k in (0, 1)]
    expected = []
    for values in sets:
        model.set_parameters(values)
        expected.append(model.predict(x))

    def work(number):
        predict, out = model.predictor(), np.empty((1, 1), "float32")
        for _ in range(150 if number == 0 else 0):
            for values in sets:
                model.set_parameters(values)
        while number and not done.is_set():
            predict(x, out=out)
            assert any(np.array_equal(out, prediction) for prediction in expected)
        done.set()

    in_threads(work, 3)


def test_one_predictor_may_be_called_by_several_threads():
    predict = lm.Model(network()).predictor(1)
    rows = [normal(1, 4) + n for n in range(4)]
    expected = [predict(row) for row in rows]

    def work(number):
        for _ in range(500):
            np.testing.assert_array_equal(predict(rows[number]), expected[number])

    in_threads(work)


def test_a_change_that_was_interrupted_does_not_stop_predictions(model):
    predict, x = model.predictor(1), normal(1, 4)
    expected = predict(x)
    bound = predict._bound
    _, changes = bound[-1]
    # As after Ctrl-C.
    changes.count += 1
    np.testing.assert_array_equal(predict(x), expected)
    assert changes.completed == changes.count


DTYPE = (
    "in out 0: out has another dtype than the output\n"
    "  expected  float32\n"
    "  found     float64\n"
    "  Make it by np.empty((2, 3), 'float32')."
)


@pytest.mark.cases(
    ("out", "kind", "text"),
    ([0.0] * 3, DTypeError, "the outputs are written to arrays"),
    (np.empty((2, 3)), DTypeError, DTYPE),
    (np.empty((3, 2), "float32"), ShapeError, "out has another shape than the output"),
    (READ_ONLY.reshape(2, 3), ShapeError, "out cannot be written"),
    ((np.empty((2, 3)),) * 2, DataError, "the network has another number of outputs"),
)
def test_an_array_that_cannot_take_the_output(out, kind, text):
    assert text in error_text(kind, lm.Model(network()).predictor(2), normal(2, 4), out=out)


def test_batches_and_networks_that_cannot_be_predicted_are_refused():
    assert error_text(ShapeError, lm.Model(network()).predictor(2), normal(3, 4)) == (
        "in predictor: there are more examples than the predictor was made for\n"
        "  expected  at most 2\n"
        "  found     3\n"
        "  Make it with batch_size=3; model.predict takes any number."
    )
    model = lm.Model(lm.Sequential(lm.Input(2, dtype="int64"), lm.Embedding(10, 4)))
    assert "out of range" in error_text(DataError, model.predictor(1), np.array([[3, 10]]))
    x = lm.Input(3)
    text = error_text(ShapeError, lm.Model(lm.Network(x, lm.ops.sum(x, 0))).predictor, 2)
    assert "an output whose first axis is not the batch cannot be predicted" in text


def test_a_predictor_is_not_copied_and_is_refused_after_its_release(model):
    predict = model.predictor()
    assert error_text(DefinitionError, copy.copy, predict) == (
        "in Predictor: a predictor cannot be copied or pickled\n"
        "  Copy the model, and make a new predictor: model.predictor(...)."
    )
    predict.release()
    assert error_text(ReleasedError, predict, normal(1, 4)) == (
        "in Predictor: this predictor was released: its memory is gone\n"
        "  Make a new one with model.predictor(...); the model still works."
    )
    assert model.predict(normal(1, 4)).shape == (1, 3)
