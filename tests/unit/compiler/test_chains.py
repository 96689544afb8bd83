"""Chains: which contractions become one step, what it computes, and the memory that it saves."""

from dataclasses import replace

import numpy as np
import pytest
from error_texts import problem_of
from harness import run_program
from program_cases import program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.engines import DEFAULT_TARGET
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import leaf
from lamina.learning.by_output import options_of
from lamina.ops.differentiate import gradients
from lamina.program.cost import cost_of, space_of
from lamina.program.encoding import decode, encode
from lamina.program.scalar import Local
from lamina.program.steps import Contraction
from lamina.step.planning import bill_of
from lamina.step.precision import Precision

CHAINED = replace(DEFAULT_TARGET, chains=True)


def operands(length=128, features=8, heads=2):
    return [leaf(name, "input", (1, heads, length, features), float32) for name in "qkv"]


def kinds(program):
    return [type(step).__name__ for step in program.steps]


def attention(length, *, chains=True):
    leaves = operands(length)
    result = ops.attention(*leaves)
    results = [result, *gradients(ops.sum(result * result), leaves)]
    return program_of(results, target=CHAINED if chains else DEFAULT_TARGET)


def test_attention_and_its_gradients_are_three_chains():
    program = attention(128)
    assert kinds(program) == ["Chain", "Loop", "Chain", "Chain"]
    forward, _, of_queries, of_keys_and_values = program.steps
    combined = [reduction.combine for reduction in forward.reductions if reduction.axes]
    assert combined == ["maximum", "sum"]
    assert (len(of_queries.products), len(of_queries.sums)) == (2, 1)
    assert (len(of_keys_and_values.products), len(of_keys_and_values.sums)) == (2, 2)
    assert space_of(of_queries) == "2 of 128 x 128 : 8, 8, 8"
    assert decode(encode(program)).steps == program.steps


@pytest.mark.parametrize("length", [512, 2048])
def test_memory_is_linear_in_the_length(length):
    half, whole = (attention(n).plan.arena_bytes for n in (length // 2, length))
    assert whole <= 2 * half
    assert 4 * whole < attention(length, chains=False).plan.arena_bytes


def test_chains_compute_the_same_on_the_interpreter():
    generator = np.random.default_rng(0)
    feeds = {name: generator.normal(size=(1, 2, 128, 8)).astype("f4") for name in "qkv"}
    engine = InterpreterEngine(poison=True)
    chained, expected = (
        run_program(attention(128, chains=chains), engine, feeds)[0] for chains in (True, False)
    )
    for name, value in expected.items():
        np.testing.assert_allclose(chained[name], value, rtol=1e-4, atol=1e-5)


def test_the_text_of_a_chain_lists_products_reductions_and_sums():
    program = program_of(ops.attention(*operands(), causal=True), target=CHAINED)
    lines = str(program.steps[0]).splitlines()
    assert lines[0] == "chain 0.transpose over (a0<2; a1<128), a2<128"
    assert lines[1] == "  s0 = sum(d0<8) q[1024*a0 + 8*a1 + d0] * k[1024*a0 + 8*a2 + d0]"
    assert lines[2].startswith("  r0 = maximum(a2<128) select(((a1) + 0) >= (a2), s0 * ")
    assert lines[5].startswith("  for n0<8: sum0 = sum(a2<128) exp(")
    assert len(lines) == 7


def test_operations_of_a_chain_count_every_product():
    programs = attention(128), attention(128, chains=False)
    counted, before = (
        sum(cost_of(step, program.buffers).operations for step in program.steps)
        for program in programs
    )
    # The gradients compute two of the seven products again.
    assert before < counted < 1.5 * before


LEAVES, SHORT, WIDE = operands(), operands(64), operands(features=512)
SCORES = ops.matmul(LEAVES[0], ops.transpose(LEAVES[1], (0, 1, 3, 2)))
WEIGHTS, TANH = ops.exp(SCORES), ops.tanh(SCORES)
# Results, and whether they are one chain or two contractions.
CHAINS = {
    "scores that are a result": ([SCORES, ops.matmul(WEIGHTS, LEAVES[2])], False),
    "scores that a reduction of columns reads": (
        [ops.sum(WEIGHTS, 2), ops.matmul(WEIGHTS, LEAVES[2])],
        False,
    ),
    "products without a reduction": ([ops.matmul(TANH, LEAVES[2])], True),
    "short rows": ([ops.attention(*SHORT)], False),
    "long sums": ([ops.attention(*WIDE)], False),
}


@pytest.mark.cases("results, is_chain", CHAINS)
def test_products_whose_results_are_not_read_elsewhere_are_a_chain(results, is_chain):
    found = kinds(program_of(results, target=CHAINED))
    assert (found == ["Chain"]) == is_chain
    assert found.count("Contraction") == (0 if is_chain else 2)


def test_layers_with_weights_are_no_chains():
    net = lm.Sequential(lm.Input(64), lm.Linear(256), lm.ReLU(), lm.Linear(64))
    bill = net.plan(256, lm.MSE(), lm.SGD(0.1))
    assert any(isinstance(step, Contraction) for step in bill.program.steps)
    options = options_of(lm.MSE(), lm.SGD(0.1), None, (), "test")
    device = InterpreterEngine().device
    program = bill_of(net, 256, options, Precision(float32, None), lambda: device, CHAINED).program
    assert "Chain" not in kinds(program)


def test_programs_with_impossible_chains_are_refused():
    program = program_of([ops.attention(*LEAVES)], target=CHAINED)
    (chain,) = program.steps
    (total,), (product,), (first, *others) = chain.sums, chain.products, chain.reductions
    of_score = replace(total.stores[0], value=Local("s0", float32))
    for changes, said in (
        ({"sums": (replace(total, stores=(of_score,)),)}, "uses the local s0 before it is defined"),
        ({"products": (replace(product, left=product.right),)}, "nothing iterates axis a2"),
        ({"reductions": (replace(first, axes=chain.m), *others)}, "reduces over other axes than k"),
    ):
        assert said in problem_of(replace(program, steps=(replace(chain, **changes),)))
