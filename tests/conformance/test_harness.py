"""Checks of many cases name the one that fails; wrong results fail, and sums in any order pass."""

from collections.abc import Callable

import numpy as np
import pytest
from harness import LACKS, Build, Leaves, check_cases, compare, run_program
from tolerances import expected_of

from lamina import ops
from lamina.base.shapes import Array, float64
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.graph import Graph, Tensor
from lamina.ops.differentiate import gradients


def squares(size: int, dtype: str = "float32") -> tuple[str, Build]:
    def build(leaves: Leaves) -> list[Tensor]:
        x = leaves.add(np.arange(size).astype(dtype))
        return [x * x, ops.sum(x)]

    return f"{size}-{dtype}", build


class Faulty(InterpreterEngine):
    """Refuses float64, and computes products of three elements wrongly, or of two and four."""

    alone, runs = True, 0


@pytest.fixture
def engine(monkeypatch):
    def run(program, engine, *rest):
        engine.runs += 1
        if any(buffer.dtype == float64 for buffer in program.buffers.values()):
            raise EngineError(LACKS[0])
        outputs, after = run_program(program, engine, *rest)
        sizes = {x.size for x in outputs.values()}
        wrong = 3 if engine.alone else 4 if 2 in sizes else None
        return {name: x + (x.size == wrong) for name, x in outputs.items()}, after

    monkeypatch.setattr("harness.run_program", run)
    return Faulty()


def test_right_cases_are_one_program(engine):
    check_cases([squares(2), squares(4), squares(5)], engine)
    assert engine.runs == 1


def test_a_failure_names_its_case(engine):
    with pytest.raises(AssertionError, match="output 3-float32/0: 3 of 3 elements") as caught:
        check_cases([squares(size) for size in (2, 4, 5, 6, 3, 7)], engine)
    assert "This case fails alone, too: --case 3-float32" in caught.value.__notes__


def test_cases_that_fail_together_are_named(engine):
    engine.alone = False
    with pytest.raises(AssertionError, match="output 4-float32/0") as caught:
        check_cases([squares(size) for size in (5, 6, 2, 4)], engine)
    expected = "Each half of these cases passes alone, together they fail: 2-float32, 4-float32"
    assert expected in caught.value.__notes__


def test_cases_that_the_device_cannot_run_are_left_out(engine):
    check_cases([squares(2), squares(4, "float64"), squares(5)], engine)
    with pytest.raises(EngineError, match=LACKS[0]):
        check_cases([squares(2, "float64"), squares(4, "float64")], engine)


def test_one_case_is_chosen_by_its_name(engine):
    check_cases([squares(2), squares(3)], engine, only="2-float32")
    with pytest.raises(AssertionError):
        check_cases([squares(2), squares(3)], engine, only="3-float32")
    with pytest.raises(pytest.skip.Exception, match="no case 4"):
        check_cases([squares(2), squares(3)], engine, only="4")


# Tolerances ---------------------------------------------------------------------------------------


def _softmax_gradient(x: Tensor) -> Tensor:
    return gradients(ops.sum(ops.softmax(x, 1) * ops.sin(x)), [x])[0]


def _convolution(x: Tensor) -> Tensor:
    image = ops.reshape(x, (2, 3, 9, 10))
    return ops.conv(image, ops.reshape(x[0, :27], (1, 3, 3, 3)), [1, 1], [(1, 1), (1, 1)], [1, 1])


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: x * 0.5 - 0.25 * x,
    "function": lambda x: ops.tanh(x * 0.5),
    "sum": lambda x: ops.sum(x, 1),
    "product": lambda x: x @ ops.transpose(x),
    "variance": lambda x: ops.variance(x, 1),
    "deviation": lambda x: x - ops.mean(x, 0, keepdims=True),
    "softmax gradient": _softmax_gradient,
    "convolution": _convolution,
    "running sum": lambda x: ops.cumsum(x, 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_results_do_not_pass_however_small_they_are(kind, size, dtype, leaves):
    values = np.random.default_rng(0).uniform(-1, 1, (6, 90)) * size
    graph = leaves.graph([KINDS[kind](leaves.add(values.astype(dtype)))])
    expected, allowed = expected_of(graph, leaves.feeds).outputs["y0"]
    assert np.max(allowed) < (1e-3 if dtype == "float32" else 1e-11) * np.max(np.abs(expected))
    compare("right", expected, expected, allowed)
    largest = np.unravel_index(np.argmax(np.abs(expected)), expected.shape)
    one_off = expected.copy()
    one_off[largest] *= 1.01
    nan = expected.copy()
    nan[largest] = np.nan
    for wrong in (np.zeros_like(expected), -expected, np.roll(expected, 1), one_off, nan):
        with pytest.raises(AssertionError, match="elements are wrong"):
            compare("wrong", wrong, expected, allowed)


def test_exactly_rounded_ops_have_no_tolerance(leaves):
    x = leaves.add(np.random.default_rng(0).uniform(-1, 1, (5, 7)).astype("float32"))
    exact = {
        "products": x * 3 + x,
        "roots": ops.sqrt(ops.abs(x)) / (x * x + 1),
        "movements": ops.max(x, 1) - ops.transpose(x)[::-1],
        "a sum of one": ops.sum(x[:, :1], 1),
        "zeros": ops.exp(x * 0) * 0,
        "equal sums": ops.sum(x, 1) - ops.sum(x, 1),
    }
    outputs = expected_of(leaves.graph([*exact.values()]), leaves.feeds).outputs
    for name, (_, allowed) in zip(exact, outputs.values(), strict=True):
        assert not allowed.any(), name


def _one_by_one(terms: Array) -> Array:
    return np.add.accumulate(terms, 0)[-1]


def _by_lanes(terms: Array) -> Array:
    return _one_by_one(_one_by_one(terms.reshape(-1, 16, terms.shape[1])))


@pytest.mark.parametrize("order", [_one_by_one, _by_lanes], ids=["one by one", "by lanes"])
@pytest.mark.parametrize("high", [1.0, -1.0], ids=["one sign", "both signs"])
@pytest.mark.parametrize("terms", [16, 160, 1600])
def test_sums_in_any_order_pass(terms, high, order, leaves):
    values = np.random.default_rng(terms).uniform(-1, high, (terms, 500)).astype("float32")
    total = ops.sum(leaves.add(np.abs(values) if high < 0 else values), 0)
    # The subtraction enlarges the relative error of the sum, as most of it cancels.
    middle = leaves.add(np.asarray(leaves.feeds["x0"].sum(0) * np.float32(0.99)))
    graph = leaves.graph([total, total - middle, ops.exp((total - middle) * 0.125)])
    expected = expected_of(graph, leaves.feeds).outputs
    sums = order(leaves.feeds["x0"])
    off = sums - leaves.feeds["x1"]
    for name, value in (("y0", sums), ("y1", off), ("y2", np.exp(off * np.float32(0.125)))):
        compare(name, value, *expected[name])


def test_errors_of_updates_add_up_over_runs(leaves):
    x = leaves.add(np.random.default_rng(0).uniform(-1, 1, (3, 9)).astype("float32"), "parameter")
    graph = Graph((), (("y0", ops.sum(x)),), ((x, x + ops.tanh(x)),))
    once, twice = (expected_of(graph, leaves.feeds, runs).leaves["x0"][1] for runs in (1, 2))
    assert once.all()
    assert np.mean(twice) > 1.5 * np.mean(once)
