"""Loads and runs model files with a randomly changed network and a correct checksum.

    python tools/attack_definitions.py [--count 5000] [--seed 0] [--engines interpreter cpu]

Each file must be refused with one clear error, or its network must run on every engine with the
results of the oracle `graph.evaluate`. Arenas and workspaces are filled with 0xFF (NaN, or -1)
before each run, which reveals reads of memory that was not written. Anything else is printed with
the change that led to it, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lamina as lm
from lamina import ops
from lamina.base.shapes import as_dtype, float64, size_of, static
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.engine import Engine
from lamina.engines.host import HostArena
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import FileFormatError, InternalError, LaminaError
from lamina.graph import LEAF, Graph, Sample, Tensor, apply, bind_batch, evaluate
from lamina.ops.differentiate import gradients
from lamina.program.program import Program

Json = Any
Array = np.ndarray
BATCH = 3
# Networks of more elements are compiled, but not run: their size is not a fault.
LARGEST_RUN = 1 << 18


class Saved(NamedTuple):
    """The parts of a model file."""

    metadata: dict[str, str]
    definition: Json
    tensors: dict[str, Array]


# Networks that are changed ------------------------------------------------------------------------


def _of_samples(samples: list[tuple[Any, Sample]]) -> lm.Network:
    """Ops on constants; a value that depends on the input is added to their results."""
    x = lm.Input(2)
    nothing = ops.min(x) * 0
    generator = np.random.default_rng(0)
    outputs: list[Tensor] = [ops.sum(x, 1)]
    for op, sample in samples:
        operands: list[Tensor] = []
        for number, shape in enumerate(sample.shapes):
            name = sample.dtypes[number] if sample.dtypes else "float"
            dtype = as_dtype("float32" if name == "float" else name)
            array = generator.uniform(sample.low, sample.high, shape)
            constant = ops.constant(np.asarray(array, dtype.numpy))
            zero = ops.cast(nothing, dtype)
            if dtype.kind == "bool":
                operands.append(ops.logical_or(constant, zero))
            else:
                operands.append(ops.add(constant, zero))
        outputs.append(apply(op, *operands, **sample.attributes))
    return lm.Network(x, outputs)


def _chain(*shape: int, layers: list[Any]) -> lm.Network:
    return lm.Sequential(lm.Input(*shape), *layers)


def _sloped() -> lm.Network:
    x = lm.Input(3)
    y = lm.Linear(3)(lm.Tanh()(lm.Linear(4)(x)))
    slope, other = lm.gradients(y, [x, y], x)
    (curve,) = lm.gradients(ops.sum(slope * y), [x])
    return lm.Network(x, [slope, other, curve])


def networks() -> dict[str, Callable[[], lm.Network]]:
    """Every op by its samples, three at a time, and layers of all families."""
    builders: dict[str, Callable[[], lm.Network]] = {}
    for op in ops.ALL:
        samples = [s for s in op.samples if "float64" not in s.dtypes or op.name == "recurrence"]
        for first in range(0, len(samples), 3):
            some = [(op, sample) for sample in samples[first : first + 3]]
            builders[f"{op.name} {first // 3}"] = partial(_of_samples, some)
    return builders | {
        "convolutions": partial(
            _chain,
            *(2, 9, 9),
            layers=[
                *(lm.Conv2d(4, 3, padding=1), lm.BatchNorm(), lm.ReLU(), lm.MaxPool2d(2)),
                *(lm.ConvTranspose2d(2, 2, stride=2), lm.AvgPool2d(3, stride=2, padding=1)),
                *(lm.Flatten(), lm.Linear(3)),
            ],
        ),
        "a convolution by groups": partial(
            _chain,
            8,
            6,
            6,
            layers=[lm.Conv2d(8, 3, groups=8), lm.Conv2d(4, 3, dilation=2, padding=2)],
        ),
        "recurrent": partial(
            _chain,
            *(5, 3),
            layers=[lm.LSTM(4, bidirectional=True), lm.GRU(3), lm.RNN(2, returns="last")],
        ),
        "tokens": partial(
            lm.Sequential,
            lm.Input(6, dtype="int64"),
            *(lm.Embedding(5, 4), lm.LayerNorm(), lm.MultiHeadAttention(2), lm.Linear(3)),
        ),
        "gradients": _sloped,
        "activations": partial(
            _chain,
            6,
            layers=[lm.Linear(5), lm.GELU(), lm.Dropout(0.5), lm.Softmax(), lm.Reshape(5, 1)],
        ),
    }


def saved(network: lm.Network, folder: Path) -> Saved:
    """The parts of the file of a model of the network."""
    from safetensors.numpy import load

    path = folder / "whole"
    lm.Model(network, engine="interpreter").save(path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    return Saved(metadata, json.loads(metadata["network"]), load(data))


def write(path: Path, parts: Saved, definition: Json) -> None:
    """Writes a model file with another definition and a correct checksum."""
    from safetensors.numpy import save

    metadata = {**parts.metadata, "network": json.dumps(definition)}
    metadata.pop("checksum")
    digest = hashlib.sha256()
    for name, text in sorted(metadata.items()):
        digest.update(json.dumps([name, text]).encode())
    for name, tensor in sorted(parts.tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.str, list(tensor.shape)]).encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    path.write_bytes(save(parts.tensors, {**metadata, "checksum": digest.hexdigest()}))


# Changes ------------------------------------------------------------------------------------------

NUMBERS = (-(10**18), -3, -2, -1, 0, 1, 2, 3, 4, 7, 100, 10**6, 2**31, 2**63 - 1, 2**63, 10**30)
WORDS = (
    *("", "x", "ij,jk->ik", "none", "mean", "float32", "int64", "uint32", "bool", "Linear", "exp"),
    "a" * 5000,
)


def _nested(depth: int) -> Json:
    data: Json = 1
    for _ in range(depth):
        data = {"tuple": [data]}
    return data


STRANGE: tuple[Json, ...] = (
    *(None, True, False, 0.5, -1.5, 1e30, float("nan"), float("inf"), [], {}, [0], "1"),
    *({"tuple": []}, {"tuple": [0]}, {"tuple": [1, 2]}, {"tuple": [-1, 2, 3]}, {"list": [1]}),
    *({"size": [1, 0]}, {"size": [-1, 5]}, {"size": [2, -3]}, {"size": [10**12, 0]}),
    *({"dtype": "float64"}, {"dtype": "int32"}, {"dtype": "bool"}, {"dtype": "uint32"}),
    *({"dtype": "object"}, {"float": "nan"}, {"float": "-inf"}, {"float": "x"}, {"graph": 0}),
    *({"layer": 0}, {"array": "constant.0"}, {"number": 2, "dtype": "float32"}, _nested(40)),
    _nested(200),
)


def _locations(data: Json) -> list[tuple[Any, Any]]:
    """Every location in the data, as (container, key)."""
    locations: list[tuple[Any, Any]] = []
    pending = [data]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            locations.append((container, key))
            if isinstance(container[key], dict | list):
                pending.append(container[key])
    return locations


def _copied(data: Json) -> Json:
    return json.loads(json.dumps(data))


def changed(definition: Json, chance: random.Random, most: str) -> tuple[Json, str]:
    """The definition with one to three changes, most of them to ops named `most`; their text."""
    new, told = _copied(definition), list[str]()
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3))):
        entries = [n for n in new["nodes"] if isinstance(n, dict) and "op" in n]
        entries += [n for g in new.get("graphs", []) for n in g["nodes"]]
        if chance.random() < 0.8:
            entries = [n for n in entries if n.get("op") == most] or entries
        attributes = [n["attributes"] for n in entries if isinstance(n.get("attributes"), dict)]
        inside = [location for table in attributes for location in _locations(table)]
        # Most changes are made to values of attributes, where most faults are likely.
        if chance.random() < 0.8:
            inside = [(o, k) for o, k in inside if not isinstance(o[k], dict | list)]
        if inside and chance.random() < 0.6:
            owner, key = chance.choice(inside)
        elif entries and chance.random() < 0.3:
            entry = chance.choice(entries)
            owner, key = entry, chance.choice([k for k in ("op", "operands") if k in entry])
        else:
            owner, key = chance.choice(_locations(new))
        before = json.dumps(owner[key])[:80]
        _change(owner, key, chance, new)
        after = json.dumps(owner[key])[:80] if _holds(owner, key) else "nothing"
        told.append(f"{key}: {before} -> {after}")
        if not all(isinstance(new.get(k), list) for k in ("nodes", "layers")):
            break
        if not all(isinstance(g, dict) and isinstance(g.get("nodes"), list) for g in _graphs(new)):
            break
        if not all(isinstance(n, dict) for g in _graphs(new) for n in g["nodes"]):
            break
    return new, "; ".join(told)


def _graphs(definition: Json) -> list[Any]:
    graphs = definition.get("graphs", [])
    return graphs if isinstance(graphs, list) else [None]


def _holds(owner: Any, key: Any) -> bool:
    return key in owner if isinstance(owner, dict) else key < len(owner)


def _change(owner: Any, key: Any, chance: random.Random, definition: Json) -> None:
    value = owner[key]
    kind = chance.random()
    if key == "op":
        owner[key] = chance.choice(sorted(op.name for op in ops.ALL))
    elif isinstance(value, bool):
        owner[key] = chance.choice((not value, 0, 1, "no", None))
    elif isinstance(value, int) and kind < 0.6:
        owner[key] = chance.choice((value - 1, value + 1, -value, value * 2, value + 2))
    elif isinstance(value, int) and kind < 0.8:
        owner[key] = chance.choice(NUMBERS)
    elif isinstance(value, float) and kind < 0.7:
        owner[key] = chance.choice((-value, 0.0, 1e308, float("nan"), float("-inf"), 1, 10**400))
    elif isinstance(value, str) and kind < 0.7:
        owner[key] = chance.choice(WORDS)
    elif isinstance(value, list) and value and kind < 0.6:
        index = chance.randrange(len(value))
        act = chance.randrange(4)
        if act == 0:
            del value[index]
        elif act == 1:
            value.insert(index, _copied(value[index]))
        elif act == 2:
            value.reverse()
        else:
            value[index] = chance.choice((*NUMBERS, *STRANGE))
    elif kind < 0.8:
        container, other_key = chance.choice(_locations(definition))
        owner[key] = _copied(container[other_key])
    elif kind < 0.85 and isinstance(owner, dict):
        del owner[key]
    else:
        owner[key] = _copied(chance.choice((*NUMBERS, *STRANGE, *WORDS)))


# Running ------------------------------------------------------------------------------------------


def outcome(path: Path, engines: Mapping[str, Engine], with_gradients: bool) -> str:
    """The outcome of loading and running a file, in a word.

    Raises:
        AssertionError: if an engine's results differ from the oracle's.
        Exception: any other exception, which is not a clear error.
    """
    try:
        model = lm.load(path, engine="interpreter")
    except FileFormatError as error:
        if str(path) not in error.where:
            raise AssertionError("the error does not name the file") from error
        return "refused when loaded"
    try:
        graph = _graph(model.network, with_gradients)
        bound = bind_batch(graph, BATCH)
        sizes = [size_of(static(node.shape)) for node in bound.nodes()]
        program = compile_graph(graph, batch=BATCH, name="attack", target=DEFAULT_TARGET)
    except InternalError:
        raise
    except LaminaError:
        return "refused when compiled"
    if sum(sizes) > LARGEST_RUN or _points(program) > LARGEST_RUN:
        return "compiled, too large to run"
    feeds = _feeds(bound)
    expected, _ = evaluate(bound, feeds)
    for name, engine in engines.items():
        results = _run(program, engine, feeds)
        for output, value in expected.items():
            _compare(f"{output} on {name}", results[output], value)
    return "run"


def _graph(network: lm.Network, with_gradients: bool) -> Graph:
    """The network in double precision, where the order of a sum hardly matters."""
    traced = network.trace(dtype=float64, training=False)
    outputs = [(f"output{n}", tensor) for n, tensor in enumerate(traced.outputs)]
    if with_gradients:
        floats = [tensor for tensor in traced.outputs if tensor.dtype.is_float]
        leaves = [leaf for leaf in traced.inputs if leaf.dtype.is_float]
        leaves += [v.tensor for v in traced.record.parameters.values()]
        for number, tensor in enumerate(floats):
            slopes = gradients(ops.sum(tensor), leaves) if leaves else ()
            outputs += [(f"slope{number}.{n}", slope) for n, slope in enumerate(slopes)]
    return Graph(traced.inputs, tuple(outputs))


def _points(program: Program) -> int:
    """The iterations of all innermost loops."""
    count = 0
    for number, step in enumerate(program.steps):
        if hasattr(step, "stages"):
            points = [
                size_of([a.extent for a in (*step.axes, *_stage_axes(s))]) for s in step.stages
            ]
        else:
            points = [size_of(step.extents)]
        repeat = program.repeated(number)
        count += sum(points) * (repeat.axis.extent if repeat else 1)
    return count


def _stage_axes(stage: Any) -> tuple[Any, ...]:
    return (stage.axis,) if hasattr(stage, "axis") else stage.axes


def _feeds(graph: Graph) -> dict[str, Array]:
    generator = np.random.default_rng(1)
    feeds: dict[str, Array] = {}
    for node in graph.nodes():
        if node.op is LEAF:
            shape, dtype = static(node.shape), node.dtype
            array = generator.uniform(-1.5, 1.5, shape)
            if dtype.kind != "float":
                array = generator.integers(0, 2, shape)
            feeds[node.attributes["name"]] = np.asarray(array, dtype.numpy)
    return feeds


def _run(program: Program, engine: Engine, feeds: Mapping[str, Array]) -> dict[str, Array]:
    memories = {
        buffer.name: engine.allocate(buffer.shape, buffer.dtype.numpy)
        for kind in ("parameter", "state")
        for buffer in program.of_kind(kind)
    }
    for name, memory in memories.items():
        memory.write(feeds[name])
    arena = HostArena()
    ready = engine.compile(program, memories, arena)
    try:
        # Temporaries and workspaces of the cpu engine. The interpreter fills its own (`poison`).
        arena._block.fill(0xFF)
        ready.run([feeds[buffer.name] for buffer in program.of_kind("input")])
        return {name: ready.output(name) for name, _ in program.outputs}
    finally:
        ready.release()


def _compare(what: str, found: Array, expected: Array) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max()) if finite.size else 1.0
    np.testing.assert_allclose(found, expected, 1e-7, 1e-9 * max(scale, 1.0), err_msg=what)


def attack(
    count: int, seed: int, engines: Mapping[str, Engine], told: Callable[[str], None]
) -> tuple[Counter[str], list[str]]:
    """Changes networks at random, and loads and runs them.

    Args:
        count: the number of changed networks.
        seed: of the changes.
        engines: run each network that compiles.
        told: is called with the text of each failure.

    Returns:
        The number of networks by outcome; and the failures.
    """
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name, np.errstate(all="ignore"):
        folder = Path(name)
        builders = networks()
        names = sorted(builders)
        originals: dict[str, Saved] = {}
        for number in range(count):
            base = chance.choice(names)
            if base not in originals:
                originals[base] = saved(builders[base](), folder)
            definition, change = changed(originals[base].definition, chance, base.split()[0])
            write(folder / "model", originals[base], definition)
            began = time.monotonic()
            try:
                outcomes[outcome(folder / "model", engines, number % 3 == 0)] += 1
            except Exception as error:  # the point of it all
                outcomes["failed"] += 1
                last = "".join(traceback.format_exception(error)[-4:])[-1500:]
                failures.append(f"{number}, {base}, {change}\n{last}")
                told(failures[-1])
            if time.monotonic() - began > 20:
                failures.append(
                    f"{number}, {base}, {change}: took {time.monotonic() - began:.0f} s"
                )
                told(failures[-1])
    return outcomes, failures


def main() -> None:
    """Attacks, and prints the outcomes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", default=["interpreter", "cpu"])
    arguments = parser.parse_args()
    constructors = {"interpreter": lambda: InterpreterEngine(poison=True), "cpu": CpuEngine}
    engines = {name: constructors[name]() for name in arguments.engines}
    outcomes, failures = attack(
        arguments.count, arguments.seed, engines, lambda text: print(text, flush=True)
    )
    print(*(f"{what}: {number}" for what, number in outcomes.most_common()), sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
