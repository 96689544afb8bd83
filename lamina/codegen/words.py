"""Tables of words: the differences between languages like C, and the tables of OpenCL C.

`cuda_words.py` has the table of CUDA C++.

Integers have unsigned types, so that they wrap around as instructions do; signed operations
convert their operands. Memory is read and written as such integers, for every dtype of a buffer.
The reason: within a kernel, a buffer may take over the memory of a buffer of another type, and
compilers may reorder accesses of different types.

Words with fields in braces are templates: `str.format` fills them. A field `value` is a complete
expression that needs no further parentheses; `type` is a type of this language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.base.records import frozen_dataclass

# One of two values.
CHOSEN = "{condition} ? {yes} : {no}"
# The elements of scalars, in the order of a language's types.
_ELEMENTS = "i1", "i8", "i16", "i32", "i64", "float", "double"


def types(*names: str) -> Mapping[str, str]:
    """The types of a language by their elements: of bools, unsigned integers and floats."""
    return dict(zip(_ELEMENTS, names, strict=True))


@frozen_dataclass
class VectorWords:
    """How a language writes vectors.

    Its operators work lane by lane. A comparison returns integers of as many bits as the lanes
    have: all bits are set if it holds, none if not.

    Attributes:
        lanes: the numbers of lanes that vectors can have.
        type: the type of vectors; fields `element`, the type of the lanes, and `lanes`.
        made: a vector; fields `type` and `lanes`, a list of the lanes or one number for all.
        lane: one lane; fields `vector`, a variable, and `lane`, its number.
        converted: a conversion of all lanes; fields `type` and `value`.
        selected: one of two vectors, lane by lane; fields `yes`, `no` and `mask`, integers of as
            many bits as the vectors' lanes have, all set or none.
        chosen: one of two vectors as a whole; fields `condition`, `yes` and `no`.
        loaded: a load of integers; fields `lanes`, `address`, and `element`, their type.
        stored: a statement that writes integers; fields `lanes`, `value`, `address`, `element`.
    """

    lanes: tuple[int, ...]
    type: str
    made: str
    lane: str
    converted: str
    selected: str
    loaded: str
    stored: str
    chosen: str = CHOSEN


@frozen_dataclass
class HalfWords:
    """How a language converts float16, whose bits are in a variable of integers.

    Attributes:
        loaded: the floats with their values; fields `lanes`, empty for a scalar, and `name`.
        stored: a statement that rounds floats; fields `lanes`, `value` and `name`.
        operated: the bits of a sum, difference or product, rounded once; fields `lanes`, `left`,
            `right` and `operator`. None if the language has no type for such numbers.
        head: the lines before all functions, if there are such conversions or operations.
    """

    loaded: str
    stored: str
    operated: str | None = None
    head: tuple[str, ...] = ()


@frozen_dataclass
class GroupWords:
    """How a language writes kernels whose work items work in groups.

    Attributes:
        kernel: the qualifiers of a kernel whose groups have a fixed size; field `size`.
        large_kernel: the same for kernels with many values in registers, if they have others.
            Compilers may otherwise spill some of them, so that one more group is resident.
        group: the number of the work group, of 64 bits.
        item: the number of the work item in its group, of 64 bits.
        declared: the declaration of an array in local memory, which the items of a group share,
            aligned to vectors of 16 bytes; fields `element`, `name` and `count`.
        launched: the declaration of an array in the local memory that a launch adds; fields
            `element`, `name`, `memory`, the address of that memory, and `offset`, in bytes. "" if
            launches cannot add any.
        memory: the name of that memory.
        phase: the qualifiers of a function that is a phase of a kernel: several groups run it at
            the same time, as parts of one group. "" if the language cannot do that.
        phase_barrier: a statement that waits for all items of that one group, in whatever place
            each of them is.
        address: the type of an address in local memory, as `Words.address`.
        barrier: a statement that waits for all items of the group; they then see each other's
            stores in local memory.
        barrier_everywhere: the same, for stores in buffers too.
        shifted: the function that gives an item the value of a later item of its warp, for values
            of 32 or 64 bits, if all items of all warps are there; field `distance`, of the items.
            "" if the language has none.
    """

    kernel: str
    group: str
    item: str
    declared: str
    address: str
    barrier: str
    barrier_everywhere: str
    large_kernel: str = ""
    launched: str = ""
    memory: str = ""
    phase: str = ""
    phase_barrier: str = ""
    shifted: str = ""


@frozen_dataclass
class Words:
    """How a language writes constructs that differ between languages like C.

    Attributes:
        language: the name of the language, for people.
        head: the lines before all functions; `double_head` comes before them if doubles are used.
        kernel: the qualifiers of a function that the host calls.
        function: the qualifiers of a function that other functions call.
        apart: the further qualifiers of such a function if it works on memory, for compilers that
            take long and inline large functions everywhere; functions that differ only in numbers
            are then written once.
        placed: the declaration of the address of a kernel's buffer in its block, for languages
            whose kernels take no addresses; fields `address`, its type, and `name`. The kernel
            takes the block `{name}_block`, and after all blocks the offset `{name}_offset`, in
            units of `OFFSET_BYTES`. "" if a kernel takes the address itself.
        address: the type of an address in a buffer, with a star or blank at its end; field
            `element`, the type of the buffer's elements.
        item: the number of the work item, of 64 bits.
        numbers: the type of an address of a constant array of integers of 64 bits.
        array: a constant array of such integers; fields `name`, `count` and `numbers`.
        prefetch: a statement that prefetches an address; field `address`.
        unsigned, signed: the types of integers and floats by their elements.
        integer_suffix: the suffix of integer constants, by elements.
        bits: the same bits as another type of that size; fields `type` and `value`.
        nearest: the integer nearest to a float, towards zero, any for NaN; fields `type`, `value`,
            and for languages in which conversions of large numbers are undefined: `least` and
            `most`, the least and the largest integer as constants, `low` and `high`, the floats
            at which conversions saturate.
        float_function: a function of the language for float32; field `name`, that for float64.
        in_order: the lines before a loop with loop-carried floats, for compilers that otherwise
            reorder sums.
        rolled: the lines before a loop that compilers must not unroll.
        half: the words of conversions and arithmetic of float16; None if the language has none:
            then integers are computed instead.
        bfloat16: the function that rounds floats to bfloat16, whose bits are integers, on devices
            that have an instruction for it; "" if the language has none.
        vectors: the words of vectors; None if the language has none.
        groups: the words of groups of work items; None if the language has none.
        matrices: whether it has the functions of `cuda_head.h` on matrices of warps.
        begun: the function that kernels call first; "" if there is none.
        inlined: the qualifiers of a function that is always inlined; "" if the language has none.
            Mathematical functions are then written once in a text.
    """

    language: str
    head: tuple[str, ...]
    kernel: str
    function: str
    address: str
    item: str
    numbers: str
    array: str
    prefetch: str
    unsigned: Mapping[str, str]
    signed: Mapping[str, str]
    integer_suffix: Mapping[str, str]
    bits: str
    nearest: str
    half: HalfWords | None
    vectors: VectorWords | None
    groups: GroupWords | None
    float_function: str = "{name}"
    double_head: tuple[str, ...] = ()
    apart: str = ""
    in_order: tuple[str, ...] = ()
    rolled: tuple[str, ...] = ()
    matrices: bool = False
    begun: str = ""
    bfloat16: str = ""
    inlined: str = ""
    placed: str = ""


# The unit of a buffer's offset in its block: the largest vector of OpenCL.
OFFSET_BYTES = 128

OPENCL = Words(
    language="OpenCL C",
    # Multiplications and additions are rounded separately, except in fma.
    head=("#pragma OPENCL FP_CONTRACT OFF",),
    double_head=("#ifdef cl_khr_fp64", "#pragma OPENCL EXTENSION cl_khr_fp64 : enable", "#endif"),
    kernel="__kernel void",
    function="static",
    placed="{address}const {name} = "
    f"({{address}})((__global uchar *){{name}}_block + (ulong){{name}}_offset * {OFFSET_BYTES})",
    address="__global {element} *",
    item="(ulong)get_global_id(0)",
    numbers="__constant ulong *",
    array="__constant ulong {name}[{count}] = {{{numbers}}};",
    prefetch="prefetch({address}, 1)",
    unsigned=types("bool", "uchar", "ushort", "uint", "ulong", "float", "double"),
    signed={"i8": "char", "i16": "short", "i32": "int", "i64": "long"},
    integer_suffix={"i8": "", "i16": "", "i32": "u", "i64": "ul"},
    bits="as_{type}({value})",
    nearest="convert_{type}_sat({value})",
    # Intel's compiler for processors reorders sums when it vectorizes or unrolls a loop, and
    # miscompiles the last iterations of sums from which it subtracts.
    in_order=("#pragma clang loop vectorize(disable) unroll(disable)",),
    # OpenCL 1.0 has these functions, on any device.
    half=HalfWords(
        loaded="vload_half{lanes}(0, (const __private half *)&{name})",
        stored="vstore_half{lanes}_rte({value}, 0, (__private half *)&{name})",
    ),
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
    groups=GroupWords(
        kernel="__kernel __attribute__((reqd_work_group_size({size}, 1, 1))) void",
        group="(ulong)get_group_id(0)",
        item="(ulong)get_local_id(0)",
        declared="__local {element} {name}[{count}] __attribute__((aligned(16)))",
        address="__local {element} *",
        barrier="barrier(CLK_LOCAL_MEM_FENCE)",
        barrier_everywhere="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)",
    ),
)

# Types of vectors in memory that are aligned like one element.
_UNALIGNED = tuple(
    f"typedef {element}{lanes} __attribute__((aligned({size}))) {element}{lanes}_in_memory;"
    for element, size in (("uchar", 1), ("ushort", 2), ("uint", 4), ("ulong", 8))
    for lanes in (2, 4, 8, 16)
)

assert OPENCL.vectors is not None

# OpenCL C for processors, whose compilers are Clang. It takes several times as long for calls of
# `vload16` and `select` as for accesses and operators.
OPENCL_PROCESSOR = replace(
    OPENCL,
    head=(*OPENCL.head, *_UNALIGNED),
    apart="__attribute__((noinline))",
    vectors=replace(
        OPENCL.vectors,
        lanes=(2, 4, 8, 16),
        selected="{mask} ? {yes} : {no}",
        loaded="*(__global {element}{lanes}_in_memory *){address}",
        stored="*(__global {element}{lanes}_in_memory *){address} = {value}",
    ),
)

# For devices with `cl_khr_fp16`, which have a type for float16. Compilers see that the operands of
# a fused multiply-add are conversions of it, and may take an instruction with such operands. The
# bits of each result are taken, so that compilers round it.
NATIVE_HALF = HalfWords(
    loaded="convert_float{lanes}(as_half{lanes}({name}))",
    stored="{name} = as_ushort{lanes}(convert_half{lanes}_rte({value}))",
    operated="as_ushort{lanes}((half{lanes})(as_half{lanes}({left}) {operator} "
    "as_half{lanes}({right})))",
    head=("#pragma OPENCL EXTENSION cl_khr_fp16 : enable",),
)
