"""Attention and the blocks of transformers against PyTorch: values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from torch_comparison import Case, compare_with_pytorch, option_sets

import lamina as lm
from lamina.engines.engine import Engine
from lamina.shapes import DType, float32, float64

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
                o["heads"],
                o["hidden"],
                dropout=0.0,
                activation=o["activation"],
                norm_first=o["norm_first"],
                causal=o["causal"],
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
                o["heads"],
                o["hidden"],
                dropout=0.0,
                activation=o["activation"],
                norm_first=o["norm_first"],
                causal=o["causal"],
            ),
            module,
            [(3, 5, 8), (3, 4, 8)],
            masks=[(3, 4), (3, 5)] if o["masked"] else [],
            weights=_OF_ATTENTION,
            cancelling=True,
        )


CASES = [
    *_attentions(),
    *_encoder_blocks(),
    *_decoder_blocks(),
]


@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer_agrees_with_pytorch(case: Case, dtype: DType, engine: Engine) -> None:
    compare_with_pytorch(case, dtype, engine)
