"""Data that stays in its file: memory maps, and files that are read in chunks."""

from functools import partial
from importlib import import_module

import numpy as np
import pytest
from error_texts import error_text
from stream_cases import TRAIN, trained
from training_cases import network, same

import lamina as lm
from lamina.data import Stream, in_chunks, load
from lamina.errors import DataError, DTypeError, FileFormatError


@pytest.fixture
def npy(tmp_path):
    np.save(tmp_path / "x.npy", TRAIN.inputs)
    np.save(tmp_path / "y.npy", TRAIN.targets)
    return tmp_path / "x.npy", tmp_path / "y.npy"


@pytest.fixture
def hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")

    def write(**options):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("x", data=TRAIN.inputs, **options)
            file.create_dataset("y", data=TRAIN.targets)
        return tmp_path / "a.h5"

    return write


def test_arrays_are_mapped_and_train_to_the_same_bits(npy, hdf5):
    for mapped in (load(npy[0], targets=npy[1], on_disk=True), load(hdf5(), on_disk=True)):
        assert isinstance(mapped.inputs, np.memmap)
        np.testing.assert_array_equal(mapped.inputs, TRAIN.inputs)
        np.testing.assert_array_equal(mapped.targets, TRAIN.targets)
    assert isinstance(mapped.targets, np.memmap)
    assert same(trained(mapped)[0], trained(TRAIN)[0])


def test_large_files_are_mapped_by_default(npy, monkeypatch):
    assert not isinstance(load(npy[0]).inputs, np.memmap)
    monkeypatch.setattr(import_module("lamina.data.load"), "MAPPED_BYTES", 100)
    assert isinstance(load(npy[0]).inputs, np.memmap)
    assert not isinstance(load(npy[0], on_disk=False).inputs, np.memmap)
    np.save(npy[0], np.asfortranarray(TRAIN.inputs))
    assert not isinstance(load(npy[0]).inputs, np.memmap)


def test_arrays_that_cannot_be_mapped_are_refused(tmp_path, hdf5):
    x, path = TRAIN.inputs, tmp_path / "a.npy"
    for write, name, kind in (
        (lambda: hdf5(chunks=True), "a.h5", "hdf5"),
        (lambda: np.save(path, x.astype(">f4")), "a.npy", "npy"),
        (lambda: np.save(path, np.asfortranarray(x)), "a.npy", "npy"),
        (lambda: np.savetxt(tmp_path / "a.csv", x, delimiter=","), "a.csv", "csv"),
    ):
        write()
        assert error_text(DataError, load, tmp_path / name, on_disk=True) == (
            f"in {tmp_path / name}: the arrays of this file cannot be mapped into memory\n"
            "  expected  .npy, or HDF5 without compression and chunks\n"
            f"  found     {kind}, or another order of bytes or axes\n"
            "  Read it in chunks: lm.data.Stream(lm.data.in_chunks(path)), or leave out "
            "on_disk=True."
        )


def test_short_files_and_pickles_are_neither_mapped_nor_read_in_chunks(npy):
    for call in (partial(load, on_disk=True), in_chunks):
        np.save(npy[1], np.array([print, {}], object), allow_pickle=True)
        assert "does not hold plain numbers" in error_text(DTypeError, call, npy[1])
        npy[1].write_bytes(npy[0].read_bytes()[:-5])
        assert "does not match its header" in error_text(FileFormatError, call, npy[1])


@pytest.mark.parametrize("options", [{}, {"chunks": (16, 2)}, {"compression": "gzip"}], ids=str)
def test_hdf5_is_read_in_chunks(hdf5, options):
    source = in_chunks(hdf5(**options))
    assert len(source) == 90
    # There is one chunk.
    assert same(trained(source)[0], trained(lambda: [(TRAIN.inputs, TRAIN.targets)])[0])
    model = lm.Model(network(), seed=3)
    np.testing.assert_array_equal(model.predict(source), model.predict(TRAIN.inputs))


def test_npy_is_read_in_chunks(npy):
    source = in_chunks(npy[0], targets=npy[1], examples=20)
    parts = list(source(0, 0, None))
    assert [len(x) for x, _ in parts] == [20, 20, 20, 20, 10]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in parts]), TRAIN.inputs)
    np.testing.assert_array_equal(np.concatenate([y for _, y in parts]), TRAIN.targets)
    assert not any(isinstance(x, np.memmap) for x, _ in parts)
    # Of another order of bytes.
    np.save(npy[0], TRAIN.inputs.astype(">f4"))
    ((x, y),) = in_chunks(npy[0])(0, 0, None)
    assert x.dtype.isnative
    np.testing.assert_array_equal(x, TRAIN.inputs)
    assert y is None


def test_chunks_are_shuffled_anew_in_each_epoch(npy):
    source = in_chunks(npy[0], examples=10)

    def order(epoch, skip=0):
        return [x.tobytes() for x, _ in source(epoch, skip, 7)]

    assert sorted(order(0)) == sorted(order(1)) == sorted(order(2))
    assert order(0) != order(1) != order(2)
    assert order(1) == order(1)
    assert order(1, 3) == order(1)[3:]
    stream = Stream(in_chunks(npy[0], targets=npy[1], examples=10), window=30)
    assert len(trained(stream, epochs=3)[1]) == 3


def test_faults_of_files_are_named(npy, tmp_path):
    np.save(npy[1], TRAIN.targets[:5])
    assert error_text(DataError, in_chunks, npy[0], targets=npy[1]) == (
        f"in {npy[0]}: the inputs and the targets differ in the number of examples\n"
        "  inputs   90\n"
        "  targets  5"
    )
    assert "there is no such file" in error_text(DataError, in_chunks, tmp_path / "none.npy")
    np.save(npy[0], np.asfortranarray(TRAIN.inputs))
    assert "are not one after the other" in error_text(DataError, in_chunks, npy[0])
