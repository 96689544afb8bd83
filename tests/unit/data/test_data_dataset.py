"""`Dataset`: refused data, splits and batches."""

import re
from array import array
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from error_texts import error_text, refused

import lamina as lm
from lamina.base.shapes import PUBLIC_DTYPES
from lamina.data import Dataset, as_dataset
from lamina.errors import DataError, DefinitionError, DTypeError, LaminaError


def numbered(count):
    """Example k is k in both arrays."""
    return Dataset(np.arange(count, dtype=np.float32)[:, None], np.arange(count))


def exported(array):
    """An object that offers the memory of an array by DLPack only."""
    return SimpleNamespace(__dlpack__=array.__dlpack__, __dlpack_device__=array.__dlpack_device__)


X, Y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")
HOW = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), "progress": False}


def model():
    return lm.Model(lm.Sequential(lm.Input(3), lm.Linear(1)))


TAKERS = {
    "inputs": Dataset,
    "one of several inputs": lambda x: Dataset((X, x)),
    "inputs by name": lambda x: Dataset({"a": x}),
    "a list of arrays": lambda x: Dataset(list(x)),
    "targets": lambda x: Dataset(X, x),
    "weights": lambda x: Dataset(X, Y, weights=x),
    "from_arrays": Dataset.from_arrays,
    "as_dataset": as_dataset,
    "fit": lambda x: model().fit((x, Y), **HOW),
    "stream": lambda x: model().fit([(x, Y)], **HOW),
    "evaluate": lambda x: model().evaluate((x, Y), lm.MSE()),
    "predict": lambda x: model().predict(x),
    "predictor": lambda x: model().predictor(4)(x),
    "step": lambda x: model().training(lm.MSE(), lm.SGD(0.1), 4).step(x, Y),
    "set_parameters": lambda x: model().set_parameters({"1.weight": x[:1]}),
    "load_parameters": lambda x: model().load_parameters({"1.weight": x[:1]}),
    "constant": lambda x: lm.Input(3) + x[0],
}


@pytest.mark.parametrize("taker", TAKERS.values(), ids=TAKERS)
def test_masked_elements_are_refused_wherever_arrays_are_given(taker):
    text = error_text(LaminaError, lambda: taker(np.ma.array(X, mask=X * [0, 1, 0])))
    assert "masked" in text
    assert "array.filled(0)" in text
    taker(np.ma.array(X, mask=X * [0, 1, 0]).filled(0))
    taker(np.ma.array(X))


def test_buffers_are_arrays_without_a_copy():
    values = np.arange(6, dtype="float32")
    for make in (exported, memoryview, lambda x: array("f", x.tolist())):
        for data in (Dataset(make(values)), as_dataset(make(values))):
            assert data.inputs.dtype == np.float32
            np.testing.assert_array_equal(data.inputs, values)
    buffer = bytearray(b"\x01\x02")
    data = Dataset(buffer, exported(np.zeros(2)))
    assert data.inputs.tolist() == [1, 2]
    buffer[0] = 7
    assert data.inputs.tolist() == [7, 2]
    for dtype in PUBLIC_DTYPES.values():
        inputs = np.ones((3, 2), dtype.numpy)
        assert Dataset(inputs).inputs is inputs


# Construction -------------------------------------------------------------------------------------


@pytest.mark.cases(
    ("arrays", "text"),
    ((np.zeros((5, 1, 8, 8), "u1"), np.zeros(5, "i8")), "5 examples: x u8[1, 8, 8], y i64[]"),
    ((np.zeros((1, 3)),), "1 example: x f64[3]"),
    (((np.zeros((4, 3), "f4"), np.zeros((4, 5), "i4")),), "4 examples: x0 f32[3], x1 i32[5]"),
)
def test_a_data_set_shows_examples_shapes_and_dtypes(arrays, text):
    data = Dataset(*arrays)
    assert repr(data) == text
    assert len(data) == int(text.split()[0])
    for role in ("input", "target"):
        shapes, dtypes = getattr(data, f"{role}_shapes"), getattr(data, f"{role}_dtypes")
        shown = [f"{dtype}{[*shape]}" for shape, dtype in zip(shapes, dtypes, strict=True)]
        assert shown == re.findall(rf"{'xy'[role == 'target']}\d? (\w+\[.*?\])", text)
    with pytest.raises(AttributeError):
        data.targets = None


def test_arrays_of_different_lengths_are_refused():
    assert error_text(DataError, Dataset, np.zeros((5, 2), np.float32), np.zeros(4, np.int64)) == (
        "the inputs and the targets differ in the number of examples\n"
        "  inputs   5 examples, float32[5, 2]\n"
        "  targets  4 examples, int64[4]\n"
        "  The first axis counts the examples; its extent must be the same in all arrays. "
        "Pass several inputs or targets as a tuple, or a dict by their names."
    )
    error = refused(DataError, Dataset, [np.zeros((4, 3)), np.zeros(4)])
    assert (
        error.advice == "Several inputs make a tuple: (a, b). Examples of one have the same shape."
    )
    error = refused(DataError, Dataset, (np.zeros(5), np.zeros(5), np.zeros(6)))
    assert "inputs[0] and the inputs[2]" in error.problem


LONG_DOUBLES = (
    "the inputs have an unknown dtype\n"
    "  expected  float32, float64, bfloat16, float16, int32, int64, uint8, int8, int16, uint16, "
    f"bool\n  found     {np.dtype(np.longdouble).name}[2, 3]\n"
    "  Convert first: array.astype('float32')."
)


@pytest.mark.cases(
    ("inputs", "kind", "problem"),
    (np.zeros((0, 3), np.float32), DataError, "the inputs hold no data"),
    (np.zeros((3, 0), np.float32), DataError, "the inputs hold no data"),
    (np.array(1.0, np.float32), DataError, "the inputs have no axis of examples"),
    ({"a": 1.0}, DataError, "the inputs['a'] are not an array"),
    ({"a": {"b": [1.0]}}, DataError, "the inputs['a'] are not an array"),
    ({"a": [[1.0], [1.0, 2.0]]}, DataError, "the inputs['a'] cannot be converted"),
    ({}, DataError, "the dict of inputs is empty"),
    ({0: [1.0]}, DataError, "the names of the inputs are words"),
    ([[1.0], [1.0, 2.0]], DataError, "the inputs cannot be converted to an array"),
    (([1.0], [[1.0], [1.0, 2.0]]), DataError, "the inputs[1] cannot be converted to an array"),
    (["cat", "dog"], DTypeError, "the inputs have an unknown dtype"),
    ((), DataError, "the tuple of inputs is empty"),
    (np.array([[1], [1, 2]], object), DTypeError, "the inputs have an unknown dtype"),
    (np.zeros((2, 3), np.longdouble), DTypeError, LONG_DOUBLES),
    (np.zeros(3, np.uint32), DTypeError, "the inputs have an unknown dtype"),
    (np.zeros(3, np.complex64), DTypeError, "the inputs have an unknown dtype"),
    (np.array(["cat", "dog"]), DTypeError, "the inputs have an unknown dtype"),
    (np.zeros(3, ">f4" if np.little_endian else "<f4"), DTypeError, "the inputs have an"),
)
def test_wrong_arrays_are_refused(inputs, kind, problem):
    error = refused(kind, lambda: Dataset(inputs))
    assert str(error).startswith(problem)
    assert dict(error.facts).keys() == {"expected", "found"}
    assert error.advice.endswith(".")


def test_lists_become_arrays_of_exact_numbers():
    for make in (Dataset, Dataset.from_arrays):
        assert repr(make([[1.0, 2.0]], [3])) == "1 example: x float[2], y i64[]"
        data = make([[0.1], [0.2]])
        assert data.input_arrays[0].tolist() == [[0.1], [0.2]]
        assert repr(data.take([1])) == "1 example: x float[1]"
        error = refused(DataError, make, [[1.0], [2.0, 3.0]])
        assert error.problem == "the inputs cannot be converted to an array"
    several = Dataset(([[1.0, 2.0]], [True]), ([0.5], np.array([0.5])))
    assert repr(several) == "1 example: x0 float[2], x1 bool[], y0 float[], y1 f64[]"
    # Lists of arrays keep their dtype.
    assert repr(Dataset([np.array([0.1, 0.2]), np.array([0.3, 0.4])])) == "2 examples: x f64[2]"
    assert repr(Dataset([np.float64(0.1)])) == "1 example: x f64[]"


def test_a_tensor_as_data_is_refused():
    text = error_text(DefinitionError, lambda: Dataset(lm.Input(3), np.zeros(2)))
    assert re.sub(r":\d+", "", text) == (
        "in test_data_dataset.py: data is an array, but this is a symbolic tensor, which holds no "
        "data\n"
        "  expected  an array\n"
        "  found     Tensor(f32[batch, 3], leaf)\n"
        "  Arrays go here, and tensors to the network: model.network(x)."
    )


def test_tensors_of_pytorch_become_arrays(torch):
    data = Dataset(torch.zeros(2, 3, requires_grad=True), torch.tensor([1, 0]))
    assert repr(data) == "2 examples: x f32[3], y i64[]"
    half = torch.tensor([[0.5, 3.140625]], requires_grad=True).bfloat16()
    assert repr(Dataset(half)) == "1 example: x f32[2]"
    net = lm.Sequential(lm.Input(2), lm.Linear(1, bias=False))
    model = lm.from_torch(net, {"0.weight": half}, show=False)
    for converted in (Dataset(half).inputs, model.parameters()["1.weight"]):
        assert converted.tolist() == [[0.5, 3.140625]]
    conjugated = torch.tensor([1 + 2j]).conj()
    advice = refused(DTypeError, lambda: Dataset(conjugated)).advice
    assert advice == "Complex numbers are two arrays: array.real and array.imag."
    assert Dataset((conjugated.real, conjugated.imag)).inputs[1].tolist() == [-2]


@pytest.mark.cases(
    ("make", "advice"),
    ("zeros(2, 3).to_sparse()", "Make a dense tensor: tensor.to_dense()."),
    ("zeros(2, 3).to_sparse_csr()", "Make a dense tensor: tensor.to_dense()."),
    ("zeros(2, 3).to(torch.float8_e5m2)", "an array: tensor.float().cpu().numpy()."),
    (
        "nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged)",
        "Pad its rows: torch.nested.to_padded_tensor(tensor, 0.0).",
    ),
)
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_tensors_of_pytorch_without_an_array_have_advice_that_works(make, advice, torch):
    tensor = eval(f"torch.{make}", {"torch": torch})
    error = refused(DataError, lambda: Dataset(tensor))
    assert error.problem == "the inputs cannot be converted to an array"
    assert error.advice.endswith(advice)
    call = error.advice.removesuffix(".").split(": ")[1]
    assert len(Dataset(eval(call, {"torch": torch, "tensor": tensor}))) == 2


def test_data_sets_pairs_and_arrays_are_data_sets():
    x, y = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    data = Dataset(x, y)
    assert as_dataset(data) is data
    assert as_dataset((x, y)).targets is y
    assert as_dataset(((x, x), y)).input_arrays == (x, x)
    assert as_dataset((x, None)).targets is None
    assert as_dataset(x).targets is None
    for value in (None, 3, "digits", [1, 2], (1, 2, 3, 4), {}):
        assert refused(DataError, as_dataset, value).problem == "this is not a data set"


def test_the_path_of_a_file_is_no_data():
    inputs = Path("customers.csv")
    for call in (as_dataset, Dataset, lambda path: Dataset(np.ones((2, 3)), path)):
        for path in (str(inputs), inputs):
            assert refused(DataError, call, path).advice == (
                "Load it: lm.data.load(path, 'NAME'), with the name of the column of targets; for "
                "further tables model.coding.dataset(path)."
            )


def test_classes_are_counted_by_the_largest_label():
    def classes(targets):
        return Dataset(np.zeros((3, 1)), targets).classes

    assert classes(np.array([0, 6, 2])) == 7
    error = refused(DataError, classes, np.array([0, 1, -4]))
    assert dict(error.facts)["found"] == "-4 in example 2"
    for targets in (None, np.zeros(3), np.zeros(3, bool)):
        error = refused(DataError, classes, targets)
        assert error.problem == "the targets are not class labels"


# The order of examples ----------------------------------------------------------------------------


def test_the_order_is_the_recorded_permutation():
    """The same on every machine and in every version: these rows must never change."""
    assert numbered(10).order(seed=0, epoch=0).tolist() == [3, 8, 5, 9, 1, 7, 2, 4, 6, 0]
    assert numbered(10).order(seed=7, epoch=3).tolist() == [4, 2, 3, 7, 0, 5, 6, 1, 8, 9]
    # Long orders are made in pieces; the keys of the first examples do not change with it.
    order = numbered(600_000).order(seed=1, epoch=0)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(600_000))
    assert order[order < 50].tolist() == numbered(50).order(seed=1, epoch=0).tolist()
    orders = {numbered(100).order(*key).tobytes() for key in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert len(orders) == 4


def test_every_position_is_equally_likely():
    data = numbered(4)
    orders = np.array([data.order(seed=0, epoch=epoch) for epoch in range(2000)])
    for position in range(4):
        counts = np.bincount(orders[:, position], minlength=4)
        assert np.all(np.abs(counts - 500) < 100)  # five standard deviations


def test_a_split_is_complete_shuffled_and_repeatable():
    cases = (10, 0.9, 9), (10, 0.25, 3), (2, 0.001, 1), (2, 0.999, 1), (1797, 0.9, 1617)
    for count, fraction, first in cases:
        a, b = numbered(count).split(fraction, seed=3)
        assert (len(a), len(b)) == (first, count - first)
        assert sorted([*a.targets.tolist(), *b.targets.tolist()]) == list(range(count))
        assert np.array_equal(a.inputs[:, 0], a.targets)
    data = numbered(50)
    once, again, other = (data.split(0.5, seed=seed)[0].targets.tolist() for seed in (0, 0, 1))
    assert once == again
    assert once not in (other, sorted(once), data.order(0, 0)[:25].tolist())
    for fraction in (0.0, 1.0, -0.5, 2, float("nan")):
        error = refused(DataError, numbered(10).split, fraction)
        assert dict(error.facts)["found"] == str(fraction)
    error = refused(DataError, numbered(1).split, 0.5)
    assert error.problem == "a single example cannot be split"


def test_batches_cover_every_example_once():
    for size in range(1, 12):
        batches = [*numbered(11).batches(size, seed=size)]
        targets = [y for _, y in batches]
        assert sorted(np.concatenate(targets).tolist()) == list(range(11))
        assert all(len(a) >= len(b) for a, b in pairwise(targets))
        assert all(np.array_equal(x[:, 0], y) for x, y in batches)
        full = [y for _, y in numbered(11).batches(size, seed=size, drop_last=True)]
        assert [y.tolist() for y in full] == [y.tolist() for y in targets if len(y) == size]
    seen = [y for _, y in numbered(10).batches(4, seed=2, epoch=5)]
    assert np.array_equal(np.concatenate(seen), numbered(10).order(2, 5))
    for size, drop_last in ((0, False), (-1, False), (11, True)):
        error = refused(DataError, numbered(10).batches, size, drop_last=drop_last)
        assert dict(error.facts)["found"] == str(size)


def test_batches_in_the_stored_order_share_memory_and_several_inputs_are_a_tuple():
    data = numbered(7)
    batches = list(data.batches(3))
    assert [y.tolist() for _, y in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert np.shares_memory(batches[0][0], data.input_arrays[0])
    for x, y in Dataset((np.arange(4), np.arange(4) * 10)).batches(2, seed=0):
        assert np.array_equal(x[0] * 10, x[1])
        assert y is None


def test_examples_are_taken_by_position():
    data = numbered(5)
    assert data.take([4, 0, 0]).targets.tolist() == [4, 0, 0]
    part = data.subset(1, 3)
    assert part.input_arrays[0][:, 0].tolist() == [1, 2]
    assert np.shares_memory(part.input_arrays[0], data.input_arrays[0])
    assert len(data.subset(2)) == 3
    for indices in ([], [[0]], [0.5], [True, False]):
        error = refused(DataError, data.take, indices)
        assert error.problem == "the positions of examples must be a row of integers"
    for index in (-1, 5):
        error = refused(DataError, data.take, [0, index])
        assert error.facts == (("expected", "0 to 4"), ("found", str(index)))
    for bounds in ((-1, 2), (2, 2), (3, 1), (0, 6), (5, None)):
        refused(DataError, data.subset, *bounds)


def test_a_data_set_of_single_examples_is_refused_with_the_loader_that_makes_batches():
    class MapStyle:
        """Like a data set of PyTorch: an example by its number."""

        __len__ = __getitem__ = lambda *_: 2

    assert error_text(DataError, as_dataset, MapStyle()) == (
        "this is not a data set\n"
        "  expected  a Dataset, a pair (x, y) of arrays, or an array\n"
        "  found     a MapStyle\n"
        "  It gives one example at a time; a loader makes batches of it, which fit takes: "
        "torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)."
    )
