"""Mixed precision against float64: every op, every layer, random graphs and random networks.

A rounding changes a number by at most u of it: 2^-8 in bfloat16, 2^-11 in float16 and in TF32, in
which operands of products are rounded, and nothing else. All else is float32 arithmetic, whose own
error counts as `FLOAT32` units of 2^-24 of the largest number. The bounds follow from where
roundings are allowed:

- *Result of an op* that is multiplied later: rounded once. Each element may be off by u of it.
- *Gradient of an op* without products: float32.
- *Products*, a sum of terms a b with both operands rounded: each element may be off by
  (2 u + u^2) times the sum of abs(a b). Errors have both signs, so their root mean square is at
  most sqrt(2) u of sqrt(sum (a b)^2), however many terms there are. For random numbers it is
  `TYPICAL` times as much, as these are uniformly distributed between powers of two.
- *Networks*, and ops that round one tensor after the other: a result follows from r tensors that
  are rounded once, each with an error whose root mean square is at most u of the tensor's own. If
  these errors are independent, and neither enlarged nor cancelled, the result's is at most
  u sqrt(r) of its own root mean square. That holds for all results and gradients of a network
  taken together. A single one may be off by `CANCELLED` times as much: softmax and normalisation
  subtract means, and terms of the gradient of a gain have both signs.
- *Random graphs*: the operands of products in float64 runs are changed at random by up to u; an
  element may be off by `FACTOR` times the root mean square of its changes.
"""

import math
from collections.abc import Mapping

import harness
import ml_dtypes
import numpy as np
import pytest
from float64_runs import UNITS, in_float64, root_mean_square, with_noise
from harness import Leaves, compare, values_of
from layer_cases import BATCH, LAYERS, LayerCase, network_of, random_network, values_for
from random_graphs import random_graph
from test_ops import weighted_gradients

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, DType, bfloat16, float16, float32, float64
from lamina.engines.engine import Engine
from lamina.graph import Graph, Op, Sample, Tensor, apply, bind_batch, evaluate, leaf
from lamina.ops.differentiate import gradients
from lamina.step.rounding import with_rounded_activations, with_rounded_products, with_tf32_products

pytestmark = pytest.mark.sampled
HALVES = (bfloat16, float16)


class Rounding:
    """How the operands of products are rounded.

    Attributes:
        unit: the largest relative error of one rounding.
        half: the type of rounded numbers; None for TF32, which is float32.
        products: rounds the products of a graph.
    """

    def __init__(self, half: DType | None) -> None:
        self.half = half
        self.unit = 2.0**-11 if half is None else UNITS[half]

    def products(self, graph: Graph) -> Graph:
        if self.half is None:
            return with_tf32_products(graph)
        return with_rounded_products(graph, self.half)


ROUNDINGS = {"bf16": Rounding(bfloat16), "f16": Rounding(float16), "tf32": Rounding(None)}
EACH_ROUNDING = pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
FLOAT32 = 8.0
CANCELLED = 2.0
TYPICAL = 0.41
FACTOR, RUNS = 4.0, 12
ADDED = 40.0

Values = Mapping[str, Array]


def run(graph: Graph, engine: Engine, feeds: Values) -> Values:
    """The results of a graph on an engine, in float64."""
    outputs = harness.run(graph, engine, feeds)
    return {name: value.astype("float64") for name, value in outputs.items()}


def exact(graph: Graph, feeds: Values) -> Values:
    """The results in float64."""
    outputs, _ = evaluate(in_float64(graph), feeds)
    return {name: value.astype("float64") for name, value in outputs.items()}


def float32_error(value: Array, feeds: Values) -> float:
    """What float32 arithmetic may change; exponentials enlarge errors by their operand."""
    largest = float(np.max(np.abs(value[np.isfinite(value)]), initial=1.0))
    operands = [x for x in feeds.values() if x.dtype == np.float32]
    condition = max((float(np.max(np.abs(x), initial=1.0)) for x in operands), default=1.0)
    return FLOAT32 * UNITS[float32] * largest * condition


def rounding_error(value: Array, half: DType) -> Array:
    """What one rounding may change: also to zero or infinity, if there is no number of 16 bits."""
    limits = ml_dtypes.finfo(half.numpy)
    inside = UNITS[half] * np.abs(value) + float(limits.smallest_subnormal) / 2
    return np.where(np.abs(value) < float(limits.max), inside, np.inf)


# Ops ----------------------------------------------------------------------------------------------


class Samples:
    """An op applied to all of its samples in float32 that round no operands of products.

    Attributes:
        leaves: the operands.
        results: of each sample: its operands and result.
        samples: the samples.
    """

    def __init__(self, op: Op, leaves: Leaves | None = None) -> None:
        self.leaves, self.samples = leaves or Leaves(), list[Sample]()
        self.results: list[tuple[list[Tensor], Tensor]] = []
        for sample in op.samples:
            rounds = {"products", "tf32"} & sample.attributes.keys()
            if "float64" in sample.dtypes or rounds:
                continue
            operands = [self.leaves.add(array) for array in values_of(sample, float32)]
            result = apply(op, *operands, **sample.attributes)
            if result.dtype == float32:
                self.samples.append(sample)
                self.results.append((operands, result))

    def gradients(self) -> list[Tensor]:
        """The gradients of a weighted sum of the result of each differentiable sample."""
        return [
            gradient
            for sample, (operands, result) in zip(self.samples, self.results, strict=True)
            if sample.differentiable
            for gradient in weighted_gradients(self.leaves, operands, result)
        ]


# Their results are linear in each operand.
LINEAR = {op.name for op in ops.ALL if 0 < op.multiplies == op.operands}
# Others with products, and how many tensors they round, one after the other: queries, keys, values,
# weights, the result and its gradient; the states and the matrix, in three iterations.
SEVERAL = {"attention": 6, "attention_gradient": 6, "recurrence": 6}
# `round_to_tf32` has no result in float64.
FLOATS = {op.name: op for op in ops.ALL if op.name != "round_to_tf32" and Samples(op).results}
WITHOUT_PRODUCTS = sorted({*FLOATS} - LINEAR - {*SEVERAL})
DIFFERENTIABLE = [name for name in WITHOUT_PRODUCTS if Samples(FLOATS[name]).gradients()]


@pytest.mark.parametrize("name", WITHOUT_PRODUCTS)
def test_results_are_rounded_once_where_they_are_multiplied_and_gradients_are_not(
    name, engine, leaves
):
    results, slopes = Samples(FLOATS[name], leaves), Samples(FLOATS[name], leaves)
    numbers = leaves.add(np.array([1.0, -2.0], "float32"))
    multiplied = [ops.outer(ops.reshape(y, (-1,)), numbers) for _, y in results.results]
    named = {f"y{n}": y for n, y in enumerate(multiplied)}
    named |= {f"d{n}": y for n, y in enumerate(slopes.gradients())}
    inputs = tuple(leaves.tensors)
    graph = Graph(inputs, tuple(named.items()))
    rounded = {half: with_rounded_products(graph, half) for half in HALVES}
    together = [
        (f"{half} {name}", y) for half, products in rounded.items() for name, y in products.outputs
    ]
    outputs = run(Graph(inputs, tuple(together)), engine, leaves.feeds)
    for output, value in exact(graph, leaves.feeds).items():
        for half in HALVES:
            allowed = float32_error(value, leaves.feeds)
            if output in named and output.startswith("y"):
                allowed = allowed + rounding_error(value, half)
            compare(f"{half} {output}", outputs[f"{half} {output}"], value, allowed)


@EACH_ROUNDING
@pytest.mark.parametrize("name", sorted(LINEAR))
def test_products_round_their_operands(name, rounding, engine):
    """A gradient is a sum of products of the other operands and the gradient that arrives."""
    made, magnitudes, squares = (Samples(FLOATS[name]) for _ in range(3))
    graph, feeds = made.leaves.graph(outputs_of(made)), made.leaves.feeds
    outputs, expected = run(rounding.products(graph), engine, feeds), exact(graph, feeds)
    absolute, squared = (
        exact(samples.leaves.graph(outputs_of(samples)), {n: change(x) for n, x in feeds.items()})
        for samples, change in ((magnitudes, np.abs), (squares, np.square))
    )
    u, most = rounding.unit, max(len(operands) for operands, _ in made.results)
    shares: list[Array] = []
    for name, value in expected.items():
        error, float32s = outputs[name] - value, float32_error(absolute[name], feeds)
        compare(name, outputs[name], value, ((1 + u) ** most - 1) * absolute[name] + float32s)
        scale = u * math.sqrt(most) * np.sqrt(squared[name]) + float32s
        shares.append((error / scale).reshape(-1))
    assert root_mean_square(np.concatenate(shares)) <= 1


def outputs_of(made: Samples) -> list[Tensor]:
    """Results and gradients."""
    return [*(result for _, result in made.results), *made.gradients()]


@EACH_ROUNDING
@pytest.mark.parametrize("name", sorted(SEVERAL))
def test_ops_that_round_several_tensors(name, rounding, engine):
    made = Samples(FLOATS[name])
    graph, feeds = made.leaves.graph(outputs_of(made)), made.leaves.feeds
    outputs = run(rounding.products(graph), engine, feeds)
    for output, value in exact(graph, feeds).items():
        bound = CANCELLED * math.sqrt(SEVERAL[name]) * rounding.unit * root_mean_square(value)
        assert root_mean_square(outputs[output] - value) <= bound + float32_error(value, feeds)


@EACH_ROUNDING
@pytest.mark.parametrize("terms", [8, 128, 2048])
def test_the_error_of_a_product_is_that_of_its_operands(terms, rounding, engine, leaves):
    """However many terms are summed, and not less: the operands are rounded."""
    generator = np.random.default_rng(0)
    x = leaves.add(generator.normal(size=(16, terms)).astype("float32"))
    y = leaves.add(generator.normal(size=(terms, 24)).astype("float32"))
    graph = leaves.graph([ops.matmul(x, y)])
    product = run(rounding.products(graph), engine, leaves.feeds)["y0"]
    error = root_mean_square(product - exact(graph, leaves.feeds)["y0"])
    typical = TYPICAL * math.sqrt(2 * terms) * rounding.unit
    assert 0.8 * typical <= error <= 1.1 * typical


# Layers -------------------------------------------------------------------------------------------


def differentiated(network: lm.Network, dtype: DType, rounding: Rounding | None = None) -> Graph:
    """Results, gradients of a weighted sum, and new states, in training mode."""
    trace = network.trace(dtype=dtype, training=True)
    if rounding is not None and rounding.half is not None:
        trace = with_rounded_activations(trace, rounding.half)
    (result,) = trace.outputs
    weights = leaf("weights", "input", result.shape, dtype)
    parameters = [variable.tensor for variable in trace.record.parameters.values()]
    sources = [*parameters, *(x for x in trace.inputs if x.dtype.is_float)]
    derivatives = gradients(ops.sum(result * weights), sources)
    outputs = [("result", result)]
    outputs += [(f"d {x.attributes['name']}", y) for x, y in zip(sources, derivatives, strict=True)]
    outputs += [(f"new {name}", tensor) for name, tensor in trace.record.updates.items()]
    graph = bind_batch(Graph((*trace.inputs, weights), tuple(outputs)), BATCH)
    return graph if rounding is None else rounding.products(graph)


def check_network(
    network: lm.Network, feeds: Values, roundings: int, rounding: Rounding, engine: Engine
) -> None:
    """Checks the root mean square error of each result, in units of the error of as many roundings.

    A gradient follows from twice as many: forwards, and again backwards.
    """
    outputs = run(differentiated(network, float32, rounding), engine, feeds)
    expected = exact(differentiated(network, float64), feeds)
    errors: dict[str, float] = {}
    for name, value in expected.items():
        count = roundings * (2 if name.startswith("d ") else 1)
        # The gradient of a bias of keys is zero: terms like the queries' cancel.
        scale = root_mean_square(expected[name.replace("keys.bias", "queries.bias")])
        unit = rounding.unit * math.sqrt(count) * scale
        errors[name] = root_mean_square(outputs[name] - value) / unit
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] <= CANCELLED, worst
    assert root_mean_square(np.array([*errors.values()])) <= 1


@EACH_ROUNDING
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_between_products(name, rounding, engine):
    case = LAYERS[name]
    network = network_of(case)
    feeds = values_for(case, differentiated(network, float32))
    # Besides those in the layer: the input, both weights, what the layer gets, what it gives.
    check_network(network, feeds, case.roundings + 5, rounding, engine)


# Random programs ----------------------------------------------------------------------------------


@EACH_ROUNDING
@pytest.mark.parametrize("seed", range(24))
def test_a_random_network(seed, rounding, engine):
    network, roundings = random_network(seed)
    feeds = values_for(LayerCase(lm.Tanh(), ()), differentiated(network, float32), seed)
    check_network(network, feeds, roundings, rounding, engine)


# Every fourth random graph is float32. Errors of float32 arithmetic add up in up to 40 ops.
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("seed", range(3, 240, 4))
def test_a_random_graph(seed, half, engine):
    made = random_graph(seed)
    graph = Graph(made.graph.inputs, made.graph.outputs)
    rounded = run(with_rounded_products(graph, half), engine, made.feeds)
    expected = exact(graph, made.feeds)
    noisy, noises = with_noise(in_float64(graph), half)
    generator = np.random.default_rng(seed)
    changes: dict[str, list[Array]] = {name: [] for name in expected}
    for _ in range(RUNS):
        drawn = {name: draw(generator) for name, draw in noises.items()}
        outputs, _ = evaluate(noisy, {**made.feeds, **drawn})
        for name, value in outputs.items():
            changes[name].append(np.square(value - expected[name]))
    for name, value in expected.items():
        spread = np.sqrt(np.mean(changes[name], 0))
        allowed = FACTOR * spread + ADDED * float32_error(value, made.feeds)
        compare(name, rounded[name], value, allowed)
