"""Models that take tables: the coding is theirs, and stored with them."""

import copy
from functools import partial

import numpy as np
import pytest
from error_texts import error_text, refused
from frame_cases import TABLE, by_name, maker

import lamina as lm
from lamina.data import from_frame
from lamina.errors import DataError, DTypeError, LaminaWarning, NonFiniteError, ShapeError

NOT_CODED = "the columns of a data frame are not coded"


HOW = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), "progress": False}


def trained(data, **how):
    model = lm.Model(lm.Sequential(lm.Input(data.inputs.shape[1]), lm.Linear(1)))
    model.fit(data, **(HOW | {"optimizer": lm.Adam(0.01)} | how))
    return model


@maker
def test_a_model_takes_the_frame_after_loading(make, tmp_path):
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


@pytest.mark.cases(
    ("words", "advice"),
    ("one-hot", "The table needs lm.Input(3): size, town=Bonn, town=Ulm."),
    ("index", "The table needs lm.Input(1): size; and lm.Input(1, dtype='int64'): town."),
)
def test_a_network_of_another_size_is_told_the_features(words, advice):
    table = {"size": [30, 52], "town": ["Ulm", "Bonn"], "rent": [1.5, 2]}
    data = from_frame(table, "rent", words=words)
    model = lm.Model(lm.Sequential(lm.Input(13), lm.Linear(1)))
    for call in (partial(model.fit, optimizer=lm.SGD(0.1)), model.evaluate):
        assert refused((DataError, ShapeError), call, data, loss=lm.MSE()).advice == advice


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_a_missing_number_of_a_frame_is_named_by_its_column(package):
    columns = {"a": [1.0, 2.0, 3.0], "b": [1.0, float("nan"), 3.0]}
    module = pytest.importorskip(package)
    frame = module.table(columns) if package == "pyarrow" else module.DataFrame(columns)
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
    data = lm.data.Dataset(frame, np.ones((3, 1)), dtype="float32")
    error = refused(NonFiniteError, model.fit, data, loss=lm.MSE(), optimizer=lm.SGD(0.1))
    assert ("data", "input 0 is not finite at example 1, column 'b'") in error.facts


@pytest.mark.cases(
    "make_part",
    lambda net: lm.Network(net.inputs, lm.Softmax()(net.outputs[0])),
    lambda net: lm.Sequential(lm.Input(3), net, lm.Softmax()),
    ids=["of outputs", "after it"],
)
@pytest.mark.parametrize("when", ["before", "after", "loaded"])
def test_a_part_takes_the_tables_of_the_whole(make_part, when, tmp_path):
    table = {"size": [30, 52, 7], "town": ["Ulm", "Bonn", "Ulm"], "kind": ["a", "b", "b"]}
    data = from_frame(table, "kind")
    net = lm.Sequential(lm.Input(3), lm.Linear(2))
    model = lm.Model(net)
    part = model.part(make_part(net)) if when == "before" else None
    model.fit(data, **(HOW | {"loss": lm.CrossEntropy()}))
    if when == "loaded":
        model.save(tmp_path / "model")
        model = lm.load(tmp_path / "model")
    part = part or model.part(make_part(model.network))
    scores = np.exp(model.predict(data.inputs))
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    for examples in (table, rows, data):
        expected = scores / scores.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(part.predict(examples), expected, rtol=1e-5)
    part.save(tmp_path / "part")
    assert lm.load(tmp_path / "part").coding == data.coding
    assert copy.deepcopy(part).coding == data.coding


def test_a_part_has_the_coding_and_the_order_of_its_own_inputs(tmp_path):
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
        coded = part.coding.dataset(table)
        assert part.evaluate(coded, lm.MSE()) == model.evaluate(data, lm.MSE())
    assert again.coding == data.coding
    assert "expected  indices_first=True" in error_text(DataError, swapped.predict, data)


def test_columns_and_rows_without_a_coding_are_refused():
    array = np.ones((4, 1), "float32")
    model, rows = trained(lm.data.Dataset(array, array)), [{"a": 1.0}, {"a": 2.0}]
    assert model.coding is None
    error = refused(DataError, model.predict, {"a": [1.0]})
    assert "for a model that was trained on lm.data.from_frame(...)." in error.advice
    evaluate = partial(model.evaluate, loss=lm.MSE())
    error = refused(DataError, evaluate, {"a": [1.0]})
    assert error.problem == NOT_CODED
    assert "Arrays by the names of inputs are lm.data.Dataset(" in error.advice
    for call in (model.predict, evaluate, lambda rows: model.network.plan(2, data=rows)):
        assert refused(DataError, call, rows).problem == NOT_CODED


def test_a_frame_of_numbers_is_an_array_for_a_model_that_was_trained_on_arrays(pandas, polars):
    inputs = pandas.DataFrame({"a": [1.0, 2.0], "b": [3, 4]})
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)), dtype="float64")
    model.fit((inputs, np.array([[0.5], [1.5]], "float32")), **HOW)
    expected = model.predict(np.array([[1.0, 3.0], [2.0, 4.0]]))
    for frame in (inputs, inputs.convert_dtypes(), polars.from_pandas(inputs)):
        np.testing.assert_array_equal(model.predict(frame), expected)


def test_rows_are_a_table():
    table = {name: TABLE[name] for name in ("size", "town", "rent")}
    data = from_frame(by_name(table), target="rent", gaps="mean")
    columns = {"size": [38.0, np.nan], "town": ["Ulm", "Rom"]}
    rows = [{"size": 38.0, "town": "Ulm"}, {"size": None, "town": "Rom"}]
    model = trained(data)
    for call in (data.coding.inputs, model.predict):
        expected = call(columns)
        np.testing.assert_array_equal(call(rows), expected)
        np.testing.assert_allclose(call(rows[0]), expected[:1], rtol=1e-6)
    # Other columns are ignored.
    expected = model.predict({"size": [3.0, 4.0], "town": ["Ulm", "Rom"]})
    more = [{"size": np.array(3.0), "town": "Ulm", "b": [1, 2]}, {**rows[1], "size": 4.0, "c": 0}]
    np.testing.assert_array_equal(model.predict(more), expected)
    np.testing.assert_allclose(model.predict(more[0] | {"size": 3.0}), expected[:1], rtol=1e-6)
    labelled = [{**row, "rent": 1.5} for row in rows]
    assert len(data.coding.dataset(labelled)) == 2
    again = from_frame(labelled, "rent", gaps="mean")
    assert again.coding.features == ("size", "town=Rom", "town=Ulm")


def test_rows_of_other_columns_are_refused():
    rows = [{"size": 1.0, "rent": 0.5}, {"size": 2.0, "rent": 1.5}]
    coding = from_frame(rows, "rent").coding
    for error in (
        refused(DataError, coding.inputs, [{"size": 3.0}, {"width": 4.0}]),
        refused(DataError, from_frame, [*rows, {"size": 3.0}], "rent"),
    ):
        assert error.problem == "the rows differ in their columns"
        assert error.advice == "Give all values in each row; a missing one is None."


def test_a_frame_that_is_not_coded_is_refused_by_a_model_that_codes(pandas):
    frame = pandas.DataFrame({"a": [1.0, 2.0, 4.0], "y": [0.5, 1.5, 3.5]})
    data = from_frame(frame, "y", standardise=True)
    model, y = trained(data), frame[["y"]].to_numpy("float32")
    uncoded, evaluate = (frame[["a"]], y), partial(model.evaluate, loss=lm.MSE())
    for call in (evaluate, lambda validation: trained(data, validation=validation)):
        assert error_text(DataError, call, uncoded) == (
            "the columns of a data frame are not coded\n"
            "  expected  model.coding.dataset(frame)\n"
            "  found     3 examples: x f64[1], y f32[1]\n"
            "  The model was trained on coded columns. With targets of your own: "
            "(model.coding.inputs(frame), y)."
        )
    for call, examples in (
        (evaluate, lm.data.Dataset(*uncoded).subset(0, 2)),
        (model.predict, lm.data.Dataset(frame[["a"]])),
        (evaluate, ((frame[["a"]],), y)),
        (partial(model.fit, **HOW), uncoded),
    ):
        assert refused(DataError, call, examples).problem == NOT_CODED
    coded = model.evaluate((model.coding.inputs(frame), y), loss=lm.MSE())
    assert coded == model.evaluate(model.coding.dataset(frame), loss=lm.MSE())


def test_a_fit_that_changes_nothing_keeps_the_coding(tmp_path):
    model = trained(from_frame({"a": [1.0, 2.0], "y": [0.5, 1.5]}, "y"))
    coding = model.coding
    wider = from_frame({"b": [1.0, 2.0], "c": [1.0, 2.0], "y": [0.5, 1.5]}, "y")
    other = from_frame({"b": [1.0, 2.0], "y": [0.5, 1e30]}, "y", kinds={"y": "number"})
    for kind, data in ((ShapeError, wider), (NonFiniteError, other)):
        with pytest.warns(LaminaWarning, match="coded otherwise"):
            refused(kind, model.fit, data, **HOW)
        assert model.coding is coding

    class Saves(lm.Callback):
        def fit_begins(self, fit):
            fit.model.save(tmp_path / "model")
            fit.stop()

    finite = from_frame({"b": [1.0, 2.0], "y": [0.5, 1.5]}, "y")
    for callbacks, kept in (([Saves()], coding), ([], finite.coding)):
        with pytest.warns(LaminaWarning, match="coded otherwise"):
            model.fit(finite, callbacks=callbacks, **HOW)
        assert model.coding is kept
        assert lm.load(tmp_path / "model").coding == finite.coding


def test_a_fit_on_arrays_keeps_the_coding(path):
    data = from_frame({"a": [1.0, 2.0], "y": [0.5, 1.5]}, "y")
    model, arrays = trained(data), (data.inputs, data.targets)
    model.fit(arrays, **HOW)
    assert model.coding is data.coding
    model.fit([arrays], checkpoint=path, **HOW)
    assert lm.load(path).coding == data.coding
    fresh = lm.Model(model.network)
    fresh.fit([arrays], checkpoint=path, resume=True, epochs=2, **HOW)
    assert fresh.coding == data.coding


def test_frames_and_targets_with_words_point_to_from_frame(pandas):
    frame = pandas.DataFrame({"a": [1.0, 2.0], "w": ["x", "y"]})
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(2)))
    fit = partial(model.fit, **(HOW | {"loss": lm.CrossEntropy()}))
    gaps = pandas.DataFrame({"a": pandas.array([1, None], dtype="Int64"), "b": [1.5, 2]})
    for call, data in ((fit, (frame, [0, 1])), (model.predict, frame), (model.predict, gaps)):
        assert error_text(DataError, call, data).endswith(
            "the columns of a data frame are not coded\n"
            "  expected  arrays, or a data frame of numbers without gaps\n"
            "  found     DataFrame\n"
            "  Code them: lm.data.from_frame(frame, target='NAME'); for further frames "
            "model.coding.dataset(frame), or model.coding.inputs(frame) without targets."
        )
    for words in (frame["w"], ["x", "y"], np.array(["x", "y"], object)):
        assert error_text(DTypeError, fit, (np.ones((2, 2), "float32"), words)).endswith(
            "Number the classes: numpy.unique(array, return_inverse=True)[1]; or code a table with "
            "words: lm.data.from_frame(frame, target='NAME')."
        )
    for text in ([["1.5", "2"], ["3", "4"]], np.ones((2, 2)).astype(str)):
        assert error_text(DTypeError, fit, (text, [0, 1])).endswith(
            "Convert first: array.astype('float32'); or code a table with words: "
            "lm.data.from_frame(frame, target='NAME')."
        )


def test_a_predictor_tells_how_a_frame_is_coded(pandas):
    table = {"a": [1.0]}
    model = trained(from_frame({"a": [1.0, 2.0], "y": [0.5, 1.5]}, "y", standardise=True))
    predict = model.predictor()
    assert error_text(DataError, predict, pandas.DataFrame(table)) == (
        "in predictor: a predictor takes arrays, not data frames\n"
        "  expected  an array\n"
        "  found     DataFrame\n"
        "  Code the frame as in training: predict(model.coding.inputs(frame)); for a model that "
        "was trained on arrays: predict(frame.to_numpy())."
    )
    error = refused(DataError, predict, table)
    assert error.advice.endswith("A predictor takes model.coding.inputs(table).")
    predictions = predict(model.coding.inputs(table))
    np.testing.assert_array_equal(predictions, model.predict(table))


# Tables that are coded separately ----------------------------------------------------------------

ADVICE = (
    "Words, classes and scales would get other numbers than in training. Code further tables as "
    "the training data: model.coding.dataset('test.csv'), train.coding.dataset(frame); or load all "
    "examples and divide them afterwards: data.split(0.8)."
)
TOWNS = {"town": ["Ulm", "Bonn", "Ulm"], "size": [1.0, 2.0, 4.0], "y": [0.5, 1.5, 2.5]}


@pytest.mark.cases(
    ("change", "options", "expected", "actual"),
    (
        {"town": ["Ulm", "Aalen", "Ulm"]},
        {},
        *(f"words of 'town': 2; number 0 is {town!r}" for town in ("Bonn", "Aalen")),
    ),
    (
        {"town": ["Ulm", "Bonn", "Ulm1"]},
        {},
        *("words of 'town': 2", "words of 'town': 3; number 2 is 'Ulm1'"),
    ),
    (
        {"size": [1.0, 2.0, 6.0]},
        {"standardise": True},
        *("mean of 'size': 0.0", "mean of 'size': 3.0"),
    ),
    ({"rooms": [1.0, 2.0, 3.0]}, {}, "columns: 2", "columns: 3; number 2 is 'rooms'"),
    ({}, {"words": "index"}, "words='one-hot'", "words='index'"),
    ({"y": [1.0, 2.0, 3.0]}, {}, "kind of 'y': number", "kind of 'y': class"),
)
def test_data_that_is_coded_separately_is_refused(change, options, expected, actual):
    data, other = from_frame(TOWNS, "y"), from_frame({**TOWNS, **change}, "y", **options)
    model = trained(data)
    text = (
        "the table is coded otherwise than the training data\n"
        f"  expected  {expected}\n"
        f"  found     {actual}\n"
        f"  {ADVICE}"
    )
    for call in (
        lambda validation: trained(data, validation=validation),
        partial(model.evaluate, loss=lm.MSE()),
        model.predict,
    ):
        assert text in error_text(DataError, call, other)


def test_an_equal_coding_of_another_table_is_taken():
    data, again = from_frame(TOWNS, "y"), from_frame(TOWNS, "y")
    model = trained(data, validation=again)
    assert model.evaluate(again, loss=lm.MSE()) == model.evaluate(data, loss=lm.MSE())
    model.predict(from_frame({name: TOWNS[name] for name in ("town", "size")}))
    model.fit(again, **HOW)


def test_a_second_fit_with_another_coding_warns(path):
    data = from_frame(TOWNS, "y")
    other = from_frame({**TOWNS, "town": ["Ulm", "Aalen", "Ulm"]}, "y")
    model = trained(data)
    with pytest.warns(LaminaWarning) as caught:
        model.fit(other, **HOW)
    (warning,) = caught
    assert str(warning.message) == (
        "the table is coded otherwise than the data on which the model was trained before: "
        "expected words of 'town': 2; number 0 is 'Bonn', found words of 'town': 2; number 0 is "
        f"'Aalen'. {ADVICE}"
    )
    assert model.coding is other.coding
    model.fit(other, validation=other, checkpoint=path, **HOW)
    with pytest.warns(LaminaWarning, match="the table is coded otherwise than") as caught:
        lm.Model(model.network).fit(data, checkpoint=path, resume=True, epochs=2, **HOW)
    assert len(caught) == 1


def test_a_row_without_names_is_refused(pandas):
    model = trained(from_frame(TOWNS, "y"))
    frame = pandas.DataFrame(TOWNS)[["size", "town"]]
    for row, kind in (([60, "Ulm"], "list"), ([60, 1.5], "list"), (frame.iloc[0], "Series")):
        assert error_text(DataError, model.predict, row) == (
            "in predict: a row of a table has no names of columns\n"
            "  expected  a dict {'town': value, 'size': value}, or a data frame\n"
            f"  found     a {kind} of 2 values\n"
            "  A row by its names: model.predict({'town': value, 'size': value}). A row of a frame "
            "as a frame: frame.iloc[[0]]."
        )
    assert model.predict(frame.iloc[[0]]).shape == model.predict({"town": "Ulm", "size": 1}).shape
