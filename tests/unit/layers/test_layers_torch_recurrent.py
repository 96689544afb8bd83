"""Recurrent layers against PyTorch: values and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from torch_comparison import Case, comparisons, option_sets

import lamina as lm

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


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
    """A module of PyTorch with lengths and truncated backpropagation through time."""
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
    """One iteration after the other, with `detach` after every `truncate` of them."""
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
            for iteration in range(o["length"]):
                time = o["length"] - 1 - iteration if reverse else iteration
                given = states if len(states) == 2 else states[0]
                _, new = torch.func.functional_call(one, weights, (x[:, time : time + 1], given))
                new = new if isinstance(new, tuple) else (new,)
                if lengths is not None:
                    inside = (time < lengths)[:, None]
                    new = [torch.where(inside, a, b) for a, b in zip(new, states, strict=True)]
                    found[time] = torch.where(inside, new[0][0], 0.0)
                else:
                    found[time] = new[0][0]
                is_truncated = (iteration + 1) % o["truncate"] == 0
                states = tuple(state.detach() if is_truncated else state for state in new)
                final = new[0][0]
            outputs.append(torch.stack(found, 1))
            last.append(final)
        x = torch.cat(outputs, 2)
    return x if o["returns"] == "all" else torch.cat(last, 1)


def _joined(torch: Any, y: Any, states: Any) -> Any:
    """The outputs and final states of PyTorch as one matrix, batch first."""
    several = states if isinstance(states, tuple) else (states,)
    parts = [y, *(state.transpose(0, 1) for state in several)]
    return torch.cat([part.flatten(1) for part in parts], 1)


def _own_states(layer: lm.Layer) -> Any:
    """The layer, applied to sequences, lengths and states: all its results as one matrix."""

    def apply(*operands: lm.Tensor) -> lm.Tensor:
        return lm.concat([lm.Flatten()(part) for part in layer(*operands)])

    return apply


def _theirs_states(module: Any, torch: Any, o: Mapping[str, Any], count: int) -> Any:
    """A module of PyTorch on sequences, states with the batch first, and lengths."""
    whole, rnn = module.forward, torch.nn.utils.rnn

    def forward(x: Any, *others: Any) -> Any:
        by_layer = [
            (state[:, None] if count == 1 else state).transpose(0, 1).contiguous()
            for state in others[: len(others) - o["lengths"]]
        ]
        states = tuple(by_layer) if len(by_layer) > 1 else next(iter(by_layer), None)
        if not o["lengths"]:
            return _joined(torch, *whole(x, states))
        packed = rnn.pack_padded_sequence(x, others[-1], True, enforce_sorted=False)
        y, final = whole(packed, states)
        y, _ = rnn.pad_packed_sequence(y, True, total_length=o["length"])
        return _joined(torch, y, final)

    module.forward = forward
    return module


def _states() -> Iterator[Case]:
    """Layers that give their final states, and start from given states or from zeros."""
    options = [
        {"kind": kind, "features": features, "projection": projection}
        | {"layers": layers, "bidirectional": bidirectional, "given": given}
        | {"lengths": lengths, "bias": bias}
        for kind, features, projection in (
            *(("RNN", 2, None), ("GRU", 5, None), ("LSTM", 9, None)),
            *(("LSTM", 5, 3), ("LSTM", 4, 1)),
        )
        for layers, bidirectional, given, lengths, bias in (
            (1, False, True, False, True),
            (1, True, True, True, False),
            (2, True, False, False, True),
            (2, True, True, True, True),
        )
    ]
    for o in options:
        own = {name: o[name] for name in ("layers", "bidirectional", "bias")}
        projection = o["projection"]
        mine = {**own, "returns": "states"} | ({"projection": projection} if projection else {})
        more = {"proj_size": projection} if projection else {}
        count = o["layers"] * (1 + o["bidirectional"])
        each = () if count == 1 else (count,)
        widths = [projection or o["features"], o["features"]][: 1 + (o["kind"] == "LSTM")]
        yield Case(
            f"{o['kind']}-states-{o}",
            lambda o=o, mine=mine: _own_states(getattr(lm, o["kind"])(o["features"], **mine)),
            lambda nn, torch, o=o, own=own, more=more, count=count: _theirs_states(
                getattr(nn, o["kind"])(
                    *(3, o["features"], own["layers"]),
                    batch_first=True,
                    bias=o["bias"],
                    bidirectional=o["bidirectional"],
                    **more,
                ),
                torch,
                {**o, "length": 6},
                count,
            ),
            [
                (4, 6, 3),
                *[(4, *each, width) for width in widths if o["given"]],
                *([(4,)] * o["lengths"]),
            ],
            lengths=6 * o["lengths"],
            weights=1 / math.sqrt(o["features"] + 3),
        )


def _cells() -> Iterator[Case]:
    for kind, states in (("RNN", 1), ("LSTM", 2), ("GRU", 1)):
        for bias in (True, False):
            for given in (states, 0):
                shapes = [(4, 3), *[(4, 5)] * given]
                yield Case(
                    f"{kind}Cell-bias={bias}-states={given}",
                    lambda kind=kind, bias=bias: _joined_cell(
                        getattr(lm, f"{kind}Cell")(5, bias=bias)
                    ),
                    lambda nn, torch, kind=kind, bias=bias: _torch_cell(
                        getattr(nn, f"{kind}Cell")(3, 5, bias=bias), torch
                    ),
                    shapes,
                    weights=0.4,
                )
    yield Case(
        "RNNCell-relu",
        lambda: lm.RNNCell(5, activation="relu"),
        lambda nn, _: nn.RNNCell(3, 5, nonlinearity="relu"),
        [(4, 3), (4, 5)],
    )


def _joined_cell(layer: lm.Layer) -> Any:
    def apply(*operands: lm.Tensor) -> lm.Tensor:
        new = layer(*operands)
        return lm.concat(new) if isinstance(new, tuple) else new

    return apply


def _torch_cell(module: Any, torch: Any) -> Any:
    one = module.forward

    def forward(x: Any, *states: Any) -> Any:
        new = one(x, states if len(states) > 1 else next(iter(states), None))
        return torch.cat(new, 1) if isinstance(new, tuple) else new

    module.forward = forward
    return module


CASES = [*_recurrents(), *_states(), *_cells()]
test_layer_agrees_with_pytorch, test_second_derivatives_agree_with_pytorch = comparisons(CASES)
