"""Fitting: validation, callbacks, losses that overflow, what is refused; and the history."""

import re

import numpy as np
import pytest
from error_texts import error_text, refused
from training_cases import TEST, TRAIN, fit, network, same

import lamina as lm
from lamina.data import Dataset
from lamina.errors import (
    DataError,
    DefinitionError,
    LaminaWarning,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
)
from lamina.training.history import History, advice_on_measure

X, Y = TRAIN.inputs, TRAIN.targets


def test_a_network_learns():
    history = fit(lm.Model(network()), epochs=60, metrics=[lm.Accuracy()])
    assert len(history) == len(history["loss"]) == len(history.seconds) == 60
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["accuracy"][-1] > 0.85


def test_a_fit_equals_a_run_of_its_training_steps():
    fitted, run = lm.Model(network()), lm.Model(network())
    history = fit(fitted, epochs=2)
    with run.training(lm.CrossEntropy(), lm.Adam(0.01), 8) as trainer:
        losses = trainer.run(TRAIN, steps=14, seed=0).astype("float64")
    assert same(fitted.parameters(), run.parameters())
    sizes = np.array([8] * 6 + [2])
    expected = [(losses[:7] * sizes).sum() / 50, (losses[7:] * sizes).sum() / 50]
    assert history["loss"] == pytest.approx(expected, rel=1e-12)


def test_a_batch_size_above_the_number_of_examples_takes_them_all_and_a_seed_orders_them():
    found = [fit(lm.Model(network()), batch_size=size)["loss"] for size in (1000, 50)]
    assert found[0] == found[1]
    assert fit(lm.Model(network()), seed=1)["loss"] != fit(lm.Model(network()), seed=2)["loss"]


def test_validation_is_measured_after_each_epoch_and_changes_nothing(model):
    other = lm.Model(network())
    seen = []

    def measure(_):
        seen.append(model.evaluate(TEST, lm.CrossEntropy(), [lm.Accuracy()]))

    history = fit(model, validation=TEST, metrics=[lm.Accuracy()], callbacks=[measure])
    assert list(history.values) == [*("loss", "accuracy", "validation_loss", "validation_accuracy")]
    assert history["validation_loss"] == pytest.approx([row["loss"] for row in seen])
    assert history["validation_accuracy"] == [row["accuracy"] for row in seen]
    # Metrics that are arrays are left out of the history.
    assert list(fit(other, metrics=[lm.ConfusionMatrix()]).values) == ["loss"]
    assert same(model.parameters(), other.parameters())


def test_the_history_is_a_mapping_and_shown_as_a_table():
    history = History({"loss": [1.0, 0.5]}, [0.1, 0.1])
    assert str(history) == "epoch    loss\n-----  ------\n    1  1.0000\n    2  0.5000"
    assert list(history) == ["loss"]
    assert dict(history) == history.values
    assert "loss" in history
    assert "accuracy" not in history


def test_a_value_that_was_not_measured_in_every_epoch_is_nan_in_the_others():
    history = History()
    for row in ({"loss": 1.0}, {"loss": 0.5, "accuracy": 0.75}, {"accuracy": 0.8}):
        history.add(row, 0.1)
    np.testing.assert_array_equal(history["accuracy"], [np.nan, 0.75, 0.8])
    np.testing.assert_array_equal(history["loss"], [1.0, 0.5, np.nan])


def test_every_callback_is_called_in_the_last_epoch_and_an_error_comes_through():
    seen = []
    both = [lambda _: True, lambda history: seen.append(len(history))]
    fit(lm.Model(network()), callbacks=both)
    assert seen == [1]
    with pytest.raises(ZeroDivisionError):
        fit(lm.Model(network()), callbacks=[lambda _: 1 / 0])


def test_a_loss_that_overflows_is_named_with_its_training_step():
    # Targets far too large for float32 from example 25 on.
    train = Dataset(X, np.where(np.arange(50)[:, None] < 25, 0, np.full((50, 3), 1e30, "float32")))
    order = train.order(0, 0)
    step = next(n for n in range(7) if (order[8 * n : 8 * n + 8] >= 25).any())
    assert error_text(NonFiniteError, fit, lm.Model(network()), train, loss=lm.MSE()) == (
        f"in fit: the loss became inf in training step {step + 1}\n"
        f"  epoch  1, training step {step + 1} of 7\n"
        "  data   all finite\n"
        "  model  restored to its state before this epoch\n"
        "  Lower the learning rate, clip the gradients (clip=lm.ClipGlobalNorm(1.0)), or "
        "look in the data for batches whose targets are all ignored."
    )


def test_an_overflow_restores_the_last_good_epoch_of_the_model_and_its_checkpoint(tmp_path):
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)))
    path, after = tmp_path / "file", []
    how = {"loss": lm.MSE(), "optimizer": lm.SGD(30.0), "epochs": 100, "checkpoint": path}
    how |= {"callbacks": [lambda _: after.append(model.parameters())]}
    refused(NonFiniteError, fit, model, (X, X[:, :3]), **how)
    assert len(after) > 0
    assert same(model.parameters(), after[-1])
    assert same(lm.load(path).parameters(), after[-1])


def test_an_update_that_overflows_in_the_last_training_step_is_noticed():
    model = lm.Model(lm.Sequential(lm.Input(1), lm.Linear(1)))
    before = model.parameters()
    x = np.full((4, 1), 1e3, "float32")
    how = {"loss": lm.MSE(), "optimizer": lm.SGD(3e38), "epochs": 1}
    assert error_text(NonFiniteError, lambda: fit(model, (x, x), **how)).startswith(
        "in fit: the parameter '1.weight' overflowed in training step 1\n"
        "  epoch  1, training step 1 of 1\n"
    )
    assert same(model.parameters(), before)


@pytest.mark.cases(
    ("color", "how", "epochs"),
    (None, {}, []),
    (None, {"progress": True}, ["1/3", "2/3", "3/3"]),
    ("1", {"progress": False}, []),
)
def test_a_line_for_each_epoch_is_shown_on_request_only(color, how, epochs, capfd, monkeypatch):
    if color:
        monkeypatch.setenv("FORCE_COLOR", color)
    fit(lm.Model(network()), validation=TEST, **how)
    out, err = capfd.readouterr()
    assert (out, err == "") == ("", not epochs)
    lines = [line for line in err.splitlines() if "validation_loss" in line]
    assert [line.split()[1] for line in lines] == epochs


def test_a_progress_bar_is_shown_on_a_terminal(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    fit(lm.Model(network()), epochs=2, metrics=[lm.Accuracy()])
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capfd.readouterr().err)
    assert re.search(
        r"epoch [12]/2 ━+.* loss \d\.\d+  accuracy \d\.\d+  [\d,]+ examples/s .*left", shown
    )


NO_TARGETS = (
    "in CrossEntropy: the loss needs targets, and the data has none\n"
    "  expected  i64[batch]\n"
    "  found     inputs only\n"
    "  Give pairs (x, y), or a loss that needs no targets."
)
REFUSED = {
    "other features": ((X[:, :3], Y), {}, ShapeError, "another shape than the network expects"),
    "too large numbers": ((X.astype("float64") * 1e300, Y), {}, DataError, "float32 cannot hold"),
    "labels out of range": ((X, Y + 1), {}, DataError, "labels out of range"),
    "no labels": ((X, None), {}, DataError, NO_TARGETS),
    "wrong validation features": (TRAIN, {"validation": (X[:, :3], Y)}, ShapeError, "input 0"),
    "wrong validation labels": (TRAIN, {"validation": (X, Y + 1)}, DataError, "labels out of"),
    "no file": (TRAIN, {"resume": True}, DefinitionError, "there is nothing to resume from"),
    "no whole batch": (
        *(TRAIN, {"drop_last": True, "batch_size": 500}),
        *(DataError, "fewer examples than a batch holds"),
    ),
}


@pytest.mark.cases("train, how, kind, text", REFUSED)
def test_wrong_data_and_options_are_refused_before_the_first_training_step(
    train, how, kind, text, model
):
    before = model.parameters()
    assert text in error_text(kind, lambda: fit(model, train, **how))
    assert same(model.parameters(), before)


def test_data_in_double_precision_is_converted_with_a_warning_at_the_caller_s_line(recwarn):
    parameters = []
    for dtype in ("float32", "float64"):
        model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(1)))
        fit(model, (X.astype(dtype), X[:, :1].astype(dtype)), loss=lm.MSE())
        parameters.append(model.parameters())
    assert same(*parameters)
    assert [str(warning.message).partition(". ")[0] for warning in recwarn.list] == [
        "input 0 is converted from float64 to float32",
        "target 0 is converted from float64 to float32",
    ]
    assert {warning.filename for warning in recwarn.list} == {fit.__code__.co_filename}
    assert {warning.category for warning in recwarn.list} == {LaminaWarning}


def test_a_data_set_with_a_dtype_is_converted_without_a_warning():
    data = lm.data.Dataset(X.astype("float64"), Y, dtype="float32")
    assert data.input_dtypes == lm.data.Dataset(X, Y).input_dtypes
    assert data.target_dtypes == lm.data.Dataset(X, Y).target_dtypes
    fit(lm.Model(network()), data)
    text = error_text(DataError, lm.data.Dataset, X.astype("float64") * 1e300, dtype="float32")
    assert "the array inputs has numbers that float32 cannot hold" in text


def test_a_nan_in_the_data_is_found_when_the_loss_becomes_nan(model):
    x = TRAIN.input_arrays[0].copy()
    x[31, 2] = np.nan
    before = model.parameters()
    text = error_text(NonFiniteError, lambda: fit(model, (x, TRAIN.targets)))
    assert text.startswith("in fit: the loss became nan in training step")
    assert same(model.parameters(), before)
    assert text.endswith(
        "  data   input 0 is not finite at example 31, column 2\n"
        "  model  restored to its state before this epoch\n"
        "  Correct that number, or leave out the example. In a table, missing numbers are filled "
        "in by lm.data.from_frame(..., gaps='mean')."
    )


NO_FAULT = "look for values that overflow, weights that are all 0, and ignored targets"
NOT_FINITE = TEST.input_arrays[0].copy()
NOT_FINITE[17, 2] = np.nan
FAULT = "input 0 is not finite at example 17, column 2"


@pytest.mark.cases(
    ("examined", "said"),
    ((NOT_FINITE, TEST.targets), f", first in the batch of examples 0 to 22: {FAULT}"),
    (
        [(NOT_FINITE[:15], TEST.targets[:15]), (NOT_FINITE[15:], TEST.targets[15:])],
        f", first in the batch of examples 0 to 22: {NO_FAULT}",
    ),
    ((TEST.inputs, TEST.targets, np.zeros(23, "float32")), f": {NO_FAULT}"),
)
def test_a_loss_of_validation_data_that_is_not_finite_is_said(examined, said, model):
    with pytest.warns(LaminaWarning) as caught:
        history = fit(model, validation=examined)
    assert len(history) == 3
    assert {str(warning.message) for warning in caught} == {f"validation_loss is nan{said}"}
    with pytest.warns(LaminaWarning) as caught:
        model.evaluate(examined, lm.CrossEntropy())
    assert [str(warning.message) for warning in caught] == [f"loss is nan{said}"]


def test_an_unknown_class_inside_a_function_ends_the_fit():
    y = np.where(np.arange(50) == 7, 50, TRAIN.target_arrays[0])
    loss = lm.CrossEntropy()
    how = {"loss": lambda prediction, target: loss(prediction, target)}
    refused(NonFiniteError, fit, lm.Model(network()), (TRAIN.inputs, y), **how)


POINTS = np.linspace(-1, 1, 24, dtype="float32").reshape(6, 4)
LABELS = np.arange(6) % 3


@pytest.fixture(scope="module")
def history():
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine="interpreter")
    options = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "metrics": [lm.Accuracy()]}
    return model.fit((POINTS, LABELS), validation=(POINTS, LABELS), epochs=1, **options)


@pytest.mark.cases(
    ("name", "advice"),
    ("acc", "Here it is called 'accuracy'."),
    ("val_loss", "Here it is called 'validation_loss'."),
    ("val_acc", "Here it is called 'validation_accuracy'."),
    ("los", "Did you mean 'loss'?"),
    ("auc", "fit(metrics=[lm.Accuracy()], validation=...) measures more."),
    (0, "Give a name first: history['loss'][0]."),
)
def test_an_unknown_name_lists_the_known_ones_and_says_what_it_is_called(history, name, advice):
    early = History(measured=history.measured)  # before the first epoch has ended
    for recorded in (history, early):
        assert error_text(UnknownNameError, recorded.__getitem__, name) == (
            f"in history: nothing named {name!r} was measured\n"
            "  expected  loss, accuracy, validation_loss, validation_accuracy\n"
            f"  found     {name!r}\n"
            f"  {advice}"
        )
    assert early["validation_accuracy"] == []
    assert History()["anything"] == []
    # Keras has other names of metrics too.
    advice = advice_on_measure("val_mean_absolute_error", ["mae", "validation_mae"])
    assert advice == "Here it is called 'validation_mae'."


def per_class(folder, *callbacks, epochs=2, resume=False):
    folder.mkdir(exist_ok=True)
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine="interpreter", seed=0)
    metrics = [lm.F1(average="none"), lm.ConfusionMatrix()]
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "metrics": metrics}
    how |= {"checkpoint": folder / "checkpoint", "resume": resume, "callbacks": callbacks}
    data = (POINTS, LABELS)
    history = model.fit(data, validation=data, batch_size=6, epochs=epochs, **how)
    return history, model.evaluate(data, lm.CrossEntropy(), metrics)["f1"]


def test_a_metric_with_a_number_for_each_class_has_a_name_for_each(tmp_path):
    names = [f"{prefix}f1[{number}]" for prefix in ("", "validation_") for number in range(3)]
    per_class(tmp_path)
    history, last = per_class(tmp_path, epochs=3, resume=True)
    assert [name for name in history if "f1" in name] == names
    assert [len(history[name]) for name in names] == [3] * 6
    np.testing.assert_array_equal([history[name][-1] for name in names[3:]], last)
    for name, advice in (
        ("f1", "It has a number for each class: history['f1[0]']."),
        ("confusion_matrix", "It is a matrix: model.evaluate(data, loss, metrics) gives it."),
    ):
        assert refused(UnknownNameError, history.__getitem__, name).advice == advice


def test_a_number_of_a_class_may_be_monitored(tmp_path):
    stopping = lm.callbacks.EarlyStopping("validation_f1[1]", patience=1)
    history, _ = per_class(tmp_path / "a", stopping, epochs=4)
    values = history["validation_f1[1]"]
    assert len(values) == 4 or values[-1] <= max(values[:-1])
    for monitor in ("f1", "f1[3]"):
        saving = lm.callbacks.SaveModels(tmp_path, monitor)
        error = refused(DefinitionError, per_class, tmp_path / monitor, saving)
        assert error.advice == (
            "It has a number for each class: monitor 'f1[0]', or a mean over the classes."
        )
    saving = lm.callbacks.SaveModels(tmp_path, "g1[0]")
    text = error_text(DefinitionError, per_class, tmp_path / "b", saving)
    assert "nothing named 'g1[0]' is measured" in text
