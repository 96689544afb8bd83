"""Callbacks: hooks, stopping, learning rates that are set, logs; and fits that are resumed."""

import csv
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from callback_cases import FAR, Scripted, Seen, X, Y, bits, fit, hooked, keeping
from error_texts import error_text, refused
from training_cases import network

import lamina as lm
from lamina.errors import DefinitionError, FileFormatError, MissingExtraError, NonFiniteError
from lamina.learning import metrics
from lamina.training.callbacks.hooks import divided, together

# Hooks --------------------------------------------------------------------------------------------


def test_hooks_are_called_in_order():
    seen = Seen()
    fit([seen], epochs=2)
    assert seen.calls == [
        "fit begins 0/2",
        *("epoch 1 begins after 0", "steps 3", "epoch 1 ends after 1"),
        *("epoch 2 begins after 1", "steps 3", "epoch 2 ends after 2"),
        "fit ends, interrupted False",
    ]


def test_a_hook_sees_an_error_and_the_restored_model():
    seen, x, model = Seen(), X.copy(), lm.Model(network(), seed=1)
    x[5] = math.nan
    before = bits(model)
    restored = hooked(fit_fails=lambda _, fit, error: seen.calls.append(bits(fit.model) == before))
    with pytest.raises(NonFiniteError):
        model.fit((x, Y), **FAR, callbacks=[seen, restored])
    assert seen.calls[-2:] == ["fit fails: NonFiniteError", True]


AT_ONCE = hooked(epoch_begins=lambda _, fit: fit.stop(now=True) if fit.epoch == 2 else None)


@pytest.mark.cases(
    ("callback", "epochs"),
    *((hooked(steps_done=lambda _, fit, steps: fit.stop()), 1), (AT_ONCE, 1)),
    *((hooked(epoch_ends=lambda _, fit: fit.epoch == 2), 2), (lambda h: len(h) == 2, 2)),
    *((lambda _: np.bool_(True), 1), (lambda _: True, 1)),
)
def test_a_callback_ends_the_fit(callback, epochs):
    seen, is_at_once = Seen(), callback is AT_ONCE
    history = fit([callback, seen])
    assert len(history) == epochs
    assert history.interrupted == is_at_once
    assert seen.calls[-1] == f"fit ends, interrupted {is_at_once}"
    assert is_at_once or seen.calls[-2] == f"epoch {epochs} ends after {epochs}"


@pytest.mark.parametrize("value", [1, 12, "text", [0], np.ones(2), 0, ""])
def test_only_true_ends_a_fit(value):
    def returns(history):
        return value

    for callback, name in (
        (hooked(epoch_ends=lambda _, fit: value), "Hooked"),
        (returns, "returns"),
    ):
        with pytest.warns(lm.errors.LaminaWarning) as caught:
            assert len(fit([callback])) == 3
        assert str(caught[0].message) == (
            f"the callback {name} returned a value of type {type(value).__name__}, and the fit "
            "goes on: only True ends it. Return None, or bool(value)."
        )


def test_callbacks_that_set_nothing_change_no_bits():
    plain, observed = (lm.Model(network(), seed=1) for _ in range(2))
    fit([], plain)
    fit([Seen(), lm.callbacks.EarlyStopping(patience=9, restore_best=False)], observed)
    assert bits(plain) == bits(observed)


# The learning rate --------------------------------------------------------------------------------


OPTIMIZERS = {
    "SGD": lambda rate: lm.SGD(rate, momentum=0.9),
    "Adam": lm.Adam,
    "EMA": lambda rate: lm.EMA(lm.AdamW(rate), decay=0.9),
    "RMSProp": lm.RMSProp,
    "Lion": lm.Lion,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16", "float64"])
def test_a_rate_that_is_set_trains_like_a_schedule_and_compiles_nothing(name, dtype, monkeypatch):
    """0.1 in three training steps, then 0.025."""
    make, runs = OPTIMIZERS[name], []
    step = lm.schedules.PiecewiseConstant([3], [0.1, 0.025])
    for adjustable in (True, False):
        model = lm.Model(network(), seed=1, dtype=dtype)
        how = {**FAR, "optimizer": make(0.1 if adjustable else step), "batch_size": 8}
        with model.training(**how) as training:
            losses = [*training.run((X, Y), steps=3)]
            assert training.rate == pytest.approx(0.1 if adjustable else 0.025)
            if adjustable:
                monkeypatch.setattr(type(training), "_compile", None)
                training.rate = 0.025
            losses += [*training.run((X, Y), steps=3)]
            assert training.rate == pytest.approx(0.025)
            monkeypatch.undo()
        runs.append(losses)
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-5)


def test_the_rates_of_several_optimizers_have_names():
    model = lm.Model(network(), seed=1)
    optimizer = lm.ByPath({"*.bias": lm.SGD(0.1)}, default=lm.Adam(0.01))
    with model.training(lm.CrossEntropy(), optimizer, batch_size=8) as training:
        assert training.rates == pytest.approx({"rate": 0.01, "rate:*.bias": 0.1})
        training.set_rates({"rate:*.bias": 0.0})
        before = model.parameters()
        training.step(X[:8], Y[:8])
        after = model.parameters()
        assert (after["1.bias"] == before["1.bias"]).all()
        assert (after["1.weight"] != before["1.weight"]).any()
        training.rate = 0.25
        assert training.rates == {"rate": 0.25, "rate:*.bias": 0.25}
        with pytest.raises(DefinitionError, match="there is no rate 'rate:1'"):
            training.set_rates({"rate:1": 0.1})


def training_with(optimizer):
    return lm.Model(network(), seed=1).training(lm.CrossEntropy(), optimizer, batch_size=8)


def test_a_schedule_is_set_by_a_factor_that_stays():
    with training_with(lm.SGD(lm.schedules.Linear(0.4, steps=8))) as training:
        assert training.rate == pytest.approx(0.4)
        training.rate = 0.2
        for rate in (0.1, 0):
            training.run((X, Y), steps=4)
            assert training.rate == pytest.approx(rate)
        text = error_text(DefinitionError, setattr, training, "rate", 0.1)
    assert "the learning-rate schedule is 0 now" in text


def test_a_rate_that_cannot_be_set_is_refused_and_one_that_was_set_is_part_of_the_state():
    with training_with(lm.Rprop()) as training:
        assert math.isnan(training.rate)
        text = error_text(DefinitionError, setattr, training, "rate", 0.2)
        assert "This optimizer has no learning rate" in text
    with training_with(lm.SGD(0.1)) as training:
        assert "rate" in error_text(DefinitionError, setattr, training, "rate", -0.1)
        begun = training.state()
        training.rate = 0.03
        saved = training.state()
        assert saved.keys() - begun.keys() == {"rate"}
        training.restore(begun)
        assert training.rate == 0.1
        assert training.state().keys() == begun.keys()
    with training_with(lm.SGD(0.1)) as training:
        training.restore(saved)
        assert training.rate == pytest.approx(0.03)


def test_the_history_has_the_rate_and_the_norm_of_gradients():
    schedule = lm.schedules.StepDecay(0.1, every=3, factor=0.5)
    history = fit([], optimizer=lm.SGD(schedule), record=["rate", "gradient_norm"])
    assert history["rate"] == pytest.approx([0.1, 0.05, 0.025])
    assert all(norm > 0 for norm in history["gradient_norm"])
    assert "rate" not in fit([])


@pytest.mark.parametrize("micro", [None, 3])
def test_the_norm_of_gradients_is_that_before_clipping(micro):
    """One batch: the parameters move by the rate times the gradient."""
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), seed=1)
    before = model.parameters()
    how = {"batch_size": 40, "epochs": 1, "micro_batch": micro, "record": ["gradient_norm"]}
    history = fit([], model, **how)
    after = model.parameters()
    squares = sum(((after[name] - before[name]) ** 2).sum() for name in before)
    assert history["gradient_norm"] == [pytest.approx(math.sqrt(squares) / 0.1, rel=1e-4)]
    clipped = fit([], lm.Model(model.network, seed=1), **how, clip=lm.ClipGlobalNorm(1e-3))
    assert clipped["gradient_norm"] == pytest.approx(history["gradient_norm"])


# Files --------------------------------------------------------------------------------------------


def test_the_best_and_the_last_models_are_saved(tmp_path):
    kept = []
    saving = lm.callbacks.SaveModels(tmp_path / "models", keep=2)
    fit([Scripted([3, 1, 2, 4]), keeping(kept), saving], epochs=4)
    names = sorted(path.name for path in (tmp_path / "models").iterdir())
    assert names == [
        *("best.safetensors", "epoch-0002.safetensors", "epoch-0003.safetensors"),
        "last.safetensors",
    ]
    for name, epoch in (("best", 2), ("last", 4), ("epoch-0003", 3)):
        model = lm.load(tmp_path / "models" / f"{name}.safetensors")
        assert bits(model) == kept[epoch - 1]


def test_logs_have_a_row_for_each_epoch(tmp_path):
    table, lines = tmp_path / "run.csv", tmp_path / "run.jsonl"
    files = lm.callbacks.CSVLog(table), lm.callbacks.JSONLinesLog(lines)
    history = fit([Scripted([math.nan, math.inf, -math.inf]), *files])
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [float(row["loss"]) for row in rows] == history["loss"]
    text = lines.read_text().splitlines()
    objects = [json.loads(line, parse_constant=pytest.fail) for line in text]
    assert [record["loss"] for record in objects] == history["loss"]
    assert [record["epoch"] for record in objects] == [1, 2, 3]
    # JSON has no such numbers.
    assert [record["validation_loss"] for record in objects] == [None] * 3


def test_epochs_are_printed(capsys):
    history = fit([lm.callbacks.PrintEpochs(every=2)])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed] == ["epoch 2/3", "epoch 3/3"]
    assert f"loss {history['loss'][1]:.6g}" in printed[0]


def events(folder):
    """The steps and values of each measure, as TensorBoard shows them."""
    protocol = pytest.importorskip("tensorboardX.proto.event_pb2")
    measures = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        text = path.read_bytes()
        while text:
            size = int.from_bytes(text[:8], "little")
            event = protocol.Event.FromString(text[12 : 12 + size])
            text = text[16 + size :]
            if event.session_log.status == protocol.SessionLog.START:
                for tag, points in measures.items():
                    measures[tag] = [point for point in points if point[0] < event.step]
            for value in event.summary.value:
                number = value.simple_value
                measures.setdefault(value.tag, []).append((event.step, number))
    return measures


@pytest.mark.parametrize("after", ["the checkpoint", "the event"])
def test_tensorboard_has_each_epoch_at_once_and_once(tmp_path, after):
    """A process is killed after an epoch, before or after its checkpoint; another resumes."""
    pytest.importorskip("tensorboardX")
    folder, checkpoint = tmp_path / "events", tmp_path / "checkpoint"

    class Killed(lm.Callback):
        def epoch_ends(self, fit):
            assert [step for step, _ in events(folder)["loss"]] == [*range(1, fit.epoch + 1)]
            if fit.epoch == 2 and after == "the event":
                raise SystemExit

        def epoch_begins(self, fit):
            if fit.epoch == 3:
                raise SystemExit

        def fit_fails(self, fit, error):
            writer._writer = None  # a killed process closes no file

    writer = lm.callbacks.TensorBoard(folder)
    how = {"epochs": 4, "checkpoint": checkpoint}
    with pytest.raises(SystemExit):
        fit([writer, Killed()], **how)
    history = fit([lm.callbacks.TensorBoard(folder)], resume=True, **how)
    assert len(history) == 4
    assert events(folder) == {
        name: [(epoch + 1, pytest.approx(value)) for epoch, value in enumerate(history[name])]
        for name in history
    }
    assert len(list(folder.iterdir())) == 2


def test_tensorboard_without_its_package_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match="tensorboard"):
        fit([lm.callbacks.TensorBoard("unused")])


# Resuming -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_resumed_fit_with_callbacks_equals_one_that_was_not_interrupted(tmp_path, after):
    def interrupt(_, fit):
        # As a killed process would: after the checkpoint of an epoch was written.
        if fit.epoch == after + 1:
            raise KeyboardInterrupt

    def run(name, more, resume=False):
        model, callbacks = lm.Model(network(), seed=1), lm.callbacks
        how = {"epochs": 9, "checkpoint": tmp_path / f"{name}.safetensors", "resume": resume}
        usual = [
            Scripted([5, 1, 2, 2, 2, 2, 2, 2, 0]),
            callbacks.ReduceOnPlateau(factor=0.5, patience=1),
            callbacks.EarlyStopping(patience=5),
            callbacks.SaveModels(tmp_path / name, keep=2),
            callbacks.CSVLog(tmp_path / f"{name}.csv"),
        ]
        history = fit([*usual, *more], model, **how)
        saved = {path.name: bits(lm.load(path)) for path in (tmp_path / name).iterdir()}
        return history.values, bits(model), saved

    uninterrupted = run("whole", [])
    assert len(uninterrupted[0]["loss"]) == 7
    with pytest.raises(KeyboardInterrupt):
        run("part", [hooked(epoch_begins=interrupt)])
    # A fit that has stopped stays so.
    assert [run("part", [], resume=True) for _ in range(2)] == [uninterrupted] * 2


# Second fits, and the order of examples -----------------------------------------------------------


def test_a_second_fit_begins_a_new_training():
    """New moments and counters, and the same order of examples: only parameters go on."""
    how = {"optimizer": lm.Adam(0.01), "epochs": 1}
    model, other = (lm.Model(network(), seed=1) for _ in range(2))
    fit([], model, **how)
    other.set_parameters(model.parameters())
    fit([], model, **how)
    fit([], other, **how)
    assert bits(model) == bits(other)


def test_without_shuffling_examples_come_in_their_own_order():
    model, other = (lm.Model(network(), seed=1) for _ in range(2))
    fit([], model, epochs=1, shuffle=False)
    with other.training(**FAR, batch_size=16) as training:
        for start in range(0, 40, 16):
            training.step(X[start : start + 16], Y[start : start + 16])
    assert bits(model) == bits(other)


class Averages(lm.Callback):
    """Keeps the mean of the parameters after each epoch, in a state with nested arrays."""

    def __init__(self, state=None):
        self.values = {}
        self.seen = []
        self.further = state

    def epoch_ends(self, fit):
        self.values = fit.model.parameters()
        self.seen.append(np.full(2, fit.epoch))

    def state(self):
        return {"values": self.values, "seen": self.seen, "flat": np.ones(2), "own": self.further}

    def restore(self, state):
        self.values, self.seen = state.get("values", {}), state.get("seen", [])
        self.restored = state


def test_arrays_within_a_state_are_restored(tmp_path):
    how = {"checkpoint": tmp_path / "checkpoint"}
    further = {"a": [1, 2.5, None, "text", np.float32(0.5), {"b": (np.arange(3), True)}]}
    model = lm.Model(network(), seed=1)
    fit([Averages(further)], model, epochs=2, **how)
    second = Averages()
    # Without a state in the checkpoint, a callback begins anew.
    stopping = lm.callbacks.EarlyStopping()
    assert len(fit([second, stopping], epochs=3, resume=True, **how)) == 3
    state = second.restored
    assert [counts.tolist() for counts in state["seen"][:2]] == [[1, 1], [2, 2]]
    assert {name: value.tolist() for name, value in state["values"].items()} == {
        name: value.tolist() for name, value in model.parameters().items()
    }
    assert state["flat"].tolist() == [1, 1]
    *plain, nested = state["own"]["a"]
    assert plain == [1, 2.5, None, "text", 0.5]
    assert nested["b"][0].tolist() == [0, 1, 2]
    assert nested["b"][1] is True


def test_flat_arrays_are_stored_as_in_earlier_versions():
    states = {"A-0": {"best/1.weight": np.ones(2), "count": 3, "b": {"c": np.zeros(3)}}}
    plain, arrays = divided(states)
    assert list(arrays) == ["A-0/best/1.weight", "A-0/b/c"]
    assert plain["A-0"]["count"] == 3
    assert together(plain, arrays)["A-0"].keys() == {"count", "best/1.weight", "b"}
    del arrays["A-0/b/c"]
    assert error_text(FileFormatError, together, plain, arrays) == (
        "the checkpoint lacks an array of a callback\n"
        "  expected  A-0/b/c\n"
        "  found     A-0/best/1.weight\n"
        "  Start a new fit; the file was changed."
    )


CONVERT = "Convert it to one of these, and back in restore()."


@pytest.mark.cases(
    ("further", "actual", "advice"),
    ({1}, "set in state()['own']", CONVERT),
    ({"a": [Path("x")]}, f"{type(Path('x')).__name__} in state()['own']['a']['0']", CONVERT),
    ({1: 2}, "the key 1 in state()['own']", "Make keys text: str(key)."),
    (np.array(["a"]), "ndarray in state()['own']", CONVERT),
)
def test_a_state_that_a_file_cannot_hold_names_the_callback(further, actual, advice, path):
    assert error_text(DefinitionError, fit, [Averages(further)], checkpoint=path) == (
        "the state of the callback Averages cannot be stored in a checkpoint\n"
        "  expected  numbers, text, None, arrays of numbers, and lists and dicts of them\n"
        f"  found     {actual}\n"
        f"  {advice}"
    )


# Callbacks that `fit` would not call --------------------------------------------------------------


def two(self, fit):
    """A hook of most names."""


def three(self, fit, steps):
    """A hook of training steps."""


# By the hook of Lamina.
NAMES = {
    "fit_begins(self, fit)": "on_train_begin fit_begin",
    "fit_ends(self, fit)": "on_fit_end training_finished",
    "epoch_begins(self, fit)": "on_epoch_begin epoch_begin epoch_starts",
    "epoch_ends(self, fit)": (
        "on_epoch_end on_train_epoch_end epoch_end after_train_epoch validation_ends on_test_end "
        "epoch_completed after_validate"
    ),
    "steps_done(self, fit, steps)": "on_batch_end step_done batch_end",
    "fit_fails(self, fit, error)": "on_exception fit_fail",
    "state(self)": "state_dict get_state",
    "restore(self, state)": "load_state_dict set_state",
}


@pytest.mark.parametrize(
    ("name", "ours"), [(name, ours) for ours, names in NAMES.items() for name in names.split()]
)
def test_a_hook_of_another_name_is_refused_with_its_name_here(name, ours):
    message = error_text(DefinitionError, lambda: type("Mine", (lm.Callback,), {name: two}))
    where, _, text = message.partition(": ")
    assert where.startswith("in Mine (test_callbacks.py:")
    assert text == (
        f"fit calls no hook {name!r}\n"
        f"  expected  def {ours}\n"
        f"  Here it is called {ours.split('(')[0]}."
    )


STEPS = "Training steps run without Python in between; steps_done is "
VALIDATION = "No hook is called during the validation; epoch_ends is called after"


@pytest.mark.cases(
    ("name", "advice"),
    *((name, STEPS) for name in ("on_train_batch_begin", "before_iteration", "before_batch")),
    *((name, VALIDATION) for name in ("on_test_begin", "validation_begins", "on_test_batch_end")),
    ("on_predict_end", "model.predict calls no hooks."),
)
def test_a_hook_that_lamina_has_not_is_refused(name, advice):
    text = error_text(DefinitionError, lambda: type("Mine", (lm.Callback,), {name: two}))
    _, expected, last = text.splitlines()
    assert expected == (
        "  expected  fit_begins, epoch_begins, steps_done, epoch_ends, fit_ends, fit_fails"
    )
    assert last.startswith(f"  {advice}")


def test_other_methods_of_a_callback_are_the_users_own():
    names = "__len__ on_plateau reset states epoch_time epoch test on_train save_state"
    type("Mine", (lm.Callback,), dict.fromkeys(names.split(), two))
    # An adapter passes Lamina's hook on to one of another name.
    base = type("Adapter", (lm.Callback,), {"epoch_ends": two, "on_epoch_end": three})
    type("Mine", (base,), {"epoch_done": two})


def test_a_hook_of_other_arguments_is_refused():
    error = refused(DefinitionError, lambda: type("Mine", (lm.Callback,), {"epoch_ends": three}))
    assert str(error).splitlines()[0].endswith(": the hook epoch_ends takes other arguments")
    assert error.facts == (
        ("expected", "def epoch_ends(self, fit)"),
        ("found", "def epoch_ends(self, fit, steps)"),
    )


@pytest.mark.cases(
    ("callback", "advice"),
    (lm.callbacks.EarlyStopping, "Make one of the class: EarlyStopping(...)."),
    (lm.schedules.Cosine(0.1, 9), "A schedule is the rate of an optimizer: lm.SGD(schedule)."),
    (lm.SGD(0.1), ""),
    (
        type("Keras", (), {"on_epoch_end": two})(),
        "Make it a subclass of lm.Callback; its hook is epoch_ends(self, fit).",
    ),
)
def test_what_is_no_callback_is_refused(callback, advice):
    error = refused(DefinitionError, lambda: fit([lm.callbacks.PrintEpochs(), callback]))
    assert str(error).splitlines()[0] == "in callbacks: this is not a callback"
    assert error.facts == (
        ("expected", "[a function of the history, lm.callbacks.EarlyStopping()]"),
        ("found", repr(callback)),
    )
    assert error.advice == advice


# Measures that are watched: stopping, reduced rates, the best epoch; limits of time ---------------


def test_early_stopping_waits_and_restores_the_best_epoch():
    kept = []
    model = lm.Model(network(), seed=1)
    stopping = lm.callbacks.EarlyStopping(patience=2)
    history = fit([Scripted([3, 1, 2, 1, 0]), keeping(kept), stopping], model, epochs=9)
    assert len(history) == 4
    assert stopping.best_epoch == 2
    assert bits(model) == kept[1]


def diverge(fit):
    huge = {name: np.full_like(v, 1e38) for name, v in fit.model.parameters().items()}
    fit.model.set_parameters(huge)


def interrupt(fit):
    raise KeyboardInterrupt


def also_fails(*_):
    raise RuntimeError("also this one")


@pytest.mark.cases(
    ("end", "error"),
    (diverge, NonFiniteError),
    (interrupt, KeyboardInterrupt),
    (lambda _: 1 / 0, ZeroDivisionError),
)
def test_the_best_epoch_comes_back_however_the_fit_ends(end, error):
    kept = []
    ends = hooked(
        epoch_begins=lambda _, fit: end(fit) if fit.epoch == 4 else None, fit_fails=also_fails
    )
    model = lm.Model(network(), seed=1)
    callbacks = [keeping(kept), ends, Scripted([3, 1, 2]), lm.callbacks.EarlyStopping()]
    raised = refused(error, lambda: fit(callbacks, model, epochs=9))
    assert bits(model) == kept[1]
    assert raised.__notes__ == [
        "Hooked.fit_fails: RuntimeError('also this one')",
        "EarlyStopping: the model has the values of epoch 2.",
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_never_the_best(value, tmp_path):
    stopping = lm.callbacks.EarlyStopping(patience=9, restore_best=False)
    saving = lm.callbacks.SaveModels(tmp_path)
    fit([Scripted([value, 2, value]), stopping, saving])
    assert stopping.best_epoch == 2
    assert saving.state()["best"] == [[2, 2]]


def test_early_stopping_needs_a_change_of_a_least_size():
    stopping = lm.callbacks.EarlyStopping("accuracy", patience=2, least_change=0.1)
    values = Scripted([0.5, 0.55, 0.59, 0.9], "accuracy")
    history = fit([values, stopping], metrics=[lm.Accuracy()], epochs=4)
    assert len(history) == 3
    assert stopping.best_epoch == 1


@pytest.mark.cases(
    ("name", "advice"),
    ("validation_accuracy", None),
    ("val_loss", "Here it is called 'validation_loss'."),
    ("acuracy", "Did you mean 'accuracy'?"),
)
def test_a_measure_that_is_not_there_is_named_before_the_training(name, advice, tmp_path):
    callbacks = lm.callbacks
    for callback in (
        callbacks.EarlyStopping(name),
        callbacks.ReduceOnPlateau(name),
        callbacks.SaveModels(tmp_path, name),
    ):
        seen, metrics = Seen(), [lm.Accuracy()] if advice else []
        error = refused(DefinitionError, fit, [callback, seen], metrics=metrics)
        assert error.where == type(callback).__name__
        assert f"nothing named {name!r} is measured" in error.problem
        assert error.advice == advice or not advice
        assert seen.calls == ["fit fails: DefinitionError"]


class Patient(lm.callbacks.EarlyStopping):
    last_value = "a name of the user's"


def test_errors_of_a_subclass_name_the_class_whose_documentation_explains_them():
    assert refused(DefinitionError, fit, [Patient("absent")]).where == "EarlyStopping"
    assert len(fit([Patient("loss")], epochs=1)) == 1


PLATEAU = [5, 4, 4, 4, 4, 3.99999, 3, 3, 3, 3, 3, 2.9]
SLOWER = [5, 4, 4, 4, 3.9, 3.9, 3.9, 3.9, 3.9]
FINITE_LATE = [math.nan, math.inf, 5, math.nan, 4, math.inf, math.inf, 4]


@pytest.mark.cases(
    ("how", "values", "rates"),
    ({}, [math.nan, math.inf, -math.inf, math.nan, math.inf], [0.1, 0.1, 0.05, 0.05, 0.025]),
    ({}, SLOWER, [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025]),
    ({"cooldown": 2}, SLOWER, [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.025]),
    ({"threshold": 0.1}, SLOWER, [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125]),
    ({"least_rate": 0.04}, SLOWER, [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.04, 0.04]),
)
def test_reduce_on_plateau_lowers_the_rate(how, values, rates):
    plateau = lm.callbacks.ReduceOnPlateau(factor=0.5, patience=1, **how)
    history = fit([Scripted(values), plateau], epochs=len(values))
    assert history["rate"] == pytest.approx(rates)


@pytest.mark.parametrize(
    "how", [{}, {"cooldown": 2}, {"threshold": 0.1}, {"threshold": 0}, {"least_rate": 0.04}]
)
@pytest.mark.parametrize("monitor", ["validation_loss", "accuracy"])
@pytest.mark.parametrize("losses", [PLATEAU, FINITE_LATE])
def test_reduce_on_plateau_decides_as_pytorch(losses, monitor, how, torch):
    values = losses if monitor == "validation_loss" else [9 - value for value in losses]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    names = {"least_rate": "min_lr"}
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode="min" if monitor == "validation_loss" else "max",
        factor=0.5,
        patience=1,
        **{names.get(name, name): value for name, value in how.items()},
    )
    expected = []
    for value in values:
        expected.append(optimizer.param_groups[0]["lr"])
        theirs.step(value)
    plateau = lm.callbacks.ReduceOnPlateau(monitor, factor=0.5, patience=1, **how)
    callbacks = [Scripted(values, monitor), plateau]
    history = fit(callbacks, epochs=len(values), metrics=[lm.Accuracy()])
    assert history["rate"] == pytest.approx(expected)


def test_a_time_limit_ends_the_fit():
    history = fit([lm.callbacks.TimeLimit(1e-6)])
    assert len(history) == 0
    assert history.interrupted
    assert len(fit([lm.callbacks.TimeLimit(3600)])) == 3


class Adds(lm.Callback):
    """Adds a measure for other callbacks."""

    def fit_begins(self, fit):
        fit.history.measured += ("own",)

    def epoch_ends(self, fit):
        fit.history.values.setdefault("own", []).append(float(fit.epoch))


def test_a_callback_may_add_a_measure_for_others():
    stopping = lm.callbacks.EarlyStopping("own", best="min", patience=2)
    assert len(fit([Adds(), stopping], epochs=9)) == 3


def test_a_matrix_is_no_measure_of_the_best_epoch():
    stopping = lm.callbacks.EarlyStopping("confusion_matrix", best="max")
    text = error_text(DefinitionError, lambda: fit([stopping], metrics=[lm.ConfusionMatrix()]))
    assert "'confusion_matrix' is no number, so no epoch is the best one" in text


def share_of_hits(prediction, target):
    return lm.ops.cast(lm.ops.equal(lm.ops.argmax(prediction, 1), target), "float32")


@pytest.mark.cases(
    ("metric", "name", "best", "expected"),
    (lm.Perplexity(), "perplexity", None, 2),
    (lm.CalibrationError(logits=True), "calibration_error", None, 2),
    (lm.MultiMargin(), "multi_margin", None, 2),
    (lm.Accuracy(), "accuracy", None, 1),
    (share_of_hits, "share_of_hits", "max", 1),
    (share_of_hits, "share_of_hits", "min", 2),
    (lm.Accuracy(), "accuracy", "min", 2),
    (lm.Perplexity(), "perplexity", "max", 1),
)
def test_metrics_know_which_values_are_better(metric, name, best, expected):
    """The measure falls from the first epoch to the second."""
    stopping = lm.callbacks.EarlyStopping(f"validation_{name}", patience=1, best=best)
    falling = Scripted([0.9, 0.8, 0.8], f"validation_{name}")
    fit([falling, stopping], metrics=[metric])
    assert stopping.best_epoch == expected


def test_every_metric_of_a_number_says_which_values_are_better():
    """A matrix has no order."""
    found = {name: getattr(metrics, name) for name in metrics.__all__ if name != "Metric"}
    silent = [name for name, metric in found.items() if metric.smaller_is_better is None]
    assert len(found) > 10
    assert silent == ["ConfusionMatrix"]


@pytest.mark.sampled
def test_names_of_outputs_do_not_decide_which_values_are_better():
    x = lm.Input(4)
    names = ("normal", "loss", "error", "accuracy", "norm")
    net = lm.Network(x, {name: lm.Linear(3)(x) for name in names})
    how = {
        "loss": {name: lm.CrossEntropy() for name in names},
        "metrics": {name: [lm.Accuracy(), lm.Perplexity()] for name in names},
    }
    best = {"loss": 3, "accuracy": 1, "perplexity": 3}
    measures = {f"{name}_{kind}": epoch for name in names for kind, epoch in best.items()}
    measures |= {f"validation_{name}": epoch for name, epoch in measures.items()}
    scripted = [Scripted([0.9, 0.8, 0.7], name) for name in measures]
    stopping = [lm.callbacks.EarlyStopping(name, restore_best=False) for name in measures]
    targets = (Y,) * len(names)
    lm.Model(net).fit(
        (X, targets),
        validation=(X, targets),
        epochs=3,
        optimizer=lm.SGD(0.1),
        callbacks=[*scripted, *stopping],
        **how,
    )
    assert {callback.monitor: callback.best_epoch for callback in stopping} == measures


def test_a_metric_that_is_given_twice_is_known_by_the_name_of_its_history():
    measured = [lm.Perplexity(), lm.Perplexity(ignore_index=0)]
    names = ["validation_perplexity", "validation_perplexity_1"]
    stopping = [lm.callbacks.EarlyStopping(name, restore_best=False) for name in names]
    fit([*(Scripted([3, 2, 1], name) for name in names), *stopping], metrics=measured)
    assert [callback.best_epoch for callback in stopping] == [3, 3]
    # No other name is replaced.
    measured = [lm.FunctionMetric(share_of_hits, name=name) for name in ("x_2", "x", "x")]
    assert list(fit([], metrics=measured))[1:4] == ["x_2", "x", "x_2_2"]


@pytest.mark.parametrize("callback", ["EarlyStopping", "ReduceOnPlateau", "SaveModels"])
@pytest.mark.parametrize("name", ["share_of_hits", "gradient_norm", "rate", "own"])
def test_what_has_no_better_values_needs_best(callback, name, tmp_path):
    seen, folder = Seen(), [tmp_path] * (callback == "SaveModels")
    watching = getattr(lm.callbacks, callback)(*folder, monitor=name)
    how = {"metrics": [share_of_hits], "record": ["rate", "gradient_norm"]}
    error = refused(DefinitionError, lambda: fit([Adds(), watching, seen], **how))
    assert error.problem == f"nothing says whether small or large values of {name!r} are better"
    assert error.facts[0] == ("expected", 'best="min" or best="max"')
    assert seen.calls == ["fit fails: DefinitionError"]


@pytest.mark.parametrize("name", ["validation_loss", "gradient_norm"])
def test_two_measures_of_one_name_are_refused(name):
    metric = lm.FunctionMetric(share_of_hits, name=name)
    how = {"metrics": [metric], "record": ["gradient_norm"]}
    text = error_text(DefinitionError, lambda: fit([], **how))
    assert f"two measures of the history have the name {name!r}" in text
