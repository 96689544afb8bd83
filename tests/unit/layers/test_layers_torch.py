"""Linear layers, activations, embeddings and layers of images against PyTorch.

Other families have files of their own, test_layers_torch_*.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch_comparison import Case, comparisons, option_sets

import lamina as lm
from lamina.layers.layer import Layer

pytestmark = pytest.mark.torch


def _linears() -> Iterator[Case]:
    for o in option_sets(3, shape=[(4, 5), (2, 3, 5)], bias=[True, False]):
        yield Case(
            f"Linear-{o}",
            lambda o=o: lm.Linear(3, bias=o["bias"]),
            lambda nn, _, o=o: nn.Linear(5, 3, o["bias"]),
            [o["shape"]],
        )


def _activations() -> Iterator[Case]:
    pairs: list[tuple[Layer, Callable[[Any], Any]]] = [
        (lm.ReLU(), lambda nn: nn.ReLU()),
        (lm.LeakyReLU(slope=0.2), lambda nn: nn.LeakyReLU(0.2)),
        (lm.ELU(alpha=1.5), lambda nn: nn.ELU(1.5)),
        (lm.SELU(), lambda nn: nn.SELU()),
        (lm.GELU(), lambda nn: nn.GELU()),
        (lm.GELU(approximate="tanh"), lambda nn: nn.GELU("tanh")),
        (lm.SiLU(), lambda nn: nn.SiLU()),
        (lm.Softplus(), lambda nn: nn.Softplus()),
        (lm.Sigmoid(), lambda nn: nn.Sigmoid()),
        (lm.Tanh(), lambda nn: nn.Tanh()),
        (lm.Hardtanh(low=-0.5, high=2.0), lambda nn: nn.Hardtanh(-0.5, 2.0)),
        (lm.Softmax(axis=1), lambda nn: nn.Softmax(1)),
        (lm.LogSoftmax(), lambda nn: nn.LogSoftmax(-1)),
        (lm.Softmin(axis=1), lambda nn: nn.Softmin(1)),
        (lm.GLU(axis=1), lambda nn: nn.GLU(1)),
        (lm.PReLU(), lambda nn: nn.PReLU()),
        (lm.PReLU(per_channel=True, slope=0.1), lambda nn: nn.PReLU(4, 0.1)),
        (lm.Mish(), lambda nn: nn.Mish()),
        (lm.LogSigmoid(), lambda nn: nn.LogSigmoid()),
        (lm.Softsign(), lambda nn: nn.Softsign()),
        (lm.Tanhshrink(), lambda nn: nn.Tanhshrink()),
        (lm.Softplus(beta=0.5), lambda nn: nn.Softplus(0.5)),
        (lm.CELU(alpha=1.5), lambda nn: nn.CELU(1.5)),
        (lm.Threshold(0.2, -1.0), lambda nn: nn.Threshold(0.2, -1.0)),
        (lm.Hardshrink(threshold=0.7), lambda nn: nn.Hardshrink(0.7)),
        (lm.Softshrink(threshold=0.7), lambda nn: nn.Softshrink(0.7)),
        (lm.ReLU6(), lambda nn: nn.ReLU6()),
        # The slope of nn.Hardsigmoid is a float32 in float64 too.
        (lm.Hardsigmoid(), lambda nn: lambda x: nn.functional.relu6(x + 3) / 6),
        (lm.Hardswish(), lambda nn: nn.Hardswish()),
        # With equal bounds, training is not random.
        (lm.RReLU(low=0.25, high=0.25), lambda nn: nn.RReLU(0.25, 0.25)),
    ]
    for layer, module in pairs:
        yield Case(
            repr(layer), lambda layer=layer: layer, lambda nn, _, m=module: m(nn), [(3, 4, 5)]
        )


# Embedding ----------------------------------------------------------------------------------------


def _embeddings() -> Iterator[Case]:
    for o in option_sets(
        5, shape=[(6,), (4, 5), (2, 3, 4)], count=[1, 7, 30], features=[1, 8, 33], padding=[None, 0]
    ):
        yield Case(
            f"Embedding-{o}",
            lambda o=o: lm.Embedding(o["count"], o["features"], padding=o["padding"]),
            lambda nn, _, o=o: nn.Embedding(o["count"], o["features"], o["padding"]),
            [o["shape"]],
            indices=o["count"],
        )
    yield Case(
        "OneHot",
        lambda: lm.OneHot(5),
        lambda _, torch: lambda x: torch.nn.functional.one_hot(x, 5).to(torch.get_default_dtype()),
        [(4, 3)],
        indices=5,
    )


def _bags() -> Iterator[Case]:
    for o in option_sets(
        8, 4, shape=[(4, 5), (3, 1)], mode=["mean", "sum", "max"], padding=[None, 0, 2]
    ):
        yield Case(
            f"EmbeddingBag-{o}",
            lambda o=o: lm.EmbeddingBag(6, 4, mode=o["mode"], padding=o["padding"]),
            lambda nn, _, o=o: nn.EmbeddingBag(6, 4, mode=o["mode"], padding_idx=o["padding"]),
            [o["shape"]],
            indices=6,
        )
    for padding in (None, 2):
        yield Case(
            f"EmbeddingBag-weighted-{padding}",
            lambda padding=padding: lm.EmbeddingBag(6, 4, mode="sum", padding=padding),
            lambda nn, _, padding=padding: _applied(
                nn.EmbeddingBag(6, 4, mode="sum", padding_idx=padding),
                lambda bag, x, weights: bag(x, per_sample_weights=weights),
            ),
            [(4, 5), (4, 5)],
            indices=6,
        )
        for mode in ("mean", "sum", "max"):
            yield Case(
                f"EmbeddingBag-masked-{mode}-{padding}",
                lambda mode=mode, padding=padding: lm.EmbeddingBag(
                    6, 4, mode=mode, padding=padding
                ),
                lambda nn, torch, mode=mode, padding=padding: _applied(
                    nn.EmbeddingBag(6, 4, mode=mode, padding_idx=padding),
                    lambda bag, x, mask: bag(x[mask], mask.sum(1).cumsum(0) - mask.sum(1)),
                ),
                [(4, 5)],
                indices=6,
                masks=[(4, 5)],
            )


def _applied(module: Any, forward: Callable[..., Any]) -> Any:
    """The module's parameters with another forward pass: (the old one, inputs...) -> result."""
    own = module.forward
    module.forward = lambda *inputs: forward(own, *inputs)
    return module


# Pairs --------------------------------------------------------------------------------------------


def _pairs() -> Iterator[Case]:
    for shape in ((4,), (4, 3)):
        for bias in (True, False):
            yield Case(
                f"Bilinear-{shape}-{bias}",
                lambda bias=bias: lm.Bilinear(5, bias=bias),
                lambda nn, _, bias=bias: nn.Bilinear(3, 6, 5, bias),
                [(*shape, 3), (*shape, 6)],
            )
    for axis in (1, 2, -1):
        yield Case(
            f"CosineSimilarity-{axis}",
            lambda axis=axis: lm.CosineSimilarity(axis=axis, epsilon=1e-3),
            lambda nn, _, axis=axis: nn.CosineSimilarity(axis, 1e-3),
            [(3, 4, 5), (3, 4, 5)],
        )
    for power, keepdims in ((2.0, False), (1.0, True), (3.0, False)):
        yield Case(
            f"PairwiseDistance-{power}-{keepdims}",
            lambda power=power, keepdims=keepdims: lm.PairwiseDistance(
                power=power, keepdims=keepdims
            ),
            lambda nn, _, power=power, keepdims=keepdims: nn.PairwiseDistance(
                power, keepdim=keepdims
            ),
            [(3, 5), (3, 5)],
        )


# Shapes -------------------------------------------------------------------------------------------


def _shapes() -> Iterator[Case]:
    yield Case("Identity", lm.Identity, lambda nn, _: nn.Identity(), [(3, 4)])
    for first, last in ((1, -1), (2, 3), (1, 2), (-2, -1)):
        yield Case(
            f"Flatten-{first}-{last}",
            lambda first=first, last=last: lm.Flatten(first=first, last=last),
            lambda nn, _, first=first, last=last: nn.Flatten(first, last),
            [(2, 3, 4, 5)],
        )
    for shape, groups in (((2, 6), 2), ((2, 6, 4), 3), ((2, 4, 3, 5), 2)):
        yield Case(
            f"ChannelShuffle-{shape}-{groups}",
            lambda groups=groups: lm.ChannelShuffle(groups),
            lambda nn, _, groups=groups: (
                lambda x: nn.ChannelShuffle(groups)(
                    x[..., None, None] if x.ndim == 2 else x
                ).reshape(x.shape)
            ),
            [shape],
        )


# Images -------------------------------------------------------------------------------------------


# For each number of axes: modes, and whether corners are aligned (None: they cannot be).
_MODES: dict[int, list[tuple[str, bool | None]]] = {
    axes: [
        *((mode, None) for mode in ("nearest", "nearest-exact", "area")),
        *((mode, corners) for mode in blending for corners in (True, False)),
    ]
    for axes, blending in ((1, ["linear"]), (2, ["bilinear", "bicubic"]), (3, ["trilinear"]))
}


def _upsamples() -> Iterator[Case]:
    """Sizes that are no multiples, and factors with fractions, in every mode."""
    extents = (7, 10, 4)
    resized: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        (extents, {"size": (13, 3, 9)}),
        ((1, 6, 2), {"size": (4, 1, 3)}),
        (extents, {"scale": 0.61}),
        (extents, {"scale": (1.7, 0.5, 2.3)}),
    ]
    for axes, modes in _MODES.items():
        for (mode, corners), (shape, options) in itertools.product(modes, resized):
            sizes = {k: v[:axes] if isinstance(v, tuple) else v for k, v in options.items()}
            theirs = {"scale_factor" if k == "scale" else k: v for k, v in sizes.items()}
            yield Case(
                f"Upsample-{mode}-{shape[:axes]}-{sizes}-{corners}",
                lambda mode=mode, corners=corners, sizes=sizes: lm.Upsample(
                    **sizes, mode=mode, align_corners=bool(corners)
                ),
                lambda nn, _, mode=mode, corners=corners, theirs=theirs: nn.Upsample(
                    **theirs, mode=mode, align_corners=corners
                ),
                [(2, 3, *shape[:axes])],
            )


def _images() -> Iterator[Case]:
    for spatial, scale in [((5,), 3), ((3, 4), 2), ((3, 4), (1, 3)), ((2, 3, 2), (2, 1, 3))]:
        yield Case(
            f"Upsample-nearest-{spatial}-{scale}",
            lambda scale=scale: lm.Upsample(scale=scale),
            lambda nn, _, scale=scale: nn.Upsample(scale_factor=scale),
            [(2, 3, *spatial)],
        )
    for o in option_sets(
        12,
        height=[1, 2, 5, 21],
        width=[1, 4, 7, 34],
        scale=[1, 2, 3, 4, (5, 2), (1, 3), (2, 1)],
        corners=[False, False, True],
    ):
        yield Case(
            f"Upsample-bilinear-{o}",
            lambda o=o: lm.Upsample(scale=o["scale"], mode="bilinear", align_corners=o["corners"]),
            lambda nn, _, o=o: nn.Upsample(
                scale_factor=o["scale"], mode="bilinear", align_corners=o["corners"]
            ),
            [(2, 3, o["height"], o["width"])],
        )
    yield from _upsamples()
    for r in (1, 2, 3):
        yield Case(
            f"PixelShuffle-{r}",
            lambda r=r: lm.PixelShuffle(r),
            lambda nn, _, r=r: nn.PixelShuffle(r),
            [(2, 2 * r * r, 3, 4)],
        )
        yield Case(
            f"PixelUnshuffle-{r}",
            lambda r=r: lm.PixelUnshuffle(r),
            lambda nn, _, r=r: nn.PixelUnshuffle(r),
            [(2, 3, 2 * r, 3 * r)],
        )
    for o in option_sets(
        12,
        mode=["constant", "reflect", "replicate", "circular"],
        widths=[((1, 2),), ((1, 0), (2, 3)), ((0, 0), (0, 1)), ((2, 2), (2, 2))],
        value=[0.0, -1.5],
    ):
        flat = tuple(width for pair in reversed(o["widths"]) for width in pair)
        rank = 2 + len(o["widths"])
        yield Case(
            f"Pad-{o}",
            lambda o=o: lm.Pad(o["widths"], mode=o["mode"], value=o["value"]),
            lambda _, torch, o=o, flat=flat: (
                lambda x: torch.nn.functional.pad(
                    x, flat, o["mode"], **({"value": o["value"]} if o["mode"] == "constant" else {})
                )
            ),
            [(2, 3, 4, 5)[:rank]],
        )
    yield Case("Pad-all", lambda: lm.Pad(2), lambda nn, _: nn.ZeroPad2d(2), [(2, 3, 4, 5)])
    for widths, key in [
        (1, (..., slice(1, -1), slice(1, -1))),
        (((0, 2), (1, 0)), (..., slice(0, -2), slice(1, None))),
    ]:
        yield Case(
            f"Crop-{widths}",
            lambda widths=widths: lm.Crop(widths),
            lambda _, torch, key=key: lambda x: x[key],
            [(2, 3, 4, 5)],
        )


CASES = [*_linears(), *_activations(), *_embeddings(), *_bags(), *_pairs(), *_shapes(), *_images()]
# PyTorch has no second derivative of bags with weights.
TWICE = [case for case in CASES if not case.name.startswith("EmbeddingBag-weighted")]
test_layer_agrees_with_pytorch, test_second_derivatives_agree_with_pytorch = comparisons(
    CASES, TWICE
)
