"""Linear layers, activations, embeddings, layers of images and normalisation against PyTorch."""

import itertools

import numpy as np
import pytest
from test_activations import ACTIVATIONS, module_of
from torch_comparison import (
    Case,
    Mine,
    Theirs,
    changed,
    comparison,
    inputs_of,
    nn,
    normal,
    option_sets,
)

import lamina as lm
from lamina.base.shapes import float32, float64

pytestmark = pytest.mark.torch


def _activations():
    # Training with slopes that are drawn has other results.
    for layer, _ in ACTIVATIONS:
        if layer != lm.RReLU(low=0.2, high=0.4):
            yield Case(layer, lambda torch, layer=layer: module_of(torch, layer), [(3, 4, 6)])
    yield Case(lm.PReLU(per_channel=True, slope=0.1), nn("PReLU", 4, 0.1), [(3, 4, 5)])


def _embeddings():
    for o in option_sets(
        5, shape=[(6,), (4, 5), (2, 3, 4)], count=[1, 7, 30], features=[1, 8, 33], padding=[None, 0]
    ):
        shape, *sizes, padding = o.values()
        layer = lm.Embedding(*sizes, padding=padding)
        yield Case(layer, nn("Embedding", *sizes, padding), [shape], indices=o["count"])

    def one_hot(torch):
        return lambda x: torch.nn.functional.one_hot(x, 5).to(torch.get_default_dtype())

    yield Case(lm.OneHot(5), one_hot, [(4, 3)], indices=5)


def _bags():
    def weighted(bag, x, weights):
        return bag(x, per_sample_weights=weights)

    def masked(bag, x, mask):
        return bag(x[mask], mask.sum(1).cumsum(0) - mask.sum(1))

    for mode, padding in itertools.product(("mean", "sum", "max"), (None, 0, 2)):
        layer = lm.EmbeddingBag(6, 4, mode=mode, padding=padding)
        module = nn("EmbeddingBag", 6, 4, mode=mode, padding_idx=padding)
        yield Case(layer, module, [(4, 5)], indices=6)
        yield Case(layer, changed(module, masked), [(4, 5)], indices=6, masks=[(4, 5)])
        if mode == "sum":
            yield Case(layer, changed(module, weighted), [(4, 5), (4, 5)], indices=6)


def _pairs():
    for shape, bias in itertools.product(((4,), (4, 3)), (True, False)):
        module = nn("Bilinear", 3, 6, 5, bias)
        yield Case(lm.Bilinear(5, bias=bias), module, [(*shape, 3), (*shape, 6)])
    for axis in (1, 2, -1):
        layer = lm.CosineSimilarity(axis=axis, epsilon=1e-3)
        yield Case(layer, nn("CosineSimilarity", axis, 1e-3), [(3, 4, 5)] * 2)
    for power, keep in ((2.0, False), (1.0, True), (3.0, False)):
        layer = lm.PairwiseDistance(power=power, keepdims=keep)
        yield Case(layer, nn("PairwiseDistance", power, keepdim=keep), [(3, 5)] * 2)


def _shapes():
    yield Case(lm.Identity(), nn("Identity"), [(3, 4)])
    for ends in ((1, -1), (2, 3), (1, 2), (-2, -1)):
        yield Case(lm.Flatten(first=ends[0], last=ends[1]), nn("Flatten", *ends), [(2, 3, 4, 5)])

    def of_images(shuffle, x):
        return shuffle(x[..., None, None] if x.ndim == 2 else x).reshape(x.shape)

    for shape, groups in (((2, 6), 2), ((2, 6, 4), 3), ((2, 4, 3, 5), 2)):
        module = changed(nn("ChannelShuffle", groups), of_images)
        yield Case(lm.ChannelShuffle(groups), module, [shape])


# For each number of axes: modes, and whether corners are aligned (None: they cannot be).
_MODES = {
    axes: [
        *((mode, None) for mode in ("nearest", "nearest-exact", "area")),
        *((mode, corners) for mode in blending for corners in (True, False)),
    ]
    for axes, blending in ((1, ["linear"]), (2, ["bilinear", "bicubic"]), (3, ["trilinear"]))
}


def _upsamples():
    """Sizes that are no multiples, and factors with fractions, in every mode; whole factors."""
    extents = (7, 10, 4)
    cases = []
    for axes, modes in _MODES.items():
        for (mode, corners), (shape, options) in itertools.product(
            modes,
            [
                (extents, {"size": (13, 3, 9)}),
                ((1, 6, 2), {"size": (4, 1, 3)}),
                (extents, {"scale": 0.61}),
                (extents, {"scale": (1.7, 0.5, 2.3)}),
            ],
        ):
            sizes = {k: v[:axes] if isinstance(v, tuple) else v for k, v in options.items()}
            cases.append((shape[:axes], mode, corners, sizes))
    for shape, scale in [((5,), 3), ((3, 4), 2), ((3, 4), (1, 3)), ((2, 3, 2), (2, 1, 3))]:
        cases.append((shape, "nearest", None, {"scale": scale}))
    for o in option_sets(
        12,
        height=[1, 2, 5, 21],
        width=[1, 4, 7, 34],
        scale=[1, 2, 3, 4, (5, 2), (1, 3), (2, 1)],
        corners=[False, False, True],
    ):
        shape = (o["height"], o["width"])
        cases.append((shape, "bilinear", o["corners"], {"scale": o["scale"]}))
    for shape, mode, corners, sizes in cases:
        layer = lm.Upsample(**sizes, mode=mode, align_corners=bool(corners))
        theirs = {"scale_factor" if k == "scale" else k: v for k, v in sizes.items()}
        module = nn("Upsample", **theirs, mode=mode, align_corners=corners)
        yield Case(layer, module, [(2, 3, *shape)])


def _images():
    for r in (1, 2, 3):
        yield Case(lm.PixelShuffle(r), nn("PixelShuffle", r), [(2, 2 * r * r, 3, 4)])
        yield Case(lm.PixelUnshuffle(r), nn("PixelUnshuffle", r), [(2, 3, 2 * r, 3 * r)])
    for o in option_sets(
        12,
        mode=["constant", "reflect", "replicate", "circular"],
        widths=[((1, 2),), ((1, 0), (2, 3)), ((0, 0), (0, 1)), ((2, 2), (2, 2))],
        value=[0.0, -1.5],
    ):
        flat = [width for pair in reversed(o["widths"]) for width in pair]
        how = [o["mode"], *([o["value"]] if o["mode"] == "constant" else [])]

        def padded(torch, flat=flat, how=how):
            return lambda x: torch.nn.functional.pad(x, flat, *how)

        layer = lm.Pad(o["widths"], mode=o["mode"], value=o["value"])
        yield Case(layer, padded, [(2, 3, 4, 5)[: 2 + len(o["widths"])]])
    yield Case(lm.Pad(2), nn("ZeroPad2d", 2), [(2, 3, 4, 5)])
    for widths, rows, columns in (
        (1, slice(1, -1), slice(1, -1)),
        (((0, 2), (1, 0)), slice(0, -2), slice(1, None)),
    ):
        part = (..., rows, columns)
        yield Case(lm.Crop(widths), lambda _, part=part: lambda x: x[part], [(2, 3, 4, 5)])


_RUNNING = {"running_variance": "running_var"}
_NORMS = {"epsilon": [1e-5, 1e-2], "affine": [True, True, False]}
_SPATIAL = [(), (7,), (5, 4), (3, 4, 2), (17, 19)]


def _batch_norms():
    sizes = {"batch": [2, 5, 16], "channels": [1, 3, 8], "spatial": _SPATIAL}
    for o in option_sets(10, **sizes, momentum=[0.1, 0.0, 0.7, 1.0], **_NORMS):
        batch, channels, spatial, momentum, epsilon, affine = o.values()
        layer = lm.BatchNorm(momentum=momentum, epsilon=epsilon, affine=affine)
        kind = f"BatchNorm{max(len(spatial), 1)}d"
        module = nn(kind, channels, epsilon, momentum, affine)
        yield Case(layer, module, [(batch, channels, *spatial)], _RUNNING)


def _layer_norms():
    shapes = [(2, 5), (3, 4, 6), (2, 3, 4, 5), (3, 130)]
    for o in option_sets(6, shape=shapes, last=[1, 2], **_NORMS, bias=[True, False]):
        shape, last, epsilon, affine, bias = o.values()
        last = min(last, len(shape) - 1)
        how = {"axes": tuple(range(-last, 0)), "epsilon": epsilon, "affine": affine}
        module = nn("LayerNorm", shape[-last:], epsilon, affine, bias)
        yield Case(lm.LayerNorm(**how, bias=bias), module, [shape])
        yield Case(lm.RMSNorm(**how), nn("RMSNorm", shape[-last:], epsilon, affine), [shape])
    yield Case(lm.RMSNorm(), nn("RMSNorm", 6), [(4, 6)])
    of_channels = changed(nn("LayerNorm", 6), lambda norm, x: norm(x.movedim(1, -1)).movedim(-1, 1))
    yield Case(lm.LayerNorm(axes=1), of_channels, [(2, 6, 3, 4)])


def _group_norms():
    for o in option_sets(6, groups=[1, 2, 3, 6], spatial=_SPATIAL, **_NORMS):
        groups, spatial, epsilon, affine = o.values()
        layer = lm.GroupNorm(groups, epsilon=epsilon, affine=affine)
        yield Case(layer, nn("GroupNorm", groups, 12, epsilon, affine), [(3, 12, *spatial)])
    for o in option_sets(4, spatial=_SPATIAL[1:], epsilon=[1e-5, 1e-2], affine=[True, False]):
        spatial, epsilon, affine = o.values()
        layer = lm.InstanceNorm(epsilon=epsilon, affine=affine)
        module = nn(f"InstanceNorm{len(spatial)}d", 4, epsilon, affine=affine)
        yield Case(layer, module, [(3, 4, *spatial)])


def _further_options():
    """No running averages, no biases, running averages of instances, neighbouring channels."""
    for shape in ((4, 3), (4, 3, 5), (2, 3, 4, 5)):
        kind = f"BatchNorm{max(len(shape) - 2, 1)}d"
        yield Case(lm.BatchNorm(running=False), nn(kind, 3, track_running_stats=False), [shape])

        def without_bias(torch, kind=kind):
            module = getattr(torch.nn, kind)(3)
            module.register_parameter("bias", None)
            return module

        yield Case(lm.BatchNorm(bias=False), without_bias, [shape], _RUNNING)
    for shape in ((4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 4, 3)):
        for affine in (True, False):
            layer = lm.InstanceNorm(running=True, momentum=0.3, affine=affine)
            module = nn(f"InstanceNorm{len(shape) - 2}d", 3, 1e-5, 0.3, affine, True)
            yield Case(layer, module, [shape], _RUNNING)

    def of_channels(norm, x):
        return norm(x) if x.ndim > 2 else norm(x[..., None])[..., 0]

    for shape, window in (((3, 7), 3), ((2, 6, 5), 4), ((2, 5, 3, 4), 5), ((2, 3, 4, 5), 1)):
        layer = lm.LocalResponseNorm(window, alpha=0.7, beta=0.6, k=1.5)
        module = changed(nn("LocalResponseNorm", window, 0.7, 0.6, 1.5), of_channels)
        yield Case(layer, module, [shape])


CASES = [
    *(
        Case(lm.Linear(3, bias=bias), nn("Linear", 5, 3, bias), [shape])
        for shape, bias in (((4, 5), True), ((2, 3, 5), False), ((2, 3, 4, 5), True))
    ),
    *(*_further_options(), *_batch_norms(), *_layer_norms(), *_group_norms()),
    *(*_activations(), *_embeddings(), *_bags(), *_pairs(), *_shapes(), *_upsamples(), *_images()),
]
test_layer_agrees_with_pytorch = comparison(CASES)


@pytest.mark.parametrize("mean", [0.0, 30.0, 1000.0])
@pytest.mark.cases(
    "case",
    Case(lm.BatchNorm(), nn("BatchNorm2d", 4), [(8, 4, 9, 9)], _RUNNING),
    Case(lm.LayerNorm(), nn("LayerNorm", 300), [(8, 300)]),
    Case(lm.RMSNorm(), nn("RMSNorm", 300), [(8, 300)]),
    ids=str,
)
def test_normalising_far_from_zero_in_float32_is_as_accurate_as_in_pytorch(case, mean, engine):
    mine, theirs, exact = Mine(case, float32, engine), Theirs(case, float32), Theirs(case, float64)
    mine.write(theirs.variables)
    x = [array + np.float32(mean) for array in inputs_of(case, float32, 0)]
    upstream = normal(mine.output_shape, float32, 1)
    expected, expected_states = exact.trained([a.astype(float) for a in x], upstream.astype(float))

    def errors(results):
        pairs = ((results[0], expected), (results[1], expected_states))
        return {
            name: float(np.abs(values[name] - reference[name]).max())
            for values, reference in pairs
            for name in reference
        }

    deviations, accepted = errors(mine.trained(x, upstream)), errors(theirs.trained(x, upstream))
    for name, error in deviations.items():
        # The mean is rounded to float32: that shifts what is centred, but not the variance.
        rounding = 3e-7 if name == "running_variance" else 3e-6 + 5e-7 * mean
        scale = float(np.abs({**expected, **expected_states}[name]).max())
        assert error <= 3 * accepted[name] + rounding * scale, name
