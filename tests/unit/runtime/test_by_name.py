"""Arrays that are given by the names of inputs and outputs."""

import copy

import numpy as np
import pytest
from error_texts import error_text, refused

import lamina as lm
from lamina.data import Dataset, Stream
from lamina.errors import DataError, NonFiniteError, ShapeError

pytestmark = pytest.mark.each_case

generator = np.random.default_rng(0)
IMAGE = generator.normal(size=(20, 3, 4)).astype("float32")
AGE = generator.normal(size=20).astype("float32")
BOX = generator.normal(size=(20, 2)).astype("float32")
LABEL = generator.integers(0, 3, 20)
# In another order than in the network.
INPUTS = {"age": AGE, "image": IMAGE}
TARGETS = {"box": BOX, "label": LABEL}
BY_NAME, IN_ORDER = (INPUTS, TARGETS), ((IMAGE, AGE), (LABEL, BOX))
LOSS = {"box": lm.MSE(), "label": lm.CrossEntropy()}
BALANCED = {"class_weights": "balanced"}
HOW = {"loss": LOSS, "optimizer": lm.SGD(0.1)}


def network():
    image, age = lm.Input(3, 4, name="image"), lm.Input(name="age")
    joined = lm.concat([lm.Flatten()(image), lm.Reshape(1)(age)])
    outputs = {"label": lm.Linear(3)(joined), "box": lm.Linear(2)(joined)}
    return lm.Network([image, age], outputs, name="both")


def model(engine="interpreter"):
    return lm.Model(network(), engine=engine, seed=0)


def without_names():
    return lm.Model(lm.Sequential(lm.Input(2), lm.Linear(3)), engine="interpreter")


def fault(call, *values, **options):
    return error_text(DataError, call, *values, **options)


def rows(arrays, some):
    return {name: array[some] for name, array in arrays.items()}


def in_batches(size=7):
    for start in range(0, 20, size):
        some = slice(start, start + size)
        yield rows(INPUTS, some), rows(TARGETS, some)


def same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


LISTS = {"image": IMAGE.tolist(), "age": AGE.tolist()}
FORMS = [
    (BY_NAME, INPUTS),
    ((INPUTS, IN_ORDER[1]), LISTS),
    ((IN_ORDER[0], TARGETS), Dataset(*BY_NAME)),
    (Dataset(*BY_NAME), Dataset(INPUTS)),
    (in_batches, in_batches),
    ([*in_batches()], [rows(INPUTS, slice(0, 8)), rows(INPUTS, slice(8, 20))]),
    (Stream(lambda: [{"inputs": x, "targets": y} for x, y in in_batches()]), INPUTS),
    (lambda: [[x, y] for x, y in in_batches()], INPUTS),
]


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_data_by_name_gives_the_results_of_arrays_in_order(engine):
    def results(data, inputs):
        named, how = model(engine), {"batch_size": 8, "shuffle": False, **HOW}
        history = named.fit(data, validation=data, epochs=2, **how)
        scores = named.evaluate(data, LOSS, {"label": lm.Accuracy()})
        losses = [*history["loss"], *history["validation_loss"], *scores.values()]
        return [*named.parameters().values()], losses, named.predict(inputs)

    expected = results(IN_ORDER, IN_ORDER[0])
    for data, inputs in FORMS:
        parameters, losses, predictions = results(data, inputs)
        same(parameters, expected[0])
        np.testing.assert_allclose(losses, expected[1], rtol=1e-6)
        same(predictions, expected[2])


def test_a_predictor_takes_inputs_and_writes_outputs_by_name():
    named = model("cpu")
    expected = named.predict((IMAGE, AGE))
    predict = named.predictor(batch_size=20)
    same(predict(INPUTS), expected)
    out = {"box": np.empty((20, 2), "float32"), "label": np.empty((20, 3), "float32")}
    predict(INPUTS, out=out)
    same((out["label"], out["box"]), expected)


def test_training_steps_take_dicts_whatever_the_training_was_made_for():
    losses = []
    weights = {"label": generator.random(20), "box": generator.random(20)}
    in_order = weights["label"], weights["box"]
    for data, weighted, step in (
        (None, False, IN_ORDER),
        (None, False, BY_NAME),
        (BY_NAME, False, BY_NAME),
        (BY_NAME, False, IN_ORDER),
        ((*BY_NAME, weights), True, (*BY_NAME, weights)),
        ((*BY_NAME, weights), True, (*IN_ORDER, in_order)),
        ((*IN_ORDER, in_order), True, (*BY_NAME, weights)),
    ):
        with model().training(batch_size=20, data=data, **HOW) as training:
            losses.append(float(training.step(*step)))
        assert losses[-1] == losses[4 if weighted else 0]
    assert losses[0] != losses[4]


@pytest.mark.sampled
def test_run_profile_and_verify_take_dicts():
    named, losses = model("cpu"), []
    for inputs, targets in (BY_NAME, IN_ORDER):
        with model("cpu").training(batch_size=8, **HOW) as training:
            losses.append(training.run((inputs, targets), steps=3))
            assert training.profile(inputs, targets, seconds=0.01).runs
    same(*losses)
    assert named.profile(8, data=BY_NAME, seconds=0.01, **HOW).runs
    assert named.profile(8, data=Dataset(INPUTS), seconds=0.01).runs
    report = lm.verify(network(), LOSS, data=BY_NAME)
    assert report.passed
    assert report.findings == lm.verify(network(), LOSS, data=IN_ORDER).findings


def test_a_saved_model_and_a_copy_keep_the_names_which_may_be_input(tmp_path):
    named = model()
    named.save(tmp_path / "model")
    for again in (lm.load(tmp_path / "model", engine="interpreter"), copy.deepcopy(named)):
        assert again.network.input_names == ("image", "age")
        assert again.network.output_names == ("label", "box")
        assert again.network.name == "both"
        same(again.predict(INPUTS), named.predict(INPUTS))
    net = lm.Sequential(lm.Input(2, name="input"), lm.Linear(2))
    assert net.input_names == ("input",)
    assert lm.Model(net).predict({"input": BOX}).shape == (20, 2)
    assert without_names().network.input_names == (None,)


def test_targets_of_outputs_without_a_loss_are_not_used():
    own, loss = model(), {"label": lm.CrossEntropy()}
    expected = own.evaluate((INPUTS, LABEL), loss)
    assert own.evaluate(BY_NAME, loss) == expected
    with own.training(loss, lm.SGD(0.1), 20) as training:
        assert float(training.step(INPUTS, TARGETS)) == expected["loss"]


def test_the_target_of_a_single_loss_has_the_name_of_the_output():
    x = lm.Input(2, name="x")
    named = lm.Model(lm.Network(x, {"label": lm.Linear(3)(x)}), engine="interpreter")
    scores = named.evaluate(({"x": BOX}, {"label": LABEL}), lm.CrossEntropy())
    assert scores == named.evaluate((BOX, LABEL), lm.CrossEntropy())
    named.fit(({"x": BOX}, {"label": LABEL}), **HOW | {"loss": lm.CrossEntropy()}, **BALANCED)
    plain = lm.Model(lm.Network(x, lm.Linear(3)(x)), engine="interpreter")
    plain.evaluate(({"x": BOX}, {"output0": LABEL}), lm.CrossEntropy())

    def joint(outputs, targets):
        first = lm.CrossEntropy()(outputs[0], targets[0])
        return first + lm.MSE()(outputs[1], targets[1])

    two_headed = model()
    assert two_headed.evaluate(BY_NAME, joint) == two_headed.evaluate(IN_ORDER, joint)


def test_a_data_set_keeps_the_names():
    data = Dataset(INPUTS, TARGETS, weights={"label": np.ones(20)}, dtype="float64")
    assert repr(data) == (
        "20 examples: x['age'] f64[], x['image'] f64[3, 4], y['box'] f64[2], y['label'] i64[], "
        "weights['label'] f64[]"
    )
    assert data.nbytes == sum(a.nbytes for a in (*data.input_arrays, BOX, BOX, LABEL, LABEL))
    first, second = data.split(0.75, seed=1)
    assert (len(first), len(second)) == (15, 5)
    some = data.take([3, 1])
    assert [*some.inputs] == ["age", "image"]
    np.testing.assert_array_equal(some.targets["label"], LABEL[[3, 1]])
    x, y, weights = next(data.batches(8))
    np.testing.assert_array_equal(x["age"], AGE[:8])
    assert (y.keys(), weights.keys()) == ({"box", "label"}, {"label"})
    assert data.subset(0, 4).input_arrays[1].shape == (4, 3, 4)


def test_a_change_of_the_dict_does_not_change_the_data_set():
    inputs = dict(INPUTS)
    data = Dataset(inputs)
    inputs["age"] = AGE[:7]
    assert len(data.input_arrays[0]) == 20
    text = fault(Dataset, inputs)
    assert "the inputs['age'] and the inputs['image'] differ in the number of examples" in text


def test_names_that_inputs_have_not_are_refused():
    assert fault(model().predict, {"image": IMAGE, "ages": AGE}) == (
        "in inputs: the network has no input named 'ages'\n"
        "  expected  image, age\n"
        "  found     image, ages\n"
        "  Is it 'age'?"
    )
    assert fault(model().predict, INPUTS | {"label": LABEL}) == (
        "in inputs: the network has no input named 'label'\n"
        "  expected  image, age\n"
        "  found     age, image, label\n"
        "  Leave it out. Targets are given separately: (inputs, targets)."
    )
    assert fault(without_names().predict, {"box": BOX}) == (
        "in inputs: the inputs are given by name, and the input has no name\n"
        "  expected  an array\n"
        "  found     a dict of box\n"
        "  Give the array itself, or name the inputs: lm.Input(..., name='box'). A table by "
        "columns is for a model that was trained on lm.data.from_frame(...). A predictor takes "
        "model.coding.inputs(table)."
    )
    a, b = lm.Input(2, name="a"), lm.Input(2)
    two = lm.Model(lm.Network([a, b], a + b), engine="interpreter")
    assert fault(two.evaluate, ({"a": BOX, "b": BOX}, BOX), lm.MSE()).startswith(
        "in inputs: the inputs are given by name, and input 1 has no name\n"
        "  expected  a tuple of 2 arrays\n"
        "  found     a dict of a, b\n"
        "  Give a tuple in their order, or name the inputs: lm.Input(..., name='b')."
    )


def test_unknown_and_missing_inputs_and_targets_are_refused():
    expected = (
        "in inputs: the input 'age' is missing\n"
        "  expected  image, age\n"
        "  found     image\n"
        "  Give an array for each input."
    )
    named, inputs = model(), {"image": IMAGE}
    for call in (
        lambda: named.predict(inputs),
        lambda: named.predictor()(inputs),
        lambda: named.evaluate((inputs, TARGETS), LOSS),
        lambda: named.training(batch_size=8, data=(inputs, TARGETS), **HOW),
        lambda: lm.verify(named.network, LOSS, data=(inputs, TARGETS)),
    ):
        assert fault(call) == expected
    assert fault(named.evaluate, (INPUTS, {"box": BOX, "labels": LABEL}), LOSS) == (
        "in targets: the network has no output named 'labels'\n"
        "  expected  label, box\n"
        "  found     box, labels\n"
        "  Is it 'label'?"
    )
    assert fault(named.evaluate, (INPUTS, {"box": BOX}), LOSS) == (
        "in targets: the target 'label' is missing\n"
        "  expected  label, box\n"
        "  found     box\n"
        "  Give the target of each output that has a loss."
    )


def test_names_for_targets_without_names_are_refused():
    def first(outputs, target):
        return lm.CrossEntropy()(outputs[0], target)

    text = (
        "in targets: the targets are given by name, and the target has no name\n"
        "  expected  an array\n"
        "  found     a dict of label\n"
        "  Give the array itself, or "
    )
    with model().training(first, lm.SGD(0.1), 20, data=(INPUTS, LABEL)) as training:
        advice = "give a loss for each output: loss={'label': lm.MSE(), ...}."
        assert fault(training.step, INPUTS, {"label": LABEL}) == text + advice
    advice = "name the outputs: lm.Network(inputs, outputs={'label': ..., ...})."
    data = (BOX, {"label": LABEL})
    assert fault(without_names().evaluate, data, lm.CrossEntropy()) == text + advice


def test_weights_are_given_for_all_losses():
    named, weights = model(), generator.random(20)
    assert fault(named.evaluate, (*BY_NAME, {"box": weights}), LOSS) == (
        "in weights: the weights of output 'label' are missing\n"
        "  expected  label, box\n"
        "  found     box\n"
        "  Give weights for each output that has a loss: numpy.ones(n) if all examples count "
        "equally."
    )
    scores = named.evaluate((*BY_NAME, {"box": weights, "label": weights}), LOSS)
    assert scores == named.evaluate((*BY_NAME, weights), LOSS)


def test_nothing_is_changed_by_a_fit_whose_data_is_refused():
    named = model()
    before, wrong = named.parameters(), (INPUTS, {"box": BOX})
    for train, validation in ((wrong, BY_NAME), (BY_NAME, wrong), (BY_NAME, [wrong])):
        text = fault(named.fit, train, validation=validation, **HOW)
        assert "the target 'label' is missing" in text
        same([*named.parameters().values()], [*before.values()])
    text = fault(named.fit, lambda: iter([BY_NAME, wrong]), **HOW)
    assert text.startswith("in batch 1 of the stream, targets: the target 'label' is missing")
    text = fault(named.predict, [INPUTS, {"image": IMAGE}])
    assert text.startswith("in batch 1 of the stream, inputs: the input 'age' is missing")


def test_errors_about_arrays_have_the_names_of_inputs_and_targets():
    named, age = model(), AGE.copy()
    for inputs in (INPUTS | {"image": IMAGE[:, :2]}, (IMAGE[:, :2], AGE)):
        assert error_text(ShapeError, named.predict, inputs).startswith(
            "in input 'image': input 'image' has another shape than the network expects"
        )
    with named.training(batch_size=20, **HOW) as training:
        error = refused(DataError, training.step, (IMAGE, AGE), (LABEL[:9], BOX))
    counts = {"input 'image'": "20", "input 'age'": "20", "target 'label'": "9"}
    assert dict(error.facts) == counts | {"target 'box'": "20"}
    words = lm.Input(5, dtype="int64", name="words")
    embedded = lm.Model(lm.Network(words, lm.Embedding(7, 2)(words)))
    text = fault(embedded.predict, {"words": [[0] * 5, [9] * 5]})
    assert "found     9 at example 1 of input 'words'" in text
    age[4] = np.nan
    error = refused(NonFiniteError, named.fit, (INPUTS | {"age": age}, TARGETS), **HOW)
    assert ("data", "input 'age' is not finite at example 4") in error.facts
