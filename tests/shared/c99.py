"""C99 as one more language of the builder of C: its table of words, and its compiler.

It has no vectors, no functions for bit casts, and two names for each function of floats. The host
sets the number of the work item before a call.
"""

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lamina.codegen.words import NATIVE_HALF, Words, types

C99 = Words(
    language="C99",
    head=(
        "#include <math.h>",
        "#include <stdbool.h>",
        "#include <stdint.h>",
        "static uint64_t work_item;",
        "void begin_item(uint64_t number) { work_item = number; }",
        *(
            f"static {type} as_{type}({other} bits) "
            f"{{ union {{ {other} from; {type} to; }} both = {{bits}}; return both.to; }}"
            for one, another in (("float", "uint32_t"), ("double", "uint64_t"))
            for type, other in ((one, another), (another, one))
        ),
    ),
    kernel="void",
    function="static",
    address="{element} *",
    item="work_item",
    numbers="const uint64_t *",
    array="static const uint64_t {name}[{count}] = {{{numbers}}};",
    prefetch="(void){address}",
    unsigned=types("bool", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "float", "double"),
    signed={"i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t"},
    integer_suffix={"i8": "", "i16": "", "i32": "u", "i64": "ull"},
    bits="as_{type}({value})",
    # The conversion of a float beyond the integers is undefined, and must be avoided.
    nearest="{value} >= {high} ? {most} : {value} > {low} ? ({type}){value} : {least}",
    half=None,
    vectors=None,
    groups=None,
    float_function="{name}f",
)


# C99 with the type of float16 that compilers add to it, under OpenCL's names.
C99_WITH_HALF = replace(
    C99,
    head=(
        *C99.head,
        "__extension__ typedef _Float16 half;",
        "union half_bits { uint16_t bits; half number; };",
        "static half as_half(uint16_t bits) { return (union half_bits){bits}.number; }",
        "static uint16_t as_ushort(half x) { return (union half_bits){.number = x}.bits; }",
        "static float convert_float(half x) { return (float)x; }",
        "static half convert_half_rte(float x) { return (half)x; }",
    ),
    half=replace(NATIVE_HALF, head=()),
)


def library_of(text: str, folder: Path) -> ctypes.CDLL:
    """The compiled text; without a compiler the test is skipped."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, library = folder / "text.c", folder / "text.so"
    source.write_text(text, encoding="utf-8")
    # A buffer may take over the memory of a buffer of another type.
    options = ["-std=c99", "-pedantic-errors", "-fno-strict-aliasing", "-ffp-contract=off", "-O1"]
    command = [compiler, *options, "-shared", "-fPIC", "-o", library, source, "-lm"]
    said = subprocess.run(command, capture_output=True, text=True)
    assert not said.returncode, said.stderr
    return ctypes.CDLL(str(library))
