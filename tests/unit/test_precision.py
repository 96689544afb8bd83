"""Mixed precision: what is rounded, what stays in float32, and loss scaling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import loss_scaling, ops
from lamina.compiler.expand import expand
from lamina.derive import evaluation_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.engine import Device
from lamina.errors import EngineError
from lamina.graph import Graph, Tensor, apply, bind_batch, evaluate, leaf
from lamina.ops.lowering_rules import Contracting, Repeating
from lamina.precision import PRODUCTS, Precision, precision_of, with_rounded_activations
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.shapes import BATCH, Array, as_dtype, bfloat16, float16, float32, uint8

LOSS, OPTIMIZER = lm.CrossEntropy(), lm.SGD(0.1)


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


def program_of(network: lm.Network, dtype: str, batch: int = 512) -> Program:
    return network.plan(batch, LOSS, OPTIMIZER, dtype=dtype).program


# What is rounded ----------------------------------------------------------------------------------


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("network", [classifier, images])
def test_temporaries_take_half_the_memory(network: Any, half: str) -> None:
    wide = program_of(network(), "float32").plan.arena_bytes
    assert program_of(network(), f"mixed-{half}").plan.arena_bytes < 0.6 * wide


def test_large_temporaries_are_stored_in_16_bits() -> None:
    program = program_of(images(), "mixed-bfloat16")
    large = [buffer for buffer in program.of_kind("temporary") if buffer.size > 512 * 8 * 16]
    assert large
    assert {buffer.dtype for buffer in large} <= {bfloat16, uint8}


def test_parameters_states_and_results_stay_in_float32() -> None:
    program = program_of(images(), "mixed-bfloat16")
    kept = [*program.of_kind("parameter"), *program.of_kind("state")]
    assert {one.dtype for one in kept if one.dtype.is_float} == {float32}
    assert {program.buffers[buffer].dtype for _, buffer in program.outputs} == {float32}


@pytest.mark.parametrize("network", [classifier, images])
def test_all_operands_of_products_are_rounded(network: Any) -> None:
    for step in program_of(network(), "mixed-bfloat16").steps:
        if isinstance(step, Contraction):
            assert step.dtype == float32
            for view in (step.left, step.right):
                assert view.operands[0].dtype == bfloat16  # pyright: ignore[reportAttributeAccessIssue]


def test_gradients_of_parameters_are_not_rounded() -> None:
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


def test_a_sum_of_products_is_rounded_and_a_sum_with_data_is_not() -> None:
    x = lm.Input(8)
    of_products = lm.Linear(8)(lm.ReLU()(lm.Linear(8)(x))) + lm.Linear(8)(x)
    with_data = x + lm.Linear(8)(x)
    for total, is_rounded in ((of_products, True), (with_data, False)):
        output = lm.Linear(3)(lm.LayerNorm()(total)) + lm.Linear(3)(lm.Tanh()(total))
        assert any("Add" in path for path in rounded_paths(output, x)) == is_rounded


def test_initial_parameters_keep_their_bits() -> None:
    one, other = (lm.Model(images(), dtype=dtype, seed=3) for dtype in ("float32", "mixed-float16"))
    for name, value in one.parameters().items():
        assert (other.parameters()[name] == value).all()


def test_dropout_masks_keep_their_bits() -> None:
    net = lm.Sequential(lm.Input(64), lm.Linear(64, bias=False), lm.Dropout(0.5), lm.Linear(64))
    patterns: list[Array] = []
    for half in (None, bfloat16):
        targets = [((BATCH, 64), float32)]
        made = evaluation_graph(net, lm.MSE(), targets, dtype=float32, half=half, training=True)
        masks = [node for node in made.graph.nodes() if node.op.name == "bernoulli"]
        bound = bind_batch(Graph((), (("mask", masks[0]),)), 16)
        found, _ = evaluate(bound, {"seed": np.asarray(7), "step": np.asarray(2)})
        patterns.append(found["mask"])
    assert 0 < patterns[0].mean() < 1
    assert (patterns[0] == patterns[1]).all()


def test_every_op_that_adds_up_products_is_in_the_table() -> None:
    """Otherwise the operands of its products would not be rounded."""
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
        expanded = expand(graph, DEFAULT_TARGET)
        if any(isinstance(node.op.lowering, Contracting) for node in expanded.nodes()):
            assert op.name in PRODUCTS
    assert set(PRODUCTS) <= {op.name for op in ops.ALL}


# The precision of a model -------------------------------------------------------------------------


def device(**has: bool) -> Device:
    return Device("somewhere", "a small processor", None, **has)


@pytest.mark.parametrize(
    ("has", "half"),
    [
        ({"has_bfloat16": True, "has_float16": True}, bfloat16),
        ({"has_bfloat16": True, "has_float16": False}, bfloat16),
        ({"has_bfloat16": False, "has_float16": True}, float16),
    ],
)
def test_mixed_takes_what_the_device_computes_with(has: dict[str, bool], half: Any) -> None:
    assert precision_of("mixed", lambda: device(**has)) == Precision(float32, half)


def test_mixed_without_instructions_is_refused_with_the_alternative() -> None:
    with pytest.raises(EngineError) as caught:
        precision_of("mixed", lambda: device(has_bfloat16=False, has_float16=False))
    assert str(caught.value) == (
        "in somewhere: this device does not compute with floats of 16 bits\n"
        "  expected  instructions for bfloat16 or float16\n"
        "  found     a small processor\n"
        "  dtype='mixed-bfloat16' stores them and computes in float32: it takes half the memory, "
        "but is no faster."
    )


def test_a_device_is_not_asked_for_a_named_precision() -> None:
    def fails() -> Device:
        raise AssertionError

    assert precision_of("mixed-float16", fails) == Precision(float32, float16)
    assert precision_of("float64", fails).half is None


@pytest.mark.parametrize("dtype", ["mixed-bfloat16", "mixed-float16", "bfloat16", "float16"])
def test_a_model_is_saved_with_its_precision(dtype: str, tmp_path: Path) -> None:
    model = lm.Model(classifier(), dtype=dtype)
    own = float32 if "mixed" in dtype else as_dtype(dtype)
    x = np.random.default_rng(0).standard_normal((3, 20), "float32").astype(own.numpy)
    model.save(tmp_path / "model.safetensors")
    again = lm.load(tmp_path / "model.safetensors")
    assert dtype in repr(again)
    assert model.predict(x).dtype == own.numpy
    assert (again.predict(x) == model.predict(x)).all()


def test_predictions_are_close_to_those_in_float32() -> None:
    x = np.random.default_rng(0).standard_normal((40, 4, 16, 16), "float32")
    exact = lm.Model(images(), seed=1).predict(x)
    for dtype, bound in (("mixed-bfloat16", 2**-6), ("mixed-float16", 2**-9)):
        found = lm.Model(images(), seed=1, dtype=dtype).predict(x)
        assert 0 < np.abs(found - exact).max() < bound * np.abs(exact).max()


# Loss scaling -------------------------------------------------------------------------------------


def overflowing() -> lm.Network:
    """Gradients of its first layers are large: scaled, they overflow in float16."""
    return lm.Sequential(
        *(lm.Input(20), lm.Linear(64), lm.ReLU(), lm.Linear(64), lm.ReLU(), lm.Linear(5)),
        lambda scores: scores * 300.0,
    )


def data() -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((256, 20), "float32")
    return x, (x @ generator.standard_normal((20, 5))).argmax(1)


def test_loss_scaling_survives_overflow() -> None:
    model = lm.Model(overflowing(), dtype="mixed-float16")
    history = model.fit(data(), epochs=4, batch_size=16, loss=LOSS, optimizer=lm.Adam(1e-3))
    assert history["skipped_steps"][0] > 0
    assert history["skipped_steps"][-1] == 0
    assert history["loss"][-1] < history["loss"][0] / 4


def test_bfloat16_needs_no_loss_scaling() -> None:
    model = lm.Model(overflowing(), dtype="mixed-bfloat16")
    with model.training(LOSS, OPTIMIZER, 16) as training:
        assert not training.scales_loss
        assert training.skipped_steps == 0
        assert not any("loss_scale" in name for name in training.state())
    history = model.fit(data(), epochs=4, batch_size=16, loss=LOSS, optimizer=lm.Adam(1e-3))
    assert "skipped_steps" not in history
    assert history["loss"][-1] < history["loss"][0] / 4


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_a_skipped_step_changes_nothing_but_the_scale(engine: str) -> None:
    model = lm.Model(overflowing(), engine=engine, dtype="mixed-float16")
    x, y = data()
    with model.training(LOSS, lm.Adam(1e-3), 16) as training:
        before, first = training.state(), model.parameters()
        assert float(before["loss_scale"]) == loss_scaling.FIRST_SCALE
        assert math.isfinite(float(training.step(x[:16], y[:16])))
        after = training.state()
        assert training.skipped_steps == 1
        assert training.steps_done == 1
        assert float(after["loss_scale"]) == loss_scaling.FIRST_SCALE / 2
        for name, value in model.parameters().items():
            assert (value == first[name]).all()
        for name in before:
            if not name.startswith("loss_scale") and name != "step":
                assert (before[name] == after[name]).all(), name


def test_the_scale_grows_after_many_steps_without_overflow() -> None:
    model = lm.Model(classifier(), dtype="mixed-float16")
    x, y = data()
    with model.training(LOSS, OPTIMIZER, 16) as training:
        state = dict(training.state())
        state["loss_scale"] = np.asarray(1024.0, "float32")
        state["loss_scale/steps"] = np.asarray(loss_scaling.GROWTH_STEPS - 2)
        training.restore(state)
        scales: list[float] = []
        for _ in range(3):
            training.step(x[:16], y[:16])
            scales.append(float(training.state()["loss_scale"]))
    assert scales == [1024.0, 2048.0, 2048.0]


def test_scaling_rounds_no_gradient() -> None:
    """Powers of two: where nothing is rounded to zero, float16 gives the same bits at any scale."""
    changes: list[Array] = []
    for scale in (1.0, 256.0):
        model = lm.Model(classifier(), engine="interpreter", dtype="mixed-float16")
        x, y = data()
        with model.training(LOSS, OPTIMIZER, 256) as training:
            training.restore({**training.state(), "loss_scale": np.asarray(scale, "float32")})
            training.step(x * 30, y)
        changes.append(model.parameters()["5.bias"])
    assert np.allclose(*changes, rtol=1e-5)


def test_checkpoints_keep_the_scale(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 16, "loss": LOSS, "optimizer": lm.Adam(1e-3)}
    whole = lm.Model(overflowing(), dtype="mixed-float16")
    whole.fit(data(), epochs=3, **options)
    begun = lm.Model(overflowing(), dtype="mixed-float16")
    begun.fit(data(), epochs=1, checkpoint=tmp_path / "c.safetensors", **options)
    resumed = lm.Model(overflowing(), dtype="mixed-float16")
    file = tmp_path / "c.safetensors"
    history = resumed.fit(data(), epochs=3, checkpoint=file, resume=True, **options)
    assert len(history["skipped_steps"]) == 3
    for name, value in whole.parameters().items():
        assert (resumed.parameters()[name] == value).all()
