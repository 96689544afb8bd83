"""Mixed precision: what is rounded, and what stays in float32."""

import pickle

import numpy as np
import pytest
from error_texts import error_text
from training_cases import same

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH, Array, as_dtype, bfloat16, bool_, float16, float32, uint8
from lamina.compiler.expand import expand
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.engine import Device
from lamina.errors import EngineError
from lamina.graph import LEAF, Graph, Tensor, apply, bind_batch, evaluate, leaf
from lamina.learning.protocols import TrainingOptions
from lamina.ops.lowering_rules import Contracting, Movement, Repeating
from lamina.program.program import Program
from lamina.program.scalar import Load, postorder
from lamina.program.steps import Contraction
from lamina.step.derive import BatchSpecs, default_targets, evaluation_graph, training_graph
from lamina.step.precision import TF32_PRODUCTS, Precision, Rounding, precision_of, rounding_of
from lamina.step.rounding import with_rounded_activations, with_rounded_products

LOSS, OPTIMIZER = lm.CrossEntropy(), lm.SGD(0.1)
ROUNDING = Rounding(bfloat16, leaves=True)


def classifier() -> lm.Network:
    first, second = (lm.Linear(64), lm.ReLU()), (lm.Linear(32), lm.GELU())
    return lm.Sequential(lm.Input(20), *first, *second, lm.Linear(5))


def images() -> lm.Network:
    return lm.Sequential(
        lm.Input(4, 16, 16),
        *(lm.Conv2d(8, 3, padding="same", bias=False), lm.BatchNorm(), lm.ReLU()),
        *(lm.Conv2d(8, 3, padding="same"), lm.BatchNorm(), lm.ReLU(), lm.MaxPool2d(2)),
        *(lm.Flatten(), lm.Linear(5)),
    )


def program_of(
    network: lm.Network, dtype: str, batch: int = 512, engine: str = "interpreter"
) -> Program:
    return network.plan(batch, LOSS, OPTIMIZER, dtype=dtype, engine=engine).program


# What is rounded ----------------------------------------------------------------------------------


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("network", [classifier, images])
def test_temporaries_take_half_the_memory(network, half):
    wide = program_of(network(), "float32").plan.arena_bytes
    program = program_of(network(), f"mixed-{half}")
    assert program.plan.arena_bytes < 0.6 * wide
    large = {one.dtype for one in program.of_kind("temporary") if one.size > 512 * 8 * 16}
    assert large <= {as_dtype(half), uint8}


def test_the_gradient_of_hardtanh_needs_no_masks():
    bounded = [
        layer
        for _ in range(2)
        for layer in (lm.Conv2d(16, 3, bias=False), lm.BatchNorm(), lm.Hardtanh(low=0.0, high=6.0))
    ]
    net = lm.Sequential(lm.Input(8, 16, 16), *bounded, lm.Flatten(), lm.Linear(5))
    dtypes = {buffer.dtype for buffer in program_of(net, "mixed-bfloat16", 8).of_kind("temporary")}
    assert bool_ not in dtypes


# Rounded to bfloat16, the lower bound is larger than in float32.
@pytest.mark.parametrize(("low", "high"), [(0.1, 0.3), (0.25, 0.5)])
def test_elements_at_the_bounds_of_hardtanh_have_no_gradient(low, high):
    x = lm.Input(8)
    net = lm.Network(x, lm.Linear(8)(lm.Hardtanh(low=low, high=high)(lm.Linear(8, bias=False)(x))))
    model = lm.Model(net, engine="interpreter", dtype="mixed-bfloat16")
    # The first layer is the identity, so its gradient shows which elements pass theirs.
    first, *_ = model.parameters()
    model.set_parameters({**model.parameters(), first: np.eye(8, dtype="float32")})
    inputs = np.array([[-1, 0.05, 0.08, 0.26, 0.29, 0.6, 1, 2]], "float32")
    with model.training(lm.MSE(), lm.SGD(1.0), 1) as training:
        training.step(inputs, np.ones((1, 8), "float32"))
    changed = (model.parameters()[first] != np.eye(8)).any(axis=1)
    assert changed.tolist() == [False] * 3 + [True] * 2 + [False] * 3


@pytest.mark.parametrize("network", [classifier, images])
def test_all_operands_of_products_are_rounded_and_kept_values_are_not(network):
    program = program_of(network(), "mixed-bfloat16")
    for step in program.steps:
        if isinstance(step, Contraction):
            assert step.dtype == float32
            for view in (step.left, step.right):
                assert view.operands[0].dtype == bfloat16  # pyright: ignore[reportAttributeAccessIssue]
    kept = [*program.of_kind("parameter"), *program.of_kind("state")]
    kept += [program.buffers[buffer] for _, buffer in program.outputs]
    assert {buffer.dtype for buffer in kept if buffer.dtype.is_float} == {float32}


@pytest.mark.parametrize("network", [classifier, images])
def test_parameters_and_inputs_are_not_rounded_on_a_device_that_multiplies_float32(
    network, monkeypatch
):
    monkeypatch.setattr(CpuEngine, "device", device(has_bfloat16=False))
    program = program_of(network(), "mixed-bfloat16", engine="cpu")
    multiplied = {
        load.buffer: load.dtype
        for step in program.steps
        if isinstance(step, Contraction)
        for view in (step.left, step.right)
        for load in postorder(view)
        if isinstance(load, Load)
    }
    kinds = {name: program.buffers[name].kind for name in multiplied}
    assert {"parameter", "input", "temporary"} <= {*kinds.values()}
    for name, dtype in multiplied.items():
        assert dtype == (bfloat16 if kinds[name] == "temporary" else float32)


def test_a_parameter_is_rounded_if_it_is_stored_with_computed_elements():
    x = leaf("x", "input", (8, 3), float32)
    weight = leaf("w", "parameter", (5, 8), float32)
    joined = ops.concat([ops.tanh(x), leaf("y", "input", (8, 4), float32)], 1)
    graph = Graph((x,), (("z", ops.matmul(weight, joined)),))
    rounded = with_rounded_products(graph, bfloat16, leaves=False)
    operands = [node.operands[0] for node in rounded.nodes() if node.op.name == "rounded"]
    assert sorted(node.attributes.get("name", node.op.name) for node in operands) == ["tanh", "y"]


@pytest.mark.parametrize("is_computed", [False, True])
def test_computed_constants_of_recurrences_are_rounded_on_all_devices(is_computed):
    weight = leaf("w", "parameter", (4, 4), float32)
    first, elements = (leaf(name, "input", (3, 4), float32) for name in ("first", "elements"))

    def step(states, _, constants):
        return [ops.tanh(ops.matmul(states[0], constants[0]))], []

    constant = ops.tanh(weight) if is_computed else weight
    (last,), _ = ops.recurrence(step, [first], [elements], [constant])
    graph = with_rounded_products(Graph((), (("y", last),)), bfloat16, leaves=False)
    (loop,) = [node for node in graph.nodes() if isinstance(node.op.lowering, Repeating)]
    state, _, constant = loop.attributes["body"].inputs
    assert state.dtype == bfloat16
    nodes = loop.attributes["body"].nodes()
    rounded = [x.operands[0] for x in nodes if x.op.name == "rounded"]
    # A float of 16 bits needs no rounding in the iterations.
    assert (constant.dtype == bfloat16 or constant in rounded) == is_computed


@pytest.mark.parametrize("leaves", [False, True])
def test_the_multiplied_states_of_recurrences_are_rounded_on_all_devices(leaves):
    net = lm.Sequential(lm.Input(6, 8), lm.LSTM(4, returns="last"), lm.Linear(5))
    targets = default_targets(net, LOSS, float32)
    specs = BatchSpecs(net, float32, Rounding(bfloat16, leaves=leaves), targets=targets)
    nodes = evaluation_graph(specs, LOSS).graph.nodes()
    loop = next(node for node in nodes if isinstance(node.op.lowering, Repeating))
    body, count = loop.attributes["body"], loop.attributes["states"]
    assert sorted(state.dtype.name for state in body.inputs[:count]) == ["bfloat16", "float32"]
    if not leaves:
        assert [tensor.dtype for tensor in body.inputs].count(bfloat16) == 2  # with the sequence
        rounded = [x for x in body.nodes() if x.op.name == "rounded"]
        assert not any(x.operands[0].op is LEAF for x in rounded)


def test_gradients_of_parameters_are_not_rounded():
    x = np.random.default_rng(0).standard_normal((1, 20), "float32")
    changes: list[Array] = []
    for dtype in ("float32", "mixed-bfloat16"):
        model = lm.Model(classifier(), engine="interpreter", dtype=dtype)
        before = model.parameters()["5.weight"]
        with model.training(LOSS, lm.SGD(1.0), 1) as training:
            training.step(x, [1])
        changes.append(model.parameters()["5.weight"] - before)
    # With one example it is a product of two rounded numbers, which needs 16 bits of precision.
    assert np.allclose(*changes, rtol=2**-5, atol=1e-3)
    rounded = changes[1].astype(bfloat16.numpy).astype("float32")
    assert (rounded != changes[1]).any()


def rounded_paths(output: Tensor, x: Tensor) -> set[str]:
    """The paths of the tensors that the forward pass rounds as activations."""
    trace = lm.Network(x, output).trace(dtype=float32, training=True)
    rounded = with_rounded_activations(trace, bfloat16)
    graph = Graph(trace.inputs, (("y", rounded.outputs[0]),))
    return {node.origin.path for node in graph.nodes() if node.op.name == "rounded"}


def of_sum(total: Tensor) -> Tensor:
    return lm.Linear(3)(lm.LayerNorm()(total)) + lm.Linear(3)(lm.Tanh()(total))


def centred(hidden: Tensor) -> Tensor:
    return lm.Linear(3)(hidden - ops.mean(hidden, 0, keepdims=True))


def product(x: Tensor) -> Tensor:
    return lm.Linear(8)(x)


@pytest.mark.cases(
    ("output", "rounded", "exact"),
    (lambda x: of_sum(product(lm.ReLU()(product(x))) + product(x)), "add", "?"),
    # A sum with data.
    (lambda x: of_sum(x + product(x)), "", "add"),
    # A product that one elementwise function uses.
    (lambda x: lm.Linear(3)(lm.ReLU()(product(x))), "relu", "linear"),
    # Results with a wide range.
    (lambda x: lm.Linear(3)(ops.softmax(product(x), 1)), "", "softmax"),
    (lambda x: lm.Linear(3)(ops.exp(product(x))), "", "exp"),
    (lambda x: lm.Linear(3)(ops.logsumexp(product(x), 1, keepdims=True)), "", "logsumexp"),
    # Means over the batch.
    (lambda x: centred(lm.Tanh()(product(x))), "tanh", "mean"),
)
def test_results_that_many_read_are_rounded_if_they_are_of_products(output, rounded, exact):
    x = lm.Input(8)
    paths = [path.lower() for path in rounded_paths(output(x), x)]
    assert not rounded or any(rounded in path for path in paths)
    assert not any(exact in path for path in paths)


@pytest.mark.cases(
    ("moved", "use"),
    (False, lambda code: ops.softmax(code, 1)),
    *((moved, lambda code: lm.Linear(4)(code)) for moved in (False, True)),
)
def test_a_result_of_the_network_is_not_rounded_if_others_use_it_too(moved, use):
    x = lm.Input(8)
    code = lm.Linear(16)(x)
    code = lm.Flatten()(code) if moved else code
    net = lm.Network(inputs=[x], outputs=[code, use(code)])
    model = lm.Model(net, engine="interpreter", dtype="mixed-bfloat16")
    codes, _ = model.predict(np.random.default_rng(0).random((3, 8), "float32"))
    assert (codes.view("uint32") & 0xFFFF).any()


def test_attention_multiplies_rounded_operands_forwards_and_backwards():
    net = lm.Sequential(lm.Input(16, 8), lm.MultiHeadAttention(2), lm.Flatten(), lm.Linear(5))
    options = TrainingOptions(LOSS, OPTIMIZER)
    targets = default_targets(net, LOSS, float32)
    made = training_graph(BatchSpecs(net, float32, ROUNDING, targets=targets), options)
    attentions: dict[str, Tensor] = {}
    for node in made.graph.nodes():
        if node.op.name in ("attention", "attention_gradient"):
            attentions[node.op.name] = node
            assert node.attributes["products"] == bfloat16
            for operand in node.operands[: node.op.multiplies]:
                assert has_rounded_elements(operand), operand
    assert len(attentions) == 2
    assert attentions["attention_gradient"].op.multiplies == 5


def has_rounded_elements(tensor: Tensor) -> bool:
    if isinstance(tensor.op.lowering, Movement):
        return all(map(has_rounded_elements, tensor.operands))
    return tensor.op.name == "rounded"


def test_initial_parameters_keep_their_bits():
    one, other = (lm.Model(images(), dtype=dtype, seed=3) for dtype in ("float32", "mixed-float16"))
    assert same(one.parameters(), other.parameters())


def test_dropout_masks_keep_their_bits():
    net = lm.Sequential(lm.Input(64), lm.Linear(64, bias=False), lm.Dropout(0.5), lm.Linear(64))
    patterns: list[Array] = []
    for rounding in (None, ROUNDING):
        batch = BatchSpecs(net, float32, rounding, targets=[((BATCH, 64), float32)])
        made = evaluation_graph(batch, lm.MSE(), training=True)
        masks = [node for node in made.graph.nodes() if node.op.name == "bernoulli"]
        bound = bind_batch(Graph((), (("mask", masks[0]),)), 16)
        values, _ = evaluate(bound, {"seed": np.asarray(7), "step": np.asarray(2)})
        patterns.append(values["mask"])
    assert 0 < patterns[0].mean() < 1
    assert (patterns[0] == patterns[1]).all()


def test_the_record_of_an_op_says_whether_it_adds_up_products():
    """Otherwise the operands of its products would not be rounded; of wide ops they are not."""
    for op in ops.ALL:
        sample = op.samples[0] if op.samples else None
        if sample is None or isinstance(op.lowering, Repeating):
            continue
        names = sample.dtypes or ("float",) * len(sample.shapes)
        dtypes = [float32 if name == "float" else as_dtype(name) for name in names]
        operands = [
            leaf(f"x{n}", "input", shape, dtype)
            for n, (shape, dtype) in enumerate(zip(sample.shapes, dtypes, strict=True))
        ]
        graph = Graph(tuple(operands), (("y", apply(op, *operands, **sample.attributes)),))
        expanded = expand(graph)
        if any(isinstance(node.op.lowering, Contracting) for node in expanded.nodes()):
            assert op.multiplies or op.keeps_float32


# The precision of a model -------------------------------------------------------------------------


def device(**has: bool) -> Device:
    return Device("somewhere", "a small processor", None, **has)


def test_mixed_takes_what_the_device_computes_with():
    for bfloat, other, half in (
        (True, True, bfloat16),
        (True, False, bfloat16),
        (False, True, float16),
    ):
        precision = precision_of(
            "mixed", lambda b=bfloat, f=other: device(has_bfloat16=b, has_float16=f)
        )
        assert precision == Precision(float32, half)


def test_mixed_without_instructions_is_refused_with_the_alternative():
    neither = device(has_bfloat16=False, has_float16=False)
    assert error_text(EngineError, precision_of, "mixed", lambda: neither) == (
        "in somewhere: this device does not compute with floats of 16 bits\n"
        "  expected  instructions for bfloat16 or float16\n"
        "  found     a small processor\n"
        "  dtype='mixed-bfloat16' stores activations in 16 bits and computes in float32: that "
        "takes less memory, and is faster for few networks only."
    )


@pytest.mark.parametrize("half", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("multiplied", [None, bfloat16, float16], ids=str)
def test_parameters_are_rounded_if_the_device_multiplies_such_floats(half, multiplied):
    one = device(has_bfloat16=multiplied == bfloat16, has_float16=multiplied == float16)
    found = rounding_of(Precision(float32, half), lambda: one)
    assert found == Rounding(half, leaves=half == multiplied)


def test_a_device_is_not_asked_in_vain():
    def fails():
        raise AssertionError

    assert precision_of("mixed-float16", fails) == Precision(float32, float16)
    assert precision_of("bfloat16", fails) == Precision(bfloat16)
    assert rounding_of(Precision(bfloat16), fails) is None


@pytest.mark.cases(
    ("how", "roundings"),
    ({"precision": "tf32"}, [None, TF32_PRODUCTS]),
    ({"dtype": "mixed-bfloat16"}, [Rounding(bfloat16, leaves=has) for has in (False, True)]),
)
def test_a_pickled_model_rounds_what_the_new_device_rounds(how, roundings, monkeypatch):
    packed = pickle.dumps(lm.Model(classifier(), **how))
    for has, rounding in enumerate(roundings):
        one = device(has_bfloat16=bool(has), has_tf32=bool(has))
        monkeypatch.setattr(CpuEngine, "device", one)
        assert pickle.loads(packed)._parameters.rounding == rounding


@pytest.mark.parametrize("dtype", ["mixed-bfloat16", "mixed-float16", "bfloat16", "float16"])
def test_a_model_is_saved_with_its_precision(dtype, tmp_path):
    model = lm.Model(classifier(), dtype=dtype)
    parameter_type = float32 if "mixed" in dtype else as_dtype(dtype)
    x = np.random.default_rng(0).standard_normal((3, 20), "float32").astype(parameter_type.numpy)
    model.save(tmp_path / "model.safetensors")
    again = lm.load(tmp_path / "model.safetensors")
    assert dtype in repr(again)
    assert model.predict(x).dtype == parameter_type.numpy
    assert (again.predict(x) == model.predict(x)).all()


@pytest.mark.sampled
def test_predictions_are_close_to_those_in_float32():
    x = np.random.default_rng(0).standard_normal((40, 4, 16, 16), "float32")
    exact = lm.Model(images(), seed=1).predict(x)
    for dtype, bound in (("mixed-bfloat16", 2**-6), ("mixed-float16", 2**-9)):
        found = lm.Model(images(), seed=1, dtype=dtype).predict(x)
        assert 0 < np.abs(found - exact).max() < bound * np.abs(exact).max()
