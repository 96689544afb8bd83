"""Options that do not exist, by the names that other frameworks have for them; NumPy's numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from error_texts import error_text, refused

import lamina as lm
from lamina.errors import DefinitionError
from lamina.foreign import rows

pytestmark = pytest.mark.each_case


def small() -> lm.Model:
    return lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine="interpreter")


X = np.linspace(-1, 1, 64, dtype="float32").reshape(16, 4)
Y = np.arange(16) % 3


def text_of(call: Callable[..., Any], *values: Any, **options: Any) -> str:
    return error_text(DefinitionError, lambda: call(*values, **options))


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    lines = text_of(lm.LSTM, 8, num_layers=2).splitlines()
    assert lines[0].startswith("in LSTM (test_calls.py:")
    assert lines[0].endswith("): there is no option 'num_layers'")
    assert lines[1].startswith("  expected  LSTM(features, *, layers, bidirectional, returns, ")
    assert lines[2:] == [
        "  found     num_layers=2",
        "  Here it is called layers. Write LSTM(8, layers=2).",
    ]


# Calls in full are rows of foreign_calls.txt.
@pytest.mark.parametrize(
    ("call", "options", "advice"),
    [
        (lm.callbacks.EarlyStopping, {"min_delta": 0.1}, "Here it is called least_change."),
        (
            lm.callbacks.EarlyStopping,
            {"restore_best_weights": True},
            "Here it is called restore_best.",
        ),
        (lm.callbacks.ReduceOnPlateau, {"min_lr": 0.1}, "Here it is called least_rate."),
        (lm.CrossEntropy, {"from_logits": True}, "It takes raw scores, as with from_logits=True: "),
        (lm.BCE, {"from_logits": True}, "lm.BCE takes probabilities, lm.BCEWithLogits raw"),
        (
            lm.Linear,
            {"features": 8, "activation": "relu"},
            "Write Linear(8), ReLU(): an activation",
        ),
        (lm.Linear, {"activation": "relu"}, "An activation is a separate layer, "),
        (lm.Linear, {"in_features": 8, "features": 2}, "Write Linear(2): the input's features are"),
        (lm.Linear, {"in_features": 8}, "The input's size is inferred when "),
        (lm.Linear, {"feature": 8}, "Did you mean features?"),
        (lm.LayerNorm, {"normalized_shape": 8}, "Write LayerNorm(): axes are given instead"),
        (lm.networks.lenet, {"in_channels": 3}, "Here it is called input."),
        (lm.networks.lstm_classifier, {"input_size": 3}, "Here it is called inputs."),
        (lm.Model.fit, {"verbose": 0}, "Here it is called progress."),
        (lm.Model.fit, {"sample_weight": [1.0]}, "are given with them: (x, y, weights)."),
        (lm.Model.fit, {"loss_weights": [1.0]}, "lm.ByOutput(losses, factors=...)."),
        (lm.Model.fit, {"class_weight": {0: 2.0}}, "Here it is called class_weights."),
        (lm.CTC, {"zero_inf": True}, "Did you mean zero_infinity?"),
        (lm.CalibrationError, {"n_bins": 3}, "Here it is called bins."),
        (lm.Model.fit, {"validation_split": 0.1}, "= lm.data.Dataset(x, y).split(0.9)."),
        (lm.networks.resnet, {"num_classes": 3}, "Here it is called classes."),
        (lm.networks.mlp, {"hidden": 3}, "Here it is called widths."),
        (lm.Input, {"shape": (3,)}, "expected  Input(*shape, dtype, name)"),
        (lm.LSTM, {"features": 8, "activation": "tanh"}, "Write LSTM(8)."),
    ],
)
def test_an_option_named_as_in_other_frameworks_gets_advice(
    call: Callable[..., Any], options: dict[str, Any], advice: str
) -> None:
    assert advice in text_of(call, **options)


def test_advice_for_other_callables_is_not_given() -> None:
    for call, option in (
        (lm.networks.lenet, "num_features"),
        (lm.Adam, "in_features"),
        (lm.Softplus, "key_dim"),
    ):
        assert text_of(call, **{option: 3}).splitlines()[-1].startswith("  found ")


def test_every_name_from_other_frameworks_is_of_a_callable_and_maps_to_an_option() -> None:
    losses = lm.training.losses
    packages = (lm, lm.init, lm.schedules, lm.networks, lm.ops, lm.data, lm.callbacks, losses)
    public = [getattr(package, name) for package in packages for name in dir(package)]
    public += [*vars(lm.Model).values(), *vars(lm.data.Dataset).values()]
    known = {"", *(name for one in public if callable(one) for name in names_of(one))}
    options = {
        option
        for name, found in rows()["()"].items()
        if name.isidentifier()
        for option in " ".join(found).split()
    }
    assert options <= known
    callables = {f"{one.__qualname__}()" for one in public if callable(one)}
    owners = set(rows()) - {"()"}
    assert {owner for owner in owners if owner.endswith("()")} <= callables
    assert {owner.strip("()") for owner in owners if owner.startswith("(")} <= known


def names_of(one: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(one).parameters)
    except ValueError:  # of functions written in C
        return []


def test_missing_and_surplus_arguments_are_refused() -> None:
    assert "missing a required argument: 'features'\n  expected  Linear(f" in text_of(lm.Linear)
    assert "too many positional arguments" in text_of(lm.Dropout, 0.1, 0.2)
    assert "multiple values for argument 'features'" in text_of(lm.Linear, 3, features=3)


# One for each reason.
@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("Linear(784, 256)", "Write Linear(256): the input's features are inferred, leave them"),
        ("Linear(10, 'relu')", "Write Linear(10), ReLU(): an activation is a layer of its own."),
        (
            "Conv2d(3, 6, 5)",
            "Write Conv2d(6, 5): the input's channels are inferred, leave them out.",
        ),
        (
            "Conv2d(3, 6, kernel_size=5)",
            "Here it is called window. Write Conv2d(6, 5): the input's",
        ),
        ("BatchNorm(1)", "Write BatchNorm(): the input's size is inferred, leave it out."),
        ("LayerNorm((3, 64))", "Write LayerNorm(axes=(-2, -1)): axes are given instead of a shape"),
        (
            "MultiHeadAttention(64, 8)",
            "Write MultiHeadAttention(8, features=64) for PyTorch's arguments, or Multi",
        ),
        ("Upsample(2)", "Write Upsample(size=2) for a size, as in PyTorch, or Upsample(scale=2)"),
        ("Dropout(0.5, True)", "Write Dropout(0.5): memory is planned, so there is no in-place"),
        (
            "Adam([], 0.01)",
            "Write Adam(0.01): fit and training know the parameters, leave them out.",
        ),
        ("Adam(0.01, 0.9, 0.99)", "Write Adam(0.01, beta1=0.9, beta2=0.99)."),
    ],
)
def test_a_call_in_the_order_of_another_framework_is_shown_as_lamina_writes_it(
    call: str, advice: str
) -> None:
    error = refused(DefinitionError, eval, f"lm.{call}", {"lm": lm})
    found, option = dict(error.facts)["found"], "there is no option 'kernel_size'"
    assert error.problem == (option if "=" in call else "too many positional arguments")
    assert call.endswith(found) or found == "kernel_size=5"
    assert error.advice.startswith(advice)


def test_numbers_of_a_convolution_that_may_mean_two_things_get_both_readings() -> None:
    assert text_of(lm.Conv2d, 16, 3, 1, 1).splitlines()[-1] == (
        "  Write Conv2d(3, 1, stride=1) if the first number is the input's channels, as in PyTorch,"
        " or Conv2d(16, 3, stride=1, padding=1) if the third is the stride, as in Keras."
    )
    # A window of 6 for 3 channels is an unlikely reading.
    assert text_of(lm.Conv2d, 3, 6, 5).splitlines()[-1] == (
        "  Write Conv2d(6, 5): the input's channels are inferred, leave them out."
    )


def test_options_of_networks_and_of_save_are_checked() -> None:
    x, net = lm.Input(4), small().network
    assert "there is no option 'layers'" in text_of(lm.Sequential, x, layers=[lm.Linear(3)])
    assert "there is no option 'training'" in text_of(net, x, training=True)
    assert "Did you mean path?" in text_of(small().save, pth="x")


def test_keyword_only_options_given_by_position_are_asked_for_by_name() -> None:
    data, loss, optimizer = (X, Y), lm.CrossEntropy(), lm.SGD(0.1)
    fit, training = small().fit, small().training
    expected = "expected  Model.fit(train, *, loss, optimizer, validation, "
    assert expected in text_of(fit, data, loss, optimizer)
    for text, name in (
        (text_of(fit, data, loss, optimizer), "loss"),
        (text_of(fit, data, optimizer, loss=loss), "optimizer"),
        (text_of(fit, data, data, loss=loss, optimizer=optimizer), "validation"),
        (text_of(training, loss, optimizer, 8, [lm.Accuracy()]), "metrics"),
    ):
        assert text.endswith(f"Give it by name: {name}=...")
    text = text_of(fit, data, loss=loss)
    assert "missing a required argument: 'optimizer'" in text
    assert "pair" not in text


def test_a_layer_that_takes_any_options_has_no_unknown_ones() -> None:
    class Open(lm.Layer):
        def __init__(self, size: int, **options: object) -> None:
            del size, options

        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x

    Open(3, units=4)
    text = text_of(Open, units=3)
    assert "missing a required argument: 'size'\n  expected  Open(size, **options)" in text
    assert "option '" not in text


def test_a_type_error_from_within_is_passed_on() -> None:
    @dataclass(frozen=True)
    class Broken(lm.Layer):
        size: int

        def __post_init__(self) -> None:
            raise TypeError("from within")

        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x

    with pytest.raises(TypeError, match="from within"):
        Broken(3)
    assert "there is no option 'units'" in text_of(Broken, units=3)
    with pytest.raises(TypeError, match="abstract"):
        lm.Layer()


def test_editors_see_the_options_of_records_and_functions() -> None:
    assert list(inspect.signature(lm.Dropout).parameters) == ["probability", "name"]
    assert list(inspect.signature(lm.networks.lenet).parameters) == ["classes", "input"]
    assert next(iter(inspect.signature(lm.Model).parameters)) == "network"


@pytest.mark.parametrize("base", [lm.Callback, lm.Layer, lm.training.losses.Loss])
def test_a_class_made_by_type_belongs_to_the_module_that_made_it(base: type) -> None:
    made = type("Made", (base,), {"forward": lambda self, scope, x: x})
    assert (made.__name__, made.__module__) == ("Made", __name__)


def test_fields_and_arguments_of_a_users_class_are_not_checked_but_inherited_ones_are() -> None:
    @dataclass(frozen=True)
    class Narrow(lm.Linear):
        bias: Any = "yes"
        flag: bool = False

    class Squares(lm.Linear):
        def __init__(self, features: str) -> None:
            super().__init__(int(features) ** 2)

    assert Narrow(3, flag="text").bias == "yes"
    assert "features must be a whole number of at least 1" in text_of(Narrow, 0)
    assert Squares("3").features == 9


def test_the_found_value_is_shown_on_one_line() -> None:
    for call in (lambda: lm.Linear("no"), lambda: lm.Linear(features="no")):
        assert text_of(call).splitlines()[1:] == ["  expected  features >= 1", "  found     'no'"]
    lines = text_of(lm.Linear, np.zeros((9, 9))).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("  found     array([[0., 0.,")
    assert len(lines[2]) < 100
    text = text_of(lm.Linear, 3, weight_init=lm.init.Zeros)
    assert "found     the class Zeros\n  Make one of the class: Zeros(...)." in text
    # An element is named by its index.
    assert "operands[0] must be a Tensor" in text_of(small().network, X)
    text = text_of(lm.CrossEntropy, class_weights=[1.0, "2"])
    assert "class_weights[1] must be a number of at least 0" in text


@pytest.mark.parametrize(
    "weights", [np.array([1.0, 2.0]), np.array([1, 2]), (np.float32(1), 2), range(1, 3)]
)
def test_lists_of_numbers_may_be_arrays(weights: Any) -> None:
    assert lm.CrossEntropy(class_weights=weights) == lm.CrossEntropy(class_weights=[1.0, 2.0])


def test_functions_of_the_user_that_give_something_else_are_refused() -> None:
    text = text_of(lambda: lm.Linear(3, weight_regularizer=lambda w: w * w)(lm.Input(4)))
    assert "the regularizer of 'weight' does not return a number" in text
    assert "found     f32[3, 4]" in text
    options: dict[str, Any] = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), "batch_size": 8}
    text = text_of(small().training, clip=lambda gradients: gradients[:1], **options)
    assert "does not return one gradient for each gradient" in text
    assert "expected  2 tensors of the same shapes and dtypes" in text


@pytest.mark.parametrize(
    ("name", "values", "options"),
    [
        *(("fit", (X, Y), {}), ("fit", (X,), {"y": Y}), ("evaluate", (X, Y), {})),
        ("fit", ({"x": X}, {"y": Y}), {}),
    ],
)
def test_separate_inputs_and_targets_are_asked_for_as_a_pair(
    name: str, values: Any, options: Any
) -> None:
    how = {"optimizer": lm.SGD(0.1)} if name == "fit" else {}
    text = text_of(getattr(small(), name), *values, loss=lm.CrossEntropy(), **how, **options)
    assert text.startswith("in Model.")
    assert text.endswith("Inputs and targets are one argument, a pair: (x, y).")


def test_numbers_of_numpy_are_kept_as_pythons() -> None:
    eight, three = np.int64(8), np.int32(3)
    layers = [
        lm.Conv2d(eight, (three, three), padding=np.int64(1)),
        lm.MaxPool2d(np.uint8(2)),
        lm.Reshape(eight, np.int64(16)),
        lm.LSTM(eight, layers=np.int64(2), bias=np.True_),
        lm.Dropout(np.float32(0.5)),
    ]
    assert repr(layers) == repr(
        [
            lm.Conv2d(8, (3, 3), padding=1),
            lm.MaxPool2d(2),
            lm.Reshape(8, 16),
            lm.LSTM(8, layers=2),
            lm.Dropout(0.5),
        ]
    )
    net = lm.Sequential(lm.Input(np.int64(1), eight, eight), *layers)
    assert net.plan(np.int64(2)).parameter_bytes == net.plan(2).parameter_bytes


def test_named_tuples_stay_named_and_truth_values_are_no_numbers() -> None:
    class Range(NamedTuple):
        low: float
        high: float

    @dataclass(frozen=True)
    class Bounded(lm.Layer):
        limits: Range

        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x

    assert Bounded(Range(np.float32(0), 1.0)).limits.high == 1.0
    assert "features must be a whole number" in text_of(lm.Linear, np.True_)


def test_a_model_takes_numbers_of_numpy(tmp_path: Path) -> None:
    net = lm.networks.mlp([np.int64(5)], classes=np.int64(3), input=(np.int64(4),))
    model = lm.Model(net, "interpreter", seed=np.int64(2))
    loss, optimizer = lm.CrossEntropy(), lm.SGD(0.1)
    history = model.fit(
        (X, Y), loss=loss, optimizer=optimizer, epochs=np.int64(2), batch_size=np.int64(8)
    )
    assert len(history) == 2
    with model.training(loss, optimizer, batch_size=np.int64(8)) as training:
        assert np.isfinite(float(training.step(X[:8], Y[:8])))
    model.save(tmp_path / "model.safetensors")
    loaded = lm.load(tmp_path / "model.safetensors", engine="interpreter")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
