"""The words of languages like C, where they differ.

Integers are held without sign, so that they wrap around as instructions do; where an operation
reads a sign they are converted for it. Memory is read and written as such integers, whatever lies
there: a buffer may take over the place of one of another type within a kernel, and compilers may
reorder accesses of different types.

Words with fields in braces are templates: `str.format` fills them. A field `value` is a whole
expression that needs no further parentheses, `type` a type of this language.
"""

from __future__ import annotations

from collections.abc import Mapping

from lamina.records import frozen_dataclass


@frozen_dataclass
class VectorWords:
    """How a language writes vectors.

    Its operators work lane by lane. A comparison gives integers of as many bits as were compared:
    all are set where it holds, none elsewhere.

    Attributes:
        lanes: how many lanes there may be.
        type: of vectors; fields `element`, the type of the lanes, and `lanes`.
        made: a vector; fields `type` and `lanes`, a list of the lanes or one number for all.
        lane: one lane; fields `vector`, a variable, and `lane`, its number.
        converted: a conversion of all lanes; fields `type` and `value`.
        selected: one of two vectors, lane by lane; fields `yes`, `no` and `mask`, integers of as
            many bits as the vectors' lanes have, all set or none.
        loaded: what lies at an address of integers; fields `lanes` and `address`.
        stored: a statement that writes integers; fields `lanes`, `value` and `address`.
    """

    lanes: tuple[int, ...]
    type: str
    made: str
    lane: str
    converted: str
    selected: str
    loaded: str
    stored: str


@frozen_dataclass
class Words:
    """How a language writes what C has no single way for.

    Attributes:
        language: its name, for people.
        head: what stands before all functions; `double_head` with them, if there are doubles.
        kernel: what stands before a function that the host calls.
        function: before one that others call.
        address: the type of an address in a buffer, with a star or blank at its end; field
            `element`, the type of what lies there.
        item: the number of the work item, of 64 bits.
        unsigned, signed: the types of integers and floats by their elements.
        integer_suffix: behind constants, by elements.
        bits: the same bits as another type of that size; fields `type` and `value`.
        nearest: the integer nearest to a float, towards zero, any for NaN; fields `type`, `value`,
            and for languages that leave open what becomes of large numbers: `least` and `most`,
            the least and the largest integer as they are held, `low` and `high`, the floats at
            which they begin.
        float_function: a function of the language for floats, by elements; field `name`.
        in_order: lines in front of a loop that hands floats from one iteration to the next, for
            compilers that add them up in another order without it.
        vectors: how they are written; None if there are none.
    """

    language: str
    head: tuple[str, ...]
    double_head: tuple[str, ...]
    kernel: str
    function: str
    address: str
    item: str
    unsigned: Mapping[str, str]
    signed: Mapping[str, str]
    integer_suffix: Mapping[str, str]
    bits: str
    nearest: str
    float_function: Mapping[str, str]
    in_order: tuple[str, ...]
    vectors: VectorWords | None


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
    address="__global {element} *",
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
    bits="as_{type}({value})",
    nearest="convert_{type}_sat({value})",
    float_function={"float": "{name}", "double": "{name}"},
    # Intel's compiler for processors adds up in any order as soon as it vectorizes or unrolls a
    # loop, and makes mistakes in the last iterations of sums from which it subtracts.
    in_order=("#pragma clang loop vectorize(disable) unroll(disable)",),
    vectors=VectorWords(
        lanes=(2, 3, 4, 8, 16),
        type="{element}{lanes}",
        made="({type})({lanes})",
        lane="{vector}.s{lane:x}",
        converted="convert_{type}({value})",
        selected="select({no}, {yes}, {mask})",
        loaded="vload{lanes}(0, {address})",
        stored="vstore{lanes}({value}, 0, {address})",
    ),
)
