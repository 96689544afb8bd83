"""The table of words of CUDA C++, as NVRTC compiles it.

`cuda_head.h` has its vectors, and functions with which warps and warpgroups multiply matrices.
"""

from __future__ import annotations

from importlib.resources import files

from lamina.codegen.words import GroupWords, HalfWords, VectorWords, Words, types

_HEAD = files("lamina.codegen").joinpath("cuda_head.h").read_text(encoding="utf-8")
_INLINED = "static __device__ __forceinline__"

CUDA = Words(
    language="CUDA C++",
    head=tuple(_HEAD.splitlines()),
    kernel='extern "C" __global__ void',
    function="static __device__",
    address="{element} *",
    item="(U64)blockIdx.x * blockDim.x + threadIdx.x",
    numbers="const U64 *",
    array="static __constant__ U64 {name}[{count}] = {{{numbers}}};",
    prefetch='asm volatile("prefetch.L2 [%0];" : : "l"({address}))',
    unsigned=types("bool", "U8", "U16", "U32", "U64", "float", "double"),
    signed={"i8": "S8", "i16": "S16", "i32": "S32", "i64": "S64"},
    integer_suffix={"i8": "", "i16": "", "i32": "u", "i64": "ull"},
    bits="bits<{type}>({value})",
    nearest="nearest<{type}>({value}, {least}, {most}, {low}, {high})",
    rolled=("#pragma unroll 1",),
    half=HalfWords(
        loaded="from_half({name})",
        stored="{name} = to_half({value})",
        operated="half_operation<'{operator}'>({left}, {right})",
    ),
    vectors=VectorWords(
        lanes=(2, 4, 8, 16, 32, 64, 128),
        type="Vector<{element}, {lanes}>",
        made="vector<{type}>({lanes})",
        lane="{vector}.lanes[{lane}]",
        converted="converted<{type}>({value})",
        selected="selected({mask}, {yes}, {no})",
        loaded="loaded<{element}, {lanes}>({address})",
        stored="stored<{element}, {lanes}>({value}, {address})",
        chosen="selected({condition}, {yes}, {no})",
    ),
    groups=GroupWords(
        kernel='extern "C" __global__ __launch_bounds__({size}) void',
        large_kernel='extern "C" __global__ __launch_bounds__({size}, 1) void',
        group="(U64)blockIdx.x",
        item="(U64)threadIdx.x",
        declared="__shared__ __align__(16) {element} {name}[{count}]",
        launched="{element} *{name} = ({element} *)({memory} + {offset})",
        memory="launched_memory",
        # It is always inlined, because kernels that call functions need a stack.
        phase=_INLINED,
        # Those of the items of a warp need not be the same instruction.
        phase_barrier="__barrier_sync(0)",
        address="{element} *",
        barrier="__syncthreads()",
        # A barrier orders the accesses of a block to all memory.
        barrier_everywhere="__syncthreads()",
        shifted="of_later_item<{distance}>",
    ),
    matrices=True,
    begun="await_earlier_kernels",
    inlined=_INLINED,
    bfloat16="to_bfloat16",
)
