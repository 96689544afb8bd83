"""Kernels for Nvidia's GPUs, compiled without a GPU, and the models that describe them."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from gpu_cases import LARGE, Case, compiled, trained_convolutions

import lamina as lm
from lamina import ops
from lamina.base.shapes import bfloat16
from lamina.engines.gpu.matrix_schedules import _held_registers, matrix_schedules
from lamina.engines.gpu.products import Product
from lamina.program.steps import Contraction
from lamina.workloads import WORKLOADS, Stack, Workload, chosen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import cuda_compiler
import cuda_kernels
import ptx_text
from cuda_compiler import Compiled, compilation_of
from cuda_devices import ARCHITECTURES, Occupancy, occupancy_of
from cuda_kernels import Written, device_of, family_of, lines_of, rooflines_of, totals_of
from gpu_devices import NVIDIA
from ptx_addresses import accesses_of
from ptx_traffic import sectors, traffic_of, wavefronts

# What ptxas says of two kernels; one of them spills.
LOG = """ptxas info    : 28 bytes gmem, 56 bytes cmem[4]
ptxas info    : Compiling entry function 'step20_0' for 'sm_80'
ptxas info    : Function properties for step20_0
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 54 registers, used 1 barriers, 8704 bytes smem, 376 bytes cmem[0]
ptxas info    : Compile time = 13.310 ms
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to insufficient register resources for the wgmma pipeline in the function 'gather_100_1_i64'
ptxas info    : Compiling entry function 'gather_100_1_i64' for 'sm_80'
ptxas info    : Function properties for gather_100_1_i64
    96 bytes stack frame, 88 bytes spill stores, 120 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 96 bytes cumulative stack size
ptxas info    : Compile time = 2.089 ms
"""

# A kernel whose work items share an array, as NVRTC writes it. Its loop stores a row of 33 words at
# a time, so that the row of an item is in another bank than its neighbour's.
PTX = """
.version 9.3
.target sm_80
.address_size 64

.visible .entry rows(
	.param .u64 .ptr .align 1 rows_param_0,
	.param .u32 rows_param_1
)
.maxntid 64, 1, 1
{
	.reg .pred 	%p<3>;
	.shared .align 16 .b8 _ZZ4rowsE2l0[64];
	.shared .align 16 .b8 _ZZ4rowsE2l1[4224];
	ld.param.u64 	%rd1, [rows_param_0];
	cvta.to.global.u64 	%rd2, %rd1;
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r9, %ctaid.x;
	setp.gt.u32 	%p1, %r1, 39;
	@%p1 bra 	$L__BB0_3;
	mad.lo.s32 	%r2, %r9, 64, %r1;
	mul.wide.u32 	%rd3, %r2, 16;
	add.s64 	%rd4, %rd2, %rd3;
	mov.u32 	%r3, _ZZ4rowsE2l1;
	mad.lo.s32 	%r4, %r1, 132, %r3;
	mov.u32 	%r5, 0;

$L__BB0_2:
	ld.global.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd4+-16];
	st.shared.f32 	[%r4+4], %f1;
	add.s32 	%r4, %r4, 4;
	add.s32 	%r5, %r5, 1;
	setp.lt.s32 	%p2, %r5, 32;
	@%p2 bra 	$L__BB0_2;

$L__BB0_3:
	bar.sync 	0;
	ld.shared.u32 	%r6, [%r3];
	mul.wide.s32 	%rd5, %r6, 4;
	add.s64 	%rd6, %rd2, %rd5;
	{ fma.rn.f32 	%f5, %f1, %f2, %f3;
	}
	st.global.f32 	[%rd6], %f5;
	ret;
}
"""

A100 = ARCHITECTURES["sm_80"]


@pytest.fixture
def compilers():
    problem = cuda_compiler.missing()
    if problem:
        pytest.skip(problem)


# Occupancy. The examples are computed by hand from the rules in `cuda_devices.py`.


@pytest.mark.cases(
    ("name", "group", "registers", "shared_bytes", "expected"),
    # 8 warps of 1024 registers: 16 of them in each sub-partition of 16384.
    ("sm_80", 256, 32, 0, Occupancy(8, 64, ("warps", "registers"))),
    # 33 registers of 32 items are 1056, allocated as 1280: 12 warps in each sub-partition.
    ("sm_80", 128, 33, 0, Occupancy(12, 48, ("registers",))),
    # 20480 bytes and 1024 reserved ones: 4 times in 102400. Registers suffice for 5 groups.
    ("sm_86", 256, 48, 20480, Occupancy(4, 32, ("shared memory",))),
    # Turing reserves none: 4 times 16384 in 65536.
    ("sm_75", 64, 16, 16384, Occupancy(4, 8, ("shared memory",))),
    # Groups of three warps: ten of them in 32 warps.
    ("sm_75", 96, 40, 0, Occupancy(10, 30, ("warps",))),
    ("sm_89", 32, 16, 0, Occupancy(24, 24, ("groups",))),
    # 32 warps of 8192 registers do not fit at all.
    ("sm_90", 1024, 255, 0, Occupancy(0, 0, ("registers",))),
    # 228 KiB are 6 times 36864 and 1024 bytes.
    ("sm_90", 128, 64, 36864, Occupancy(6, 24, ("shared memory",))),
)
def test_occupancy_follows_the_rules(name, group, registers, shared_bytes, expected):
    assert occupancy_of(ARCHITECTURES[name], group, registers, shared_bytes) == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=str)
def test_kernels_are_written_for_the_attributes_of_a_gpu(architecture):
    traits = architecture.traits
    assert traits.compute_units == architecture.multiprocessors
    assert traits.largest_block_bytes == architecture.memory_gigabytes * 10**9
    assert (traits.local_bytes, traits.largest_group, traits.lanes) == (49152, 1024, 4)


def test_tensor_cores_multiply_float32_faster_where_they_can():
    named = {roofline.name: roofline for roofline in rooflines_of("float32")}
    assert [name for name in named if name.startswith("Nvidia T4")] == ["Nvidia T4"]
    mixed = [roofline.name for roofline in rooflines_of("mixed-float16")]
    assert "Nvidia T4 with tensor cores" in mixed
    a100 = named["Nvidia A100 with tensor cores"]
    assert a100.seconds(int(156e12), 0, multiplies=True) == pytest.approx(1)
    assert a100.seconds(int(19.5e12), 0, multiplies=False) == pytest.approx(1)
    assert len(NVIDIA) == 4


# What compilers say


def test_the_output_of_ptxas_is_read():
    assert list(cuda_compiler.kernels_in(LOG)) == [
        Compiled("step20_0", 54, 0, 0, 0, 8704, False),
        Compiled("gather_100_1_i64", 255, 96, 88, 120, 0, True),
    ]
    assert [kernel.spills for kernel in cuda_compiler.kernels_in(LOG)] == [False, True]


def test_ptx_is_read():
    (kernel,) = ptx_text.kernels_in(PTX)
    assert kernel.name == "rows"
    assert kernel.parameters == (("u64", "rows_param_0"), ("u32", "rows_param_1"))
    assert kernel.shared == (("_ZZ4rowsE2l0", 64), ("_ZZ4rowsE2l1", 4224))
    assert (kernel.count("global"), kernel.count("shared")) == ((1, 1), (0, 1))
    assert kernel.tensor_instructions() == (0, 1)


def test_instructions_of_tensor_cores_are_counted():
    line = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2}, {%r1}, {%r2}, {%f1};"
    (kernel,) = ptx_text.kernels_in(PTX.replace("bar.sync 	0;", line))
    assert kernel.tensor_instructions() == (1, 2)


def test_addresses_are_those_of_a_first_iteration():
    (kernel,) = ptx_text.kernels_in(PTX)
    load, store, read, write = accesses_of(kernel, 64, 2, 3)
    # The work items after 39 skip the loop.
    assert load.active.tolist() == [True] * 40 + [False] * 24
    numbers = np.arange(40)
    first = int(load.addresses[0]) - (2 * 64 - 1) * 16
    assert load.addresses[:40].astype(int).tolist() == (first + (127 + numbers) * 16).tolist()
    # The second array begins after the first one.
    assert store.addresses[:40].astype(int).tolist() == (64 + 132 * numbers + 4).tolist()
    assert read.active.all()
    # It depends on what was read.
    assert write.addresses is None


# Rows of 16 bytes that begin 64 and 80 bytes apart. The work items after 39 copy zeros.
MATRICES = """
	shl.b32 	%r10, %r1, 6;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r11, %r12, %r13, %r14}, [%r10+16];
	mul.lo.s32 	%r15, %r1, 80;
	ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r16, %r17}, [%r15];
	selp.b32 	%r18, 0, 16, %p1;
	cp.async.cg.shared.global [%r15], [%rd4], 16, %r18;
	red.global.add.u32 	[%rd4], 1;
	bar.sync 	0;
"""


@pytest.mark.cases(
    ("space", "expected"),
    # Four rows of 64 bytes conflict, in all 16 matrices; rows of 80 bytes never do.
    ("shared", [(8, 32), (4, 4), (8, 8)]),
    ("global", [(20, 20)]),
)
def test_matrices_and_asynchronous_copies_have_traffic(space, expected):
    (kernel,) = ptx_text.kernels_in(PTX.replace("bar.sync 	0;", MATRICES))
    groups = [
        traffic_of([access], space)
        for access in accesses_of(kernel, 64, 0, 1)
        if access.instruction.opcode.startswith(("ldmatrix", "cp"))
        and access.operand.space == space
    ]
    assert [(group.least, group.needed) for group in groups] == expected
    assert sum(instruction.is_other_access for instruction in kernel.body) == 1


def test_traffic_counts_what_no_model_knows():
    (kernel,) = ptx_text.kernels_in(PTX)
    traffic = traffic_of(accesses_of(kernel, 64, 0, 1), "global")
    assert (traffic.accesses, traffic.unknown, traffic.skipped) == (1, 1, 0)


@pytest.mark.cases(
    ("stride", "bytes", "expected"),
    (4, 4, (1, 1)),
    # All work items read one word.
    (0, 4, (1, 1)),
    (8, 4, (1, 2)),
    (128, 4, (1, 32)),
    # Rows of 33 words are in different banks.
    (132, 4, (1, 1)),
    # Two work items share a word.
    (2, 2, (1, 1)),
    (8, 8, (2, 2)),
    (16, 16, (4, 4)),
    # Four of the eight work items of a quarter have the same banks.
    (64, 16, (4, 16)),
)
def test_bank_conflicts_of_a_warp(stride, bytes, expected):
    addresses = np.arange(32, dtype=np.uint64) * np.uint64(stride)
    assert wavefronts(addresses, np.ones(32, bool), bytes) == expected


def test_inactive_work_items_have_no_conflicts():
    addresses = np.arange(48, dtype=np.uint64) * np.uint64(128)
    active = np.arange(48) % 8 < 2
    # Each quarter of each warp has two work items that conflict; the last warp has two quarters.
    assert wavefronts(addresses, active, 16) == (6, 12)


@pytest.mark.parametrize(
    ("stride", "begin", "expected"),
    [(4, 0, (4, 4)), (4, 4, (4, 5)), (32, 0, (4, 32)), (0, 8, (1, 1))],
)
def test_sectors_of_a_warp(stride, begin, expected):
    addresses = np.arange(32, dtype=np.uint64) * np.uint64(stride) + np.uint64(begin)
    assert sectors(addresses, np.ones(32, bool), 4) == expected


# Addresses as NVRTC computes them: (the C of an index, the same in NumPy).
INDICES = {
    "quotients": ("(i * 7 + j / 3 + i % 11) % 61", lambda i, j: (i * 7 + j // 3 + i % 11) % 61),
    "bits": ("((i << 3 ^ j) & 255) >> 1 | 1", lambda i, j: ((i << 3 ^ j) & 255) >> 1 | 1),
    "signs": ("(((int)i - 40) / 4 + 16)", lambda i, j: np.trunc((i - 40) / 4).astype(int) + 16),
    "choices": ("(i < 20 ? j : min(i, 50u))", lambda i, j: np.where(i < 20, j, np.minimum(i, 50))),
    "wide": ("((U64)i * 4294967311ull / 3000000007ull)", lambda i, j: i * 4294967311 // 3000000007),
}  # fmt: skip


@pytest.mark.usefixtures("compilers")
def test_addresses_are_those_of_the_source():
    head = "typedef unsigned long long U64;"
    kernels = (
        f'extern "C" __global__ void {name}(float *p) {{ __shared__ float l[4096]; '
        f"unsigned i = threadIdx.x, j = blockIdx.x; l[{text}] = p[i]; __syncthreads(); "
        "p[i] = l[i ^ 1]; }"
        for name, (text, _) in INDICES.items()
    )
    ptx = compilation_of("\n".join((head, *kernels)), A100).ptx
    addresses = {}
    for kernel in ptx_text.kernels_in(ptx):
        every = accesses_of(kernel, 96, 5, 9)
        shared = [access for access in every if access.operand.space == "shared"]
        store = next(access for access in shared if access.operand.is_written)
        assert store.addresses is not None, kernel.name
        addresses[kernel.name] = store.addresses
    items = np.arange(96)
    for name, (_, index) in INDICES.items():
        assert addresses[name].tolist() == (index(items, 5) * 4).tolist(), name


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", ["sm_75", "sm_90"])
def test_no_kernel_spills_registers(name):
    architecture = ARCHITECTURES[name]
    target = family_of(architecture).target
    program = trained_convolutions(None, device_of(architecture), target)
    kernels = Written(program, architecture).kernels
    assert [key for key, kernel in kernels.items() if kernel.compiled.spills] == []
    assert any(kernel.compiled.shared_bytes for kernel in kernels.values())
    for kernel in kernels.values():
        used = kernel.compiled.registers, kernel.compiled.shared_bytes
        assert occupancy_of(architecture, kernel.group, *used).groups


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(
    ("dtype", "products"), [("mixed-bfloat16", "float32"), ("float32", "tf32")]
)
def test_no_kernel_of_tensor_cores_spills_registers(dtype, products):
    # Their loops over tiles have a few iterations, which ptxas would unroll, and long bodies.
    layers = lm.Linear(576), lm.ReLU(), lm.Linear(160)
    training = lm.CrossEntropy(), lm.SGD(0.1)
    workload = Workload("products", Stack((96,), layers), 288, "step", *training)
    kernels = cuda_kernels.written_for(workload, dtype, A100, products).kernels.values()
    tensor = [kernel for kernel in kernels if kernel.text.tensor_instructions()[0]]
    assert len(tensor) == 5
    assert [kernel.compiled.name for kernel in kernels if kernel.compiled.spills] == []
    assert max(kernel.compiled.registers for kernel in tensor) < 255


def kernels_with(schedules, program, architecture):
    """The kernels of a program with these schedules, by the numbers of its steps."""
    family = family_of(architecture)
    text = family.write(program, family.decide(program, schedules)).text
    return compilation_of(text, architecture).kernels


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", ["matmul-large-f16", "matmul-large-tf32"])
def test_tiles_that_are_copied_in_most_registers_do_not_spill(name):
    (case,) = (case for case in LARGE if case.name == name)
    architecture = ARCHITECTURES["sm_90"]
    program = compiled(case, family_of(architecture).target)
    gemm = Product(program.steps[0])
    every = matrix_schedules(gemm, 32, architecture.traits)
    most = max(every, key=partial(_held_registers, gemm))
    assert _held_registers(gemm, most) > 32
    assert not any(kernel.spills for kernel in kernels_with({0: most}, program, architecture)), most


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("kind", ["bfloat16", "tf32"])
def test_products_of_warpgroups_run_on_while_the_next_ones_begin(kind):
    architecture = ARCHITECTURES["sm_90"]
    round_ = ops.round_to_tf32 if kind == "tf32" else lambda x: ops.rounded(x, bfloat16)

    def product(x, weight):
        return ops.matmul(round_(x), ops.transpose(round_(weight)))

    target = family_of(architecture).target
    program = compiled(Case("product", ((1024, 1024),) * 2, product), target)
    (number,) = (n for n, step in enumerate(program.steps) if isinstance(step, Contraction))
    every = matrix_schedules(Product(program.steps[number]), 32, architecture.traits)
    # The last one of each tile has the longest stretches, or the most.
    tiles = {(tiled.tile_m, tiled.tile_n): tiled for tiled in every if tiled.by_warpgroups}
    assert len(tiles) >= 6
    for decided in tiles.values():
        kernels = kernels_with({number: decided}, program, architecture)
        assert not any(kernel.spills or kernel.is_serialized for kernel in kernels), decided


@pytest.mark.usefixtures("compilers")
def test_vectors_of_four_are_accesses_of_128_bits():
    case = Case("product", ((2048, 2048),) * 2, ops.matmul)
    written = Written(compiled(case, family_of(A100).target), A100)
    (schedule,) = written.schedule.steps
    assert (schedule.left.lanes, schedule.right.lanes, schedule.width) == (4, 4, 4)
    assert (schedule.item_m % 4, schedule.item_n % 4) == (0, 0)
    (launch,) = written.launches.launches
    kernel = written.kernels[launch.kernel]
    for space in ("global", "shared"):
        wide, loads = kernel.text.count(space)
        assert wide == loads > 0


@pytest.mark.usefixtures("compilers")
def test_the_table_names_each_step_and_kernel():
    (workload,) = chosen(["softmax"])
    lines = list(lines_of(workload, "float32", ("sm_75",)))
    steps = sum(line.startswith("step ") for line in lines)
    kernels = [line for line in lines if "registers, 0 bytes spilled" in line]
    assert steps == 6
    assert len(kernels) >= steps
    assert sum("wavefronts of shared memory" in line for line in lines) == len(kernels)
    (total,) = (line for line in lines if line.startswith("6 steps"))
    assert all(gpu.name in total for gpu in NVIDIA)


@pytest.mark.usefixtures("compilers")
def test_the_totals_have_a_line_for_each_architecture():
    (workload,) = chosen(["tiny-step"])
    lines = list(totals_of(workload, "float32", ("sm_75", "sm_120")))
    assert [line.split(":")[0].strip() for line in lines] == ["sm_75", "sm_120"]
    assert all(" 0 of them spill" in line for line in lines)


@pytest.mark.parametrize(
    ("missing", "options", "said"),
    [
        ("ptxas is not installed.", [], "ptxas is not installed."),
        ("", ["--dtype", "mixed-bfloat16", "--precision", "tf32"],
         "--precision tf32 is for --dtype float32"),
    ],
)  # fmt: skip
def test_a_missing_compiler_and_tf32_in_mixed_precision_are_refused(
    monkeypatch, missing, options, said
):
    monkeypatch.setattr(cuda_kernels, "missing", lambda: missing)
    result = CliRunner().invoke(cuda_kernels.main, ["mlp", *options])
    assert result.exit_code == 1
    assert said in result.output


@pytest.mark.usefixtures("compilers")
def test_products_in_tf32_are_instructions_of_tensor_cores():
    (workload,) = chosen(["mlp"])
    kernels = cuda_kernels.written_for(workload, "float32", A100, "tf32").kernels.values()
    assert any(kernel.text.tensor_instructions()[0] for kernel in kernels)
    assert [kernel.loop for kernel in kernels if kernel.loop] != []


SASS = """
	.section	.text.tiles,"ax",@progbits
.L_x_1:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_2:
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0020*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   BRA `(.L_x_3) ;
.L_x_3:
        /*0060*/                   EXIT ;
	.section	.text.plain,"ax",@progbits
.L_x_4:
        /*0000*/                   FFMA R0, R0, R0, R0 ;
        /*0010*/                   BRA `(.L_x_4);
"""


def test_loops_of_machine_code_are_read():
    assert dict(cuda_compiler.loops_in(SASS)) == {"tiles": (3, 1)}


def test_architectures_that_do_not_multiply_a_dtype_are_left_out():
    every = tuple(ARCHITECTURES)
    assert cuda_kernels.architectures_for("float32", "float32") == every
    assert cuda_kernels.architectures_for("mixed-float16", "float32") == every
    for dtype, precision in (("mixed-bfloat16", "float32"), ("float32", "tf32")):
        assert cuda_kernels.architectures_for(dtype, precision) == every[1:]


@pytest.mark.usefixtures("compilers")
def test_no_kernel_of_shared_sums_of_16_bits_spills_registers():
    # ptxas would take 48 registers for its products, and spill five of them.
    architecture = ARCHITECTURES["sm_90"]
    written = cuda_kernels.written_for(
        WORKLOADS["softmax"], "mixed-float16", architecture, "float32"
    )
    assert [k.compiled.name for k in written.kernels.values() if k.compiled.spills] == []
