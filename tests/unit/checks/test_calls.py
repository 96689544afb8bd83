"""Options and calls that other frameworks have: the advice says what to write; NumPy's numbers."""

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from error_texts import error_text, refused

import lamina as lm
from lamina.errors import DefinitionError, LaminaError
from lamina.foreign import spellings_by_owner

pytestmark = pytest.mark.each_case


def small():
    return lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine="interpreter")


X = np.linspace(-1, 1, 64, dtype="float32").reshape(16, 4)
Y = np.arange(16) % 3


def text_of(call, *values, **options):
    return error_text(DefinitionError, lambda: call(*values, **options))


def test_an_unknown_option_is_refused_with_the_known_ones():
    lines = text_of(lm.LSTM, 8, num_layers=2).splitlines()
    assert lines[0].startswith("in LSTM (test_calls.py:")
    assert lines[0].endswith("): there is no option 'num_layers'")
    assert lines[1].startswith("  expected  LSTM(features, *, layers, bidirectional, returns, ")
    assert lines[2:] == [
        "  found     num_layers=2",
        "  Here it is called layers. Write LSTM(8, layers=2).",
    ]


# Calls in full are rows of foreign_calls.txt.
NET = small().network
MODEL = lm.Model(NET, engine="interpreter")
DATA = lm.data.Dataset(X, Y)
OF_TWO = lm.Model(lm.Network(pair := (lm.Input(4), lm.Input(4)), lm.concat([*pair])))


def fit(data=DATA, **options):
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1)} | options
    return MODEL.fit(data, **how)


def step(*values):
    with MODEL.training(loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), batch_size=8) as training:
        training.step(*values)


def call(function, *values, **options):
    return lambda: function(*values, **options)  # type checkers would refuse the call


ONE_PAIR = "Inputs and targets are one argument, a pair:"
AS_PAIR = f"{ONE_PAIR} (x, y), or ((a, b), y) for several inputs."
BOTH = "validation=(x, y). Several inputs and targets are one argument: ((a, b), (y, z))."
NO_DATA = "Without validation data there is none: fit(validation=...) measures 'validation_loss'."
INPUTS = (
    "Give a tuple with one array for each input. Targets are an argument of their own: "
    "Dataset(x, y), step(x, y)."
)
EACH_AXIS = (
    "Each axis is a layer: RandomFlip(axis=-1) exchanges left and right, RandomFlip(axis=-2) top "
    "and bottom."
)
ONE_SCALE = (
    "The scale is one number. Normalise channels before training, or with arrays of the shape "
    "[channels, 1, 1]: (x - mean) / deviation."
)
SPLIT = "Split the data set first: train, validation = lm.data.Dataset(x, y).split(0.9)."
OF_A_TABLE = "The number of a class of a table is dataset.coding.classes.index('yes')."
OF_ONE_LOSS = (
    "For several outputs each loss has its own: "
    "loss=[lm.CrossEntropy(class_weights=[1.0, 2.5]), lm.MSE()]."
)


# Options alone are tested by their names; calls in full are rows of foreign_calls.txt.
@pytest.mark.cases(
    ("wrong", "advice"),
    (call(lm.Linear, features=8, activation="relu"), "Write Linear(8), ReLU(): an activation"),
    (call(lm.Linear, in_features=8, features=2), "Write Linear(2): the input's features are"),
    (call(lm.Linear, feature=8), "Did you mean features?"),
    (call(lm.LayerNorm, normalized_shape=8), "Write LayerNorm(): axes are given instead"),
    (call(lm.CTC, zero_inf=True), "Did you mean zero_infinity?"),
    (call(lm.LSTM, features=8, activation="tanh"), "Write LSTM(8)."),
    (call(lm.CrossEntropy, size_average=True), "Write CrossEntropy(reduction='mean')."),
    (call(lm.CrossEntropy, size_average=False), "Write CrossEntropy(reduction='sum')."),
    (call(lm.RandomFlip, "horizontal_and_vertical"), EACH_AXIS),
    (call(lm.AdaptiveAvgPool, 3, 4), "Give the sizes as one tuple: AdaptiveAvgPool((3, 4))."),
    (call(lm.concat, lm.Input(3), lm.Input(3)), "Give them as one list: [a, b]."),
    (call(lm.Input, 4, dtype="long"), 'Write "int64".'),
    (call(lm.Input, 4, dtype="torch.float32"), 'Write "float32".'),
    (call(lm.Input, 4, dtype="fp16"), 'Write "float16".'),
    (lambda: fit()["val_loss"], NO_DATA),
    (lambda: fit()["validation_loss"], NO_DATA),
    (call(lm.Adam, "1e-3"), "A rate is a number, without quotes, or a schedule."),
    (call(MODEL.evaluate, X, Y), AS_PAIR),
    (call(MODEL.evaluate, (X, X), Y), AS_PAIR),
    (call(MODEL.evaluate, (X, X), Y, lm.CrossEntropy()), AS_PAIR),
    (call(OF_TWO.predict, X), "Give a tuple with one array for each input. With targets: ((a, b)"),
    (call(lm.verify, NET, lm.CrossEntropy(), (X, X), Y), AS_PAIR),
    (call(lm.verify, NET, lm.CrossEntropy(), (X, X), (Y, Y)), f"{ONE_PAIR} ((a, b), (y, z))."),
    (call(fit, lm.data.Dataset((X, Y))), INPUTS),
    (call(step, (X, Y)), INPUTS),
    (call(lm.Rescale, [1.0, 2.0]), ONE_SCALE),
    (call(fit, validation=0.2), SPLIT),
    (call(fit, validation_split=0.2), SPLIT),
    (call(fit, verbose=0), "Here it is progress=False for verbose=0, and progress=True for 1"),
    (call(fit, class_weights={"classes": {1: 2.0}}), OF_ONE_LOSS),
    (call(fit, class_weights={"yes": 2.0}), OF_A_TABLE),
    (call(fit, class_weights={1.5: 2.0}), ""),
    (call(lm.data.from_frame, {"a": [1.0]}, normalize=True), "Here it is called standardise."),
    (call(MODEL.network, X), "Start from lm.Input(...); for arrays there is lm.Model(net).predict"),
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_wrong_call_says_what_to_write(wrong, advice):
    found = refused(LaminaError, wrong).advice
    assert found == advice if advice.endswith(".") else found.startswith(advice)


def test_every_option_of_another_framework_gets_its_advice():
    told = 0
    for function in callables():
        options, inherited = names_of(function), getattr(function, "__mro__", (function,))
        places = [f"{base.__name__}()" for base in inherited] + [f"({name})" for name in options]
        listed = [spellings_by_owner().get(place, {}) for place in [*places, "()"]]
        for name in {n for names in listed for n in names if n.isidentifier()} - {*options}:
            here = [text for names in listed for text in names.get(name, [])]
            texts = [text for text in here if text.endswith(".")]
            ours = " ".join(text for text in here if text not in texts).split()
            texts += [f"Here it is called {option}" for option in options if option in ours]
            # What takes any options, and functions that are not checked, pass it on.
            with contextlib.suppress(TypeError):
                if texts and not takes_all(function):
                    advice = refused(LaminaError, function, **{name: 1}).advice
                    start = (*texts, f"Write {function.__name__}(")
                    assert advice.startswith(start), (function, name)
                    told += 1
    assert told > 2000


def callables():
    """All public functions, classes, and methods of models and datasets."""
    losses = lm.training.losses
    packages = (lm, lm.init, lm.schedules, lm.networks, lm.ops, lm.data, lm.callbacks, losses)
    public = [getattr(package, name) for package in packages for name in dir(package)]
    public += [*vars(lm.Model).values(), *vars(lm.data.Dataset).values()]
    return list(dict.fromkeys(filter(callable, public)))


def takes_all(one):
    kinds = {parameter.kind for parameter in inspect.signature(one).parameters.values()}
    return bool(kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


def test_advice_for_other_callables_is_not_given():
    for call, option in (
        (lm.networks.lenet, "num_features"),
        (lm.Adam, "in_features"),
        (lm.Softplus, "key_dim"),
    ):
        assert text_of(call, **{option: 3}).splitlines()[-1].startswith("  found ")


def test_every_name_from_other_frameworks_is_of_a_callable_and_maps_to_an_option():
    parameters = {"", *(name for function in callables() for name in names_of(function))}
    there = spellings_by_owner()["()"].items()
    texts = (text for name, advice in there if name.isidentifier() for text in advice)
    options = {*" ".join(texts).split()}
    assert options <= parameters
    owners = set(spellings_by_owner()) - {"()"}
    of_calls = {f"{getattr(function, '__qualname__', '')}()" for function in callables()}
    assert {owner for owner in owners if owner.endswith("()")} <= of_calls
    assert {owner.strip("()") for owner in owners if owner.startswith("(")} <= parameters


def names_of(one):
    try:
        return list(inspect.signature(one).parameters)
    except ValueError:  # of functions written in C
        return []


def test_missing_and_surplus_arguments_are_refused():
    assert "missing a required argument: 'features'\n  expected  Linear(f" in text_of(lm.Linear)
    assert "too many positional arguments" in text_of(lm.Dropout, 0.1, 0.2)
    assert "expected  Input(*shape, dtype, name)" in text_of(lm.Input, shape=(3,))
    assert "multiple values for argument 'features'" in text_of(lm.Linear, 3, features=3)


# One for each reason.
@pytest.mark.cases(
    ("call", "advice"),
    ("Linear(784, 256)", "Write Linear(256): the input's features are inferred, leave them"),
    ("Linear(10, 'relu')", "Write Linear(10), ReLU(): an activation is a layer of its own."),
    ("Conv2d(3, 6, 5)", "Write Conv2d(6, 5): the input's channels are"),
    ("Conv2d(3, 6, kernel_size=5)", "Here it is called window. Write Conv2d(6, 5): the in"),
    ("BatchNorm(1)", "Write BatchNorm(): the input's size is inferred, leave it out."),
    ("LayerNorm((3, 64))", "Write LayerNorm(axes=(-2, -1)): axes are given instead of a shape"),
    ("MultiHeadAttention(64, 8)", "Write MultiHeadAttention(8, features=64) for PyTorch's"),
    ("Upsample(2)", "Write Upsample(size=2) for a size, as in PyTorch, or Upsample(scale=2)"),
    ("Dropout(0.5, True)", "Write Dropout(0.5): memory is planned, so there is no in-place"),
    ("Adam([], 0.01)", "Write Adam(0.01): fit and training know the parameters, leave them out."),
    ("Adam(0.01, 0.9, 0.99)", "Write Adam(0.01, beta1=0.9, beta2=0.99)."),
)
def test_a_call_in_the_order_of_another_framework_is_shown_as_lamina_writes_it(call, advice):
    error = refused(DefinitionError, eval, f"lm.{call}", {"lm": lm})
    found, option = dict(error.facts)["found"], "there is no option 'kernel_size'"
    assert error.problem == (option if "=" in call else "too many positional arguments")
    assert call.endswith(found) or found == "kernel_size=5"
    assert error.advice.startswith(advice)


def test_numbers_of_a_convolution_that_may_mean_two_things_get_both_readings():
    assert text_of(lm.Conv2d, 16, 3, 1, 1).splitlines()[-1] == (
        "  Write Conv2d(3, 1, stride=1) if the first number is the input's channels, as in PyTorch,"
        " or Conv2d(16, 3, stride=1, padding=1) if the third is the stride, as in Keras."
    )
    # A window of 6 for 3 channels is an unlikely reading.
    assert text_of(lm.Conv2d, 3, 6, 5).splitlines()[-1] == (
        "  Write Conv2d(6, 5): the input's channels are inferred, leave them out."
    )


def test_options_of_networks_and_of_save_are_checked():
    x, net = lm.Input(4), small().network
    assert "there is no option 'layers'" in text_of(lm.Sequential, x, layers=[lm.Linear(3)])
    assert "there is no option 'training'" in text_of(net, x, training=True)
    assert "Did you mean path?" in text_of(small().save, pth="x")


def test_keyword_only_options_given_by_position_are_asked_for_by_name():
    data, loss, optimizer = (X, Y), lm.CrossEntropy(), lm.SGD(0.1)
    fit, training = small().fit, small().training
    expected = "expected  Model.fit(train, *, loss, optimizer, validation, "
    assert expected in text_of(fit, data, loss, optimizer)
    for text, name in (
        (text_of(fit, data, loss, optimizer), "loss"),
        (text_of(fit, data, optimizer, loss=loss), "optimizer"),
        (text_of(fit, data, DATA, loss=loss, optimizer=optimizer), "validation"),
        (text_of(fit, data, [lm.Accuracy()], loss=loss, optimizer=optimizer), "metrics"),
        (text_of(training, loss, optimizer, 8, [lm.Accuracy()]), "metrics"),
        (text_of(lm.data.Dataset, X, Y, np.ones(16)), "weights"),
    ):
        assert text.endswith(f"Give it by name: {name}=...")
    text = text_of(fit, data, data, loss=loss, optimizer=optimizer)
    assert text.endswith(f"  Give it by name: {BOTH}")  # a pair may mean two things
    assert text_of(lm.Accuracy, 0.5).endswith("  found     Accuracy(0.5)")  # which none takes
    text = text_of(fit, data, loss=loss)
    assert "missing a required argument: 'optimizer'" in text
    assert "pair" not in text


def test_a_layer_that_takes_any_options_has_no_unknown_ones():
    class Open(lm.Layer):
        def __init__(self, size, **options):
            del size, options

        def forward(self, scope, x):
            return x

    Open(3, units=4)
    text = text_of(Open, units=3)
    assert "missing a required argument: 'size'\n  expected  Open(size, **options)" in text
    assert "option '" not in text


def test_a_type_error_from_within_is_passed_on():
    @dataclass(frozen=True)
    class Broken(lm.Layer):
        size: int

        def __post_init__(self):
            raise TypeError("from within")

        def forward(self, scope, x):
            return x

    with pytest.raises(TypeError, match="from within"):
        Broken(3)
    assert "there is no option 'units'" in text_of(Broken, units=3)
    with pytest.raises(TypeError, match="abstract"):
        lm.Layer()


def test_editors_see_the_options_of_records_and_functions():
    assert list(inspect.signature(lm.Dropout).parameters) == ["probability", "name"]
    assert list(inspect.signature(lm.networks.lenet).parameters) == ["classes", "input"]
    assert next(iter(inspect.signature(lm.Model).parameters)) == "network"


@pytest.mark.parametrize("base", [lm.Callback, lm.Layer, lm.training.losses.Loss])
def test_a_class_made_by_type_belongs_to_the_module_that_made_it(base):
    made = type("Made", (base,), {"forward": lambda self, scope, x: x})
    assert (made.__name__, made.__module__) == ("Made", __name__)


def test_fields_and_arguments_of_a_users_class_are_not_checked_but_inherited_ones_are():
    @dataclass(frozen=True)
    class Narrow(lm.Linear):
        bias: Any = "yes"
        flag: bool = False

    class Squares(lm.Linear):
        def __init__(self, features):
            super().__init__(int(features) ** 2)

    assert Narrow(3, flag="text").bias == "yes"
    assert "features must be a whole number of at least 1" in text_of(Narrow, 0)
    assert Squares("3").features == 9


def test_the_found_value_is_shown_on_one_line():
    for call in (lambda: lm.Linear("no"), lambda: lm.Linear(features="no")):
        assert text_of(call).splitlines()[1:] == ["  expected  features >= 1", "  found     'no'"]
    lines = text_of(lm.Linear, np.zeros((9, 9))).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("  found     array([[0., 0.,")
    assert len(lines[2]) < 100
    text = text_of(lm.Linear, 3, weight_init=lm.init.Zeros)
    assert "found     the class Zeros\n  Make one of the class: Zeros(...)." in text
    # An element is named by its index.
    assert "tensors[0] must be a Tensor" in text_of(lm.concat, [X])
    text = text_of(lm.CrossEntropy, class_weights=[1.0, "2"])
    assert "class_weights[1] must be a number of at least 0" in text


@pytest.mark.parametrize(
    "weights", [np.array([1.0, 2.0]), np.array([1, 2]), (np.float32(1), 2), range(1, 3)]
)
def test_lists_of_numbers_may_be_arrays(weights):
    losses = {lm.CrossEntropy(class_weights=one) for one in (weights, [1.0, 2.0])}
    assert len(losses) == 1


def test_functions_of_the_user_that_give_something_else_are_refused():
    text = text_of(lambda: lm.Linear(3, weight_regularizer=lambda w: w * w)(lm.Input(4)))
    assert "the regularizer of 'weight' does not return a number" in text
    assert "found     f32[3, 4]" in text
    options = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), "batch_size": 8}
    text = text_of(small().training, clip=lambda gradients: gradients[:1], **options)
    assert "does not return one gradient for each gradient" in text
    assert "expected  2 tensors of the same shapes and dtypes" in text


@pytest.mark.cases(
    ("name", "values", "options"),
    *(("fit", (X, Y), {}), ("fit", (X,), {"y": Y}), ("evaluate", (X, Y), {})),
    ("fit", ({"x": X}, {"y": Y}), {}),
    *(("fit", ((X, X), Y), {}), ("fit", ((X, X), [Y, Y]), {}), ("fit", (X, (Y, Y)), {})),
)
def test_separate_inputs_and_targets_are_asked_for_as_a_pair(name, values, options):
    how = {"optimizer": lm.SGD(0.1)} if name == "fit" else {}
    text = text_of(getattr(small(), name), *values, loss=lm.CrossEntropy(), **how, **options)
    assert text.startswith("in Model.")
    assert text.endswith(AS_PAIR)


def test_numbers_of_numpy_are_kept_as_pythons():
    eight, three = np.int64(8), np.int32(3)
    layers = [lm.Conv2d(eight, (three, three), padding=np.int64(1)), lm.MaxPool2d(np.uint8(2))]
    layers += [lm.Reshape(eight, np.int64(16)), lm.LSTM(eight, layers=np.int64(2), bias=np.True_)]
    plain = [lm.Conv2d(8, (3, 3), padding=1), lm.MaxPool2d(2), lm.Reshape(8, 16)]
    plain += [lm.LSTM(8, layers=2), lm.Dropout(0.5)]
    assert repr([*layers, lm.Dropout(np.float32(0.5))]) == repr(plain)
    net = lm.Sequential(lm.Input(np.int64(1), eight, eight), *layers)
    assert net.plan(np.int64(2)).parameter_bytes == net.plan(2).parameter_bytes


def test_named_tuples_stay_named_and_truth_values_are_no_numbers():
    class Range(NamedTuple):
        low: float
        high: float

    @dataclass(frozen=True)
    class Bounded(lm.Layer):
        limits: Range

        def forward(self, scope, x):
            return x

    assert Bounded(Range(np.float32(0), 1.0)).limits.high == 1.0
    assert "features must be a whole number" in text_of(lm.Linear, np.True_)


def test_functions_of_other_frameworks_are_refused_before_training():
    def old(epoch, logs): ...

    def accuracy_score(truth, prediction):
        raise AssertionError("it is refused before it is called")

    before = MODEL.parameters()["1.weight"].copy()
    error = refused(DefinitionError, fit, callbacks=[old])
    assert "not a function of the history alone" in error.problem
    assert error.advice.startswith("Write lambda history: ...; hooks are methods of a subc")
    accuracy_score.__module__ = "sklearn.metrics._classification"
    error = refused(DefinitionError, fit, metrics=[accuracy_score])
    assert "this is not a metric" in error.problem
    assert error.advice.startswith("It takes numbers: give it the results of model.predict.")
    np.testing.assert_array_equal(MODEL.parameters()["1.weight"], before)
