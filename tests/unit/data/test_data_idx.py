"""IDX files: every element type is read, and every damaged file gives a clear error."""

import gzip
import os
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused

from lamina.data import mnist, read_idx
from lamina.errors import DataError, FileFormatError, LaminaError

# A folder with the original files.
FASHION_MNIST = Path(os.environ.get("LAMINA_FASHION_MNIST", "fashion-mnist"))
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def encode(array: np.ndarray[Any, Any]) -> bytes:
    content = array.astype(array.dtype.newbyteorder(">")).tobytes()
    return header(CODES[array.dtype.str[1:]], *array.shape) + content


def header(code: int, *shape: int) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)


def outcome(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray[Any, Any] | LaminaError, int]:
    """The array or error of reading the file, and the number of unpacked bytes."""
    unpacked = 0
    read = gzip.GzipFile.read

    def counting(file: gzip.GzipFile, size: int | None = -1) -> bytes:
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


def fault(path: Path, content: bytes) -> FileFormatError:
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
    error = fault(tmp_path / "images", content[:5000])
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


@pytest.mark.parametrize(
    ("content", "text"),
    [
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
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, text):
    assert text in str(fault(tmp_path / "file", content))


def test_another_kind_of_file(tmp_path):
    for content, found in (
        *((b"", "an empty file"), (b"\0\0\x08", "00 00 08"), (b"hello world", "68 65 6c 6c")),
        (b"\0\0\x0a\x01\0\0\0\x01\0", "00 00 0a 01"),
        (b"\0\x01\x08\x01\0\0\0\x01\0", "00 01 08 01"),
    ):
        error = fault(tmp_path / "file", content)
        assert error.problem == "the file does not begin like an IDX file"
        assert dict(error.facts)["found"] == found


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


def damaged(content: bytes, generator: np.random.Generator) -> bytes:
    """The contents truncated, with flipped bits, with added bytes, or all of these."""
    result = bytearray(content)
    kinds = generator.integers(1, 8)
    if kinds & 1:
        del result[int(generator.integers(0, len(result) + 1)) :]
    if kinds & 2 and result:
        # Half of the flips go to the headers, where they do most harm.
        reach = len(result) if generator.random() < 0.5 else min(len(result), 24)
        for position in generator.integers(0, reach, generator.integers(1, 9)):
            result[position] ^= 1 << int(generator.integers(0, 8))
    if kinds & 4:
        result += generator.bytes(int(generator.integers(1, 64)))
    return bytes(result)


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


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="the files of Fashion-MNIST are not at hand")
def test_fashion_mnist_is_read():
    for data, count in zip(mnist(FASHION_MNIST), (60_000, 10_000), strict=True):
        assert repr(data) == f"{count} examples: x u8[1, 28, 28], y i64[]"
        assert data.classes == 10
        assert np.bincount(data.targets).tolist() == [count // 10] * 10
        assert data.inputs.max() == 255
