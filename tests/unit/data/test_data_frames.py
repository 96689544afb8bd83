"""Data frames and tables: how words, gaps and columns of all kinds are coded."""

import datetime
import io
from functools import partial

import numpy as np
import pytest
from error_texts import error_text, refused
from frame_cases import TABLE, by_name, maker

from lamina.data import Dataset, from_frame
from lamina.data.stream import as_data, as_inputs
from lamina.errors import DataError, DefinitionError, LaminaWarning


def fault(call, *values, **options):
    return error_text((DataError, DefinitionError), call, *values, **options)


# Coding ------------------------------------------------------------------------------------------


@maker
def test_columns_of_every_kind_are_coded(make):
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
def test_words_as_indices_are_a_second_input(make):
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
def test_words_as_targets_are_class_numbers_and_unknown_ones_zeros(make):
    data = from_frame(make(TABLE), target="town")
    assert data.coding.classes == ("Bonn", "Köln", "Ulm")
    assert data.targets[:3].tolist() == [2, 0, 1]
    other = make({**TABLE, "town": ["Rom"] * 30})
    assert fault(data.coding.dataset, other) == (
        "in Coding: a target is not one of the known words of 'town'\n"
        "  expected  Bonn, Köln, Ulm\n"
        "  found     'Rom' in row 0\n"
        "  Make the coding of a table that has all classes."
    )
    one_hot = from_frame(make(TABLE), target="rent").coding
    assert one_hot.inputs(other)[:, 2:5].sum() == 0
    indexed = from_frame(make(TABLE), target="rent", words="index").coding
    assert indexed.inputs(other)[1].sum() == 0


@maker
def test_missing_numbers_are_replaced_by_a_rule(make):
    gappy, full = make({"a": [None, 1.0, 3.0]}), make({"a": [2.0, 1.0, 3.0]})
    for gaps, expected in (
        *(("mean", [[2], [1], [3]]), ("median", [[2], [1], [3]]), (-1, [[-1], [1], [3]])),
        ("indicator", [[2, 1], [1, 0], [3, 0]]),
    ):
        assert from_frame(gappy, gaps=gaps).inputs.tolist() == expected
        # The rule holds for further tables, with the numbers of the first one.
        assert from_frame(full, gaps=gaps).coding.inputs(gappy).tolist() == expected


@maker
def test_missing_numbers_are_refused_by_default_and_a_missing_word_is_a_word(make):
    table = make({"a": [None, 1.0, 3.0], "b": [1, 2, 3]})
    assert fault(from_frame, table, target="b") == (
        "in from_frame: numbers are missing in the column 'a'\n"
        "  missing  1 of 3\n"
        "  Choose in training what replaces them: gaps='mean', 'median', 'indicator' (the mean, "
        "and a feature that is 1 where a number is missing), or a number; --gaps mean on the "
        "command line."
    )
    text = fault(from_frame, table, target="a", gaps="mean")
    assert "targets are missing in the column 'a'" in text
    assert "gaps must be" in fault(from_frame, table, gaps="median-ish")
    data = from_frame(make({"town": ["Ulm", None, "Ulm"]}))
    assert data.coding.features == ("town=", "town=Ulm")
    assert data.inputs.tolist() == [[0, 1], [1, 0], [0, 1]]


@maker
def test_numbers_are_standardised(make):
    data = from_frame(make(TABLE), target="rent", standardise=True)
    scaled = data.inputs[:, [0, 1, 6]]
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-5)


def test_faults_of_tables_are_named():
    for table, target, problem in (
        ({"a": [1, 2], "b": [1]}, None, "the columns differ in length"),
        ({"a": []}, None, "the table has no rows"),
        ({}, None, "the table has no rows"),
        ({"a": [1j, 2j]}, None, "the column 'a' cannot be coded"),
        ({"a": [[1, 2], [3, 4]]}, None, "the column 'a' cannot be coded"),
        ({"a": np.array([1, "x", None], object)}, None, "the column 'a' cannot be coded"),
        ({"a": [f"{number}" for number in range(1001)]}, None, "has too many different words"),
        ({"a": [1]}, "c", "there is no column 'c'"),
        ({"age": [1], "churn": [0]}, "chrun", "Did you mean 'churn'?"),
        ({"a": [1]}, "a", "the table has no columns of inputs"),
    ):
        assert problem in fault(from_frame, table, target)
    assert fault(from_frame, "rent.csv") == (
        "in from_frame: this is the path of a file, not a data frame\n"
        "  expected  a data frame\n"
        "  found     'rent.csv'\n"
        "  Load it: lm.data.load(path, 'NAME'), with the name of the column of targets; for "
        "further tables model.coding.dataset(path)."
    )


def test_columns_of_further_tables_that_do_not_fit_are_named():
    coding = from_frame(by_name(TABLE), target="rent").coding
    for row in ({"size": [1.0], "Town": ["Ulm"]}, [{"size": 1.0, "Town": "Ulm"}]):
        assert fault(coding.inputs, row) == (
            "in Coding: columns are missing\n"
            "  missing  rooms, town, new, built\n"
            "  found    size, Town\n"
            "  Give a table with the columns with which the model was trained."
        )
    assert fault(coding.inputs, by_name({**TABLE, "size": ["1"] * 29 + ["x"]})) == (
        "in Coding: the column 'size' is of another kind\n"
        "  expected  numbers\n"
        "  found     'x' in row 29\n"
        "  Correct it, or leave it empty if the number is missing."
    )
    assert fault(coding.inputs, by_name({**TABLE, "town": [1.0] * 30})) == (
        "in Coding: the column 'town' is of another kind\n"
        "  expected  words\n"
        "  found     numbers\n"
        "  Convert it to what the model was trained on."
    )
    without = {name: values for name, values in by_name(TABLE).items() if name != "rent"}
    assert "the column of targets is missing" in fault(coding.dataset, without)


def test_names_of_columns_are_distinct(pandas):
    for frame in (
        pandas.DataFrame([[1, 2, 3]], columns=["a", "b", "a"]),
        pytest.importorskip("pyarrow").table([[1], [2], [3]], names=["a", "b", "a"]),
    ):
        assert fault(from_frame, frame) == (
            "in from_frame: the table has the column 'a' more than once\n"
            "  expected  a name for each column\n"
            "  found     a, b, a\n"
            "  Rename the columns, or leave one of them out."
        )
    for frame in ({1: [1], "1": [2]}, pandas.DataFrame([[1, 2]], columns=["1", 1])):
        assert "the column '1' more than once" in fault(from_frame, frame)


# Missing values and kinds -------------------------------------------------------------------------

GAPPY = "i,f,b,s,d\n1,1.5,True,a,2020-01-01\n,,,,\n3,2,False,b,2020-01-03\n"


@pytest.mark.parametrize("backend", ["convert_dtypes", "numpy_nullable", "pyarrow"])
def test_gaps_of_nullable_columns_of_pandas_are_filled(backend, pandas):
    if backend == "pyarrow":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    read = partial(pandas.read_csv, io.StringIO(GAPPY), parse_dates=["d"])
    frame = read().convert_dtypes() if backend == "convert_dtypes" else read(dtype_backend=backend)
    data = from_frame(frame, gaps="mean")
    assert data.coding.features == ("i", "f", "b", "s=", "s=a", "s=b", "d")
    assert data.inputs.tolist() == [
        [1, 1.5, 1, 0, 1, 0, 18262],
        [2, 1.75, 0.5, 1, 0, 0, 18263],
        [3, 2, 0, 0, 0, 1, 18264],
    ]
    assert "numbers are missing in the column 'i'" in fault(from_frame, frame)


def test_nullable_columns_by_name_decimals_and_integers_of_128_bits_are_numbers(pandas, polars):
    series = polars.Series("a", [None, 3])
    for table in (
        {"a": pandas.Series([None, 3], dtype="Int64")},
        {"a": np.array([None, np.int64(3)], object)},
        *(
            polars.DataFrame(series.cast(dtype))
            for dtype in (polars.Decimal(10, 2), polars.Int128, polars.UInt128)
        ),
    ):
        assert from_frame(table, gaps=7).inputs.tolist() == [[7], [3]]
    assert from_frame({"w": ["a", float("nan")]}).coding.features == ("w=", "w=a")
    wide = polars.Series([1, 3], dtype=polars.Int128)
    error = refused(DataError, Dataset, wide)
    assert "which has no 128-bit integer types" in str(error)
    assert error.advice == "Cast it first: series.cast(polars.Float64)."
    assert Dataset(wide.cast(polars.Float64)).inputs.tolist() == [1, 3]


def test_the_coding_decides_what_a_column_without_values_is(pandas, polars):
    integers, day = pandas.array([None], dtype="Int64"), pandas.to_datetime(pandas.Series([None]))
    types = (None, polars.Int32, polars.String)
    tables = [
        *(pandas.DataFrame({"a": column}) for column in ([np.nan], [None], integers, day)),
        *(polars.DataFrame({"a": polars.Series([None], dtype=dtype)}) for dtype in types),
        *({"a": column} for column in ([None], [""], np.array([np.nan]))),
        pytest.importorskip("pyarrow").table({"a": [None]}),
    ]
    days = np.array(["1970-01-03", "1970-01-05"], "datetime64[D]")
    for values, gaps, inputs in (
        ([1.0, 3.0], "indicator", [2, 1]),
        (["p", None], "error", [1, 0]),
        (days, "mean", [3]),
    ):
        coding = from_frame({"a": values}, gaps=gaps).coding
        for table in tables:
            assert coding.inputs(table).tolist() == [inputs]


def test_a_column_without_values_is_refused_in_training():
    empty = {"a": np.array([np.nan, np.nan])}
    for gaps, statistic in (("mean", "mean"), ("median", "median"), ("indicator", "mean")):
        assert fault(from_frame, empty | {"b": [1, 2]}, gaps=gaps) == (
            f"in from_frame: the column 'a' has no number to take the {statistic} of\n"
            "  expected  one number or more\n"
            "  found     all are missing\n"
            "  Leave it out, or give a number in place of missing ones: gaps=0."
        )
    assert "numbers are missing in the column 'a'" in fault(from_frame, empty)
    assert from_frame(empty, gaps=0).inputs.tolist() == [[0], [0]]
    assert fault(from_frame, {"a": [None, None]}, gaps="mean") == (
        "in from_frame: the column 'a' has no values\n"
        "  Leave it out, or say of what kind it is: kinds={'a': 'word'}."
    )
    assert from_frame({"a": [None]}, kinds={"a": "word"}).coding.features == ("a=",)
    assert from_frame({"a": [None]}, gaps=3, kinds={"a": "number"}).inputs.tolist() == [[3]]


@maker
def test_missing_words_as_targets_are_refused(make):
    text = (
        "targets are missing in the column 'w'\n"
        "  missing  1 of 3\n"
        "  Leave out the rows that have none."
    )
    frame = make({"a": [1, 2, 3], "w": ["x", None, "y"]})
    assert fault(from_frame, frame, "w") == f"in from_frame: {text}"
    coding = from_frame(make({"a": [1, 2], "w": ["x", "y"]}), "w").coding
    assert fault(coding.dataset, frame) == f"in Coding: {text}"
    words = pytest.importorskip("pandas").Categorical(["x", None])
    text = fault(from_frame, {"a": [1, 2], "w": words}, "w")
    assert "targets are missing in the column 'w'" in text


@maker
def test_kinds_of_columns_may_be_given(make):
    frame = make({"zip": [7, 12, 7], "y": [10, 20, 30]})
    regression = from_frame(frame, "y", kinds={"y": "number"})
    assert regression.targets.dtype == np.float32
    assert regression.targets.tolist() == [[10], [20], [30]]
    classes = from_frame(frame, "y", kinds={"zip": "word", "y": "word"})
    assert classes.coding.features == ("zip=12", "zip=7")
    assert classes.coding.classes == ("10", "20", "30")
    assert classes.inputs.tolist() == [[0, 1], [1, 0], [0, 1]]
    codes = classes.coding.inputs(make({"zip": [12.0, None, 8.0]}))
    assert codes.tolist() == [[1, 0], [0, 0], [0, 0]]
    days = from_frame(make({"d": ["1970-01-02", None]}), gaps=9, kinds={"d": "date"})
    assert days.inputs.tolist() == [[1], [9]]


def test_unfit_kinds_are_refused():
    table = {"a": ["x", "y"], "y": [1, 0.5]}
    for kinds, problem in (
        ({"b": "word"}, "there is no column 'b'"),
        ({"Y": "word"}, "Did you mean 'y'?"),
        ({"a": "class"}, "the column 'a' is an input, and has no classes"),
        ({"a": "number"}, "the column 'a' is of another kind"),
        ({"y": "date"}, "the column 'y' is of another kind"),
        ({"y": "numbers"}, "kinds['y'] must be one of 'number', 'date'"),
        ("number", "kinds must be the kinds of columns by name"),
    ):
        assert problem in fault(from_frame, table, "y", kinds=kinds)
    assert fault(from_frame, table, "y", kinds={"y": "class"}) == (
        "in from_frame: the column 'y' has numbers that are no class numbers\n"
        "  expected  whole numbers below 9,007,199,254,740,992 (2**53)\n"
        "  found     0.5 in row 1\n"
        "  Targets that are numbers: kinds={'y': 'number'}. Targets that are words: "
        "kinds={'y': 'word'}."
    )


def test_a_few_words_among_texts_of_numbers_or_dates_are_mistakes():
    sizes, days = [str(20 + n) for n in range(39)], [f"2010-01-{day:02}" for day in range(1, 11)]
    y = [n + 0.5 for n in range(40)]
    table = {"size": [*sizes, "7O"], "y": y}
    text = fault(from_frame, table, target="y")
    assert "nearly all cells of the column 'size' are numbers" in text
    assert "'7O' in row 39" in text
    assert len(from_frame(table, target="y", kinds={"size": "word"}).coding.features) == 40
    # Texts that are all numbers may be codes; texts that are all dates are dates.
    with pytest.warns(LaminaWarning, match="make numbers of them, kinds={'size': 'number'}, or"):
        codes = from_frame(table | {"size": [*sizes, "70"]}, target="y").coding.features
    assert len(codes) == 40
    assert from_frame({"built": days, "y": y[:10]}, "y").coding.features == ("built",)
    text = fault(from_frame, {"built": [*days[:-1], "soon"], "y": y[:10]}, target="y")
    assert "nearly all cells of the column 'built' are dates" in text


def test_numbers_in_a_column_of_words_are_doubted_if_they_are_unknown():
    table = {"zip": ["01067", "53111"], "y": [0.5, 1.5]}
    coding = from_frame(table, target="y").coding
    with pytest.warns(LaminaWarning) as caught:
        codes = coding.inputs({"zip": [1067, 53111]})
    assert str(caught[0].message) == (
        "the column 'zip' was learned as words with leading zeros, and holds numbers here; 1067 is "
        "none of the words. Read the column as text, or give the path of the file: "
        "model.coding.inputs(path)."
    )
    assert codes.tolist() == [[0, 0], [0, 1]]
    assert coding.inputs({"zip": [53111]}).tolist() == [[0, 1]]


def test_dates_of_python_are_dates():
    """Also of columns by name, and with a time of day; not with a time zone."""
    days = [datetime.date(1970, 1, 2), None, datetime.datetime(1970, 1, 11, 12)]
    data = from_frame({"day": days, "y": [0.5, 1.5, 2.5]}, target="y", gaps=0.0)
    assert data.coding.features == ("day",)
    assert data.inputs.tolist() == [[1.0], [0.0], [10.5]]
    zoned = datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)
    text = fault(from_frame, {"day": [zoned, zoned], "y": [0.5, 1.5]}, target="y")
    assert "dates with a time zone" in text
    assert "Remove the zone" in text


@maker
@pytest.mark.parametrize("options", [{}, {"standardise": True}, {"gaps": "mean"}])
def test_numbers_that_float32_cannot_hold_are_refused(make, options):
    table = {"a": [1.0, 3.0, 2.0], "y": [0.5, 1.5, 2.5]}
    coding = from_frame(make(table), "y", **options).coding
    for number in (np.inf, -np.inf, 1e300):
        text = (
            "the column 'a' has a number that float32 cannot hold\n"
            "  expected  numbers up to 3.4e+38\n"
            f"  found     {number:g} in row 1\n"
            "  Correct it, scale the column, or make it a missing number: NaN, or an empty cell."
        )
        frame = make(table | {"a": [1.0, number, 2.0]})
        assert fault(from_frame, frame, "y", **options) == f"in from_frame: {text}"
        assert fault(coding.inputs, frame) == f"in Coding: {text}"
        assert "'a' has a number that float32" in fault(from_frame, frame, "a", **options)


def test_integers_and_scaled_numbers_that_float32_cannot_hold_are_refused():
    assert "a number that float32 cannot hold" in fault(from_frame, {"a": [1, 10**400]})
    coding = from_frame({"a": [1e-20, 2e-20]}, standardise=True).coding
    text = fault(coding.inputs, {"a": [1e-20, 1e30]})
    assert "float32 cannot hold" in text
    assert "  found     1e+30 in row 1" in text


def test_names_of_columns_become_text(pandas):
    frame = pandas.DataFrame(np.arange(6.0).reshape(3, 2))
    assert from_frame(frame).coding.features == ("0", "1")
    for target in (1, "1", np.int64(1)):
        data = from_frame(frame, target, kinds={1: "number"})
        assert data.coding.features == ("0",)
        assert data.targets.tolist() == [[1], [3], [5]]
        assert from_frame(frame, target).targets.tolist() == [1, 3, 5]
    assert data.coding.inputs(frame).tolist() == [[0], [2], [4]]
    assert list(frame.columns) == [0, 1]
    assert from_frame({1: [1.0], "y": [0.5]}, 1).coding.features == ("y",)
    assert "target" in fault(from_frame, frame, ["1"])


def test_bools_as_text_are_taken_where_a_model_knows_bools():
    coding = from_frame({"b": [True, False], "y": [0.5, 1.5]}, "y").coding
    for words in (("True", "False"), ("true", "false"), ("TRUE", "FALSE")):
        assert coding.inputs([{"b": word} for word in words]).tolist() == [[1], [0]]
        assert coding.inputs({"b": words[0]}).tolist() == [[1]]
    text = fault(coding.inputs, {"b": ["True", "yes"]})
    assert "the column 'b' is of another kind" in text
    assert "  found     'True' in row 0" in text
    # Bools that are called words are written as in files.
    coding = from_frame({"b": [True, False]}, kinds={"b": "word"}).coding
    assert coding.features == ("b=False", "b=True")
    for value in ("True", True):
        assert coding.inputs({"b": [value]}).tolist() == [[0, 1]]


NUMBERS = "different words that look like numbers, such as"
AS_NUMBERS = "convert them to numbers, 1200.5"
DATES = "different words that look like dates, such as"


@pytest.mark.cases(
    ("texts", "doubt", "advice"),
    (["12,50", "7,25", "12,50"], f"2 {NUMBERS} '12,50'", AS_NUMBERS),
    (
        ["1,200", "3,500,000.25", None],
        f"2 {NUMBERS}",
        f"{AS_NUMBERS}, or say of a file what marks decimals, decimal='.' or decimal=','",
    ),
    (["12%", "3.5 %", "7%"], f"3 {NUMBERS} '12%'", AS_NUMBERS),
    (["$12", "€ 3.50", "£7"], f"3 {NUMBERS} '$12'", AS_NUMBERS),
    (["31.12.2024", "1.2.25"], f"2 {DATES} '31.12.2024'", "convert them to dates, 2024-12-31"),
    (["12/31/2024 10:30", "2024/1/2"], f"2 {DATES}", "convert them to dates, 2024-12-31"),
    (
        [f"id{number % 11}" for number in range(20)],
        "11 different words that hardly repeat, such as 'id0'",
        "leave it out if it numbers the rows",
    ),
)
def test_words_that_look_like_mistakes_warn(texts, doubt, advice):
    frame = {"a": texts, "y": [0.5 * number for number in range(len(texts))]}
    with pytest.warns(LaminaWarning) as caught:
        data = from_frame(frame, "y")
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(f"the column 'a' has {doubt}")
    assert message.endswith(
        f"; each becomes a feature. If that is a mistake, {advice}; otherwise say that they are "
        "words: kinds={'a': 'word'}, or --kind a=word."
    )
    assert from_frame(frame, "y", kinds={"a": "word"}).coding == data.coding
    if None not in texts:
        with pytest.warns(LaminaWarning, match="each becomes a class"):
            from_frame(frame, "a")


def test_words_that_are_no_mistakes_do_not_warn():
    names = [f"id{number}" for number in range(19)]
    for texts in (["a", "b", "c"], ["1", "2", "3"], ["1-2", "2-3"], ["a,b", "c,d"], names):
        from_frame({"a": texts})
    from_frame({"a": [*names[:10], *names[:10]]})


@pytest.mark.cases(
    ("values", "row", "scaled"),
    ([14.62] * 1000, 14.63, 0.01),
    (np.full(1000, 14.62, "f4"), 14.63, 0.01),
    ([0.1 + 0.2, 0.3, 0.3], 0.4, 0.1),
    (np.nextafter(np.full(9, 1e3, "f4"), np.arange(9, dtype="f4") * 1e3), 1001, 1),
    ([-7] * 3, -9, -2),
    ([0.0, 0.0], 3, 3),
    ([datetime.datetime(2024, 12, 31, 7)] * 3, datetime.datetime(2025, 1, 2, 7), 2),
    ([5.0, None, 5.0], 6, 1),
    # A small deviation that is no rounding.
    ([1e9, 1e9 + 2], 1e9 + 4, 3),
    (np.array([1000.0, 1000.5], "f4"), 1001, 3),
)
def test_only_a_deviation_beyond_rounding_scales_a_column(values, row, scaled):
    data = from_frame({"a": values}, standardise=True, gaps="mean")
    np.testing.assert_allclose(data.coding.inputs({"a": [row]}), scaled, rtol=1e-4, atol=1e-4)


def test_masked_elements_of_a_column_are_gaps():
    days = np.array(["1970-01-09", "1970-01-02", "1970-01-04"], "datetime64[D]")
    hidden = [np.ma.array(values, mask=[1, 0, 0]) for values in ([7.0, 1, 3], [7, 1, 3], days)]
    for values in (*hidden, [np.ma.masked, 1.0, 3.0]):
        for table in ({"a": values}, [{"a": value} for value in values]):
            assert from_frame(table, gaps="mean").inputs.tolist() == [[2], [1], [3]]
        text = fault(from_frame, {"a": values})
        assert "numbers are missing in the column 'a'\n  missing  1 of 3" in text
    assert from_frame({"a": np.ma.array([7.0, 1.0])}).inputs.tolist() == [[7], [1]]
    words = from_frame({"a": np.ma.array([*"pqr"], mask=[1, 0, 0])})
    assert words.coding.features == ("a=", "a=q", "a=r")


@pytest.mark.cases(
    ("values", "words", "codes"),
    ([10, 2, 10], ("10", "2"), [0, 1, 0]),
    ([1.5, 2.0, None], ("", "1.5", "2"), [1, 2, 0]),
    ([True, False, True], ("False", "True"), [1, 0, 1]),
    (["b", "a", None], ("", "a", "b"), [2, 1, 0]),
)
@pytest.mark.parametrize("form", ["frame", "series", "categorical", "arrow", "arrow by name"])
def test_categories_are_words_whatever_they_are(form, values, words, codes, pandas):
    if form.startswith("arrow"):
        arrow = pytest.importorskip("pyarrow")
        column = arrow.array(values).dictionary_encode()
        table = arrow.table({"a": column}) if form == "arrow" else {"a": column}
    else:
        column = pandas.Categorical(values)
        column = column if form == "categorical" else pandas.Series(column)
        table = pandas.DataFrame({"a": column}) if form == "frame" else {"a": column}
    coding = from_frame(table).coding
    assert coding.columns[0].words == words
    # Plain values of the same column have the same codes.
    for columns in (table, {"a": values}):
        assert coding.inputs(columns).argmax(axis=1).tolist() == codes


def test_a_column_or_a_lazy_frame_is_no_table(pandas, polars):
    for package in (polars, pandas):
        series = package.Series([1, 2])
        advice = "It is one column: series.to_frame() makes a data frame of it."
        assert refused(DataError, from_frame, series).advice == advice
        assert from_frame(series.to_frame()).inputs.tolist() == [[1], [2]]
    lazy = polars.LazyFrame({"a": [1, 2]})  # which is not computed
    for call in (from_frame, lambda frame: Dataset(frame, [1, 2])):
        assert refused(DataError, call, lazy).advice == "Collect it first: frame.collect()."
    assert "this is not a data frame" in fault(from_frame, lazy)
    for call in (as_data, lambda frame: as_inputs(frame, None)):
        assert "the columns of a data frame are not coded" in fault(call, lazy)
