"""Lanes that wait for each other, atomics and asynchronous copies of the PTX machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cuda_machine_cases import Bench, calculate, kernel

from cuda_machine.faults import Fault


def test_lanes_wait_for_the_lanes_of_their_mask() -> None:
    code = """and.b32 x, a, 1; setp.eq.u32 q, x, 0; @q bra even; add.u32 a, a, 100;
        even: shfl.sync.bfly.b32 d, a, 1, 31, 0xffffffff;"""
    a = np.arange(32, dtype="u4")
    found = calculate(code, a, result="u4", threads=32)
    np.testing.assert_array_equal(found, (a + 100 * (a % 2))[a ^ 1])


# PTX ISA, atom, Semantics.
_UPDATES: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda old, b: old + b,
    "min.u32": min,
    "max.u32": max,
    "inc.u32": lambda old, b: 0 if old >= b else old + 1,
    "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
    "and.b32": lambda old, b: old & b,
    "or.b32": lambda old, b: old | b,
    "xor.b32": lambda old, b: old ^ b,
    "exch.b32": lambda old, b: b,
    # The value is exchanged if it is 9 less.
    "cas.b32": lambda old, b: b if old == b - 9 else old,
}


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("name", _UPDATES)
def test_atomics_are_applied_one_after_another(name: str, order: str) -> None:
    operands = "y, b" if name == "cas.b32" else "b"
    body = f""".reg .b32 i, x, y, b; .reg .b64 to, at; ld.param.u64 to, [p0]; mov.u32 i, %tid.x;
        mad.lo.u32 b, i, 9, 100; sub.u32 y, b, 9; atom.global.{name} x, [to], {operands};
        mad.wide.u32 at, i, 4, to; st.global.u32 [at+4], x;"""
    bench = Bench(kernel(body, ["u64"]), order=order)
    array = np.zeros(65, "u4")
    array[0] = 91
    address = bench.array(array)
    bench.launch("k", 1, 64, address)
    found = bench.read(address, array)
    value, before = 91, np.zeros(64, "u4")
    for lane in range(64) if order == "ascending" else reversed(range(64)):
        before[lane] = value
        value = _UPDATES[name](value, 9 * lane + 100)
    assert found[0] == value
    np.testing.assert_array_equal(found[1:], before)


def test_atomics_are_applied_in_a_random_order() -> None:
    body = """.reg .b32 i, x; .reg .b64 to, at; ld.param.u64 to, [p0]; mov.u32 i, %tid.x;
        atom.global.add.u32 x, [to], 1; mad.wide.u32 at, i, 4, to; st.global.u32 [at+4], x;"""
    bench = Bench(kernel(body, ["u64"]), order=3)
    array = np.zeros(65, "u4")
    address = bench.array(array)
    bench.launch("k", 1, 64, address)
    found = bench.read(address, array)
    assert found[0] == 64
    np.testing.assert_array_equal(np.sort(found[1:]), np.arange(64))
    assert (np.diff(found[1:].astype("i8")) < 0).any()
    assert (np.diff(found[1:].astype("i8")) > 0).any()


_COPY = """.reg .b32 i, s, x, n; .reg .b64 at; .shared .align 16 .b8 kept[512];
    mov.u32 i, %tid.x; mov.u32 s, kept; mad.lo.u32 s, i, 16, s; ld.param.u64 at, [p0];
    mad.wide.u32 at, i, 16, at; shl.b32 n, i, 2; min.u32 n, n, 16;
    cp.async.cg.shared.global [s], [at], 16, n; cp.async.commit_group; {}
    ld.shared.u32 x, [s+4]; st.global.u32 [at], x;"""


def test_copies_arrive_at_the_wait_and_fill_with_zeros() -> None:
    bench = Bench(kernel(_COPY.format("cp.async.wait_group 0;"), ["u64"]))
    array = np.arange(128, dtype="u4") + 1
    address = bench.array(array)
    bench.launch("k", 1, 32, address)
    want = array.reshape(32, 4).copy()
    want[:, 0] = np.where(np.arange(32) < 2, 0, want[:, 1])
    np.testing.assert_array_equal(bench.read(address, array).reshape(32, 4), want)


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("cp.async.wait_group 1;", "a read of shared memory that is not written"),
        ("ret;", "an asynchronous copy that has not arrived when the block ends"),
        ("st.shared.u32 [s], i;", "where an asynchronous copy has not arrived"),
        (
            "st.global.u32 [at+4], i; cp.async.wait_all;",
            "whose source was changed before it arrived",
        ),
    ],
)
def test_copies_that_have_not_arrived(between: str, expected: str) -> None:
    bench = Bench(kernel(_COPY.format(between), ["u64"]))
    address = bench.array(np.arange(128, dtype="u4") + 1000)
    with pytest.raises(Fault) as caught:
        bench.launch("k", 1, 32, address)
    assert expected in str(caught.value)
