"""What the PTX machine refuses: illegal accesses, races, divergent barriers, unknown PTX."""

import numpy as np
import pytest
from cuda_machine_cases import Bench, calculate, kernel

from cuda_machine.faults import Fault, OutOfMemory
from cuda_machine.memory import BASE, GAP, Memory
from cuda_machine.ptx import parse

START = """
.reg .pred p, q; .reg .b32 i, x, y, s, n; .reg .b64 at, to;
.shared .align 16 .b8 kept[1024];
mov.u32 i, %tid.x; mov.u32 s, kept; mad.lo.u32 s, i, 4, s; ld.param.u64 to, [p0];
mad.wide.u32 at, i, 4, to;
"""
EXCHANGE = """st.shared.u32 [s], i; {} xor.b32 y, i, {}; mov.u32 x, kept; mad.lo.u32 y, y, 4, x;
    ld.shared.u32 x, [y]; st.global.u32 [at], x;"""
SHIFT = "shfl.sync.down.b32 x, i, 3, 31, 0xffffffff;"
MATRICES = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {x, y, n, i}, [kept];"
READ_AND_WRITE = (
    "st.shared.u32 [s], i; bar.sync 0; ld.shared.u32 x, [kept]; {}st.shared.u32 [s], i;"
)
# The last block writes.
LAST_WRITES = """mov.u32 x, %ctaid.x; mov.u32 y, %nctaid.x; sub.u32 y, y, 1;
    setp.eq.u32 p, x, y; @p st.global.u32 [at], i;"""
FIRST_WRITES = "setp.eq.u32 p, i, 0; @p st.global.u32 [to], i;"
ACROSS = """st.global.u32 [at], i; {}xor.b32 y, i, 33; mad.wide.u32 at, y, 4, to;
    ld.global.u32 x, [at];"""
COPY = """shl.b32 s, s, 2; mad.wide.u32 at, i, 16, to; shl.b32 n, i, 2; min.u32 n, n, 16;
    cp.async.cg.shared.global [s], [at], 16, n; cp.async.commit_group; {}
    ld.shared.u32 x, [s+4]; st.global.u32 [at], x;"""
COPIES, EARLY = {"threads": 32}, {"is_early": True}
WAITS_IN_PART = "setp.ge.u32 p, i, 9; @p bra over; griddepcontrol.wait; over: {}"
DIVERGENT = "setp.lt.u32 p, i, 7; @p bra waits; bar.sync 0; bra done; waits: {} done: mov.u32 x, 0;"
UNWRITTEN = "a read of register x, which is not written"


def run(body, *, threads=64, blocks=1, is_early=False):
    """The array of 64 integers (with copies more) after a kernel."""
    text = kernel(START + body, ["u64"], target="sm_90" if is_early else "sm_80")
    bench = Bench(text)
    array = np.arange(128 if body.startswith("shl") else 64, dtype="u4")
    address = bench.array(array)
    bench.launch("k", blocks, threads, address, is_early=is_early)
    return bench.read(address, array)


FAULTS = [
    ("ld.global.u32 x, [at+8];", {}, (
        "an illegal address: 4 bytes of global memory at 0x700000100 are not within one allocation "
        "(kernel k, line 17 of the PTX: ld.global.u32 x, [at+8], block (0, 0, 0), "
"thread (62, 0, 0))"
    )),
    ("cvt.u32.u64 x, at; cvt.u64.u32 at, x; st.global.u32 [at], i;", {},
     "an illegal address: 4 bytes of global memory at 0x0 are"),
    ("ld.global.u32 x, [at+2];", {}, "a misaligned address: 4 bytes of global memory at"),
    (".reg .b32 r<4>; ld.global.v4.u32 {r0, r1, r2, r3}, [at];", {"threads": 2},
     "a misaligned address: 16 bytes of global"),
    ("st.shared.u32 [s+772], i;", {},
     "an illegal address: 4 bytes of shared memory at 0x400, of 1024 (kernel k"),
    ("ld.shared.u32 x, [s];", {}, "a read of shared memory that is not written"),
    ("st.global.u32 [at], x;", {}, UNWRITTEN),
    (".reg .b32 two; .reg .b16 a; cvt.u16.u32 a, i; mad.wide.u16 two, a, a, x;", {}, UNWRITTEN),
    (".reg .b16 a; cvt.u16.u32 a, i; shl.b16 a, a, x;", {}, UNWRITTEN),
    ("{ .reg .b16 x; setp.lt.u16 p, x, 3; @p st.global.u32 [at], i; }", {}, "a read of register x"),
    ("{ .reg .f32 x, y; add.f32 y, x, x; st.global.f32 [at], y; }", {}, "a read of register x"),
    # Races and barriers
    (EXCHANGE.format("", 1), {}, (
        "a race in shared memory at 0x4: thread (0, 0, 0) of block (0, 0, 0), line 21: "
        "ld.shared.u32 x, [y]; and thread (1, 0, 0) of block (0, 0, 0), line 17: "
        "st.shared.u32 [s], i; no barrier is between them (kernel k)"
    )),
    (READ_AND_WRITE.format(""), {}, "a race in shared memory at 0x0"),
    ("st.shared.u32 [kept+8], i;", {}, "a race in shared memory at 0x8"),
    (FIRST_WRITES, {"blocks": 2}, "a race in global memory at 0x700000000: thread (0, 0, 0) of"),
    ("""mov.u32 x, %ctaid.x; setp.eq.u32 p, x, 1; @p bra reads; st.global.u32 [at], i; exit;
        reads: ld.global.u32 y, [at];""", {"blocks": 2}, "a race in global memory"),
    (ACROSS.format(""), {}, "a race in global memory"),
    (DIVERGENT.format("bar.sync 0;"), {}, "a divergent barrier: threads of one warp wait in line"),
    (DIVERGENT.format(MATRICES), {}, (
        "a divergent barrier: of 64 threads that have not exited, 57 wait in line 19: bar.sync 0, "
        "7 wait in line"
    )),
    (DIVERGENT.format(SHIFT), {}, "a divergent barrier: of 64 threads"),
    (f"setp.eq.u32 p, i, 9; @p exit; {SHIFT}", {}, "an instruction of a whole warp"),
    # Asynchronous copies
    (COPY.format("cp.async.wait_group 1;"), COPIES, "a read of shared memory that is not written"),
    (COPY.format("ret;"), COPIES, "an asynchronous copy that has not arrived when the block ends"),
    (COPY.format("st.shared.u32 [s], i;"), COPIES, "where an asynchronous copy has not arrived"),
    (COPY.format("st.global.u32 [at+4], s; cp.async.wait_group 0;"), COPIES,
     "whose source was changed before it arrived"),
    ("div.u32 x, 7, i;", {}, "a division by zero (kernel k, line"),
    ("rem.u32 x, 7, i;", {}, "a division by zero (kernel k, line"),
    # Kernels that are launched before the one before them has ended
    ("ld.global.u32 x, [at]; griddepcontrol.wait;", EARLY,
     "a read of global memory before griddepcontrol.wait"),
    (WAITS_IN_PART.format("st.global.u32 [at], i;"), EARLY, (
        "a write to global memory before griddepcontrol.wait (kernel k, line 21 of the PTX: "
        "st.global.u32 [at], i, block (0, 0, 0), thread (9, 0, 0))"
    )),
    (WAITS_IN_PART.format(""), EARLY, "the end of a thread before griddepcontrol.wait"),
    ("griddepcontrol.launch_dependents; griddepcontrol.wait;", EARLY,
     "a launch of dependents before griddepcontrol.wait"),
    # Unknown PTX
    *((code, {}, f"{what} (kernel k, line 17 of the PTX: ") for code, what in (
        ("bra nowhere;", "a branch to nowhere, which is no label"),
        ("mov.u32 x, %clock;", "unknown register %clock"),
        (".frobnicate 3;", "unknown directive"),
        (".local .align 4 .b8 own[16];", "unknown directive"),
        ("trap;", "unknown instruction"),
        ('.pragma "frobnicate";', "unknown pragma"),
        ("ld.global.L3::fast.u32 x, [at];", "unknown instruction"),
        ("cp.async.bulk.commit_group;", "unknown instruction"),
        ("atom.global.add.u32 x, [at], 1;", "unknown instruction"),
        ("bar.sync 1;", "unknown instruction"),
        ("bar.warp.sync 0xffffffff;", "unknown instruction"),
        (SHIFT.replace("31", "15"), "unknown instruction"),
    )),
    ("ld.global.u32 x, [nowhere];", {}, "unknown variable nowhere"),
    ("add.u32 x, x, unknown;", {}, "unknown variable unknown"),
    ("add.u64 at, i, at;", {}, "i of .b32 as .u64"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "options", "text"), FAULTS)
def test_what_is_undefined_or_unknown_is_a_fault(body, options, text):
    with pytest.raises(Fault) as caught:
        run(body, **options)
    assert text in str(caught.value)


NUMBERS = np.arange(64)


@pytest.mark.parametrize(
    ("body", "options", "expected"),
    [
        (EXCHANGE.format("bar.sync 0;", 32), {}, NUMBERS ^ 32),
        (READ_AND_WRITE.format("bar.sync 0; "), {}, NUMBERS),
        (f"{SHIFT} st.global.u32 [at], x;", {}, NUMBERS + 3 * (NUMBERS % 32 < 29)),
        # Bytes of a word are no race.
        ("mov.u32 s, kept; add.u32 s, s, i; st.shared.u8 [s], i;", {}, NUMBERS),
        (ACROSS.format("bar.sync 0; "), {}, NUMBERS),
        ("griddepcontrol.wait; griddepcontrol.launch_dependents; st.global.u32 [at], i;",
         {"is_early": True}, NUMBERS),
        # Threads that have exited are not waited for.
        ("setp.lt.u32 p, i, 40; @p exit; bar.sync 0; st.global.u32 [at], 7;", {},
         np.where(NUMBERS < 40, NUMBERS, 7)),
    ],
)  # fmt: skip
def test_what_barriers_order_is_legal(body, options, expected):
    np.testing.assert_array_equal(run(body, **options), expected)


def test_copies_arrive_at_the_wait_and_fill_with_zeros():
    copied = run(COPY.format("cp.async.wait_group 0;"), threads=32)
    expected = np.arange(128).reshape(32, 4)
    expected[:, 0] = np.where(np.arange(32) < 2, 0, expected[:, 1])
    np.testing.assert_array_equal(copied.reshape(32, 4), expected)


def test_global_memory_is_read_after_it_is_written():
    bench = Bench(kernel(START + "ld.global.u32 x, [at];", ["u64"]))
    with pytest.raises(Fault, match="a read of global memory that is not written"):
        bench.launch("k", 1, 64, bench.memory.allocate(256))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (""".reg .b16 low, high, none; .reg .b32 two, four; cvt.u16.u32 low, i;
         and.b16 high, none, 255; mov.b32 two, {low, high}; st.global.u32 [at], two;
         cvt.u32.u16 four, none; st.global.u32 [at+4], four;""", [0xA50000, 0xFFA5]),
        ("st.global.v2.u32 [at], {i, x};", [0, 0xFFA5FFA5]),
    ],
)  # fmt: skip
def test_short_integers_and_elements_that_nobody_writes_are_undefined(body, expected):
    bench = Bench(kernel(START + body, ["u64"]))
    address = bench.memory.allocate(8)
    bench.launch("k", 1, 1, address)
    assert bench.read(address, np.zeros(2, np.uint32)).tolist() == expected


def test_races_are_those_of_one_launch():
    bench = Bench(kernel(START + "mad.wide.u32 at, i, 65536, to;" + LAST_WRITES, ["u64"]))
    address = bench.array(np.zeros(1 << 20, "u4"))
    for blocks in (1, 2):
        bench.launch("k", blocks, 64, address)
    assert bench.read(address, np.zeros(1 << 20, "u4"))[16384 * 63] == 63
    bench = Bench(kernel(START + "st.global.u32 [at], i;", ["u64"]))
    address = bench.array(np.zeros(64, "u4"))
    # After a race, the next launch is checked from the start.
    for blocks in (2, 1, 2):
        if blocks == 1:
            bench.launch("k", blocks, 64, address)
            continue
        with pytest.raises(Fault, match="a race in global memory"):
            bench.launch("k", blocks, 64, address)


def test_tf32_operands_are_rounded_before():
    registers = ", ".join(f"r{n}" for n in range(4))
    code = f""".reg .b32 {registers}; {" ".join(f"mov.b32 r{n}, a;" for n in range(4))}
        mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{{registers}}}, {{a, a, a, a}},
        {{a, a}}, {{{registers}}}; mov.b32 d, r0;"""
    ones = np.full(32, 0x3F800000, "u4")
    calculate(code, ones, threads=32)
    ones[5] = 0x3F800001
    with pytest.raises(Fault, match=r"tf32 that is not rounded to its bits.*thread \(5, 0, 0\)"):
        calculate(code, ones, threads=32)


def test_unknown_directives_of_a_module():
    with pytest.raises(Fault) as caught:
        parse(".version 8.5\n.target sm_80\n.frobnicate x;\n")
    assert "unknown directive (line 3 of the PTX: .frobnicate x)" in str(caught.value)


def test_memory_is_allocated_apart_and_checked():
    memory = Memory(1000)
    first, second = memory.allocate(300), memory.allocate(10)
    assert (first, second % 256, memory.used) == (BASE, 0, 310)
    assert second >= first + 300 + GAP
    with pytest.raises(OutOfMemory, match="691 bytes asked for, 690 of 1000 left"):
        memory.allocate(691)
    memory.write(second, b"0123456789")
    assert memory.read(second + 2, 3) == b"234"
    with pytest.raises(ValueError, match="are not within one allocation"):
        memory.read(second + 8, 3)
    memory.free(first)
    assert (memory.used, memory.allocate(256)) == (10, first)
    with pytest.raises(ValueError, match="no allocation begins at"):
        memory.free(first + 256)
