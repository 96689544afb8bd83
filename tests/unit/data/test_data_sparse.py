"""Sparse matrices as inputs."""

import numpy as np
import pytest
from error_texts import error_text
from stream_cases import TRAIN, trained
from training_cases import fit, network, same

import lamina as lm
from lamina.data import stream
from lamina.errors import DataError, DTypeError

scipy_sparse = pytest.importorskip("scipy.sparse")
DENSE = np.where(TRAIN.inputs > 0.5, TRAIN.inputs, np.float32(0))


@pytest.mark.cases(
    "make", "csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "dok_matrix", "dok_array"
)
def test_a_fit_on_a_sparse_matrix_gives_the_bits_of_the_dense_one(make, monkeypatch):
    sparse = getattr(scipy_sparse, make)(DENSE), TRAIN.targets
    dense, loss, model = (DENSE, TRAIN.targets), lm.CrossEntropy(), lm.Model(network(), seed=3)
    monkeypatch.setattr(stream, "_BATCH_BYTES", 7 * 4 * 4)
    result = trained(sparse, validation=sparse, epochs=3)
    expected = trained(dense, validation=dense, epochs=3)
    assert same(result[0], expected[0])
    assert result[1]["loss"] == expected[1]["loss"]
    np.testing.assert_array_equal(model.predict(sparse[0]), model.predict(DENSE))
    assert model.evaluate(sparse, loss) == model.evaluate(dense, loss)
    assert same(trained([sparse])[0], trained([dense])[0])
    assert lm.data.Dataset({"a": sparse[0]}).is_sparse


def test_few_rows_are_dense_at_a_time():
    made = []
    matrix = scipy_sparse.random_array((100_000, 2_000), density=1e-4, dtype="float32", rng=0)

    class Noted(type(matrix.tocsr())):  # type: ignore[misc]
        def toarray(self, *arguments, **options):
            made.append(self.shape)
            return super().toarray(*arguments, **options)

    model = lm.Model(lm.Sequential(lm.Input(2_000), lm.Linear(2)))
    model.predict(Noted(matrix.tocsr()[:2000]))
    assert len(made) > 1
    assert max(count for count, _ in made) * 2_000 * 4 <= 1 << 20


SPARSE = scipy_sparse.csr_array(DENSE)
WEIGHTS = np.linspace(0.1, 2, 90)


def test_a_data_set_describes_its_sparse_inputs():
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


def test_examples_are_selected_as_those_of_the_dense_array():
    data, plain = (lm.data.Dataset(x, TRAIN.targets, weights=WEIGHTS) for x in (SPARSE, DENSE))
    for select in (
        lambda data: data.split(0.7, seed=2),
        lambda data: [data.take([5, 5, 1]), data.subset(3, 9)],
    ):
        for part, expected in zip(select(data), select(plain), strict=True):
            assert part.is_sparse
            for role in ("inputs", "targets", "weights"):
                np.testing.assert_array_equal(getattr(part.dense(), role), getattr(expected, role))
    for batches in zip(data.batches(32, seed=1), plain.batches(32, seed=1), strict=True):
        for array, expected in zip(*batches, strict=True):
            np.testing.assert_array_equal(array, expected)


@pytest.mark.cases(
    ("more", "how"),
    (lambda data: (*data, WEIGHTS), {}),
    (lambda data: lm.data.Dataset(*data, weights=WEIGHTS), {}),
    *((tuple, how) for how in ({"shuffle": False}, {"class_weights": "balanced"})),
)
def test_a_fit_on_sparse_inputs_has_the_options_of_the_dense_one(more, how):
    sparse, dense = (more((inputs, TRAIN.targets)) for inputs in (SPARSE, DENSE))
    result = trained(sparse, validation=sparse, epochs=2, **how)
    expected = trained(dense, validation=dense, epochs=2, **how)
    assert same(result[0], expected[0])
    assert result[1]["validation_loss"] == expected[1]["validation_loss"]
    assert not same(result[0], trained((DENSE, TRAIN.targets), epochs=2)[0])


def test_sparse_inputs_are_mixed_with_dense_ones():
    a, b = lm.Input(4, name="words"), lm.Input(4, name="sizes")
    net = lm.Network([a, b], lm.Linear(3)(lm.concat([a, b])))
    other = TRAIN.inputs[::-1].copy()
    mixed, plain = lm.Model(net, seed=3), lm.Model(net, seed=3)
    for model, inputs in ((mixed, SPARSE), (plain, DENSE)):
        fit(model, ((inputs, other), TRAIN.targets), epochs=2)
    assert same(mixed.parameters(), plain.parameters())
    expected = plain.predict((DENSE, other))
    named = {"words": SPARSE, "sizes": other}
    for inputs in ((SPARSE, other), lm.data.Dataset((SPARSE, other), TRAIN.targets), named):
        np.testing.assert_array_equal(mixed.predict(inputs), expected)


def test_a_data_set_with_sparse_inputs_is_a_sample_and_is_run_verified_and_profiled():
    parameters, loss = [], lm.CrossEntropy()
    for inputs in (DENSE, SPARSE):
        data, model = lm.data.Dataset(inputs, TRAIN.targets), lm.Model(network(), seed=3)
        how = {"class_weights": "balanced", "data": data}
        with model.training(loss, lm.SGD(0.1), 16, **how) as training:
            training.run(data, steps=9, seed=1)
        parameters.append(model.parameters())
    assert same(*parameters)
    data = data.subset(0, 8)
    assert lm.verify(network(), loss=loss, data=data).passed
    assert model.profile(8, loss, lm.SGD(0.1), data=data, seconds=0.001).runs


def test_sparse_floats_are_converted():
    data = lm.data.Dataset(scipy_sparse.csr_array(DENSE.astype("float64")), dtype="float32")
    assert data.inputs.dtype == np.float32
    np.testing.assert_array_equal(data.dense().inputs, DENSE)
    whole = lm.data.Dataset(scipy_sparse.csr_array(DENSE > 0), dtype="float32")
    assert whole.inputs.dtype == np.bool_


def test_faults_of_sparse_matrices_are_named():
    def fault(*arrays, **options):
        return error_text((DataError, DTypeError), lm.data.Dataset, *arrays, **options)

    text = "  inputs   90 examples, float32[90, 4]\n  targets  5 examples, int64[5]\n"
    assert text in fault(SPARSE, TRAIN.targets[:5])
    assert fault(DENSE, SPARSE) == (
        "the targets are a sparse matrix\n"
        "  expected  a NumPy array\n"
        "  found     a sparse matrix, float32[90, 4]\n"
        "  Only inputs may be sparse. Make an array: matrix.toarray()."
    )
    assert "the weights are a sparse matrix" in fault(DENSE, TRAIN.targets, weights=SPARSE)
    assert fault(scipy_sparse.coo_array(np.ones(3))).startswith(
        "the inputs are sparse, and have no examples with features\n"
        "  expected  two axes, examples and features, not of length 0\n"
        "  found     a sparse matrix, float64[3]"
    )
    text = "the sparse matrix inputs has numbers that float32 cannot hold"
    assert text in fault(scipy_sparse.csr_array([[1e300]]), dtype="float32")
    assert fault(SPARSE, dtype="float16") == (
        "the sparse matrix inputs cannot have floats of 16 bits\n"
        "  expected  dtype='float32' or 'float64'\n"
        "  found     float16\n"
        "  Leave dtype out: rows are converted when they become dense."
    )
    with lm.Model(network()).training(lm.CrossEntropy(), lm.SGD(0.1), 8) as training:
        text = error_text(DataError, training.step, SPARSE[:8], TRAIN.targets[:8])
    assert text.endswith(
        "  found     a sparse csr_array\n"
        "  Make a dense array: matrix.toarray(). lm.data.Dataset, fit, evaluate and "
        "predict take sparse inputs as they are."
    )
