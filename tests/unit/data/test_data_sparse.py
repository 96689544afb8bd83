"""Sparse matrices as inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fit_cases import network, same
from stream_cases import TRAIN, trained

import lamina as lm
from lamina.data import stream
from lamina.errors import DataError, DTypeError

scipy_sparse = pytest.importorskip("scipy.sparse")
DENSE = np.where(TRAIN.inputs > 0.5, TRAIN.inputs, np.float32(0))


@pytest.mark.parametrize("make", ["csr_matrix", "csc_matrix", "coo_matrix", "csr_array"])
def test_a_fit_on_a_sparse_matrix_gives_the_bits_of_the_dense_one(
    make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = getattr(scipy_sparse, make)(DENSE)
    monkeypatch.setattr(stream, "_BATCH_BYTES", 7 * 4 * 4)
    found = trained((matrix, TRAIN.targets), validation=(matrix, TRAIN.targets), epochs=3)
    expected = trained((DENSE, TRAIN.targets), validation=(DENSE, TRAIN.targets), epochs=3)
    assert same(found[0], expected[0])
    assert found[1]["loss"] == expected[1]["loss"]
    model = lm.Model(network(), seed=3)
    np.testing.assert_array_equal(model.predict(matrix), model.predict(DENSE))
    loss = lm.CrossEntropy()
    assert model.evaluate((matrix, TRAIN.targets), loss) == model.evaluate(
        (DENSE, TRAIN.targets), loss
    )


@pytest.mark.parametrize("make", ["dok_matrix", "dok_array"])
def test_a_matrix_that_is_a_dict_is_a_matrix(make: str) -> None:
    matrix = getattr(scipy_sparse, make)(DENSE)
    found = trained((matrix, TRAIN.targets), validation=(matrix, TRAIN.targets))
    expected = trained((DENSE, TRAIN.targets), validation=(DENSE, TRAIN.targets))
    assert same(found[0], expected[0])
    batches = [(matrix, TRAIN.targets)]
    assert same(trained(batches)[0], trained([(DENSE, TRAIN.targets)])[0])
    assert lm.data.Dataset({"a": matrix}).is_sparse
    assert repr(lm.data.Dataset(matrix, TRAIN.targets)).startswith("90 examples: x f32[4] sparse")
    model = lm.Model(network(), seed=3)
    np.testing.assert_array_equal(model.predict(matrix), model.predict(DENSE))
    loss = lm.CrossEntropy()
    assert model.evaluate((matrix, TRAIN.targets), loss) == model.evaluate(
        (DENSE, TRAIN.targets), loss
    )
    with pytest.raises(DataError, match="the targets are a sparse matrix"):
        lm.data.Dataset(DENSE, matrix)


def test_few_rows_are_dense_at_a_time() -> None:
    made: list[tuple[int, ...]] = []
    matrix = scipy_sparse.random_array((100_000, 2_000), density=1e-4, dtype="float32", rng=0)

    class Noted(type(matrix.tocsr())):  # type: ignore[misc]
        def toarray(self, *arguments: Any, **options: Any) -> Any:
            made.append(self.shape)
            return super().toarray(*arguments, **options)

    model = lm.Model(lm.Sequential(lm.Input(2_000), lm.Linear(2)))
    model.predict(Noted(matrix.tocsr()[:2000]))
    assert len(made) > 1
    assert max(count for count, _ in made) * 2_000 * 4 <= 1 << 20


SPARSE = scipy_sparse.csr_array(DENSE)
WEIGHTS = np.linspace(0.1, 2, 90)


def test_a_data_set_describes_its_sparse_inputs() -> None:
    data = lm.data.Dataset((scipy_sparse.coo_array(DENSE), DENSE), TRAIN.targets)
    assert repr(data) == "90 examples: x0 f32[4] sparse, x1 f32[4], y i64[]"
    assert (len(data), data.input_shapes, data.is_sparse) == (90, ((4,), (4,)), True)
    stored = data.inputs[0]
    counted = stored.data.nbytes + stored.indices.nbytes + stored.indptr.nbytes
    assert data.nbytes == counted + DENSE.nbytes + TRAIN.targets.nbytes
    dense = data.dense()
    assert dense.dense() is dense
    np.testing.assert_array_equal(dense.inputs[0], DENSE)
    np.testing.assert_array_equal(dense.targets, TRAIN.targets)


def test_examples_are_selected_as_those_of_the_dense_array() -> None:
    plain = lm.data.Dataset(DENSE, TRAIN.targets, weights=WEIGHTS)
    data = lm.data.Dataset(SPARSE, TRAIN.targets, weights=WEIGHTS)
    pairs = [
        *zip(data.split(0.7, seed=2), plain.split(0.7, seed=2), strict=True),
        (data.take([5, 5, 1]), plain.take([5, 5, 1])),
        (data.subset(3, 9), plain.subset(3, 9)),
    ]
    for found, expected in pairs:
        assert found.is_sparse
        dense = found.dense()
        for role in ("inputs", "targets", "weights"):
            np.testing.assert_array_equal(getattr(dense, role), getattr(expected, role))
    for found, expected in zip(data.batches(32, seed=1), plain.batches(32, seed=1), strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("is_tuple", [False, True])
def test_a_fit_on_sparse_inputs_with_weights_gives_the_bits_of_the_dense_one(
    is_tuple: bool,
) -> None:
    def pair(inputs: Any) -> Any:
        if is_tuple:
            return inputs, TRAIN.targets, WEIGHTS
        return lm.data.Dataset(inputs, TRAIN.targets, weights=WEIGHTS)

    found = trained(pair(SPARSE), validation=pair(SPARSE), epochs=2)
    expected = trained(pair(DENSE), validation=pair(DENSE), epochs=2)
    assert same(found[0], expected[0])
    assert found[1]["validation_loss"] == expected[1]["validation_loss"]


@pytest.mark.parametrize("how", [{"shuffle": False}, {"class_weights": "balanced"}])
def test_a_fit_on_sparse_inputs_has_the_options_of_the_dense_one(how: dict[str, Any]) -> None:
    found = trained((SPARSE, TRAIN.targets), epochs=2, **how)[0]
    assert same(found, trained((DENSE, TRAIN.targets), epochs=2, **how)[0])
    assert not same(found, trained((DENSE, TRAIN.targets), epochs=2)[0])


def test_sparse_inputs_are_mixed_with_dense_ones() -> None:
    a, b = lm.Input(4, name="words"), lm.Input(4, name="sizes")
    net = lm.Network([a, b], lm.Linear(3)(lm.concat([a, b])))
    other = TRAIN.inputs[::-1].copy()
    how: dict[str, Any] = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "epochs": 2}

    def fitted(inputs: Any) -> lm.Model:
        model = lm.Model(net, seed=3)
        model.fit((inputs, TRAIN.targets), **how)
        return model

    mixed, plain = fitted((SPARSE, other)), fitted((DENSE, other))
    assert same(mixed.parameters(), plain.parameters())
    expected = plain.predict((DENSE, other))
    named = {"words": SPARSE, "sizes": other}
    for inputs in ((SPARSE, other), lm.data.Dataset((SPARSE, other), TRAIN.targets), named):
        np.testing.assert_array_equal(mixed.predict(inputs), expected)


def test_a_data_set_with_sparse_inputs_is_a_sample_and_is_run() -> None:
    def parameters(inputs: Any) -> dict[str, Any]:
        data = lm.data.Dataset(inputs, TRAIN.targets)
        model = lm.Model(network(), seed=3)
        how: dict[str, Any] = {"class_weights": "balanced", "data": data}
        with model.training(lm.CrossEntropy(), lm.SGD(0.1), 16, **how) as training:
            training.run(data, steps=9, seed=1)
        return model.parameters()

    assert same(parameters(SPARSE), parameters(DENSE))


def test_a_source_may_give_sparse_batches() -> None:
    source = [(SPARSE[start : start + 30], TRAIN.targets[start : start + 30]) for start in (0, 30)]
    assert same(trained(source)[0], trained((DENSE[:60], TRAIN.targets[:60]), shuffle=False)[0])


@pytest.mark.sampled
def test_verify_and_profile_take_sparse_inputs() -> None:
    data = lm.data.Dataset(SPARSE, TRAIN.targets).subset(0, 8)
    assert lm.verify(network(), loss=lm.CrossEntropy(), data=data).passed
    model = lm.Model(network())
    assert model.profile(8, lm.CrossEntropy(), lm.SGD(0.1), data=data, seconds=0.001).runs


def test_sparse_floats_are_converted() -> None:
    data = lm.data.Dataset(scipy_sparse.csr_array(DENSE.astype("float64")), dtype="float32")
    assert data.inputs.dtype == np.float32
    np.testing.assert_array_equal(data.dense().inputs, DENSE)
    whole = lm.data.Dataset(scipy_sparse.csr_array(DENSE > 0), dtype="float32")
    assert whole.inputs.dtype == np.bool_


FAULTS: dict[str, tuple[Any, list[str]]] = {
    "another number of targets": (
        lambda: lm.data.Dataset(SPARSE, TRAIN.targets[:5]),
        [
            "the inputs and the targets differ in the number of examples",
            "  inputs   90 examples, float32[90, 4]",
            "  targets  5 examples, int64[5]",
        ],
    ),
    "sparse targets": (
        lambda: lm.data.Dataset(DENSE, SPARSE),
        [
            "the targets are a sparse matrix",
            "  expected  a NumPy array",
            "  found     a sparse matrix, float32[90, 4]",
            "  Only inputs may be sparse. Make an array: matrix.toarray().",
        ],
    ),
    "sparse weights": (
        lambda: lm.data.Dataset(DENSE, TRAIN.targets, weights=SPARSE),
        ["the weights are a sparse matrix"],
    ),
    "without features": (
        lambda: lm.data.Dataset(scipy_sparse.coo_array(np.ones(3))),
        [
            "the inputs are sparse, and have no examples with features",
            "  expected  two axes, examples and features, not of length 0",
            "  found     a sparse matrix, float64[3]",
        ],
    ),
    "infinite": (
        lambda: lm.data.Dataset(scipy_sparse.csr_array([[1e300]]), dtype="float32"),
        ["the sparse matrix inputs has numbers that float32 cannot hold"],
    ),
    "of a step": (
        lambda: (
            lm.Model(network())
            .training(lm.CrossEntropy(), lm.SGD(0.1), 8)
            .step(SPARSE[:8], TRAIN.targets[:8])
        ),
        [
            "input 0 cannot be converted to an array",
            "  expected  an array",
            "  found     a sparse csr_array",
            (
                "  Make a dense array: matrix.toarray(). lm.data.Dataset, fit, evaluate and "
                "predict take sparse inputs as they are."
            ),
        ],
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_sparse_matrices_are_named(case: str) -> None:
    make, lines = FAULTS[case]
    with pytest.raises(DataError) as caught:
        make()
    assert str(caught.value).splitlines()[: len(lines)] == lines


def test_floats_of_16_bits_are_refused() -> None:
    with pytest.raises(DTypeError) as caught:
        lm.data.Dataset(SPARSE, dtype="float16")
    assert str(caught.value).splitlines() == [
        "the sparse matrix inputs cannot have floats of 16 bits",
        "  expected  dtype='float32' or 'float64'",
        "  found     float16",
        "  Leave dtype out: rows are converted when they become dense.",
    ]
