"""Vectors of any number of lanes in OpenCL C: as several values of the sizes that it has."""

from collections.abc import Callable

import numpy as np
import pytest
from gpu_cases import run_kernel

from lamina.base.shapes import Array
from lamina.codegen.c import Module
from lamina.codegen.pieces import PieceFunction, PieceModule, pieces_of
from lamina.codegen.values import POINTER, Type, Value, constant, constants, undefined
from lamina.codegen.words import OPENCL_PROCESSOR

LANES = (1, 2, 3, 5, 8, 10, 16, 21, 32)


def test_a_type_is_divided_into_types_of_the_language():
    # One lane is a scalar.
    for lanes, expected in ((0, [0]), (16, [16]), (10, [8, 2]), (7, [4, 2, 0]), (64, [16] * 4)):
        assert [one.lanes for one in pieces_of(Type("i1", lanes))] == expected


def result_of(
    name: str, write: Callable[[PieceFunction, Value], Value], x: Array, result: Array
) -> Array:
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

    found = result_of(opencl_name, write, x, np.zeros(lanes, "float32"))
    np.testing.assert_array_equal(found, np.where(x < 0, 5 * x, np.float32(7)))


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

    found = result_of(opencl_name, write, x, np.zeros(lanes, "float32"))
    both = np.concatenate([x[::-1], x])[::2]
    np.testing.assert_array_equal(found, np.roll(both, -1))


@pytest.mark.parametrize("lanes", LANES[1:])
def test_conditions_become_bits_and_bits_become_conditions(opencl_name, lanes):
    is_set = np.arange(lanes) % 3 == 1

    def write(code, vector):
        bits = code.bits(code.compare("ogt", vector, constant(0, vector.type)), "i32")
        numbers = constants([float(lane) for lane in range(lanes)], "float")
        return code.select(code.lanes_of(bits << 1, lanes), numbers, constant(-1, vector.type))

    found = result_of(opencl_name, write, is_set.astype("float32"), np.zeros(lanes, "float32"))
    shifted = np.append(False, is_set[:-1])
    np.testing.assert_array_equal(found, np.where(shifted, np.arange(lanes), -1))


def test_functions_are_written_once_and_constant_arrays_too():
    inner = Module(OPENCL_PROCESSOR, fused=True)
    module = PieceModule(inner)
    code = module.function("f", [("n", Type("i64"))], result=Type("i64"))
    table = module.table_once("numbers", [3, 1])
    assert module.table_once("numbers", []) == table
    code.finish(code.picked(table, code.parameters[0]))
    assert module.has("f")
    assert inner.text().count("numbers[2] = {3ul, 1ul};") == 1
