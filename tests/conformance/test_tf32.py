"""Products in TF32: the rounding is right to the bit, and its errors stay within their bounds.

A rounding to TF32 changes a number by at most u = 2^-11 of it. All else is float32 arithmetic. The
bounds are derived as in `test_mixed_float64.py`; here operands of products are rounded, and nothing
else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from float64_runs import root_mean_square
from harness import Leaves, check, compare, run_program
from layer_cases import LAYERS, LayerCase, network_of, random_network, values_for
from random_graphs import random_graph
from test_mixed_float64 import (
    CANCELLED,
    FLOATS,
    LINEAR,
    SEVERAL,
    TYPICAL,
    Samples,
    Values,
    check_errors,
    differentiated,
    exact,
    float32_error,
    outputs_of,
    run,
)

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, float32, float64
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine
from lamina.program.tf32 import rounded_to_tf32
from lamina.step.tf32_products import with_tf32_products

UNIT = 2.0**-11


def every_exponent() -> Array:
    """Float32 of every sign and exponent: near ties, near the ends of the fraction, and random."""
    generator = np.random.default_rng(0)
    kept = np.array([0, 1, 2, 511, 512, 1022, 1023], np.uint32) << np.uint32(13)
    rest = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    chosen = (kept[:, None] + rest).reshape(-1)
    fractions = np.concatenate([chosen, generator.integers(0, 1 << 23, 23, dtype=np.uint32)])
    upper = np.arange(512, dtype=np.uint32) << np.uint32(23)
    return (upper[:, None] | fractions).reshape(-1).view(np.float32)


@pytest.mark.parametrize("extent", [1, 65])
def test_every_engine_rounds_to_the_same_bits(extent: int, engine: Engine) -> None:
    """In scalars and in vectors."""
    x = every_exponent().reshape(-1, extent)
    leaves = Leaves()
    graph = leaves.graph([ops.round_to_tf32(leaves.add(x))])
    program = compile_graph(graph, batch=1, name="test", target=engine.target)
    (found,) = run_program(program, engine, leaves.feeds)[0].values()
    wanted = rounded_to_tf32(x)
    numbers = ~np.isnan(x)
    assert np.array_equal(np.isnan(found), ~numbers)
    assert np.array_equal(found.view(np.uint32)[numbers], wanted.view(np.uint32)[numbers])


# Attention has samples of its own in TF32.
@pytest.mark.parametrize("name", sorted(LINEAR | {"recurrence"}))
def test_engines_agree_with_the_oracle(name: str, engine: Engine) -> None:
    made = Samples(FLOATS[name])
    graph = with_tf32_products(made.leaves.graph(outputs_of(made)))
    check(graph, engine, made.leaves.feeds)


@pytest.mark.parametrize("name", ["conv", "matmul"])
@pytest.mark.sampled
def test_every_schedule_rounds_the_operands(name: str, engine: Engine) -> None:
    made = Samples(FLOATS[name])
    graph = with_tf32_products(made.leaves.graph([result for _, result in made.results]))
    check(graph, engine, made.leaves.feeds, schedules=engine.schedules)


@pytest.mark.parametrize("name", sorted(LINEAR))
def test_products_round_their_operands(name: str, engine: Engine) -> None:
    made, magnitudes, squares = (Samples(FLOATS[name]) for _ in range(3))
    graph, feeds = made.leaves.graph(outputs_of(made)), made.leaves.feeds
    found, wanted = run(with_tf32_products(graph), engine, feeds), exact(graph, feeds)
    absolute, squared = (
        exact(one.leaves.graph(outputs_of(one)), {n: change(x) for n, x in feeds.items()})
        for one, change in ((magnitudes, np.abs), (squares, np.square))
    )
    most = max(len(operands) for operands, _ in made.results)
    shares: list[Array] = []
    for output, value in wanted.items():
        error, float32s = found[output] - value, float32_error(absolute[output], feeds)
        allowed = ((1 + UNIT) ** most - 1) * absolute[output] + float32s
        compare(output, found[output], value, allowed)
        scale = UNIT * math.sqrt(most) * np.sqrt(squared[output]) + float32s
        shares.append((error / scale).reshape(-1))
    assert root_mean_square(np.concatenate(shares)) <= 1


@pytest.mark.parametrize("name", sorted(SEVERAL))
def test_ops_that_round_several_tensors(name: str, engine: Engine) -> None:
    made = Samples(FLOATS[name])
    graph, feeds = made.leaves.graph(outputs_of(made)), made.leaves.feeds
    found = run(with_tf32_products(graph), engine, feeds)
    for output, wanted in exact(graph, feeds).items():
        bound = CANCELLED * math.sqrt(SEVERAL[name]) * UNIT * root_mean_square(wanted)
        assert root_mean_square(found[output] - wanted) <= bound + float32_error(wanted, feeds)


@pytest.mark.parametrize("terms", [8, 128, 2048])
def test_the_error_of_a_product_is_that_of_its_operands(terms: int, engine: Engine) -> None:
    """However many terms are summed, and not less: the operands are rounded."""
    generator, leaves = np.random.default_rng(0), Leaves()
    x = leaves.add(generator.normal(size=(16, terms)).astype("float32"))
    y = leaves.add(generator.normal(size=(terms, 24)).astype("float32"))
    graph = leaves.graph([ops.matmul(x, y)])
    found = run(with_tf32_products(graph), engine, leaves.feeds)["y0"]
    error = root_mean_square(found - exact(graph, leaves.feeds)["y0"])
    typical = TYPICAL * math.sqrt(2 * terms) * UNIT
    assert 0.8 * typical <= error <= 1.1 * typical


def errors_in_units(
    network: lm.Network, feeds: Values, roundings: int, engine: Engine
) -> Mapping[str, float]:
    """By result: the root mean square error, in units of that of as many roundings."""
    found = run(with_tf32_products(differentiated(network, float32)), engine, feeds)
    wanted = exact(differentiated(network, float64), feeds)
    errors: dict[str, float] = {}
    for name, value in wanted.items():
        # A gradient follows from twice as many: forwards, and again backwards.
        count = roundings * (2 if name.startswith("d ") else 1)
        # The gradient of a bias of keys is zero: terms like those of the queries' cancel.
        scale = root_mean_square(wanted[name.replace("keys.bias", "queries.bias")])
        unit = UNIT * math.sqrt(count) * scale
        errors[name] = root_mean_square(found[name] - value) / unit
    return errors


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.sampled
def test_a_layer_between_products(name: str, engine: Engine) -> None:
    case = LAYERS[name]
    network = network_of(case)
    feeds = values_for(case, differentiated(network, float32))
    check_errors(errors_in_units(network, feeds, case.roundings + 5, engine))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sampled
def test_a_random_network(seed: int, engine: Engine) -> None:
    network, roundings = random_network(seed)
    feeds = values_for(LayerCase(lm.Tanh(), ()), differentiated(network, float32), seed)
    check_errors(errors_in_units(network, feeds, roundings, engine))


# Every fourth random graph is float32.
@pytest.mark.parametrize("seed", range(3, 120, 4))
@pytest.mark.sampled
def test_a_random_graph_agrees_with_the_oracle(seed: int, engine: Engine) -> None:
    made = random_graph(seed)
    check(with_tf32_products(made.graph), engine, made.feeds)
