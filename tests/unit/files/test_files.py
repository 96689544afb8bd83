"""Model files: everything comes back, damage is noticed, nothing from a file is run."""

# Annotations of users' layers and initializers may be text.
from __future__ import annotations

import hashlib
import json
import os
import struct
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest
from error_texts import error_text
from files_cases import chain, damaged, functional, layer, metadata_of, refused
from random_arrays import normal
from test_streams_continued import failing
from training_cases import same

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.engines.discovery import open_engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import DataError, DefinitionError, FileFormatError, LaminaError
from lamina.files.encode import encode
from lamina.graph import Graph, show
from lamina.training import steps as training_steps
from tools.attack_definitions import attack


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
    predictions = [version.predict(inputs_of(model.network)) for version in (model, again)]
    predictions = [outputs if isinstance(outputs, tuple) else (outputs,) for outputs in predictions]
    for before, after in zip(*predictions, strict=True):
        assert (before.dtype, before.tobytes()) == (after.dtype, after.tobytes())
    assert training_graph(again.network) == training_graph(model.network)
    again.save(tmp_path / "other")
    first, second = metadata_of(tmp_path / "one"), metadata_of(tmp_path / "other")
    assert first == second  # with the checksum over all tensors


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
    assert str(refused(tmp_path / "missing")) == (
        f"in {tmp_path / 'missing'}: the file cannot be read: No such file or directory\n"
        f"  current folder  {os.getcwd()}\n"
        "  Check the path; a relative one counts from the current folder."
    )
    os.mkfifo(tmp_path / "pipe")  # which is not waited for
    for path, kind in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe, socket or device")):
        error = refused(path)
        assert error.problem == "the file cannot be read: this is not a regular file"
        assert error.facts[1] == ("found", kind)


ANOTHER = "the file is damaged or of another kind"


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"PK\x03\x04", b"{}"]
)
def test_a_file_of_another_kind_is_refused(data, tmp_path):
    (tmp_path / "model").write_bytes(data)
    error = refused(tmp_path / "model")
    assert error.problem == ANOTHER
    assert error.facts[0] == ("expected", "a whole model file, as Model.save writes it")
    assert error.advice == "Give a file that model.save or lamina train has written."
    np.savez(tmp_path / "train.npz", x=np.zeros((3, 2), "float32"))
    error = refused(tmp_path / "train.npz")
    assert error.problem == ANOTHER
    assert error.advice == (
        "This is the name of a data file: lm.data.load(path) reads those, and "
        "model.load_parameters takes dict(numpy.load(path))."
    )


@pytest.mark.parametrize("read", [lm.load, lm.Model(lm.Sequential(lm.Input(2))).load_parameters])
@pytest.mark.cases(
    ("data", "actual"),
    (b"\x80\x04\x95pickled", "a pickle"),
    (b"PK\x03\x04" + b"\0" * 26 + b"weights/data.pkl", "a zip archive with a pickle"),
)
def test_a_file_of_pytorch_is_refused_with_the_function_that_takes_it(read, data, actual, tmp_path):
    path = tmp_path / "weights.pt"
    path.write_bytes(data)
    assert error_text(FileFormatError, read, path) == (
        f"in {path}: this is a file of PyTorch, or another pickle\n"
        "  expected  a model file, as Model.save writes it\n"
        f"  found     {actual}\n"
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
    for name, custom in (("Own", Own(1.0)), ("Ramp", initialised), ("ReLU", ReLU())):
        lm.Model(chain(custom)).save(tmp_path / "model")
        error = refused(tmp_path / "model")
        assert error.problem == f"the network contains a {name}, which is not a layer of Lamina"
        assert error.facts == (("layers given", "none"),)
        assert error.advice == f"If it is your own, pass its class: lm.load(path, layers=[{name}])."


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a small model file, and the parameters in it."""
    path = tmp_path_factory.mktemp("whole") / "model"
    model = lm.Model(chain(lm.Linear(3), lm.Tanh(), lambda x: x * normal(3), lm.Linear(2)))
    model.save(path)
    return path.read_bytes(), model.parameters()


@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_file_is_refused_or_loads_whole(seed, saved, tmp_path):
    random, path = np.random.default_rng(seed), tmp_path / "model"
    for _ in range(30):
        path.write_bytes(damaged(saved[0], random))
        try:
            parameters = lm.load(path).parameters()
        except FileFormatError:
            continue
        assert same(parameters, saved[1])


def forge(path, change, source=None):
    """A model file with changed contents and a valid checksum, made from the source if given."""
    from safetensors.numpy import load, save

    if source is None:
        lm.Model(chain(lm.Linear(3), lm.Tanh(), lm.Linear(2))).save(path)
    else:
        path.write_bytes(source.read_bytes())
    metadata = metadata_of(path)
    tensors = load(path.read_bytes())
    definition = json.loads(before := metadata["network"])
    change(metadata, definition, tensors)
    if metadata["network"] == before:
        metadata["network"] = json.dumps(definition)
    metadata.pop("checksum")
    metadata = {name: text for name, text in metadata.items() if text is not None}
    digest = hashlib.sha256()
    for name, text in sorted(metadata.items()):
        digest.update(json.dumps([name, text]).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.str, list(tensor.shape)]).encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    path.write_bytes(save(tensors, {**metadata, "checksum": digest.hexdigest()}))


def test_a_file_whose_checksum_fits_loads(tmp_path):
    forge(tmp_path / "model", lambda metadata, definition, tensors: None)
    assert lm.load(tmp_path / "model").predict(normal(5, 6)).shape == (5, 2)
    definition, arrays = encode(functional())
    assert json.loads(json.dumps(definition)) == definition
    assert all(isinstance(array, np.ndarray) for array in arrays.values())


def node(**entry):
    """A further node, which becomes the output."""
    return lambda _, definition, __: definition.update(
        nodes=[*definition["nodes"], entry], outputs=[len(definition["nodes"])]
    )


def op(name, operands=(3,), /, **attributes):
    return node(op=name, operands=list(operands), attributes=attributes)


def put(key, value):
    return lambda _, definition, __: definition.update({key: value})


def note(key, value):
    return lambda metadata, *_: metadata.update({key: value})


def weight(value):
    """Another tensor for the first weight, or none."""

    def change(_, __, tensors):
        tensors.pop("values/1.weight")
        tensors.update({} if value is None else {"values/1.weight": value})

    return change


HUGE = 10**12


HOSTILE = {
    "a class of Python": layer("os.system", command="true"),
    "a class of NumPy": layer("numpy.memmap", filename="x"),
    "an attribute of a class": layer("Layer.__init_subclass__"),
    "a base class": layer("Layer"),
    "a dunder": layer("__class__"),
    "a class that is no layer": layer("L2", strength=1.0),
    "an initializer for a layer": layer("init.Zeros"),
    "an unknown field": layer("Linear", features=3, command="true"),
    "a missing field": layer("Linear"),
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
    "an unknown op": op("system"),
    "an op that is an attribute": op("__class__"),
    "a leaf": op("leaf", (), name="x", role="parameter", shape={"tuple": []}, dtype="float32"),
    "a layer as an op": op("layer", layer={"layer": 0}),
    "a broadcast without end": op("broadcast_to", shape={"tuple": [HUGE, 2]}),
    "a padding without end": op("pad", low={"tuple": [0, HUGE]}, high={"tuple": [0, HUGE]}),
    "a reshape to zero": op("reshape", shape={"tuple": [0, 0]}),
    "a constant that is not there": op("constant", (), value={"array": "constant.9"}),
    "an unknown dtype": op("cast", dtype={"dtype": "object"}),
    "too few operands": op("add", ()),
    "a gradient that is not there": node(gradient=1, seeded=False, operands=[3, 0]),
    "a gradient of nothing": node(gradient=0, seeded=True, operands=[3]),
    "a gradient with a seed of another shape": node(gradient=0, seeded=True, operands=[3, 0, 0]),
    "a gradient without operands": node(gradient=0, seeded=False, operands=[]),
    "a gradient as an op": op("gradient", (3, 0), number=0, seeded=False),
    "a field of a network that is none": layer(
        "Linear", features=3, weight_init={"network": {"nodes": []}}
    ),
    "a node of nothing": node(),
    "a huge input": put("nodes", [{"input": [HUGE, HUGE], "dtype": None}]),
    "no nodes": put("nodes", []),
    "no layers": put("layers", []),
    "no outputs": put("outputs", []),
    "an output that is not there": put("outputs", [99]),
    "a layer as an input": put("inputs", [1]),
    "an input twice": put("inputs", [0, 0]),
    "a network that is no JSON": note("network", "{"),
    "a deep network": note("network", "[" * 100_000),
    "a deep field": note(
        "network", '{"layers": [' + '{"tuple": [' * 5000 + "]}" * 5000 + '], "nodes": []}'
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
    "a missing tensor": weight(None),
    "a tensor of another shape": weight(np.zeros((6, 3), "float32")),
    "a tensor of another dtype": weight(np.zeros((3, 6), "float64")),
}


def refused_without_much_memory(path):
    tracemalloc.start()
    try:
        refused(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_without_much_memory(name, tmp_path):
    forge(tmp_path / "model", HOSTILE[name])
    refused_without_much_memory(tmp_path / "model")


@pytest.mark.cases(
    ("name", "count", "seed", "least"),
    pytest.param("interpreter", 250, 1, 15, marks=pytest.mark.sampled),
    *(("cpu", 50, seed, 2) for seed in (100, 101)),
)
def test_changed_networks_run_right_or_are_refused(name, count, seed, least):
    """A short version of `python tools/attack_definitions.py`; no unwritten memory is read."""
    engine = open_engine(name) if name == "cpu" else InterpreterEngine(poison=True)
    outcomes, failures = attack(count, seed=seed, engines={name: engine}, told=print)
    assert failures == []
    assert outcomes["run"] > least


# Ops that files may name with any attributes, and the errors.
OPS = {
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


@pytest.mark.cases("change, expected", OPS)
def test_an_op_with_attributes_that_it_does_not_take_is_refused(change, expected, tmp_path):
    forge(tmp_path / "model", change)
    error = refused(tmp_path / "model")
    assert expected in error.problem
    # A traceback shows the error alone, without what the reader of the file noticed first.
    assert error.__cause__ is None
    assert error.__suppress_context__


def headed(header, length=None, data=b""):
    return struct.pack("<Q", len(header) if length is None else length) + header + data


HEADERS = {
    "a length without end": headed(b"{}", 2**63),
    "a length beyond the file": headed(b"{}", 10_000),
    "a length of zero": headed(b""),
    "metadata of null": headed(b'{"__metadata__":null}'),
    "metadata of a list": headed(b'{"__metadata__":[]}'),
    "a deep header": headed(b"[" * 200_000),
    "a tensor without end": headed(
        b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    ),
    "a tensor of a strange dtype": headed(
        b'{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}', data=b"\0\0"
    ),
    "a tensor in bfloat16": headed(
        b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}', data=b"\0\0"
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_refused_without_much_memory(name, tmp_path):
    (tmp_path / "model").write_bytes(HEADERS[name])
    refused_without_much_memory(tmp_path / "model")


# JSON that is not what was written ----------------------------------------------------------------
FRAME = {"size": [1.0, 2.0, 4.0], "town": ["a", "b", "a"], "y": ["u", "v", "u"]}
FIT = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "batch_size": 2}


def parts_of(value, keys=()):
    """All parts of JSON data."""
    yield keys, value
    items = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else items:
        yield from parts_of(part, (*keys, key))


def with_part(value, keys, new):
    """JSON data with another value for a part."""
    if not keys:
        return new
    copy = value.copy()
    copy[keys[0]] = with_part(copy[keys[0]], keys[1:], new)
    return copy


def changes(data, every):
    """The data with a value of another type for each of its parts, or of every other type."""
    for number, (keys, old) in enumerate(parts_of(data)):
        values = ({"a": 1}, [[None]], "x", -0.5, True)
        others = [new for new in values if type(new) is not type(old)]
        for new in others if every else [others[number % len(others)]]:
            yield keys, with_part(data, keys, new)


EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.sampled)])


def faults(source, entry, data, every, use):
    """Exceptions of other kinds, and errors that do not name the file, of all changes."""
    failures, path = [], source.with_name("changed")
    for keys, changed in changes(data, every):
        text = json.dumps(changed)
        forge(path, lambda metadata, *_, text=text: metadata.update({entry: text}), source)
        try:
            use(path)
        except FileFormatError as error:
            failures += [f"{keys}: {text}\n{error}"] * (str(path) not in str(error))
        except LaminaError:
            pass  # a valid file, of another table or another fit
        except Exception as error:
            failures.append(f"{keys}: {text}\n{type(error).__name__}: {error}")
    return failures


def table_model(path):
    """Saves a model of a table; returns the JSON of its coding."""
    data = lm.data.from_frame(FRAME, target="y", standardise=True)
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter")
    model.fit(data, **FIT)
    model.save(path)
    return json.loads(metadata_of(path)["coding"])


@EVERY
def test_the_definition_of_a_network(every, tmp_path):
    path = tmp_path / "model"
    lm.Model(functional()).save(path)

    def use(path):
        try:
            lm.load(path).network.trace(dtype=float32, training=False)
        except LaminaError as error:
            raise error if isinstance(error, FileFormatError) else AssertionError from error

    assert not faults(path, "network", json.loads(metadata_of(path)["network"]), every, use)


@EVERY
def test_the_coding_of_a_table(every, tmp_path):
    coding = table_model(tmp_path / "model")
    rows = {name: values for name, values in FRAME.items() if name != "y"}

    def use(path):
        lm.load(path, engine="interpreter").predict(rows)

    assert not faults(tmp_path / "model", "coding", coding, every, use)


def test_the_error_names_the_part(tmp_path):
    coding = table_model(tmp_path / "model")
    coding["columns"][1]["words"][0] = {}
    path = tmp_path / "changed"
    forge(path, lambda m, *_: m.update(coding=json.dumps(coding)), tmp_path / "model")
    assert error_text(FileFormatError, lm.load, path) == (
        f"in {path}: coding.columns[1].words[0] must be a text\n"
        '  expected  coding.columns[1].words[0]="..."\n'
        "  found     {}\n"
        "  The file was changed, or written by another version of Lamina."
    )


class Stateful:
    """A source whose state is bytes."""

    def __iter__(self):
        yield from [(np.ones((2, 3), "float32"), np.zeros(2, "int64"))] * 3

    def state_dict(self):
        return b"0"

    def load_state_dict(self, state):
        pass


def resumed(path, **how):
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter")
    callbacks = [
        lm.callbacks.EarlyStopping("loss"),
        lm.callbacks.ReduceOnPlateau("loss"),
        lm.callbacks.SaveModels(path.with_name("models"), "loss"),
    ]
    model.fit(Stateful(), **FIT, checkpoint=path, resume=True, callbacks=callbacks, **how)


@pytest.mark.sampled
@EVERY
def test_the_notes_of_a_checkpoint(every, monkeypatch, path):
    monkeypatch.setattr(training_steps, "PIECE_SECONDS", 0.0)  # each training step is a piece
    with failing(5):
        resumed(path, epochs=2, checkpoint_steps=1)
    notes = json.loads(metadata_of(path)["notes"])
    assert notes.keys() >= {"epoch", "position", "callbacks", "batch_size"}
    assert list(notes["position"]["state"]) == ["base64"]
    wrong = faults(path, "notes", notes, every, lambda changed: resumed(changed, epochs=2))
    assert not wrong, "\n".join(wrong)


def test_every_value_in_the_state_of_a_callback_has_a_kind():
    for name in dir(lm.callbacks):
        cls = getattr(lm.callbacks, name)
        if isinstance(cls, type) and issubclass(cls, lm.Callback) and "state" in vars(cls):
            state = cls("x").state() if name == "SaveModels" else cls().state()
            assert state.keys() == cls.state_kinds.keys(), name


def test_an_unfinished_epoch_with_other_metrics(path):
    with failing(1):
        resumed(path, epochs=1, checkpoint_steps=1)
    assert error_text(DefinitionError, resumed, path, epochs=1, metrics=[lm.Accuracy()]) == (
        f"in {path}: the unfinished epoch of the checkpoint was measured with other metrics\n"
        "  in the file  none\n"
        "  here         metric0.correct, metric0.count\n"
        "  Resume with the loss and the metrics of the fit that wrote it."
    )
