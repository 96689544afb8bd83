"""Lanes that wait for each other, and asynchronous copies of the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_machine_cases import Bench, calculate, kernel

from cuda_machine.faults import Fault


def test_lanes_wait_for_the_lanes_of_their_mask() -> None:
    code = """.shared .b8 kept[128]; mov.u32 y, kept; mad.lo.u32 y, a, 4, y;
        and.b32 x, a, 1; setp.eq.u32 q, x, 0; @q bra even; add.u32 a, a, 100;
        even: st.shared.u32 [y], a; bar.warp.sync 0xffffffff; xor.b32 y, y, 4;
        ld.shared.u32 d, [y];"""
    a = np.arange(32, dtype="u4")
    found = calculate(code, a, result="u4", threads=32)
    np.testing.assert_array_equal(found, (a + 100 * (a % 2))[a ^ 1])


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
            "st.global.u32 [at+4], i; cp.async.wait_group 0;",
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
