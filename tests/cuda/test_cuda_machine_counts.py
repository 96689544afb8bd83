"""What the PTX machine counts of a launch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from cuda_machine_cases import Bench, Checks, kernel

from cuda_machine.counts import Counts

_START = """.reg .pred p; .reg .b32 i, s, x, y, z, w; .reg .b64 at, l;
.shared .align 16 .b8 kept[4096]; .local .align 4 .b8 own[4];
mov.u32 i, %tid.x; ld.param.u64 at, [p0]; mad.wide.u32 at, i, 16, at; mov.u32 s, kept;
mad.lo.u32 s, i, 16, s; mov.u64 l, own; """


def counted(body: str, *, threads: int = 64, blocks: int = 2, **checks: bool) -> Counts:
    """The counts of a kernel, without those of its beginning."""
    found = []
    for text in (_START, _START + body):
        bench = Bench(kernel(text, ["u64"]), checks=Checks(global_races=False, **checks))
        address = bench.array(np.zeros(4 * threads, "u4"))
        found.append(bench.launch("k", blocks, threads, address))
    empty, whole = found
    whole.instructions -= empty.instructions
    return whole


def test_accesses_are_counted_by_space_and_bits() -> None:
    found = counted("""ld.global.v4.u32 {x, y, z, w}, [at]; ld.global.u8 x, [at];
        st.global.f64 [at], at; st.shared.v2.b32 [s], {x, y}; ld.shared::cta.u16 x, [s];
        ld.shared.u16 x, [s]; st.local.u32 [l], x; ld.local.u32 x, [l];""")
    assert found.global_loads == Counter({128: 128, 8: 128})
    assert found.global_stores == Counter({64: 128})
    assert found.shared_stores == Counter({64: 128})
    assert found.shared_loads == Counter({16: 256})
    assert found.instructions == 8 * 128


def test_atomics_are_counted_by_thread() -> None:
    found = counted("atom.global.add.u32 x, [at], 1; red.global.max.u32 [at], 1;")
    assert found.atomics == 256
    assert not found.global_loads
    assert not found.global_stores


def test_threads_that_skip_an_instruction_are_not_counted() -> None:
    found = counted("setp.lt.u32 p, i, 10; @p ld.global.u32 x, [at];")
    assert found.global_loads == Counter({32: 20})
    # All threads run setp and the branch around the load.
    assert found.instructions == 2 * 128 + 20


def test_iterations_are_counted() -> None:
    found = counted("""mov.u32 y, 0; again: ld.global.u32 x, [at]; add.u32 y, y, 1;
        setp.le.u32 p, y, i; @p bra again;""")
    assert found.global_loads == Counter({32: 2 * sum(range(1, 65))})


def test_matrix_instructions_are_counted_by_warp() -> None:
    name = "ldmatrix.sync.aligned.m8n8.x1.shared.b16"
    found = counted(f"st.shared.v4.u32 [s], {{i, i, i, i}}; bar.sync 0; {name} {{x}}, [s];")
    assert found.matrix_instructions == Counter({name: 4})


@pytest.mark.parametrize(
    ("stride", "bits", "conflicts"),
    [(4, 32, 0), (8, 32, 1), (128, 32, 31), (0, 32, 0), (8, 64, 0), (16, 128, 0), (32, 128, 4)],
)
def test_bank_conflicts_are_counted(stride: int, bits: int, conflicts: int) -> None:
    """Of a warp that reads with a distance between its lanes: 32 banks of 4 bytes each."""
    vector, registers = {32: ("", "x"), 64: (".v2", "{x, y}"), 128: (".v4", "{x, y, z, w}")}[bits]
    fill = " ".join(f"st.shared.u32 [s+{4 * n}], i;" for n in range(0, 1024, 32))
    start = f"mov.u32 s, kept; mad.lo.u32 s, i, 4, s; {fill} bar.sync 0;"
    read = f"mov.u32 s, kept; mad.lo.u32 s, i, {stride}, s; ld.shared{vector}.u32 {registers}, [s];"
    options = {"threads": 32, "blocks": 1, "bank_conflicts": True}
    without = counted(start, **options)
    found = counted(f"{start} {read}", **options)
    assert without.conflicts == 0
    assert found.conflicts == conflicts
    # Accesses of 8 bytes are done by half warps, those of 16 bytes by quarters.
    assert found.ideal_wavefronts - without.ideal_wavefronts == bits // 32
