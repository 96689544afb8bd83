"""The words of languages like C, where they differ.

Integers are held without sign, so that they wrap around as instructions do; where an operation
reads a sign they are converted for it. Memory is read and written as such integers, whatever lies
there: a buffer may take over the place of one of another type within a kernel, and compilers may
reorder accesses of different types.
"""

from __future__ import annotations

from collections.abc import Mapping

from lamina.records import frozen_dataclass


@frozen_dataclass
class Words:
    """How a language writes what C has no single way for.

    Attributes:
        language: its name, for people.
        head: what stands before all functions; `double_head` with them, if there are doubles.
        kernel: what stands before a function that the host calls.
        function: before one that others call.
        memory: before the type of an address in a buffer.
        item: the number of the work item, of 64 bits.
        unsigned, signed: the types of integers and floats by their elements.
        integer_suffix: behind constants, by elements.
        lanes: how many lanes vectors may have.
    """

    language: str
    head: tuple[str, ...]
    double_head: tuple[str, ...]
    kernel: str
    function: str
    memory: str
    item: str
    unsigned: Mapping[str, str]
    signed: Mapping[str, str]
    integer_suffix: Mapping[str, str]
    lanes: tuple[int, ...]


OPENCL = Words(
    language="OpenCL C",
    # A multiplication and an addition are rounded each by itself, but where fma is written.
    head=("#pragma OPENCL FP_CONTRACT OFF",),
    double_head=(
        "#ifdef cl_khr_fp64",
        "#pragma OPENCL EXTENSION cl_khr_fp64 : enable",
        "#endif",
    ),
    kernel="__kernel void",
    function="static",
    memory="__global",
    item="(ulong)get_global_id(0)",
    unsigned={
        "i1": "bool",
        "i8": "uchar",
        "i32": "uint",
        "i64": "ulong",
        "float": "float",
        "double": "double",
    },
    signed={"i8": "char", "i32": "int", "i64": "long"},
    integer_suffix={"i8": "", "i32": "u", "i64": "ul"},
    lanes=(2, 3, 4, 8, 16),
)
