"""Wrong calls of a model are refused before anything changes; copies during a training."""

import copy
import pickle
import re
import threading

import numpy as np
import pytest
from error_texts import error_text, refused
from random_arrays import normal
from training_cases import network

import lamina as lm
from lamina.errors import DefinitionError, DTypeError, EngineError

pytestmark = pytest.mark.each_case


# By the nearest name.
ENGINES = {
    "cpu": "cpux CPU cpu: cpu:1",
    "interpreter": "interpreter:1 interpreter:x numpy",
    "opencl": "OpenCL opencl:",
    "opencl:1": "OpenCL:1",
    "opencl:radeon": "open-cl:radeon",
    "opencl:0": "rocm:0",
    "": "abacus",
}


@pytest.mark.parametrize(
    ("engine", "nearest"),
    [("", ""), *((name, nearest) for nearest, names in ENGINES.items() for name in names.split())],
)
def test_an_unknown_engine_is_refused_with_the_known_ones(engine, nearest):
    error = refused(EngineError, lm.Model, network(), engine=engine)
    assert error.problem == f"there is no engine {engine!r}"
    expected, actual = error.facts
    assert "interpreter" in expected[1]
    assert actual == ("found", repr(engine))
    meant = f"Did you mean {nearest!r}? " if nearest else ""
    listing = "lamina.devices(), or `lamina devices` on the command line, lists"
    assert error.advice == f"{meant}{listing} the engines and devices of this machine."


@pytest.mark.parametrize("engine", ["gpu", "gpu:0", "mps", "metal"])
def test_a_kind_of_device_that_is_no_engine_gets_the_engines_to_choose_from(engine):
    advice = refused(EngineError, lm.Model, network(), engine=engine).advice
    assert advice.startswith(
        "An Nvidia GPU is 'cuda', and any GPU with a driver of OpenCL 'opencl'. "
        if "gpu" in engine
        else "There is no engine for Metal; 'cpu' runs everywhere, 'opencl' where it has a "
    )


def test_a_loss_of_arrays_is_refused_and_compiled_as_that_error_says():
    error = refused(DefinitionError, lambda: lm.CrossEntropy()(normal(8, 3), np.zeros(8, "int64")))
    assert error.where.startswith("CrossEntropy (test_model_mistakes.py:")
    assert error.problem == "a loss is applied to tensors"
    assert error.facts == (("expected", "Tensor"), ("found", "ndarray"))
    assert error.advice == (
        "model.evaluate(data, loss=...) computes it. For arrays alone compile it: "
        "lm.compile([p, t], [loss(p, t)]), where p and t are made by lm.Input."
    )
    p, t, a, b = lm.Input(3), lm.Input(3), normal(8, 3), normal(8, 3)
    computed = lm.compile([p, t], [lm.MSE()(p, t)])(a, b)
    np.testing.assert_allclose(computed, ((a - b) ** 2).mean(), rtol=1e-5)


PRECISIONS = "float32, float64, bfloat16, float16, mixed, mixed-bfloat16, mixed-float16"


def test_a_model_of_no_network_or_of_an_unknown_precision_is_refused():
    error = refused(DefinitionError, lm.Model, lm.Linear(3))
    assert error.facts == (("expected", "Network"), ("found", "Linear"))
    for make in (lm.Model, lambda net, dtype: net.plan(8, dtype=dtype)):
        for dtype in ("mixed-float8", None, "int64", "float8", "flaot64"):
            error = refused(DTypeError, make, network(), dtype=dtype)
            assert error.advice == "Write dtype='float64'." * (dtype == "flaot64")
            assert error.problem == "the parameters of a model are floating-point numbers"
            assert error.facts == (("expected", PRECISIONS), ("found", str(dtype)))
    assert error.where.startswith("Network.plan, dtype (test_model_mistakes.py:")
    error = refused(DefinitionError, lm.Model, network(), amp=True)
    assert error.advice == 'Here it is dtype: lm.Model(net, dtype="mixed").'
    error = refused(
        DefinitionError, lm.Model(network()).fit, (normal(8, 4), normal(8, 3)), amp=True
    )
    assert error.advice.startswith("The precision is chosen when the model is made: lm.Model(")


COSINE = lm.schedules.Cosine(0.1, 100)
CALLBACKS = (
    "in callbacks: this is not a list of callbacks\n"
    "  expected  [a function of the history, lm.callbacks.EarlyStopping()]\n"
    "  found     <built-in function print>\n"
    "  Put it in a list: callbacks=[...]."
)


@pytest.mark.cases(
    ("wrong", "problem"),
    ({"loss": lm.MSE}, "in loss: this is not a loss"),
    ({"loss": "mse"}, "in loss: this is not a loss"),
    ({"optimizer": "adam"}, "in optimizer: this is not an optimizer"),
    ({"optimizer": lm.SGD}, "in optimizer: this is not an optimizer"),
    ({"optimizer": COSINE}, "A schedule is the rate of an optimizer: lm.SGD(schedule)."),
    ({"metrics": lm.R2()}, "in metrics: this is not a list of metrics"),
    ({"metrics": lm.R2()}, "Put it in a list: metrics=[...]."),
    ({"metrics": lambda p, t: lm.ops.mean(p - t)}, "Put it in a list: metrics=[...]."),
    ({"callbacks": lm.callbacks.EarlyStopping()}, "Put it in a list: callbacks=[...]."),
    ({"callbacks": lambda history: None}, "Put it in a list: callbacks=[...]."),
    ({"metrics": [lm.R2]}, "in metric: this is not a metric"),
    ({"clip": 1.0}, "in clip: this is not a function that clips gradients"),
    ({"callbacks": print}, CALLBACKS),
)
def test_an_argument_of_the_wrong_kind_is_named(wrong, problem):
    usual = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1)}
    data = normal(8, 4), normal(8, 3)
    text = error_text(DefinitionError, lm.Model(network()).fit, data, **{**usual, **wrong})
    assert problem in text


def test_calling_a_model_is_refused_with_predict_as_the_fix():
    text = error_text(DefinitionError, lambda: lm.Model(network())(normal(2, 4)))
    lines = text.splitlines()
    assert lines[0].startswith("in Model (test_model_mistakes.py:")
    assert lines[0].endswith("): a model is not called")
    assert lines[1:] == [
        "  expected  model.predict(x)",
        "  found     model(x)",
        "  Its network is applied to tensors: model.network(x).",
    ]


def test_tensors_as_data_are_refused(model):
    x = lm.Input(4)
    for call in (model.predict, lambda x: model.set_parameters({"1.weight": x})):
        error = refused(DefinitionError, call, x)
        assert error.problem.startswith("data is an array, but this is a symbolic tensor")
        assert error.advice.endswith("and tensors to the network: model.network(x).")


def test_a_loss_for_one_output_is_refused_for_several_outputs():
    x = lm.Input(4)
    model = lm.Model(lm.Network([x], [lm.Linear(3)(x), lm.Linear(2)(x)]))
    text = error_text(DefinitionError, model.training, lm.MSE(), lm.SGD(0.1), 2)
    assert "this loss compares one output with one target" in text
    assert "Give a loss for each output: loss=[lm.MSE(), lm.CrossEntropy()]" in text


@pytest.mark.parametrize("call", [lambda m, x: m.predict(x, x), lambda m, x: m.predict(x, size=2)])
def test_predict_takes_inputs_alone(call):
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
    with pytest.raises(DefinitionError) as caught:
        call(model, np.zeros((4, 3), "float32"))
    assert re.sub(r"py:\d+", "py:N", str(caught.value)) == (
        "in Model.predict (test_model_mistakes.py:N): predict takes the inputs and nothing else\n"
        "  expected  predict(x), or predict((x1, x2)) for several inputs\n"
        "  It splits them into batches itself."
    )


@pytest.mark.sampled
def test_copies_during_a_training_are_made_between_two_training_steps():
    """Every training step subtracts one number from all parameters: in a consistent copy they
    are equal."""
    heads = 6
    x = lm.Input(4)
    model = lm.Model(lm.Network(x, lm.concat([lm.Linear(256)(x) for _ in range(heads)])))
    model.set_parameters({name: 0 * value for name, value in model.parameters().items()})
    data = np.ones((8, 4), "float32"), np.ones((8, 256 * heads), "float32")
    part = model.part(model.network)

    def loss(prediction, _):
        return lm.ops.sum(prediction) / 8

    copies = [
        lambda: copy.deepcopy(model),
        lambda: copy.deepcopy(part),
        lambda: pickle.loads(pickle.dumps(model)),
        # Copied together they share the copied parameters; the part is copied first.
        lambda: copy.deepcopy((part, model))[1],
        lambda: pickle.loads(pickle.dumps((part, model)))[1],
    ]
    ended = []
    seen = set()
    with model.training(loss, lm.SGD(1.0), batch_size=8) as training:

        def train():
            while not ended:
                training.run(data, 20)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            for number in range(40):
                copied = copies[number % len(copies)]()
                arrays = copied.parameters().values()
                values = {float(value) for array in arrays for value in np.unique(array)}
                assert len(values) == 1
                seen |= values
        finally:
            ended.append(True)
            thread.join()
    # It did train meanwhile.
    assert len(seen) > 1
