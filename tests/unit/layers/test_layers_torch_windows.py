"""Convolutions and pooling against PyTorch: values and gradients."""

import numpy as np
import pytest
from torch_comparison import Case, changed, comparison, nn, option_sets, pytorch

import lamina as lm

pytestmark = pytest.mark.torch

# Extents of the axes after the channels: small ones, and ones large enough that engines choose
# their algorithms for larger sizes.
_SMALL = [(5,), (9,), (4, 6), (7, 5), (3, 4, 5), (5, 3, 4)]
_LARGE = [(70,), (9, 13), (14, 12), (17, 16), (5, 6, 7)]


def _of_axes(options, *names):
    """These options, with a number for each axis of the example where there are several."""
    axes = len(options["spatial"])
    found = {name: options[name] for name in names}
    return {name: one[:axes] if isinstance(one, tuple) else one for name, one in found.items()}


def _each(numbers, axes):
    return numbers if isinstance(numbers, tuple) else (numbers,) * axes


def _reached(window, dilation, spatial):
    """Extents with room for a window, and with more elements than are mirrored."""
    axes = len(spatial)
    pairs = zip(_each(window, axes), _each(dilation, axes), spatial, strict=True)
    return tuple(max(extent, step * (size - 1) + 1) for size, step, extent in pairs)


def _padded(module, padding, value=0.0):
    """The module after padding with two widths for each axis."""
    pairs = [one if isinstance(one, tuple) else (one, one) for one in padding]
    flat = [width for pair in reversed(pairs) for width in pair]
    return changed(module, lambda call, x: call(pytorch().nn.functional.pad(x, flat, value=value)))


def _conv_choices():
    kinds = {
        "window": [1, 2, 3, 3, (3, 2, 2), (1, 3, 2), (5, 3, 1)],
        "stride": [1, 1, 2, (2, 1, 3), 3],
        "padding": [0, 0, 1, 1, (1, 0, 2), "same", "valid"],
        "dilation": [1, 1, 2, (1, 2, 1)],
        "bias": [True, True, False],
        "padding_mode": ["zeros", "zeros", "zeros", "reflect", "replicate", "circular"],
    }
    small = {"batch": [1, 2, 3], "inputs": [1, 2, 3], "channels": [1, 2, 5], "groups": [1, 1, 2, 3]}
    large = {"batch": [2, 5], "inputs": [1, 8, 16, 33], "channels": [8, 20, 32, 40], "groups": [1]}
    grouped = {"batch": [2], "inputs": [1, 8, 16], "channels": [1, 8, 20], "groups": [2, 4]}
    depthwise = {"batch": [2], "inputs": [1], "channels": [1, 2], "groups": [16, 24]}
    yield from option_sets(22, 1, spatial=_SMALL, **small, **kinds)
    yield from option_sets(13, 2, spatial=_LARGE, **large, **kinds)
    yield from option_sets(4, 3, spatial=_LARGE, **grouped, **kinds)
    yield from option_sets(3, 4, spatial=_LARGE, **depthwise, **kinds)


def _convolution(kind, o, window, extents, same):
    """A convolution whose options PyTorch calls the same."""
    name = f"{kind}{len(extents)}d"
    inputs, channels = o["inputs"] * o["groups"], o["channels"] * o["groups"]
    same |= {name: o[name] for name in ("groups", "bias")}
    layer = getattr(lm, name)(channels, window, **same)
    return Case(layer, nn(name, inputs, channels, window, **same), [(o["batch"], inputs, *extents)])


def _convolutions():
    for o in _conv_choices():
        same = _of_axes(o, "window", "stride", "padding", "dilation", "padding_mode")
        window = same.pop("window")
        if same["padding"] == "same":
            same["stride"] = 1
        extents = _reached(window, same["dilation"], o["spatial"])
        yield _convolution("Conv", o, window, extents, same)
    # PyTorch's convolutions have no padding of two widths.
    for number, padding in enumerate([((0, 1),), ((2, 0), (1, 3)), ((1, 1), 0, (0, 2))], 1):
        kind = f"Conv{number}d"
        layer = getattr(lm, kind)(16, 3, stride=number, padding=padding)
        module = _padded(nn(kind, 8, 16, 3, number), padding)
        yield Case(layer, module, [(3, 8, 12, 9, 7)[: 2 + number]])


def _transposed_choices():
    kinds = {
        "window": [1, 2, 3, 4, (3, 4, 2), (2, 3, 3)],
        "stride": [1, 2, 2, (2, 1, 2), 3],
        "padding": [0, 0, 1, (0, 1, 1)],
        "output_padding": [0, 0, 1, (1, 0, 1)],
        "dilation": [1, 1, 2, (1, 2, 1)],
        "bias": [True, True, False],
    }
    small = {"batch": [1, 3], "inputs": [1, 3], "channels": [1, 2, 5], "groups": [1, 1, 2]}
    large = {"batch": [3], "inputs": [8, 16, 33], "channels": [8, 20, 32], "groups": [1, 1, 1, 2]}
    depthwise = {"batch": [2], "inputs": [1], "channels": [1], "groups": [16]}
    yield from option_sets(14, 5, spatial=_SMALL, **small, **kinds)
    yield from option_sets(10, 6, spatial=[(40,), (6, 8), (9, 7), (4, 4, 3)], **large, **kinds)
    yield from option_sets(2, 7, spatial=_LARGE[1:], **depthwise, **kinds)


def _transposed_convolutions():
    for o in _transposed_choices():
        same = _of_axes(o, "window", "stride", "padding", "output_padding", "dilation")
        window, axes = same.pop("window"), len(o["spatial"])
        rows = (_each(same[name], axes) for name in ("output_padding", "stride", "dilation"))
        more = tuple(min(extra, max(steps) - 1) for extra, *steps in zip(*rows, strict=True))
        same["output_padding"] = more if any(more) else 0
        yield _convolution("ConvTranspose", o, window, o["spatial"], same)


_POOLED = {
    "spatial": [*_SMALL, (64,), (17, 20), (7, 6, 9)],
    "channels": [1, 3, 16],
    "window": [2, 2, 3, (3, 2, 1), (2, 3, 3)],
    "stride": [None, None, 1, 2, (2, 1, 3)],
    "padding": [0, 0, 1, (1, 0, 0)],
    "ceil_mode": [False, False, True],
}


def _halved(o, window):
    """Padding by at most half of the window."""
    axes = len(o["spatial"])
    pairs = zip(_each(o["padding"], 3)[:axes], _each(window, axes), strict=True)
    return tuple(min(padding, size // 2) for padding, size in pairs)


def _max_pools():
    for o in option_sets(16, 8, **_POOLED, dilation=[1, 1, 1, 2, (1, 2, 1)]):
        same = _of_axes(o, "window", "stride", "dilation", "ceil_mode")
        window = same.pop("window")
        same["padding"] = _halved(o, window)
        name = f"MaxPool{len(o['spatial'])}d"
        shape = (3, o["channels"], *_reached(window, same["dilation"], o["spatial"]))
        yield Case(getattr(lm, name)(window, **same), nn(name, window, **same), [shape])
    uneven = ((0, 1), (1, 0))
    module = _padded(nn("MaxPool2d", 3, 2), uneven, -np.inf)
    yield Case(lm.MaxPool2d(3, stride=2, padding=uneven), module, [(2, 4, 8, 9)])
    # Many elements are zero: which of the equal elements gets the gradient?
    for options in [{}, {"padding": 1}, {"stride": 1}, {"stride": 2, "padding": 1}]:
        module = changed(nn("MaxPool2d", 3, **options), lambda pool, x: pool(x.relu()))

        def layer(x, options=options):
            return lm.MaxPool2d(3, **options)(lm.ReLU()(x))

        yield Case(layer, module, [(2, 3, 9, 12)], name=f"of equals-{options}")


def _unpools():
    """Values at the indices of another layer: the largest elements stay, all others are zero."""
    for shape, *options in [
        ((3, 2, 9), 3, 3, 0),
        ((2, 3, 9, 8), 2, 2, 0),
        ((2, 3, 9, 8), 3, 3, 1),
        ((2, 2, 4, 6, 5), 2, 2, 0),
    ]:

        def layer(x, shape=shape, options=options):
            make, (window, stride, padding) = getattr(lm, f"MaxPool{len(shape) - 2}d"), options
            values, indices = make(window, stride=stride, padding=padding, returns="indices")(x)
            return lm.MaxUnpool(size=shape[2:])(values * values, indices)

        def module(torch, shape=shape, options=options):
            axes = len(shape) - 2
            pool = getattr(torch.nn, f"MaxPool{axes}d")(*options, return_indices=True)
            unpool = getattr(torch.nn, f"MaxUnpool{axes}d")(*options)

            def apply(x):
                values, indices = pool(x)
                return unpool(values * values, indices, shape[2:])

            return apply

        yield Case(layer, module, [shape], name=f"MaxUnpool-{shape}-{options}")


def _average_pools():
    for o in option_sets(14, 9, **_POOLED, count_padding=[True, False]):
        same = _of_axes(o, "window", "stride", "ceil_mode")
        window, counted = same.pop("window"), o["count_padding"]
        same["padding"] = _halved(o, window)
        name, shape = f"AvgPool{len(o['spatial'])}d", (3, o["channels"], *o["spatial"])
        layer = getattr(lm, name)(window, **same, count_padding=counted)
        yield Case(layer, nn(name, window, **same, count_include_pad=counted), [shape])
    for name, shape in (("AvgPool2d", (2, 3, 7, 8)), ("AvgPool3d", (2, 2, 4, 5, 6))):
        layer = getattr(lm, name)(3, stride=2, padding=1, divisor=5)
        yield Case(layer, nn(name, 3, 2, 1, divisor_override=5), [shape])

    # PyTorch's averages and norms know no dilation: a depthwise convolution with ones does.
    def dilated(torch):
        thirds = torch.full((4, 1, 3), 1 / 3, dtype=torch.float64)
        return lambda x: torch.nn.functional.conv1d(x, thirds.to(x.dtype), None, 2, 1, 2, 4)

    yield Case(lm.AvgPool1d(3, stride=2, padding=1, dilation=2), dilated, [(2, 4, 11)])


def _norm_pools():
    for o in option_sets(
        6,
        10,
        spatial=[(9,), (6, 8), (17, 20), (4, 5, 6)],
        window=[2, 3, (3, 2, 2)],
        stride=[None, 1, 2],
        power=[1.0, 2.0, 2.0, 3.0, 4.0],
    ):
        (spatial, _, stride, power), axes = o.values(), len(o["spatial"])
        window = _each(o["window"], 1)[0] if axes == 1 else _of_axes(o, "window")["window"]
        name = f"LPPool{axes}d"
        # Odd powers of negative numbers have no root: PyTorch's result is NaN.
        module = changed(nn(name, power, window, stride), lambda pool, x: pool(abs(x)))
        layer = getattr(lm, name)(window, stride=stride, power=power)
        yield Case(layer, module, [(3, 4, *spatial)])
    # PyTorch's knows no padding; with ceil_mode it enlarges windows that reach beyond the end.
    padded = _padded(nn("LPPool2d", 2, 3, 2), ((1, 2), (1, 2)))
    yield Case(lm.LPPool2d(3, stride=2, padding=1, ceil_mode=True), padded, [(2, 3, 7, 8)])


def _whole_pools():
    for shape in [(3, 4, 9), (2, 16, 7, 6), (2, 3, 4, 3, 5)]:
        axes = tuple(range(2, len(shape)))
        for keep in (False, True):
            for layer, method in ((lm.GlobalAvgPool, "mean"), (lm.GlobalMaxPool, "amax")):

                def pooled(_, how=(method, axes, keep)):
                    return lambda x: getattr(x, how[0])(how[1], keepdim=how[2])

                yield Case(layer(keepdims=keep), pooled, [shape])
    for shape, size in [
        *(((3, 4, 9), 3), ((3, 4, 10), 3), ((3, 4, 3), 7), ((2, 16, 8, 6), 2)),
        *(((2, 5, 8, 6), (4, 1)), ((2, 5, 11, 6), (5, 7)), ((2, 5, 11, 6), (4, None))),
        *(((2, 3, 4, 6, 5), (2, 3, 5)), ((2, 3, 5, 6, 5), (3, 4, 2))),
    ]:
        for kind in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
            module = nn(f"{kind}{len(shape) - 2}d", size)
            yield Case(getattr(lm, kind)(size), module, [shape])


CASES = [
    *(*_convolutions(), *_transposed_convolutions(), *_max_pools(), *_unpools()),
    *(*_average_pools(), *_norm_pools(), *_whole_pools()),
]
test_layer_agrees_with_pytorch = comparison(CASES)


def test_indices_of_windows_are_those_of_pytorch():
    torch = pytorch()
    x = np.random.default_rng(0).integers(0, 5, (2, 3, 9, 12)).astype("float32")
    options = {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2), "ceil_mode": True}
    tensor = lm.Input(3, 9, 12)
    values, indices = lm.MaxPool2d((3, 2), **options, returns="indices")(tensor)
    model = lm.Model(lm.Network(tensor, [values, indices]), engine="interpreter")
    results = model.predict(x)
    expected = torch.nn.MaxPool2d((3, 2), **options, return_indices=True)(torch.tensor(x))
    for result, reference in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, reference.numpy())
