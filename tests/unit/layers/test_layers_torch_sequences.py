"""Attention, blocks of transformers and recurrent layers against PyTorch: values and gradients."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from torch_comparison import Case, changed, comparison, nn, option_sets, pytorch

import lamina as lm

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


class _Module:
    """Parameters with Lamina's names, and the function of them and of inputs that is compared."""

    def __init__(self, parameters, forward):
        self._parameters = {n: pytorch().nn.Parameter(value) for n, value in parameters.items()}
        self._forward = forward
        self.__dict__.update(self._parameters)

    def parameters(self):
        return list(self._parameters.values())

    def __call__(self, *inputs):
        return self._forward(self._parameters, *inputs)


def _attending(module, names, forward):
    """A PyTorch module with attention whose matrices are parameters of their own, as in Lamina.

    Args:
        module: the module.
        names: of its submodules in Lamina.
        forward: (call, inputs...) -> result, where `call` calls the module.
    """
    # For each of the module's parameters, the ones that it is made of.
    parts, values = {}, {}
    for path, parameter in module.named_parameters():
        part, _, last = path.rpartition(".")
        prefix, kind = names[part], last.rpartition("_")[2]
        which = [{"q": "queries.", "k": "keys.", "v": "values."}.get(last[:-12], "")]
        if last.startswith("in_proj"):
            which = ["queries.", "keys.", "values."]
        parts[path] = [f"{prefix}{matrix}{kind}" for matrix in which]
        values |= zip(parts[path], parameter.detach().clone().chunk(len(which)), strict=True)

    def run(parameters, *inputs):
        torch = pytorch()
        joined = {path: torch.cat([*map(parameters.get, names)]) for path, names in parts.items()}

        def call(*args, **options):
            return torch.func.functional_call(module, joined, args, options)

        return forward(call, *inputs)

    made = _Module(values, run)
    made.train = module.train
    return made


def _case(layer, module, names, forward, shapes, **how):
    return _of_scores(layer, lambda torch: _attending(module(torch), names, forward), shapes, **how)


# Weights of order one would make scores in the hundreds, which magnify rounding.
_of_scores = partial(Case, weights=0.4, cancelling=True)
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


def _later(queries, keys):
    """PyTorch's causal mask: true for the later keys, which are excluded."""
    torch = pytorch()
    return torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool).triu(1)


def _linears(attend, sizes, heads, bias):
    """Projections of queries, keys, values and output, and attention by PyTorch's function.

    Args:
        attend: (q, k, v, masks...) -> result, from heads [batch, heads, length, features].
        sizes: of the projections: for each name its outputs and inputs.
        heads: of queries and of keys.
        bias: whether the projections have biases.
    """
    torch = pytorch()
    counts = {"queries": heads[0], "keys": heads[1], "values": heads[1]}

    def run(parameters, *inputs):
        def projected(name, x):
            weight = parameters[f"{name}.weight"]
            return torch.nn.functional.linear(x, weight, parameters.get(f"{name}.bias"))

        each = [
            projected(name, x).unflatten(2, (count, -1)).transpose(1, 2)
            for (name, count), x in zip(counts.items(), inputs[:3], strict=True)
        ]
        return projected("output", attend(*each, *inputs[3:]).transpose(1, 2).flatten(2))

    parameters = {f"{name}.weight": torch.randn(shape) for name, shape in sizes.items()}
    parameters |= {f"{name}.bias": torch.randn(shape[:1]) for name, shape in sizes.items() if bias}
    return _Module(parameters, run)


def _rotated_by_pytorch(x, base):
    """Su et al. (2021), with complex numbers: element i together with element i + d / 2."""
    torch, half = pytorch(), x.shape[3] // 2
    angles = torch.arange(x.shape[2])[:, None] * base ** (-torch.arange(half) / half)
    rotation = torch.polar(torch.ones_like(angles, dtype=x.dtype), angles.to(x.dtype))
    rotated = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * rotation
    return torch.cat([rotated.real, rotated.imag], -1)


def _attentions():
    """Three sequences, all masks, shared keys, other sizes of heads, rotary positions."""
    for o in option_sets(
        20,
        9,
        heads=[(1, 1), (2, 2), (4, 2), (4, 1), (6, 3)],
        head_features=[2, 4, 6],
        lengths=[(5, 6), (5, 6), (1, 4), (7, 3), (150, 150)],
        mask=[None, "heads", "pairs", "examples", "keys that count", "pairs that count"],
        causal=[True, False],
        rotary=[None, None, 100.0],
        bias=[True, True, False],
    ):
        (heads, key_heads), size, (rows, columns), mask, causal, rotary, bias = o.values()
        pairs = (3, rows, columns)
        added = {"heads": (3, heads, *pairs[1:]), "pairs": (3, 1, *pairs[1:]), "examples": pairs}
        counting = {"keys that count": (3, columns), "pairs that count": pairs}

        def attend(q, k, v, mask=None, causal=causal, rotary=rotary):
            torch, attention = pytorch(), pytorch().nn.functional.scaled_dot_product_attention
            if rotary:
                q, k = (_rotated_by_pytorch(x, rotary) for x in (q, k))
            if mask is None:
                return attention(q, k, v, is_causal=causal, enable_gqa=True)
            while mask.ndim < 4:
                mask = mask[:, None]
            if causal:
                later = torch.ones(q.shape[2], k.shape[2]).triu(1).bool()
                mask = (
                    mask & ~later
                    if mask.dtype == torch.bool
                    else mask.masked_fill(later, -torch.inf)
                )
            return attention(q, k, v, attn_mask=mask, enable_gqa=True)

        sizes = {"queries": (heads * size, 8), "keys": (key_heads * size, 7)}
        sizes |= {"values": (key_heads * size, 5), "output": (9, heads * size)}
        how = {"key_heads": key_heads, "head_features": size, "causal": causal, "rotary": rotary}
        sequences = [(3, rows, 8), (3, columns, 7), (3, columns, 5)]
        yield _of_scores(
            lm.MultiHeadAttention(heads, features=9, bias=bias, **how),
            lambda _, made=(attend, sizes, (heads, key_heads), bias): _linears(*made),
            [*sequences, *([added[mask]] if mask in added else [])],
            masks=[counting[mask]] if mask in counting else [],
            name=str(o),
        )


def _of_heads(mask):
    """A mask as PyTorch's layers take it: [batch * heads, queries, keys]."""
    return mask.repeat_interleave(3, 0)


def _added():
    """Masks of floats in PyTorch's layers, and attention weights as a further result.

    With an even number of heads, PyTorch 2.13 infers by another function, which gives NaN for them.
    """
    x, memory, pairs, self_pairs = (2, 5, 9), (2, 6, 9), (2, 5, 6), (2, 5, 5)
    every = np.random.default_rng(3).normal(size=pairs[1:]).astype("float32")
    attention, block = lm.MultiHeadAttention(3), {"hidden": 16, "dropout": 0.0}
    multihead = nn("MultiheadAttention", 9, 3, batch_first=True)

    def weighted(call, x):
        y, weights = call(x, x, x, average_attn_weights=False)
        return pytorch().cat([y.flatten(1), weights.flatten(1)], 1)

    def with_weights(x):
        results = lm.MultiHeadAttention(3, returns="weights")(x)
        return lm.concat([lm.Flatten()(y) for y in results])

    yield _case(with_weights, multihead, _ATTENTION_NAMES, weighted, [x], name="weights")
    yield _case(
        lambda x, memory: attention(x, memory, lm.ops.constant(every, x.dtype)),
        multihead,
        _ATTENTION_NAMES,
        lambda call, x, memory: call(x, memory, memory, attn_mask=x.new_tensor(every))[0],
        [x, memory],
        name="added to all examples",
    )
    yield _case(
        lm.TransformerEncoderBlock(3, **block),
        nn("TransformerEncoderLayer", 9, 3, 16, 0.0, batch_first=True),
        _ENCODER_NAMES,
        lambda call, x, mask: call(x, _of_heads(mask)),
        [x, self_pairs],
    )
    yield _case(
        lm.TransformerDecoderBlock(3, **block, causal=False),
        nn("TransformerDecoderLayer", 9, 3, 16, 0.0, batch_first=True),
        _DECODER_NAMES,
        lambda call, x, memory, *masks: call(x, memory, *map(_of_heads, reversed(masks))),
        [x, memory, pairs, self_pairs],
    )


def _blocks(kind, seed):
    """Blocks of a kind, `"Encoder"` or `"Decoder"`."""
    decodes = kind == "Decoder"
    for o in option_sets(
        5,
        seed,
        heads=[1, 2, 4],
        hidden=[7, 16],
        activation=["relu", "gelu"],
        norm_first=[True, False],
        causal=[True, False],
        masked=[True, False],
        bias=[True, True, False],
    ):
        heads, masked = o.pop("heads"), o.pop("masked")

        def encoded(call, x, *masks, causal=o["causal"]):
            hidden = _later(x, x) if causal else None
            return call(x, hidden, ~masks[0] if masks else None)

        def decoded(call, x, memory, *masks, causal=o["causal"]):
            of_memory, of_targets = (~mask for mask in masks) if masks else (None, None)
            padding = {"tgt_key_padding_mask": of_targets, "memory_key_padding_mask": of_memory}
            return call(x, memory, tgt_mask=_later(x, x) if causal else None, **padding)

        values = (o["hidden"], 0.0, o["activation"], 1e-5, True, o["norm_first"])
        yield _case(
            getattr(lm, f"Transformer{kind}Block")(heads, dropout=0.0, **o),
            nn(f"Transformer{kind}Layer", 8, heads, *values, bias=o["bias"]),
            _DECODER_NAMES if decodes else _ENCODER_NAMES,
            decoded if decodes else encoded,
            [(3, 5, 8), (3, 4, 8)] if decodes else [(3, 6, 8)],
            masks=([(3, 4), (3, 5)] if decodes else [(3, 6)]) if masked else [],
        )


_PLAIN = {"inputs": 3, "features": 5, "batch": 4, "length": 6, "bias": True, "truncate": None}
_PLAIN |= {"activation": "tanh", "projection": None, "given": False}


def _options():
    for kind in ("RNN", "LSTM", "GRU"):
        options = {**_PLAIN, "kind": kind}
        for layers, bidirectional, returns, lengths in [
            (1, False, "all", False),
            (1, False, "last", True),
            (2, True, "all", True),
            (2, True, "last", False),
        ]:
            options |= {"layers": layers, "bidirectional": bidirectional, "returns": returns}
            yield {**options, "lengths": lengths}
        for drawn in option_sets(
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
        ):
            yield {**options, **drawn}
    # Layers that give their final states, and start from given states or from zeros.
    for kind, features, projection in (
        *(("RNN", 2, None), ("GRU", 5, None), ("LSTM", 9, None), ("LSTM", 5, 3), ("LSTM", 4, 1)),
    ):
        options = {**_PLAIN, "kind": kind, "features": features, "projection": projection}
        for layers, bidirectional, with_states, lengths, bias in (
            (1, False, True, False, True),
            (1, True, True, True, False),
            (2, True, False, False, True),
            (2, True, True, True, True),
        ):
            options |= {"layers": layers, "bidirectional": bidirectional, "returns": "states"}
            yield {**options, "given": with_states, "lengths": lengths, "bias": bias}


def _recurrents():
    for o in _options():
        both = {name: o[name] for name in ("bias", "bidirectional")}
        mine = {name: o[name] for name in ("layers", "returns", "truncate")}
        theirs = {}
        if o["kind"] == "RNN":
            mine["activation"] = theirs["nonlinearity"] = o["activation"]
        if o["projection"]:
            mine["projection"] = theirs["proj_size"] = o["projection"]
        layer = getattr(lm, o["kind"])(o["features"], **both, **mine)
        sizes = o["inputs"], o["features"], o["layers"]
        count = o["layers"] * (1 + o["bidirectional"])
        widths = [o["projection"] or o["features"], o["features"]][: 1 + (o["kind"] == "LSTM")]
        states = [(o["batch"], *([count] if count > 1 else []), width) for width in widths]
        yield Case(
            _joined(layer) if o["returns"] == "states" else layer,
            _with_options(nn(o["kind"], *sizes, batch_first=True, **both, **theirs), o),
            [
                (o["batch"], o["length"], o["inputs"]),
                *(states if o["given"] else []),
                *([(o["batch"],)] * o["lengths"]),
            ],
            lengths=o["length"] * o["lengths"],
            weights=1 / math.sqrt(o["features"] + o["inputs"]),
            name=str(o),
        )


def _joined(layer):
    """All results of a layer as one matrix."""

    def apply(*operands):
        results = layer(*operands)
        parts = results if isinstance(results, tuple) else (results,)
        return lm.concat([lm.Flatten()(part) for part in parts]) if parts[1:] else parts[0]

    return apply


def _with_options(module, o):
    """A module on sequences, states with the batch first, and lengths: what `returns` asks for."""

    def forward(call, x, *others):
        lengths = others[-1] if o["lengths"] else None
        if o["truncate"] is not None:
            return _truncated(call.__self__, o, x, lengths)
        count = o["layers"] * (1 + o["bidirectional"])
        states = [
            (state[:, None] if count == 1 else state).transpose(0, 1).contiguous()
            for state in others[: len(others) - o["lengths"]]
        ]
        y, final = _whole(call, o, x, lengths, _as_pytorch_takes(states))
        finals = final if isinstance(final, tuple) else (final,)
        if o["returns"] == "all":
            return y
        if o["returns"] == "last":
            return pytorch().cat(list(finals[0][-2 if o["bidirectional"] else -1 :]), 1)
        return pytorch().cat([y.flatten(1), *(x.transpose(0, 1).flatten(1) for x in finals)], 1)

    return changed(module, forward)


def _as_pytorch_takes(states):
    """A tuple of several states, one as it is, or None."""
    return tuple(states) if len(states) > 1 else next(iter(states), None)


def _whole(call, o, x, lengths, states):
    if lengths is None:
        return call(x, states)
    rnn = pytorch().nn.utils.rnn
    y, final = call(rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False), states)
    return rnn.pad_packed_sequence(y, True, total_length=o["length"])[0], final


def _truncated(module, o, x, lengths):
    """One iteration after the other, with `detach` after every `truncate` of them."""
    torch, last = pytorch(), []
    for layer in range(o["layers"]):
        outputs = []
        last = []
        for reverse in (False, True)[: 1 + o["bidirectional"]]:
            suffix = f"_l{layer}{'_reverse' if reverse else ''}"
            cell = type(module)
            options = {"nonlinearity": o["activation"]} if cell is torch.nn.RNN else {}
            rnn = cell(x.shape[2], o["features"], bias=o["bias"], batch_first=True, **options)
            weights = {
                n: getattr(module, n.replace("_l0", suffix)) for n, _ in rnn.named_parameters()
            }
            first = torch.zeros(1, len(x), o["features"], dtype=x.dtype)
            states = (first, first) if cell is torch.nn.LSTM else (first,)
            hidden = [None] * o["length"]
            for iteration in range(o["length"]):
                time = o["length"] - 1 - iteration if reverse else iteration
                arguments = (x[:, time : time + 1], _as_pytorch_takes(states))
                _, new = torch.func.functional_call(rnn, weights, arguments)
                new = new if isinstance(new, tuple) else (new,)
                hidden[time] = new[0][0]
                if lengths is not None:
                    inside = (time < lengths)[:, None]
                    new = [torch.where(inside, a, b) for a, b in zip(new, states, strict=True)]
                    hidden[time] = torch.where(inside, new[0][0], 0.0)
                is_truncated = (iteration + 1) % o["truncate"] == 0
                states = tuple(state.detach() if is_truncated else state for state in new)
                final = new[0][0]
            outputs.append(torch.stack(hidden, 1))
            last.append(final)
        x = torch.cat(outputs, 2)
    return x if o["returns"] == "all" else torch.cat(last, 1)


def _cells():
    def forward(call, x, *states):
        new = call(x, _as_pytorch_takes(states))
        return pytorch().cat(new, 1) if isinstance(new, tuple) else new

    for kind, states in (("RNNCell", 1), ("LSTMCell", 2), ("GRUCell", 1)):
        for bias, count in itertools.product((True, False), (states, 0)):
            layer, shapes = getattr(lm, kind)(5, bias=bias), [(4, 3), *[(4, 5)] * count]
            module = changed(nn(kind, 3, 5, bias=bias), forward)
            yield Case(_joined(layer), module, shapes, weights=0.4, name=f"{layer}-{shapes}")
    relu = nn("RNNCell", 3, 5, nonlinearity="relu")
    yield Case(lm.RNNCell(5, activation="relu"), relu, [(4, 3), (4, 5)])


CASES = [
    *(*_attentions(), *_added(), *_blocks("Encoder", 2), *_blocks("Decoder", 3)),
    *(*_recurrents(), *_cells()),
]
test_layer_agrees_with_pytorch = comparison(CASES)
