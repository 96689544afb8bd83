"""Made-up processors, and equal bits with every number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import run_program

import lamina as lm
from lamina.base.shapes import Array
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.processor import HostProcessor
from lamina.program.program import Program

FEATURES = ["avx2", "avx", "fma", "f16c", "sse4.2", "avx512bf16"]
FEATURES += [f"avx512{part}" for part in ("f", "bw", "dq", "vl")]
# With AVX-512 and instructions on bfloat16, also where there is none.
ZEN_4 = HostProcessor(
    name="znver4",
    triple="x86_64-unknown-linux-gnu",
    features=",".join(f"+{feature}" for feature in FEATURES),
    description="made up",
    vectors="avx512",
    halves=True,
    refusal="",
    vector_bytes=64,
    registers=32,
    fused=True,
    bfloat16_pairs=True,
    bfloat16_tiles=False,
    level1_bytes=32 << 10,
    level2_bytes=1 << 20,
    level3_bytes=32 << 20,
    threads=2,
    registers_at_once=4,
    winograd_saving=0.0,
)
SAPPHIRE_RAPIDS = replace(
    ZEN_4,
    name="sapphirerapids",
    features=f"{ZEN_4.features},+amx-tile,+amx-bf16",
    vectors="amx",
    bfloat16_tiles=True,
)


def check_threads(
    net: lm.Network, x: Array, y: Array, monkeypatch: pytest.MonkeyPatch, dtype: str = "float32"
) -> None:
    """A training step gives the same parameters with one to three threads."""
    found: list[list[bytes]] = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("LAMINA_THREADS", threads)
        model = lm.Model(net, dtype=dtype)
        with model.training(lm.MSE(), lm.SGD(0.1), len(x)) as training:
            training.step(x, y)
        found.append([value.tobytes() for value in model.parameters().values()])
    assert found[0] == found[1] == found[2]


def same_for_threads(
    program: Program,
    feeds: Mapping[str, Array],
    threads: Sequence[int] = (1, 2, 3),
    engine: CpuEngine | None = None,
    schedule: Callable[[HostProcessor], Any] = lambda _: None,
) -> None:
    """A program gives the same outputs with each number of threads."""
    engine = engine or CpuEngine()
    found: list[dict[str, bytes]] = []
    for count in threads:
        engine.processor = replace(engine.processor, threads=count)
        outputs, _ = run_program(program, engine, feeds, schedule=schedule(engine.processor))
        found.append({name: np.asarray(value).tobytes() for name, value in outputs.items()})
    assert all(one == found[0] for one in found[1:])
