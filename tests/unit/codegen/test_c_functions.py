"""Functions in C: which are shared, and vectors of any number of lanes as several values."""

import re

import numpy as np
import pytest
from gpu_cases import run_kernel
from random_arrays import normal

from lamina.codegen.c import Module
from lamina.codegen.pieces import PieceModule, pieces_of
from lamina.codegen.values import DOUBLE, FLOAT, I64, POINTER, Type, constant, constants, undefined
from lamina.codegen.words import OPENCL, OPENCL_PROCESSOR

# The calls in a function: enough for it to be worth sharing.
LENGTH = 40


def scaled(code, number):
    """x[0] + x[number] + x[2 * number] + ..."""
    (x,) = code.parameters
    total = code.load(x, FLOAT)
    for _ in range(LENGTH):
        x = code.offset(x, number, "float")
        total = code.add(total, code.load(x, FLOAT))
    return total


def module_of(write, numbers, words=OPENCL_PROCESSOR):
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


def definitions(text):
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
        for term in loaded[1:]:
            total = code.add(total, term)
        return total

    few = [tuple(range(start, start + 16)) * 2 for start in (20, 50)]
    many = [tuple(range(start, start + 17)) * 2 for start in (20, 50)]
    assert "given15" in module_of(moved, few).text()
    assert definitions(module_of(moved, many).text()) == ["sum0", "sum1", "run"]


def divided(code, divisor):
    (x,) = code.parameters
    quotient = code.binary("udiv", code.load(x, I64), constant(divisor, I64))
    return code.add(code.load(code.offset(x, quotient, "float"), FLOAT), scaled(code, 3))


def multiplied(code, factor):
    wide = code.convert("fpext", scaled(code, 3), "double")
    return code.convert("fptrunc", code.multiply(wide, constant(factor, DOUBLE)), "float")


def short(code, number):
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


LANES = (1, 2, 3, 5, 8, 10, 16, 21, 32)


def test_a_type_is_divided_into_types_of_the_language():
    # One lane is a scalar.
    for lanes, expected in ((0, [0]), (16, [16]), (10, [8, 2]), (7, [4, 2, 0]), (64, [16] * 4)):
        assert [one.lanes for one in pieces_of(Type("i1", lanes))] == expected


def result_of(name, write, x, result):
    """Runs `write(code, vector)` on a device, in a function that another one calls."""
    inner = Module(OPENCL_PROCESSOR, fused=False)
    module = PieceModule(inner)
    type = Type("float", len(x))
    made = module.function("made", [("vector", type)], result=Type("float", len(result)))
    made.finish(write(made, made.parameters[0]))
    code = module.function("work", [("source", POINTER), ("target", POINTER)])
    source, target = code.parameters
    vector = code.load(source, type)
    code.store(code.call("made", Type("float", len(result)), vector), target)
    kernel = inner.kernel("run", [("x", "float"), ("y", "float")], [])
    kernel.call_void("work", *kernel.parameters)
    run_kernel(name, inner.text(), "run", x, result)
    return result


@pytest.mark.parametrize("lanes", LANES)
def test_instructions_work_on_all_lanes(opencl_name, lanes):
    x = np.arange(lanes, dtype="float32") - 3

    def write(code, vector):
        doubled = code.add(vector, vector)
        below = code.compare("olt", doubled, constant(0, doubled.type))
        loop = code.begin_loop(0, 3, carried=[doubled])
        (summed,) = code.end_loop(loop, [code.add(loop.carried[0], vector)])
        return code.select(below, summed, code.splat(constant(7, Type("float")), lanes))

    result = result_of(opencl_name, write, x, np.zeros(lanes, "float32"))
    np.testing.assert_array_equal(result, np.where(x < 0, 5 * x, np.float32(7)))


@pytest.mark.parametrize("lanes", LANES[1:])
def test_lanes_move_between_pieces(opencl_name, lanes):
    x = np.arange(lanes, dtype="float32")

    def write(code, vector):
        backwards = code.shuffle(vector, None, range(lanes - 1, -1, -1))
        both = code.shuffle(backwards, vector, range(0, 2 * lanes, 2))
        made = undefined(both.type)
        for lane in range(lanes):
            made = code.insert(made, code.extract(both, (lane + 1) % lanes), lane)
        return made

    result = result_of(opencl_name, write, x, np.zeros(lanes, "float32"))
    both = np.concatenate([x[::-1], x])[::2]
    np.testing.assert_array_equal(result, np.roll(both, -1))


@pytest.mark.parametrize("lanes", LANES[1:])
def test_conditions_become_bits_and_bits_become_conditions(opencl_name, lanes):
    is_set = np.arange(lanes) % 3 == 1

    def write(code, vector):
        bits = code.bits(code.compare("ogt", vector, constant(0, vector.type)), "i32")
        numbers = constants([float(lane) for lane in range(lanes)], "float")
        return code.select(code.lanes_of(bits << 1, lanes), numbers, constant(-1, vector.type))

    result = result_of(opencl_name, write, is_set.astype("float32"), np.zeros(lanes, "float32"))
    shifted = np.append(False, is_set[:-1])
    np.testing.assert_array_equal(result, np.where(shifted, np.arange(lanes), -1))


def test_functions_are_written_once_and_constant_arrays_too():
    inner = Module(OPENCL_PROCESSOR, fused=True)
    module = PieceModule(inner)
    code = module.function("f", [("n", Type("i64"))], result=Type("i64"))
    table = module.table_once("numbers", [3, 1])
    assert module.table_once("numbers", []) == table
    code.finish(code.picked(table, code.parameters[0]))
    assert module.has("f")
    assert inner.text().count("numbers[2] = {3ul, 1ul};") == 1
