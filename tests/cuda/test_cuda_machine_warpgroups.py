"""Products of warpgroups on the PTX machine: layouts of matrices, and what is refused."""

import numpy as np
import pytest
from cuda_machine_cases import Bench, kernel

from cuda_machine.faults import Fault

# Where the right matrix begins, and the bytes of both.
RIGHT, BYTES = 8192, 8192 + 32768
# The bytes from eight rows to the next, and from a panel to the next in these tests.
STRIDE, PANEL = 1024, 4096
COPY = """.reg .pred p; .reg .b32 i, n, s, x, y, z, w; .reg .b64 from, to, at, a, b;
.shared .align 1024 .b8 tiles[40960];
ld.param.u64 from, [p0]; ld.param.u64 to, [p1]; mov.u32 i, %tid.x; mov.u32 n, %tid.x;
more: mul.wide.u32 at, n, 16; add.u64 at, at, from; ld.global.v4.u32 {x, y, z, w}, [at];
mov.u32 s, tiles; mad.lo.u32 s, n, 16, s; st.shared.v4.u32 [s], {x, y, z, w};
add.u32 n, n, %ntid.x; setp.lt.u32 p, n, 2560; @p bra more;
"""
FENCE, BARRIER, BEGUN = "fence.proxy.async.shared::cta;", "bar.sync 0;", "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


def descriptor(begin, panel, mode=1):
    return begin >> 4 | panel >> 4 << 16 | STRIDE >> 4 << 32 | mode << 62


def body(width, type, across, begin=0, mode=1):
    """The parts of a kernel that stores the sums of the product that begins at some bytes."""
    count, k = width // 2, 8 if type == "tf32" else 16
    sums = ", ".join(f"f{number}" for number in range(count))
    panels = [PANEL if transposed else 16 for transposed in across]
    zeros = " ".join(f"mov.f32 f{number}, 0f00000000;" for number in range(count))
    named = f"""mov.b64 a, {descriptor(begin, panels[0], mode)};
        mov.b64 b, {descriptor(RIGHT + begin, panels[1], mode)};"""
    turned = "" if type == "tf32" else f", {across[0]:d}, {across[1]:d}"
    product = f"""wgmma.mma_async.sync.aligned.m64n{width}k{k}.f32.{type}.{type} {{{sums}}}, a, b,
        1, 1, 1{turned};"""
    stores = " ".join(f"st.global.f32 [to+{4 * number}], f{number};" for number in range(count))
    stored = f"mad.wide.u32 to, i, {4 * count}, to; {stores}"
    first = f".reg .f32 f<{count}>; {COPY} {zeros} {named}"
    return [first, FENCE, BARRIER, BEGUN, product, COMMIT, WAIT, stored]


def run(parts, tiles, *, threads=128, target="sm_90a"):
    """The sums of the kernel (thread, number)."""
    bench = Bench(kernel(" ".join(parts), ["u64", "u64"], target=target))
    sums = np.zeros((threads, 128), "f4")
    addresses = bench.array(tiles), bench.array(sums)
    bench.launch("k", 1, threads, *addresses)
    return bench.read(addresses[1], sums).reshape(-1)


def stored(tiles, matrix, begin, *, across):
    """Writes the elements of a matrix (m or n, k) in panels, from some bytes of the tiles on."""
    size = matrix.itemsize
    for (outer, k), bits in np.ndenumerate(matrix):
        row, place = (k, outer) if across else (outer, k)
        linear = begin + place * size // 128 * PANEL + row * 128 + place * size % 128
        tiles.view(matrix.dtype)[(linear ^ (linear // 128 % 8) * 16) // size] = bits


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.cases(
    ("type", "left_across", "right_across", "step"),
    *(("bf16", False, False, 1), ("bf16", False, True, 0), ("bf16", True, False, 0)),
    *(("bf16", True, True, 1), ("f16", False, False, 0), ("f16", True, True, 0)),
    ("tf32", False, False, 1),
)
def test_matrices_in_panels_are_multiplied(width, type, left_across, right_across, step):
    # The second few of K are 32 bytes further in a row, or 16 rows further.
    across = left_across, right_across
    begin, few = step * (2048 if left_across else 32), 8 if type == "tf32" else 16
    numbers = np.random.default_rng(width).integers(-8, 9, (64 + width, few)).astype("f4")
    bits = {
        "f16": numbers.astype("f2").view("u2"),
        "bf16": (numbers.view("u4") >> 16).astype("u2"),
        "tf32": numbers.view("u4"),
    }[type]
    tiles = np.zeros(BYTES // 2, "u2")
    for first, rows, at, turned in ((0, 64, 0, left_across), (64, width, RIGHT, right_across)):
        padded = np.zeros((rows, 2 * few), bits.dtype)
        padded[:, few * step : few * step + few] = bits[first : first + rows]
        stored(tiles, padded, at, across=turned)
    sums = run(body(width, type, across, begin), tiles)[: 64 * width].reshape(128, width // 2)
    expected = numbers[:64] @ numbers[64:].T
    thread = np.arange(128)
    for number in range(width // 2):
        row = thread // 32 * 16 + thread % 32 // 4 + number // 2 % 2 * 8
        column = number // 4 * 8 + thread % 4 * 2 + number % 2
        np.testing.assert_array_equal(sums[:, number], expected[row, column])


WRITE = "bar.sync 0; mad.lo.u32 s, i, 16, 0; st.shared.v4.u32 [s], {i, i, i, i};"
HIDDEN = "a product of what was written without fence.proxy.async and a barrier after"
ACCESS = "an access of sums before the wait for their product"
# The parts that are replaced by others, options, and the fault.
FAULTS = [
    ({FENCE: ""}, {}, HIDDEN),
    ({FENCE: BARRIER, BARRIER: FENCE}, {}, HIDDEN),
    ({BARRIER: ""}, {}, HIDDEN),
    ({BEGUN: ""}, {}, "a product without wgmma.fence after other accesses of its sums"),
    ({BEGUN: f"{BEGUN} mov.f32 f3, 0f00000000;"}, {}, "a product without wgmma.fence after other"),
    ({WAIT: ""}, {}, ACCESS),
    ({COMMIT: "", WAIT: f"{WAIT} {COMMIT}"}, {}, ACCESS),
    ({WAIT: "wgmma.wait_group.sync.aligned 1;"}, {}, ACCESS),
    ({COMMIT: f"add.f32 f5, f5, f5; {COMMIT}"}, {}, ACCESS),
    ({WAIT: "ret;"}, {}, "a product that has not ended when the block ends"),
    ({WAIT: f"st.shared.u32 [tiles+64], 7; {WAIT}"}, {}, "in shared memory"),
    ({COMMIT: f"{COMMIT} {WRITE}"}, {},
     HIDDEN),
    ({COMMIT: f"{COMMIT} {WRITE} {FENCE} {BARRIER}"}, {},
     "a product whose matrices were changed before it ended"),
    ({}, {"threads": 64}, "an instruction of a warpgroup without some of its threads"),
    ({}, {"mode": 0}, "a descriptor of another layout"),
    ({}, {"begin": 1 << 16}, "of shared memory at"),
    ({}, {"type": "tf32"}, "an operand of .tf32 that is not rounded to its bits"),
    ({}, {"target": "sm_90"}, "only sm_90a has it"),
]  # fmt: skip


@pytest.mark.parametrize(("replaced", "options", "text"), FAULTS)
def test_what_is_undefined_is_a_fault(replaced, options, text):
    begin, mode, type = map(options.pop, ("begin", "mode", "type"), (0, 1, "bf16"))
    parts = body(64, type, (False, False), begin, mode)
    assert set(replaced) <= set(parts)
    with pytest.raises(Fault) as caught:
        run([replaced.get(part, part) for part in parts], np.ones(BYTES // 2, "u2"), **options)
    assert text in str(caught.value)
