"""The notation of tables in files: delimiters, decimal marks, marks between thousands, quotes."""

import itertools
import json

import numpy as np
import pytest
from error_texts import error_text, refused
from frame_cases import table

import lamina as lm
from lamina.data import Coding, load, read_table
from lamina.errors import DataError, DefinitionError, FileFormatError, LaminaWarning


@pytest.mark.parametrize(
    ("text", "features", "inputs"),
    [
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
    ],
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
    stored = Coding.of(json.loads(json.dumps(data.coding.notes())))
    assert (stored.delimiter, stored.decimal) == (data.coding.delimiter, data.coding.decimal)
    np.testing.assert_array_equal(stored.inputs(path), data.inputs)


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
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
    ],
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


@pytest.mark.parametrize(
    ("rows", "problem", "line"),
    [
        ('3,"w\n4,w\n', "a quote is opened and not closed", "unexpected end of data, in line 5"),
        ('3,"4\n', "a quote is opened and not closed", "unexpected end of data, in line 4"),
        ('3,"w" x\n', "text follows the closing quote of a cell", "in line 4"),
        ('3,"w\n4,"w"\n', "text follows the closing quote of a cell", "in line 5"),
        (f"3,{'w' * 131_073}\n", "a cell is longer than is usual", "(131072), in line 4"),
    ],
)
def test_wrong_quotes_are_refused_with_their_line(tmp_path, rows, problem, line):
    for read, other in itertools.product((load, read_table), ("5", "x")):
        error = refused(FileFormatError, read, table(tmp_path, f"a,w\n1,2\n2,{other}\n{rows}"))
        assert error.problem == f"{problem}, in the row that begins in line 4"
        assert error.facts[0][1].endswith(line)
    path = table(tmp_path, 'a,b\n"1" ,2\n')
    assert "Remove spaces after a closing quote" in error_text(FileFormatError, load, path)
