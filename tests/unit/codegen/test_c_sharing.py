"""Functions that differ only in numbers: which are shared, their text, their results."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gpu_cases import run_kernel
from random_arrays import normal

from lamina.codegen.c import Function, Module
from lamina.codegen.values import DOUBLE, FLOAT, I64, POINTER, Value, constant
from lamina.codegen.words import OPENCL, OPENCL_PROCESSOR

# The calls in a function: enough for it to be worth sharing.
LENGTH = 40


def scaled(code: Function, number: int) -> Value:
    """x[0] + x[number] + x[2 * number] + ..."""
    (x,) = code.parameters
    total = code.load(x, FLOAT)
    for _ in range(LENGTH):
        x = code.offset(x, number, "float")
        total = code.add(total, code.load(x, FLOAT))
    return total


def module_of(
    write: Callable[[Function, Any], Value], numbers: Sequence[Any], words: Any = OPENCL_PROCESSOR
) -> Module:
    """A module with a function for each number; the kernel stores the result of each."""
    module = Module(words, fused=True)
    for index, number in enumerate(numbers):
        code = module.function(f"sum{index}", [("x", POINTER)], result=FLOAT)
        code.finish(write(code, number))
    kernel = module.kernel("run", [("x", "float"), ("y", "float")], [])
    x, y = kernel.parameters
    for index in range(len(numbers)):
        result = kernel.call(f"sum{index}", FLOAT, x)
        kernel.store(result, kernel.offset(y, index, "float"))
    return module


def definitions(text: str) -> list[str]:
    return re.findall(r"(\w+)\([^()]*\) \{$", text, re.MULTILINE)


def test_functions_that_differ_in_numbers_call_one_function():
    text = module_of(scaled, (3, 5, 7)).text()
    assert definitions(text) == ["sum0_with_numbers", "sum0", "sum1", "sum2", "run"]
    assert "float sum0_with_numbers(__global uchar *x, ulong given0) {" in text
    assert "sum1(__global uchar *x) {\n    return sum0_with_numbers(x, 5ul);\n}" in text
    # Only the shared function must stay apart: others may be written in their callers.
    assert text.count("noinline)) float sum0_with_numbers(") == 2
    assert "noinline)) float sum1(" not in text


def test_shared_functions_compute_what_each_did(opencl_name):
    numbers = (3, 5, 7)
    x, y = normal(LENGTH * 7 + 1), np.zeros(3, "float32")
    run_kernel(opencl_name, module_of(scaled, numbers).text(), "run", x, y)
    expected = [x[: LENGTH * number + 1 : number].sum() for number in numbers]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_equal_numbers_are_one_parameter_and_few_may_differ():
    def moved(code, numbers):
        (x,) = code.parameters
        loaded = [code.load(code.offset(x, number, "float"), FLOAT) for number in numbers]
        total = loaded[0]
        for one in loaded[1:]:
            total = code.add(total, one)
        return total

    few = [tuple(range(start, start + 16)) * 2 for start in (20, 50)]
    many = [tuple(range(start, start + 17)) * 2 for start in (20, 50)]
    assert "given15" in module_of(moved, few).text()
    assert definitions(module_of(moved, many).text()) == ["sum0", "sum1", "run"]


def divided(code: Function, divisor: int) -> Value:
    (x,) = code.parameters
    quotient = code.binary("udiv", code.load(x, I64), constant(divisor, I64))
    return code.add(code.load(code.offset(x, quotient, "float"), FLOAT), scaled(code, 3))


def multiplied(code: Function, factor: float) -> Value:
    wide = code.convert("fpext", scaled(code, 3), "double")
    return code.convert("fptrunc", code.multiply(wide, constant(factor, DOUBLE)), "float")


def short(code: Function, number: int) -> Value:
    return code.load(code.offset(code.parameters[0], number, "float"), FLOAT)


@pytest.mark.cases(
    ("write", "numbers", "words"),
    (scaled, (3, 5), OPENCL),
    (divided, (3, 5), OPENCL_PROCESSOR),
    # They differ in their exponents.
    (multiplied, (2.0, 4.0), OPENCL_PROCESSOR),
    (short, (3, 5), OPENCL_PROCESSOR),
    ids=["for GPUs", "divisors", "floats", "short"],
)
def test_other_functions_are_not_shared(write, numbers, words):
    assert definitions(module_of(write, numbers, words).text()) == ["sum0", "sum1", "run"]
