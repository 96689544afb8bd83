"""Data frames and tables with words and gaps: how they are coded, and stored with models."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_cases import run

import lamina as lm
from lamina.data import Coding, from_frame, load, read_table
from lamina.errors import DataError, DefinitionError, DTypeError, FileFormatError

DAYS = [datetime.date(1970, 1, 11), datetime.date(1970, 1, 2), datetime.date(1969, 12, 31)] * 10
TABLE: dict[str, list[Any]] = {
    "size": [30.5, 52.0, 41.5] * 10,
    "rooms": [1, 2, 3] * 10,
    "town": ["Ulm", "Bonn", "Köln"] * 10,
    "new": [True, False, False] * 10,
    "built": DAYS,
    "rent": [1.25, 2.5, 0.75] * 10,
}


def pandas_frame(table: dict[str, list[Any]]) -> Any:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table)
    if "built" in table:
        frame["built"] = pandas.to_datetime(frame["built"])
    return frame


def polars_frame(table: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(table)


def arrow_table(table: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pyarrow").table(table)


def by_name(table: dict[str, list[Any]]) -> Any:
    found: dict[str, Any] = dict(table)
    if "built" in found:
        found["built"] = np.array(found["built"], "datetime64[D]")
    return found


MAKERS = (pandas_frame, polars_frame, arrow_table, by_name)
maker = pytest.mark.parametrize("make", MAKERS, ids=[one.__name__ for one in MAKERS])
Maker = Callable[[dict[str, list[Any]]], Any]


# Coding ------------------------------------------------------------------------------------------


@maker
def test_columns_of_every_kind_are_coded(make: Maker) -> None:
    data = from_frame(make(TABLE), target="rent")
    names = ("size", "rooms", "town=Bonn", "town=Köln", "town=Ulm", "new", "built")
    assert data.coding.features == names
    assert data.inputs.dtype == np.float32
    assert data.inputs[:3].tolist() == [
        [30.5, 1, 0, 0, 1, 1, 10],
        [52.0, 2, 1, 0, 0, 0, 1],
        [41.5, 3, 0, 1, 0, 0, -1],
    ]
    assert data.targets.dtype == np.float32
    assert data.targets[:2].tolist() == [[1.25], [2.5]]


@maker
def test_words_as_indices_are_a_second_input(make: Maker) -> None:
    data = from_frame(make(TABLE), target="rooms", words="index")
    numbers, towns = data.inputs
    assert numbers.shape == (30, 4)
    assert towns[:3].tolist() == [[3], [1], [2]]
    assert data.targets.dtype == np.int64
    assert data.targets[:3].tolist() == [1, 2, 3]
    only = from_frame(make({"town": TABLE["town"]}), words="index")
    assert only.inputs.shape == (30, 1)
    assert only.targets is None


@maker
def test_words_as_targets_are_class_numbers(make: Maker) -> None:
    data = from_frame(make(TABLE), target="town")
    assert data.coding.classes == ("Bonn", "Köln", "Ulm")
    assert data.targets[:3].tolist() == [2, 0, 1]


@maker
def test_unknown_words_are_zeros_or_index_0(make: Maker) -> None:
    other = make({**TABLE, "town": ["Rom"] * 30})
    one_hot = from_frame(make(TABLE), target="rent").coding
    assert one_hot.inputs(other)[:, 2:5].sum() == 0
    indexed = from_frame(make(TABLE), target="rent", words="index").coding
    assert indexed.inputs(other)[1].sum() == 0
    classes = from_frame(make(TABLE), target="town").coding
    with pytest.raises(DataError) as caught:
        classes.dataset(other)
    assert str(caught.value) == (
        "in Coding: a target is not one of the known words of 'town'\n"
        "  expected  Bonn, Köln, Ulm\n"
        "  found     'Rom' in row 0\n"
        "  Make the coding of a table that has all classes."
    )


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ("mean", [[2.0], [1.0], [3.0]]),
        ("median", [[2.0], [1.0], [3.0]]),
        (-1, [[-1], [1], [3]]),
        ("indicator", [[2, 1], [1, 0], [3, 0]]),
    ],
)
@maker
def test_missing_numbers_are_replaced_by_a_rule(make: Maker, gaps: Any, expected: Any) -> None:
    data = from_frame(make({"a": [None, 1.0, 3.0]}), gaps=gaps)
    assert data.inputs.tolist() == expected
    # The rule holds for further tables, with the numbers of the first one.
    whole = from_frame(make({"a": [2.0, 1.0, 3.0]}), gaps=gaps)
    assert whole.coding.inputs(make({"a": [None, 1.0, 3.0]})).tolist() == expected


@maker
def test_missing_numbers_are_refused_by_default(make: Maker) -> None:
    table = make({"a": [None, 1.0, 3.0], "b": [1, 2, 3]})
    with pytest.raises(DataError) as caught:
        from_frame(table, target="b")
    assert str(caught.value) == (
        "in from_frame: numbers are missing in the column 'a'\n"
        "  missing  1 of 3\n"
        "  Choose what replaces them: gaps='mean', 'median', 'indicator' (the mean, and a feature "
        "that is 1 where a number is missing), or a number."
    )
    with pytest.raises(DataError, match="targets are missing in the column 'a'"):
        from_frame(table, target="a", gaps="mean")
    with pytest.raises(DefinitionError, match="gaps must be"):
        from_frame(table, gaps="median-ish")


@maker
def test_a_missing_word_is_a_word(make: Maker) -> None:
    data = from_frame(make({"town": ["Ulm", None, "Ulm"]}))
    assert data.coding.features == ("town=", "town=Ulm")
    assert data.inputs.tolist() == [[0, 1], [1, 0], [0, 1]]


@maker
def test_numbers_are_standardised(make: Maker) -> None:
    data = from_frame(make(TABLE), target="rent", standardise=True)
    scaled = data.inputs[:, [0, 1, 6]]
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-5)
    constant = from_frame(make({"a": [2.0, 2.0]}), standardise=True)
    assert constant.inputs.tolist() == [[0.0], [0.0]]


def test_faults_of_tables_are_named() -> None:
    for table, problem in (
        ({"a": [1, 2], "b": [1]}, "the columns differ in length"),
        ({"a": []}, "the table has no rows"),
        ({}, "the table has no rows"),
        ({"a": [1j, 2j]}, "the column 'a' cannot be coded"),
        ({"a": [[1, 2], [3, 4]]}, "the column 'a' cannot be coded"),
        ({"a": np.array([1, "x", None], object)}, "the column 'a' cannot be coded"),
        ({"a": [f"{number}" for number in range(1001)]}, "has too many different words"),
    ):
        with pytest.raises(DataError, match=problem):
            from_frame(table)
    with pytest.raises(DataError, match="there is no column 'c'"):
        from_frame({"a": [1]}, target="c")
    with pytest.raises(DataError, match="the table has no columns of inputs"):
        from_frame({"a": [1]}, target="a")
    coding = from_frame(by_name(TABLE), target="rent").coding
    with pytest.raises(DataError) as caught:
        coding.inputs({"size": [1.0], "town": ["Ulm"]})
    assert str(caught.value) == (
        "in Coding: columns are missing\n"
        "  missing  rooms, new, built\n"
        "  found    size, town\n"
        "  Give a table with the columns with which the model was trained."
    )
    with pytest.raises(DataError, match="the column 'size' is of another kind"):
        coding.inputs(by_name({**TABLE, "size": ["x"] * 30}))
    with pytest.raises(DataError, match="the column of targets is missing"):
        coding.dataset({name: values for name, values in by_name(TABLE).items() if name != "rent"})


# Models ------------------------------------------------------------------------------------------


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


def test_columns_by_name_without_a_coding_are_refused() -> None:
    model = lm.Model(lm.Sequential(lm.Input(1), lm.Linear(1)))
    with pytest.raises(DataError) as caught:
        model.predict({"a": [1.0]})
    assert "for a model that was trained on lm.data.from_frame(...)." in caught.value.advice
    with pytest.raises(DataError, match="the columns of a data frame are not coded") as caught:
        model.evaluate({"a": [1.0]}, lm.MSE())
    assert "Arrays by the names of inputs are lm.data.Dataset(" in caught.value.advice
    assert (
        trained(lm.data.Dataset(np.ones((4, 1), "float32"), np.ones((4, 1), "float32"))).coding
        is None
    )


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


def test_frames_and_targets_with_words_point_to_from_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "w": ["x", "y"]})
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(2)))

    def fit(x: Any, y: Any) -> None:
        model.fit((x, y), loss=lm.CrossEntropy(), optimizer=lm.Adam(), epochs=1)

    text = (
        "the columns of a data frame are not coded\n"
        "  expected  arrays, or a data frame of numbers without gaps\n"
        "  found     DataFrame\n"
        "  Code them: lm.data.from_frame(frame, target='NAME'); for further frames "
        "model.coding.dataset(frame), or model.coding.inputs(frame) without targets."
    )
    gaps = pandas.DataFrame({"a": pandas.array([1, None], dtype="Int64"), "b": [1.5, 2]})
    for call in (
        lambda: fit(frame, [0, 1]),
        lambda: model.predict(frame),
        lambda: model.predict(gaps),
    ):
        with pytest.raises(DataError) as caught:
            call()
        assert text in str(caught.value)
    for words in (frame["w"], ["x", "y"], np.array(["x", "y"], object)):
        with pytest.raises(DTypeError) as dtype:
            fit(np.ones((2, 2), "float32"), words)
        assert str(dtype.value).endswith(
            "Number the classes: numpy.unique(array, return_inverse=True)[1]; or code a table with "
            "words: lm.data.from_frame(frame, target='NAME')."
        )


def test_a_predictor_tells_how_a_frame_is_coded() -> None:
    data = from_frame(by_name({"a": [1.0, 2.0], "y": [0.5, 1.5]}), "y", standardise=True)
    model = trained(data)
    predict = model.predictor()
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError) as caught:
        predict(pandas.DataFrame({"a": [1.0]}))
    assert str(caught.value) == (
        "in predictor: a predictor takes arrays, not data frames\n"
        "  expected  an array\n"
        "  found     DataFrame\n"
        "  Code the frame as in training: predict(model.coding.inputs(frame)); for a model that "
        "was trained on arrays: predict(frame.to_numpy())."
    )
    found = predict(model.coding.inputs({"a": [1.0]}))
    np.testing.assert_array_equal(found, model.predict({"a": [1.0]}))


def test_a_coding_is_plain_data() -> None:
    coding = from_frame(by_name(TABLE), target="town", gaps="indicator", standardise=True).coding
    assert Coding.of(coding.notes()) == coding


# Files -------------------------------------------------------------------------------------------

TEXT = "size,town,new,rent\n30.5,Ulm,1,cheap\n52,Bonn,0,good\n41.5,,0,cheap\n"


def test_a_table_with_words_is_loaded_without_pandas(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TEXT, encoding="utf-8")
    data = load(path)
    assert data.coding.features == ("size", "town=", "town=Bonn", "town=Ulm", "new")
    assert data.coding.classes == ("cheap", "good")
    assert data.targets.tolist() == [0, 1, 0]
    assert load(path, "size").targets.tolist() == [[30.5], [52.0], [41.5]]
    assert load(path, 1).coding.classes == ("", "Bonn", "Ulm")


def test_columns_of_a_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a;b\n 1 ;x\n;y\n", encoding="utf-8")
    table = read_table(path)
    assert list(table) == ["a", "b"]
    np.testing.assert_array_equal(table["a"], [1.0, np.nan])
    assert table["b"].tolist() == ["x", "y"]
    path.write_text("1,2\n3,4\n", encoding="utf-8")
    assert {name: one.tolist() for name, one in read_table(path).items()} == {
        "0": [1.0, 3.0],
        "1": [2.0, 4.0],
    }
    path.write_text("a,b\n1,2\n3\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match="line 3 has another number of columns"):
        read_table(path)


def test_empty_entries_of_a_file_are_refused_with_the_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n,4\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load(path)
    assert "numbers are missing in the column 'a'" in str(caught.value)
    assert "gaps='mean'" in str(caught.value)


def test_the_command_line_takes_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(TEXT * 1 + "35,Ulm,0,cheap\n", encoding="utf-8")
    Path("net.py").write_text(
        "import lamina as lm\n"
        "net = lm.Sequential(lm.Input(5), lm.Linear(2))\n"
        "loss = lm.CrossEntropy()\n",
        encoding="utf-8",
    )
    done = run("train", "net.py", "--data", "a.csv", "--validation", "a.csv", "--epochs", "1")
    assert done.exit_code == 0, done.output
    Path("b.csv").write_text("town,new,size\nRom,1,20\n", encoding="utf-8")
    done = run("predict", "net.safetensors", "--data", "b.csv")
    assert done.exit_code == 0, done.output
    assert len(done.output.strip().split(",")) == 2
