"""Fitting: history, validation, callbacks, checkpoints and resume, Ctrl-C, losses that overflow."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_texts import error_text
from fit_cases import TEST, TRAIN, Array, fit, network, same

import lamina as lm
from lamina.data import Dataset
from lamina.errors import (
    DataError,
    DefinitionError,
    LaminaError,
    LaminaWarning,
    NonFiniteError,
    ShapeError,
)
from lamina.training.history import History
from lamina.training.training import Training

# History ------------------------------------------------------------------------------------------


def test_the_loss_of_every_epoch_is_in_the_history() -> None:
    history = fit(lm.Model(network()), epochs=4)
    assert len(history) == len(history["loss"]) == len(history.seconds) == 4


def test_a_network_learns() -> None:
    history = fit(lm.Model(network()), epochs=60, metrics=[lm.Accuracy()])
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["accuracy"][-1] > 0.85


def test_a_fit_equals_a_run_of_its_training_steps() -> None:
    fitted, run = lm.Model(network()), lm.Model(network())
    history = fit(fitted, epochs=2)
    with run.training(lm.CrossEntropy(), lm.Adam(0.01), 8) as trainer:
        losses = trainer.run(TRAIN, steps=14, seed=0).astype("float64")
    assert same(fitted.parameters(), run.parameters())
    sizes = np.array([8] * 6 + [2])
    expected = [(losses[:7] * sizes).sum() / 50, (losses[7:] * sizes).sum() / 50]
    assert history["loss"] == pytest.approx(expected, rel=1e-12)


def test_two_fits_give_the_same_bits() -> None:
    one, other = lm.Model(network()), lm.Model(network())
    assert fit(one).values == fit(other).values
    assert same(one.parameters(), other.parameters())


def test_another_seed_gives_another_fit() -> None:
    one, other = lm.Model(network()), lm.Model(network())
    assert fit(one, seed=1)["loss"] != fit(other, seed=2)["loss"]


def test_validation_is_measured_after_each_epoch() -> None:
    model = lm.Model(network())
    seen: list[dict[str, Any]] = []

    def measure(_: History) -> None:
        seen.append(model.evaluate(TEST, lm.CrossEntropy(), [lm.Accuracy()]))

    history = fit(model, validation=TEST, metrics=[lm.Accuracy()], callbacks=[measure])
    assert list(history.values) == [*("loss", "accuracy", "validation_loss", "validation_accuracy")]
    assert history["validation_loss"] == pytest.approx([row["loss"] for row in seen])
    assert history["validation_accuracy"] == [row["accuracy"] for row in seen]


def test_validation_changes_nothing() -> None:
    one, other = lm.Model(network()), lm.Model(network())
    fit(one, validation=TEST)
    fit(other)
    assert same(one.parameters(), other.parameters())


def test_metrics_that_are_arrays_are_left_out_of_the_history() -> None:
    history = fit(lm.Model(network()), metrics=[lm.ConfusionMatrix()])
    assert list(history.values) == ["loss"]


def test_the_smaller_last_batch_can_be_left_out() -> None:
    done: list[int] = []
    model = lm.Model(network())
    run = Training._run_batches

    def counting(self: Training, resident: Any, batches: Any) -> Any:
        done.extend(len(rows) for rows in batches)
        return run(self, resident, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "_run_batches", counting)
        fit(model, epochs=1, drop_last=True)
    assert done == [8] * 6


def test_a_batch_size_above_the_number_of_examples_takes_them_all() -> None:
    one, other = lm.Model(network()), lm.Model(network())
    fit(one, batch_size=1000)
    fit(other, batch_size=50)
    assert same(one.parameters(), other.parameters())


def test_a_pair_of_arrays_is_a_data_set() -> None:
    one, other = lm.Model(network()), lm.Model(network())
    fit(one, (TRAIN.inputs, TRAIN.targets))
    fit(other)
    assert same(one.parameters(), other.parameters())


def test_the_history_is_shown_as_a_table() -> None:
    history = History({"loss": [1.0, 0.5]}, [0.1, 0.1])
    assert str(history) == "epoch    loss\n-----  ------\n    1  1.0000\n    2  0.5000"


def test_a_value_that_was_not_measured_is_refused_with_the_measured_ones() -> None:
    history = History({"loss": [1.0], "validation_loss": [2.0]}, [0.1])
    assert "loss" in history
    assert "accuracy" not in history
    assert error_text(KeyError, lambda: history["accuracy"]) == (
        "in history: nothing named 'accuracy' was measured\n"
        "  expected  loss, validation_loss\n"
        "  found     'accuracy'\n"
        "  fit(metrics=[lm.Accuracy()], validation=...) measures more."
    )


def test_the_history_is_iterated_by_name() -> None:
    history = History({"loss": [1.0], "validation_loss": [2.0]}, [0.1])
    assert list(history) == ["loss", "validation_loss"]
    assert dict(history) == history.values
    with pytest.raises(KeyError) as caught:
        history[0]
    assert str(caught.value).endswith("Give a name first: history['loss'][0].")


def test_a_value_that_was_not_measured_in_every_epoch_is_nan_in_the_others() -> None:
    history = History()
    history.add({"loss": 1.0}, 0.1)
    history.add({"loss": 0.5, "accuracy": 0.75}, 0.1)
    history.add({"accuracy": 0.8}, 0.1)
    np.testing.assert_array_equal(history["accuracy"], [np.nan, 0.75, 0.8])
    np.testing.assert_array_equal(history["loss"], [1.0, 0.5, np.nan])


def test_the_history_can_be_drawn(tmp_path: Path) -> None:
    fit(lm.Model(network())).plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


# Callbacks ----------------------------------------------------------------------------------------


def test_callbacks_see_the_history_of_each_epoch() -> None:
    seen: list[int] = []
    fit(lm.Model(network()), callbacks=[lambda history: seen.append(len(history))])
    assert seen == [1, 2, 3]


def test_a_callback_that_gives_true_ends_the_fit() -> None:
    history = fit(lm.Model(network()), epochs=10, callbacks=[lambda h: len(h) == 4])
    assert len(history) == 4
    assert not history.interrupted


def test_every_callback_is_called_in_the_last_epoch() -> None:
    seen: list[str] = []
    both = [lambda _: seen.append("one") or True, lambda _: seen.append("two")]
    fit(lm.Model(network()), callbacks=both)
    assert seen == ["one", "two"]


def test_an_error_in_a_callback_comes_through() -> None:
    def fail(_: History) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(lm.Model(network()), callbacks=[fail])


# Losses that overflow -----------------------------------------------------------------------------


def poisoned() -> Dataset:
    """Targets far too large for float32 from example 25 on."""
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    y = np.zeros((50, 3), "float32")
    y[25:] = 1e30
    return Dataset(x, y)


def test_a_loss_that_overflows_is_named_with_its_training_step() -> None:
    train = poisoned()
    order = train.order(0, 0)
    step = next(n for n in range(7) if (order[8 * n : 8 * n + 8] >= 25).any())
    assert error_text(NonFiniteError, lambda: fit(lm.Model(network()), train, loss=lm.MSE())) == (
        f"in fit: the loss became inf in training step {step + 1}\n"
        f"  epoch  1, training step {step + 1} of 7\n"
        "  data   all finite\n"
        "  model  restored to its state before this epoch\n"
        "  Lower the learning rate, clip the gradients (clip=lm.ClipGlobalNorm(1.0)), or "
        "look in the data for batches whose targets are all ignored."
    )


def overflowing(path: Path | None = None) -> tuple[lm.Model, list[dict[str, Array]]]:
    """A fit whose loss overflows: the model, and its parameters after each epoch."""
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)))
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    after: list[dict[str, Array]] = []
    with pytest.raises(NonFiniteError):
        fit(
            model,
            Dataset(x, x[:, :3]),
            loss=lm.MSE(),
            optimizer=lm.SGD(30.0),
            epochs=100,
            checkpoint=path,
            callbacks=[lambda _: after.append(model.parameters())],
        )
    return model, after


def test_an_overflow_puts_the_model_back_to_the_last_good_epoch() -> None:
    model, after = overflowing()
    assert len(after) > 0
    assert same(model.parameters(), after[-1])


def test_an_overflow_leaves_the_checkpoint_of_the_last_good_epoch(tmp_path: Path) -> None:
    _, after = overflowing(tmp_path / "checkpoint")
    assert same(lm.load(tmp_path / "checkpoint").parameters(), after[-1])


def test_nan_in_the_data_is_noticed_and_changes_nothing() -> None:
    x = TRAIN.inputs.copy()
    x[17, 2] = np.nan
    model = lm.Model(network())
    before = model.parameters()
    with pytest.raises(NonFiniteError, match="the loss became nan in training step"):
        fit(model, (x, TRAIN.targets))
    assert same(model.parameters(), before)


def test_an_update_that_overflows_in_the_last_training_step_is_noticed() -> None:
    model = lm.Model(lm.Sequential(lm.Input(1), lm.Linear(1)))
    before = model.parameters()
    x = np.full((4, 1), 1e3, "float32")
    with pytest.raises(NonFiniteError) as caught:
        fit(model, (x, x), loss=lm.MSE(), optimizer=lm.SGD(3e38), epochs=1)
    assert str(caught.value).startswith(
        "in fit: the parameter '1.weight' overflowed in training step 1\n"
        "  epoch  1, training step 1 of 1\n"
    )
    assert same(model.parameters(), before)


# Progress -----------------------------------------------------------------------------------------


def test_nothing_is_printed_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    fit(lm.Model(network()), validation=TEST)
    assert capfd.readouterr() == ("", "")


def test_a_line_for_each_epoch_is_shown_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    fit(lm.Model(network()), validation=TEST, progress=True)
    lines = [line for line in capfd.readouterr().err.splitlines() if "validation_loss" in line]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]


def test_a_progress_bar_is_shown_on_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    fit(lm.Model(network()), epochs=2, metrics=[lm.Accuracy()])
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capfd.readouterr().err)
    assert re.search(
        r"epoch [12]/2 ━+.* loss \d\.\d+  accuracy \d\.\d+  [\d,]+ examples/s .*left", shown
    )


def test_progress_can_be_disabled_on_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    fit(lm.Model(network()), progress=False)
    assert capfd.readouterr() == ("", "")


# Refused before the first training step -----------------------------------------------------------


X, Y = TRAIN.inputs, TRAIN.targets


REFUSED: dict[str, tuple[Any, dict[str, Any], type[LaminaError]]] = {
    "other features": ((X[:, :3], Y), {}, ShapeError),
    "too large numbers": ((X.astype("float64") * 1e300, Y), {}, DataError),
    "labels out of range": ((X, Y + 1), {}, DataError),
    "fewer labels": ((X, Y[:49]), {}, DataError),
    "no examples": ((X[:0], Y[:0]), {}, DataError),
    "no labels": ((X, None), {}, LaminaError),
    "no data set": ([X, Y], {}, DataError),
    "wrong validation features": (TRAIN, {"validation": (X[:, :3], Y)}, ShapeError),
    "wrong validation labels": (TRAIN, {"validation": (X, Y + 1)}, DataError),
    "no epochs": (TRAIN, {"epochs": 0}, DefinitionError),
    "no batch": (TRAIN, {"batch_size": 0}, DefinitionError),
    "half a batch": (TRAIN, {"batch_size": 2.5}, DefinitionError),
    "no seed": (TRAIN, {"seed": "x"}, DefinitionError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_data_and_options_are_refused_before_the_first_training_step(name: str) -> None:
    train, how, error = REFUSED[name]
    model = lm.Model(network())
    before = model.parameters()
    with pytest.raises(error):
        fit(model, train, **how)
    assert same(model.parameters(), before)


def test_data_without_targets_for_a_loss_that_needs_them_is_refused() -> None:
    assert error_text(DataError, lambda: fit(lm.Model(network()), X)) == (
        "in CrossEntropy: the loss needs targets, and the data has none\n"
        "  expected  i64[batch]\n"
        "  found     inputs only\n"
        "  Give pairs (x, y), or a loss that needs no targets."
    )


def test_data_in_double_precision_is_converted_with_a_warning_at_the_caller_s_line() -> None:
    found: list[dict[str, np.ndarray]] = []
    for dtype in ("float32", "float64"):
        model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(1)))
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            fit(model, (X.astype(dtype), X[:, :1].astype(dtype)), loss=lm.MSE())
        found.append(model.parameters())
    assert same(*found)
    assert [str(one.message).partition(". ")[0] for one in shown] == [
        "input 0 is converted from float64 to float32",
        "target 0 is converted from float64 to float32",
    ]
    assert {one.filename for one in shown} == {fit.__code__.co_filename}
    assert {one.category for one in shown} == {LaminaWarning}


def test_a_data_set_with_a_dtype_is_converted_without_a_warning() -> None:
    data = lm.data.Dataset(X.astype("float64"), Y, dtype="float32")
    assert data.input_dtypes == lm.data.Dataset(X, Y).input_dtypes
    assert data.target_dtypes == lm.data.Dataset(X, Y).target_dtypes
    fit(lm.Model(network()), data)
    with pytest.raises(DataError, match="the array inputs has numbers that float32 cannot hold"):
        lm.data.Dataset(X.astype("float64") * 1e300, dtype="float32")


def test_resuming_with_other_layers_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    fit(lm.Model(network()), checkpoint=path, epochs=1)
    other = lm.Sequential(lm.Input(4), lm.Linear(8), lm.ReLU(), lm.Dropout(0.3), lm.Linear(3))
    model = lm.Model(other, seed=5)
    before = model.parameters()
    text = error_text(DefinitionError, lambda: fit(model, checkpoint=path, resume=True))
    assert "the checkpoint belongs to a network with other layers" in text
    assert "Tanh()" in text
    assert "ReLU()" in text
    assert same(model.parameters(), before)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"optimizer": lm.AdamW(0.01)}, "optimizer   Adam in the file, AdamW here"),
        ({"batch_size": 10}, "batch_size  8 in the file, 10 here"),
        ({"seed": 3}, "seed        0 in the file, 3 here"),
    ],
)
def test_resuming_with_other_options_is_refused(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    path = tmp_path / "run.safetensors"
    fit(lm.Model(network()), checkpoint=path, epochs=1)
    with pytest.raises(DefinitionError) as error:
        fit(lm.Model(network()), checkpoint=path, resume=True, **changed)
    assert "the checkpoint was written by a fit with other options" in str(error.value)
    assert " ".join(named.split()) in " ".join(str(error.value).split())


def test_resuming_from_no_file_at_all_is_refused() -> None:
    with pytest.raises(DefinitionError, match="there is nothing to resume from"):
        fit(lm.Model(network()), resume=True)


def test_dropping_the_only_batch_is_refused() -> None:
    with pytest.raises(DataError, match="fewer examples than a batch holds"):
        fit(lm.Model(network()), drop_last=True, batch_size=500)


def test_a_nan_in_the_data_is_found_when_the_loss_becomes_nan() -> None:
    x = TRAIN.input_arrays[0].copy()
    x[31, 2] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        fit(lm.Model(network()), (x, TRAIN.targets))
    assert str(caught.value).endswith(
        "  data   input 0 is not finite at example 31, column 2\n"
        "  model  restored to its state before this epoch\n"
        "  Correct that number, or leave out the example. In a table, missing numbers are filled "
        "in by lm.data.from_frame(..., gaps='mean')."
    )


NO_FAULT = "look for values that overflow, weights that are all 0, and ignored targets"
NOT_FINITE = TEST.input_arrays[0].copy()
NOT_FINITE[17, 2] = np.nan
FAULT = "input 0 is not finite at example 17, column 2"


@pytest.mark.parametrize(
    ("examined", "said"),
    [
        ((NOT_FINITE, TEST.targets), f", first in the batch of examples 0 to 22: {FAULT}"),
        (
            [(NOT_FINITE[:15], TEST.targets[:15]), (NOT_FINITE[15:], TEST.targets[15:])],
            f", first in the batch of examples 0 to 22: {NO_FAULT}",
        ),
        ((TEST.inputs, TEST.targets, np.zeros(23, "float32")), f": {NO_FAULT}"),
    ],
)
def test_a_loss_of_validation_data_that_is_not_finite_is_said(examined: Any, said: str) -> None:
    model = lm.Model(network())
    with pytest.warns(LaminaWarning) as caught:
        history = fit(model, validation=examined)
    assert len(history) == 3
    assert {str(one.message) for one in caught} == {f"validation_loss is nan{said}"}
    with pytest.warns(LaminaWarning) as caught:
        model.evaluate(examined, lm.CrossEntropy())
    assert [str(one.message) for one in caught] == [f"loss is nan{said}"]


def test_an_unknown_class_inside_a_function_ends_the_fit() -> None:
    y = np.where(np.arange(50) == 7, 50, TRAIN.target_arrays[0])
    with pytest.raises(NonFiniteError):
        fit(
            lm.Model(network()),
            (TRAIN.inputs, y),
            loss=lambda prediction, target: lm.CrossEntropy()(prediction, target),
        )


def test_a_checkpoint_in_a_missing_folder_is_refused_before_the_first_training_step(
    tmp_path: Path,
) -> None:
    model = lm.Model(network())
    before = model.parameters()
    with pytest.raises(DataError, match="Create the folder first"):
        fit(model, epochs=1, checkpoint=tmp_path / "absent" / "checkpoint")
    for name, value in model.parameters().items():
        np.testing.assert_array_equal(value, before[name])
