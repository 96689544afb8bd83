"""Whole networks on the cuda engine, on the machine that runs PTX: the interpreter's results."""

from dataclasses import replace

import numpy as np
import pytest
from harness import run_program
from test_cuda_schedules import engine

import lamina as lm
from lamina import ops
from lamina.base.shapes import int64
from lamina.cli.demo import BATCH_SIZE, network_of_demo
from lamina.compiler.pipeline import compile_graph
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import Graph, leaf


def changes(model, initial):
    """What training has changed: all parameters in one vector."""
    parameters = model.parameters()
    return np.concatenate([(parameters[name] - old).ravel() for name, old in initial.items()])


def trained(network, engine, batch, **options):
    """The losses of two training steps on noise, and what they change."""
    generator = np.random.default_rng(1)
    model = lm.Model(network, engine=engine, seed=2, **options)
    initial = model.parameters()
    losses = []
    optimizer = lm.SGD(0.05, momentum=0.9)
    with model.training(lm.CrossEntropy(), optimizer, batch_size=batch) as training:
        for _ in range(2):
            x = generator.standard_normal((batch, 1, 28, 28), "float32")
            losses.append(float(training.step(x, generator.integers(0, 10, batch))))
    return np.array(losses), changes(model, initial)


def deviation(vector, expected):
    """The norm of the difference of two vectors, divided by the norm of the expected one."""
    return float(np.linalg.norm(vector - expected) / np.linalg.norm(expected))


@pytest.mark.sampled
@pytest.mark.cases(
    ("dtype", "precision", "tolerance"),
    ("float32", "float32", 1e-5),
    ("float32", "tf32", 1e-4),
    ("mixed-bfloat16", "float32", 1e-2),
    ("mixed-float16", "float32", 1e-3),
)
def test_training_steps_of_lenet_equal_the_interpreters(
    use, monkeypatch, dtype, precision, tolerance
):
    use()
    # The interpreter rounds operands as tensor cores do.
    rounding = replace(InterpreterEngine().device, has_tf32=True)
    monkeypatch.setattr(InterpreterEngine, "device", rounding)
    options = {"dtype": dtype, "precision": precision}
    rows = [trained(lm.networks.lenet(), name, 4, **options) for name in ("cuda", "interpreter")]
    for vector, expected in zip(*rows, strict=True):
        assert deviation(vector, expected) < tolerance


def test_the_first_batches_of_the_demo_train_as_on_the_interpreter(use):
    use()
    data = lm.data.digits().subset(0, 4 * BATCH_SIZE)
    rows = []
    for name in ("cuda", "interpreter"):
        model = lm.Model(network_of_demo(), engine=name, seed=0)
        initial = model.parameters()
        how = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(5e-3), "metrics": [lm.Accuracy()]}
        history = model.fit(data, epochs=1, batch_size=BATCH_SIZE, **how)
        rows.append((np.array(history["loss"]), changes(model, initial)))
    # Adam divides by the root of the gradient's square, so noise around zero is not small.
    for vector, expected in zip(*rows, strict=True):
        assert deviation(vector, expected) < 5e-3


def test_random_numbers_have_the_bits_of_the_interpreter():
    seed, step = (leaf(name, "state", (), int64) for name in ("seed", "step"))
    results = [
        (f"{kind.__name__} {stream}", kind((3, 37), seed, step, stream))
        for kind in (ops.uniform, ops.normal)
        for stream in (0, 5)
    ]
    cuda, double = engine()
    graph = Graph((seed, step), tuple(results))
    program = compile_graph(graph, batch=1, name="random", target=cuda.target)
    feeds = {"seed": np.asarray(2**40 + 3), "step": np.asarray(17)}
    numbers, _ = run_program(program, cuda, feeds)
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    assert not double.recover()
    for name, value in expected.items():
        np.testing.assert_array_equal(numbers[name].view("uint32"), value.view("uint32"), name)
