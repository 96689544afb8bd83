"""Normalisation against PyTorch: values, gradients, running averages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch_comparison import (
    Case,
    Mine,
    Theirs,
    Values,
    comparisons,
    inputs_of,
    network_of,
    normal,
    option_sets,
    pytorch,
)

import lamina as lm
from lamina.base.shapes import float32, float64
from lamina.engines.engine import Engine

pytestmark = pytest.mark.torch

_RUNNING = {"running_variance": "running_var"}
_SPATIAL = [(), (7,), (5, 4), (3, 4, 2), (17, 19)]


def _batch_norms() -> Iterator[Case]:
    choices = option_sets(
        10,
        batch=[2, 5, 16],
        channels=[1, 3, 8],
        spatial=_SPATIAL,
        momentum=[0.1, 0.0, 0.7, 1.0],
        epsilon=[1e-5, 1e-2],
        affine=[True, True, False],
    )
    for o in choices:
        kind = {0: "1d", 1: "1d", 2: "2d", 3: "3d"}[len(o["spatial"])]
        yield Case(
            f"BatchNorm-{o}",
            lambda o=o: lm.BatchNorm(
                momentum=o["momentum"], epsilon=o["epsilon"], affine=o["affine"]
            ),
            lambda nn, _, o=o, kind=kind: getattr(nn, f"BatchNorm{kind}")(
                o["channels"], o["epsilon"], o["momentum"], o["affine"]
            ),
            [(o["batch"], o["channels"], *o["spatial"])],
            _RUNNING,
        )


def _layer_norms() -> Iterator[Case]:
    for o in option_sets(
        6,
        shape=[(2, 5), (3, 4, 6), (2, 3, 4, 5), (3, 130)],
        last=[1, 2],
        epsilon=[1e-5, 1e-2],
        affine=[True, True, False],
        bias=[True, False],
    ):
        last = min(o["last"], len(o["shape"]) - 1)
        axes = -1 if last == 1 else tuple(range(-last, 0))
        extents = o["shape"][-last:]
        yield Case(
            f"LayerNorm-{o}",
            lambda o=o, axes=axes: lm.LayerNorm(
                axes=axes, epsilon=o["epsilon"], affine=o["affine"], bias=o["bias"]
            ),
            lambda nn, _, o=o, extents=extents: nn.LayerNorm(
                extents, o["epsilon"], o["affine"], o["bias"]
            ),
            [o["shape"]],
        )
        yield Case(
            f"RMSNorm-{o}",
            lambda o=o, axes=axes: lm.RMSNorm(axes=axes, epsilon=o["epsilon"], affine=o["affine"]),
            lambda nn, _, o=o, extents=extents: nn.RMSNorm(extents, o["epsilon"], o["affine"]),
            [o["shape"]],
        )
    yield Case("RMSNorm", lm.RMSNorm, lambda nn, _: nn.RMSNorm(6), [(4, 6)])


def _channels_last_norm(nn: Any, torch: Any) -> Any:
    norm = nn.LayerNorm(6)
    moved = nn.Module()
    moved.weight, moved.bias = norm.weight, norm.bias
    moved.forward = lambda x: norm(x.movedim(1, -1)).movedim(-1, 1)
    return moved


def _group_norms() -> Iterator[Case]:
    yield Case(
        "LayerNorm of channels", lambda: lm.LayerNorm(axes=1), _channels_last_norm, [(2, 6, 3, 4)]
    )
    for o in option_sets(
        6, groups=[1, 2, 3, 6], spatial=_SPATIAL, epsilon=[1e-5, 1e-2], affine=[True, True, False]
    ):
        yield Case(
            f"GroupNorm-{o}",
            lambda o=o: lm.GroupNorm(o["groups"], epsilon=o["epsilon"], affine=o["affine"]),
            lambda nn, _, o=o: nn.GroupNorm(o["groups"], 12, o["epsilon"], o["affine"]),
            [(3, 12, *o["spatial"])],
        )
    for o in option_sets(4, spatial=_SPATIAL[1:], epsilon=[1e-5, 1e-2], affine=[True, False]):
        yield Case(
            f"InstanceNorm-{o}",
            lambda o=o: lm.InstanceNorm(epsilon=o["epsilon"], affine=o["affine"]),
            lambda nn, _, o=o: getattr(nn, f"InstanceNorm{len(o['spatial'])}d")(
                4, o["epsilon"], affine=o["affine"]
            ),
            [(3, 4, *o["spatial"])],
        )


def _further_options() -> Iterator[Case]:
    """No running averages, no biases, running averages of instances, neighbouring channels."""
    for shape in ((4, 3), (4, 3, 5), (2, 3, 4, 5)):
        axes = max(len(shape) - 2, 1)
        yield Case(
            f"BatchNorm-without averages-{shape}",
            lambda: lm.BatchNorm(running=False),
            lambda nn, _, axes=axes: getattr(nn, f"BatchNorm{axes}d")(3, track_running_stats=False),
            [shape],
        )
        yield Case(
            f"BatchNorm-without bias-{shape}",
            lambda: lm.BatchNorm(bias=False),
            lambda nn, _, axes=axes: _without_bias(getattr(nn, f"BatchNorm{axes}d")(3)),
            [shape],
            _RUNNING,
        )
    for shape in ((4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 4, 3)):
        for affine in (True, False):
            yield Case(
                f"InstanceNorm-running-{shape}-{affine}",
                lambda affine=affine: lm.InstanceNorm(running=True, momentum=0.3, affine=affine),
                lambda nn, _, shape=shape, affine=affine: getattr(
                    nn, f"InstanceNorm{len(shape) - 2}d"
                )(3, 1e-5, 0.3, affine, True),
                [shape],
                _RUNNING,
            )
    for shape, window in (((3, 7), 3), ((2, 6, 5), 4), ((2, 5, 3, 4), 5), ((2, 3, 4, 5), 1)):
        yield Case(
            f"LocalResponseNorm-{shape}-{window}",
            lambda window=window: lm.LocalResponseNorm(window, alpha=0.7, beta=0.6, k=1.5),
            lambda nn, _, window=window: _of_channels(nn.LocalResponseNorm(window, 0.7, 0.6, 1.5)),
            [shape],
        )


def _without_bias(module: Any) -> Any:
    del module.bias
    module.bias = None
    return module


def _of_channels(module: Any) -> Any:
    """PyTorch's takes at least one axis after the channels."""
    return lambda x: module(x) if x.ndim > 2 else module(x[..., None])[..., 0]


CASES = [*_further_options(), *_batch_norms(), *_layer_norms(), *_group_norms()]
test_layer_agrees_with_pytorch, test_second_derivatives_agree_with_pytorch = comparisons(CASES)


@pytest.mark.parametrize("mean", [0.0, 30.0, 1000.0])
@pytest.mark.parametrize(
    "case",
    [
        Case("BatchNorm", lm.BatchNorm, lambda nn, _: nn.BatchNorm2d(4), [(8, 4, 9, 9)], _RUNNING),
        Case("LayerNorm", lm.LayerNorm, lambda nn, _: nn.LayerNorm(300), [(8, 300)]),
        Case("RMSNorm", lm.RMSNorm, lambda nn, _: nn.RMSNorm(300), [(8, 300)]),
    ],
    ids=str,
)
def test_normalising_far_from_zero_in_float32_is_as_accurate_as_in_pytorch(
    case: Case, mean: float, engine: Engine
) -> None:
    torch = pytorch()
    network = network_of(case)
    mine, theirs = Mine(case, float32, engine), Theirs(case, float32, torch, network)
    exact = Theirs(case, float64, torch, network)
    for name, value in theirs.variables.items():
        mine.memories[name].write(value)
    x = [array + np.float32(mean) for array in inputs_of(case, float32, 0)]
    upstream = normal(mine.output_shape, float32, 1)
    expected, expected_states = exact.trained([a.astype(float) for a in x], upstream.astype(float))

    def errors(found: tuple[Values, Values]) -> dict[str, float]:
        pairs = ((found[0], expected), (found[1], expected_states))
        return {
            name: float(np.abs(values[name] - wanted[name]).max())
            for values, wanted in pairs
            for name in wanted
        }

    found, accepted = errors(mine.trained(x, upstream)), errors(theirs.trained(x, upstream))
    for name, error in found.items():
        # The mean is rounded to float32: that shifts what is centred, but not the variance.
        rounding = 3e-7 if name == "running_variance" else 3e-6 + 5e-7 * mean
        scale = float(np.abs({**expected, **expected_states}[name]).max())
        assert error <= 3 * accepted[name] + rounding * scale, name
