"""Model files: everything comes back, damage is noticed, nothing from a file is run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files_cases import Array, chain, functional, metadata_of, refused
from random_arrays import normal

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.errors import DataError, DefinitionError, FileFormatError
from lamina.graph import Graph, show


@dataclass(frozen=True)
class Ramp:
    """An initializer of one's own."""

    slope: float

    def __call__(self, shape: tuple[int, ...], seed: int, stream: int) -> Array:
        return self.slope * np.arange(np.prod(shape, dtype=int)).reshape(shape)


@dataclass(frozen=True)
class Own(lm.Layer):
    """A layer of one's own, with numbers, text, tuples and a layer in its fields."""

    scale: float
    names: tuple[str, ...] = ("a", "b")
    steps: list[int] = field(default_factory=lambda: [1, 2])
    limit: float = float("inf")
    inner: lm.Layer = field(default_factory=lambda: lm.Linear(3))

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return self.inner(x) * self.scale


@dataclass(frozen=True)
class ReLU(lm.Layer):
    """A layer that bears the name of one of Lamina's."""

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return x * 3.0


def loops() -> lm.Network:
    """Recurrences with results that share a loop, one inside the iteration of another."""
    a, weight = lm.Input(4, 3), np.arange(9, dtype="float32").reshape(3, 3) / 10

    def inner(states: Any, elements: Any, _: Any) -> Any:
        return [states[0] * 0.5 + elements[0]], [ops.exp(-states[0])]

    def outer(states: Any, elements: Any, constants: Any) -> Any:
        rows = ops.expand_dims(elements[0], 0)
        (sums,), (more,) = ops.recurrence(inner, [states[0]], [ops.concat([rows, rows], 0)])
        return [ops.tanh(sums[-1] @ constants[0])], [more[-1]]

    by_time = ops.transpose(a, (1, 0, 2))
    first = ops.zeros_like(by_time[0])
    (states,), (further,) = ops.recurrence(outer, [first], [by_time], [weight], reverse=True)
    return lm.Network(a, lm.Linear(2)(ops.concat([states[0], further[0]], 1)))


def shared() -> lm.Network:
    layer = lm.Linear(4)
    a, b = lm.Input(4), lm.Input(4)
    return lm.Network([a, b], lm.Add()(layer(a), layer(lm.Tanh()(b))))


def shared_within() -> lm.Network:
    inner = lm.Linear(4)
    return lm.Sequential(lm.Input(4), Own(1.0, inner=inner), Own(2.0, inner=inner), inner)


def inputs_of(network: lm.Network) -> tuple[Array, ...]:
    return tuple(
        np.random.default_rng(n).integers(0, 3, (5, *t.shape[1:])).astype(t.dtype.numpy)
        if not t.dtype.is_float
        else normal(5, *t.shape[1:], seed=n)
        for n, t in enumerate(network.inputs)
    )


NETWORKS: dict[str, Callable[[], lm.Network]] = {
    "an input": lambda: chain(),
    "linear": lambda: chain(lm.Linear(3), lm.Linear(2, bias=False)),
    "activations": lambda: chain(
        *(lm.ELU(alpha=0.5), lm.GELU(), lm.SELU(), lm.SiLU(), lm.LeakyReLU(slope=0.1), lm.ReLU()),
        *(lm.Hardtanh(), lm.Sigmoid(), lm.Softplus(), lm.Tanh(), lm.Softmax(), lm.LogSoftmax()),
    ),
    "rectifiers": lambda: chain(
        *(lm.PReLU(slope=0.3), lm.RReLU(), lm.Threshold(-2.0, -1.0), lm.CELU(alpha=0.5)),
        *(lm.Hardshrink(threshold=0.1), lm.Softshrink(threshold=0.1), lm.Hardswish()),
    ),
    "shapes": lambda: chain(lm.Reshape(2, -1), lm.Flatten(), lm.Rescale(2.0), lm.Dropout(0.25)),
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


# Round trips --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_loaded_model_predicts_the_same_bits(name: str, dtype: str, tmp_path: Path) -> None:
    model = lm.Model(NETWORKS[name](), seed=3, dtype=dtype)
    model.save(tmp_path / "model")
    again = lm.load(tmp_path / "model", layers=OWN)
    assert again.seed == 3
    given = inputs_of(model.network)
    expected, found = model.predict(given), again.predict(given)
    for one, other in zip(
        expected if isinstance(expected, tuple) else (expected,),
        found if isinstance(found, tuple) else (found,),
        strict=True,
    ):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_loaded_network_has_the_same_training_graph(name: str, tmp_path: Path) -> None:
    model = lm.Model(NETWORKS[name]())
    model.save(tmp_path / "model")
    again = lm.load(tmp_path / "model", layers=OWN)

    def training_graph(network: lm.Network) -> str:
        traced = network.trace(dtype=float32, training=True)
        penalties = [(f"penalty{n}", t) for n, t in enumerate(traced.record.penalties)]
        outputs = [(f"output{n}", t) for n, t in enumerate(traced.outputs)]
        return show(Graph(traced.inputs, (*outputs, *penalties)))

    assert training_graph(again.network) == training_graph(model.network)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_loaded_model_is_saved_with_the_same_contents(name: str, tmp_path: Path) -> None:
    model = lm.Model(NETWORKS[name]())
    model.save(tmp_path / "one")
    lm.load(tmp_path / "one", layers=OWN).save(tmp_path / "other")
    one, other = metadata_of(tmp_path / "one"), metadata_of(tmp_path / "other")
    assert one == other  # with the checksum over all tensors


def test_trained_parameters_are_loaded(tmp_path: Path) -> None:
    model = lm.Model(chain(lm.Linear(2)))
    model.fit((normal(8, 6), normal(8, 2)), loss=lm.MSE(), optimizer=lm.SGD(0.1))
    model.save(tmp_path / "model")
    found, expected = lm.load(tmp_path / "model").parameters(), model.parameters()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_loading_runs_no_initializer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("an initializer was run")

    lm.Model(chain(lm.Linear(2, weight_init=Ramp(0.5)))).save(tmp_path / "model")
    monkeypatch.setattr(Ramp, "__call__", fail)
    assert lm.load(tmp_path / "model", layers=OWN).predict(normal(5, 6)).shape == (5, 2)


def test_states_of_layers_are_loaded(tmp_path: Path) -> None:
    from test_network import Centred

    model = lm.Model(chain(Centred()))
    model.fit((normal(8, 6), normal(8, 3)), loss=lm.MSE(), optimizer=lm.SGD(0.1))
    model.save(tmp_path / "model")
    again = lm.load(tmp_path / "model", layers=[Centred])
    np.testing.assert_array_equal(again.predict(normal(5, 6)), model.predict(normal(5, 6)))


def test_the_file_is_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model = lm.Model(chain(lm.Linear(2)))
    model.save(tmp_path / "model")
    tensors = load_file(tmp_path / "model")
    np.testing.assert_array_equal(tensors["values/1.weight"], model.parameters()["1.weight"])


def test_numpys_numbers_in_fields_are_saved(tmp_path: Path) -> None:
    model = lm.Model(chain(lm.Dropout(np.float64(0.5)), lm.Rescale(np.float32(0.1))))
    model.save(tmp_path / "model")
    found = lm.load(tmp_path / "model").predict(normal(5, 6))
    np.testing.assert_array_equal(found, model.predict(normal(5, 6)))


# Networks that cannot be saved --------------------------------------------------------------------


def test_a_function_in_a_field_cannot_be_saved(tmp_path: Path) -> None:
    model = lm.Model(chain(lm.Linear(2, weight_regularizer=lambda w: ops.sum(w * w))))
    with pytest.raises(DefinitionError) as caught:
        model.save(tmp_path / "model")
    assert str(caught.value) == (
        "net/1:Linear.weight_regularizer cannot be saved\n"
        "  expected  numbers, text, tuples, layers, networks, or records of them\n"
        "  found     function\n"
        "  Keep layer fields plain: a file holds data, never code."
    )
    assert list(tmp_path.iterdir()) == []


def test_two_classes_of_one_name_cannot_be_saved(tmp_path: Path) -> None:
    def make() -> type[lm.Layer]:
        @dataclass(frozen=True)
        class Same(lm.Layer):
            def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
                return x

        return Same

    with pytest.raises(DefinitionError, match="two classes of the network are named Same"):
        lm.Model(chain(make()(), make()())).save(tmp_path / "model")


def test_a_layer_in_a_field_that_is_no_dataclass_cannot_be_saved(tmp_path: Path) -> None:
    class Plain(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x

    @dataclass(frozen=True)
    class Outer(lm.Layer):
        inner: lm.Layer

        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return self.inner.forward(scope, x)

    with pytest.raises(DefinitionError, match="inner cannot be saved"):
        lm.Model(chain(Outer(Plain()))).save(tmp_path / "model")


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be written"):
        lm.Model(chain(lm.Linear(2))).save(tmp_path / "missing" / "model")


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    lm.Model(chain(lm.Linear(2))).save(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DataError):
        lm.Model(chain(lm.Linear(2)), seed=1).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# Files that are no model files --------------------------------------------------------------------


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path / "missing")
    assert error.problem == "the file cannot be read: No such file or directory"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path).problem == "the file cannot be read: this is not a regular file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    error = refused(tmp_path / "pipe")
    assert error.problem == "the file cannot be read: this is not a regular file"
    assert error.facts[1] == ("found", "a pipe, socket or device")


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"PK\x03\x04", b"{}"]
)
def test_a_file_of_another_kind_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(data)
    error = refused(tmp_path / "model")
    assert error.problem == "the file is damaged or of another kind"
    assert error.facts[0] == ("expected", "a whole model file, as Model.save writes it")


def test_a_file_of_data_is_told_from_a_model(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    np.savez(path, x=np.zeros((3, 2), "float32"))
    with pytest.raises(FileFormatError) as caught:
        lm.load(path)
    assert caught.value.problem == "the file is damaged or of another kind"
    assert caught.value.advice == (
        "The name is that of a data file: lm.data.load(path) reads those, and "
        "model.load_parameters takes dict(numpy.load(path))."
    )


@pytest.mark.parametrize("read", [lm.load, lm.Model(lm.Sequential(lm.Input(2))).load_parameters])
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x80\x04\x95pickled", "a pickle"),
        (b"PK\x03\x04" + b"\0" * 26 + b"weights/data.pkl", "a zip archive with a pickle"),
    ],
)
def test_a_file_of_pytorch_is_refused_with_the_function_that_takes_its_weights(
    read: Callable[[Path], Any], data: bytes, found: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(data)
    with pytest.raises(FileFormatError) as caught:
        read(path)
    assert str(caught.value) == (
        f"in {path}: this is a file of PyTorch, or another pickle\n"
        "  expected  a model file, as Model.save writes it\n"
        f"  found     {found}\n"
        "  Pickles are not read, because they may run code. Write the network in Lamina, and give "
        "it the weights: lm.from_torch(net, torch.load(path, weights_only=True))."
    )


@pytest.mark.torch
@pytest.mark.parametrize("zipped", [True, False])
def test_files_that_pytorch_writes_are_recognised(zipped: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    path = tmp_path / "weights.pt"
    state = torch.nn.Linear(3, 2).state_dict()
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    assert refused(path).problem == "this is a file of PyTorch, or another pickle"


def test_a_safetensors_file_of_someone_else_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3)}, tmp_path / "model")
    assert str(refused(tmp_path / "model")) == (
        f"in {tmp_path / 'model'}: this is not a model file of Lamina\n"
        "  expected  lamina-model-1\n"
        "  found     None\n"
        "  lm.load reads files that Model.save or a checkpoint of fit has written; "
        "model.load_parameters(path) takes the arrays of other safetensors files."
    )


def test_a_users_layer_must_be_passed(tmp_path: Path) -> None:
    lm.Model(chain(Own(1.0))).save(tmp_path / "model")
    error = refused(tmp_path / "model")
    assert error.problem == "the network contains a Own, which is not a layer of Lamina"
    assert error.advice == "If it is your own, pass its class: lm.load(path, layers=[Own])."


def test_a_users_initializer_must_be_passed(tmp_path: Path) -> None:
    lm.Model(chain(lm.Linear(2, weight_init=Ramp(0.5)))).save(tmp_path / "model")
    assert "layers=[Ramp]" in refused(tmp_path / "model").advice


def test_a_users_layer_is_never_taken_for_a_layer_of_lamina(tmp_path: Path) -> None:
    lm.Model(chain(ReLU())).save(tmp_path / "model")
    assert "layers=[ReLU]" in refused(tmp_path / "model").advice
