"""`load`: every format, recognised by contents or suffix, and errors for unsuitable files."""

import gzip
import io
import os
import struct
import sys
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from error_texts import error_text, refused
from files_cases import damaged
from frame_cases import table

import lamina as lm
from lamina.data import load, mnist, read_idx
from lamina.errors import DataError, DTypeError, FileFormatError, LaminaError, MissingExtraError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def fault(path, kind, **options):
    error = refused(LaminaError, load, path, **options)
    assert type(error) is kind
    assert error.where
    assert error.advice
    return error


def npz(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def npy(folder, array, **options):
    np.save(folder / "a.npy", array, **options)
    return folder / "a.npy"


# NumPy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("x", "y"), ("inputs", "targets"), ("images", "labels")])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_arrays_x_and_y_are_read(tmp_path, names, save):
    save(tmp_path / "a.npz", **dict(zip(names, (X, Y), strict=True)), other=X)
    # Contents take precedence over the suffix.
    (tmp_path / "a.npz").rename(tmp_path / "a.csv")
    data = load(str(tmp_path / "a.csv"))
    assert np.array_equal(data.input_arrays[0], X)
    assert np.array_equal(data.targets, Y)
    assert data.targets.dtype == np.int64


def test_other_names_of_npz_arrays_are_chosen_or_refused(tmp_path):
    assert np.array_equal(load(npz(tmp_path, features=X, species=Y), targets="species").targets, Y)
    assert load(npz(tmp_path, anything=X)).targets is None
    for name in ("y", "targets", "labels"):
        assert dict(fault(npz(tmp_path, **{name: Y}), DataError).facts)["found"] == name
    path = npz(tmp_path, b=X, a=Y, c=Y)
    assert str(fault(path, DataError)) == (
        f"in {path}: the names of the arrays do not tell inputs from targets\n"
        "  expected  x/y, inputs/targets, images/labels\n"
        "  found     a, b, c\n"
        "  Name the targets, load(path, targets='name'), or save the arrays as x and y."
    )
    assert refused(LaminaError, load, path, targets=["z", "y"]).problem == (
        "targets must be the name of a column or an array, the path of a file, or a whole number"
    )
    error = fault(path, DataError, targets="z")
    assert dict(error.facts)["expected"] == "z and one array of inputs"


def test_npy_keeps_values_and_targets_may_be_in_another_file(tmp_path):
    np.save(tmp_path / "y.npy", Y)
    orders = (np.asfortranarray(X), X.astype(">f4"), X[:, ::-1])
    for array in (*orders, X.astype("<f8"), X.astype(bool), X[:, :1, None]):
        data = load(npy(tmp_path, array), targets=tmp_path / "y.npy")
        assert np.array_equal(data.inputs, array)
        assert data.inputs.dtype.name == array.dtype.name
        assert data.inputs.flags.c_contiguous
        assert np.array_equal(data.targets, Y)


def test_npy_files_of_no_numbers_or_of_another_size_are_refused(tmp_path):
    path, pickled = tmp_path / "a.npy", np.array([print, {}], object)
    problem = fault(npy(tmp_path, pickled, allow_pickle=True), DTypeError).problem
    assert problem == "a.npy does not hold plain numbers"
    for array in (np.float32(1.0), np.zeros((0, 3), np.float32)):
        assert fault(npy(tmp_path, array), DataError).where == str(path)
    assert fault(npy(tmp_path, X.astype(np.longdouble)), DTypeError).where == str(path)
    path.write_bytes(npy(tmp_path, X).read_bytes()[:-5])
    assert dict(fault(path, FileFormatError).facts)["declared"] == "float32[4, 3], 48 bytes"
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**40)}
    np.lib.format.write_array_header_1_0(stream, header)
    path.write_bytes(stream.getvalue())
    assert "does not match its header" in fault(path, FileFormatError).problem


@pytest.mark.cases(
    ("position", "field", "problem"),
    (24, 2**31, "the header of x.npy declares more than the file can hold"),
    (10, zipfile.ZIP_BZIP2, "x.npy is compressed by a method that NumPy does not use"),
)
def test_a_zip_bomb_or_an_unusual_compression_is_refused(tmp_path, position, field, problem):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY" + bytes(1000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + position, field)
    (tmp_path / "a.npz").write_bytes(content)
    assert fault(tmp_path / "a.npz", FileFormatError).problem == problem


def test_damaged_archives_give_clear_errors(tmp_path):
    np.savez_compressed(tmp_path / "good.npz", x=X, y=Y)
    damage_and_load(tmp_path, (tmp_path / "good.npz").read_bytes(), "bad.npz", trials=300)


# HDF5 ---------------------------------------------------------------------------------------------


@pytest.fixture
def h5py():
    return pytest.importorskip("h5py", reason="h5py is not installed")


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"chunks": True}])
def test_hdf5_data_sets_are_read(tmp_path, options, h5py):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=X.astype(">f4"), **options)
        file.create_dataset("y", data=Y, **options)
        file.create_group("notes")
        file["z"] = h5py.SoftLink("/x")  # other arrays may be links
    data = load(tmp_path / "a.h5")
    assert np.array_equal(data.inputs, X)
    assert data.inputs.dtype.isnative
    assert np.array_equal(data.targets, Y)


def test_arrays_that_are_text_or_too_large_or_links_are_refused(tmp_path, h5py):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = X, ["a", "b", "c", "d"]
    assert fault(path, DTypeError).problem == "y does not hold plain numbers"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape=(2**40,), dtype="f4", chunks=(1024,))  # never written
    problem = fault(path, FileFormatError).problem
    assert problem == "the header of x declares more than the file can hold"
    (tmp_path / "secret").write_bytes(bytes(48))
    with h5py.File(path, "w") as file:
        file["linked"] = h5py.ExternalLink("other.h5", "x")
        file["soft"] = h5py.SoftLink("/nowhere")
        file.create_dataset("raw", (12,), "f4", external=str(tmp_path / "secret"))
    assert dict(fault(path, DataError).facts)["found"] == "linked, raw, soft"


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize(
    "read", [load, lambda p: load(p, on_disk=True), lm.data.in_chunks], ids=["", "map", "chunks"]
)
def test_arrays_that_are_not_in_the_file_are_named(tmp_path, name, read, h5py):
    path = tmp_path / "a.h5"
    (tmp_path / "secret").write_bytes(bytes(48))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["array"] = X
    layout = h5py.VirtualLayout(X.shape, "f4")
    layout[:] = h5py.VirtualSource("other.h5", "array", X.shape)
    raw = {"shape": (12,), "dtype": "f4", "external": [("secret", 0, 48)]}
    for write, description in (
        (lambda f: f.update({name: h5py.SoftLink("/group/array")}), "a link to /group/array"),
        (lambda f: f.update({name: h5py.ExternalLink("other.h5", "array")}), "a link to array"),
        (lambda f: f.create_virtual_dataset(name, layout), "a virtual array, of other arrays"),
        (lambda f: f.create_dataset(name, **raw), "an array in secret"),
    ):
        with h5py.File(path, "w") as file:
            file["group/array"] = file["x" if name == "y" else "y"] = X
            write(file)
        assert error_text(DataError, read, path) == (
            f"in {path}: the array {name!r} is not in the file itself\n"
            "  expected  an array of numbers\n"
            f"  found     {description}\n"
            "  It may be in any file of this machine, and is not followed. If you trust it: "
            "h5py.File(path), then lm.data.Dataset(file['x'][:], file['y'][:])."
        )


@pytest.mark.parametrize("block", [512, 4096])
@pytest.mark.parametrize("name", ["a.h5", "a"])
def test_a_block_of_the_user_may_be_before_the_data(tmp_path, block, name, h5py):
    with h5py.File(tmp_path / name, "w", userblock_size=block) as file:
        file["x"], file["y"] = X, Y
    assert (tmp_path / name).read_bytes()[:2] == b"\0\0"
    for on_disk in (False, True):
        data = load(tmp_path / name, on_disk=on_disk)
        assert np.array_equal(data.inputs, X)
        assert np.array_equal(data.targets, Y)


def test_short_files_give_clear_errors(tmp_path, h5py):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = X, Y
    content = (tmp_path / "a.h5").read_bytes()
    for length in range(8, len(content), 97):
        (tmp_path / "b.h5").write_bytes(content[:length])
        fault(tmp_path / "b.h5", FileFormatError)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert error_text(MissingExtraError, load, tmp_path / "a.h5") == (
        f"in {tmp_path / 'a.h5'}: reading a.h5 needs the package h5py, which is not installed\n"
        '  Install it with: pip install "lamina[data]"'
    )


# Tables -------------------------------------------------------------------------------------------


def test_the_last_column_is_the_target(tmp_path):
    data = load(table(tmp_path, "0.5,1,2\n1.5,-2e3,0\n"))
    assert repr(data) == "2 examples: x f32[2], y i64[]"
    assert data.inputs.tolist() == [[0.5, 1.0], [1.5, -2000.0]]
    assert data.targets.tolist() == [2, 0]
    assert repr(load(table(tmp_path, "1,2,0.5\n3,4,1\n"))) == "2 examples: x f32[2], y f32[1]"


def test_variants_of_csv_are_read(tmp_path):
    for text in ('"a","b"\r\n"1","2"\r\n', "\ufeffa;b\n1;2\n", "1\t2\n\n", "a, b\n1, 2"):
        data = load(table(tmp_path, text))
        assert (data.inputs.tolist(), data.targets.tolist()) == ([[1.0]], [2])


def test_a_missing_column_lists_the_others(tmp_path):
    error = fault(table(tmp_path, "a,b\n1,2\n"), DataError, targets="c")
    assert str(error) == (
        f"in {tmp_path / 'a.csv'}: there is no column 'c'\n"
        "  expected  0 to 1, or a name\n"
        "  found     a, b\n"
        "  Give the name of the column of targets in the header, or its number."
    )
    for path in (table(tmp_path, "age,churn\n1,2\n"), npz(tmp_path, a=X, b=X, churn=Y)):
        assert fault(path, DataError, targets="chrun").advice == "Did you mean 'churn'?"


COUNT = "has another number of columns than the first"
NO_ROW = "the first line is not a row of a table"


@pytest.mark.cases(
    ("text", "kind", "problem", "found"),
    ("1,2\n\n3,4\n5\n", FileFormatError, f"line 4 {COUNT}", "1"),
    ("a,b\n1,2,3\n", FileFormatError, f"line 2 {COUNT}", "3"),
    ("hello\n", FileFormatError, NO_ROW, "'hello'"),
    ("\n\n", FileFormatError, NO_ROW, "''"),
    ("a,b\n", DataError, "the table has no rows", "only a header"),
)
def test_a_fault_is_named_with_its_position(tmp_path, text, kind, problem, found):
    error = fault(table(tmp_path, text), kind)
    assert error.problem == problem
    assert dict(error.facts)["found"] == found


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"1,2\n\xff\xfe,\x00\n")
    assert str(fault(tmp_path / "a.csv", FileFormatError)) == (
        f"in {tmp_path / 'a.csv'}: the table has another encoding than UTF-8\n"
        "  expected  UTF-8\n"
        "  found     byte 0xff in line 2, 'ÿ' in Latin-1\n"
        "  Save it as UTF-8, or convert it: iconv -f latin1 -t utf-8 a.csv"
    )
    for text in ("a,b\n1,2\n", "a,b\nx,2\n"):
        (tmp_path / "a.csv").write_text(text, encoding="utf-16")
        assert dict(fault(tmp_path / "a.csv", FileFormatError).facts)["found"] == "UTF-16"
        (tmp_path / "a.csv").write_text(text + "Köln,1\n", encoding="latin1")
        assert "'ö' in Latin-1" in str(fault(tmp_path / "a.csv", FileFormatError))


@pytest.mark.filterwarnings("ignore::lamina.errors.LaminaWarning")
def test_damaged_tables_give_clear_errors(tmp_path):
    text = "a,b,c\n" + "".join(f"{k},{k / 7:.4f},{k % 3}\n" for k in range(20))
    damage_and_load(tmp_path, text.encode(), "bad.csv", trials=300)


# Other files --------------------------------------------------------------------------------------


def test_a_missing_file(tmp_path):
    assert str(fault(tmp_path / "absent.npz", DataError)) == (
        f"in {tmp_path / 'absent.npz'}: there is no such file\n"
        f"  current folder  {Path.cwd()}\n"
        "  Check the spelling; a relative path counts from the current folder."
    )


def test_files_of_an_unknown_or_another_format_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"")
    assert fault(tmp_path / "a.npz", FileFormatError).problem == "the file is empty"
    (tmp_path / "a.mat").write_bytes(b"MATLAB 5.0")
    assert str(fault(tmp_path / "a.mat", FileFormatError)) == (
        f"in {tmp_path / 'a.mat'}: the kind of file is not known\n"
        "  expected  .npz, .npy, .h5, IDX (also .gz), .csv, or a folder of pictures\n"
        "  found     .mat ending, first bytes 4d 41 54 4c 41 42 20 35\n"
        "  Read the data by other means, and wrap the arrays: lamina.data.Dataset(x, y)."
    )
    pytest.importorskip("h5py", reason="h5py is not installed")
    for name in ("a.npz", "a.npy", "a.h5", "a.idx"):
        (tmp_path / name).write_bytes(b"this is just some text, and long enough for a header")
        fault(tmp_path / name, FileFormatError)


@pytest.mark.skipif(os.name != "posix", reason="named pipes as on POSIX")
def test_a_pipe_is_not_waited_for(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    (tmp_path / "cats").mkdir()
    image.new("L", (3, 2)).save(tmp_path / "cats" / "a.png")
    pipe = tmp_path / "cats" / "x.png"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        assert str(fault(path, DataError)) == (
            f"in {pipe}: this is not a regular file\n"
            "  expected  a file\n"
            "  found     a pipe, socket or device\n"
            "  Name one file."
        )


# Digits -------------------------------------------------------------------------------------------


def test_digits_have_the_known_counts_and_values():
    data = lm.data.digits()
    images, labels = data.inputs, data.targets
    assert repr(data) == "1797 examples: x u8[1, 8, 8], y i64[]"
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert labels[:10].tolist() == list(range(10))
    assert (images.min(), images.max()) == (0, 16)
    assert images[0, 0, 1].tolist() == [0, 0, 13, 15, 10, 15, 5, 0]
    assert data.classes == 10
    folder = Path(lm.data.__file__).parent
    assert sum(file.stat().st_size for file in folder.glob("digits-*.gz")) < 60_000
    notice = (folder / "NOTICE").read_text(encoding="utf-8")
    assert "CC BY 4.0" in notice
    assert "E. Alpaydin, C. Kaynak" in notice


def damage_and_load(folder, content, name, trials):
    """Each damaged file gives a data set or a clear error."""
    generator = np.random.default_rng(11)
    errors = []
    for _ in range(trials):
        (folder / name).write_bytes(damaged(content, generator))
        try:
            load(folder / name)
        except LaminaError as error:
            errors.append(error)
    assert all(error.where and error.advice for error in errors)
    assert len(errors) > trials // 4


# IDX: every element type is read, and every damaged file gives a clear error ----------------------


CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def encode(array):
    content = array.astype(array.dtype.newbyteorder(">")).tobytes()
    return header(CODES[array.dtype.str[1:]], *array.shape) + content


def header(code, *shape):
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)


def outcome(path, monkeypatch):
    """The array or error of reading the file, and the number of unpacked bytes."""
    unpacked = 0
    read = gzip.GzipFile.read

    def counting(file, size=-1):
        nonlocal unpacked
        result = read(file, size)
        unpacked += len(result)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(gzip.GzipFile, "read", counting)
        try:
            return read_idx(path), unpacked
        except LaminaError as error:
            return error, unpacked


def idx_fault(path, content):
    path.write_bytes(content)
    error = refused(FileFormatError, read_idx, path)
    assert error.where == str(path)
    assert error.advice
    return error


@pytest.mark.parametrize("dtype", CODES)
def test_reads_every_element_type(tmp_path, dtype):
    array = (np.random.default_rng(0).standard_normal((3, 4, 5)) * 100).astype(dtype)
    path = tmp_path / "any-name"
    for packed in (bytes, gzip.compress):
        path.write_bytes(packed(encode(array)))
        result = read_idx(path)
        assert result.dtype == array.dtype
        assert result.dtype.isnative
        assert np.array_equal(result, array)


def test_a_short_file_names_both_sizes(tmp_path):
    content = encode(np.zeros((10, 28, 28), np.uint8))
    error = idx_fault(tmp_path / "images", content[:5000])
    assert str(error) == (
        f"in {tmp_path / 'images'}: the file is truncated\n"
        "  declared      [10, 28, 28] of uint8, 7,856 bytes with the header\n"
        "  size on disk  5,000 bytes\n"
        "  Fetch or write the file again; it was changed or truncated."
    )


# Without the time: the names of the cases are equal in all processes.
compress = partial(gzip.compress, mtime=0)
NOISE = encode(np.random.default_rng(0).integers(0, 256, (10, 28, 28), np.uint8))
ZEROS = encode(np.zeros((10, 3), np.uint8))
FLIPPED = bytearray(compress(ZEROS))
FLIPPED[-8] ^= 1
LONGER = "the file goes on after its last element"
HUGE = header(0x0E, *[2**32 - 1] * 32) + bytes(100)


@pytest.mark.cases(
    ("content", "text"),
    (compress(NOISE)[:5000], "size on disk  5,000 bytes, compressed"),
    (compress(NOISE[:-1]), "7,855 bytes"),
    *((packed(ZEROS + b"\0"), LONGER) for packed in (bytes, compress)),
    (compress(ZEROS) + b"tail", "the file is damaged"),
    (FLIPPED, "BadGzipFile: CRC check failed"),
    *(
        (bytes([0, 0, 8, n]) + b"\0\0\0\1" * n, f"  expected  1 to 32\n  found     {n}\n")
        for n in (0, 33, 255)
    ),
    (header(8, 10, 28, 28)[:-3], "  expected  16 bytes of header\n  found     13 bytes\n"),
    (header(8, 0, 2**32 - 1, 2**32 - 1), "the header declares an array without elements"),
    # Refused before it is read.
    *((HUGE, "  size on disk  "), (compress(HUGE), "  stored")),
)
def test_a_damaged_file_is_refused(tmp_path, content, text):
    assert text in str(idx_fault(tmp_path / "file", content))


def test_another_kind_of_file(tmp_path):
    for content, description in (
        *((b"", "an empty file"), (b"\0\0\x08", "00 00 08"), (b"hello world", "68 65 6c 6c")),
        (b"\0\0\x0a\x01\0\0\0\x01\0", "00 00 0a 01"),
        (b"\0\x01\x08\x01\0\0\0\x01\0", "00 01 08 01"),
    ):
        error = idx_fault(tmp_path / "file", content)
        assert error.problem == "the file does not begin like an IDX file"
        assert dict(error.facts)["found"] == description


def test_a_gzip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    """The stream holds a hundred times what its header declares."""
    content = compress(header(8, 100_000) + bytes(10_000_000))
    (tmp_path / "file").write_bytes(content)
    result, unpacked = outcome(tmp_path / "file", monkeypatch)
    assert isinstance(result, FileFormatError)
    assert result.problem == LONGER
    assert unpacked == 8 + 100_000 + 1


def test_a_missing_file_and_a_folder_are_no_files(tmp_path):
    assert refused(DataError, read_idx, tmp_path / "absent").problem == "there is no such file"
    assert dict(refused(DataError, read_idx, tmp_path).facts)["found"] == "a folder"


def test_a_thousand_damaged_files_give_an_array_or_a_clear_error(tmp_path, monkeypatch):
    generator = np.random.default_rng(20240)
    sources = [
        encode((generator.standard_normal(shape) * 50).astype(dtype))
        for dtype, shape in (("u1", (6, 7, 8)), ("u1", (300,)), ("i4", (9, 5)), ("f8", (4, 4, 2)))
    ]
    path, refusals = tmp_path / "file", 0
    for trial in range(1000):
        content = sources[trial % len(sources)]
        inside = trial % 2 or trial % 3 == 0  # damage done before compression passes the checksum
        if inside:
            content = damaged(content, generator)
        if trial % 2 == 0:
            content = compress(content, compresslevel=1)
        if not inside:
            content = damaged(content, generator)
        path.write_bytes(content)
        result, unpacked = outcome(path, monkeypatch)
        # Time and memory are bounded: no header makes the reader unpack without end.
        assert unpacked <= 1032 * len(content) + 4096
        if isinstance(result, LaminaError):
            refusals += 1
            assert result.where == str(path)
            assert result.facts
            assert result.advice
        else:
            plain = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
            assert result.shape == struct.unpack(f">{plain[3]}I", plain[4 : 4 + 4 * plain[3]])
            assert encode(result) == plain
    assert 700 < refusals < 970


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(1)
    for part, count in (("train", 6), ("t10k", 4)):
        images = generator.integers(0, 256, (count, 28, 28), np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(compress(encode(images)))
        labels = np.arange(count, dtype=np.uint8)
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(encode(labels))
    return tmp_path


def test_images_with_labels(tmp_path):
    images, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), tmp_path / "labels"
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(gzip.compress(encode(images)))
    assert fault(path, DataError, targets=labels).where == str(labels)
    labels.write_bytes(encode(np.array([7, 1], np.uint8)))
    data = load(path, targets=str(labels))
    assert repr(data) == "2 examples: x u8[1, 3, 4], y i64[]"
    assert np.array_equal(data.inputs[:, 0], images)
    assert repr(load(path)) == "2 examples: x u8[1, 3, 4]"
    assert "lamina.data.mnist(folder)" in fault(tmp_path, DataError).advice


def test_mnist_names_files_that_are_missing_or_do_not_fit(folder):
    shown = [repr(data) for data in mnist(folder)]
    assert shown == [f"{count} examples: x u8[1, 28, 28], y i64[]" for count in (6, 4)]
    (folder / "t10k-labels-idx1-ubyte").unlink()
    assert error_text(DataError, mnist, folder) == (
        f"in {folder}: the file t10k-labels-idx1-ubyte.gz is missing\n"
        "  expected  t10k-labels-idx1-ubyte.gz or t10k-labels-idx1-ubyte\n"
        "  found     t10k-images-idx3-ubyte.gz, train-images-idx3-ubyte.gz,"
        " train-labels-idx1-ubyte\n"
        "  Put all four files of the data set into this folder."
    )
    (folder / "t10k-labels-idx1-ubyte").write_bytes(encode(np.arange(4, dtype=np.uint8)))
    (folder / "train-labels-idx1-ubyte").write_bytes(encode(np.zeros(5, np.uint8)))
    error = refused(DataError, mnist, folder)
    assert error.where == str(folder)
    assert "6 examples" in str(error)
    error = refused(DataError, mnist, folder / "absent")
    assert dict(error.facts)["found"] == "no such folder"
