"""What the PTX machine counts of a launch."""

from __future__ import annotations

from collections import Counter

import numpy as np
from cuda_machine_cases import Bench, Checks, kernel

from cuda_machine.counts import Counts

_START = """.reg .pred p; .reg .b32 i, s, x, y, z, w; .reg .b64 at;
.shared .align 16 .b8 kept[4096];
mov.u32 i, %tid.x; ld.param.u64 at, [p0]; mad.wide.u32 at, i, 16, at; mov.u32 s, kept;
mad.lo.u32 s, i, 16, s; """


def counted(body: str) -> Counts:
    """The counts of a kernel of two blocks of 64 threads, without those of its beginning."""
    found = []
    for text in (_START, _START + body):
        bench = Bench(kernel(text, ["u64"]), checks=Checks(global_races=False))
        address = bench.array(np.zeros(256, "u4"))
        found.append(bench.launch("k", 2, 64, address))
    empty, whole = found
    whole.instructions -= empty.instructions
    return whole


def test_threads_that_skip_an_instruction_are_not_counted() -> None:
    # All threads run setp and the branch around the load.
    found = counted("setp.lt.u32 p, i, 10; @p ld.global.u32 x, [at];")
    assert found.instructions == 2 * 128 + 20


def test_iterations_are_counted() -> None:
    found = counted("mov.u32 y, 0; again: add.u32 y, y, 1; setp.le.u32 p, y, i; @p bra again;")
    assert found.instructions == 128 + 2 * 3 * sum(range(1, 65))


def test_matrix_instructions_are_counted_by_warp() -> None:
    name = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    found = counted(
        f"st.shared.v4.u32 [s], {{i, i, i, i}}; bar.sync 0; {name} {{x, y, z, w}}, [s];"
    )
    assert found.matrix_instructions == Counter({name: 4})
