"""Fusion and simplification: which tensors share a step, which are stored, which are dropped."""

import math

import numpy as np
import pytest
from program_cases import count, program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import bfloat16, bool_, float32, float64, int64
from lamina.compiler.fusion import anchors
from lamina.compiler.simplify import simplify
from lamina.graph import CONSTANT, OPS, Graph, Op, apply, bind_batch, evaluate, leaf
from lamina.program.cost import cost_of
from lamina.program.scalar import loads, postorder
from lamina.program.steps import Contraction, Loop, reads_of, scalars_of, stores_of, writes_of

MLP = (lm.Input(8), lm.Linear(24), lm.ReLU(), lm.Linear(5))
ADAM = lm.Adam(1e-3)


def temporaries(program, *shape):
    return [b for b in program.of_kind("temporary") if b.shape == shape]


def writers(program, buffer):
    return [step for step in program.steps if buffer in writes_of(step)]


def test_a_concat_of_equal_shapes_stores_one_element_of_each_operand_at_a_point():
    x, y = (leaf(name, "parameter", (3, 40), float64) for name in "xy")
    z = ops.exp(x) * y
    program = program_of([ops.concat([z, ops.sin(z), x], 1)])
    (step,) = program.steps
    assert isinstance(step, Loop)
    assert [axis.extent for axis in step.axes] == [3, 40]
    assert len(list(stores_of(step))) == 3
    assert count(program, "exp") == 1


def test_a_leaf_updated_by_a_concat_of_its_own_slices_is_read_before_it_is_stored():
    x = leaf("x", "parameter", (2, 40), float64)
    swapped = ops.concat([x[:, 20:], x[:, :20]], 1)
    program = program_of(ops.sum(x), [(x, swapped)])
    assert len(writers(program, "x")) == 1
    assert len(list(stores_of(writers(program, "x")[0]))) == 1
    assert len(temporaries(program, 2, 40)) == 1


@pytest.mark.cases(
    "optimizer",
    *(lm.SGD(0.1), lm.SGD(0.1, momentum=0.9, nesterov=True), lm.Adagrad(), lm.AdamW(1e-3)),
    *(ADAM, lm.RMSProp(1e-2, momentum=0.9, centered=True)),
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_update_is_the_epilogue_of_the_weight_gradient(optimizer, training_program):
    program = training_program(MLP, lm.CrossEntropy(), optimizer)
    for name, shape in (("1.weight", (24, 8)), ("3.weight", (5, 24))):
        (update,) = writers(program, name)
        assert isinstance(update, Contraction)
        states = {b.name for b in program.of_kind("state") if b.name.startswith(f"{name}/")}
        assert states <= writes_of(update)
        assert not temporaries(program, *shape)


def test_dropout_mask_is_computed_again_and_never_stored(training_program):
    layers = (lm.Input(8), lm.Linear(24), lm.Tanh(), lm.Dropout(0.3), lm.Linear(5))
    program = training_program(layers, lm.CrossEntropy(), lm.SGD(0.1))
    plain = training_program((*layers[:3], layers[4]), lm.CrossEntropy(), lm.SGD(0.1))
    assert count(program, "random_bits") >= 2
    assert all(buffer.dtype.is_float for buffer in program.of_kind("temporary"))
    assert len(temporaries(program, 16, 24)) <= len(temporaries(plain, 16, 24)) + 1


@pytest.mark.parametrize(("clip", "stored"), [(lm.ClipGlobalNorm(1.0), 1), (lm.ClipValue(1.0), 0)])
def test_clipping_stores_gradients_only_for_their_norm(clip, stored, training_program):
    program = training_program(MLP, lm.CrossEntropy(), lm.SGD(0.1), clip=clip)
    for shape in ((24, 8), (24,), (5, 24), (5,)):
        assert len(temporaries(program, *shape)) == stored


X, V, W = (
    leaf(name, "input", shape, float32)
    for name, shape in (("x", (4, 6)), ("v", (5, 4)), ("w", (6, 3)))
)
WIDE, NARROW = leaf("x", "parameter", (3, 80), float64), leaf("y", "parameter", (3, 30), float64)
TOTAL = WIDE + leaf("b", "parameter", (80,), float64)
LEFT, RIGHT = ops.split(TOTAL, 2, 1)
MOVED = ops.pad(ops.flip(ops.transpose(X)[1:5:2], 0), [(1, 0), (0, 2)])
CHEAP, COSTLY = ops.relu(X) * 2, ops.exp(X)
BIG = leaf("big", "input", (40, 60), float32)
SLOW, FAST, BEHIND = ops.exp(BIG), ops.relu(BIG), ops.sin(ops.exp(BIG) + 1)
AGAIN = ops.flip(ops.reshape(ops.flip(SLOW, 0), (60, 40)), (0, 1))


def two(size):
    x, y = (leaf(name, "input", (size,), float32) for name in "xy")
    return [ops.exp(x), ops.sin(y)]


# Outputs, the number of steps, the number of temporaries of a shape, and the shape.
STEPS = {
    "an elementwise chain": ([ops.tanh(ops.exp(X) * 2 + ops.sin(X))], 1, 1, (4, 6)),
    "movements": ([ops.exp(ops.reshape(MOVED, (6, 3)))], 1, 0, (3, 6)),
    "a product of moved operands": (
        [ops.pad(ops.transpose(X), [(1, 1), (0, 0)])[::-1] @ ops.transpose(V)],
        1,
        1,
        (8, 5),
    ),
    "results over the same points": ([ops.exp(X), ops.sin(X), ops.tanh(X)], 1, 3, (4, 6)),
    "statistics of rows": ([ops.softmax(X), ops.logsumexp(X, -1), ops.max(X, -1)], 1, 1, (4, 6)),
    "small results": (two(8), 1, 2, (8,)),
    "large results that share nothing": (two(800), 2, 2, (800,)),
    "a concat of different shapes": ([ops.concat([WIDE, NARROW], 1)], 1, 1, (3, 110)),
    "a concat of narrow operands": ([ops.concat([WIDE[:, :4], NARROW[:, :4]], 1)], 1, 1, (3, 8)),
    "a tensor that is only sliced": (
        [ops.tanh(LEFT) * ops.sigmoid(RIGHT), ops.exp(RIGHT)],
        1,
        0,
        (3, 80),
    ),
    "a tensor that is sliced and used whole": ([LEFT * RIGHT, ops.sum(TOTAL, 0)], 3, 1, (3, 80)),
    "a cheap tensor that is used twice": ([ops.sum(CHEAP, 0), ops.sum(CHEAP, 1)], 2, 0, (4, 6)),
    "a costly tensor that is used": ([COSTLY @ W, ops.sum(COSTLY, 0), COSTLY * 2], 3, 2, (4, 6)),
    "a slow tensor at two coordinates": ([SLOW - ops.flip(SLOW, 1)], 2, 2, (40, 60)),
    "a fast tensor at two coordinates": ([FAST - ops.flip(FAST, 1)], 1, 1, (40, 60)),
    # They are the same ones.
    "two coordinates": ([ops.flip(SLOW, 1) + ops.reshape(AGAIN, (40, 60))], 1, 1, (40, 60)),
    "few elements at two coordinates": ([SLOW[:, :2] - SLOW[:, 2:4]], 1, 0, (40, 60)),
    "many elements at two coordinates": ([SLOW[:, :59] - SLOW[:, 1:]], 2, 1, (40, 60)),
    # It saves storing the tensors below it.
    "the first tensor of a chain": ([BEHIND - ops.flip(BEHIND, 1)], 2, 2, (40, 60)),
}


@pytest.mark.cases("outputs, steps, stored, shape", STEPS)
def test_tensors_are_fused_or_stored(outputs, steps, stored, shape):
    program = program_of(outputs)
    assert (len(program.steps), len(temporaries(program, *shape))) == (steps, stored)


P, Q, R = (leaf(name, "parameter", (4, 4), float64) for name in "pqr")
UPDATES = {
    "each element where it is stored": ([(P, P * 0.9 + Q), (Q, ops.softmax(Q))], 0),
    "three that take each other's values": ([(P, Q), (Q, R), (R, P)], 1),
    "transposed": ([(P, ops.transpose(P))], 1),
    "flipped": ([(P, ops.flip(P))], 1),
    "a product": ([(P, P @ P)], 1),
    "a scan": ([(P, ops.cumsum(ops.transpose(P), 0, reverse=True))], 1),
    "a scatter along an axis": (
        [(P, ops.scatter_along_axis(P, ops.zeros_like(ops.cast(P, "int64")), 4, 0))],
        1,
    ),
    "a scatter": ([(P, ops.scatter_add(P, ops.arange(4), 4, 0))], 1),
}


@pytest.mark.cases("updates, copies", UPDATES)
def test_updates_that_read_other_elements_go_through_copies(updates, copies):
    assert len(program_of([], updates).of_kind("temporary")) == copies


def test_a_sum_of_contractions_is_accumulated_in_place():
    pairs = [
        (leaf(f"a{n}", "input", (6, 5), float32), leaf(f"b{n}", "input", (5, 7), float32))
        for n in range(5)
    ]
    total = pairs[0][0] @ pairs[0][1]
    for a, b in pairs[1:]:
        total = total + a @ b
    program = program_of([total])
    assert len(program.steps) == 5
    # One running sum, updated in place.
    assert program.plan.arena_bytes == 6 * 7 * 4


def test_a_recomputed_tensor_is_computed_again_after_the_tensor_it_waits_for():
    x = leaf("x", "input", (50, 60), float32)
    y = ops.tanh(x)
    middle = ops.transpose(y) @ y
    total = ops.sum(middle)
    again = ops.tanh(ops.recomputed(x, total)) * total
    program = program_of([again])
    assert count(program, "tanh") == 2
    (first, *_, last) = program.steps
    assert "x" in reads_of(first) & reads_of(last)
    assert count(program_of([ops.tanh(x) * total]), "tanh") == 1


def test_cross_entropy_along_a_middle_axis_stores_no_one_hot_targets():
    scores = lm.Input(7, 30)
    x = ops.transpose(lm.Linear(40)(scores), (0, 2, 1))
    net = lm.Network(scores, x)
    program = net.plan(4, lm.CrossEntropy(), lm.SGD(0.1)).program
    sizes = [buffer.size for buffer in program.of_kind("temporary")]
    # The scores and their gradient, in place or not.
    assert sum(size == 4 * 7 * 40 for size in sizes) <= 2


def test_a_large_operand_keeps_its_order_if_a_small_one_has_another():
    x = leaf("x", "input", (6, 7, 5), float32)
    y = leaf("y", "input", (5, 8), float32)
    rows = leaf("rows", "input", (1, 7, 6), float32)
    product = (x @ y) * ops.transpose(rows, (2, 1, 0))
    program = program_of([product @ leaf("z", "input", (8, 4), float32)])
    assert len(program.steps) == 2
    assert all(isinstance(step, Contraction) for step in program.steps)
    assert len(temporaries(program, 6, 7, 8)) == 1


def test_a_tensor_that_costs_more_to_compute_again_than_to_store_is_stored(monkeypatch):
    x = leaf("x", "input", (40, 60), float32)
    for simple_cost, stored in ((0.25, 0), (2.0, 1)):
        monkeypatch.setattr("lamina.program.primitive_costs.SIMPLE_COST", simple_cost)
        cheap = ops.relu(x @ ops.transpose(x)[:, :40]) * 2
        program = program_of([ops.sum(cheap, 0), ops.sum(cheap, 1)])
        assert count(program, "maximum") == 2 - stored


def test_a_mask_with_several_users_is_stored_if_it_is_expensive():
    x, y = (leaf(name, "input", (400, 60), float32) for name in "xy")
    short, long = x > 1, ops.logical_and(ops.logical_and(x * 3 + 1 > 2, x < 9), x * x > 0.5)
    for mask, stored in ((short, 0), (long, 1)):
        rows = ops.sum(ops.where(mask, y, 0.0), 0)
        program = program_of([rows, ops.sum(ops.where(mask, 1.0, y), 1) * ops.sum(rows)])
        assert sum(b.dtype == bool_ for b in program.of_kind("temporary")) == stored


def moved(program):
    return sum(cost_of(step, program.buffers).bytes for step in program.steps)


# What is computed from a float64 sum and its cast to float32. Then, if the cast is not stored, the
# temporaries and the bytes moved that this saves; if it is, the number of float32 tensors.
NARROWED = {
    "instead of its operand": (lambda wide, narrow: [ops.cumsum(narrow, 0)], 2),
    "in addition to its operand if enough steps read it": (
        lambda wide, narrow: [wide, ops.cumsum(narrow, 0), ops.cumsum(narrow * 2, 0)],
        3,
    ),
    "if only the step of its operand reads the operand": (
        lambda wide, narrow: [ops.mean(wide * wide), ops.cumsum(narrow, 0)],
        2,
    ),
    # It would be written once and read once.
    "not for a step that also reads its operand": (
        lambda wide, narrow: [ops.cumsum(wide - ops.cast(narrow, "float64"), 0)],
        (1, 2 * 500 * 4),
    ),
    "not if that moves as many bytes": (lambda wide, narrow: [wide, ops.cumsum(narrow, 0)], (1, 0)),
}


@pytest.mark.cases("make, expected", NARROWED)
def test_a_cast_to_fewer_bytes_is_stored(make, expected, monkeypatch):
    wide = ops.sum(leaf("x", "parameter", (500, 40), float64), 1)
    outputs = list(make(wide, ops.cast(wide, "float32")))
    chosen = program_of(outputs)
    monkeypatch.setattr(anchors, "is_worth_narrowing", lambda **_: True)
    always = program_of(outputs)
    if isinstance(expected, int):
        assert chosen == always
        dtypes = [buffer.dtype for buffer in temporaries(chosen, 500)]
        assert dtypes.count(float32) == expected
    else:
        fewer = len(temporaries(always, 500)) - len(temporaries(chosen, 500))
        assert (fewer, moved(always) - moved(chosen)) == expected


def test_a_product_and_its_operand_may_share_a_step():
    x, w = leaf("x", "input", (4, 1), float64), leaf("w", "input", (1,), float64)
    repeated = ops.broadcast_to(x, (3, 4, 1))
    program = program_of([repeated, repeated @ w])
    # No step reads a buffer that it stores as an operand.
    for step in program.steps:
        if isinstance(step, Contraction):
            operands = {load.buffer for load in loads(step.left, step.right)}
            assert not operands & writes_of(step)


def simplified(*tensors):
    graph = Graph((), tuple((f"y{n}", tensor) for n, tensor in enumerate(tensors)))
    return tuple(tensor for _, tensor in simplify(bind_batch(graph, 1)).outputs)


def leaf_x():
    return leaf("x", "input", (2, 3), float64)


NOTHING = {
    "x * 1": lambda x: x * 1.0,
    "1 * x": lambda x: 1.0 * x,
    "x / 1": lambda x: x / 1.0,
    "x - 0": lambda x: x - 0.0,
    "x ** 1": lambda x: x**1.0,
    "-(-x)": lambda x: ops.neg(ops.neg(x)),
    "where(c, x, x)": lambda x: ops.where(x > 0, x, x),
    "stop_gradient": ops.stop_gradient,
    "reshape and back": lambda x: ops.reshape(ops.reshape(x, (3, 2)), (2, 3)),
    "transpose twice": lambda x: ops.transpose(ops.transpose(x)),
    "sum over an axis of extent 1": lambda x: ops.sum(ops.reshape(x, (2, 1, 3)), 1),
    "x * ones": lambda x: x * ops.ones_like(x),
}


@pytest.mark.parametrize("name", NOTHING)
def test_ops_that_change_nothing_are_dropped(name):
    (result,) = simplified(NOTHING[name](leaf_x()))
    assert result.op.name == "leaf"


ALMOST_NOTHING = {
    "x * 0": lambda x: x * 0.0,  # NaN and infinity times 0 are NaN
    "0 / x": lambda x: 0.0 / x,
    "x - x": lambda x: x - x,  # infinity - infinity is NaN
    "x / x": lambda x: x / x,
    "x + 0": lambda x: x + 0.0,  # -0.0 + 0.0 is 0.0
    "x - -0": lambda x: x - (-0.0),
    "x ** 0.5": lambda x: x**0.5,  # sqrt(-0.0) is -0.0, and -infinity ** 0.5 is infinity
    "x == x": lambda x: ops.equal(x, x),  # NaN equals nothing
    "max(x, -inf)": lambda x: ops.maximum(x, -math.inf),
    "0 - x": lambda x: 0.0 - x,  # 0.0 - 0.0 is 0.0, -(0.0) is -0.0
    "log(exp(x))": lambda x: ops.log(ops.exp(x)),
    "abs": ops.abs,
    "sqrt(x * x)": lambda x: ops.sqrt(x * x),
    "(x + y) - y": lambda x: (x + 1e30) - 1e30,
    "sum of products with 0": lambda x: x @ ops.zeros_like(ops.transpose(x)),
    "sum of repeated": lambda x: ops.sum(ops.broadcast_to(x, (4, 2, 3)), 0),
    "sum of none": lambda x: ops.sum(ops.broadcast_to(x[:, None], (2, 0, 3)), 1),
}
STRANGE = np.array([[math.nan, math.inf, -math.inf], [0.0, -0.0, 1e308]])


@pytest.mark.parametrize("name", [*NOTHING, *ALMOST_NOTHING])
def test_simplification_holds_for_nan_infinities_and_both_zeros(name):
    tensor = {**NOTHING, **ALMOST_NOTHING}[name](leaf_x())
    graph = Graph((), (("y", tensor),))
    expected, result = value(graph), value(simplify(graph))
    np.testing.assert_array_equal(result, expected)
    # A sum that is zero may have either sign: that depends on where it starts.
    if expected.dtype.kind == "f" and "sum" not in name:
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result[numbers]), np.signbit(expected[numbers]))


def value(graph):
    return evaluate(graph, {"x": STRANGE})[0]["y"]


def test_equal_expressions_are_computed_once_unless_they_differ_in_the_sign_of_zero():
    x = leaf_x()
    one, other = simplified(ops.exp(x) * 2, ops.exp(x) * 2)
    assert one is other
    one, other = simplified(ops.pad(x, [1, 1], 0.0), ops.pad(x, [1, 1], -0.0))
    assert one is not other


def test_small_constants_are_folded_and_large_ones_are_not():
    small, large = simplified(
        ops.exp(lm.ops.constant(np.arange(8.0))), ops.exp(lm.ops.constant(np.arange(1000.0)))
    )
    assert small.op is CONSTANT
    assert large.op.name == "exp"


def test_a_scatter_along_more_positions_than_uint8_can_count():
    values = leaf("v", "input", (2, 1), float64)
    indices = leaf("i", "input", (2, 1), lm.base.shapes.uint8)
    graph = Graph((), (("y", ops.scatter_along_axis(values, indices, 300, 1)),))
    feeds = {"v": np.array([[1.0], [2.0]]), "i": np.array([[4], [255]], np.uint8)}
    result, expected = evaluate(simplify(graph), feeds)[0]["y"], evaluate(graph, feeds)[0]["y"]
    np.testing.assert_array_equal(result, expected)


AT = leaf("i", "input", (3,), int64)
SINGLE = (leaf(name, "input", (3, 1), int64) for name in "vi")
# The ops from the result down.
SIMPLER = {
    "a scatter of single values": (ops.scatter_along_axis(*SINGLE, 4, 1), ["where"]),
    # Rounded after they are made.
    "floats made of integers": (ops.cast(ops.one_hot(AT, 5), bfloat16), ["cast", "one_hot"]),
    "a transposed product": (ops.transpose(ops.contract(X, W, "mk", "kn", "mn")), ["contract"]),
}


@pytest.mark.cases("tensor, expected", SIMPLER)
def test_ops_become_simpler_ones(tensor, expected):
    (result,) = simplified(tensor)
    assert result.dtype == tensor.dtype
    for op in expected:
        assert result.op.name == op
        result = result.operands[0]


def test_an_op_of_the_user_with_a_known_name_is_not_simplified_like_the_known_op():
    absolute = OPS["abs"]
    custom = Op("neg", absolute.infer, None, absolute.reference, absolute.lowering)
    x = leaf("x", "input", (3,), float32)
    total = x + apply(custom, x)
    ((_, result),) = simplify(Graph((x,), (("y", total),))).outputs
    assert result.op is total.op


def test_coordinates_after_many_reshapes_are_still_compared():
    y = z = SLOW
    for _ in range(9):
        z = ops.reshape(ops.transpose(ops.reshape(z, (24, 100))), (40, 60))
    program = program_of(z + ops.flip(z, 0) + y)
    assert count(program, "exp") == 1


def augmented(*layers):
    network = lm.Sequential(lm.Input(3, 16, 16), *layers, lm.Flatten(), lm.Linear(5))
    return network.plan(8, lm.CrossEntropy(), lm.SGD(0.1)).program


def test_each_layer_of_a_chain_of_samplings_is_computed_once():
    rotations = [lm.RandomRotation(degrees) for degrees in (5, 10, 15)]
    sizes = [
        sum(len(list(postorder(*scalars_of(step)))) for step in augmented(*chain).steps)
        for chain in (rotations[:1], rotations[:2], rotations)
    ]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]


def test_a_chain_draws_no_more_numbers_than_its_layers_alone():
    layers = lm.RandomShift(2), lm.RandomRotation(15), lm.Mixup()
    for primitive in ("random_bits", "cos", "floor"):
        alone = sum(count(augmented(layer), primitive) for layer in layers)
        assert count(augmented(*layers), primitive) == alone


def test_expressions_of_joins_in_a_chain_stay_small():
    """Each `roll` reads its operand at two coordinates: 8 of them are one step, not all."""
    y = BIG
    for _ in range(30):
        y = ops.roll(y, 1, 1)
    program = program_of(ops.matmul(y, leaf("w", "input", (60, 4), float32)))
    assert count(program, "select") == 30
    assert max(len([*postorder(*scalars_of(step))]) for step in program.steps) < 40


@pytest.mark.sampled
def test_indices_of_reshapes_in_a_chain_stay_small():
    """Each reshape after a transpose may double them: a product reads no view of such a chain."""
    y = leaf("x", "input", (5, 12), float32)
    for _ in range(16):
        y = ops.reshape(ops.transpose(ops.reshape(y, (-1, 3, 4)), (0, 2, 1)), (-1, 12))
    program = program_of(ops.matmul(y, leaf("w", "input", (12, 4), float32)))
    assert len(program.steps) < 8
