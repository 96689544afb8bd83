"""Every way in which an engine can run a program gives the same results.

Engines choose by size, so that small samples meet few of their algorithms. Those that say in which
other ways they can run a program (`Engine.schedules`) run it in all of them here.
"""

from __future__ import annotations

import pytest

from lamina import ops

# Ops whose programs have contractions, and others that have loops of all kinds.
CONTRACTING = ("contract", "matmul", "conv", "conv_transpose", "attention", "bilinear")
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in ops.ALL
    for number, sample in enumerate(op.samples)
]
