"""Models that take tables: the coding is theirs, and stored with them."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused
from frame_cases import TABLE, Maker, by_name, maker

import lamina as lm
from lamina.data import from_frame
from lamina.errors import DataError, DTypeError, LaminaWarning, NonFiniteError, ShapeError

NOT_CODED = "the columns of a data frame are not coded"


def trained(data: Any, **how: Any) -> lm.Model:
    model = lm.Model(lm.Sequential(lm.Input(data.inputs.shape[1]), lm.Linear(1)))
    model.fit(data, loss=lm.MSE(), optimizer=lm.Adam(0.01), progress=False, **how)
    return model


@maker
def test_a_model_takes_the_frame_after_loading(make: Maker, tmp_path: Path) -> None:
    data = from_frame(make(TABLE), target="rent", gaps="mean", standardise=True)
    train, _ = data.split(0.8)
    model = trained(train, checkpoint=tmp_path / "checkpoint")
    expected = model.predict(data.inputs)
    np.testing.assert_array_equal(model.predict(make(TABLE)), expected)
    model.save(tmp_path / "model")
    for name in ("model", "checkpoint"):
        loaded = lm.load(tmp_path / name)
        assert loaded.coding == data.coding
        np.testing.assert_array_equal(loaded.predict(make(TABLE)), expected)
        scores = loaded.evaluate(loaded.coding.dataset(make(TABLE)), lm.MSE())
        assert scores == model.evaluate(data, lm.MSE())


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("one-hot", "The table needs lm.Input(3): size, town=Bonn, town=Ulm."),
        ("index", "The table needs lm.Input(1): size; and lm.Input(1, dtype='int64'): town."),
    ],
)
def test_a_network_of_another_size_is_told_the_features(words: Any, advice: str) -> None:
    table = {"size": [30, 52], "town": ["Ulm", "Bonn"], "rent": [1.5, 2]}
    data = from_frame(table, "rent", words=words)
    model = lm.Model(lm.Sequential(lm.Input(13), lm.Linear(1)))
    for call in (partial(model.fit, optimizer=lm.SGD(0.1)), model.evaluate):
        assert refused((DataError, ShapeError), call, data, loss=lm.MSE()).advice == advice


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_a_missing_number_of_a_frame_is_named_by_its_column(package: str) -> None:
    columns = {"a": [1.0, 2.0, 3.0], "b": [1.0, float("nan"), 3.0]}
    module = pytest.importorskip(package)
    frame = module.table(columns) if package == "pyarrow" else module.DataFrame(columns)
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
    data = lm.data.Dataset(frame, np.ones((3, 1)), dtype="float32")
    error = refused(NonFiniteError, model.fit, data, loss=lm.MSE(), optimizer=lm.SGD(0.1))
    assert ("data", "input 0 is not finite at example 1, column 'b'") in error.facts


def softmax_of_outputs(net: lm.Network) -> lm.Network:
    return lm.Network(net.inputs, lm.Softmax()(net.outputs[0]))


def softmax_after_it(net: lm.Network) -> lm.Network:
    return lm.Sequential(lm.Input(3), net, lm.Softmax())


@pytest.mark.parametrize("make_part", [softmax_of_outputs, softmax_after_it])
@pytest.mark.parametrize("when", ["before", "after", "loaded"])
def test_a_part_takes_the_tables_of_the_whole(make_part: Any, when: str, tmp_path: Path) -> None:
    table = {"size": [30, 52, 7], "town": ["Ulm", "Bonn", "Ulm"], "kind": ["a", "b", "b"]}
    data = from_frame(table, "kind")
    net = lm.Sequential(lm.Input(3), lm.Linear(2))
    model = lm.Model(net)
    part = model.part(make_part(net)) if when == "before" else None
    model.fit(data, loss=lm.CrossEntropy(), optimizer=lm.SGD(0.01), progress=False)
    if when == "loaded":
        model.save(tmp_path / "model")
        model = lm.load(tmp_path / "model")
    part = part or model.part(make_part(model.network))
    scores = model.predict(data.inputs)
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    rows = [{name: values[n] for name, values in table.items()} for n in range(3)]
    for given in (table, rows, data):
        np.testing.assert_allclose(part.predict(given), expected, rtol=1e-5)
    part.save(tmp_path / "part")
    assert lm.load(tmp_path / "part").coding == data.coding
    assert copy.deepcopy(part).coding == data.coding


def test_a_part_has_the_coding_and_the_order_of_its_own_inputs(tmp_path: Path) -> None:
    table = {"size": [30, 52], "town": ["Ulm", "Bonn"], "age": [3, 4], "y": [1.5, 2]}
    data = from_frame(table, "y", words="index")
    numbers, words = lm.Input(2), lm.Input(1, dtype="int64")
    hidden = lm.Linear(4)(numbers)
    embedded = lm.Reshape(4)(lm.Embedding(3, 4)(words))
    body = lm.Linear(4)
    scores = lm.Linear(1)(body(hidden + embedded))
    model = lm.Model(lm.Network([numbers, words], scores))
    model.fit(data, loss=lm.MSE(), optimizer=lm.SGD(0.001), progress=False)
    sizes = model.part(lm.Network(numbers, hidden))
    assert [column.name for column in sizes.coding.columns] == ["size", "age"]
    assert sizes.predict({"size": [1.0], "age": [2]}).shape == (1, 4)
    towns = model.part(lm.Network(words, embedded))
    assert [column.name for column in towns.coding.columns] == ["town"]
    assert towns.predict({"town": ["Ulm"]}).shape == (1, 4)
    # Inner inputs are not coded.
    inner = lm.Sequential(lm.Input(4), body)
    assert model.part(inner).coding is None
    # A part that is trained on a table of its own does not change the coding of the whole.
    part = model.part(inner)
    other = from_frame({"a": [1.0, 2], "b": [1, 2], "c": [3, 4], "d": [5, 6], "y": [0.5, 1]}, "y")
    part.fit(other, loss=lambda p, t: lm.ops.mean(p), optimizer=lm.SGD(0.1), progress=False)
    assert part.coding == other.coding
    assert model.coding == data.coding
    assert model.part(lm.Network([numbers, words], hidden + embedded)).coding == data.coding
    swapped = model.part(lm.Network([words, numbers], scores))
    swapped.save(tmp_path / "part")
    again = swapped.part(lm.Network([numbers, words], scores))
    for part in (swapped, lm.load(tmp_path / "part"), again):
        np.testing.assert_array_equal(part.predict(table), model.predict(table))
        own = part.coding.dataset(table)
        assert part.evaluate(own, lm.MSE()) == model.evaluate(data, lm.MSE())
    assert again.coding == data.coding
    assert "expected  indices_first=True" in error_text(DataError, swapped.predict, data)


def test_columns_and_rows_without_a_coding_are_refused() -> None:
    array = np.ones((4, 1), "float32")
    model, rows = trained(lm.data.Dataset(array, array)), [{"a": 1.0}, {"a": 2.0}]
    assert model.coding is None
    error = refused(DataError, model.predict, {"a": [1.0]})
    assert "for a model that was trained on lm.data.from_frame(...)." in error.advice
    error = refused(DataError, model.evaluate, {"a": [1.0]}, lm.MSE())
    assert error.problem == NOT_CODED
    assert "Arrays by the names of inputs are lm.data.Dataset(" in error.advice
    for call in (
        *(model.predict, partial(model.evaluate, loss=lm.MSE())),
        lambda rows: model.network.plan(2, data=rows),
    ):
        assert refused(DataError, call, rows).problem == NOT_CODED


def test_a_frame_of_numbers_is_an_array_for_a_model_that_was_trained_on_arrays() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3, 4], "y": [0.5, 1.5]})
    inputs, targets = frame[["a", "b"]], np.array([[0.5], [1.5]], "float32")
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)), dtype="float64")
    model.fit((inputs, targets), loss=lm.MSE(), optimizer=lm.Adam(), epochs=1, progress=False)
    expected = model.predict(np.array([[1.0, 3.0], [2.0, 4.0]]))
    assert (model.predict(inputs) == expected).all()
    assert (model.predict(inputs.convert_dtypes()) == expected).all()
    assert (model.predict(pytest.importorskip("polars").from_pandas(inputs)) == expected).all()


ROWS = [{"size": 38.0, "town": "Ulm"}, {"size": None, "town": "Rom"}]


def test_rows_are_a_table() -> None:
    table = {name: TABLE[name] for name in ("size", "town", "rent")}
    data = from_frame(by_name(table), target="rent", gaps="mean")
    columns = {"size": [38.0, np.nan], "town": ["Ulm", "Rom"]}
    expected = data.coding.inputs(columns)
    np.testing.assert_array_equal(data.coding.inputs(ROWS), expected)
    np.testing.assert_array_equal(data.coding.inputs(ROWS[0]), expected[:1])
    model = trained(data)
    predicted = model.predict(columns)
    assert (model.predict(ROWS) == predicted).all()
    assert model.predict(ROWS[0]).shape == (1, 1)
    assert len(data.coding.dataset([{**row, "rent": 1.5} for row in ROWS])) == 2
    again = from_frame([{**row, "rent": 1.5} for row in ROWS], "rent", gaps="mean")
    assert again.coding.features == ("size", "town=Rom", "town=Ulm")


def test_rows_of_other_columns_are_refused() -> None:
    rows = [{"size": 1.0, "rent": 0.5}, {"size": 2.0, "rent": 1.5}]
    coding = from_frame(rows, "rent").coding
    for error in (
        refused(DataError, coding.inputs, [{"size": 3.0}, {"width": 4.0}]),
        refused(DataError, from_frame, [*rows, {"size": 3.0}], "rent"),
    ):
        assert error.problem == "the rows differ in their columns"
        assert error.advice == "Give all values in each row; a missing one is None."


def test_a_frame_that_is_not_coded_is_refused_by_a_model_that_codes() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 4.0], "y": [0.5, 1.5, 3.5]})
    data = from_frame(frame, "y", standardise=True)
    model, y = trained(data), frame[["y"]].to_numpy("float32")
    text = (
        "the columns of a data frame are not coded\n"
        "  expected  model.coding.dataset(frame)\n"
        "  found     3 examples: x f64[1], y f32[1]\n"
        "  The model was trained on coded columns. With targets of your own: "
        "(model.coding.inputs(frame), y)."
    )
    uncoded = (frame[["a"]], y)
    evaluate = partial(model.evaluate, loss=lm.MSE())
    assert error_text(DataError, evaluate, uncoded) == text
    assert error_text(DataError, trained, data, validation=uncoded) == text
    refused(DataError, evaluate, lm.data.Dataset(*uncoded).subset(0, 2))
    for call, given in (
        (model.predict, lm.data.Dataset(frame[["a"]])),
        (evaluate, ((frame[["a"]],), y)),
        (partial(model.fit, loss=lm.MSE(), optimizer=lm.SGD(0.1)), uncoded),
    ):
        assert refused(DataError, call, given).problem == NOT_CODED
    whole = model.evaluate((model.coding.inputs(frame), y), loss=lm.MSE())
    assert whole == model.evaluate(model.coding.dataset(frame), loss=lm.MSE())


def test_a_fit_that_changes_nothing_keeps_the_coding(tmp_path: Path) -> None:
    model = trained(from_frame({"a": [1.0, 2.0], "y": [0.5, 1.5]}, "y"))
    coding, how = model.coding, {"loss": lm.MSE(), "optimizer": lm.SGD(0.1)}
    wider = from_frame({"b": [1.0, 2.0], "c": [1.0, 2.0], "y": [0.5, 1.5]}, "y")
    other = from_frame({"b": [1.0, 2.0], "y": [0.5, 1e30]}, "y", kinds={"y": "number"})
    for kind, data in ((ShapeError, wider), (NonFiniteError, other)):
        with pytest.warns(LaminaWarning, match="coded otherwise"):
            refused(kind, model.fit, data, **how)
        assert model.coding is coding

    class Saves(lm.Callback):
        def fit_begins(self, fit: Any) -> None:
            fit.model.save(tmp_path / "model")
            fit.stop()

    finite = from_frame({"b": [1.0, 2.0], "y": [0.5, 1.5]}, "y")
    with pytest.warns(LaminaWarning, match="coded otherwise"):
        model.fit(finite, callbacks=[Saves()], **how)
    assert model.coding is coding
    assert lm.load(tmp_path / "model").coding == finite.coding
    with pytest.warns(LaminaWarning, match="coded otherwise"):
        model.fit(finite, **how)
    assert model.coding is finite.coding


def test_a_fit_on_arrays_keeps_the_coding(tmp_path: Path) -> None:
    data = from_frame({"a": [1.0, 2.0], "y": [0.5, 1.5]}, "y")
    model, how = trained(data), {"loss": lm.MSE(), "optimizer": lm.SGD(0.1)}
    model.fit((data.inputs, data.targets), **how)
    assert model.coding is data.coding
    path = tmp_path / "checkpoint"
    model.fit([(data.inputs, data.targets)], checkpoint=path, **how)
    assert lm.load(path).coding == data.coding
    fresh = lm.Model(model.network)
    fresh.fit([(data.inputs, data.targets)], checkpoint=path, resume=True, epochs=2, **how)
    assert fresh.coding == data.coding


def test_other_columns_of_rows_are_ignored() -> None:
    model = trained(from_frame({"a": [1.0, 2.0], "y": [0.5, 1.5]}, "y"))
    expected = model.predict({"a": [3.0, 4.0]})
    rows = [{"a": np.array(3.0), "b": [1, 2]}, {"a": 4.0, "c": "x"}]
    assert (model.predict(rows) == expected).all()
    assert (model.predict({"a": 3.0, "b": [1, 2]}) == expected[:1]).all()


def test_frames_and_targets_with_words_point_to_from_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "w": ["x", "y"]})
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(2)))

    fit = partial(model.fit, loss=lm.CrossEntropy(), optimizer=lm.Adam(), epochs=1)
    text = (
        "the columns of a data frame are not coded\n"
        "  expected  arrays, or a data frame of numbers without gaps\n"
        "  found     DataFrame\n"
        "  Code them: lm.data.from_frame(frame, target='NAME'); for further frames "
        "model.coding.dataset(frame), or model.coding.inputs(frame) without targets."
    )
    gaps = pandas.DataFrame({"a": pandas.array([1, None], dtype="Int64"), "b": [1.5, 2]})
    for call, given in ((fit, (frame, [0, 1])), (model.predict, frame), (model.predict, gaps)):
        assert text in error_text(DataError, call, given)
    for words in (frame["w"], ["x", "y"], np.array(["x", "y"], object)):
        assert error_text(DTypeError, fit, (np.ones((2, 2), "float32"), words)).endswith(
            "Number the classes: numpy.unique(array, return_inverse=True)[1]; or code a table with "
            "words: lm.data.from_frame(frame, target='NAME')."
        )


def test_a_predictor_tells_how_a_frame_is_coded() -> None:
    data = from_frame(by_name({"a": [1.0, 2.0], "y": [0.5, 1.5]}), "y", standardise=True)
    model = trained(data)
    predict = model.predictor()
    pandas = pytest.importorskip("pandas")
    assert error_text(DataError, predict, pandas.DataFrame({"a": [1.0]})) == (
        "in predictor: a predictor takes arrays, not data frames\n"
        "  expected  an array\n"
        "  found     DataFrame\n"
        "  Code the frame as in training: predict(model.coding.inputs(frame)); for a model that "
        "was trained on arrays: predict(frame.to_numpy())."
    )
    error = refused(DataError, lambda: predict({"a": [1.0]}))
    assert error.advice.endswith("A predictor takes model.coding.inputs(table).")
    found = predict(model.coding.inputs({"a": [1.0]}))
    np.testing.assert_array_equal(found, model.predict({"a": [1.0]}))


# Tables that are coded separately ----------------------------------------------------------------

ADVICE = (
    "Words, classes and scales would get other numbers than in training. Code further tables as "
    "the training data: model.coding.dataset('test.csv'), train.coding.dataset(frame); or load all "
    "examples and divide them afterwards: data.split(0.8)."
)
TOWNS = {"town": ["Ulm", "Bonn", "Ulm"], "size": [1.0, 2.0, 4.0], "y": [0.5, 1.5, 2.5]}


@pytest.mark.parametrize(
    ("change", "options", "expected", "found"),
    [
        (
            *({"town": ["Ulm", "Aalen", "Ulm"]}, {}),
            *(f"words of 'town': 2; number 0 is {town!r}" for town in ("Bonn", "Aalen")),
        ),
        (
            *({"town": ["Ulm", "Bonn", "Ulm1"]}, {}),
            *("words of 'town': 2", "words of 'town': 3; number 2 is 'Ulm1'"),
        ),
        (
            *({"size": [1.0, 2.0, 6.0]}, {"standardise": True}),
            *("mean of 'size': 0.0", "mean of 'size': 3.0"),
        ),
        ({"rooms": [1.0, 2.0, 3.0]}, {}, "columns: 2", "columns: 3; number 2 is 'rooms'"),
        ({}, {"words": "index"}, "words='one-hot'", "words='index'"),
        ({"y": [1.0, 2.0, 3.0]}, {}, "kind of 'y': number", "kind of 'y': class"),
    ],
)
def test_data_that_is_coded_separately_is_refused(
    change: dict[str, Any], options: dict[str, Any], expected: str, found: str
) -> None:
    data = from_frame(TOWNS, "y")
    other = from_frame({**TOWNS, **change}, "y", **options)
    model = trained(data)
    text = (
        "the table is coded otherwise than the training data\n"
        f"  expected  {expected}\n"
        f"  found     {found}\n"
        f"  {ADVICE}"
    )
    assert text in error_text(DataError, trained, data, validation=other)
    assert text in error_text(DataError, model.evaluate, other, loss=lm.MSE())
    assert text in error_text(DataError, model.predict, other)


def test_an_equal_coding_of_another_table_is_taken() -> None:
    data, again = from_frame(TOWNS, "y"), from_frame(TOWNS, "y")
    model = trained(data, validation=again)
    assert model.evaluate(again, loss=lm.MSE()) == model.evaluate(data, loss=lm.MSE())
    model.predict(from_frame({name: TOWNS[name] for name in ("town", "size")}))
    model.fit(again, loss=lm.MSE(), optimizer=lm.SGD(0.1))


def test_a_second_fit_with_another_coding_warns(tmp_path: Path) -> None:
    data = from_frame(TOWNS, "y")
    other = from_frame({**TOWNS, "town": ["Ulm", "Aalen", "Ulm"]}, "y")
    how: dict[str, Any] = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1)}
    model = trained(data)
    text = (
        "the table is coded otherwise than the data on which the model was trained before: "
        "expected words of 'town': 2; number 0 is 'Bonn', found words of 'town': 2; number 0 is "
        f"'Aalen'. {ADVICE}"
    )
    with pytest.warns(LaminaWarning) as caught:
        model.fit(other, **how)
    assert [str(one.message) for one in caught] == [text]
    assert model.coding is other.coding
    model.fit(other, validation=other, **how)
    path = tmp_path / "checkpoint"
    model.fit(other, checkpoint=path, **how)
    with pytest.warns(LaminaWarning) as caught:
        lm.Model(model.network).fit(data, checkpoint=path, resume=True, epochs=2, **how)
    assert [str(one.message)[:33] for one in caught] == [text[:33]]


def test_a_row_without_names_is_refused() -> None:
    model = trained(from_frame(TOWNS, "y"))
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TOWNS)[["size", "town"]]
    for row, found in (([60, "Ulm"], "list"), ([60, 1.5], "list"), (frame.iloc[0], "Series")):
        assert error_text(DataError, model.predict, row) == (
            "in predict: a row of a table has no names of columns\n"
            "  expected  a dict {'town': value, 'size': value}, or a data frame\n"
            f"  found     a {found} of 2 values\n"
            "  A row by its names: model.predict({'town': value, 'size': value}). A row of a frame "
            "as a frame: frame.iloc[[0]]."
        )
    assert model.predict(frame.iloc[[0]]).shape == model.predict({"town": "Ulm", "size": 1}).shape
