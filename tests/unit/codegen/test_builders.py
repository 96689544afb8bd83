"""Equal instructions give equal results in all languages, and these equal NumPy's.

`builder_cases.py` has the instructions and their expected results. They run as machine code, in
OpenCL C if there is a device, and in C99, a language without vectors, if there is a compiler.
"""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builder_cases import INPUTS, cases_of, results, room_for, structures_of, write, write_kernel
from c99 import C99, library_of
from error_texts import error_text
from gpu_cases import run_kernel

from lamina.base.shapes import float32, int64
from lamina.codegen import c, llvm
from lamina.codegen.c import Module
from lamina.codegen.points import Points
from lamina.codegen.values import FLOAT, I32, I64, POINTER, Type, constant, undefined
from lamina.codegen.words import OPENCL
from lamina.engines.cpu.compilation import compiled
from lamina.engines.cpu.llvm import listing, load
from lamina.engines.cpu.processor import host
from lamina.errors import InternalError
from lamina.program.index import Index, gathered_index
from lamina.program.scalar import Literal, Load
from lamina.program.steps import Store

SCALARS = cases_of(0)
CASES = [*SCALARS, *cases_of(4), *cases_of(16)]


@pytest.fixture(scope="module")
def by_llvm():
    processor = host()
    module = llvm.Module(fused=processor.fused)
    code = module.function("cases", (("table", POINTER),), internal=False)
    (table,) = code.parameters
    pointers = [
        code.load(code.offset(table, number, "ptr"), POINTER) for number in range(len(INPUTS) + 1)
    ]
    write(code, dict(zip(INPUTS, pointers, strict=False)), pointers[-1], CASES)
    library = load(compiled(module.text(), processor), ("cases",))
    raw = room_for(CASES)
    addresses = np.array([x.ctypes.data for x in (*INPUTS.values(), raw)], np.uint64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.addresses["cases"])(addresses.ctypes.data)
    return results(raw, CASES)


@pytest.fixture(scope="module")
def by_opencl(opencl_name):
    """The results of a kernel on the first device of OpenCL."""
    module, raw = c.Module(OPENCL, fused=True), room_for(CASES)
    write_kernel(module, CASES)
    run_kernel(opencl_name, module.text(), "cases", *INPUTS.values(), raw)
    return results(raw, CASES)


@pytest.fixture(scope="module")
def by_c99(tmp_path_factory):
    """The results of a function in C99, which has no vectors."""
    module = c.Module(C99, fused=True)
    write_kernel(module, SCALARS)
    library = library_of(module.text(), Path(tmp_path_factory.mktemp("c99")))
    raw = room_for(SCALARS)
    library["cases"](*(ctypes.c_void_p(x.ctypes.data) for x in (*INPUTS.values(), raw)))
    return results(raw, SCALARS)


@pytest.mark.parametrize(
    ("language", "cases"),
    [("llvm", CASES), pytest.param("opencl", CASES, marks=pytest.mark.sampled), ("c99", SCALARS)],
)
def test_instructions_equal_numpy_and_structures_give_the_expected_results(
    language, cases, request
):
    found = request.getfixturevalue(f"by_{language}")
    for case in cases:
        np.testing.assert_array_equal(found[case.name], case.expected, case.name)
    np.testing.assert_array_equal(found["structures"], structures_of(cases))


def test_lanes_that_a_language_lacks_are_refused():
    for words, lanes, sizes in ((C99, 4, "none"), (OPENCL, 5, "2, 3, 4, 8, 16")):
        code = c.Module(words, fused=True).kernel("copy", [("x", "float")], [])
        wide = Type("float", lanes)
        assert error_text(InternalError, code.load, code.parameters[0], wide).startswith(
            f"{words.language} has no vectors of {lanes} lanes\n  supported lanes  {sizes}\n  Write"
        )


def test_masks_of_64_bits_are_not_converted_from_32_bits():
    code = c.Module(OPENCL, fused=True).kernel("larger", [("x", "double")], [])
    (x,) = code.parameters
    left, right = (code.load(code.offset(x, 4 * n, "double"), Type("double", 4)) for n in (0, 1))
    code.store(code.select(code.compare("ogt", left, right), left, right), x)
    (line,) = (line for line in code.written().body.splitlines() if "select(" in line)
    assert "^" in line
    assert "convert_long4(" not in line


def test_a_vector_is_refused_before_all_of_its_lanes_are_set():
    code = c.Module(OPENCL, fused=True).kernel("copy", [("x", "float")], [])
    vector = code.insert(undefined(Type("float", 2)), constant(1, FLOAT), 0)
    with pytest.raises(InternalError, match="in copy: a vector is used before all of its lanes"):
        code.store(vector, code.parameters[0])
    code.store(code.insert(vector, constant(2, FLOAT), 1), code.parameters[0])


@pytest.mark.parametrize(("type", "expected"), [(FLOAT, ["#pragma in_order"]), (I32, [])])
def test_loops_that_carry_floats_keep_their_order(type, expected):
    words = replace(OPENCL, in_order=("#pragma in_order",))
    code = c.Module(words, fused=True).kernel("total", [("x", type.element)], [])
    loop = code.begin_loop(0, 10, 1, (constant(0, type),))
    element = code.load(code.offset(code.parameters[0], loop.index, type.element), type)
    code.end_loop(loop, (code.add(loop.carried[0], element),))
    lines = [line.strip() for line in code.written().body.splitlines()]
    (start,) = [number for number, line in enumerate(lines) if line.startswith("for (")]
    assert [line for line in lines if line.startswith("#")] == expected
    assert lines[start - len(expected) : start] == expected


def test_a_vector_of_several_registers_is_carried_whole():
    def instructions(lanes):
        type, module = Type("float", lanes), llvm.Module(fused=True)
        code = module.function("sums", (("x", POINTER), ("n", I64), ("y", POINTER)), internal=False)
        x, n, y = code.parameters
        loop = code.begin_loop(constant(0, I64), n, 1, (constant(0, type),))
        terms = code.load(code.offset(x, loop.index, "ptr"), type)
        (total,) = code.end_loop(loop, (code.add(loop.carried[0], terms),))
        code.store(total, y)
        return listing(module.text(), host()).count("\n\t")

    # Lane by lane it would be hundreds.
    assert instructions(56) < 1.5 * instructions(64)


def test_positions_that_are_read_from_data_are_read_again_after_a_store():
    module = Module(OPENCL, fused=True)
    code = module.kernel("work", [("indices", "i64"), ("x", "float")], [])
    indices, x = code.parameters
    points = Points(code, {"indices": indices, "x": x}, {"indices": 1, "x": 8})
    first = Load("indices", Index(0), int64)
    halved = Load("x", gathered_index(first, 8) // 2, float32)
    before = points.value(halved)
    assert points.value(halved) == before
    points.store(Store("indices", Index(0), Literal(5, int64)), constant(5, I64))
    points.store(Store("x", Index(0), halved), points.value(halved))
    text = code.written().body
    assert text.count("/ 2ul") == text.count("= *indices") == 2
