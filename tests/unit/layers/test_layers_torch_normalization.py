"""Normalisation against PyTorch: values, gradients, running averages."""

import numpy as np
import pytest
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


CASES = [*_further_options(), *_batch_norms(), *_layer_norms(), *_group_norms()]
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

    def errors(found):
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
