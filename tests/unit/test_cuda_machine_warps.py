"""Shuffles, votes, atomics, asynchronous copies and matrix instructions of the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_machine_cases import Bench, calculate, compiled, kernel

from cuda_machine.faults import Fault

_MMA = """
extern "C" __global__ void product(const unsigned* a, const unsigned* b, float* c) {
  int l = threadIdx.x; float d[4] = {1, 2, 3, 4};
  asm volatile("mma.sync.aligned.m16n8k%(k)d.row.col.f32.%(type)s.%(type)s.f32 "
    "{%%0,%%1,%%2,%%3}, {%(a)s}, {%(b)s}, {%%0,%%1,%%2,%%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : %(in)s);
  for (int i = 0; i < 4; i++) c[4 * l + i] = d[i];
}
"""


@pytest.mark.parametrize(
    ("type", "k", "a_count", "b_count"),
    [("f16", 16, 4, 2), ("f16", 8, 2, 1), ("bf16", 16, 4, 2), ("tf32", 8, 4, 2), ("tf32", 4, 2, 1)],
)
def test_products_have_the_documented_fragments(
    type: str, k: int, a_count: int, b_count: int
) -> None:
    names = [f"%{4 + n}" for n in range(a_count + b_count)]
    inputs = [f'"r"(a[{a_count} * l + {n}])' for n in range(a_count)]
    inputs += [f'"r"(b[{b_count} * l + {n}])' for n in range(b_count)]
    source = _MMA % {
        "k": k, "type": type, "a": ",".join(names[:a_count]), "b": ",".join(names[a_count:]),
        "in": ",".join(inputs),
    }  # fmt: skip
    generator = np.random.default_rng(0)
    # Small integers are exact in every type.
    a, b = (generator.integers(-8, 9, shape).astype("f4") for shape in ((16, k), (k, 8)))
    each = 1 if type == "tf32" else 2

    def bits(value: float) -> int:
        if type == "f16":
            return int(np.float16(value).view("u2"))
        whole = int(np.float32(value).view("u4"))
        # The lower bits of tf32 are ignored.
        return whole >> 16 if type == "bf16" else whole | 0x1ABC

    left, right = np.zeros((32, a_count), "u4"), np.zeros((32, b_count), "u4")
    for lane in range(32):
        group, thread = divmod(lane, 4)
        for n in range(a_count):
            for half in range(each):
                column = thread * each + half + (n // 2) * 4 * each
                left[lane, n] |= bits(a[group + 8 * (n % 2), column]) << (16 * half)
        for n in range(b_count):
            for half in range(each):
                right[lane, n] |= bits(b[thread * each + half + n * 4 * each, group]) << (16 * half)
    bench = Bench(compiled(source, "sm_80"))
    result = np.zeros((32, 4), "f4")
    pointers = [bench.array(one) for one in (left, right, result)]
    bench.launch("product", 1, 32, *pointers)
    found, want = bench.read(pointers[2], result), a @ b
    for lane in range(32):
        group, thread = divmod(lane, 4)
        for n in range(4):
            exact = want[group + 8 * (n // 2), thread * 2 + n % 2] + n + 1
            assert found[lane, n] == exact


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_of_shared_memory(transposed: bool) -> None:
    trans = ".trans" if transposed else ""
    body = f""".reg .b32 i, s, r<4>; .reg .b64 to; .shared .align 16 .b8 kept[512];
        mov.u32 i, %tid.x; mov.u32 s, kept; mad.lo.u32 s, i, 16, s; shl.b32 i, i, 3;
        mov.b32 r0, i; .reg .b16 h<8>; .reg .b32 t; {" ".join(f"add.u32 t, i, {n}; cvt.u16.u32 h{n}, t; st.shared.u16 [s+{2 * n}], h{n};" for n in range(8))}
        bar.sync 0; ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{r0, r1, r2, r3}}, [s];
        ld.param.u64 to, [p0]; mad.wide.u32 to, i, 2, to; st.global.v4.u32 [to], {{r0, r1, r2, r3}};"""  # noqa: E501
    bench = Bench(kernel(body, ["u64"]))
    result = np.zeros((32, 4, 2), "u2")
    address = bench.array(result)
    bench.launch("k", 1, 32, address)
    matrices = np.arange(256, dtype="u2").reshape(4, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    want = matrices.reshape(4, 32, 2).transpose(1, 0, 2)
    np.testing.assert_array_equal(bench.read(address, result), want)


def test_shuffles() -> None:
    a = np.arange(64, dtype="u4") + 100
    lane = np.arange(64) % 32
    base = np.arange(64) - lane
    for mode, b, c, other in (
        ("bfly", 5, 31, lane ^ 5),
        ("up", 3, 0, np.where(lane >= 3, lane - 3, lane)),
        ("down", 3, 31, np.where(lane + 3 <= 31, lane + 3, lane)),
        ("idx", 2, 0x181F, lane // 8 * 8 + 2),
    ):
        code = f"shfl.sync.{mode}.b32 d|p, a, {b}, {c}, 0xffffffff;"
        np.testing.assert_array_equal(calculate(code, a, result="u4", threads=64), a[base + other])


def test_votes_and_reductions_of_a_warp() -> None:
    a = (np.arange(64, dtype="u4") * 7) % 13
    warps = a.reshape(2, 32)
    code = "setp.gt.u32 p, a, 5; vote.sync.ballot.b32 d, p, 0xffffffff;"
    want = ((warps > 5) * 2 ** np.arange(32)).sum(1).repeat(32)
    np.testing.assert_array_equal(calculate(code, a, result="u4", threads=64), want)
    code = "redux.sync.add.u32 d, a, 0xffffffff;"
    found = calculate(code, a, result="u4", threads=64)
    np.testing.assert_array_equal(found, warps.sum(1).repeat(32))
    found = calculate("match.any.sync.b32 d, a, 0xffffffff;", a, result="u4", threads=64)
    equal = (warps[:, :, None] == warps[:, None, :]) * 2 ** np.arange(32)
    np.testing.assert_array_equal(found, equal.sum(2).reshape(-1))


def test_lanes_wait_for_the_lanes_of_their_mask() -> None:
    code = """and.b32 x, a, 1; setp.eq.u32 q, x, 0; @q bra even; add.u32 a, a, 100;
        even: shfl.sync.bfly.b32 d, a, 1, 31, 0xffffffff;"""
    a = np.arange(32, dtype="u4")
    found = calculate(code, a, result="u4", threads=32)
    np.testing.assert_array_equal(found, (a + 100 * (a % 2))[a ^ 1])


@pytest.mark.parametrize("order", ["ascending", "descending", 3])
def test_atomics_are_applied_one_after_another(order: str | int) -> None:
    body = """.reg .b32 i, x; .reg .b64 to, at; ld.param.u64 to, [p0]; mov.u32 i, %tid.x;
        atom.global.add.u32 x, [to], 1; mad.wide.u32 at, i, 4, to; st.global.u32 [at+4], x;
        red.global.max.u32 [to+260], i;"""
    bench = Bench(kernel(body, ["u64"]), order=order)
    array = np.zeros(66, "u4")
    address = bench.array(array)
    bench.launch("k", 1, 64, address)
    found = bench.read(address, array)
    assert (found[0], found[65]) == (64, 63)
    np.testing.assert_array_equal(np.sort(found[1:65]), np.arange(64))
    if order != 3:
        want = np.arange(64) if order == "ascending" else np.arange(64)[::-1]
        np.testing.assert_array_equal(found[1:65], want)


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
