"""Every layer with options of its own against PyTorch: values, gradients, running statistics.

A case is a layer, the PyTorch module that does the same, and the shapes of its inputs. It is
compiled in the training form together with the gradients of all inputs and parameters, and in the
inference form, and runs on every engine. To add a layer, add its cases to the table.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine
from lamina.graph import Graph, Tensor, leaf
from lamina.layers.layer import Layer, Trace
from lamina.ops.differentiate import gradients
from lamina.program.program import Program
from lamina.shapes import Array, DType, float32, float64, static

pytestmark = pytest.mark.torch

# Relative to the largest element of an array. In float64 both are exact to rounding; in float32
# they sum up to some thousand numbers in different orders, gradients of normalisations cancel.
TOLERANCES = {"float64": 1e-9, "float32": 2e-5}
# Of layers with states; the others run twice, as the second run finds the memory of the first.
STEPS = 3

Values = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Case:
    """A layer, written twice.

    Attributes:
        name: of the case, for people.
        layer: builds it in Lamina.
        module: (torch.nn, torch) -> the same in PyTorch: a module, or a function.
        shapes: of the inputs, batch first.
        names: for each parameter and state in Lamina what PyTorch calls it; those that are not
            listed have the same name.
        indices: if above 0, the inputs are integers below it.
        masks: the shapes of further inputs, which are bool.
        weights: what the random parameters are multiplied with.
        cancelling: whether there are gradients that are nothing but rounding, as those of biases
            of keys: errors are then relative to the largest gradient of all.
        lengths: if above 0, the last input is integers from 1 to it.
    """

    name: str
    layer: Callable[[], Callable[..., Tensor]]
    module: Callable[[Any, Any], Any]
    shapes: Sequence[tuple[int, ...]]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    indices: int = 0
    masks: Sequence[tuple[int, ...]] = ()
    weights: float = 1.0
    cancelling: bool = False
    lengths: int = 0

    def __str__(self) -> str:
        return self.name


def option_sets(count: int, seed: int = 0, /, **choices: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """So many different random choices, the same every time: `{"stride": 2, "padding": 0}`."""
    generator = np.random.default_rng(seed)
    seen: set[tuple[int, ...]] = set()
    most = int(np.prod([len(values) for values in choices.values()]))
    while len(seen) < min(count, most):
        places = tuple(int(generator.integers(len(values))) for values in choices.values())
        if places not in seen:
            seen.add(places)
            yield {name: choices[name][i] for name, i in zip(choices, places, strict=True)}


# Normalisation ------------------------------------------------------------------------------------

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
            lambda o=o: lm.BatchNorm(o["momentum"], o["epsilon"], o["affine"]),
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
            lambda o=o, axes=axes: lm.LayerNorm(axes, o["epsilon"], o["affine"], o["bias"]),
            lambda nn, _, o=o, extents=extents: nn.LayerNorm(
                extents, o["epsilon"], o["affine"], o["bias"]
            ),
            [o["shape"]],
        )
        yield Case(
            f"RMSNorm-{o}",
            lambda o=o, axes=axes: lm.RMSNorm(axes, o["epsilon"], o["affine"]),
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
        "LayerNorm of channels", lambda: lm.LayerNorm(1), _channels_last_norm, [(2, 6, 3, 4)]
    )
    for o in option_sets(
        6,
        groups=[1, 2, 3, 6],
        spatial=_SPATIAL,
        epsilon=[1e-5, 1e-2],
        affine=[True, True, False],
    ):
        yield Case(
            f"GroupNorm-{o}",
            lambda o=o: lm.GroupNorm(o["groups"], o["epsilon"], o["affine"]),
            lambda nn, _, o=o: nn.GroupNorm(o["groups"], 12, o["epsilon"], o["affine"]),
            [(3, 12, *o["spatial"])],
        )
    for o in option_sets(4, spatial=_SPATIAL[1:], epsilon=[1e-5, 1e-2], affine=[True, False]):
        yield Case(
            f"InstanceNorm-{o}",
            lambda o=o: lm.InstanceNorm(o["epsilon"], o["affine"]),
            lambda nn, _, o=o: getattr(nn, f"InstanceNorm{len(o['spatial'])}d")(
                4, o["epsilon"], affine=o["affine"]
            ),
            [(3, 4, *o["spatial"])],
        )


# Embedding ----------------------------------------------------------------------------------------


def _embeddings() -> Iterator[Case]:
    for o in option_sets(
        5, shape=[(6,), (4, 5), (2, 3, 4)], count=[1, 7, 30], features=[1, 8, 33], padding=[None, 0]
    ):
        yield Case(
            f"Embedding-{o}",
            lambda o=o: lm.Embedding(o["count"], o["features"], o["padding"]),
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


# Images -------------------------------------------------------------------------------------------


def _images() -> Iterator[Case]:
    for spatial, scale in [((5,), 3), ((3, 4), 2), ((3, 4), (1, 3)), ((2, 3, 2), (2, 1, 3))]:
        yield Case(
            f"Upsample-nearest-{spatial}-{scale}",
            lambda scale=scale: lm.Upsample(scale),
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
            lambda o=o: lm.Upsample(o["scale"], "bilinear", o["corners"]),
            lambda nn, _, o=o: nn.Upsample(
                scale_factor=o["scale"], mode="bilinear", align_corners=o["corners"]
            ),
            [(2, 3, o["height"], o["width"])],
        )
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
            lambda o=o: lm.Pad(o["widths"], o["mode"], o["value"]),
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


# Attention ----------------------------------------------------------------------------------------


class _Attending:
    """A PyTorch module with attention whose matrices are parameters of their own, as in Lamina.

    Args:
        module: the module.
        names: what its parts are called in Lamina.
        forward: (call, inputs...) -> result, where `call` calls the module.
        torch: PyTorch.
    """

    def __init__(self, module: Any, names: Mapping[str, str], forward: Any, torch: Any) -> None:
        self._module, self._forward, self._torch = module, forward, torch
        self._own: dict[str, Any] = {}
        # For each of the module's parameters, the ones that it is made of.
        self._made_of: dict[str, list[str]] = {}
        for path, parameter in module.named_parameters():
            part, _, last = path.rpartition(".")
            prefix = names[part]
            kind = last.rpartition("_")[2]
            if last.startswith("in_proj"):
                own = [f"{prefix}{which}.{kind}" for which in ("queries", "keys", "values")]
                values = parameter.detach().chunk(3)
            else:
                which = {"q": "queries.", "k": "keys.", "v": "values."}.get(last[:-12], "")
                own, values = [f"{prefix}{which}{kind}"], [parameter.detach()]
            self._made_of[path] = own
            for name, value in zip(own, values, strict=True):
                self._own[name] = torch.nn.Parameter(value.clone())
        self.__dict__.update(self._own)

    def parameters(self) -> list[Any]:
        return list(self._own.values())

    def train(self, on: bool) -> None:
        self._module.train(on)

    def __call__(self, *inputs: Any) -> Any:
        whole = {
            path: self._torch.cat([self._own[name] for name in own])
            for path, own in self._made_of.items()
        }

        def call(*args: Any, **options: Any) -> Any:
            return self._torch.func.functional_call(self._module, whole, args, options)

        return self._forward(call, *inputs)


# Weights of order one would make scores in the hundreds, which magnify rounding.
_OF_ATTENTION = 0.4
_ATTENTION_NAMES = {"": "", "out_proj": "output."}
_ENCODER_NAMES = {
    "self_attn": "attention.",
    "self_attn.out_proj": "attention.output.",
    "norm1": "attention_norm.",
    "linear1": "hidden.",
    "linear2": "output.",
    "norm2": "feedforward_norm.",
}
_DECODER_NAMES = _ENCODER_NAMES | {
    "multihead_attn": "memory_attention.",
    "multihead_attn.out_proj": "memory_attention.output.",
    "norm2": "memory_attention_norm.",
    "norm3": "feedforward_norm.",
}


def _later(torch: Any, queries: Any, keys: Any) -> Any:
    """PyTorch's mask of what lies ahead: true where nobody may look."""
    return torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool).triu(1)


def _attentions() -> Iterator[Case]:
    for o in option_sets(
        9,
        1,
        heads=[1, 2, 4],
        lengths=[(5, None), (1, None), (4, 6), (7, 3), (300, None)],
        width=[8, 12],
        bias=[True, True, False],
        causal=[True, False],
        mask=[None, "keys", "pairs"],
    ):
        rows, other = o["lengths"]
        columns = other or rows
        shapes = [(2, rows, 8)] + ([(2, other, o["width"])] if other else [])
        masks = {"keys": [(2, columns)], "pairs": [(2, rows, columns)]}.get(o["mask"], [])

        def module(nn: Any, torch: Any, o: Any = o, other: Any = other) -> Any:
            width = o["width"] if other else 8
            attention = nn.MultiheadAttention(
                8, o["heads"], 0.0, o["bias"], kdim=width, vdim=width, batch_first=True
            )

            def forward(call: Any, x: Any, *rest: Any) -> Any:
                source = rest[0] if other else x
                hidden = _later(torch, x, source) if o["causal"] else None
                hidden = None if hidden is None else hidden.expand(2, -1, -1)
                if o["mask"]:
                    mask = rest[-1] if rest[-1].ndim == 3 else rest[-1][:, None]
                    hidden = ~mask if hidden is None else hidden | ~mask
                if hidden is not None:
                    hidden = hidden.expand(-1, x.shape[1], -1).repeat_interleave(o["heads"], 0)
                return call(x, source, source, attn_mask=hidden, need_weights=False)[0]

            return _Attending(attention, _ATTENTION_NAMES, forward, torch)

        yield Case(
            f"MultiHeadAttention-{o}",
            lambda o=o: lm.MultiHeadAttention(o["heads"], None, 0.0, o["bias"], o["causal"]),
            module,
            shapes,
            masks=masks,
            weights=_OF_ATTENTION,
            cancelling=True,
        )


_BLOCK_OPTIONS = {
    "heads": [1, 2, 4],
    "hidden": [7, 16],
    "activation": ["relu", "gelu"],
    "norm_first": [True, False],
    "causal": [True, False],
    "masked": [True, False],
}


def _encoder_blocks() -> Iterator[Case]:
    for o in option_sets(5, 2, **_BLOCK_OPTIONS):

        def module(nn: Any, torch: Any, o: Any = o) -> Any:
            layer = nn.TransformerEncoderLayer(
                8, o["heads"], o["hidden"], 0.0, o["activation"], 1e-5, True, o["norm_first"]
            )

            def forward(call: Any, x: Any, *masks: Any) -> Any:
                hidden = _later(torch, x, x) if o["causal"] else None
                return call(x, hidden, ~masks[0] if masks else None)

            return _Attending(layer, _ENCODER_NAMES, forward, torch)

        yield Case(
            f"TransformerEncoderBlock-{o}",
            lambda o=o: lm.TransformerEncoderBlock(
                o["heads"], o["hidden"], 0.0, o["activation"], o["norm_first"], o["causal"]
            ),
            module,
            [(3, 6, 8)],
            masks=[(3, 6)] if o["masked"] else [],
            weights=_OF_ATTENTION,
            cancelling=True,
        )


def _decoder_blocks() -> Iterator[Case]:
    for o in option_sets(5, 3, **_BLOCK_OPTIONS):

        def module(nn: Any, torch: Any, o: Any = o) -> Any:
            layer = nn.TransformerDecoderLayer(
                8, o["heads"], o["hidden"], 0.0, o["activation"], 1e-5, True, o["norm_first"]
            )

            def forward(call: Any, x: Any, memory: Any, *masks: Any) -> Any:
                of_memory, own = (~mask for mask in masks) if masks else (None, None)
                return call(
                    *(x, memory),
                    tgt_mask=_later(torch, x, x) if o["causal"] else None,
                    tgt_key_padding_mask=own,
                    memory_key_padding_mask=of_memory,
                )

            return _Attending(layer, _DECODER_NAMES, forward, torch)

        yield Case(
            f"TransformerDecoderBlock-{o}",
            lambda o=o: lm.TransformerDecoderBlock(
                o["heads"], o["hidden"], 0.0, o["activation"], o["norm_first"], o["causal"]
            ),
            module,
            [(3, 5, 8), (3, 4, 8)],
            masks=[(3, 4), (3, 5)] if o["masked"] else [],
            weights=_OF_ATTENTION,
            cancelling=True,
        )


# Recurrent layers ---------------------------------------------------------------------------------


def _recurrents() -> Iterator[Case]:
    for kind in ("RNN", "LSTM", "GRU"):
        for o in _recurrent_options(kind):
            own = {"activation": o["activation"]} if kind == "RNN" else {}
            theirs = {"nonlinearity": o["activation"]} if kind == "RNN" else {}
            names = ("layers", "bidirectional", "returns", "bias", "truncate")
            layer = {name: o[name] for name in names} | own
            yield Case(
                f"{kind}-{o}",
                lambda kind=kind, o=o, layer=layer: getattr(lm, kind)(o["features"], **layer),
                lambda nn, torch, kind=kind, o=o, theirs=theirs: _torch_recurrent(
                    getattr(nn, kind)(
                        o["inputs"],
                        o["features"],
                        o["layers"],
                        bias=o["bias"],
                        batch_first=True,
                        bidirectional=o["bidirectional"],
                        **theirs,
                    ),
                    torch,
                    o,
                ),
                [(o["batch"], o["length"], o["inputs"]), *([(o["batch"],)] * o["lengths"])],
                lengths=o["length"] * o["lengths"],
                weights=1 / math.sqrt(o["features"] + o["inputs"]),
            )


def _recurrent_options(kind: str) -> Iterator[dict[str, Any]]:
    plain = {"inputs": 3, "features": 5, "batch": 4, "length": 6, "bias": True, "truncate": None}
    plain["activation"] = "tanh"
    for layers, bidirectional, returns, lengths in [
        (1, False, "all", False),
        (1, False, "last", True),
        (2, True, "all", True),
        (2, True, "last", False),
    ]:
        own = {"layers": layers, "bidirectional": bidirectional}
        yield {**plain, **own, "returns": returns, "lengths": lengths}
    yield from option_sets(
        7,
        {"RNN": 1, "LSTM": 2, "GRU": 3}[kind],
        inputs=[1, 4, 17],
        features=[1, 3, 8, 33],
        batch=[1, 3, 8],
        length=[1, 2, 5, 9],
        layers=[1, 1, 2],
        bidirectional=[False, True],
        returns=["all", "last"],
        lengths=[False, True],
        bias=[True, True, False],
        activation=["tanh", "relu"] if kind == "RNN" else ["tanh"],
        truncate=[None, None, 1, 3, 20],
    )


def _torch_recurrent(module: Any, torch: Any, o: Mapping[str, Any]) -> Any:
    """A module of PyTorch with lengths, and with states that are cut off every few steps."""
    whole = module.forward
    rnn = torch.nn.utils.rnn

    def last_of(states: Any) -> Any:
        final = states[0] if isinstance(states, tuple) else states
        return torch.cat(list(final[-2 if o["bidirectional"] else -1 :]), 1)

    def forward(x: Any, lengths: Any = None) -> Any:
        if o["truncate"] is not None:
            return _torch_truncated(module, torch, o, x, lengths)
        if lengths is None:
            y, states = whole(x)
        else:
            packed = rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            y, states = whole(packed)
            y, _ = rnn.pad_packed_sequence(y, True, total_length=o["length"])
        return y if o["returns"] == "all" else last_of(states)

    module.forward = forward
    return module


def _torch_truncated(module: Any, torch: Any, o: Mapping[str, Any], x: Any, lengths: Any) -> Any:
    """Step by step, with `detach` after each `truncate` of them."""
    last: list[Any] = []
    for layer in range(o["layers"]):
        outputs: list[Any] = []
        last = []
        for reverse in (False, True)[: 1 + o["bidirectional"]]:
            suffix = f"_l{layer}{'_reverse' if reverse else ''}"
            cell = type(module)
            own = {"nonlinearity": o["activation"]} if cell is torch.nn.RNN else {}
            one = cell(x.shape[2], o["features"], bias=o["bias"], batch_first=True, **own)
            weights = {
                n: getattr(module, n.replace("_l0", suffix)) for n, _ in one.named_parameters()
            }
            first = torch.zeros(1, len(x), o["features"], dtype=x.dtype)
            states = (first, first) if cell is torch.nn.LSTM else (first,)
            found: list[Any] = [None] * o["length"]
            for turn in range(o["length"]):
                time = o["length"] - 1 - turn if reverse else turn
                given = states if len(states) == 2 else states[0]
                _, new = torch.func.functional_call(one, weights, (x[:, time : time + 1], given))
                new = new if isinstance(new, tuple) else (new,)
                if lengths is not None:
                    inside = (time < lengths)[:, None]
                    new = [torch.where(inside, a, b) for a, b in zip(new, states, strict=True)]
                    found[time] = torch.where(inside, new[0][0], 0.0)
                else:
                    found[time] = new[0][0]
                cut = (turn + 1) % o["truncate"] == 0
                states = tuple(state.detach() if cut else state for state in new)
                final = new[0][0]
            outputs.append(torch.stack(found, 1))
            last.append(final)
        x = torch.cat(outputs, 2)
    return x if o["returns"] == "all" else torch.cat(last, 1)


# Windows ------------------------------------------------------------------------------------------

# Of the axes behind the channels: few and short ones, and such that engines take their ways for
# more work.
_SMALL = [(5,), (9,), (4, 6), (7, 5), (3, 4, 5), (5, 3, 4)]
_LARGE = [(70,), (9, 13), (14, 12), (17, 16), (5, 6, 7)]


def _first(numbers: Any, axes: int) -> Any:
    """So many of the numbers, where there is one for each axis."""
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
                16, 3, number + 1, padding
            ),
            lambda nn, torch, axes=axes, padding=padding, number=number: _padded(
                torch, getattr(nn, f"Conv{axes}d")(8, 16, 3, number + 1), padding
            ),
            [(3, 8, 12, 9, 7)[: 2 + axes]],
        )


def _nth(numbers: Any, axis: int) -> int:
    return numbers[axis] if isinstance(numbers, tuple) else numbers


def _padded(torch: Any, module: Any, padding: Any, value: float = 0.0) -> Any:
    """The module behind padding of two widths for each axis."""
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
        lambda: lm.MaxPool2d(3, 2, ((0, 1), (1, 0))),
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
                stride,
                padding,
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
        lambda: lm.AvgPool1d(3, 2, 1, dilation=2),
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
                window, o["stride"], power=o["power"]
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
        lambda: lm.LPPool2d(3, 2, 1, ceil_mode=True),
        lambda nn, torch: lambda x: nn.LPPool2d(2, 3, 2)(torch.nn.functional.pad(x, (1, 2, 1, 1))),
        [(2, 3, 7, 8)],
    )


def _whole_pools() -> Iterator[Case]:
    for shape in [(3, 4, 9), (2, 16, 7, 6), (2, 3, 4, 3, 5)]:
        axes = tuple(range(2, len(shape)))
        for keep in (False, True):
            yield Case(
                f"GlobalAvgPool-{shape}-{keep}",
                lambda keep=keep: lm.GlobalAvgPool(keep),
                lambda _, __, axes=axes, keep=keep: lambda x: x.mean(axes, keepdim=keep),
                [shape],
            )
            yield Case(
                f"GlobalMaxPool-{shape}-{keep}",
                lambda keep=keep: lm.GlobalMaxPool(keep),
                lambda _, __, axes=axes, keep=keep: lambda x: x.amax(axes, keepdim=keep),
                [shape],
            )
    for shape, size in [
        ((3, 4, 9), 3),
        ((2, 16, 8, 6), 2),
        ((2, 5, 8, 6), (4, 1)),
        ((2, 3, 4, 6, 5), (2, 3, 5)),
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


# The rest ----------------------------------------------------------------------------------------


def _linears() -> Iterator[Case]:
    for o in option_sets(3, shape=[(4, 5), (2, 3, 5)], bias=[True, False]):
        yield Case(
            f"Linear-{o}",
            lambda o=o: lm.Linear(3, o["bias"]),
            lambda nn, _, o=o: nn.Linear(5, 3, o["bias"]),
            [o["shape"]],
        )


def _activations() -> Iterator[Case]:
    pairs: list[tuple[Layer, Callable[[Any], Any]]] = [
        (lm.ReLU(), lambda nn: nn.ReLU()),
        (lm.LeakyReLU(0.2), lambda nn: nn.LeakyReLU(0.2)),
        (lm.ELU(1.5), lambda nn: nn.ELU(1.5)),
        (lm.SELU(), lambda nn: nn.SELU()),
        (lm.GELU(), lambda nn: nn.GELU()),
        (lm.GELU("tanh"), lambda nn: nn.GELU("tanh")),
        (lm.SiLU(), lambda nn: nn.SiLU()),
        (lm.Softplus(), lambda nn: nn.Softplus()),
        (lm.Sigmoid(), lambda nn: nn.Sigmoid()),
        (lm.Tanh(), lambda nn: nn.Tanh()),
        (lm.Hardtanh(-0.5, 2.0), lambda nn: nn.Hardtanh(-0.5, 2.0)),
        (lm.Softmax(1), lambda nn: nn.Softmax(1)),
        (lm.LogSoftmax(), lambda nn: nn.LogSoftmax(-1)),
    ]
    for layer, module in pairs:
        yield Case(
            repr(layer), lambda layer=layer: layer, lambda nn, _, m=module: m(nn), [(3, 4, 5)]
        )


CASES = [
    *_linears(),
    *_activations(),
    *_batch_norms(),
    *_layer_norms(),
    *_group_norms(),
    *_embeddings(),
    *_images(),
    *_attentions(),
    *_encoder_blocks(),
    *_decoder_blocks(),
    *_recurrents(),
    *_convolutions(),
    *_transposed_convolutions(),
    *_max_pools(),
    *_average_pools(),
    *_norm_pools(),
    *_whole_pools(),
]


# The comparison -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer_agrees_with_pytorch(case: Case, dtype: DType, engine: Engine) -> None:
    variables, steps, inference = _expected(case, dtype)
    mine = _Mine(case, dtype, engine)
    for name, value in variables.items():
        mine.memories[name].write(value)
    for step, (expected, expected_states) in enumerate(steps):
        upstream = _normal(mine.output_shape, dtype, 100 + step)
        found, found_states = mine.trained(_inputs(case, dtype, step), upstream)
        assert found.keys() == expected.keys()
        largest = max(float(np.abs(value).max(initial=0.0)) for value in expected.values())
        for name, value in expected.items():
            least = largest if case.cancelling else 1.0
            _compare(f"step {step}: {name}", found[name], value, least)
        for name, value in expected_states.items():
            _compare(f"step {step}: {name}", found_states[name], value)
    _compare("inference", mine.inferred(_inputs(case, dtype, STEPS)), inference)
    unchanged = mine.states()
    for name, value in steps[-1][1].items():
        np.testing.assert_array_equal(unchanged[name], found_states[name])
        assert value.shape == unchanged[name].shape


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
    torch = _torch()
    network = _network(case)
    mine, theirs = _Mine(case, float32, engine), _Theirs(case, float32, torch, network)
    exact = _Theirs(case, float64, torch, network)
    for name, value in theirs.variables.items():
        mine.memories[name].write(value)
    x = [array + np.float32(mean) for array in _inputs(case, float32, 0)]
    upstream = _normal(mine.output_shape, float32, 1)
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


def _compare(what: str, found: Array, expected: Array, least: float = 1.0) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
    scale = max(least, float(np.abs(expected).max(initial=0.0)))
    tolerance = TOLERANCES[expected.dtype.name] * scale
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=what)


def _normal(shape: Sequence[int], dtype: DType, seed: int) -> Array:
    # Not around zero: what cancels must show.
    generator = np.random.default_rng(seed)
    return np.asarray(generator.normal(0.5, 1.5, shape), dtype.numpy)


def _inputs(case: Case, dtype: DType, seed: int) -> list[Array]:
    if case.indices:
        generator = np.random.default_rng(seed)
        return [generator.integers(0, case.indices, shape) for shape in case.shapes]
    inputs = [_normal(shape, dtype, 10 * seed + n) for n, shape in enumerate(case.shapes)]
    generator = np.random.default_rng(seed)
    if case.lengths:
        inputs[-1] = generator.integers(1, case.lengths + 1, case.shapes[-1])
    for shape in case.masks:
        mask = generator.random(shape) < 0.6
        # PyTorch has NaN where nothing may be looked at.
        mask[..., 0] = True
        inputs.append(mask)
    return inputs


def _network(case: Case) -> lm.Network:
    kinds = ["int64" if case.indices else None] * len(case.shapes)
    if case.lengths:
        kinds[-1] = "int64"
    inputs = [
        lm.Input(*shape[1:], dtype=kind) for shape, kind in zip(case.shapes, kinds, strict=True)
    ]
    inputs += [lm.Input(*shape[1:], dtype="bool") for shape in case.masks]
    return lm.Network(inputs, case.layer()(*inputs))


def _short(name: str) -> str:
    """`"1.weight"` -> `"weight"`: there is one layer."""
    return name.split(".", 1)[1]


def _torch() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    # Several threads only wait for each other here.
    torch.set_num_threads(1)
    return torch


@functools.cache
def _expected(case: Case, dtype: DType) -> tuple[Values, list[tuple[Values, Values]], Array]:
    """PyTorch's parameters and states, what it makes of them in some steps, and in inference."""
    torch = _torch()
    network = _network(case)
    theirs = _Theirs(case, dtype, torch, network)
    variables = theirs.variables
    shape = _programs(case, dtype).output_shape
    steps: list[tuple[Values, Values]] = []
    for step in range(STEPS if theirs.has_states else 2):
        upstream = _normal(shape, dtype, 100 + step)
        steps.append(theirs.trained(_inputs(case, dtype, step), upstream))
    return variables, steps, theirs.inferred(_inputs(case, dtype, STEPS))


@dataclass(frozen=True)
class _Programs:
    """A layer's training and inference form; engines share them.

    Attributes:
        training, inference: the programs.
        output_shape: of both.
        states: the names of the layer's states.
    """

    training: Program
    inference: Program
    output_shape: tuple[int, ...]
    states: Sequence[str]


@functools.cache
def _programs(case: Case, dtype: DType) -> _Programs:
    network = _network(case)
    batch = case.shapes[0][0]
    trace = network.trace(dtype=dtype, training=True)
    (output,) = trace.outputs
    inference = network.trace(dtype=dtype, training=False)
    outputs = (("y", inference.outputs[0]),)
    return _Programs(
        compile_graph(_training_graph(trace), batch=batch, name="layer"),
        compile_graph(Graph(inference.inputs, outputs), batch=batch, name="layer"),
        (batch, *static(output.shape[1:])),
        [_short(name) for name in trace.record.states],
    )


def _training_graph(trace: Trace) -> Graph:
    (output,) = trace.outputs
    record = trace.record
    upstream = leaf("upstream", "input", output.shape, output.dtype)
    wanted = {t.attributes["name"]: t for t in trace.inputs if t.dtype.is_float}
    wanted |= {_short(name): v.tensor for name, v in record.parameters.items()}
    slopes = gradients(output * upstream, list(wanted.values())) if wanted else ()
    outputs = (("y", output), *zip(map("d {}".format, wanted), slopes, strict=True))
    updates = tuple((record.states[n].tensor, new) for n, new in record.updates.items())
    return Graph((*trace.inputs, upstream), outputs, updates)


class _Mine:
    """The layer in Lamina, compiled for an engine in both forms."""

    def __init__(self, case: Case, dtype: DType, engine: Engine) -> None:
        programs = _programs(case, dtype)
        self.output_shape = programs.output_shape
        self.states_of = programs.states
        training, inference = programs.training, programs.inference
        buffers = {
            buffer.name: buffer
            for program in (training, inference)
            for kind in ("parameter", "state")
            for buffer in program.of_kind(kind)
        }
        shared = {
            name: engine.allocate(buffer.shape, buffer.dtype.numpy)
            for name, buffer in buffers.items()
        }
        self.memories = {_short(name): memory for name, memory in shared.items()}
        self._training = training, engine.compile(training, shared)
        self._inference = inference, engine.compile(inference, shared)

    @staticmethod
    def _run(compiled: tuple[Program, Any], feeds: Mapping[str, Array]) -> dict[str, Array]:
        program, executable = compiled
        executable.run([feeds[buffer.name] for buffer in program.of_kind("input")])
        return {name: executable.output(name) for name, _ in program.outputs}

    def trained(self, inputs: Sequence[Array], upstream: Array) -> tuple[Values, Values]:
        feeds = {f"input{n}": array for n, array in enumerate(inputs)} | {"upstream": upstream}
        return self._run(self._training, feeds), self.states()

    def inferred(self, inputs: Sequence[Array]) -> Array:
        feeds = {f"input{n}": array for n, array in enumerate(inputs)}
        return self._run(self._inference, feeds)["y"]

    def states(self) -> dict[str, Array]:
        return {name: self.memories[name].read() for name in self.states_of}


class _Theirs:
    """The same in PyTorch, with parameters that are not the ones it starts with."""

    def __init__(self, case: Case, dtype: DType, torch: Any, network: lm.Network) -> None:
        self._torch = torch
        wanted = getattr(torch, dtype.name)
        before = torch.get_default_dtype()
        torch.set_default_dtype(wanted)
        try:
            self._module = case.module(torch.nn, torch)
        finally:
            torch.set_default_dtype(before)
        self._dtype = wanted
        record = network.trace(dtype=dtype, training=True).record
        self._parameters = self._found(case, record.parameters)
        self._states = self._found(case, record.states)
        for number, (name, tensor) in enumerate(self._parameters.items()):
            random = _normal(tuple(tensor.shape), dtype, 50 + number)
            value = torch.tensor(random * dtype.numpy.type(case.weights))
            tensor.data = value if name != "weight" or value.ndim != 1 else value.abs() + 0.5
        own = list(getattr(self._module, "parameters", list)())
        assert {id(p) for p in own} == {id(p) for p in self._parameters.values()}

    def _found(self, case: Case, variables: Mapping[str, Any]) -> dict[str, Any]:
        short = [_short(name) for name in variables]
        return {name: getattr(self._module, case.names.get(name, name)) for name in short}

    @property
    def has_states(self) -> bool:
        return bool(self._states)

    @property
    def variables(self) -> dict[str, Array]:
        everything = {**self._parameters, **self._states}
        return {name: tensor.detach().numpy().copy() for name, tensor in everything.items()}

    def trained(self, inputs: Sequence[Array], upstream: Array) -> tuple[Values, Values]:
        self._set_training(True)
        tensors = [self._torch.tensor(array) for array in inputs]
        for tensor in tensors:
            tensor.requires_grad_(tensor.is_floating_point())
        y = self._output(tensors)
        wanted = {f"d input{n}": t for n, t in enumerate(tensors) if t.is_floating_point()}
        wanted |= {f"d {name}": tensor for name, tensor in self._parameters.items()}
        slopes: Sequence[Any] = ()
        if wanted:
            total = (y * self._torch.tensor(upstream)).sum()
            slopes = self._torch.autograd.grad(total, list(wanted.values()))
        found = {"y": y.detach().numpy()}
        found |= {name: slope.numpy() for name, slope in zip(wanted, slopes, strict=True)}
        return found, {name: tensor.numpy().copy() for name, tensor in self._states.items()}

    def inferred(self, inputs: Sequence[Array]) -> Array:
        self._set_training(False)
        with self._torch.no_grad():
            return self._output([self._torch.tensor(array) for array in inputs]).numpy()

    def _output(self, tensors: Sequence[Any]) -> Any:
        before = self._torch.get_default_dtype()
        self._torch.set_default_dtype(self._dtype)
        try:
            return self._module(*tensors)
        finally:
            self._torch.set_default_dtype(before)

    def _set_training(self, on: bool) -> None:
        if hasattr(self._module, "train"):
            self._module.train(on)
