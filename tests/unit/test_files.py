"""Model files: everything comes back, damage is noticed, nothing from a file is run."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.engines.discovery import open_engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import DataError, DefinitionError, FileFormatError
from lamina.files.encode import encode
from lamina.graph import Graph, show
from lamina.shapes import float32
from tools.attack_definitions import attack

Array = np.ndarray


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


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


def functional() -> lm.Network:
    """Two inputs, ops, constants and two outputs."""
    a, b = lm.Input(2, 3), lm.Input(4)
    h = lm.Linear(6)(lm.Flatten()(a)) * np.arange(6, dtype="float32") + 1.5
    h = ops.concat([h, ops.exp(b[:, 1:3])], 1)
    h = ops.reshape(ops.transpose(ops.reshape(h, (h.shape[0], 4, 2)), (0, 2, 1)), (h.shape[0], 8))
    gate = ops.where(h > 0.25, h, ops.broadcast_to(ops.mean(h, 1, keepdims=True), h.shape))
    return lm.Network([a, b], [lm.Linear(3)(gate), ops.sum(h, 1)])


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


def metadata_of(path: Path) -> dict[str, str]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length])["__metadata__"]


def chain(*layers: Any) -> lm.Network:
    return lm.Sequential(lm.Input(6), *layers)


NETWORKS: dict[str, Callable[[], lm.Network]] = {
    "an input": lambda: chain(),
    "linear": lambda: chain(lm.Linear(3), lm.Linear(2, bias=False)),
    "activations": lambda: chain(
        *(lm.ELU(0.5), lm.GELU(), lm.SELU(), lm.SiLU(), lm.LeakyReLU(0.1), lm.ReLU()),
        *(lm.Hardtanh(), lm.Sigmoid(), lm.Softplus(), lm.Tanh(), lm.Softmax(), lm.LogSoftmax()),
    ),
    "shapes": lambda: chain(lm.Reshape(2, -1), lm.Flatten(), lm.Rescale(2.0), lm.Dropout(0.25)),
    "initializers": lambda: chain(
        lm.Linear(3, weight_init=lm.init.Orthogonal(), bias_init=lm.init.Constant(0.5)),
        lm.Linear(3, weight_init=lm.init.Normal(0.0, 0.1), bias_init=lm.init.Zeros()),
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
def test_a_model_comes_back_as_it_was(name: str, dtype: str, tmp_path: Path) -> None:
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
def test_a_network_that_comes_back_trains_as_before(name: str, tmp_path: Path) -> None:
    model = lm.Model(NETWORKS[name]())
    model.save(tmp_path / "model")
    again = lm.load(tmp_path / "model", layers=OWN)

    def training_form(network: lm.Network) -> str:
        traced = network.trace(dtype=float32, training=True)
        penalties = [(f"penalty{n}", t) for n, t in enumerate(traced.record.penalties)]
        outputs = [(f"output{n}", t) for n, t in enumerate(traced.outputs)]
        return show(Graph(traced.inputs, (*outputs, *penalties)))

    assert training_form(again.network) == training_form(model.network)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_that_comes_back_is_saved_with_the_same_contents(name: str, tmp_path: Path) -> None:
    model = lm.Model(NETWORKS[name]())
    model.save(tmp_path / "one")
    lm.load(tmp_path / "one", layers=OWN).save(tmp_path / "other")
    one, other = metadata_of(tmp_path / "one"), metadata_of(tmp_path / "other")
    assert one == other  # with the checksum over all tensors


def test_what_was_learned_comes_back(tmp_path: Path) -> None:
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


def test_states_come_back(tmp_path: Path) -> None:
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


# What cannot be saved -----------------------------------------------------------------------------


def test_a_function_in_a_field_cannot_be_saved(tmp_path: Path) -> None:
    model = lm.Model(chain(lm.Linear(2, weight_regularizer=lambda w: ops.sum(w * w))))
    with pytest.raises(DefinitionError) as caught:
        model.save(tmp_path / "model")
    assert str(caught.value) == (
        "net/1:Linear.weight_regularizer cannot be saved\n"
        "  expected  numbers, text, tuples, or records of them\n"
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


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
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


# What is no model file ----------------------------------------------------------------------------


def refused(path: Path, **how: Any) -> FileFormatError:
    with pytest.raises(FileFormatError) as caught:
        lm.load(path, **how)
    assert str(path) in caught.value.where
    return caught.value


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path / "missing")
    assert error.problem == "the file cannot be read: No such file or directory"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path).problem == "the file cannot be read: this is not a file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    error = refused(tmp_path / "pipe")
    assert error.problem == "the file cannot be read: this is not a file"
    assert error.facts[1] == ("found", "a pipe, socket or device")


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"\x80\x04\x95pickled", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"PK\x03\x04", b"{}"],
)
def test_a_file_of_another_kind_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(data)
    error = refused(tmp_path / "model")
    assert error.problem == "the file is damaged or of another kind"
    assert error.facts[0] == ("expected", "a whole model file, as Model.save writes it")


def test_a_safetensors_file_of_someone_else_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3)}, tmp_path / "model")
    assert str(refused(tmp_path / "model")) == (
        f"in {tmp_path / 'model'}: this is not a model file of Lamina\n"
        "  expected  lamina-model-1\n"
        "  found     None\n"
        "  lm.load reads what Model.save wrote."
    )


def test_a_layer_of_ones_own_must_be_passed(tmp_path: Path) -> None:
    lm.Model(chain(Own(1.0))).save(tmp_path / "model")
    error = refused(tmp_path / "model")
    assert error.problem == "the network contains a Own, which is not among Lamina's layers"
    assert error.advice == "If it is your own, pass its class: lm.load(path, layers=[Own])."


def test_an_initializer_of_ones_own_must_be_passed(tmp_path: Path) -> None:
    lm.Model(chain(lm.Linear(2, weight_init=Ramp(0.5)))).save(tmp_path / "model")
    assert "layers=[Ramp]" in refused(tmp_path / "model").advice


def test_a_layer_of_ones_own_is_never_taken_for_one_of_laminas(tmp_path: Path) -> None:
    lm.Model(chain(ReLU())).save(tmp_path / "model")
    assert "layers=[ReLU]" in refused(tmp_path / "model").advice


# Damage -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Array]]:
    """The bytes of a small model file, and the parameters in it."""
    path = tmp_path_factory.mktemp("whole") / "model"
    model = lm.Model(chain(lm.Linear(3), lm.Tanh(), lambda x: x * normal(3), lm.Linear(2)))
    model.save(path)
    return path.read_bytes(), model.parameters()


def cut(data: bytearray, random: np.random.Generator) -> None:
    del data[random.integers(len(data)) :]


def flip(data: bytearray, random: np.random.Generator) -> None:
    for _ in range(random.integers(1, 4)):
        data[random.integers(len(data))] ^= 1 << random.integers(8)


def insert(data: bytearray, random: np.random.Generator) -> None:
    start = random.integers(len(data) + 1)
    data[start:start] = random.bytes(random.integers(1, 20))


def remove(data: bytearray, random: np.random.Generator) -> None:
    start = random.integers(len(data))
    del data[start : start + random.integers(1, 20)]


def overwrite(data: bytearray, random: np.random.Generator) -> None:
    start = random.integers(len(data))
    data[start : start + 16] = random.bytes(16)


def swap(data: bytearray, random: np.random.Generator) -> None:
    one, other = sorted(random.integers(len(data), size=2))
    data[:] = data[:one] + data[other:] + data[one:other]


def digit(data: bytearray, random: np.random.Generator) -> None:
    """Another digit for one in the header, which mostly leaves it readable."""
    digits = [n for n in range(8, len(data)) if 48 <= data[n] < 58]
    data[digits[random.integers(len(digits))]] = 48 + random.integers(10)


@pytest.mark.parametrize("batch", range(5))
@pytest.mark.parametrize("damage", [cut, flip, insert, remove, overwrite, swap, digit])
def test_a_damaged_file_is_refused_or_loads_whole(
    damage: Callable[[bytearray, np.random.Generator], None],
    batch: int,
    whole: tuple[bytes, dict[str, Array]],
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(batch)
    path = tmp_path / "model"
    for _ in range(30):
        data = bytearray(whole[0])
        damage(data, random)
        path.write_bytes(data)
        try:
            found = lm.load(path).parameters()
        except FileFormatError:
            continue
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: a.tobytes() for n, a in whole[1].items()
        }


# Hostile files: the checksum is right, the contents are not ---------------------------------------

Metadata = dict[str, Any]
Tensors = dict[str, Array]


def forge(path: Path, change: Callable[[Metadata, Any, Tensors], Any]) -> None:
    """A model file with changed contents and a valid checksum."""
    from safetensors.numpy import load, save

    lm.Model(chain(lm.Linear(3), lm.Tanh(), lm.Linear(2))).save(path)
    metadata = metadata_of(path)
    tensors = load(path.read_bytes())
    definition = json.loads(metadata["network"])
    replaced = change(metadata, definition, tensors)
    if metadata["network"] is not None:
        metadata["network"] = replaced if isinstance(replaced, str) else json.dumps(definition)
    metadata.pop("checksum")
    metadata = {name: text for name, text in metadata.items() if text is not None}
    digest = hashlib.sha256()
    for name, text in sorted(metadata.items()):
        digest.update(json.dumps([name, text]).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.str, list(tensor.shape)]).encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    path.write_bytes(save(tensors, {**metadata, "checksum": digest.hexdigest()}))


def test_a_file_whose_checksum_fits_loads(tmp_path: Path) -> None:
    forge(tmp_path / "model", lambda metadata, definition, tensors: None)
    assert lm.load(tmp_path / "model").predict(normal(5, 6)).shape == (5, 2)


def layer(record: str, **fields: Any) -> Callable[[Metadata, Any, Tensors], None]:
    def change(_: Metadata, definition: Any, __: Tensors) -> None:
        definition["layers"][0] = {"record": record, "fields": fields}

    return change


def node(**entry: Any) -> Callable[[Metadata, Any, Tensors], None]:
    """A further node, which becomes the output."""

    def change(_: Metadata, definition: Any, __: Tensors) -> None:
        definition["nodes"].append(entry)
        definition["outputs"] = [len(definition["nodes"]) - 1]

    return change


def op(name: str, operands: tuple[int, ...] = (3,), /, **attributes: Any) -> Any:
    return node(op=name, operands=list(operands), attributes=attributes)


def put(key: str, value: Any) -> Callable[[Metadata, Any, Tensors], None]:
    def change(_: Metadata, definition: Any, __: Tensors) -> None:
        definition[key] = value

    return change


def note(key: str, value: str | None) -> Callable[[Metadata, Any, Tensors], None]:
    def change(metadata: Metadata, _: Any, __: Tensors) -> None:
        metadata[key] = value

    return change


def tensor(name: str, value: Array | None) -> Callable[[Metadata, Any, Tensors], None]:
    def change(_: Metadata, __: Any, tensors: Tensors) -> None:
        tensors.pop(name)
        if value is not None:
            tensors[name] = value

    return change


HUGE = 10**12
HOSTILE: dict[str, Callable[[Metadata, Any, Tensors], Any]] = {
    "a class of Python": layer("os.system", command="true"),
    "a class of NumPy": layer("numpy.memmap", filename="x"),
    "an attribute of a class": layer("Layer.__init_subclass__"),
    "a base class": layer("Layer"),
    "a dunder": layer("__class__"),
    "a class that is no layer": layer("L2", strength=1.0),
    "an initializer for a layer": layer("init.Zeros"),
    "no class at all": layer(None),
    "a list as a class": layer([]),
    "an unknown field": layer("Linear", features=3, command="true"),
    "a missing field": layer("Linear"),
    "text for a number": layer("Linear", features="3"),
    "a negative number": layer("Linear", features=-3),
    "features without end": layer("Linear", features=HUGE),
    "a shape without end": layer("Reshape", shape={"tuple": [HUGE, HUGE]}),
    "a class as an initializer": layer(
        "Linear", features=3, weight_init={"record": "type", "fields": {}}
    ),
    "a layer within itself": layer("Linear", features=3, weight_init={"layer": 0}),
    "a layer that is not there": node(layer=99, operands=[3]),
    "a negative layer": node(layer=-1, operands=[3]),
    "an operand that is not there": node(layer=1, operands=[99]),
    "a negative operand": node(layer=1, operands=[-1]),
    "itself as an operand": node(layer=1, operands=[4]),
    "no operands": node(layer=1, operands=[]),
    "text as operands": node(layer=1, operands="3"),
    "an unknown op": op("system"),
    "an op that is an attribute": op("__class__"),
    "a leaf": op("leaf", (), name="x", role="parameter", shape={"tuple": []}, dtype="float32"),
    "a layer as an op": op("layer", layer={"layer": 0}),
    "a broadcast without end": op("broadcast_to", shape={"tuple": [HUGE, 2]}),
    "a padding without end": op("pad", low={"tuple": [0, HUGE]}, high={"tuple": [0, HUGE]}),
    "a reshape to zero": op("reshape", shape={"tuple": [0, 0]}),
    "attributes as a list": node(op="exp", operands=[3], attributes=[]),
    "a constant that is not there": op("constant", (), value={"array": "constant.9"}),
    "a constant that is text": op("constant", (), value="1"),
    "an unknown dtype": op("cast", dtype={"dtype": "object"}),
    "too few operands": op("add", ()),
    "a node of nothing": node(),
    "a huge input": put("nodes", [{"input": [HUGE, HUGE], "dtype": None}]),
    "an input of text": put("nodes", [{"input": ["x"], "dtype": None}]),
    "nodes as text": put("nodes", "nodes"),
    "no nodes": put("nodes", []),
    "no layers": put("layers", []),
    "layers as a number": put("layers", 7),
    "no outputs": put("outputs", []),
    "an output that is not there": put("outputs", [99]),
    "a layer as an input": put("inputs", [1]),
    "an input twice": put("inputs", [0, 0]),
    "a network that is a list": lambda *_: "[]",
    "a network that is null": lambda *_: "null",
    "a network that is no JSON": lambda *_: "{",
    "a deep network": lambda *_: "[" * 100_000,
    "a deep field": lambda *_: (
        '{"layers": [' + '{"tuple": [' * 5000 + "]}" * 5000 + '], "nodes": []}'
    ),
    "no network": note("network", None),
    "no dtype": note("dtype", None),
    "a dtype of integers": note("dtype", "int64"),
    "a dtype of another kind": note("dtype", "float64"),
    "no seed": note("seed", None),
    "a seed of text": note("seed", "x"),
    "a seed without end": note("seed", "9" * 10_000),
    "a seed that is too large": note("seed", str(10**30)),
    "notes that are no JSON": note("notes", "{"),
    "notes that are a list": note("notes", "[]"),
    "another format": note("format", "lamina-model-2"),
    "a missing tensor": tensor("values/1.weight", None),
    "a tensor of another shape": tensor("values/1.weight", np.zeros((6, 3), "float32")),
    "a tensor of another dtype": tensor("values/1.weight", np.zeros((3, 6), "float64")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_without_much_memory(name: str, tmp_path: Path) -> None:
    forge(tmp_path / "model", HOSTILE[name])
    tracemalloc.start()
    try:
        refused(tmp_path / "model")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.parametrize("batch", range(5))
def test_a_network_that_was_changed_at_random_is_refused_or_loads(
    batch: int, tmp_path: Path
) -> None:
    """Any number, text or list in the definition is replaced by any other."""
    random = np.random.default_rng(batch)
    values: list[Any] = [-1, 0, 1, 3, 10**18, 0.5, "", "x", "Linear", None, True, [], [0], {}]

    def entries(data: Any) -> list[tuple[Any, Any]]:
        keys = list(data) if isinstance(data, dict) else range(len(data))
        found = [(data, key) for key in keys]
        for key in keys:
            if isinstance(data[key], dict | list):
                found += entries(data[key])
        return found

    def change(_: Metadata, definition: Any, __: Tensors) -> None:
        found = entries(definition)
        owner, key = found[random.integers(len(found))]
        owner[key] = values[random.integers(len(values))]

    for _ in range(40):
        forge(tmp_path / "model", change)
        try:
            lm.load(tmp_path / "model").network.trace(dtype=float32, training=False)
        except FileFormatError:
            continue


def test_changed_networks_run_right_or_are_refused() -> None:
    """A short version of `python tools/attack_definitions.py`, on one engine."""
    engines = {"interpreter": InterpreterEngine(poison=True)}
    outcomes, failures = attack(250, seed=1, engines=engines, told=print)
    assert failures == []
    assert outcomes["run"] > 15


@pytest.mark.parametrize("seed", range(2))
def test_changed_networks_run_right_on_the_cpu_without_memory_that_nobody_wrote(
    seed: int,
) -> None:
    outcomes, failures = attack(50, 100 + seed, {"cpu": open_engine("cpu")}, told=print)
    assert failures == []
    assert outcomes["run"] > 2


# Ops that files may name with any attributes, and what is said about it.
OPS: dict[str, tuple[Any, str]] = {
    "a reshape to negative extents": (
        op("reshape", shape={"tuple": [{"size": [1, 0]}, -1, -2]}),
        "node 4 of its network, 'reshape', cannot be rebuilt: reshape: shape[1] must be",
    ),
    "an axis from the end": (op("cumsum", axis=-1, reverse=False), "an axis from 0 to 1"),
    "half a step": (
        op("slice", starts={"tuple": [0, 0]}, stops={"tuple": [1, 2]}, steps={"tuple": [1, 0.5]}),
        "slice: steps[1] must be a whole number of at least 1",
    ),
    "a divisor of zero": (
        op("shear", slopes={"tuple": [{"tuple": [0, 1, 2, 1, 1, 0, 0]}]}, fill=0.0),
        "shear: slopes[0].divisor must be a whole number of at least 1",
    ),
    "what cannot be hashed": (op("flip", axes={"list": [1]}), "flip: axes must be a tuple of "),
    "a flag that is a number": (op("gelu", approximate=1), "gelu: approximate must be True or"),
    "an index from the end": (
        lambda _, definition, __: definition["nodes"].extend((
            {"op": "constant", "operands": [],
             "attributes": {"value": {"number": -1, "dtype": "int64"}}},
            {"op": "take", "operands": [3, 4], "attributes": {"axis": 1}},
        )),
        "take: index -1 is out of range",
    ),
    "an attribute too many": (op("exp", base=2), "exp: the attributes do not fit"),
    "an attribute too few": (op("sum"), "sum: the attributes do not fit"),
    "an operand too many": (op("exp", (3, 3)), "exp: the number of operands does not fit"),
    "an operand that is true": (op("exp", (True,)), "node 4 of its network, 'exp', cannot be re"),
    "a number without end": (op("variance", axes={"tuple": [1]}, correction=10**400), "variance"),
    "a dtype of no tensor": (op("cast", dtype={"dtype": "uint32"}), "cast: dtype must be one of"),
    "a sum of nothing": (op("argmax", axes={"tuple": []}), "argmax: axes must be a tuple of axes"),
    "deep nesting": (
        op("flip", axes=json.loads('{"tuple": [' * 200 + "1" + "]}" * 200)),
        "node 4 of its network, 'flip', cannot be rebuilt",
    ),
    "a tensor larger than any memory": (
        op("pad", low={"tuple": [0, 2**60]}, high={"tuple": [0, 0]}, interior={"tuple": [0, 0]},
           value=0.0),
        "pad: the result is larger than any memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_an_op_with_attributes_that_it_does_not_take_is_refused(name: str, tmp_path: Path) -> None:
    change, expected = OPS[name]
    forge(tmp_path / "model", change)
    assert expected in refused(tmp_path / "model").problem


HEADERS: dict[str, bytes] = {
    "a length without end": struct.pack("<Q", 2**63) + b"{}",
    "a length beyond the file": struct.pack("<Q", 10_000) + b"{}",
    "a length of zero": struct.pack("<Q", 0),
    "metadata of null": struct.pack("<Q", 21) + b'{"__metadata__":null}',
    "metadata of a list": struct.pack("<Q", 19) + b'{"__metadata__":[]}',
    "a deep header": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "a tensor without end": (
        lambda header: struct.pack("<Q", len(header)) + header
    )(b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'),
    "a tensor of a strange dtype": (
        lambda header: struct.pack("<Q", len(header)) + header + b"\0\0"
    )(b'{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'),
    "a tensor in bfloat16": (
        lambda header: struct.pack("<Q", len(header)) + header + b"\0\0"
    )(b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_refused_without_much_memory(name: str, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(HEADERS[name])
    tracemalloc.start()
    try:
        refused(tmp_path / "model")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20


def test_a_definition_holds_plain_data_only() -> None:
    definition, arrays = encode(functional())
    assert json.loads(json.dumps(definition)) == definition
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
