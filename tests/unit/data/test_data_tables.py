"""Files of tables with words, dates and gaps, in Python and on the command line."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from cli_cases import fail, run, succeed, write
from error_texts import error_text
from frame_cases import table

import lamina as lm
from lamina.data import load, read_table
from lamina.errors import DataError, FileFormatError

TEXT = "size,town,new,rent\n30.5,Ulm,1,cheap\n52,Bonn,0,good\n41.5,,0,cheap\n"


def test_a_table_with_words_is_loaded_without_pandas(tmp_path):
    path = table(tmp_path, TEXT)
    data = load(path)
    assert data.coding.features == ("size", "town=", "town=Bonn", "town=Ulm", "new")
    assert data.coding.classes == ("cheap", "good")
    assert data.targets.tolist() == [0, 1, 0]
    for target in ("size", 0):
        assert load(path, target).targets.tolist() == [[30.5], [52.0], [41.5]]
    assert load(path, -1).coding.classes == ("cheap", "good")
    for wrong in (4, "z"):
        assert f"there is no column {wrong!r}" in error_text(DataError, load, path, wrong)
    text = error_text(DataError, load, path, 1)
    assert text.startswith(f"in {path}: targets are missing in the column 'town'\n  missing  1 of")


def test_marks_of_missing_values_are_gaps(tmp_path):
    marks = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "NaN", "nan"]
    rows = "".join(f"{mark},{mark},1\n" for mark in marks)
    path = table(tmp_path, f"a,w,y\n3,x,0\n5,y,0\n{rows}")
    data = load(path, gaps="mean")
    assert data.coding.features == ("a", "w=", "w=x", "w=y")
    assert data.inputs[2:].tolist() == [[4, 1, 0, 0]] * len(marks)
    # A table of numbers alone is refused too, and not trained with NaN.
    for mark in marks:
        for text in (f"1,2,3\n4,{mark},6\n", f"1,{mark},3\n4,5,6\n"):
            text = error_text(DataError, load, table(tmp_path, text))
            assert "numbers are missing in the column '1'" in text


def test_a_mark_is_a_word_if_it_was_one_in_training(tmp_path):
    path = table(tmp_path, "land,y\nNA,1.5\nDE,2.5\n,3.5\n")
    named = load(path, kinds={"land": "word"}).coding
    assert named.features == ("land=", "land=DE", "land=NA")
    assert named.inputs(path).tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    plain = load(path).coding
    assert plain.features == ("land=", "land=DE")
    assert plain.inputs(path).tolist() == [[1, 0], [0, 1], [1, 0]]


def test_dates_of_a_file_are_days(tmp_path):
    path = table(tmp_path, "d,y\n1970-01-02,0\n1970-01-03 12:00,1\n1970-01-04T06:00:00,0\n,1\n")
    assert read_table(path)["d"].dtype == "datetime64[us]"
    data = load(path, gaps=0)
    assert data.inputs.tolist() == [[1], [2.5], [3.25], [0]]
    assert load(path, kinds={"d": "word"}).inputs.shape == (4, 4)
    for other in ("1970-13-01", "2.1.1970", "1970-01-02T00:00:00Z", "1970"):
        values = read_table(table(tmp_path, f"d,y\n1970-01-02,0\n{other},1\n"))["d"]
        assert values.tolist() == ["1970-01-02", other]


def test_a_cell_that_spoils_a_column_is_named(tmp_path):
    rows = "".join(f"{number},{number}\n" for number in range(49))
    path = table(tmp_path, f"a b,y\n\n{rows}1.2.3,7\n")
    for read in (load, read_table):
        assert error_text(DataError, read, path) == (
            f"in {path}: nearly all cells of the column 'a b' are numbers\n"
            "  expected  numbers in all 50 cells\n"
            "  found     '1.2.3' in line 52\n"
            "  Correct the cell, or empty it if the number is missing. If the column is of words, "
            "say so: kinds={'a b': 'word'}, or --kind 'a b'=word."
        )
    assert load(path, kinds={"a b": "word"}).inputs.shape == (50, 50)
    text = error_text(DataError, load, path, kinds={"a b": "number"})
    assert "of another kind\n  expected  numbers\n  found     '1.2.3' in line 52\n" in text
    days = "".join(f"2024-01-{day},{day}\n" for day in range(10, 20))
    text = error_text(DataError, load, table(tmp_path, f"d,y\n{days}2024-02-30,1\n"))
    assert "nearly all cells of the column 'd' are dates" in text
    assert "'2024-02-30' in line 12" in text
    # Below nine in ten, the column is of words.
    few = "".join(f"{number},0\n" for number in range(8))
    assert load(table(tmp_path, f"a,y\n{few}x,1\n")).coding.features[-1] == "a=x"


def test_names_in_a_header_are_distinct(tmp_path):
    for text in ("a,b,a\n1,2,3\n", "a,b,a\n1,x,3\n"):
        assert error_text(FileFormatError, load, table(tmp_path, text)) == (
            f"in {tmp_path / 'a.csv'}: the header has the name 'a' more than once\n"
            "  expected  a name for each column\n"
            "  found     columns 0, 2, counted from 0\n"
            "  Give each column its own name in the first line."
        )


def test_a_file_is_coded_by_options_and_other_files_have_none(tmp_path):
    path = table(tmp_path, "a,w,b,y\n3,q,True,0\n,p,false,1\n8,q,,2\n4,q,true,1\n")
    columns = {"a": [3, None, 8, 4], "w": [*"qpqq"], "b": [True, False, None, True]}
    columns["y"] = [0, 1, 2, 1]
    for options in (
        {"gaps": "median"},
        {"gaps": "indicator", "kinds": {"y": "number"}},
        {"gaps": 5, "standardise": True},
        {"gaps": 0, "words": "index"},
    ):
        data, expected = load(path, **options), lm.data.from_frame(columns, "y", **options)
        assert repr(data) == repr(expected)
        assert data.coding.columns == expected.coding.columns
        assert data.coding.target == expected.coding.target
        assert data.targets.tolist() == expected.targets.tolist()
        for found in (data, expected.coding.dataset(path)):
            for inputs, values in zip(found.input_arrays, expected.input_arrays, strict=True):
                np.testing.assert_array_equal(inputs, values)
    data = load(path, gaps=0, kinds={"y": "number"}, dtype="float64")
    assert data.inputs.dtype == data.targets.dtype == np.float64
    np.savez(tmp_path / "a.npz", x=np.ones((2, 2)), y=np.ones(2))
    assert error_text(DataError, load, tmp_path / "a.npz", gaps="mean") == (
        f"in {tmp_path / 'a.npz'}: gaps is for tables, and this is no table\n"
        "  expected  gaps='error'\n"
        "  found     gaps='mean'\n"
        "  Only the columns of a .csv file are coded."
    )


@pytest.mark.parametrize(
    ("text", "doubted"),
    [
        (",a,y\n0,7,1\n1,8,0\n2,9,1\n", True),
        (",a,y\n5,w,1\n3,w,0\n9,w,1\n", True),
        ("0,7.5,1\n1,8.5,0\n2,9.5,1\n", True),
        ("n,a,y\n0,7,1\n1,8,0\n2,9,1\n", False),
        (",a,y\n0,7,1\n0,8,0\n2,9,1\n", False),
        ("1990,7.5,1\n1991,8.5,0\n1992,9.5,1\n", False),
    ],
)
def test_a_first_column_that_numbers_the_rows_is_doubted(tmp_path, text, doubted):
    path = table(tmp_path, text)
    for options in ({}, {"standardise": True}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = load(path, **options)
        assert len(data) == 3
        assert [("numbers the rows" in str(one.message)) for one in caught] == [True] * doubted
    # As a target it is no feature.
    assert load(path, 0).targets.shape[0] == 3
    if doubted:
        columns = read_table(path)
        del columns[next(iter(columns))]
        assert len(lm.data.from_frame(columns)) == 3


def test_whole_targets_that_are_not_exact_are_no_classes(tmp_path):
    numbers = [2**53, 2**53 + 1]
    path = table(tmp_path, "a,y\n" + "".join(f"{n},{n}\n" for n in numbers))
    for make in (load, lambda _, **o: lm.data.from_frame({"a": [1, 2], "y": numbers}, "y", **o)):
        for options in ({}, {"kinds": {"y": "class"}}):
            text = error_text(DataError, make, path, **options)
            assert "(2**53)\n  found     9007199254740992 in row 0\n  Targets that are nu" in text
        assert make(path, kinds={"y": "number"}).targets.dtype == np.float32
        assert make(path, kinds={"y": "word"}).coding.classes == tuple(map(str, numbers))
    assert load(table(tmp_path, f"a,y\n1,{2**53 - 1}\n")).targets.tolist() == [2**53 - 1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def network(features: int, outputs: int = 1, loss: str = "MSE") -> str:
    return (
        "import lamina as lm\n"
        f"net = lm.Sequential(lm.Input({features}), lm.Linear({outputs}))\n"
        f"loss = lm.{loss}()\n"
        "epochs = 1\n"
    )


def predicted(path: str, *options: str) -> str:
    return succeed("predict", "net.safetensors", "--data", path, *options).output


def test_the_command_line_takes_words(folder):
    table(folder, TEXT + "35,Ulm,0,cheap\n")
    write("net.py", network(5, 2, "CrossEntropy"))
    succeed("train", "net.py", "--data", "a.csv", "--validation", "a.csv")
    write("b.csv", "town,new,size\nRom,1,20\n")
    text = predicted("b.csv")
    header, scores = text.splitlines()
    assert header == "cheap,good"
    assert len(scores.split(",")) == 2
    predicted("b.csv", "--out", "s.csv")
    assert Path("s.csv").read_text() == text


def test_the_command_line_fills_gaps_and_regresses_whole_numbers(folder):
    table(folder, "a,b,rent\n1,2,10\n,3,20\n4,NA,30\n")
    write("net.py", network(2))
    command = ("train", "net.py", "--data", "a.csv", "--validation", "a.csv")
    assert "the table has no columns of inputs" in fail(*command, "--delimiter", ";")
    assert "--gaps mean on the command line" in fail(*command)
    assert "(--kind NAME=number)" in fail(*command, "--gaps", "mean")
    options = ("--gaps", "mean", "--kind", "rent=number", "--standardise")
    assert "training    3 examples: x f32[2], y f32[1]" in succeed(*command, *options).output
    model = lm.load("net.safetensors")
    expected = load("a.csv", gaps="mean", standardise=True, kinds={"rent": "number"})
    assert model.coding == expected.coding
    header, *scores = predicted("a.csv").splitlines()
    assert header == "rent"
    np.testing.assert_allclose(
        np.array(scores, "float32"), model.predict(expected.inputs)[:, 0], rtol=1e-6
    )
    succeed("verify", "net.py", "--data", "a.csv", "--batch-size", 3, *options)
    succeed("train", "net.py", "--data", "a.csv", "--gaps", "0.5", "--kind", "rent=number")
    assert [column.gap for column in lm.load("net.safetensors").coding.columns] == [0.5, 0.5]


def test_new_rows_of_words_may_be_numbers_or_empty_and_other_columns_hold_anything(folder):
    table(folder, "house,n,y\n12a,1,0.5\n007,2,1.5\n12a,,1\n")
    write("net.py", network(3))
    succeed("train", "net.py", "--data", "a.csv", "--gaps", "mean")
    coding = lm.load("net.safetensors").coding
    assert coding.features == ("house=007", "house=12a", "n")
    for rows, inputs in (("007,\n", [1, 0, 1.5]), (",3\n", [0, 0, 3])):
        write("b.csv", f"house,n\n{rows}")
        assert coding.inputs("b.csv").tolist() == [inputs]
    write("b.csv", "house,n\n12a,many\n")
    message = fail("predict", "net.safetensors", "--data", "b.csv")
    assert "the column 'n' is of another kind" in message
    assert "'many' in line 2" in message
    rows = "".join(f"{number},12a,{number},?\n" for number in range(20))
    write("b.csv", f"id,house,n,y\n{rows}x,007,1,\n")
    assert len(predicted("b.csv").splitlines()) == 22


def test_one_column_is_a_table_for_a_model_of_one_feature(folder):
    table(folder, "a,y\n1,2.5\n2,3.5\n")
    write("net.py", network(1))
    succeed("train", "net.py", "--data", "a.csv")
    write("one.csv", "a\n1\n2\n")
    with_targets = predicted("a.csv")
    assert predicted("one.csv") == predicted("a.csv", "--targets", "y") == with_targets
    write("one.csv", "a\n1\n?\n")
    assert fail("predict", "net.safetensors", "--data", "one.csv") == (
        "DataError in one.csv: the column 'a' has an entry that is not a number, and the model was "
        "trained on numbers\n"
        "  expected  numbers\n"
        "  found     '?' in line 3\n"
        "  Correct it, or train on a table with such entries.\n"
    )
    succeed("train", "net.py", "--data", "a.csv", "--kind", "y=number")
    assert predicted("a.csv").startswith("y\n")


def test_wrong_options_of_tables_are_wrong_usage(folder):
    write("net.py", network(1))
    for option in ("rent", "rent=", "rent=numbers"):
        message = fail("train", "net.py", "--data", "a.csv", "--kind", option, status=2)
        assert f"{option!r} is not NAME=KIND with one of the kinds number, date" in message
    message = fail("train", "net.py", "--data", "digits", "--gaps", "mean", status=2)
    assert "digits is no table" in message
    assert run("train", "net.py", "--data", "a.csv", "--words", "hot").exit_code == 2
    table(folder, "a,y\n1,2\n")
    assert "gaps must be" in fail("train", "net.py", "--data", "a.csv", "--gaps", "average")


def test_a_model_of_tables_predicts_a_file(tmp_path):
    path = table(tmp_path, "zip,size\n01067,3\n53111,\n")
    columns = {"zip": ["01067", "53111"], "size": [1.0, 2.0], "y": [0.5, 1.5]}
    data = lm.data.from_frame(columns, target="y", gaps="mean")
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(1)), seed=0)
    model.fit(data, loss=lm.MSE(), optimizer=lm.SGD(0.1), epochs=1)
    expected = model.predict({"zip": ["01067", "53111"], "size": [3.0, None]})
    for given in (path, str(path)):
        np.testing.assert_array_equal(model.predict(given), expected)
    other = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(1)))
    assert error_text(DataError, other.predict, "rows.csv") == (
        "in predict: predict takes arrays, not the path of a file\n"
        "  expected  an array\n"
        "  found     'rows.csv'\n"
        "  Read the file: lm.data.load(path).inputs, or numpy.load(path)."
    )


def test_cells_that_are_infinite_are_refused(tmp_path):
    path = table(tmp_path, "a,b,y\n1,2,0.5\n3,inf,1.5\n")
    for options in ({}, {"standardise": True}):
        text = error_text(DataError, load, path, **options)
        assert "the column 'b' has a number that float32 cannot hold" in text
        assert "  found     inf in line 3\n" in text
    text = error_text(DataError, load, table(tmp_path, "a,b,y\n1,2,0.5\n3,1e39,1.5\nx,4,2.5\n"))
    assert "the column 'b' has a number that float32" in text


def test_cells_that_are_bools_are_numbers(tmp_path):
    path = table(tmp_path, "b,y\nTrue,0.5\nFalse,1.5\nTrue,2.5\n")
    assert load(path).coding.features == ("b",)
    assert load(path, "b").targets.tolist() == [1, 0, 1]
    assert load(path, "b", kinds={"b": "word"}).coding.classes == ("False", "True")
