"""Attention and the blocks of transformers against PyTorch: values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from torch_comparison import Case, comparisons, option_sets

import lamina as lm

pytestmark = pytest.mark.torch


class _Attending:
    """A PyTorch module with attention whose matrices are parameters of their own, as in Lamina.

    Args:
        module: the module.
        names: of its submodules in Lamina.
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
    """PyTorch's causal mask: true for the later keys, which are excluded."""
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
            lambda o=o: lm.MultiHeadAttention(
                o["heads"], features=None, dropout=0.0, bias=o["bias"], causal=o["causal"]
            ),
            module,
            shapes,
            masks=masks,
            weights=_OF_ATTENTION,
            cancelling=True,
        )


class _Linears:
    """Projections of queries, keys, values and output, and attention by PyTorch's function.

    Args:
        attend: (q, k, v, masks...) -> result, from heads [batch, heads, length, features].
        sizes: of the projections: for each name its outputs and inputs.
        heads: of queries and of keys.
    """

    def __init__(
        self, torch: Any, attend: Any, sizes: Mapping[str, tuple[int, int]], heads: tuple[int, int]
    ) -> None:
        self._torch, self._attend, self._heads = torch, attend, heads
        self._own = {
            f"{name}.{kind}": torch.nn.Parameter(
                torch.randn(shape if kind == "weight" else shape[:1])
            )
            for name, shape in sizes.items()
            for kind in ("weight", "bias")
        }
        self.__dict__.update(self._own)

    def parameters(self) -> list[Any]:
        return list(self._own.values())

    def train(self, on: bool) -> None:
        pass

    def _linear(self, name: str, x: Any) -> Any:
        weight, bias = (self._own[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return self._torch.nn.functional.linear(x, weight, bias)

    def __call__(self, queries: Any, keys: Any, values: Any, *masks: Any) -> Any:
        heads, key_heads = self._heads
        q, k, v = (
            self._linear(name, x).unflatten(2, (count, -1)).transpose(1, 2)
            for name, x, count in (
                *(("queries", queries, heads), ("keys", keys, key_heads)),
                ("values", values, key_heads),
            )
        )
        found = self._attend(q, k, v, *masks)
        return self._linear("output", found.transpose(1, 2).flatten(2))


def _rotated_by_pytorch(torch: Any, x: Any, base: float) -> Any:
    """Su et al. (2021), with complex numbers: element i together with element i + d / 2."""
    half = x.shape[3] // 2
    angles = torch.arange(x.shape[2])[:, None] * base ** (-torch.arange(half) / half)
    rotation = torch.polar(torch.ones_like(angles, dtype=x.dtype), angles.to(x.dtype))
    whole = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * rotation
    return torch.cat([whole.real, whole.imag], -1)


def _grouped() -> Iterator[Case]:
    """Three sequences, masks of floats, shared keys, other sizes of heads, rotary positions."""
    for o in option_sets(
        10,
        9,
        heads=[(1, 1), (4, 2), (4, 1), (6, 3)],
        head_features=[2, 4, 6],
        added=[None, "heads", "pairs", "examples"],
        causal=[True, False],
        rotary=[None, 100.0],
    ):
        added = {"heads": [(3, o["heads"][0], 5, 6)], "pairs": [(3, 1, 5, 6)]}
        added["examples"] = [(3, 5, 6)]

        def module(nn: Any, torch: Any, o: Any = o) -> Any:
            def attend(q: Any, k: Any, v: Any, *masks: Any) -> Any:
                if o["rotary"]:
                    q, k = (_rotated_by_pytorch(torch, x, o["rotary"]) for x in (q, k))
                added = masks[0] if masks else None
                added = added[:, None] if masks and added.ndim == 3 else added
                if masks and o["causal"]:
                    added = added.masked_fill(torch.ones(5, 6).triu(1).bool(), -torch.inf)
                return nn.functional.scaled_dot_product_attention(
                    *(q, k, v),
                    attn_mask=added,
                    is_causal=o["causal"] and not masks,
                    enable_gqa=True,
                )

            (heads, key_heads), size = o["heads"], o["head_features"]
            sizes = {"queries": (heads * size, 8), "keys": (key_heads * size, 7)}
            sizes |= {"values": (key_heads * size, 5), "output": (9, heads * size)}
            return _Linears(torch, attend, sizes, o["heads"])

        yield Case(
            f"MultiHeadAttention-grouped-{o}",
            lambda o=o: lm.MultiHeadAttention(
                o["heads"][0],
                features=9,
                causal=o["causal"],
                key_heads=o["heads"][1],
                head_features=o["head_features"],
                rotary=o["rotary"],
            ),
            module,
            [(3, 5, 8), (3, 6, 7), (3, 6, 5), *added.get(o["added"], [])],
            weights=_OF_ATTENTION,
            cancelling=True,
        )


def _weights() -> Iterator[Case]:
    """The attention weights as a further result."""

    def module(nn: Any, torch: Any) -> Any:
        attention = nn.MultiheadAttention(8, 4, batch_first=True)

        def forward(call: Any, x: Any) -> Any:
            y, weights = call(x, x, x, average_attn_weights=False)
            return torch.cat([y.flatten(1), weights.flatten(1)], 1)

        return _Attending(attention, _ATTENTION_NAMES, forward, torch)

    def layer() -> Any:
        attention = lm.MultiHeadAttention(4, returns="weights")
        return lambda x: lm.concat([lm.Flatten()(y) for y in attention(x)])

    yield Case("weights", layer, module, [(3, 5, 8)], weights=_OF_ATTENTION, cancelling=True)


def _of_heads(mask: Any) -> Any:
    """A mask as PyTorch's layers take it: [batch * heads, queries, keys]."""
    return mask.repeat_interleave(3, 0)


def _added() -> Iterator[Case]:
    """Masks of floats in PyTorch's layers.

    With an even number of heads, PyTorch 2.13 infers by another function, which gives NaN for them.
    """
    x, memory, pairs, own = (2, 5, 9), (2, 6, 9), (2, 5, 6), (2, 5, 5)
    every = np.random.default_rng(3).normal(size=pairs[1:]).astype("float32")
    attention = lm.MultiHeadAttention(3)
    for name, layer, module, names, forward, shapes in (
        (
            "MultiHeadAttention-added",
            lambda x, memory, mask: attention(x, memory, memory, mask),
            lambda nn: nn.MultiheadAttention(9, 3, batch_first=True),
            _ATTENTION_NAMES,
            lambda call, x, memory, mask: call(x, memory, memory, attn_mask=_of_heads(mask))[0],
            [x, memory, pairs],
        ),
        (
            "MultiHeadAttention-added to all examples",
            lambda x, memory: attention(x, memory, lm.ops.constant(every, x.dtype)),
            lambda nn: nn.MultiheadAttention(9, 3, batch_first=True),
            _ATTENTION_NAMES,
            lambda call, x, memory: call(x, memory, memory, attn_mask=x.new_tensor(every))[0],
            [x, memory],
        ),
        (
            "TransformerEncoderBlock-added",
            lm.TransformerEncoderBlock(3, hidden=16, dropout=0.0),
            lambda nn: nn.TransformerEncoderLayer(9, 3, 16, 0.0, batch_first=True),
            _ENCODER_NAMES,
            lambda call, x, mask: call(x, _of_heads(mask)),
            [x, own],
        ),
        (
            "TransformerDecoderBlock-added",
            lm.TransformerDecoderBlock(3, hidden=16, dropout=0.0, causal=False),
            lambda nn: nn.TransformerDecoderLayer(9, 3, 16, 0.0, batch_first=True),
            _DECODER_NAMES,
            lambda call, x, memory, *masks: call(x, memory, *map(_of_heads, reversed(masks))),
            [x, memory, pairs, own],
        ),
    ):
        yield Case(
            name,
            lambda layer=layer: layer,
            lambda nn, torch, module=module, names=names, forward=forward: _Attending(
                module(nn), names, forward, torch
            ),
            shapes,
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
    "bias": [True, True, False],
}


def _blocks(kind: str, seed: int) -> Iterator[Case]:
    """Blocks of a kind, `"Encoder"` or `"Decoder"`."""
    decodes = kind == "Decoder"
    for o in option_sets(5, seed, **_BLOCK_OPTIONS):

        def module(nn: Any, torch: Any, o: Any = o) -> Any:
            layer = getattr(nn, f"Transformer{kind}Layer")(
                *(8, o["heads"], o["hidden"], 0.0, o["activation"], 1e-5, True, o["norm_first"]),
                bias=o["bias"],
            )

            def encoded(call: Any, x: Any, *masks: Any) -> Any:
                hidden = _later(torch, x, x) if o["causal"] else None
                return call(x, hidden, ~masks[0] if masks else None)

            def decoded(call: Any, x: Any, memory: Any, *masks: Any) -> Any:
                of_memory, own = (~mask for mask in masks) if masks else (None, None)
                return call(
                    *(x, memory),
                    tgt_mask=_later(torch, x, x) if o["causal"] else None,
                    tgt_key_padding_mask=own,
                    memory_key_padding_mask=of_memory,
                )

            names, forward = (_DECODER_NAMES, decoded) if decodes else (_ENCODER_NAMES, encoded)
            return _Attending(layer, names, forward, torch)

        options = {name: value for name, value in o.items() if name not in ("heads", "masked")}
        block = getattr(lm, f"Transformer{kind}Block")
        yield Case(
            f"Transformer{kind}Block-{o}",
            lambda o=o, options=options, block=block: block(o["heads"], dropout=0.0, **options),
            module,
            [(3, 5, 8), (3, 4, 8)] if decodes else [(3, 6, 8)],
            masks=([(3, 4), (3, 5)] if decodes else [(3, 6)]) if o["masked"] else [],
            weights=_OF_ATTENTION,
            cancelling=True,
        )


CASES = [
    *_attentions(),
    *_grouped(),
    *_added(),
    *_weights(),
    *_blocks("Encoder", 2),
    *_blocks("Decoder", 3),
]
test_layer_agrees_with_pytorch, test_second_derivatives_agree_with_pytorch = comparisons(CASES)
