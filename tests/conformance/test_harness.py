"""Checks of many cases in one program: a failure names its case, and devices may lack some."""

import numpy as np
import pytest
from harness import LACKS, Build, Leaves, check_cases, run_program

from lamina import ops
from lamina.base.shapes import float64
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import EngineError
from lamina.graph import Tensor


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
