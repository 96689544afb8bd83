"""Layers: values and derivatives against NumPy and PyTorch, shapes, and the text of errors."""

import ast
import dataclasses
import json
import math
import operator
import re
from pathlib import Path

import numpy as np
import pytest
from docstring_examples import example_of, inputs_like
from foreign_names import TORCH_MODULES
from layer_cases import LAYERS, network_of
from layer_values import run, traced
from random_arrays import normal64

import lamina
from lamina import layers as lm
from lamina.base.shapes import BATCH, float16, float32
from lamina.files.decode import decode
from lamina.files.encode import encode
from lamina.graph import Graph, bind_batch, evaluate
from lamina.layers import init
from lamina.layers.layer import Layer

A, B, C = normal64(2, 3, 4), normal64(2, 3, 4) + 1, normal64(2, 3, 4) * 2
IMAGES, SCALE, ROWS = normal64(2, 3, 4, 5), normal64(2, 3, 1, 1), normal64(2, 12)
BYTES = np.array([[0, 255], [51, 102]], np.uint8)
VALUES = [
    (lm.Flatten(), [IMAGES], IMAGES.reshape(2, 60)),
    (lm.Flatten(), [normal64(3)], normal64(3)[:, None]),
    (lm.Flatten(), [normal64(3, 7)], normal64(3, 7)),
    (lm.Reshape(3, 4), [ROWS], ROWS.reshape(2, 3, 4)),
    (lm.Reshape(2, -1), [ROWS], ROWS.reshape(2, 2, 6)),
    (lm.Reshape(-1), [ROWS], ROWS),
    (lm.Reshape(), [normal64(5, 1)], normal64(5, 1)[:, 0]),
    (lm.Rescale(1 / 255, offset=-0.5), [BYTES], BYTES / 255 - 0.5),
    (lm.Rescale(1.0), [BYTES], BYTES.astype(float)),
    (lm.Add(), [A, B, C], A + B + C),
    (lm.Multiply(), [A, B, C], A * B * C),
    (lm.Multiply(), [IMAGES, SCALE], IMAGES * SCALE),
    (lm.Concat(), [A, B, C], np.concatenate([A, B, C], 1)),
    (lm.Concat(axis=2), [A, B], np.concatenate([A, B], 2)),
]


@pytest.mark.parametrize(("layer", "arrays", "expected"), VALUES)
def test_a_layer_is_its_formula(layer, arrays, expected):
    found = run(layer, *arrays)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.cases(
    ("layer", "example", "shapes", "fan"),
    (lm.Linear(300), (400,), [(300, 400), (300,)], 400),
    (lm.Conv2d(50, (3, 4), groups=2), (64, 9, 9), [(50, 32, 3, 4), (50,)], 32 * 12),
    (lm.ConvTranspose2d(50, (3, 4), groups=2), (64, 9, 9), [(64, 25, 3, 4), (50,)], 25 * 12),
)
def test_parameters_have_their_names_and_start_as_pytorchs_do(layer, example, shapes, fan):
    x = lm.Input(*example)
    record = traced([x], layer(x)).record
    assert list(record.parameters) == ["0.weight", "0.bias"]
    for variable, shape in zip(record.parameters.values(), shapes, strict=True):
        values = variable.init(shape, 0, variable.stream)
        assert variable.tensor.shape == values.shape == shape
        assert np.abs(values).max() <= 1 / math.sqrt(fan)
        tolerance = 0.05 if len(shape) > 1 else 0.25
        np.testing.assert_allclose(values.std(), 1 / math.sqrt(3 * fan), rtol=tolerance)


def layers():
    """The layers that the package exports."""
    public = {name: getattr(package, name) for package in (lm, lamina) for name in dir(package)}
    found = {n: v for n, v in public.items() if isinstance(v, type) and issubclass(v, Layer)}
    del found["Layer"]
    return found


WEIGHTED = [name for name, cls in layers().items() if "weight_init" in cls.__dataclass_fields__]


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_every_layer_start_as_they_are_told_and_are_penalised(name):
    example = example_of(layers()[name])
    options = {field.name for field in dataclasses.fields(example.made)}
    arguments = {option: init.Constant(2.0) for option in options if option.endswith("_init")}
    arguments |= {"weight_regularizer": lm.L2(0.1)} if "weight_regularizer" in options else {}
    arguments |= {"bias_regularizer": lm.L1(0.1)} if "bias_regularizer" in options else {}
    inputs = inputs_like(example.operands)
    y = dataclasses.replace(example.made, **arguments)(*inputs)
    record = traced(inputs, y[0] if isinstance(y, tuple) else y).record
    values = {n: v.init(v.tensor.shape, 0, 0) for n, v in record.parameters.items()}
    assert all((value == 2).all() for value in values.values())
    penalties = tuple((str(n), penalty) for n, penalty in enumerate(record.penalties))
    strengths = {n: np.asarray(value) for n, (_, value) in record.hyperparameters.leaves.items()}
    outputs, _ = evaluate(Graph((), penalties), {**values, **strengths})
    expected = [
        0.05 * (value**2).sum() if ".weight" in name else 0.1 * abs(value).sum()
        for name, value in values.items()
        if f"{name.split('.')[1].split('_')[0]}_regularizer" in options
    ]
    np.testing.assert_allclose([*outputs.values()], expected, rtol=1e-12)


# The deviation, 150,523, is no number of float16, but its product with noise is.
LARGE = 23.84375


@pytest.mark.cases(
    ("layer", "arrays", "expected"),
    (lm.Rescale(1e-3), [np.array([[100_000]])], 100.0),
    (lm.Softplus(beta=1e3), [np.array([[300.0]])], 300.0),
    (lm.Tanhshrink(), [np.array([[0.1]])], 0.1 - math.tanh(0.1)),
    (lm.GaussianSample(), [np.zeros((1, 1)), np.full((1, 1), LARGE)], None),
    ids=repr,
)
def test_large_numbers_within_a_layer_do_not_overflow_in_float16(layer, arrays, expected):
    inputs = [lm.Input(1, dtype="int64" if a.dtype.kind == "i" else None) for a in arrays]
    results = []
    for dtype in (float16, float32):
        trace = lamina.Network(inputs, layer(*inputs)).trace(dtype=dtype, training=True)
        graph = bind_batch(Graph(trace.inputs, (("y", trace.outputs[0]),)), 1)
        pairs = zip(trace.inputs, arrays, strict=True)
        feeds = {leaf.attributes["name"]: array.astype(leaf.dtype.numpy) for leaf, array in pairs}
        keys = {"seed": np.int64(2), "step": np.int64(2)}
        results.append(float(evaluate(graph, feeds | keys)[0]["y"].item()))
    assert results[0] == pytest.approx(results[1], rel=2e-3)
    assert expected is None or results[0] == pytest.approx(expected, rel=2e-3)
    assert abs(results[0]) < 65504


@pytest.mark.parametrize(
    ("layer", "together"),
    [(lm.Dropout(0.2), ()), (lm.SpatialDropout(0.2), (2, 3)), (lm.DropPath(0.2), (1, 2, 3))],
)
def test_dropout_keeps_or_drops_elements_channels_or_examples(layer, together):
    x = np.ones((60, 50, 2, 3))
    y = run(layer, x, training=True)
    assert set(np.unique(y)) == {0.0, 1.0 / 0.8}
    parts = y.min(together)
    np.testing.assert_array_equal(parts, y.max(together))
    np.testing.assert_allclose((parts == 0).mean(), 0.2, atol=4 * math.sqrt(0.16 / parts.size))


@pytest.mark.parametrize("layer", [lm.Dropout, lm.SpatialDropout, lm.AlphaDropout, lm.DropPath])
def test_a_probability_of_one_drops_everything(layer):
    x = normal64(3, 4, 5)
    np.testing.assert_array_equal(run(layer(1), x, training=True), np.zeros_like(x))
    np.testing.assert_array_equal(run(layer(1), x), x)
    slope = run(layer(1), x, training=True, upstream=np.ones_like(x))
    np.testing.assert_array_equal(slope, np.zeros_like(x))


@pytest.mark.cases(
    ("layer", "learns"),
    *((cls(3, layers=2, dropout=1), "_l1") for cls in (lm.RNN, lm.LSTM, lm.GRU)),
    (lm.MultiHeadAttention(2, dropout=1), "output.bias"),
    (lm.TransformerEncoderBlock(2, hidden=4, dropout=1), "norm."),
    ids=lambda argument: type(argument).__name__,
)
def test_nothing_before_a_dropout_of_one_learns(layer, learns):
    net = lamina.Sequential(lm.Input(5, 4), layer)
    model = lamina.Model(net, engine="interpreter", seed=0)
    before = model.parameters()
    x = normal64(3, 5, 4).astype("float32")
    shape = model.predict(x).shape
    how = {"loss": lamina.MSE(), "optimizer": lamina.SGD(0.1), "batch_size": 3}
    with model.training(**how) as training:
        assert math.isfinite(training.step(x, normal64(*shape).astype("float32")))
    after = model.parameters()
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed
    assert all(learns in name for name in changed)


def test_gaussian_noise_has_its_deviation_in_training():
    x = normal64(100, 100)
    np.testing.assert_array_equal(run(lm.GaussianNoise(0.3), x), x)
    noise = run(lm.GaussianNoise(0.3), x, training=True) - x
    np.testing.assert_allclose([noise.mean(), noise.std()], [0.0, 0.3], atol=0.01)


def test_a_gaussian_sample_has_mean_and_variance_and_is_the_mean_in_inference():
    mean, log_variance = np.full((200, 50), 2.0), np.full((200, 50), np.log(0.09))
    np.testing.assert_array_equal(run(lm.GaussianSample(), mean, log_variance), mean)
    sample = run(lm.GaussianSample(), mean, log_variance, training=True)
    np.testing.assert_allclose([sample.mean(), sample.std()], [2.0, 0.3], atol=0.01)


@pytest.mark.parametrize("whole_channels", [False, True])
def test_alpha_dropout_keeps_mean_and_variance(whole_channels):
    x = normal64(200, 50, 8, seed=2)
    layer = lm.AlphaDropout(0.3, whole_channels=whole_channels)
    y = run(layer, x, training=True)
    assert abs(y.mean()) < 0.03
    assert abs(y.var() - 1) < 0.05
    same = (y == y[:, :, :1]).all(2)
    assert (same.mean() > 0.2) == whole_channels
    np.testing.assert_array_equal(run(layer, x), x)


@pytest.mark.parametrize("whole_channels", [False, True])
@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_alpha_dropout_gives_the_two_values_of_pytorch(probability, whole_channels, torch):
    torch.manual_seed(0)
    x = np.full((400, 50, 2), 0.7)
    kind = torch.nn.FeatureAlphaDropout if whole_channels else torch.nn.AlphaDropout
    expected = kind(probability)(torch.tensor(x)).numpy()
    layer = lm.AlphaDropout(probability, whole_channels=whole_channels)
    dropped = run(layer, x, training=True)
    # One for the elements that are dropped, and one for those that stay.
    mine, theirs = (np.unique(y.round(9)) for y in (dropped, expected))
    assert len(mine) == 2
    np.testing.assert_allclose(mine, theirs, atol=1e-8)
    for y in (dropped, expected):
        assert abs((y < 0).mean() - probability) < 0.02
        assert (y[..., 0] == y[..., 1]).all() == whole_channels


def test_concat_function_applies_the_layer():
    y = lm.concat([lm.Input(10), lm.Input(5)])
    assert y.shape == (BATCH, 15)
    assert y.attributes["layer"] == lm.Concat(axis=1)
    assert y.origin.source.startswith("test_layers.py:")


def test_a_tensor_of_zeros_has_the_similarity_zero_and_finite_gradients():
    zeros, ones = np.zeros((1, 3)), np.ones((1, 3))
    assert run(lm.CosineSimilarity(), zeros, ones) == 0
    slope = run(lm.CosineSimilarity(), zeros, ones, upstream=np.ones(1))
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_saved_as_data(name):
    definition, arrays = encode(network_of(LAYERS[name]))
    again = decode(json.loads(json.dumps(definition)), arrays, [])
    assert encode(again)[0] == definition


def test_layers_are_equal_by_their_hyper_parameters():
    assert lm.Linear(3) == lm.Linear(3)
    assert lm.Linear(3) != lm.Linear(4)
    assert len({lm.Dropout(0.5), lm.Dropout(0.5), lm.Dropout(0.1)}) == 2
    assert lm.Linear(3).source.startswith("test_layers.py:")
    assert lm.Reshape(shape=(3, 4)) == lm.Reshape(3, 4)
    assert lm.Rescale(0.5)(lm.Input(2)).dtype == float32


PAGE = Path(__file__).parents[3] / "docs" / "layers.md"


def rows_of_the_page():
    """Of each layer its name, its options, its source, and its name in PyTorch."""
    row = r"^\| `(\w+)\((.*?)\)` \| (.*?) \|(.*?)\|$"
    return re.findall(row, PAGE.read_text(), re.MULTILINE)


def test_the_page_of_layers_lists_every_layer_with_its_options():
    names = [name for name, *_ in rows_of_the_page()]
    assert sorted(names) == sorted(layers())
    for name, options, source, _ in rows_of_the_page():
        assert source.strip(), name
        shown = dict(re.findall(r"(\w+)(?:=(\([^)]*\)|[^,]+))?(?:, |$)", options.replace("*", "")))
        fields = [field for field in dataclasses.fields(layers()[name]) if field.name != "name"]
        if name == "Reshape":
            assert shown == {"dimensions": ""}
            continue
        assert list(shown) == [field.name for field in fields], name
        for field in fields:
            if shown[field.name]:
                assert ast.literal_eval(shown[field.name]) == field.default, (name, field.name)
            else:
                optional = field.name.endswith(("_init", "_regularizer"))
                assert field.default is (None if optional else dataclasses.MISSING), name


def test_the_page_of_layers_names_existing_layers_of_pytorch(torch):
    for name, _, _, theirs in rows_of_the_page():
        for path in re.findall(r"`(?:torch\.)?(nn\.[\w.]+|cat|amax)", theirs):
            assert operator.attrgetter(path)(torch), name


def test_the_page_of_layers_lists_layers_that_pytorch_lacks():
    alone = {name for name, _, _, theirs in rows_of_the_page() if not theirs.strip()}
    assert alone.isdisjoint(TORCH_MODULES.split())
    assert "If the name is empty, PyTorch has no such layer" in PAGE.read_text().replace("\n", " ")
