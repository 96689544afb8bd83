"""What the PTX machine refuses: illegal accesses, races, divergent barriers, unknown PTX."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_machine_cases import Bench, Checks, kernel

from cuda_machine.faults import Fault, OutOfMemory
from cuda_machine.memory import BASE, GAP, Memory
from cuda_machine.ptx import parse

_START = """
.reg .pred p, q; .reg .b32 i, x, y, s; .reg .b64 at, to;
.shared .align 16 .b8 kept[256];
mov.u32 i, %tid.x; mov.u32 s, kept; mad.lo.u32 s, i, 4, s; ld.param.u64 to, [p0];
mad.wide.u32 at, i, 4, to;
"""


def fault(
    body: str, *, threads: int = 64, blocks: int = 1, before: str = "", **checks: bool
) -> str:
    """The text of the fault of a kernel that has an array of 64 integers."""
    with pytest.raises(Fault) as caught:
        run(body, threads=threads, blocks=blocks, before=before, **checks)
    return str(caught.value)


def run(
    body: str, *, threads: int = 64, blocks: int = 1, before: str = "", **checks: bool
) -> np.ndarray:
    """The array of 64 integers after a kernel."""
    bench = Bench(kernel(_START + body, ["u64"], before=before), checks=Checks(**checks))
    array = np.arange(64, dtype="u4")
    address = bench.array(array)
    bench.launch("k", blocks, threads, address)
    return bench.read(address, array)


def test_an_illegal_address_names_the_thread() -> None:
    text = fault("ld.global.u32 x, [at+8];")
    assert "an illegal address: 4 bytes of global memory at 0x700000100" in text
    assert "are not within one allocation (kernel k, line 17 of the PTX: ld.global.u32 x," in text
    assert text.endswith("block (0, 0, 0), thread (62, 0, 0))")


def test_an_address_of_32_bits_is_illegal() -> None:
    text = fault("cvt.u32.u64 x, at; cvt.u64.u32 at, x; st.global.u32 [at], i;")
    assert "an illegal address: 4 bytes of global memory at 0x0 are" in text


def test_a_misaligned_address() -> None:
    assert "a misaligned address: 4 bytes of global memory at" in fault("ld.global.u32 x, [at+2];")
    assert "a misaligned address: 16 bytes of global" in fault(".reg .b32 r<4>; "
        "ld.global.v4.u32 {r0, r1, r2, r3}, [at];", threads=2)  # fmt: skip


def test_shared_memory_has_bounds() -> None:
    text = fault("st.shared.u32 [s+4], i;")
    assert "an illegal address: 4 bytes of shared memory at 0x100, of 256 (kernel k" in text
    assert "thread (63, 0, 0)" in text


def test_shared_memory_is_read_after_it_is_written() -> None:
    assert "a read of shared memory that is not written" in fault("ld.shared.u32 x, [s];")


def test_local_memory_is_read_after_it_is_written() -> None:
    body = ".local .align 4 .b8 own[16]; .reg .b64 l; mov.u64 l, own; {} ld.local.u32 x, [l+4];"
    assert "a read of local memory that is not written" in fault(body.format(""))
    run(body.format("st.local.u32 [l+4], i;"))
    assert "of local memory at 0x10, of 16" in fault(body.format("st.local.u32 [l+16], i;"))


def test_global_memory_is_read_after_it_is_written_if_that_is_checked() -> None:
    bench = Bench(kernel(_START + "ld.global.u32 x, [at];", ["u64"]))
    bench.launch("k", 1, 64, bench.memory.allocate(256))
    checked = Bench(
        kernel(_START + "ld.global.u32 x, [at];", ["u64"]), checks=Checks(unwritten_global=True)
    )
    with pytest.raises(Fault) as caught:
        checked.launch("k", 1, 64, checked.memory.allocate(256))
    assert "a read of global memory that is not written" in str(caught.value)


def test_a_register_is_read_after_it_is_written() -> None:
    assert "a read of register x, which is not written" in fault("st.global.u32 [at], x;")


def test_a_short_integer_that_nobody_writes_is_undefined() -> None:
    body = (
        ".reg .b16 low, high, none; .reg .b32 two, four;"
        "cvt.u16.u32 low, i; and.b16 high, none, 255;"
        "mov.b32 two, {low, high}; st.global.u32 [at], two;"
        "cvt.u32.u16 four, none; st.global.u32 [at+4], four;"
    )
    bench = Bench(kernel(_START + body, ["u64"]))
    address = bench.memory.allocate(8)
    bench.launch("k", 1, 1, address)
    assert bench.read(address, np.zeros(2, np.uint32)).tolist() == [0xA50000, 0xFFA5]


@pytest.mark.parametrize(
    "body",
    [
        ".reg .b32 x, two; .reg .b16 a; cvt.u16.u32 a, i; mad.wide.u16 two, a, a, x;",
        ".reg .b32 x; .reg .b16 a; cvt.u16.u32 a, i; shl.b16 a, a, x;",
        ".reg .b16 x; .reg .pred p; setp.lt.u16 p, x, 3; @p st.global.u32 [at], i;",
        ".reg .f32 x, y; add.f32 y, x, x; st.global.f32 [at], y;",
    ],
)
def test_other_reads_of_registers_that_nobody_writes_are_faults(body: str) -> None:
    assert "a read of register x, which is not written" in fault(body)


def test_an_element_of_a_stored_vector_that_nobody_writes_is_undefined() -> None:
    body = _START + "st.global.v2.u32 [at], {i, x}; st.global.u32 [at+4], i;"
    bench = Bench(kernel(body.replace("st.global.u32 [at+4], i;", ""), ["u64"]))
    address = bench.memory.allocate(8)
    bench.launch("k", 1, 1, address)
    assert bench.read(address, np.zeros(2, np.uint32)).tolist() == [0, 0xFFA5FFA5]
    bench = Bench(kernel(body, ["u64"]))
    bench.launch("k", 1, 1, bench.memory.allocate(8))


_EXCHANGE = """
st.shared.u32 [s], i; {between} xor.b32 y, i, {distance}; mov.u32 x, kept; mad.lo.u32 y, y, 4, x;
ld.shared.u32 x, [y]; st.global.u32 [at], x;
"""


def test_a_race_in_shared_memory_names_both_threads_and_lines() -> None:
    text = fault(_EXCHANGE.format(between="", distance=1))
    assert "a race in shared memory at 0x4: thread (0, 0, 0) of block (0, 0, 0), line" in text
    assert "ld.shared.u32 x, [y]; and thread (1, 0, 0) of block (0, 0, 0), line" in text
    assert "st.shared.u32 [s], i; no barrier is between them (kernel k)" in text


def test_a_barrier_of_the_block_orders_accesses() -> None:
    found = run(_EXCHANGE.format(between="bar.sync 0;", distance=32))
    np.testing.assert_array_equal(found, np.arange(64) ^ 32)


def test_a_barrier_of_the_warp_orders_accesses_of_its_threads() -> None:
    found = run(_EXCHANGE.format(between="bar.warp.sync 0xffffffff;", distance=1))
    np.testing.assert_array_equal(found, np.arange(64) ^ 1)


def test_a_barrier_of_the_warp_does_not_order_accesses_of_two_warps() -> None:
    text = fault(_EXCHANGE.format(between="bar.warp.sync 0xffffffff;", distance=32))
    assert "a race in shared memory" in text


def test_a_write_after_a_read_is_a_race() -> None:
    body = "st.shared.u32 [s], i; bar.sync 0; ld.shared.u32 x, [kept]; st.shared.u32 [s], i;"
    assert "a race in shared memory at 0x0" in fault(body)
    run(body.replace("st.shared.u32 [s], i;", "bar.sync 0; st.shared.u32 [s], i;"))


def test_two_writes_are_a_race() -> None:
    assert "a race in shared memory at 0x8" in fault("st.shared.u32 [kept+8], i;")


def test_bytes_of_a_word_are_no_race() -> None:
    run("mov.u32 s, kept; add.u32 s, s, i; st.shared.u8 [s], i;")


def test_races_of_blocks_in_global_memory() -> None:
    text = fault("setp.eq.u32 p, i, 0; @p st.global.u32 [to], i;", blocks=2)
    assert "a race in global memory at 0x700000000: thread (0, 0, 0) of block (" in text
    run("setp.eq.u32 p, i, 0; @p st.global.u32 [to], i;", blocks=2, global_races=False)


# The last block writes.
_LAST_WRITES = """mov.u32 x, %ctaid.x; mov.u32 y, %nctaid.x; sub.u32 y, y, 1;
    setp.eq.u32 p, x, y; @p st.global.u32 [at], i;"""


def test_accesses_of_two_launches_are_no_race() -> None:
    bench = Bench(kernel(_START + _LAST_WRITES, ["u64"]))
    address = bench.array(np.zeros(64, "u4"))
    for blocks in (1, 2):
        bench.launch("k", blocks, 64, address)
    np.testing.assert_array_equal(bench.read(address, np.zeros(64, "u4")), np.arange(64))


def test_a_launch_after_a_race_is_checked_from_the_start() -> None:
    bench = Bench(kernel(_START + "st.global.u32 [at], i;", ["u64"]))
    address = bench.array(np.zeros(64, "u4"))
    with pytest.raises(Fault, match="a race in global memory"):
        bench.launch("k", 2, 64, address)
    bench.launch("k", 1, 64, address)
    with pytest.raises(Fault, match="a race in global memory"):
        bench.launch("k", 2, 64, address)


def test_accesses_of_many_pages_are_forgotten() -> None:
    bench = Bench(kernel(_START + "mad.wide.u32 at, i, 65536, to;" + _LAST_WRITES, ["u64"]))
    address = bench.array(np.zeros(1 << 20, "u4"))
    for blocks in (1, 2):
        bench.launch("k", blocks, 64, address)
    assert bench.read(address, np.zeros(1 << 20, "u4"))[16384 * 63] == 63


def test_a_read_of_what_another_block_writes_is_a_race() -> None:
    body = """mov.u32 x, %ctaid.x; setp.eq.u32 p, x, 1; @p bra reads; st.global.u32 [at], i; exit;
        reads: ld.global.u32 y, [at];"""
    assert "a race in global memory" in fault(body, blocks=2)


def test_barriers_order_accesses_of_global_memory_within_a_block() -> None:
    body = """st.global.u32 [at], i; {} xor.b32 y, i, 33; mad.wide.u32 at, y, 4, to;
        ld.global.u32 x, [at];"""
    assert "a race in global memory" in fault(body.format(""))
    run(body.format("bar.sync 0;"))


def test_a_barrier_that_some_threads_of_a_warp_skip() -> None:
    body = """setp.lt.u32 p, i, 7; @p bra waits; bar.sync 0; bra done; waits: bar.sync 0;
        done: mov.u32 x, 0;"""
    text = fault(body)
    assert "a divergent barrier: threads of one warp wait in line" in text


def test_a_barrier_that_nobody_else_reaches() -> None:
    body = """setp.lt.u32 p, i, 7; @p bra first; bar.sync 0; bra done;
        first: bar.warp.sync 0xffffffff; done: mov.u32 x, 0;"""
    text = fault(body)
    assert "a divergent barrier: of 64 threads that have not exited, 57 wait in line" in text
    assert "bar.sync 0, 7 wait in line" in text


def test_threads_that_have_exited_are_not_waited_for() -> None:
    found = run("setp.lt.u32 p, i, 40; @p exit; bar.sync 0; st.global.u32 [at], 7;")
    np.testing.assert_array_equal(found, np.where(np.arange(64) < 40, np.arange(64), 7))


def test_a_trap() -> None:
    text = fault("setp.eq.u32 p, i, 9; @p trap;")
    assert text.startswith("a trap (kernel k, line 18 of the PTX: @p trap")
    assert text.endswith("thread (9, 0, 0))")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("ld.global.u32 x, [nowhere];", "unknown variable nowhere"),
        ("bra nowhere;", "a branch to nowhere, which is no label"),
        ("add.u32 x, x, unknown;", "unknown variable unknown"),
        ("mov.u32 x, %clock;", "unknown register %clock"),
        (".frobnicate 3;", "unknown directive"),
        ('.pragma "frobnicate";', "unknown pragma"),
        ("ld.global.L3::fast.u32 x, [at];", "unknown instruction"),
        ("mbarrier.init.shared.b64 [s], 3;", "unknown instruction"),
        ("cp.async.bulk.commit_group;", "unknown instruction"),
        ("add.u64 at, i, at;", "i of .b32 as .u64"),
        ("atom.global.add.u32 x, [at], 1;", "unknown instruction"),
        ("bar.sync 1;", "unknown instruction"),
    ],
)
def test_unknown_ptx_is_named(body: str, expected: str) -> None:
    text = fault(body)
    assert expected in text
    assert "(kernel k, line 17 of the PTX: " in text


def test_unknown_directives_of_a_module() -> None:
    with pytest.raises(Fault) as caught:
        parse(".version 8.5\n.target sm_80\n.frobnicate x;\n")
    assert "unknown directive (line 3 of the PTX: .frobnicate x)" in str(caught.value)


def test_launches_are_checked() -> None:
    with pytest.raises(ValueError, match="1 parameters, 0 are expected"):
        Bench(kernel("ret;")).launch("k", 1, 32, 5)


def test_memory_is_allocated_apart_and_checked() -> None:
    memory = Memory(1000)
    first, second = memory.allocate(300), memory.allocate(10)
    assert first == BASE
    assert second % 256 == 0
    assert second >= first + 300 + GAP
    assert memory.used == 310
    with pytest.raises(OutOfMemory) as caught:
        memory.allocate(691)
    assert str(caught.value) == "691 bytes asked for, 690 of 1000 left"
    memory.write(second, b"0123456789")
    assert memory.read(second + 2, 3) == b"234"
    with pytest.raises(ValueError) as wrong:
        memory.read(second + 8, 3)
    assert "are not within one allocation" in str(wrong.value)
    memory.free(first)
    assert memory.used == 10
    assert memory.allocate(256) == first
    with pytest.raises(ValueError) as wrong:
        memory.free(first + 256)
    assert "no allocation begins at" in str(wrong.value)
