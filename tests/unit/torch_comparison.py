"""The comparison of layers with PyTorch: values, gradients, second derivatives, running statistics.

A case is a layer, the PyTorch module that does the same, and the shapes of its inputs. It is
compiled in training mode together with the gradients of all inputs and parameters, and in the
inference mode, and runs on every engine. The cases stand in test_layers_torch*.py, a family of
layers in each; to add a layer, add its cases to the table there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, DType, float32, float64, static
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.engine import Engine
from lamina.graph import Graph, Tensor, bind_batch, evaluate, leaf
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
        cancelling: whether there are gradients that are nothing but rounding, as those of biases
            of keys: errors are then relative to the largest gradient of all.
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


def comparisons(
    cases: Sequence[Case], twice: Sequence[Case] | None = None
) -> tuple[Callable[..., None], Callable[..., None]]:
    """The tests of a table: values and gradients on each engine, second derivatives.

    Args:
        cases: the table.
        twice: those with second derivatives in PyTorch; all by default.
    """

    @pytest.mark.parametrize("dtype", [float64, float32], ids=str)
    @pytest.mark.parametrize("case", cases, ids=str)
    def layer(case: Case, dtype: DType, engine: Engine) -> None:
        compare_with_pytorch(case, dtype, engine)

    @pytest.mark.parametrize("case", cases if twice is None else twice, ids=str)
    def derivatives(case: Case) -> None:
        compare_second_derivatives(case)

    return layer, derivatives


def compare_with_pytorch(case: Case, dtype: DType, engine: Engine) -> None:
    """Some training steps and an inference.

    Raises:
        AssertionError: where there is a difference.
    """
    variables, steps, inference = _expected(case, dtype)
    mine = Mine(case, dtype, engine)
    for name, value in variables.items():
        mine.memories[name].write(value)
    for step, (expected, expected_states) in enumerate(steps):
        upstream = normal(mine.output_shape, dtype, 100 + step)
        found, found_states = mine.trained(inputs_of(case, dtype, step), upstream)
        assert found.keys() == expected.keys()
        largest = max(float(np.abs(value).max(initial=0.0)) for value in expected.values())
        for name, value in expected.items():
            least = largest if case.cancelling else 1.0
            _compare(f"step {step}: {name}", found[name], value, least)
        for name, value in expected_states.items():
            _compare(f"step {step}: {name}", found_states[name], value)
    _compare("inference", mine.inferred(inputs_of(case, dtype, STEPS)), inference)
    unchanged = mine.states()
    for name, value in steps[-1][1].items():
        np.testing.assert_array_equal(unchanged[name], found_states[name])
        assert value.shape == unchanged[name].shape


def compare_second_derivatives(case: Case) -> None:
    """The gradients of the sum of the squared gradients of a training step, in float64.

    Raises:
        AssertionError: where there is a difference.
    """
    theirs = Theirs(case, float64, pytorch(), network_of(case))
    trace = network_of(case).trace(dtype=float64, training=True)
    slopes = _slopes(trace, upstream := _upstream(trace))
    total = sum((ops.sum(one * one) for one in slopes.values()), ops.constant(0.0, float64))
    wanted = list(_differentiated(trace).values())
    outputs = zip(slopes, gradients(total, wanted), strict=True)
    record = trace.record
    leaves = {_short(n): v.tensor for n, v in {**record.parameters, **record.states}.items()}
    graph = Graph((*trace.inputs, upstream, *leaves.values()), tuple(outputs))
    inputs = inputs_of(case, float64, 0)
    feeds = {leaves[name].attributes["name"]: array for name, array in theirs.variables.items()}
    feeds |= {f"input{n}": array for n, array in enumerate(inputs)}
    graph = bind_batch(graph, case.shapes[0][0])
    shape = next(x for x in graph.inputs if x.attributes["name"] == "upstream").shape
    feeds["upstream"] = normal(static(shape), float64, 100)
    values, _ = evaluate(graph, feeds)
    # PyTorch's fused attention has no second derivative.
    attention = pytorch().nn.attention
    with attention.sdpa_kernel([attention.SDPBackend.MATH]):
        found = theirs.curvatures(inputs, feeds["upstream"])
    largest = max((float(np.abs(value).max(initial=0.0)) for value in found.values()), default=0.0)
    for name, expected in found.items():
        _compare(name, values[name], expected, largest if case.cancelling else 1.0)


def _compare(what: str, found: Array, expected: Array, least: float = 1.0) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
    scale = max(least, float(np.abs(expected).max(initial=0.0)))
    tolerance = TOLERANCES[expected.dtype.name] * scale
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=what)


def normal(shape: Sequence[int], dtype: DType, seed: int) -> Array:
    # Not around zero, so that terms that cancel show.
    generator = np.random.default_rng(seed)
    return np.asarray(generator.normal(0.5, 1.5, shape), dtype.numpy)


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
    kinds = ["int64" if case.indices and not n else None for n in range(len(case.shapes))]
    if case.lengths:
        kinds[-1] = "int64"
    inputs = [
        lm.Input(*shape[1:], dtype=kind) for shape, kind in zip(case.shapes, kinds, strict=True)
    ]
    inputs += [lm.Input(*shape[1:], dtype="bool") for shape in case.masks]
    return lm.Network(inputs, case.layer(*inputs))


def _short(name: str) -> str:
    """`"1.weight"` -> `"weight"`: there is one layer."""
    return name.split(".", 1)[-1]


def pytorch() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    # Several threads only wait for each other here.
    torch.set_num_threads(1)
    return torch


@functools.cache
def _expected(case: Case, dtype: DType) -> tuple[Values, list[tuple[Values, Values]], Array]:
    """PyTorch's parameters and states, results of some training steps, and of inference."""
    torch = pytorch()
    network = network_of(case)
    theirs = Theirs(case, dtype, torch, network)
    variables = theirs.variables
    shape = _programs(case, dtype, DEFAULT_TARGET).output_shape
    steps: list[tuple[Values, Values]] = []
    for step in range(STEPS if theirs.has_states else 2):
        upstream = normal(shape, dtype, 100 + step)
        steps.append(theirs.trained(inputs_of(case, dtype, step), upstream))
    return variables, steps, theirs.inferred(inputs_of(case, dtype, STEPS))


@dataclass(frozen=True)
class _Programs:
    """A layer's training and inference mode, which engines share; the names of its states."""

    training: Program
    inference: Program
    output_shape: tuple[int, ...]
    states: Sequence[str]


@functools.cache
def _programs(case: Case, dtype: DType, target: Target) -> _Programs:
    network = network_of(case)
    batch = case.shapes[0][0]
    trace = network.trace(dtype=dtype, training=True)
    (output,) = trace.outputs
    inference = network.trace(dtype=dtype, training=False)
    outputs = (("y", inference.outputs[0]),)
    return _Programs(
        compile_graph(_training_graph(trace), batch=batch, name="layer", target=target),
        compile_graph(Graph(inference.inputs, outputs), batch=batch, name="layer", target=target),
        (batch, *static(output.shape[1:])),
        [_short(name) for name in trace.record.states],
    )


def _upstream(trace: Trace) -> Tensor:
    (output,) = trace.outputs
    return leaf("upstream", "input", output.shape, output.dtype)


def _differentiated(trace: Trace) -> dict[str, Tensor]:
    """The inputs and parameters that have gradients."""
    wanted = {t.attributes["name"]: t for t in trace.inputs if t.dtype.is_float}
    return wanted | {_short(name): v.tensor for name, v in trace.record.parameters.items()}


def _slopes(trace: Trace, upstream: Tensor) -> dict[str, Tensor]:
    wanted = _differentiated(trace)
    slopes = gradients(trace.outputs[0] * upstream, list(wanted.values())) if wanted else ()
    return dict(zip(map("d {}".format, wanted), slopes, strict=True))


def _training_graph(trace: Trace) -> Graph:
    (output,) = trace.outputs
    record, upstream = trace.record, _upstream(trace)
    outputs = (("y", output), *_slopes(trace, upstream).items())
    updates = tuple((record.states[n].tensor, new) for n, new in record.updates.items())
    return Graph((*trace.inputs, upstream), outputs, updates)


class Mine:
    """The layer in Lamina, compiled for an engine in both modes."""

    def __init__(self, case: Case, dtype: DType, engine: Engine) -> None:
        programs = _programs(case, dtype, engine.target)
        self.output_shape = programs.output_shape
        self.states_of = programs.states
        training, inference = programs.training, programs.inference
        buffers = {
            buffer.name: buffer
            for program in (training, inference)
            for kind in ("parameter", "state")
            for buffer in program.of_kind(kind)
        }
        shared = {
            name: engine.allocate(buffer.shape, buffer.dtype.numpy)
            for name, buffer in buffers.items()
        }
        self.memories = {_short(name): memory for name, memory in shared.items()}
        self._training = training, engine.compile(training, shared)
        self._inference = inference, engine.compile(inference, shared)

    @staticmethod
    def _run(compiled: tuple[Program, Any], feeds: Mapping[str, Array]) -> dict[str, Array]:
        program, executable = compiled
        executable.run([feeds[buffer.name] for buffer in program.of_kind("input")])
        return {name: executable.output(name) for name, _ in program.outputs}

    def trained(self, inputs: Sequence[Array], upstream: Array) -> tuple[Values, Values]:
        feeds = {f"input{n}": array for n, array in enumerate(inputs)} | {"upstream": upstream}
        return self._run(self._training, feeds), self.states()

    def inferred(self, inputs: Sequence[Array]) -> Array:
        feeds = {f"input{n}": array for n, array in enumerate(inputs)}
        return self._run(self._inference, feeds)["y"]

    def states(self) -> dict[str, Array]:
        return {name: self.memories[name].read() for name in self.states_of}


class Theirs:
    """The same in PyTorch, with parameters other than those it starts with."""

    def __init__(self, case: Case, dtype: DType, torch: Any, network: lm.Network) -> None:
        self._torch = torch
        wanted = getattr(torch, dtype.name)
        before = torch.get_default_dtype()
        torch.set_default_dtype(wanted)
        try:
            self._module = case.module(torch)
        finally:
            torch.set_default_dtype(before)
        self._dtype = wanted
        record = network.trace(dtype=dtype, training=True).record
        self._parameters = self._found(case, record.parameters)
        self._states = self._found(case, record.states)
        for number, (name, tensor) in enumerate(self._parameters.items()):
            random = normal(tuple(tensor.shape), dtype, 50 + number)
            value = torch.tensor(random * dtype.numpy.type(case.weights))
            tensor.data = value if name != "weight" or value.ndim != 1 else value.abs() + 0.5
        own = list(getattr(self._module, "parameters", list)())
        assert {id(p) for p in own} == {id(p) for p in self._parameters.values()}

    def _found(self, case: Case, variables: Mapping[str, Any]) -> dict[str, Any]:
        short = [_short(name) for name in variables]
        return {name: getattr(self._module, case.names.get(name, name)) for name in short}

    @property
    def has_states(self) -> bool:
        return bool(self._states)

    @property
    def variables(self) -> dict[str, Array]:
        everything = {**self._parameters, **self._states}
        return {name: tensor.detach().numpy().copy() for name, tensor in everything.items()}

    def trained(self, inputs: Sequence[Array], upstream: Array) -> tuple[Values, Values]:
        y, wanted, slopes = self._slopes(inputs, upstream, twice=False)
        found = {"y": y.detach().numpy()}
        found |= {name: slope.numpy() for name, slope in zip(wanted, slopes, strict=True)}
        return found, {name: tensor.numpy().copy() for name, tensor in self._states.items()}

    def curvatures(self, inputs: Sequence[Array], upstream: Array) -> Values:
        _, wanted, slopes = self._slopes(inputs, upstream, twice=True)
        total = sum((slope * slope).sum() for slope in slopes if slope.requires_grad)
        if not isinstance(total, self._torch.Tensor):
            return {name: np.zeros(tensor.shape) for name, tensor in wanted.items()}
        found = self._torch.autograd.grad(total, list(wanted.values()), materialize_grads=True)
        return {name: one.numpy(force=True) for name, one in zip(wanted, found, strict=True)}

    def _slopes(
        self, inputs: Sequence[Array], upstream: Array, *, twice: bool
    ) -> tuple[Any, dict[str, Any], Sequence[Any]]:
        """The output, the tensors that have gradients, and these gradients."""
        self._set_training(True)
        tensors = [self._torch.tensor(array) for array in inputs]
        for tensor in tensors:
            tensor.requires_grad_(tensor.is_floating_point())
        y = self._output(tensors)
        wanted = {f"d input{n}": t for n, t in enumerate(tensors) if t.is_floating_point()}
        wanted |= {f"d {name}": tensor for name, tensor in self._parameters.items()}
        total = (y * self._torch.tensor(upstream)).sum()
        slopes = (
            self._torch.autograd.grad(total, list(wanted.values()), create_graph=twice)
            if wanted
            else ()
        )
        return y, wanted, slopes

    def inferred(self, inputs: Sequence[Array]) -> Array:
        self._set_training(False)
        with self._torch.no_grad():
            return self._output([self._torch.tensor(array) for array in inputs]).numpy()

    def _output(self, tensors: Sequence[Any]) -> Any:
        before = self._torch.get_default_dtype()
        self._torch.set_default_dtype(self._dtype)
        try:
            return self._module(*tensors)
        finally:
            self._torch.set_default_dtype(before)

    def _set_training(self, on: bool) -> None:
        if hasattr(self._module, "train"):
            self._module.train(on)
