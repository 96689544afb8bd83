"""Folders of pictures: which are read, their classes, and what is refused."""

import sys

import numpy as np
import pytest
from error_texts import error_text, refused
from test_data_readers import fault

import lamina as lm
from lamina.data import load
from lamina.errors import DataError, FileFormatError, LaminaWarning, MissingExtraError

PILLOW = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
GREY = np.arange(12, dtype=np.uint8).reshape(3, 4)


def save(path, pixels=GREY, **options):
    path.parent.mkdir(exist_ok=True, parents=True)
    image = PILLOW.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    image.save(path, **options)


def test_subfolders_are_the_classes(tmp_path):
    save(tmp_path / "dogs" / "1.png", GREY + 1)
    save(tmp_path / "cats" / "2.bmp", GREY + 2)
    save(tmp_path / "cats" / "1.PNG", GREY)
    (tmp_path / "cats" / "notes.txt").write_text("no picture")
    data = load(tmp_path)
    assert repr(data) == "3 examples: x u8[1, 3, 4], y i64[]"
    assert data.targets.tolist() == [0, 0, 1]
    assert np.array_equal(data.inputs[:, 0], [GREY, GREY + 2, GREY + 1])
    # Colour channels are the first axis.
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    save(tmp_path / "colour" / "a" / "1.png", pixels)
    assert np.array_equal(load(tmp_path / "colour").inputs, [np.moveaxis(pixels, 2, 0)])


def test_pictures_that_do_not_fit_and_other_options_are_refused(tmp_path, monkeypatch):
    first, second = tmp_path / "a" / "1.png", tmp_path / "a" / "2.png"
    first.parent.mkdir()
    assert fault(tmp_path, DataError).problem == "the folder holds no pictures in subfolders"
    save(first, np.zeros((3, 4), np.uint8))
    save(second, np.zeros((5, 4, 3), np.uint8))
    assert str(fault(tmp_path, DataError)) == (
        f"in {second}: the pictures differ in size or colour\n"
        f"  expected  grey, 4 wide, 3 high as in {first}\n"
        "  found     colour, 4 wide, 5 high\n"
        "  Bring all pictures to one size, and all to grey or all to colour."
    )
    save(first, np.random.default_rng(0).integers(0, 256, (30, 40), np.uint8))
    first.write_bytes(first.read_bytes()[:300])
    assert fault(tmp_path, FileFormatError).where == str(first)
    problem = fault(tmp_path, DataError, targets="a").problem
    assert problem == "targets cannot be chosen by 'a' in a folder of pictures"
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert 'pip install "lamina[data]"' in error_text(MissingExtraError, load, tmp_path)


def test_hidden_empty_and_cache_folders_are_no_classes(tmp_path):
    for name in ("b", "a", "a/.cache", ".ipynb_checkpoints", "__MACOSX", "@eaDir", "__pycache__"):
        save(tmp_path / name / "1.png")
    (tmp_path / "A").mkdir()
    (tmp_path / "a" / "._1.png").write_bytes(b"of macOS")
    data = load(tmp_path)
    assert data.coding.classes == ("a", "b")
    assert data.targets.tolist() == [0, 1]


def test_numbered_folders_are_in_the_order_of_their_numbers(tmp_path):
    names = ("-2", "-1", "0,5", "1", "1.5", "02", "2", "+3", "10", "1_0", "nan", "x")
    for name in sorted(names, reverse=True):
        save(tmp_path / name / "1.png")
    assert load(tmp_path).coding.classes == names


def test_pictures_in_folders_of_a_class_are_not_left_out(tmp_path):
    save(tmp_path / "a" / "1.png")
    save(tmp_path / "train" / "b" / "1.png")
    error = fault(tmp_path, DataError)
    assert error.problem == "the subfolder 'train' has pictures in folders of its own"
    assert dict(error.facts)["found"] == str(tmp_path / "train" / "b" / "1.png")


HOW = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "progress": False}


def three_classes_and_two(folder):
    """Pictures for training of three classes, and for testing of two of them."""
    for number, name in enumerate("abc"):
        save(folder / "train" / name / "1.png", GREY + number)
    for number, name in ((1, "c"), (0, "a")):
        save(folder / "test" / name / f"{number}.png", GREY + number)


@pytest.fixture
def folders(tmp_path):
    three_classes_and_two(tmp_path)
    return tmp_path


def test_a_test_folder_without_a_class_has_the_labels_of_the_training_folder(folders):
    train, test = load(folders / "train"), load(folders / "test")
    model = lm.Model(lm.Sequential(lm.Input(1, 3, 4), lm.Flatten(), lm.Linear(3)))
    text = (
        "the folder is coded otherwise than the training data\n"
        "  expected  words of 'class': 3; number 1 is 'b'\n"
        "  found     words of 'class': 2; number 1 is 'c'\n"
    )
    assert text in error_text(DataError, lambda: model.fit(train, validation=test, **HOW))
    model.fit(train, validation=train.coding.dataset(folders / "test"), **HOW)
    model.save(folders / "model")
    loaded = lm.load(folders / "model")
    error = refused(DataError, loaded.evaluate, test, lm.CrossEntropy())
    assert text in str(error)
    assert "model.coding.dataset('test')" in error.advice
    assert loaded.coding.classes == ("a", "b", "c")
    coded = loaded.coding.dataset(str(folders / "test"))
    assert coded.targets.tolist() == [0, 2]
    loaded.evaluate(coded, lm.CrossEntropy())
    # Arrays are predicted as without a coding, and a folder too.
    expected = model.predict(test.inputs)
    for images in (test.inputs.tolist(), coded, folders / "test"):
        np.testing.assert_array_equal(loaded.predict(images), expected)
    with pytest.warns(LaminaWarning, match="the folder is coded otherwise than the data on which"):
        model.fit(test, **HOW)


def test_unknown_classes_and_other_data_are_refused(folders):
    coding = load(folders / "test").coding
    assert error_text(DataError, lambda: coding.dataset(folders / "train")) == (
        f"in {folders / 'train'}: the subfolder 'b' is none of the classes\n"
        "  expected  a, c\n"
        "  found     a, b, c\n"
        "  Rename it, leave it out, or train on a folder that has all classes."
    )
    for other in ({"a": [1.0]}, folders / "train" / "a" / "1.png"):
        for call in (coding.inputs, coding.dataset):
            assert "this is not a folder of pictures" in error_text(DataError, call, other)


def test_pictures_are_upright_and_the_preview_of_a_camera_is_no_frame(tmp_path):
    exif = PILLOW.Exif()
    exif[0x0112] = 6  # to be rotated clockwise
    save(tmp_path / "a" / "1.png", exif=exif)
    assert np.array_equal(load(tmp_path).inputs[0, 0], np.rot90(GREY, -1))
    frames = [PILLOW.fromarray(np.stack([GREY + n] * 3, 2)) for n in range(2)]
    path = tmp_path / "preview" / "a" / "1.jpg"
    save(path, frames[0], save_all=True, append_images=frames[1:], format="MPO")
    assert load(tmp_path / "preview").inputs.shape == (1, 3, 3, 4)


def test_opaque_pictures_with_an_alpha_channel_are_read(tmp_path):
    for mode, shape in (("RGBA", (1, 3, 3, 4)), ("LA", (1, 1, 3, 4))):
        save(tmp_path / mode / "a" / "1.png", PILLOW.fromarray(GREY).convert(mode))
        images = load(tmp_path / mode).inputs
        assert images.shape == shape
        assert np.array_equal(images[0, 0], GREY)


def with_palette(mode):
    image = PILLOW.fromarray(GREY % 3, "P")
    colours = np.array([[9, 8, 7, 255], [5, 4, 3, 0], [1, 2, 3, 255]])
    image.putpalette(colours[:, : len(mode)].ravel().tolist(), mode)
    return image


def test_transparent_pixels_are_refused(tmp_path):
    path, colour = tmp_path / "a" / "1.png", np.stack([GREY] * 3, axis=2)
    transparent = PILLOW.fromarray(np.dstack([colour, np.uint8(255) - GREY // 11]), "RGBA")
    for image, options in (
        (transparent, {}),
        (transparent.convert("LA"), {}),
        (with_palette("RGBA"), {}),
        (with_palette("RGB"), {"transparency": 1}),
        (GREY, {"transparency": 1}),
        (colour, {"transparency": (1, 1, 1)}),
    ):
        save(path, image, **options)
        error = fault(tmp_path, DataError)
        assert error.problem == "the picture is transparent"
        assert dict(error.facts)["found"].endswith(" with transparent pixels")


def test_further_frames_are_refused(tmp_path):
    frames = [PILLOW.fromarray(GREY + 90 * n) for n in range(3)]
    for suffix in ("gif", "png", "tif", "webp"):
        path = tmp_path / suffix / "a" / f"1.{suffix}"
        save(path, frames[0], save_all=True, append_images=frames[1:])
        error = fault(tmp_path / suffix, DataError)
        assert error.problem == "the picture has several frames"
        assert dict(error.facts)["found"] == "3 frames"
