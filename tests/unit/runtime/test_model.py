"""The model: predictions, parameters, evaluation, precision, seeds."""

import copy
import linecache
import pickle
import warnings

import numpy as np
import pytest
from error_texts import error_text, refused
from random_arrays import normal
from training_cases import same

import lamina as lm
from lamina import ops
from lamina.errors import DataError, DefinitionError, DTypeError, ShapeError
from lamina.runtime import compile_for_batch


def network():
    return lm.Sequential(lm.Input(4), lm.Linear(5), lm.Tanh(), lm.Linear(3))


@pytest.fixture
def model():
    return lm.Model(network())


def forward(p, x):
    return np.tanh(x @ p["1.weight"].T + p["1.bias"]) @ p["3.weight"].T + p["3.bias"]


# Prediction ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 255, 4095, 4096, 4097, 9000])
def test_any_number_of_examples_can_be_predicted(count, model):
    x = normal(count, 4)
    found = model.predict(x)
    assert found.shape == (count, 3)
    np.testing.assert_allclose(found, forward(model.parameters(), x), rtol=1e-5, atol=1e-6)


def test_predictions_run_in_batches_whose_tensors_are_not_too_large(monkeypatch):
    batches = []

    def recorded(graph, batch, *others, **how):
        batches.append(batch)
        return compile_for_batch(graph, batch, *others, **how)

    monkeypatch.setattr("lamina.runtime.inference.compile_for_batch", recorded)
    monkeypatch.setattr("lamina.runtime.inference.LARGEST_TENSOR_BYTES", 100 * 4 * 80)
    model = lm.Model(lm.Sequential(lm.Input(300), lm.Linear(100), lm.Linear(3)))
    x = normal(150, 300)
    predictions = model.predict(x)
    assert batches == [64, 22]
    single = np.concatenate([model.predict(row[None]) for row in x])
    np.testing.assert_allclose(predictions, single, rtol=1e-4, atol=1e-5)


def test_no_examples_have_no_predictions(model):
    expected = model.predict(normal(1, 4))
    empty = model.predict(normal(0, 4))
    assert empty.shape == (0, *expected.shape[1:])
    assert empty.dtype == expected.dtype
    with pytest.raises(ShapeError):
        model.predict(normal(0, 5))
    assert "there are no examples" in error_text(DataError, lambda: model.predictor()(normal(0, 4)))


@pytest.mark.cases(
    "given",
    *(lambda x: x.tolist(), lambda x: x[::-1], lambda x: x[:, ::-1], np.asfortranarray),
    *(lambda x: x.astype(x.dtype.newbyteorder()), lambda x: lm.data.Dataset(x, np.zeros(6))),
)
def test_arrays_may_be_lists_and_have_any_order(given, model):
    x = given(normal(6, 4))
    plain = x.inputs if isinstance(x, lm.data.Dataset) else np.array(x, "float32", order="C")
    np.testing.assert_array_equal(model.predict(x), model.predict(plain))


def test_inputs_are_not_changed_and_predictions_are_copies(model):
    x = normal(6, 4)
    before, first = x.copy(), model.predict(x)
    kept = first.copy()
    model.predict(-x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(first, kept)


def test_several_inputs_and_outputs_are_tuples():
    a, b = lm.Input(4), lm.Input()
    model = lm.Model(lm.Network([a, b], [lm.Dropout(0.9)(a), b * 2.0]))
    x = normal(3, 4)
    # A scalar for each example, and dropout that is off.
    kept, doubled = model.predict((x, [1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(kept, x)
    np.testing.assert_array_equal(doubled, [2.0, 4.0, 6.0])


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int16", "uint16", "float16", "int32", "int64", "bool"]
)
def test_integers_are_converted_on_the_device(dtype, model):
    x = np.random.default_rng(0).integers(0, 2, (6, 4)).astype(dtype)
    np.testing.assert_array_equal(model.predict(x), model.predict(x.astype("float32")))
    (compiled,) = [
        p for key, p in model._inference._programs._programs.items() if key[1][0].name == dtype
    ]
    assert compiled.program.buffers["input0"].dtype.name == dtype


def predicted(inputs, *shape):
    net = lm.Sequential(lm.Input(*shape or (4,)), lm.Flatten(), lm.Linear(2))
    return lm.Model(net).predict(inputs)


def test_an_array_of_another_shape_is_refused():
    assert error_text(ShapeError, predicted, normal(6, 5)) == (
        "in input 0: input 0 has another shape than the network expects\n"
        "  expected  f32[batch, 4]\n"
        "  found     f32[6, 5]\n"
        "  The first axis is the batch; each example has the shape [4]."
    )


@pytest.mark.cases(
    ("expected", "found", "advice"),
    ((4,), (4,), "The batch axis is missing: array[None] makes a batch of one."),
    ((4,), (6, 2, 2), "The elements are right in number: array.reshape(-1, 4)."),
    ((3, 8, 9), (2, 8, 9, 3), "Channels come first: array.transpose(0, 3, 1, 2)."),
    (
        (3, 8, 9),
        (2, 9, 3, 8),
        "The axes are in another order: array.transpose(...) puts them right.",
    ),
    ((3, 8, 9), (2, 216), "The elements are right in number: array.reshape(-1, 3, 8, 9)."),
)
def test_a_missing_axis_or_another_order_is_recognised(expected, found, advice):
    assert refused(ShapeError, predicted, normal(*found), *expected).advice == advice


def test_a_missing_axis_of_features_is_recognised():
    model, x = lm.Model(lm.Sequential(lm.Input(1), lm.Linear(1))), np.ones(6, "float32")
    how = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), "progress": False}
    for call in (model.predict, lambda x: model.fit((x, np.ones((6, 1), "float32")), **how)):
        assert refused(ShapeError, call, x).advice == (
            "The axis of features is missing: x[:, None] makes one feature of an array, "
            "frame[['NAME']] of a column of a frame."
        )
        call(x[:, None])


def test_double_precision_for_a_float32_model_is_converted_with_one_warning_a_line(model):
    x = normal(6, 4).astype("float64")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        predictions = [model.predict(x) for _ in range(3)]
    (warning,) = shown
    assert str(warning.message) == (
        "input 0 is converted from float64 to float32. Convert it once, array.astype('float32') "
        "or lm.data.Dataset(x, y, dtype='float32'), or make the model with dtype='float64'."
    )
    assert warning.filename == __file__
    assert "model.predict(x) for _" in linecache.getline(__file__, warning.lineno)
    np.testing.assert_array_equal(predictions[0], model.predict(x.astype("float32")))


@pytest.mark.parametrize("dtype", ["longdouble", "uint64", "complex64", "U3", "O"])
def test_a_dtype_that_lamina_does_not_have_is_refused_with_the_input(dtype):
    error = refused(DTypeError, predicted, np.zeros((6, 4), dtype))
    assert error.where == "input 0"
    assert error.problem.startswith("there is no dtype")


def test_inputs_that_cannot_be_converted_are_refused():
    net = lm.Sequential(lm.Input(dtype="int64"), lambda k: ops.one_hot(k, 3))
    error = refused(DTypeError, lm.Model(net).predict, np.zeros(6, "float32"))
    assert error.advice == "Convert it: array.astype('int64')."
    error = refused(DataError, predicted, [[1.0, 2.0, 3.0, 4.0], [1.0]])
    assert error.problem == "input 0 cannot be converted to an array"
    error = refused(DataError, predicted, np.full((6, 4), 1e39))
    assert error.problem == "input 0 has numbers that float32 cannot hold"
    error = refused(DTypeError, predicted, np.ones((2, 4), "uint32"))
    assert error.problem == "input 0 has a dtype that data cannot have"


def test_inputs_and_outputs_that_do_not_fit_together_are_refused():
    for inputs, count in ((None, "0"), ((), "0"), ((1, 2), "2")):
        assert error_text(DataError, predicted, inputs) == (
            "the network has another number of inputs\n"
            "  expected  1\n"
            f"  found     {count}\n"
            "  Give a tuple with one array for each input."
        )
    a, b = lm.Input(4), lm.Input(2)
    model = lm.Model(lm.Network([a, b], lm.concat([a, b])))
    error = refused(DataError, model.predict, (normal(5, 4), normal(6, 2)))
    assert error.facts == (("input 0", "5"), ("input 1", "6"))
    model = lm.Model(lm.Sequential(lm.Input(4), lambda x: ops.mean(x)))
    assert "whose first axis is not the batch" in error_text(
        ShapeError, model.predict, normal(4, 4)
    )


# Parameters ---------------------------------------------------------------------------------------


def test_parameters_come_in_the_order_of_the_layers_and_are_copies(model):
    before = model.parameters()
    assert list(before) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    model.parameters()["1.weight"][:] = 0
    assert same(model.parameters(), before)


def test_parameters_that_are_set_are_copied_and_used_at_once(model):
    x = normal(3, 4)
    before, bias = model.parameters(), np.arange(5)
    model.predict(x)
    model.set_parameters({"1.bias": bias})
    bias[:] = 0
    changed = before | {"1.bias": np.arange(5, dtype="float32")}
    assert same(model.parameters(), changed)
    np.testing.assert_allclose(model.predict(x), forward(changed, x), rtol=1e-5, atol=1e-6)


UNKNOWN = (
    "the network has no parameter '2.weight'\n"
    "  expected  1.weight, 1.bias, 3.weight, 3.bias\n"
    "  found     '2.weight'\n"
    "  print(network) numbers the layers."
)
TRANSPOSED = (
    "the parameter '3.weight' has another shape\n"
    "  expected  [3, 5]\n"
    "  found     [5, 3]\n"
    "  Linear weights are (outputs, inputs)."
)
WRONG = {
    "an unknown name": ({"2.weight": np.zeros(3)}, DefinitionError, UNKNOWN),
    "another shape": ({"3.bias": np.zeros(4, "float32")}, ShapeError, "has another shape"),
    "a transposed weight": ({"3.weight": np.zeros((5, 3), "f4")}, ShapeError, TRANSPOSED),
    "double precision": ({"3.bias": np.zeros(3)}, DTypeError, "has the wrong dtype"),
    "complex numbers": ({"3.bias": np.zeros(3, complex)}, DTypeError, ""),
    "uneven rows": ({"3.weight": [[1.0], [1.0, 2.0]]}, DataError, ""),
    "text": ({"3.bias": np.array(["a", "b", "c"])}, DTypeError, ""),
    "nothing": ({"3.bias": None}, DTypeError, ""),
}


@pytest.mark.cases("wrong, kind, text", WRONG)
def test_wrong_parameters_change_nothing(wrong, kind, text, model):
    before, values = model.parameters(), {"1.bias": np.ones(5, "float32"), **wrong}
    assert text in error_text(kind, model.set_parameters, values)
    assert same(model.parameters(), before)


def test_parameters_without_names_are_refused():
    assert error_text(DefinitionError, lm.Model(network()).set_parameters, [np.zeros(3)]) == (
        "in set_parameters: parameters are given by their names\n"
        "  expected  {'1.weight': array, ...}\n"
        "  found     list\n"
        "  model.parameters() has them all."
    )


def test_tensors_of_pytorch_are_parameters(torch, model):
    linear = torch.nn.Linear(4, 5)
    model.set_parameters({"1.weight": linear.weight, "1.bias": linear.state_dict()["bias"]})
    np.testing.assert_array_equal(model.parameters()["1.weight"], linear.weight.detach().numpy())
    halves = linear.weight.bfloat16()
    model.set_parameters({"1.weight": halves})
    expected = halves.float().detach().numpy()
    np.testing.assert_array_equal(model.parameters()["1.weight"], expected)
    text = error_text(DataError, model.set_parameters, {"1.weight": linear.weight.to("meta")})
    assert "parameter '1.weight' cannot be converted to an array" in text
    assert text.endswith("'meta' has no values: load them first.")


# Seeds and precision ------------------------------------------------------------------------------


def test_the_seed_decides_the_first_parameters_of_both_precisions():
    first, again, other = (lm.Model(network(), seed=seed).parameters() for seed in (7, 7, 8))
    assert same(first, again)
    assert all((first[name] != other[name]).all() for name in first)
    double = lm.Model(network(), seed=7, dtype="float64").parameters()
    assert same(first, {name: value.astype("float32") for name, value in double.items()})
    equal = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(4), lm.Linear(4))).parameters()
    assert (equal["1.weight"] != equal["2.weight"]).all()


def test_a_double_precision_model_computes_in_double_precision():
    model = lm.Model(network(), dtype="float64")
    x = normal(6, 4)
    predictions = model.predict(x)
    assert predictions.dtype == np.float64
    np.testing.assert_array_equal(predictions, model.predict(x.astype("float64")))
    np.testing.assert_allclose(predictions, forward(model.parameters(), x), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("seed", [-1, 2**63 - 1, -(2**63)])
def test_the_smallest_and_the_largest_seed_are_valid(seed):
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Dropout(0.5), lm.Linear(2)), seed=seed)
    with model.training(lm.MSE(), lm.SGD(0.1), batch_size=3) as training:
        assert np.isfinite(float(training.step(normal(3, 4), normal(3, 2))))


# Evaluation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 32, 100, 256])
@pytest.mark.parametrize("count", [1, 50, 100])
def test_evaluation_is_the_mean_over_all_examples(count, batch_size, model):
    x, y = normal(count, 4), np.random.default_rng(1).integers(0, 3, count)
    measured = model.evaluate((x, y), lm.CrossEntropy(), [lm.Accuracy()], batch_size)
    scores = forward(model.parameters(), x).astype("float64")
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert measured["loss"] == pytest.approx(-np.log(shares[np.arange(count), y]).mean(), rel=1e-5)
    assert measured["accuracy"] == pytest.approx((scores.argmax(axis=1) == y).mean())
    summed = model.evaluate((x, x[:, :3]), lm.MSE(reduction="sum"), batch_size=batch_size)
    assert summed["loss"] == pytest.approx(((scores - x[:, :3]) ** 2).sum(), rel=1e-5)


def test_evaluation_leaves_penalties_out_and_changes_nothing():
    net = lm.Sequential(lm.Input(4), lm.Linear(3, weight_regularizer=lm.L2(100.0)))
    model = lm.Model(net)
    before = model.parameters()
    x, y = normal(10, 4), normal(10, 3)
    expected = np.mean((model.predict(x) - y) ** 2)
    assert model.evaluate((x, y), lm.MSE())["loss"] == pytest.approx(expected, rel=1e-5)
    with model.training(lm.MSE(), lm.SGD(0.1), 10) as training:
        penalty = 50.0 * np.sum(before["1.weight"] ** 2)
        assert float(training.step(x, y)) == pytest.approx(expected + penalty, rel=1e-5)
        assert not same(model.parameters(), before)
    model.set_parameters(before)
    model.evaluate((x, y), lm.MSE())
    assert same(model.parameters(), before)


# Networks written down in float32, run in double precision ----------------------------------------


def test_ops_between_layers_follow_the_precision_of_the_model():
    net = lm.Sequential(
        lm.Input(dtype="int64"),
        lambda k: ops.one_hot(k, 5) + ops.cast(ops.one_hot(k, 5, dtype="int32"), "float32"),
        lm.Linear(2),
    )
    model = lm.Model(net, dtype="float64")
    p = model.parameters()
    (weight, bias) = p.values()
    np.testing.assert_allclose(model.predict([3, 0]), 2 * weight.T[[3, 0]] + bias, rtol=1e-14)


def test_a_network_that_mixes_examples_sees_the_given_examples_only():
    x = lm.Input(2)
    model = lm.Model(lm.Network([x], x - ops.mean(x, axes=0, keepdims=True)))
    np.testing.assert_allclose(model.predict(np.ones((3, 2), "float32")), 0)


# Copies and constants -----------------------------------------------------------------------------


def test_a_copied_and_a_pickled_model_predict_the_same_and_share_no_parameters(model):
    x = normal(5, 4)
    expected = model.predict(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.predict(x).tobytes() == expected.tobytes()
        with other.training(loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=5) as training:
            training.step(x, normal(5, 3))
        assert other.predict(x).tobytes() != expected.tobytes()
        assert model.predict(x).tobytes() == expected.tobytes()


def test_a_number_in_a_network_is_exact_in_a_float64_model(tmp_path):
    x = lm.Input(1)
    model = lm.Model(lm.Network([x], x * 0.1), dtype="float64")
    assert model.predict(np.ones((1, 1)))[0, 0] == 0.1
    model.save(tmp_path / "tenth.safetensors")
    assert lm.load(tmp_path / "tenth.safetensors").predict(np.ones((1, 1)))[0, 0] == 0.1


def test_a_function_of_one_tensor_needs_no_lists():
    x = lm.Input(3)
    (result,) = lm.compile(x, ops.exp(x))(np.zeros((2, 3), "float32"))
    assert result.tolist() == [[1.0] * 3] * 2
    assert len(lm.compile([x], (x, x + 1))(np.zeros((2, 3), "float32"))) == 2
    with pytest.raises(DefinitionError, match="inputs and outputs of a network are tensors"):
        lm.compile(x, lm.Linear(3))


def test_the_inputs_of_a_function_keep_their_own_dtypes():
    double, single = lm.Input(dtype="float64"), lm.Input()
    for inputs in ([double, single], [single, double]):
        function = lm.compile(inputs, [double * 0.1, single * 0.1])
        arrays = function([1.0], [1.0])
        assert [array.dtype.name for array in arrays] == ["float64", "float32"]
        assert arrays[0][0] == 0.1
    narrowed = lm.compile([double], [ops.cast(double, "float32")])([1.0])[0]
    assert narrowed.dtype == np.float32
