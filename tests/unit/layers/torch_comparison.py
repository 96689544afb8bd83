"""The comparison of layers with PyTorch: values, gradients, running statistics.

A case is a layer, the PyTorch module that does the same, and the shapes of its inputs. It is
compiled in training mode together with the gradients of all inputs and parameters, and in the
inference mode, and runs on every engine. The cases stand in test_layers_torch*.py, a family of
layers in each; to add a layer, add its cases to the table there.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import lamina as lm
from lamina.base.shapes import Array, DType, float32, float64, static
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.engine import Engine
from lamina.graph import Graph, Tensor, leaf
from lamina.layers.tracing import Trace
from lamina.ops.differentiate import gradients
from lamina.program.program import Program
from lamina.program.target import Target

# Relative to the largest element of an array. In float64 both are exact to rounding; in float32
# they sum up to some thousand numbers in different orders, gradients of normalisations cancel.
TOLERANCES = {"float64": 1e-9, "float32": 2e-5}
# Of layers with states; the others run twice, as the second run finds the memory of the first.
STEPS = 3

Values = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Case:
    """A layer, written twice.

    Attributes:
        layer: in Lamina: a layer, or a function of tensors that applies some.
        module: torch -> the same in PyTorch: a module, or a function.
        shapes: of the inputs, batch first.
        names: for each parameter and state in Lamina what PyTorch calls it; those that are not
            listed have the same name.
        indices: if above 0, the first input is integers below it.
        masks: the shapes of further inputs, which are bool.
        weights: what the random parameters are multiplied with.
        cancelling: whether there are gradients that are nothing but rounding, as the gradients of
            biases of keys: errors are then relative to the largest gradient of all.
        lengths: if above 0, the last input is integers from 1 to it.
        name: of the case, if the layer does not tell it.
    """

    layer: Callable[..., Any]
    module: Callable[[Any], Any]
    shapes: Sequence[tuple[int, ...]]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    indices: int = 0
    masks: Sequence[tuple[int, ...]] = ()
    weights: float = 1.0
    cancelling: bool = False
    lengths: int = 0
    name: str = ""

    def __str__(self) -> str:
        return self.name or f"{self.layer!r}-{self.shapes}"


def nn(name: str, *values: Any, **options: Any) -> Callable[[Any], Any]:
    """Makes a module of torch.nn."""
    return lambda torch: getattr(torch.nn, name)(*values, **options)


def changed(module: Callable[[Any], Any], forward: Callable[..., Any]) -> Callable[[Any], Any]:
    """Makes a module with another forward pass: (the module's own, inputs...) -> result."""

    def make(torch: Any) -> Any:
        made = module(torch)
        own = made.forward
        made.forward = lambda *inputs: forward(own, *inputs)
        return made

    return make


def option_sets(count: int, seed: int = 0, /, **choices: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """So many different random choices, the same every time: `{"stride": 2, "padding": 0}`."""
    generator = np.random.default_rng(seed)
    seen: set[tuple[int, ...]] = set()
    most = int(np.prod([len(values) for values in choices.values()]))
    while len(seen) < min(count, most):
        chosen = tuple(int(generator.integers(len(values))) for values in choices.values())
        if chosen not in seen:
            seen.add(chosen)
            yield {name: choices[name][i] for name, i in zip(choices, chosen, strict=True)}


def comparison(cases: Sequence[Case]) -> Callable[..., None]:
    """The test of a table: values and gradients on each engine."""

    @pytest.mark.parametrize("dtype", [float64, float32], ids=str)
    @pytest.mark.parametrize("case", cases, ids=str)
    def layer(case: Case, dtype: DType, engine: Engine) -> None:
        compare_with_pytorch(case, dtype, engine)

    return layer


def compare_with_pytorch(case: Case, dtype: DType, engine: Engine) -> None:
    """Some training steps and an inference.

    Raises:
        AssertionError: where there is a difference.
    """
    variables, steps, inference = _expected(case, dtype)
    mine = Mine(case, dtype, engine)
    mine.write(variables)
    for step, (expected, expected_states) in enumerate(steps):
        upstream = normal(mine.output_shape, dtype, 100 + step)
        results, found_states = mine.trained(inputs_of(case, dtype, step), upstream)
        _compare_all(case, results, expected, f"step {step}: ")
        for name, value in expected_states.items():
            _compare(f"step {step}: {name}", found_states[name], value)
    _compare("inference", mine.inferred(inputs_of(case, dtype, STEPS)), inference)
    unchanged = mine.states()
    for name, value in steps[-1][1].items():
        np.testing.assert_array_equal(unchanged[name], found_states[name])
        assert value.shape == unchanged[name].shape


def _compare_all(case: Case, results: Values, expected: Values, where: str = "") -> None:
    assert results.keys() == expected.keys()
    largest = max((float(np.abs(value).max(initial=0.0)) for value in expected.values()), default=0)
    for name, value in expected.items():
        _compare(where + name, results[name], value, largest if case.cancelling else 1.0)


def _compare(what: str, result: Array, expected: Array, least: float = 1.0) -> None:
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype), what
    scale = max(least, float(np.abs(expected).max(initial=0.0)))
    tolerance = TOLERANCES[expected.dtype.name] * scale
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance, err_msg=what)


def normal(shape: Sequence[int], dtype: DType, seed: int) -> Array:
    # Not around zero, so that terms that cancel show.
    return np.asarray(np.random.default_rng(seed).normal(0.5, 1.5, shape), dtype.numpy)


def inputs_of(case: Case, dtype: DType, seed: int) -> list[Array]:
    inputs = [normal(shape, dtype, 10 * seed + n) for n, shape in enumerate(case.shapes)]
    generator = np.random.default_rng(seed)
    if case.indices:
        inputs[0] = generator.integers(0, case.indices, case.shapes[0])
    if case.lengths:
        inputs[-1] = generator.integers(1, case.lengths + 1, case.shapes[-1])
    for shape in case.masks:
        mask = generator.random(shape) < 0.6
        # PyTorch has NaN where nothing may be looked at.
        mask[..., 0] = True
        inputs.append(mask)
    return inputs


def network_of(case: Case) -> lm.Network:
    kinds: list[Any] = [None] * len(case.shapes) + ["bool"] * len(case.masks)
    if case.indices:
        kinds[0] = "int64"
    if case.lengths:
        kinds[len(case.shapes) - 1] = "int64"
    shapes = (*case.shapes, *case.masks)
    inputs = [lm.Input(*shape[1:], dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)]
    return lm.Network(inputs, case.layer(*inputs))


def _short(name: str) -> str:
    """`"1.weight"` -> `"weight"`: there is one layer."""
    return name.split(".", 1)[-1]


def _named(inputs: Sequence[Array]) -> dict[str, Array]:
    return {f"input{n}": array for n, array in enumerate(inputs)}


def pytorch() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    # Several threads only wait for each other here.
    torch.set_num_threads(1)
    return torch


@functools.cache
def _expected(case: Case, dtype: DType) -> tuple[Values, list[tuple[Values, Values]], Array]:
    """PyTorch's parameters and states, results of some training steps, and of inference."""
    theirs = Theirs(case, dtype)
    variables = theirs.variables
    shape = _programs(case, dtype, DEFAULT_TARGET).output_shape
    steps = [
        theirs.trained(inputs_of(case, dtype, step), normal(shape, dtype, 100 + step))
        for step in range(STEPS if theirs.states else 2)
    ]
    return variables, steps, theirs.inferred(inputs_of(case, dtype, STEPS))


class _Programs(NamedTuple):
    """A layer's training and inference mode, which engines share; the names of its states."""

    training: Program
    inference: Program
    output_shape: tuple[int, ...]
    states: Sequence[str]


@functools.cache
def _programs(case: Case, dtype: DType, target: Target) -> _Programs:
    network, batch = network_of(case), case.shapes[0][0]
    trace, inference = (network.trace(dtype=dtype, training=mode) for mode in (True, False))
    (output,), record = trace.outputs, trace.record
    slopes, upstream = _slopes(trace)
    updates = tuple((record.states[n].tensor, new) for n, new in record.updates.items())
    training = Graph((*trace.inputs, upstream), (("y", output), *slopes.items()), updates)
    inferring = Graph(inference.inputs, (("y", inference.outputs[0]),))
    programs = (
        compile_graph(graph, batch=batch, name="layer", target=target)
        for graph in (training, inferring)
    )
    return _Programs(*programs, (batch, *static(output.shape[1:])), [*map(_short, record.states)])


def _differentiated(trace: Trace) -> dict[str, Tensor]:
    """The inputs and parameters that have gradients."""
    inputs = {t.attributes["name"]: t for t in trace.inputs if t.dtype.is_float}
    return inputs | {_short(name): v.tensor for name, v in trace.record.parameters.items()}


def _slopes(trace: Trace) -> tuple[dict[str, Tensor], Tensor]:
    """The gradients for an upstream gradient, and the leaf of that."""
    (output,), sources = trace.outputs, _differentiated(trace)
    upstream = leaf("upstream", "input", output.shape, output.dtype)
    slopes = gradients(output * upstream, list(sources.values())) if sources else ()
    return dict(zip(map("d {}".format, sources), slopes, strict=True)), upstream


class Mine:
    """The layer in Lamina, compiled for an engine in both modes."""

    def __init__(self, case: Case, dtype: DType, engine: Engine) -> None:
        training, inference, self.output_shape, self._states = _programs(case, dtype, engine.target)
        buffers = {
            buffer.name: buffer
            for program in (training, inference)
            for kind in ("parameter", "state")
            for buffer in program.of_kind(kind)
        }
        shared = {n: engine.allocate(b.shape, b.dtype.numpy) for n, b in buffers.items()}
        self._memories = {_short(name): memory for name, memory in shared.items()}
        self._training, self._inference = (
            (program, engine.compile(program, shared)) for program in (training, inference)
        )

    @staticmethod
    def _run(compiled: tuple[Program, Any], feeds: Mapping[str, Array]) -> dict[str, Array]:
        program, executable = compiled
        executable.run([feeds[buffer.name] for buffer in program.of_kind("input")])
        return {name: executable.output(name) for name, _ in program.outputs}

    def write(self, variables: Values) -> None:
        for name, value in variables.items():
            self._memories[name].write(value)

    def trained(self, inputs: Sequence[Array], upstream: Array) -> tuple[Values, Values]:
        found = self._run(self._training, {**_named(inputs), "upstream": upstream})
        return found, self.states()

    def inferred(self, inputs: Sequence[Array]) -> Array:
        return self._run(self._inference, _named(inputs))["y"]

    def states(self) -> dict[str, Array]:
        return {name: self._memories[name].read() for name in self._states}


class Theirs:
    """The same in PyTorch, with parameters other than those it starts with."""

    def __init__(self, case: Case, dtype: DType) -> None:
        self._torch = pytorch()
        self._dtype = getattr(self._torch, dtype.name)
        self._module = self._in_dtype(lambda: case.module(self._torch))
        record = network_of(case).trace(dtype=dtype, training=True).record
        self._parameters, self.states = (
            {
                name: getattr(self._module, case.names.get(name, name))
                for name in map(_short, variables)
            }
            for variables in (record.parameters, record.states)
        )
        for number, (name, tensor) in enumerate(self._parameters.items()):
            random = normal(tuple(tensor.shape), dtype, 50 + number)
            value = self._torch.tensor(random * dtype.numpy.type(case.weights))
            tensor.data = value if name != "weight" or value.ndim != 1 else value.abs() + 0.5
        parameters = list(getattr(self._module, "parameters", list)())
        assert {id(p) for p in parameters} == {id(p) for p in self._parameters.values()}

    def _in_dtype(self, call: Callable[[], Any]) -> Any:
        before = self._torch.get_default_dtype()
        self._torch.set_default_dtype(self._dtype)
        try:
            return call()
        finally:
            self._torch.set_default_dtype(before)

    @property
    def variables(self) -> dict[str, Array]:
        everything = {**self._parameters, **self.states}
        return {name: tensor.detach().numpy().copy() for name, tensor in everything.items()}

    def trained(self, inputs: Sequence[Array], upstream: Array) -> tuple[Values, Values]:
        tensors = [self._torch.tensor(array) for array in inputs]
        for tensor in tensors:
            tensor.requires_grad_(tensor.is_floating_point())
        y = self._output(tensors, training=True)
        sources = {f"d input{n}": t for n, t in enumerate(tensors) if t.is_floating_point()}
        sources |= {f"d {name}": tensor for name, tensor in self._parameters.items()}
        if sources:
            (y * self._torch.tensor(upstream)).sum().backward(inputs=list(sources.values()))
        results = {"y": y.detach()} | {name: tensor.grad for name, tensor in sources.items()}
        for tensor in sources.values():
            tensor.grad = None
        return (
            {name: tensor.numpy() for name, tensor in results.items()},
            {name: tensor.numpy().copy() for name, tensor in self.states.items()},
        )

    def inferred(self, inputs: Sequence[Array]) -> Array:
        with self._torch.no_grad():
            return self._output(map(self._torch.tensor, inputs), training=False).numpy()

    def _output(self, tensors: Iterable[Any], *, training: bool) -> Any:
        if hasattr(self._module, "train"):
            self._module.train(training)
        return self._in_dtype(lambda: self._module(*tensors))
