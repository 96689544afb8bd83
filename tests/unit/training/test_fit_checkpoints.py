"""Checkpoints of fits: finished epochs are kept and resumed with the same bits."""

import threading
from functools import cache

import pytest
from error_texts import error_text, refused
from training_cases import TEST, at_step, fit, network, same

import lamina as lm
from lamina.errors import DataError, DefinitionError, FileFormatError


@cache
def uninterrupted():
    """Parameters and history after five epochs."""
    model = lm.Model(network())
    history = fit(model, epochs=5, validation=TEST)
    return model.parameters(), history.values


def resumed(path):
    """Resumes the fit of five epochs in a fresh model; compares its bits."""
    parameters, values = uninterrupted()
    # The seed of the fresh model must not matter but for the order of the examples.
    model = lm.Model(network())
    model.set_parameters({name: 0 * value for name, value in model.parameters().items()})
    history = fit(model, epochs=5, validation=TEST, checkpoint=path, resume=True)
    assert same(model.parameters(), parameters)
    assert history.values == values
    assert not history.interrupted


def chain(*layers, **how):
    return lm.Model(lm.Sequential(lm.Input(4), lm.Linear(64), *layers, lm.Linear(3)), **how)


def decoder():
    """A part of a model of more layers."""
    part = lm.Sequential(lm.Input(4), lm.Linear(5), lm.BatchNorm(), lm.Linear(3))
    return lm.Model(lm.Sequential(lm.Input(2), lm.Linear(4), part)).part(part)


def with_classes_of_the_user():
    from test_files import Own, Ramp

    return chain(Own(scale=2.0, inner=lm.Linear(3, weight_init=Ramp(0.1))))


def scaled(scores):
    return scores * 2000.0


BY_PATH = lm.ByPath({"1.*": lm.SGD(0.1, momentum=0.9)}, default=lm.Adam(0.01))
RESUMED = {
    "states of layers": (lambda: chain(lm.BatchNorm(), lm.Dropout(0.2)), {}),
    "classes of the user": (with_classes_of_the_user, {}),
    "a part": (decoder, {}),
    "optimizers by path": (chain, {"optimizer": BY_PATH}),
    "states of all parameters": (chain, {"optimizer": lm.LBFGS(0.1, history=3)}),
    "frozen parameters": (chain, {"frozen": ["1.*"], "clip": lm.ClipGlobalNorm(0.1)}),
    "EMA": (chain, {"optimizer": lm.EMA(lm.Adam(0.01))}),
    "SWA": (chain, {"optimizer": lm.SWA(lm.Adam(0.01), start=5, every=3)}),
    "micro-batches": (lambda: chain(lm.Dropout(0.5)), {"micro_batch": 5}),
    **{
        dtype: (lambda dtype=dtype: chain(lm.BatchNorm(), lm.Dropout(0.2), dtype=dtype), {})
        for dtype in ("bfloat16", "float16", "mixed-bfloat16", "mixed-float16")
    },
    "TF32": (lambda: chain(lm.BatchNorm(), precision="tf32"), {}),
    # Large gradients: in the first epochs, training steps are skipped.
    "skipped steps": (
        lambda: lm.Model(
            lm.Sequential(lm.Input(4), lm.Linear(64), lm.ReLU(), lm.Linear(3), scaled),
            dtype="mixed-float16",
        ),
        {"optimizer": lm.Adam(1e-3), "batch_size": 16},
    ),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_fit_has_the_bits_of_one_in_a_single_call(name, path):
    make, how = RESUMED[name]
    how = {**how, "validation": TEST}
    single, again = make(), make()
    history = fit(single, epochs=4, **how)
    fit(make(), epochs=1, checkpoint=path, **how)
    resumed = fit(again, epochs=4, checkpoint=path, resume=True, **how)
    assert resumed.values == history.values
    assert same(resumed.averaged_parameters, history.averaged_parameters)
    assert same(again.parameters() | again.states(), single.parameters() | single.states())
    if name == "skipped steps":
        assert history["skipped_steps"][:1] == [4]
        assert history["skipped_steps"][-1] == 0


@pytest.mark.parametrize("step", [7, 8, 10, 20, 29])
def test_a_fit_that_failed_in_an_epoch_is_resumed_with_the_same_bits(step, monkeypatch, path):
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(lm.Model(network()), epochs=5, validation=TEST, checkpoint=path)
    resumed(path)


def test_a_checkpoint_is_a_model_of_its_epoch_and_resuming_a_fit_that_is_done_does_nothing(path):
    model = lm.Model(network())

    def compare(_):
        assert same(lm.load(path).parameters(), model.parameters())

    # Without a file it begins at the start.
    history = fit(model, checkpoint=path, resume=True, callbacks=[compare])
    assert len(history) == 3
    before = model.parameters()
    assert fit(model, checkpoint=path, resume=True).values == history.values
    assert same(model.parameters(), before)


OTHER_LAYERS = lm.Sequential(lm.Input(4), lm.Linear(8), lm.ReLU(), lm.Dropout(0.3), lm.Linear(3))
OTHERS = {
    "optimizer": (
        *(lm.Model(network()), {"optimizer": BY_PATH}),
        ["Adam in the file, ByPath(SGD, Adam) here"],
    ),
    "EMA(AdamW)": (
        *(lm.Model(network()), {"optimizer": lm.EMA(lm.AdamW())}),
        ["Adam in the file, EMA(AdamW) here"],
    ),
    "frozen": (lm.Model(network()), {"frozen": ["1.*"]}, ["[] in the file, ['1.*'] here"]),
    "batch_size": (lm.Model(network()), {"batch_size": 10}, ["8 in the file, 10 here"]),
    "seed": (lm.Model(network()), {"seed": 3}, ["0 in the file, 3 here"]),
    "micro_batch": (lm.Model(network()), {"micro_batch": 4}, ["None in the file, 4 here"]),
    "dtype": (
        *(lm.Model(network(), dtype="mixed-bfloat16"), {}),
        ["float32 in the file, mixed-bfloat16 here", "lm.load(path, dtype='mixed-bfloat16')."],
    ),
    "precision": (
        *(lm.Model(network(), precision="tf32"), {}),
        ["float32 in the file, tf32 here", "lm.load(path, precision='tf32')"],
    ),
    "": (
        *(lm.Model(OTHER_LAYERS), {}),
        ["the checkpoint belongs to a network with other layers", "Tanh()", "ReLU()"],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_fit_is_refused_and_the_model_kept(name, path):
    model, how, texts = OTHERS[name]
    fit(lm.Model(network()), epochs=1, checkpoint=path)
    contents, before = path.read_bytes(), model.parameters()
    text = error_text(DefinitionError, lambda: fit(model, checkpoint=path, resume=True, **how))
    assert not name or "the checkpoint was written by a fit with other options" in text
    assert all(part in text for part in (name, *texts))
    assert same(model.parameters(), before)
    assert path.read_bytes() == contents


def test_resuming_from_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "model"
    lm.Model(network()).save(path)
    how = {"checkpoint": path, "resume": True}
    assert error_text(FileFormatError, fit, lm.Model(network()), **how) == (
        f"in {path}: this file holds a model, not a checkpoint to resume from\n"
        "  expected  a file of fit(checkpoint=...)\n"
        "  found     a saved model\n"
        "  Start from its parameters: lm.load(path), and leave resume out."
    )
    path.write_bytes(b"something else")
    refused(FileFormatError, fit, lm.Model(network()), **how)
    assert path.read_bytes() == b"something else"


class Restored(lm.callbacks.Callback):
    """Raises an error with a cause when it is restored."""

    def __init__(self, error):
        self.error = error

    def state(self):
        return {"epochs": 1}

    def restore(self, state):
        if state:
            raise self.error from ValueError("noticed first")


def test_errors_of_a_checkpoint_name_the_file_and_have_no_cause_but_those_of_callbacks(path):
    fit(lm.Model(network()), epochs=1, checkpoint=path, callbacks=[Restored(DataError("mine"))])
    for error, where in ((FileFormatError("damaged"), str(path)), (DataError("mine"), "")):
        how = {"checkpoint": path, "resume": True, "callbacks": [Restored(error)]}
        raised = refused(type(error), fit, lm.Model(network()), **how)
        assert raised is error
        assert raised.where == where
        assert (raised.__cause__ is None) == bool(where)
        assert raised.__suppress_context__


def test_a_checkpoint_that_was_truncated_is_refused_with_ways_to_go_on(path):
    fit(lm.Model(network()), epochs=1, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-3])
    how = {"checkpoint": path, "resume": True}
    assert refused(FileFormatError, fit, lm.Model(network()), **how).advice == (
        "Give an older checkpoint, or leave resume out for a new fit; the file was changed or "
        "truncated."
    )
    fit(lm.Model(network()), epochs=1, checkpoint=path)


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_first_training_step(
    tmp_path, model
):
    path = tmp_path / "absent" / "checkpoint"
    before = model.parameters()
    text = error_text(DataError, lambda: fit(model, checkpoint=path))
    assert "could not be written" in text
    assert "Create the folder first" in text
    assert same(model.parameters(), before)
    path = tmp_path / "checkpoint"
    text = error_text(DefinitionError, lambda: fit(model, checkpoint=path, frozen=5))
    assert "given as a list of patterns" in text
    assert not path.exists()


def test_a_fit_works_in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(lm.Model(network()))))
    thread.start()
    thread.join()
    assert len(found[0]) == 3
