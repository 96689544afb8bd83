"""Convolutions and pooling against PyTorch: values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from torch_comparison import Case, comparisons, option_sets, pytorch

import lamina as lm

pytestmark = pytest.mark.torch

# Extents of the axes after the channels: small ones, and ones large enough that engines choose
# their algorithms for larger sizes.
_SMALL = [(5,), (9,), (4, 6), (7, 5), (3, 4, 5), (5, 3, 4)]
_LARGE = [(70,), (9, 13), (14, 12), (17, 16), (5, 6, 7)]


def _first(numbers: Any, axes: int) -> Any:
    """One number for each of the first axes, if there is one for each axis."""
    return numbers[:axes] if isinstance(numbers, tuple) else numbers


def _of_axes(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """These options, with a number for each axis of the example."""
    axes = len(options["spatial"])
    return {name: _first(options[name], axes) for name in names}


def _flat(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Widths as torch.nn.functional.pad takes them: the last axis first."""
    return [width for pair in reversed(pairs) for width in pair]


def _conv_choices() -> Iterator[dict[str, Any]]:
    kinds: dict[str, Any] = {
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


def _convolutions() -> Iterator[Case]:
    for o in _conv_choices():
        axes = len(o["spatial"])
        inputs, channels = o["inputs"] * o["groups"], o["channels"] * o["groups"]
        same = _of_axes(o, "stride", "padding", "dilation")
        if same["padding"] == "same":
            same["stride"] = 1
        same |= {name: o[name] for name in ("groups", "bias", "padding_mode")}
        window = _first(o["window"], axes)
        reached = [_nth(same["dilation"], n) * (_nth(window, n) - 1) + 1 for n in range(axes)]
        # There are windows in each, and more elements than are mirrored.
        shape = (o["batch"], inputs, *map(max, o["spatial"], reached))
        yield Case(
            f"Conv{axes}d-{shape}-{channels}-{window}-{same}",
            lambda axes=axes, channels=channels, window=window, same=same: getattr(
                lm, f"Conv{axes}d"
            )(channels, window, **same),
            lambda nn, _, axes=axes, io=(inputs, channels), window=window, same=same: getattr(
                nn, f"Conv{axes}d"
            )(*io, window, **same),
            [shape],
        )
    # PyTorch's convolutions have no padding of two widths.
    for number, padding in enumerate([((0, 1),), ((2, 0), (1, 3)), ((1, 1), 0, (0, 2))]):
        axes = len(padding)
        yield Case(
            f"Conv{axes}d-{padding}",
            lambda axes=axes, padding=padding, number=number: getattr(lm, f"Conv{axes}d")(
                16, 3, stride=number + 1, padding=padding
            ),
            lambda nn, torch, axes=axes, padding=padding, number=number: _padded(
                torch, getattr(nn, f"Conv{axes}d")(8, 16, 3, number + 1), padding
            ),
            [(3, 8, 12, 9, 7)[: 2 + axes]],
        )


def _nth(numbers: Any, axis: int) -> int:
    return numbers[axis] if isinstance(numbers, tuple) else numbers


def _padded(torch: Any, module: Any, padding: Any, value: float = 0.0) -> Any:
    """The module after padding with two widths for each axis."""
    flat = _flat([one if isinstance(one, tuple) else (one, one) for one in padding])
    whole = torch.nn.Module()
    for name, parameter in module.named_parameters():
        setattr(whole, name, parameter)
    whole.forward = lambda x: module(torch.nn.functional.pad(x, flat, value=value))
    return whole


def _transposed_choices() -> Iterator[dict[str, Any]]:
    kinds: dict[str, Any] = {
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


def _transposed_convolutions() -> Iterator[Case]:
    for o in _transposed_choices():
        axes = len(o["spatial"])
        inputs, channels = o["inputs"] * o["groups"], o["channels"] * o["groups"]
        same = _of_axes(o, "stride", "padding", "output_padding", "dilation")
        same |= {name: o[name] for name in ("groups", "bias")}
        most = [max(_nth(same["stride"], n), _nth(same["dilation"], n)) - 1 for n in range(axes)]
        more = tuple(min(_nth(same["output_padding"], n), most[n]) for n in range(axes))
        same["output_padding"] = more if any(more) else 0
        window = _first(o["window"], axes)
        shape = (o["batch"], inputs, *o["spatial"])
        yield Case(
            f"ConvTranspose{axes}d-{shape}-{channels}-{window}-{same}",
            lambda axes=axes, channels=channels, window=window, same=same: getattr(
                lm, f"ConvTranspose{axes}d"
            )(channels, window, **same),
            lambda nn, _, axes=axes, io=(inputs, channels), window=window, same=same: getattr(
                nn, f"ConvTranspose{axes}d"
            )(*io, window, **same),
            [shape],
        )


_POOLED = {
    "spatial": [*_SMALL, (64,), (17, 20), (7, 6, 9)],
    "channels": [1, 3, 16],
    "window": [2, 2, 3, (3, 2, 1), (2, 3, 3)],
    "stride": [None, None, 1, 2, (2, 1, 3)],
    "padding": [0, 0, 1, (1, 0, 0)],
    "ceil_mode": [False, False, True],
}


def _max_pools() -> Iterator[Case]:
    for o in option_sets(16, 8, **_POOLED, dilation=[1, 1, 1, 2, (1, 2, 1)]):
        axes = len(o["spatial"])
        same = _of_axes(o, "stride", "dilation")
        window = _first(o["window"], axes)
        reached = [_nth(same["dilation"], n) * (_nth(window, n) - 1) + 1 for n in range(axes)]
        same["padding"] = tuple(
            min(_nth(o["padding"], n), _nth(window, n) // 2) for n in range(axes)
        )
        same["ceil_mode"] = o["ceil_mode"]
        shape = (3, o["channels"], *map(max, o["spatial"], reached))
        yield Case(
            f"MaxPool{axes}d-{shape}-{window}-{same}",
            lambda axes=axes, window=window, same=same: getattr(lm, f"MaxPool{axes}d")(
                window, **same
            ),
            lambda nn, _, axes=axes, window=window, same=same: getattr(nn, f"MaxPool{axes}d")(
                window, **same
            ),
            [shape],
        )
    yield Case(
        "MaxPool2d-padded on two sides differently",
        lambda: lm.MaxPool2d(3, stride=2, padding=((0, 1), (1, 0))),
        lambda nn, torch: _padded(torch, nn.MaxPool2d(3, 2), ((0, 1), (1, 0)), -np.inf),
        [(2, 4, 8, 9)],
    )
    # Many elements are zero: which one of equals gets the gradient?
    for options in [{}, {"padding": 1}, {"stride": 1}, {"stride": 2, "padding": 1}]:
        yield Case(
            f"MaxPool2d-of equals-{options}",
            lambda options=options: lambda x: lm.MaxPool2d(3, **options)(lm.ReLU()(x)),
            lambda nn, _, options=options: nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, **options)),
            [(2, 3, 9, 12)],
        )


def _unpools() -> Iterator[Case]:
    """Values at the indices of another layer: the largest elements stay, all others are zero."""
    for axes, shape, window, stride, padding in [
        (1, (3, 2, 9), 3, 3, 0),
        (2, (2, 3, 9, 8), 2, 2, 0),
        (2, (2, 3, 9, 8), 3, 3, 1),
        (3, (2, 2, 4, 6, 5), 2, 2, 0),
    ]:

        def layer(axes: int = axes, shape: Any = shape, options: Any = (window, stride, padding)):
            pool = getattr(lm, f"MaxPool{axes}d")(
                options[0], stride=options[1], padding=options[2], returns="indices"
            )

            def apply(x: lm.Tensor) -> lm.Tensor:
                values, indices = pool(x)
                return lm.MaxUnpool(size=shape[2:])(values * values, indices)

            return apply

        def module(
            nn: Any,
            _: Any,
            axes: int = axes,
            shape: Any = shape,
            options: Any = (window, stride, padding),
        ) -> Any:
            pool = getattr(nn, f"MaxPool{axes}d")(*options, return_indices=True)
            unpool = getattr(nn, f"MaxUnpool{axes}d")(*options)

            def apply(x: Any) -> Any:
                values, indices = pool(x)
                return unpool(values * values, indices, shape[2:])

            return apply

        yield Case(f"MaxUnpool-{shape}-{window}-{stride}-{padding}", layer, module, [shape])


def _divisors() -> Iterator[Case]:
    for axes, shape in ((2, (2, 3, 7, 8)), (3, (2, 2, 4, 5, 6))):
        yield Case(
            f"AvgPool{axes}d-divisor",
            lambda axes=axes: getattr(lm, f"AvgPool{axes}d")(3, stride=2, padding=1, divisor=5),
            lambda nn, _, axes=axes: getattr(nn, f"AvgPool{axes}d")(3, 2, 1, divisor_override=5),
            [shape],
        )


def _average_pools() -> Iterator[Case]:
    for o in option_sets(14, 9, **_POOLED, count_padding=[True, False]):
        axes = len(o["spatial"])
        window = _first(o["window"], axes)
        stride = _first(o["stride"], axes)
        padding = tuple(min(_nth(o["padding"], n), _nth(window, n) // 2) for n in range(axes))
        shape = (3, o["channels"], *o["spatial"])
        yield Case(
            f"AvgPool{axes}d-{shape}-{window}-{stride}-{padding}-{o['ceil_mode']}-"
            f"{o['count_padding']}",
            lambda axes=axes, window=window, stride=stride, padding=padding, o=o: getattr(
                lm, f"AvgPool{axes}d"
            )(
                window,
                stride=stride,
                padding=padding,
                ceil_mode=o["ceil_mode"],
                count_padding=o["count_padding"],
            ),
            lambda nn, _, axes=axes, window=window, stride=stride, padding=padding, o=o: getattr(
                nn, f"AvgPool{axes}d"
            )(window, stride, padding, o["ceil_mode"], o["count_padding"]),
            [shape],
        )
    # PyTorch's averages and norms know no dilation: a depthwise convolution with ones does.
    yield Case(
        "AvgPool1d-dilated",
        lambda: lm.AvgPool1d(3, stride=2, padding=1, dilation=2),
        lambda _, torch: (
            lambda x: torch.nn.functional.conv1d(
                x, torch.full((4, 1, 3), 1 / 3, dtype=x.dtype), None, 2, 1, 2, 4
            )
        ),
        [(2, 4, 11)],
    )


def _norm_pools() -> Iterator[Case]:
    for o in option_sets(
        6,
        10,
        spatial=[(9,), (6, 8), (17, 20), (4, 5, 6)],
        window=[2, 3, (3, 2, 2)],
        stride=[None, 1, 2],
        power=[1.0, 2.0, 2.0, 3.0, 4.0],
    ):
        axes = len(o["spatial"])
        window = _nth(o["window"], 0) if axes == 1 else _first(o["window"], axes)
        yield Case(
            f"LPPool{axes}d-{o}",
            lambda axes=axes, window=window, o=o: getattr(lm, f"LPPool{axes}d")(
                window, stride=o["stride"], power=o["power"]
            ),
            # Odd powers of negative numbers have no root: PyTorch's result is NaN.
            lambda nn, torch, axes=axes, window=window, o=o: (
                lambda x: getattr(nn, f"LPPool{axes}d")(o["power"], window, o["stride"])(
                    torch.abs(x)
                )
            ),
            [(3, 4, *o["spatial"])],
        )
    # PyTorch's knows no padding; with ceil_mode it enlarges windows that reach beyond the end.
    yield Case(
        "LPPool2d-padded",
        lambda: lm.LPPool2d(3, stride=2, padding=1, ceil_mode=True),
        lambda nn, torch: lambda x: nn.LPPool2d(2, 3, 2)(torch.nn.functional.pad(x, (1, 2, 1, 1))),
        [(2, 3, 7, 8)],
    )


def _whole_pools() -> Iterator[Case]:
    for shape in [(3, 4, 9), (2, 16, 7, 6), (2, 3, 4, 3, 5)]:
        axes = tuple(range(2, len(shape)))
        for keep in (False, True):
            yield Case(
                f"GlobalAvgPool-{shape}-{keep}",
                lambda keep=keep: lm.GlobalAvgPool(keepdims=keep),
                lambda _, __, axes=axes, keep=keep: lambda x: x.mean(axes, keepdim=keep),
                [shape],
            )
            yield Case(
                f"GlobalMaxPool-{shape}-{keep}",
                lambda keep=keep: lm.GlobalMaxPool(keepdims=keep),
                lambda _, __, axes=axes, keep=keep: lambda x: x.amax(axes, keepdim=keep),
                [shape],
            )
    for shape, size in [
        ((3, 4, 9), 3),
        ((2, 16, 8, 6), 2),
        ((2, 5, 8, 6), (4, 1)),
        ((2, 3, 4, 6, 5), (2, 3, 5)),
        ((3, 4, 10), 3),
        ((3, 4, 3), 7),
        ((2, 5, 11, 6), (5, 7)),
        ((2, 5, 11, 6), (4, None)),
        ((2, 3, 5, 6, 5), (3, 4, 2)),
    ]:
        axes = len(shape) - 2
        yield Case(
            f"AdaptiveAvgPool-{shape}-{size}",
            lambda size=size: lm.AdaptiveAvgPool(size),
            lambda nn, _, axes=axes, size=size: getattr(nn, f"AdaptiveAvgPool{axes}d")(size),
            [shape],
        )
        yield Case(
            f"AdaptiveMaxPool-{shape}-{size}",
            lambda size=size: lm.AdaptiveMaxPool(size),
            lambda nn, _, axes=axes, size=size: getattr(nn, f"AdaptiveMaxPool{axes}d")(size),
            [shape],
        )


CASES = [
    *_convolutions(),
    *_transposed_convolutions(),
    *_max_pools(),
    *_unpools(),
    *_divisors(),
    *_average_pools(),
    *_norm_pools(),
    *_whole_pools(),
]
test_layer_agrees_with_pytorch, test_second_derivatives_agree_with_pytorch = comparisons(CASES)


def test_indices_of_windows_are_those_of_pytorch() -> None:
    torch = pytorch()
    x = np.random.default_rng(0).integers(0, 5, (2, 3, 9, 12)).astype("float32")
    options = {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2), "ceil_mode": True}
    tensor = lm.Input(3, 9, 12)
    values, indices = lm.MaxPool2d((3, 2), **options, returns="indices")(tensor)
    model = lm.Model(lm.Network(tensor, [values, indices]), engine="interpreter")
    found = model.predict(x)
    expected = torch.nn.MaxPool2d((3, 2), **options, return_indices=True)(torch.tensor(x))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other.numpy())
