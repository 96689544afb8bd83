"""Recurrent layers against PyTorch: values and gradients."""

import itertools
import math

import pytest
from torch_comparison import Case, changed, comparison, nn, option_sets, pytorch

import lamina as lm

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

_PLAIN = {"inputs": 3, "features": 5, "batch": 4, "length": 6, "bias": True, "truncate": None}
_PLAIN |= {"activation": "tanh", "projection": None, "given": False}


def _options():
    for kind in ("RNN", "LSTM", "GRU"):
        own = {**_PLAIN, "kind": kind}
        for layers, bidirectional, returns, lengths in [
            (1, False, "all", False),
            (1, False, "last", True),
            (2, True, "all", True),
            (2, True, "last", False),
        ]:
            own |= {"layers": layers, "bidirectional": bidirectional, "returns": returns}
            yield {**own, "lengths": lengths}
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
            yield {**own, **drawn}
    # Layers that give their final states, and start from given states or from zeros.
    for kind, features, projection in (
        *(("RNN", 2, None), ("GRU", 5, None), ("LSTM", 9, None), ("LSTM", 5, 3), ("LSTM", 4, 1)),
    ):
        own = {**_PLAIN, "kind": kind, "features": features, "projection": projection}
        for layers, bidirectional, given, lengths, bias in (
            (1, False, True, False, True),
            (1, True, True, True, False),
            (2, True, False, False, True),
            (2, True, True, True, True),
        ):
            own |= {"layers": layers, "bidirectional": bidirectional, "returns": "states"}
            yield {**own, "given": given, "lengths": lengths, "bias": bias}


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
        found = layer(*operands)
        parts = found if isinstance(found, tuple) else (found,)
        return lm.concat([lm.Flatten()(part) for part in parts]) if parts[1:] else parts[0]

    return apply


def _with_options(module, o):
    """A module on sequences, states with the batch first, and lengths: what `returns` asks for."""

    def forward(own, x, *others):
        lengths = others[-1] if o["lengths"] else None
        if o["truncate"] is not None:
            return _truncated(own.__self__, o, x, lengths)
        count = o["layers"] * (1 + o["bidirectional"])
        given = [
            (state[:, None] if count == 1 else state).transpose(0, 1).contiguous()
            for state in others[: len(others) - o["lengths"]]
        ]
        y, final = _whole(own, o, x, lengths, _as_pytorch_takes(given))
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


def _whole(own, o, x, lengths, states):
    if lengths is None:
        return own(x, states)
    rnn = pytorch().nn.utils.rnn
    y, final = own(rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False), states)
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
            own = {"nonlinearity": o["activation"]} if cell is torch.nn.RNN else {}
            one = cell(x.shape[2], o["features"], bias=o["bias"], batch_first=True, **own)
            weights = {
                n: getattr(module, n.replace("_l0", suffix)) for n, _ in one.named_parameters()
            }
            first = torch.zeros(1, len(x), o["features"], dtype=x.dtype)
            states = (first, first) if cell is torch.nn.LSTM else (first,)
            found = [None] * o["length"]
            for iteration in range(o["length"]):
                time = o["length"] - 1 - iteration if reverse else iteration
                given = (x[:, time : time + 1], _as_pytorch_takes(states))
                _, new = torch.func.functional_call(one, weights, given)
                new = new if isinstance(new, tuple) else (new,)
                found[time] = new[0][0]
                if lengths is not None:
                    inside = (time < lengths)[:, None]
                    new = [torch.where(inside, a, b) for a, b in zip(new, states, strict=True)]
                    found[time] = torch.where(inside, new[0][0], 0.0)
                is_truncated = (iteration + 1) % o["truncate"] == 0
                states = tuple(state.detach() if is_truncated else state for state in new)
                final = new[0][0]
            outputs.append(torch.stack(found, 1))
            last.append(final)
        x = torch.cat(outputs, 2)
    return x if o["returns"] == "all" else torch.cat(last, 1)


def _cells():
    def forward(own, x, *states):
        new = own(x, _as_pytorch_takes(states))
        return pytorch().cat(new, 1) if isinstance(new, tuple) else new

    for kind, states in (("RNNCell", 1), ("LSTMCell", 2), ("GRUCell", 1)):
        for bias, given in itertools.product((True, False), (states, 0)):
            layer, shapes = getattr(lm, kind)(5, bias=bias), [(4, 3), *[(4, 5)] * given]
            module = changed(nn(kind, 3, 5, bias=bias), forward)
            yield Case(_joined(layer), module, shapes, weights=0.4, name=f"{layer}-{shapes}")
    relu = nn("RNNCell", 3, 5, nonlinearity="relu")
    yield Case(lm.RNNCell(5, activation="relu"), relu, [(4, 3), (4, 5)])


CASES = [*_recurrents(), *_cells()]
test_layer_agrees_with_pytorch = comparison(CASES)
