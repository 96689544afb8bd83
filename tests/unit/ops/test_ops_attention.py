"""Attention: masks and memory.

Values, gradients and second derivatives are tested from the samples of the op's record.
"""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, DType, float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.graph import Graph, evaluate, leaf
from lamina.ops.attention_blocks import attention_arguments
from lamina.program.program import Program
from lamina.program.steps import Contraction


def operands(*shapes: tuple[int, ...], dtype: DType = float32) -> list[lm.Tensor]:
    return [leaf(f"x{number}", "input", shape, dtype) for number, shape in enumerate(shapes)]


def test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients():
    q, k, v = (lm.Input(3, 2, 4) for _ in range(3))
    mask = lm.Input(1, 2, 2, dtype="bool")
    y = ops.attention(q, k, v, mask)
    f = lm.compile(inputs=[q, k, v, mask], outputs=[y, *lm.gradients(y * y, [q, k, v])])
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=(2, 3, 2, 4)).astype("float32") for _ in range(3)]
    mask_values = np.array([[[[True, True], [False, False]]], [[[False, False], [False, False]]]])
    results = f(*arrays, mask_values)
    assert all(np.isfinite(array).all() for array in results)
    assert results[0][0, :, 0].all()
    assert not results[0][0, :, 1].any()
    assert not any(array[1].any() for array in results)


def test_causal_is_a_mask_of_later_positions():
    q, k, v = operands((2, 2, 9, 3), (2, 2, 7, 3), (2, 2, 7, 5))
    below = np.tri(9, 7, dtype=bool)[None, None]
    expected = ops.attention(q, k, v, below)
    for blocks in (1, 2, 5, 9, 20):
        same(ops.attention(q, k, v, causal=True, blocks=blocks), expected, (q, k, v))


def test_masks_of_fewer_axes_are_repeated_from_the_left():
    q, k, v = operands((2, 3, 5, 3), (2, 3, 7, 3), (2, 3, 7, 5))
    generator = np.random.default_rng(0)
    for shape in ((7,), (5, 7), (5, 1), (3, 5, 7), (1, 5, 7)):
        allowed = generator.random(shape) < 0.6
        bias = generator.normal(size=shape).astype("float32")
        repeated = [np.broadcast_to(x, (2, 3, 5, 7)) for x in (allowed, bias)]
        expected = ops.attention(q, k, v, repeated[0], bias=repeated[1])
        same(ops.attention(q, k, v, allowed, bias=bias), expected, (q, k, v))


def test_a_bias_of_minus_infinity_is_a_mask():
    q, k, v = operands((2, 2, 5, 3), (2, 2, 7, 3), (2, 2, 7, 5))
    allowed = np.random.default_rng(0).random((2, 1, 5, 7)) < 0.6
    bias = np.where(allowed, 0, -np.inf).astype("float32")
    for blocks in (1, 2):
        biased = ops.attention(q, k, v, bias=bias, blocks=blocks)
        same(biased, ops.attention(q, k, v, allowed), (q, k, v))


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_what_a_mask_hides_has_no_influence(blocks, engine):
    # Key 3 is hidden from all queries, by the mask or by the bias, and query 2 sees no key.
    allowed = np.ones((5, 7), bool)
    allowed[2], allowed[:, 3] = False, False
    minus = np.where(allowed, 0.5, -np.inf).astype("float32")
    x = [lm.Input(2, n, 3) for n in (5, 7, 7)]
    results: list[lm.Tensor] = []
    for masks in ({"mask": allowed}, {"bias": minus}, {"mask": allowed[2:3], "bias": minus}):
        y = ops.attention(*x, **masks, causal=len(masks) == 2, blocks=blocks)
        results += [y, *lm.gradients(ops.sum(y * y), x)]
    model = lm.Model(lm.Network(x, results), engine=engine, seed=0)
    generator = np.random.default_rng(0)
    q, k, v = (generator.normal(size=(1, 2, n, 3)).astype("float32") for n in (5, 7, 7))
    expected = model.predict((q, k, v))
    q[:, :, 2], k[:, :, 3], v[:, :, 3] = np.nan, np.inf, -np.inf
    for result, reference in zip(model.predict((q, k, v)), expected, strict=True):
        np.testing.assert_array_equal(result, reference)


def test_heads_of_queries_share_keys_and_values_in_groups():
    q, k, v = operands((2, 6, 5, 3), (2, 2, 7, 3), (2, 3, 7, 5))
    each = [ops.take(x, np.repeat(np.arange(n), 6 // n), 1) for x, n in ((k, 2), (v, 3))]
    found = ops.attention(q, k, v, causal=True)
    same(found, ops.attention(q, *each, causal=True), (q, k, v))


def same(result: lm.Tensor, expected: lm.Tensor, leaves: tuple[lm.Tensor, ...]) -> None:
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {
        x.attributes["name"]: generator.normal(size=x.shape).astype("float32") for x in leaves
    }
    built = result.op.lowering.build(result)
    graph = Graph(leaves, (("result", built), ("expected", expected)))
    values, _ = evaluate(graph, feeds)
    np.testing.assert_allclose(values["result"], values["expected"], rtol=2e-5, atol=2e-6)


def test_long_sequences_are_split_into_a_few_blocks_on_the_cpu():
    def blocks_of(length, causal=False):
        given = operands(*[(1, 1, length, 4)] * 3)
        node = ops.attention(*given, causal=causal)
        return attention_arguments(node.operands, node.attributes).block_count

    counts = [blocks_of(length) for length in (1, 128, 255, 256, 512, 1024, 100_000)]
    assert counts == [1, 1, 1, 2, 4, 8, 8]
    counts = [blocks_of(length, causal=True) for length in (1, 127, 128, 255, 256, 512, 100_000)]
    assert counts == [1, 1, 2, 2, 2, 4, 8]


def test_the_number_of_blocks_is_fixed_only_if_it_is_given():
    leaves = operands(*[(1, 1, 8, 4)] * 3)
    for blocks in (None, 2):
        y = ops.attention(*leaves, blocks=blocks)
        every = [y, *lm.gradients(y * y, leaves)]
        assert [x.attributes.get("blocks") for x in every] == [blocks] * 4


def compiled(*shape: int, causal: bool, with_gradients: bool) -> Program:
    leaves = operands(*[shape] * 3)
    y = ops.attention(*leaves, causal=causal)
    outputs = [y, *(lm.gradients(y * y, leaves) if with_gradients else ())]
    graph = Graph(tuple(leaves), tuple((f"y{n}", one) for n, one in enumerate(outputs)))
    return compile_graph(graph, batch=1, name="attention", target=DEFAULT_TARGET)


def arena_bytes(length: int, *, causal: bool = False) -> int:
    """The arena of a forward and backward pass; inputs and results are not in it."""
    program = compiled(1, 4, length, 16, causal=causal, with_gradients=True)
    kept = sum(program.buffers[buffer].bytes for _, buffer in program.outputs)
    return program.plan.arena_bytes - kept


@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_length_and_not_with_its_square(causal):
    assert arena_bytes(1024, causal=causal) < 2.4 * arena_bytes(512, causal=causal)
    # The weights of attention are never stored whole.
    assert arena_bytes(1024) < 4 * 1024 * 1024 * 4 / 2


def test_queries_look_only_at_blocks_of_keys_that_they_may_see():
    def work(causal):
        program = compiled(1, 1, 1024, 16, causal=causal, with_gradients=False)
        steps = (step for step in program.steps if isinstance(step, Contraction))
        return sum(int(np.prod(step.extents)) for step in steps)

    assert work(causal=True) == work(causal=False) * 9 / 16
