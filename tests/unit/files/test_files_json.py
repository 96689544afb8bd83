"""JSON in files that is not what was written: refused with the name of the file, before it is used.

The checksums of these files are valid.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_texts import error_text
from files_cases import functional, metadata_of
from test_files_hostile import forge
from test_streams_continued import failing

import lamina as lm
from lamina.base.shapes import float32
from lamina.errors import DefinitionError, FileFormatError, LaminaError
from lamina.training import training

Keys = tuple[str | int, ...]
FRAME = {"size": [1.0, 2.0, 4.0], "town": ["a", "b", "a"], "y": ["u", "v", "u"]}
FIT: dict[str, Any] = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "batch_size": 2}


def parts_of(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """All parts of JSON data."""
    yield keys, value
    items: Any = value.items() if isinstance(value, dict) else ()
    for key, one in enumerate(value) if isinstance(value, list) else items:
        yield from parts_of(one, (*keys, key))


def with_part(value: Any, keys: Keys, new: Any) -> Any:
    """JSON data with another value for a part."""
    if not keys:
        return new
    copy = value.copy()
    copy[keys[0]] = with_part(copy[keys[0]], keys[1:], new)
    return copy


def changes(data: Any, every: bool) -> Iterator[tuple[Keys, Any]]:
    """The data with a value of another type for each of its parts, or of every other type."""
    for number, (keys, old) in enumerate(parts_of(data)):
        values = ({"a": 1}, [[None]], "x", -0.5, True)
        others = [new for new in values if type(new) is not type(old)]
        for new in others if every else [others[number % len(others)]]:
            yield keys, with_part(data, keys, new)


EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.sampled)])


def faults(
    source: Path, entry: str, data: Any, every: bool, use: Callable[[Path], object]
) -> list[str]:
    """Exceptions of other kinds, and errors that do not name the file, of all changes."""
    found, path = list[str](), source.with_name("changed")
    for keys, changed in changes(data, every):
        text = json.dumps(changed)
        forge(path, lambda metadata, *_, text=text: metadata.update({entry: text}), source)
        try:
            use(path)
        except FileFormatError as error:
            found += [f"{keys}: {text}\n{error}"] * (str(path) not in str(error))
        except LaminaError:
            pass  # a valid file, of another table or another fit
        except Exception as error:
            found.append(f"{keys}: {text}\n{type(error).__name__}: {error}")
    return found


def table_model(path: Path) -> Any:
    """Saves a model of a table; returns the JSON of its coding."""
    data = lm.data.from_frame(FRAME, target="y", standardise=True)
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter")
    model.fit(data, **FIT)
    model.save(path)
    return json.loads(metadata_of(path)["coding"])


@EVERY
def test_the_definition_of_a_network(every, tmp_path):
    path = tmp_path / "model"
    lm.Model(functional()).save(path)

    def use(path):
        try:
            lm.load(path).network.trace(dtype=float32, training=False)
        except LaminaError as error:
            raise error if isinstance(error, FileFormatError) else AssertionError from error

    assert not faults(path, "network", json.loads(metadata_of(path)["network"]), every, use)


@EVERY
def test_the_coding_of_a_table(every, tmp_path):
    coding = table_model(tmp_path / "model")
    rows = {name: values for name, values in FRAME.items() if name != "y"}

    def use(path):
        lm.load(path, engine="interpreter").predict(rows)

    assert not faults(tmp_path / "model", "coding", coding, every, use)


def test_the_error_names_the_part(tmp_path):
    coding = table_model(tmp_path / "model")
    coding["columns"][1]["words"][0] = {}
    path = tmp_path / "changed"
    forge(path, lambda m, *_: m.update(coding=json.dumps(coding)), tmp_path / "model")
    assert error_text(FileFormatError, lm.load, path) == (
        f"in {path}: coding.columns[1].words[0] must be a text\n"
        '  expected  coding.columns[1].words[0]="..."\n'
        "  found     {}\n"
        "  The file was changed, or written by another version of Lamina."
    )


class Stateful:
    """A source whose state is bytes."""

    def __iter__(self) -> Iterator[Any]:
        yield from [(np.ones((2, 3), "float32"), np.zeros(2, "int64"))] * 3

    def state_dict(self) -> bytes:
        return b"0"

    def load_state_dict(self, state: bytes) -> None:
        pass


def resumed(path: Path, **how: Any) -> None:
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter")
    callbacks = [
        lm.callbacks.EarlyStopping("loss"),
        lm.callbacks.ReduceOnPlateau("loss"),
        lm.callbacks.SaveModels(path.with_name("models"), "loss"),
    ]
    model.fit(Stateful(), **FIT, checkpoint=path, resume=True, callbacks=callbacks, **how)


@pytest.mark.sampled
@EVERY
def test_the_notes_of_a_checkpoint(every, monkeypatch, path):
    monkeypatch.setattr(training, "PIECE_SECONDS", 0.0)  # each training step is a piece
    with failing(5):
        resumed(path, epochs=2, checkpoint_steps=1)
    notes = json.loads(metadata_of(path)["notes"])
    assert notes.keys() >= {"epoch", "position", "callbacks", "batch_size"}
    assert list(notes["position"]["state"]) == ["base64"]
    wrong = faults(path, "notes", notes, every, lambda changed: resumed(changed, epochs=2))
    assert not wrong, "\n".join(wrong)


def test_every_value_in_the_state_of_a_callback_has_a_kind():
    for name in dir(lm.callbacks):
        cls = getattr(lm.callbacks, name)
        if isinstance(cls, type) and issubclass(cls, lm.Callback) and "state" in vars(cls):
            state = cls("x").state() if name == "SaveModels" else cls().state()
            assert state.keys() == cls.state_kinds.keys(), name


def test_an_unfinished_epoch_with_other_metrics(path):
    with failing(1):
        resumed(path, epochs=1, checkpoint_steps=1)
    assert error_text(DefinitionError, resumed, path, epochs=1, metrics=[lm.Accuracy()]) == (
        f"in {path}: the unfinished epoch of the checkpoint was measured with other metrics\n"
        "  in the file  none\n"
        "  here         metric0.correct, metric0.count\n"
        "  Resume with the loss and the metrics of the fit that wrote it."
    )
