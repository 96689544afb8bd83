"""Tables and pictures show the given values; pictures are written whole or not at all."""

import sys

import numpy as np
import pytest
from error_texts import error_text

from lamina.errors import DataError, DefinitionError, InternalError, MissingExtraError
from lamina.reports import (
    Rectangle,
    bytes_text,
    count_text,
    map_text,
    plot_confusion,
    plot_curves,
    plot_images,
    plot_map,
    plot_plan,
    table_text,
)

PNG = b"\x89PNG\r\n\x1a\n"
LOSSES = {"loss": [2.3, 0.9, 0.4], "validation_loss": [2.0, 1.0, 0.6]}
PLAN = (
    Rectangle("h0", 0, 4096, 0, 3, "activation"),
    Rectangle("h1", 4096, 2048, 1, 2, "activation"),
    Rectangle("d_h1", 4096, 2048, 2, 4, "gradient", in_place=True),
)
STEPS = ("matmul", "relu", "loss", "d_matmul")


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    from matplotlib.figure import Figure

    caught = []
    original = Figure.savefig

    def savefig(self, *arguments, **options):
        caught.append(self)
        return original(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return caught


@pytest.fixture
def path(tmp_path):
    """The file of a picture; if it was written, it is a whole one in the end."""
    yield tmp_path / "picture.png"
    for file in tmp_path.iterdir():
        assert file.read_bytes().startswith((PNG, b"old"))


def texts_of(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


@pytest.mark.cases(
    ("function", "count", "text"),
    *((bytes_text, 0, "0 B"), (bytes_text, 1023, "1023 B"), (bytes_text, 1024, "1 KiB")),
    *((bytes_text, 1536, "1.5 KiB"), (bytes_text, 1_310_720, "1.25 MiB")),
    *((bytes_text, 2**20 - 1, "1 MiB"), (bytes_text, 2**31, "2 GiB")),
    *((bytes_text, 5 * 2**60, "5120 PiB"), (bytes_text, -2048, "-2 KiB")),
    *((count_text, 0, "0"), (count_text, 431_080, "431,080"), (count_text, -12, "-12")),
    *((count_text, 9_999_999, "9,999,999"), (count_text, 25_557_032, "25.6 M")),
    *((count_text, 123_456_789, "123 M"), (count_text, 999_999_999, "1.00 G")),
    (count_text, 4_100_000_000, "4.10 G"),
)
def test_counts_are_shown_in_the_largest_unit_that_fits(function, count, text):
    assert function(count) == text


def test_a_table_aligns_its_columns():
    table = table_text(
        ("layer", "output", "parameters"),
        [("0:Linear", "[10]", "7,850"), ("1:ReLU", "[10]", "0")],
        align="llr",
        footer=("total", "", "7,850"),
    )
    assert table.splitlines() == [
        "layer     output  parameters",
        "--------  ------  ----------",
        "0:Linear  [10]         7,850",
        "1:ReLU    [10]             0",
        "--------  ------  ----------",
        "total                  7,850",
    ]


def test_a_table_without_rows_is_its_header_and_rows_have_one_length():
    assert table_text(("a", "b"), []) == "a  b\n-  -"
    text = error_text(InternalError, table_text, ("a", "b"), [("1",)])
    assert text == "a table of 2 columns has a row of another length"


def test_a_map_is_text_of_lines_of_one_length_with_the_lowest_row_last():
    assert map_text([[0.0, 1.0], [0.5, 0.0]], characters=" +#") == "+ \n #"
    # Values are clipped, and NaN is a question mark.
    assert map_text([[-3.0, 1.5, float("nan")]], characters=".#") == ".#?"
    assert map_text(np.zeros((2, 3))).splitlines() == ["   ", "   "]


@pytest.mark.sampled
def test_a_map_is_drawn_with_its_points(path, figures):
    y, x = np.mgrid[-1:1:20j, -1:1:30j]
    points = np.array([[0.0, 0.0], [0.9, 0.9], [-0.9, 0.9]])
    plot_map(
        x * x + y * y,
        path,
        extent=(-1, 1, -1, 1),
        points=points,
        labels=[0, 1, 1],
        names=("inside", "outside"),
    )
    assert path.exists()
    legend = figures[0].axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["inside", "outside"]


def test_curves_share_a_panel_with_their_validation(path, figures):
    plot_curves({"accuracy": [0.1, 0.5, 0.8], **LOSSES}, path)
    loss, accuracy = figures[0].axes
    assert [loss.get_title(loc="left"), accuracy.get_title(loc="left")] == ["loss", "accuracy"]
    assert [line.get_label() for line in loss.lines] == ["training", "validation"]
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3]
    assert list(loss.lines[1].get_ydata()) == LOSSES["validation_loss"]


EXTENT = {"extent": (0, 1, 0, 1)}
EMPTY = {"peak_bytes": 0, "lower_bound_bytes": 0}


@pytest.mark.cases(
    ("plot", "data", "how"),
    (plot_curves, {"loss": [1.0]}, {}),
    (plot_curves, {"loss": [float("nan"), float("nan")]}, {}),
    (plot_curves, {"loss": [0.0, 1.0], "accuracy": []}, {}),
    (plot_curves, {f"metric_{number}": [0.1] * 100 for number in range(7)}, {}),
    *((plot_plan, [], {"steps": ["step"] * steps, **EMPTY}) for steps in (1, 1000)),
    (plot_map, np.zeros((1, 4)), EXTENT),  # without points or a boundary,
)
def test_data_of_any_size_are_drawn(path, plot, data, how):
    plot(data, path, **how)
    assert path.exists()


ONE_LABEL_LESS = {**EXTENT, "points": np.zeros((3, 2)), "labels": [0, 1]}
SQUARE = "a row and a column of counts for each class"
SHEET = "a sheet is made of images"
NO_MAP = (
    "a map needs a grid of values\n"
    "  expected  (rows, columns)\n"
    "  found     (2,)\n"
    "  Reshape the values to (rows, columns)."
)


@pytest.mark.cases(
    ("plot", "data", "how", "texts"),
    (map_text, [0.0, 1.0], {}, [NO_MAP]),
    (plot_map, np.zeros((2, 2)), ONE_LABEL_LESS, ["points  (3, 2)", "labels  (2,)"]),
    (plot_curves, {"loss": []}, {}, ["there are no curves to draw"]),
    (plot_plan, [], {"steps": [], **EMPTY}, ["a plan without steps cannot be drawn"]),
    *(
        (plot_confusion, counts, {}, [SQUARE, f"found     {counts.shape}"])
        for counts in (np.ones((2, 3)), np.ones(4), np.zeros((0, 0)), -np.eye(2))
    ),
    (
        *(plot_confusion, np.eye(3), {"names": ["yes", "no"]}),
        ["the number of names differs from the number of classes", "names    2"],
    ),
    *(
        (plot_images, np.zeros(shape), {}, [SHEET, f"found     {shape}"])
        for shape in ((8, 8), (2, 4, 8, 8), (0, 8, 8))
    ),
    (
        *(plot_images, np.zeros((3, 8, 8)), {"captions": ["one"]}),
        ["images and captions do not fit together"],
    ),
)
def test_data_that_cannot_be_drawn_are_refused(path, plot, data, how, texts):
    text = error_text(DataError, plot, data, *([path] if plot is not map_text else []), **how)
    assert all(one in text for one in texts)
    assert not path.exists()


def test_a_loss_that_falls_far_is_drawn_logarithmically(path, figures):
    plot_curves({"loss": [10.0, 0.01], "error": [10.0, 0.01]}, path)
    assert [axes.get_yscale() for axes in figures[0].axes] == ["log", "linear"]


def test_a_plan_names_its_buffers_and_bounds(path, figures):
    plot_plan(
        PLAN,
        path,
        steps=STEPS,
        peak_bytes=6144,
        lower_bound_bytes=6000,
        persistent={"parameters": 4096, "batch inputs": 1024, "nothing": 0},
        title="a plan",
    )
    bar, arena = figures[0].axes
    assert texts_of(arena) == ["h0\n4 KiB", "h1\n2 KiB", "d_h1\n2 KiB"]
    assert texts_of(bar) == ["parameters\n4 KiB", "batch inputs\n1 KiB"]
    assert [label.get_text() for label in arena.get_xticklabels()][1] == "relu 1"
    legend = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert legend == ["arena  6 KiB  (+2.4%)", "lower bound  5.86 KiB", "activation", "gradient"]


def test_buffers_that_share_an_offset_in_one_step_are_drawn_side_by_side(path, figures):
    plot_plan(PLAN, path, steps=STEPS, peak_bytes=6144, lower_bound_bytes=6144)
    _, before, after = figures[0].axes[0].patches
    assert before.get_x() + before.get_width() == after.get_x() == 2
    assert after.get_x() + after.get_width() == len(STEPS) - 0.5


@pytest.mark.sampled
def test_a_plan_of_many_buffers_names_only_those_with_room(path, figures):
    small = [Rectangle(f"small{n}", 100_000 + 10 * n, 10, n, n + 1) for n in range(60)]
    plot_plan(
        [Rectangle("large", 0, 100_000, 0, 60), *small],
        path,
        steps=[f"a step with a long name that says much {n}" for n in range(60)],
        peak_bytes=100_600,
        lower_bound_bytes=100_600,
    )
    assert texts_of(figures[0].axes[0]) == ["large\n97.66 KiB"]


COUNTS = np.array([[50, 2, 0], [1, 9, 0], [0, 0, 0]])


def test_a_confusion_matrix_shows_counts_coloured_by_the_true_class(path, figures):
    names = ["shirt", "coat", "bag"]
    plot_confusion(COUNTS, path, names=names, title="Clothes")
    axes = figures[0].axes[0]
    assert texts_of(axes) == ["50", "2", "1", "9"]
    (picture,) = axes.images
    np.testing.assert_allclose(picture.get_array()[:2], [[50 / 52, 2 / 52, 0], [0.1, 0.9, 0]])
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")


def test_a_confusion_matrix_of_many_classes_has_no_numbers(path, figures):
    plot_confusion(np.eye(40, dtype=int), path)
    assert texts_of(figures[0].axes[0]) == []


@pytest.mark.parametrize("shape", [(7, 4, 6), (7, 1, 4, 6), (7, 3, 4, 6)])
def test_a_sheet_shows_its_images_row_by_row(path, figures, shape):
    images = np.random.default_rng(0).uniform(-0.5, 1.5, shape)
    plot_images(images, path, columns=3, title="Noise")
    (axes,) = figures[0].axes
    (picture,) = axes.images
    sheet = np.asarray(picture.get_array())
    assert sheet.shape[:2] == (3 * 4 + 2, 3 * 6 + 2)
    last = images[6].reshape(-1, 4, 6).transpose(1, 2, 0).squeeze()
    np.testing.assert_array_equal(sheet[10:, :6], np.clip(last, 0, 1))
    assert (sheet[10:, 6:] == 1).all()
    assert axes.get_title() == "Noise"


def test_a_sheet_has_captions(path, figures):
    plot_images(np.zeros((3, 8, 8)), path, captions=["one", "two", "three"])
    assert texts_of(figures[0].axes[0]) == ["one", "two", "three"]


def test_the_suffix_chooses_the_format_of_a_picture(tmp_path):
    text = error_text(DefinitionError, plot_curves, LOSSES, tmp_path / "curves.docx")
    assert "curves.docx: pictures cannot be written as .docx" in text
    assert "png" in text
    assert list(tmp_path.iterdir()) == []
    plot_curves(LOSSES, tmp_path / "curves.svg")
    plot_curves(LOSSES, tmp_path / "curves")
    assert b"<svg" in (tmp_path / "curves.svg").read_bytes()
    assert (tmp_path / "curves").read_bytes().startswith(PNG)


def test_a_picture_that_cannot_be_written_leaves_the_old_one(path, monkeypatch):
    path.write_bytes(b"old")

    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "no space left" in error_text(DataError, plot_curves, LOSSES, path)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert error_text(MissingExtraError, plot_curves, LOSSES, "curves.png") == (
        "a plot of curves needs the package matplotlib, which is not installed\n"
        '  Install it with: pip install "lamina[plot]"'
    )
