"""Model files: everything comes back, damage is noticed, nothing from a file is run."""

# Annotations of users' layers and initializers may be text.
from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import pytest
from error_texts import error_text
from files_cases import chain, functional, metadata_of, refused
from random_arrays import normal
from training_cases import same

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.errors import DataError, DefinitionError, FileFormatError
from lamina.graph import Graph, show


@dataclass(frozen=True)
class Ramp:
    """An initializer of one's own."""

    slope: float

    def __call__(self, shape, seed, stream):
        return self.slope * np.arange(np.prod(shape, dtype=int)).reshape(shape)


@dataclass(frozen=True)
class Own(lm.Layer):
    """A layer of one's own, with numbers, text, tuples and a layer in its fields."""

    scale: float
    names: tuple[str, ...] = ("a", "b")
    steps: list[int] = field(default_factory=lambda: [1, 2])
    limit: float = float("inf")
    inner: lm.Layer = field(default_factory=lambda: lm.Linear(3))

    def forward(self, scope, x):
        return self.inner(x) * self.scale


@dataclass(frozen=True)
class ReLU(lm.Layer):
    """A layer that bears the name of one of Lamina's."""

    def forward(self, scope, x):
        return x * 3.0


def loops():
    """Recurrences with results that share a loop, one inside the iteration of another."""
    a, weight = lm.Input(4, 3), np.arange(9, dtype="float32").reshape(3, 3) / 10

    def inner(states, elements, _):
        return [states[0] * 0.5 + elements[0]], [ops.exp(-states[0])]

    def outer(states, elements, constants):
        rows = ops.expand_dims(elements[0], 0)
        (sums,), (more,) = ops.recurrence(inner, [states[0]], [ops.concat([rows, rows], 0)])
        return [ops.tanh(sums[-1] @ constants[0])], [more[-1]]

    by_time = ops.transpose(a, (1, 0, 2))
    first = ops.zeros_like(by_time[0])
    (states,), (further,) = ops.recurrence(outer, [first], [by_time], [weight], reverse=True)
    return lm.Network(a, lm.Linear(2)(ops.concat([states[0], further[0]], 1)))


def shared():
    layer = lm.Linear(4)
    a, b = lm.Input(4), lm.Input(4)
    return lm.Network([a, b], lm.Add()(layer(a), layer(lm.Tanh()(b))))


def shared_within():
    inner = lm.Linear(4)
    return lm.Sequential(lm.Input(4), Own(1.0, inner=inner), Own(2.0, inner=inner), inner)


def inputs_of(network):
    return tuple(
        np.random.default_rng(n).integers(0, 3, (5, *t.shape[1:])).astype(t.dtype.numpy)
        if not t.dtype.is_float
        else normal(5, *t.shape[1:], seed=n)
        for n, t in enumerate(network.inputs)
    )


NETWORKS = {
    "an input": lambda: chain(),
    "linear": lambda: chain(lm.Linear(3), lm.Linear(2, bias=False)),
    "initializers": lambda: chain(
        lm.Linear(3, weight_init=lm.init.Orthogonal(), bias_init=lm.init.Constant(0.5)),
        lm.Linear(
            3, weight_init=lm.init.Normal(mean=0.0, deviation=0.1), bias_init=lm.init.Zeros()
        ),
    ),
    "regularizers": lambda: chain(
        lm.Linear(3, weight_regularizer=lm.L2(0.1), bias_regularizer=lm.L1(0.01))
    ),
    "integers": lambda: lm.Sequential(
        lm.Input(dtype="int64"), lambda k: ops.one_hot(k, 5), lm.Linear(3)
    ),
    "functional": functional,
    "loops": loops,
    "recurrent": lambda: lm.Sequential(
        lm.Input(5, 3),
        lm.LSTM(4, layers=2, bidirectional=True, dropout=0.5, weight_regularizer=lm.L2(0.1)),
        lm.GRU(3, bias=False, truncate=2, weight_init=lm.init.Orthogonal()),
        lm.RNN(2, returns="last", activation="relu"),
    ),
    "shared": shared,
    "shared within": shared_within,
    "joins": lambda: lm.Network(
        a := lm.Input(4), lm.Concat()(lm.Multiply()(a, lm.Sigmoid()(a)), lm.Add()(a, a))
    ),
    "own": lambda: chain(Own(0.5, ("x",), [3], 1.0, lm.Linear(2, weight_init=Ramp(0.5)))),
    "a name of Lamina's": lambda: chain(ReLU(), lm.ReLU()),
}


OWN = [Own, Ramp, ReLU]


def training_graph(network):
    traced = network.trace(dtype=float32, training=True)
    penalties = [(f"penalty{n}", t) for n, t in enumerate(traced.record.penalties)]
    outputs = [(f"output{n}", t) for n, t in enumerate(traced.outputs)]
    return show(Graph(traced.inputs, (*outputs, *penalties)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_loaded_model_has_the_same_predictions_training_graph_and_contents(name, dtype, tmp_path):
    model = lm.Model(NETWORKS[name](), seed=3, dtype=dtype)
    model.save(tmp_path / "one")
    again = lm.load(tmp_path / "one", layers=OWN)
    assert again.seed == 3
    found = [one.predict(inputs_of(model.network)) for one in (model, again)]
    found = [one if isinstance(one, tuple) else (one,) for one in found]
    for one, other in zip(*found, strict=True):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
    assert training_graph(again.network) == training_graph(model.network)
    again.save(tmp_path / "other")
    one, other = metadata_of(tmp_path / "one"), metadata_of(tmp_path / "other")
    assert one == other  # with the checksum over all tensors


def test_trained_parameters_and_states_are_loaded_from_a_safetensors_file(tmp_path):
    from safetensors.numpy import load_file

    dropout, path = lm.Dropout(np.float64(0.5)), tmp_path / "model"
    model = lm.Model(chain(lm.Linear(3), lm.BatchNorm(), dropout, lm.Rescale(np.float32(0.1))))
    model.fit((normal(8, 6), normal(8, 3)), loss=lm.MSE(), optimizer=lm.SGD(0.1))
    model.save(path)
    again = lm.load(path)
    assert same(again.parameters() | again.states(), model.parameters() | model.states())
    np.testing.assert_array_equal(again.predict(normal(5, 6)), model.predict(normal(5, 6)))
    stored = load_file(path)["values/1.weight"]
    np.testing.assert_array_equal(stored, again.parameters()["1.weight"])


def test_loading_runs_no_initializer(tmp_path, monkeypatch):
    def fail(*_):
        raise AssertionError("an initializer was run")

    lm.Model(chain(lm.Linear(2, weight_init=Ramp(0.5)))).save(tmp_path / "model")
    monkeypatch.setattr(Ramp, "__call__", fail)
    assert lm.load(tmp_path / "model", layers=OWN).predict(normal(5, 6)).shape == (5, 2)


def test_networks_that_are_no_plain_data_cannot_be_saved(tmp_path):
    def fault(*layers):
        return error_text(DefinitionError, lm.Model(chain(*layers)).save, tmp_path / "model")

    assert fault(lm.Linear(2, weight_regularizer=lambda w: ops.sum(w * w))) == (
        "net/1:Linear.weight_regularizer cannot be saved\n"
        "  expected  numbers, text, tuples, layers, networks, or records of them\n"
        "  found     function\n"
        "  Keep layer fields plain: a file holds data, never code."
    )

    class Plain(lm.Layer):
        def forward(self, scope, x):
            return x

    @dataclass(frozen=True)
    class Outer(lm.Layer):
        inner: lm.Layer

        def forward(self, scope, x):
            return self.inner.forward(scope, x)

    assert "inner cannot be saved" in fault(Outer(Plain()))
    twins = [dataclass(frozen=True)(type("Same", (Plain,), {})) for _ in range(2)]
    assert "two classes of the network are named Same" in fault(*(twin() for twin in twins))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="could not be written"):
        lm.Model(chain(lm.Linear(2))).save(tmp_path / "missing" / "model")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_missing_files_folders_and_pipes_are_refused(tmp_path):
    problem = refused(tmp_path / "missing").problem
    assert problem == "the file cannot be read: No such file or directory"
    os.mkfifo(tmp_path / "pipe")  # which is not waited for
    for path, found in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe, socket or device")):
        error = refused(path)
        assert error.problem == "the file cannot be read: this is not a regular file"
        assert error.facts[1] == ("found", found)


ANOTHER = "the file is damaged or of another kind"


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"PK\x03\x04", b"{}"]
)
def test_a_file_of_another_kind_is_refused(data, tmp_path):
    (tmp_path / "model").write_bytes(data)
    error = refused(tmp_path / "model")
    assert error.problem == ANOTHER
    assert error.facts[0] == ("expected", "a whole model file, as Model.save writes it")
    np.savez(tmp_path / "train.npz", x=np.zeros((3, 2), "float32"))
    error = refused(tmp_path / "train.npz")
    assert error.problem == ANOTHER
    assert error.advice == (
        "The name is that of a data file: lm.data.load(path) reads those, and "
        "model.load_parameters takes dict(numpy.load(path))."
    )


@pytest.mark.parametrize("read", [lm.load, lm.Model(lm.Sequential(lm.Input(2))).load_parameters])
@pytest.mark.cases(
    ("data", "found"),
    (b"\x80\x04\x95pickled", "a pickle"),
    (b"PK\x03\x04" + b"\0" * 26 + b"weights/data.pkl", "a zip archive with a pickle"),
)
def test_a_file_of_pytorch_is_refused_with_the_function_that_takes_it(read, data, found, tmp_path):
    path = tmp_path / "weights.pt"
    path.write_bytes(data)
    assert error_text(FileFormatError, read, path) == (
        f"in {path}: this is a file of PyTorch, or another pickle\n"
        "  expected  a model file, as Model.save writes it\n"
        f"  found     {found}\n"
        "  Pickles are not read, because they may run code. Write the network in Lamina, and give "
        "it the weights: lm.from_torch(net, torch.load(path, weights_only=True))."
    )


@pytest.mark.parametrize("zipped", [True, False])
def test_files_that_pytorch_writes_are_recognised(zipped, tmp_path, torch):
    path = tmp_path / "weights.pt"
    state = torch.nn.Linear(3, 2).state_dict()
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    assert refused(path).problem == "this is a file of PyTorch, or another pickle"


def test_a_safetensors_file_of_someone_else_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3)}, tmp_path / "model")
    assert str(refused(tmp_path / "model")) == (
        f"in {tmp_path / 'model'}: this is not a model file of Lamina\n"
        "  expected  lamina-model-1\n"
        "  found     None\n"
        "  lm.load reads files that Model.save or a checkpoint of fit has written; "
        "model.load_parameters(path) takes the arrays of other safetensors files."
    )


def test_a_users_class_must_be_passed_and_is_never_taken_for_a_class_of_lamina(tmp_path):
    initialised = lm.Linear(2, weight_init=Ramp(0.5))
    for name, layer in (("Own", Own(1.0)), ("Ramp", initialised), ("ReLU", ReLU())):
        lm.Model(chain(layer)).save(tmp_path / "model")
        error = refused(tmp_path / "model")
        assert error.problem == f"the network contains a {name}, which is not a layer of Lamina"
        assert error.facts == (("layers given", "none"),)
        assert error.advice == f"If it is your own, pass its class: lm.load(path, layers=[{name}])."
