"""Files of tables: words, dates and gaps, in Python and on the command line; their notation."""

import itertools
import json
import warnings
from dataclasses import asdict

import numpy as np
import pytest
from error_texts import error_text, refused
from frame_cases import table

import lamina as lm
from lamina.checks.stored import stored
from lamina.data import Coding, load, read_table
from lamina.errors import DataError, DefinitionError, FileFormatError, LaminaWarning

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
        for coded in (data, expected.coding.dataset(path)):
            for inputs, values in zip(coded.input_arrays, expected.input_arrays, strict=True):
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


@pytest.mark.cases(
    ("text", "doubted"),
    (",a,y\n0,7,1\n1,8,0\n2,9,1\n", True),
    (",a,y\n5,w,1\n3,w,0\n9,w,1\n", True),
    ("0,7.5,1\n1,8.5,0\n2,9.5,1\n", True),
    ("n,a,y\n0,7,1\n1,8,0\n2,9,1\n", False),
    (",a,y\n0,7,1\n0,8,0\n2,9,1\n", False),
    ("1990,7.5,1\n1991,8.5,0\n1992,9.5,1\n", False),
)
def test_a_first_column_that_numbers_the_rows_is_doubted(tmp_path, text, doubted):
    path = table(tmp_path, text)
    for options in ({}, {"standardise": True}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = load(path, **options)
        assert len(data) == 3
        told = ["numbers the rows" in str(warning.message) for warning in caught]
        assert told == [True] * doubted
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


def test_a_model_of_tables_predicts_a_file(tmp_path):
    path = table(tmp_path, "zip,size\n01067,3\n53111,\n")
    columns = {"zip": ["01067", "53111"], "size": [1.0, 2.0], "y": [0.5, 1.5]}
    data = lm.data.from_frame(columns, target="y", gaps="mean")
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(1)), seed=0)
    model.fit(data, loss=lm.MSE(), optimizer=lm.SGD(0.1), epochs=1)
    expected = model.predict({"zip": ["01067", "53111"], "size": [3.0, None]})
    for file in (path, str(path)):
        np.testing.assert_array_equal(model.predict(file), expected)
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


# The notation of files: delimiters, decimal marks, marks between thousands, quotes ----------------


@pytest.mark.cases(
    ("text", "features", "inputs"),
    ("1,5;2,25;0\n2,5;3,5;1\n", ("0", "1"), [[1.5, 2.25], [2.5, 3.5]]),
    ("size, m2;b;y\n30,5;2;0\n40;3;1\n", ("size, m2", "b"), [[30.5, 2], [40, 3]]),
    ("a;b;y\n-1,5e1;,25;0\n+2,5;NA;1\n", ("a", "b"), [[-15, 0.25], [2.5, 7]]),
    ('a,b,y\n"1,5","2,25",0\n"2,5","3",1\n', ("a", "b"), [[1.5, 2.25], [2.5, 3]]),
    ("a;w;y\n1,5;Ulm, Alb;0\n2,5;Ulm, Alb;1\n", ("a", "w=Ulm, Alb"), [[1.5, 1], [2.5, 1]]),
    ('a,w,y\n1.5,"p;q;r",0\n2.5,"p;q;r",1\n', ("a", "w=p;q;r"), [[1.5, 1], [2.5, 1]]),
    ('a,"b;c","d;e",y\n1.5,"2",3,0\n2.5,"2",4,1\n', ("a", "b;c", "d;e"), None),
    ('a,"b;c;d",y\n1.5,"p;q;r",0\n2.5,"p;q;r",1\n', ("a", "b;c;d=p;q;r"), [[1.5, 1], [2.5, 1]]),
    ("a\tb, c\ty\n1,5\t2;3\t0\n2,5\t2;3\t1\n", ("a", "b, c=2;3"), [[1.5, 1], [2.5, 1]]),
    ('a;b,w,y\n"1,5",p; q,0\n"2,5",p; q,1\n', ("a;b", "w=p; q"), [[1.5, 1], [2.5, 1]]),
    ("a|w|y\n1,5|p, q|0\n2,5|p, q|1\n", ("a", "w=p, q"), [[1.5, 1], [2.5, 1]]),
    ("sep=;\na;y\n1,5;0\n2,5;1\n", ("a",), [[1.5], [2.5]]),
    ("\n \n# 2024, by us\n\n# more\n;;\na;b;y\n1,5;2;0\n", ("a", "b"), [[1.5, 2]]),
    ("# a;b;y\n1,5;2;0\n2,5;3;1\n", ("a", "b"), [[1.5, 2], [2.5, 3]]),
    ("#;b;y\n1,5;w;0\n2,5;w;1\n", ("#", "b=w"), [[1.5, 1], [2.5, 1]]),
    ("#id;b;y\nu;1,5;0\nu;2,5;1\n", ("#id=u", "b"), [[1, 1.5], [1, 2.5]]),
    ('"a\nb";y\n1,5;0\n2,5;1\n', ("a\nb",), [[1.5], [2.5]]),
    ("a;w;y\n1,5;\u0661;0\n2,5;\uff12;1\n", ("a", "w=\u0661", "w=\uff12"), None),
    ("a;\u0663\n1,5;0\n2,5;1\n", ("a",), [[1.5], [2.5]]),
    # Where other numbers show the decimal mark, the other mark is between thousands.
    ("a;b;y\n1,5;1.200;0\n2,5;-15.000;1\n", ("a", "b"), [[1.5, 1200], [2.5, -15000]]),
    ("a;b;y\n1.5;1,200;0\n2.5;15,000;1\n", ("a", "b"), [[1.5, 1200], [2.5, 15000]]),
    ("a;y\n1.234,5;0\n12;1\n", ("a",), [[1234.5], [12]]),
    ("a;y\n1,234,567;0\n1.5;1\n", ("a",), [[1234567], [1.5]]),
    ("a;y\n1.234.567;0\n;1\n", ("a",), [[1234567], [7]]),
    ("a;y\n1 234,5;0\n1\u202f234 ;1\n", ("a",), [[1234.5], [1234]]),
    ("a;y\n1'234.5;0\n1'234'567;1\n1.5;2\n", ("a",), [[1234.5], [1234567], [1.5]]),
    ("a;w;y\n1,5;12.34.56;0\n2,5;1.2345;1\n", ("a", "w=1.2345", "w=12.34.56"), None),
    # Rows that end with a delimiter, and spaces before quotes.
    ("a;b;y\n1,5;2;0;\n2,5;;1;\n", ("a", "b"), [[1.5, 2], [2.5, 7]]),
    ("a;b;y;\n1,5;2;0;\n2,5;3;1;\n", ("a", "b"), [[1.5, 2], [2.5, 3]]),
    ("a;b;y;;\n1,5;2;0\n2,5;3;1;;;\n", ("a", "b"), [[1.5, 2], [2.5, 3]]),
    ("1,5;2;0;\n2,5;3;1;\n", ("0", "1"), [[1.5, 2], [2.5, 3]]),
    ('"a", "b, c", "y"\n"1,5", "2", 0\n"2,5", "3", 1\n', ("a", "b, c"), [[1.5, 2], [2.5, 3]]),
)
def test_delimiter_and_decimal_mark_are_found(tmp_path, text, features, inputs, recwarn):
    path = table(tmp_path, text)
    data = load(path, gaps=7)
    assert data.coding.features == features
    assert data.coding.decimal == ("." if "1.5" in text else ",")
    assert not recwarn.list
    if inputs is not None:
        assert data.inputs.tolist() == inputs
        assert data.targets.tolist() == list(range(len(inputs)))
    # They are stored with the model, and further rows are read so.
    again = stored(Coding, json.loads(json.dumps(asdict(data.coding))), "coding")
    assert (again.delimiter, again.decimal) == (data.coding.delimiter, data.coding.decimal)
    np.testing.assert_array_equal(again.inputs(path), data.inputs)


@pytest.mark.cases(
    ("text", "options", "expected"),
    # Commas in a single column of numbers are decimal.
    ("size\n1,5\n2,25\n", {}, {"size": [1.5, 2.25]}),
    ("size\n1.234,5\n", {}, {"size": [1234.5]}),
    ('"size, m"\n1,5\n', {}, {"size, m": [1.5]}),
    ("\n1,5\n2\n,5\n", {}, {"0": [1.5, 2, 0.5]}),
    ("1,5\n2,5\n", {"decimal": ","}, {"0": [1.5, 2.5]}),
    ("1,5\n2,5\n", {"decimal": "."}, {"0": [1, 2], "1": [5, 5]}),
    ("1,5\n2,5\n", {"delimiter": ","}, {"0": [1, 2], "1": [5, 5]}),
    ("1,5\n2,-5\n", {}, {"0": [1, 2], "1": [5, -5]}),
    ("1,5\n2,5.5\n", {}, {"0": [1, 2], "1": [5, 5.5]}),
    ("a,b\n1,5\n2,5\n", {}, {"a": [1, 2], "b": [5, 5]}),
    ("a,b\n1,5\n2,5\n", {"decimal": ","}, {"a": [1, 2], "b": [5, 5]}),
    ("a;b\n 1 ;x\n;y\n", {}, {"a": [1, np.nan], "b": ["x", "y"]}),
    # Several spaces align columns.
    ("  a  b \n  1  2 \n 10 20 \n", {"delimiter": " "}, {"a": [1, 10], "b": [2, 20]}),
    # An unnamed last column with a value stays, and a named one without values.
    ("a;b;\n1;2;\n3;4;5\n", {}, {"a": [1, 3], "b": [2, 4], "": [np.nan, 5]}),
    ("1;;\n3;;4\n", {}, {"0": [1, 3], "1": [None] * 2, "2": [np.nan, 4]}),
    ("a;b;c\n1;2;\n", {"kinds": {"c": "word"}}, {"a": [1], "b": [2], "c": [None]}),
)
def test_columns_are_read_as_numbers(tmp_path, text, options, expected):
    columns = read_table(table(tmp_path, text), **options)
    assert list(columns) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(columns[name], values)


def test_lines_that_are_one_number_or_two_warn(tmp_path):
    path = table(tmp_path, "1,5\n7,25\n")
    for read in (read_table, load):
        with pytest.warns(LaminaWarning) as caught:
            read(path)
        (warning,) = caught
        assert str(warning.message) == (
            "each line has two whole numbers, or one with a decimal comma, such as '1,5'. It is "
            "read as two columns. If it is one, read it so: "
            "table = lm.data.read_table(path, decimal=','); otherwise say delimiter=','."
        )


def test_a_coding_with_decimal_commas_reads_a_single_column(tmp_path):
    data = load(table(tmp_path, "0,5;1,5\n2,5;3,5\n"))
    model = lm.Model(lm.Sequential(lm.Input(1), lm.Linear(1)), seed=0)
    model.fit(data, loss=lm.MSE(), optimizer=lm.SGD(0.1), epochs=1)
    expected = model.predict(np.array([[1.5], [2.25]], "float32"))
    np.testing.assert_array_equal(model.predict(table(tmp_path, "1,5\n2,25\n")), expected)


def test_numbers_that_may_have_thousands_are_words_until_the_decimal_mark_is_known(tmp_path):
    path = table(tmp_path, "a;y\n1,250;0\n2,500;1\n")
    with pytest.warns(LaminaWarning) as caught:
        assert load(path).coding.features == ("a=1,250", "a=2,500")
    assert (
        "such as '1,250'; each becomes a feature. If that is a mistake, convert them to numbers, "
        "1200.5, or say of a file what marks decimals, decimal='.' or decimal=','; otherwise"
    ) in str(caught[0].message)
    for decimal, factor in (",", 1), (".", 1000):
        data = load(path, decimal=decimal)
        assert data.inputs.tolist() == [[1.25 * factor], [2.5 * factor]]
        assert data.coding.inputs(path).tolist() == data.inputs.tolist()
    path = table(tmp_path, "a;y\n1,250;1.250\n2,500;1.500\n")
    assert "decimal commas and decimal points" in error_text(DataError, load, path)


def test_the_decimal_mark_of_the_training_data_holds_for_further_files(tmp_path):
    coding = load(table(tmp_path, "a;b;y\n1,5;1;0\n2,5;2;1\n"), kinds={"b": "number"}).coding
    assert (coding.delimiter, coding.decimal) == (";", ",")
    # Another delimiter is found, and with it the decimals of quoted cells.
    assert coding.inputs(table(tmp_path, 'b,a\n3,"1,250"\n')).tolist() == [[1.25, 3]]
    path = table(tmp_path, "a;b\n1.5;2\n")
    text = "  expected  numbers with decimal commas\n  found     '1.5' in line 2\n"
    assert text in error_text(DataError, coding.inputs, path)
    assert coding.inputs(read_table(path, decimal=".")).tolist() == [[1.5, 2]]


def test_the_notation_is_an_option(tmp_path):
    path = table(tmp_path, "a b y\n1,250 2 0\n1,500 3 1\n")
    data = load(path, delimiter=" ", decimal=",")
    assert data.inputs.tolist() == [[1.25, 2], [1.5, 3]]
    assert data.coding.inputs(path).tolist() == data.inputs.tolist()
    assert read_table(path, delimiter=" ", decimal=",")["a"].tolist() == [1.25, 1.5]
    assert "Here it is called delimiter" in error_text(DefinitionError, load, path, sep=" ")
    path = table(tmp_path, "a;b;y\n1,5;1.5;0\n2,5;2.5;1\n")
    assert error_text(DataError, load, path) == (
        f"in {path}: the table has decimal commas and decimal points\n"
        "  commas  '1,5' in the column 'a'\n"
        "  points  '1.5' in the column 'b'\n"
        "  Say what marks decimals: decimal=',' or decimal='.', or --decimal on the command line. "
        "Numbers with the other mark are words then, unless it is one between thousands."
    )
    with pytest.warns(LaminaWarning, match=r"'b' has 2 different words that look like numbers"):
        assert load(path, decimal=",").inputs.tolist() == [[1.5, 1, 0], [2.5, 0, 1]]
    assert load(path, decimal=",", kinds={"b": "word"}).coding.features == ("a", "b=1.5", "b=2.5")
    # Columns that are said to be words decide nothing.
    assert load(path, kinds={"a": "word"}).coding.decimal == "."


@pytest.mark.cases(
    ("rows", "problem", "line"),
    ('3,"w\n4,w\n', "a quote is opened and not closed", "unexpected end of data, in line 5"),
    ('3,"4\n', "a quote is opened and not closed", "unexpected end of data, in line 4"),
    ('3,"w" x\n', "text follows the closing quote of a cell", "in line 4"),
    ('3,"w\n4,"w"\n', "text follows the closing quote of a cell", "in line 5"),
    (f"3,{'w' * 131_073}\n", "a cell is longer than is usual", "(131072), in line 4"),
)
def test_wrong_quotes_are_refused_with_their_line(tmp_path, rows, problem, line):
    for read, other in itertools.product((load, read_table), ("5", "x")):
        error = refused(FileFormatError, read, table(tmp_path, f"a,w\n1,2\n2,{other}\n{rows}"))
        assert error.problem == f"{problem}, in the row that begins in line 4"
        assert error.facts[0][1].endswith(line)
    path = table(tmp_path, 'a,b\n"1" ,2\n')
    assert "Remove spaces after a closing quote" in error_text(FileFormatError, load, path)
