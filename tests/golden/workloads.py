"""What the workloads are compiled to: costs and schedules of their programs, and bits of results.

The costs are the steps of a program, their operations and bytes, and its arena. Schedules are those
of the cpu engine for a made-up processor, so that they are the same on every machine. Results are
the bits of outputs and parameters after some training steps of smaller networks with the same
layers, for a processor that has the instructions of this one and the sizes of the made-up one.
"""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from lamina.base.shapes import Array
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.processor import HostProcessor, host
from lamina.engines.simd.decide.program import decide
from lamina.program.cost import cost_of
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.workloads import WORKLOADS, Ready, Runner, Workload

FOLDER = Path(__file__).parent
FIGURES = FOLDER / "workload_figures.txt"
SCHEDULES = FOLDER / "workload_schedules.txt"
BITS = FOLDER / "workload_bits.txt"
VECTORS: Mapping[str, tuple[int, int, bool]] = {
    "avx512": (64, 32, True),
    "avx2": (32, 16, True),
    "sse2": (16, 16, False),
}
# Two threads, and caches of a common size.
_SIZES = {
    "level1_bytes": 48 << 10,
    "level2_bytes": 1 << 20,
    "level3_bytes": 32 << 20,
    "threads": 2,
    "registers_at_once": 4,
    "winograd_saving": 0.0,
    "bfloat16_pairs": False,
    "bfloat16_tiles": False,
}


def processor(vectors: str) -> HostProcessor:
    """The made-up processor."""
    vector_bytes, registers, fused = VECTORS[vectors]
    return HostProcessor(
        name="x86-64",
        triple="x86_64-unknown-linux-gnu",
        features="",
        description="made up",
        vectors=vectors,
        vector_bytes=vector_bytes,
        registers=registers,
        halves=vectors != "sse2",
        refusal="",
        fused=fused,
        **_SIZES,
    )


@cache
def program_of(workload: str) -> Program:
    """The program that benchmarks time."""
    one = WORKLOADS[workload]
    return one.network().plan(one.batch, one.loss, one.optimizer).program


def figures(workload: str) -> str:
    """A line: the costs of the program."""
    program = program_of(workload)
    contractions = sum(isinstance(step, Contraction) for step in program.steps)
    moved = operations = 0
    for number, step in enumerate(program.steps):
        repeat = program.repeated(number)
        cost = cost_of(step, program.buffers, repeat.axis if repeat is not None else None)
        moved += cost.bytes
        operations += cost.operations
    return (
        f"{workload}: {len(program.steps)} steps, {contractions} contractions, "
        f"{operations} operations, {moved} bytes moved, {program.plan.arena_bytes} bytes of arena"
    )


def schedules(workload: str, vectors: str = "avx512") -> str:
    """A paragraph: the schedules of the steps; each is printed once, with the steps that have it.

    Numbers of other steps are relative: "fused after step -2".
    """
    schedule = decide(program_of(workload), processor(vectors))
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for number in range(len(program_of(workload).steps)):
        text = schedule.text(number).removeprefix(f"{number}: ")
        text = re.sub(
            r"(?<= step )\d+", lambda other, n=number: f"{int(other[0]) - n:+d}", text
        ).replace(" step +0", " it")
        steps[re.sub(r"\n *", "\n  ", text)].append(number)
    rows = (f"{', '.join(map(str, numbers))}: {text}" for text, numbers in steps.items())
    return "\n".join((f"{workload} with {vectors}", *rows))


# Results ------------------------------------------------------------------------------------------

_SMALL_OPTIONS: dict[str, dict[str, Any]] = {
    "resnet": {"input": (3, 16, 16), "width": 8},
    "mobilenet_v2": {"input": (3, 32, 32), "width": 0.25},
    "transformer_encoder": {
        "vocabulary": 32,
        "length": 16,
        "features": 32,
        "heads": 4,
        "layers": 2,
        "hidden": 80,
    },
}


def small(workload: Workload) -> Workload:
    """The workload with fewer examples and features, of odd numbers too."""

    def fewer(value: Any) -> Any:
        return value // 4 if isinstance(value, int) and value > 16 else value

    network = workload.architecture
    if isinstance(network, Ready):
        network = replace(network, options=network.options | _SMALL_OPTIONS[network.function])
    else:
        sizes = ("features", "channels")
        layers = tuple(
            replace(layer, **{f.name: fewer(getattr(layer, f.name)) for f in scaled})
            if (scaled := [f for f in fields(layer) if f.name in sizes])
            else layer
            for layer in network.layers
        )
        first = network.input_shape
        shape = (fewer(first[0]),) if len(first) == 1 else first
        network = replace(network, input_shape=shape, layers=layers)
    batch = min(workload.batch, 6)
    return replace(workload, architecture=network, batch=batch, examples=workload.examples and 30)


@cache
def runs_here(vectors: str) -> HostProcessor | None:
    """This machine's processor with the sizes of the made-up one; None without these vectors."""
    from lamina.errors import EngineError

    with mock.patch.dict(os.environ, LAMINA_VECTORS=vectors):
        try:
            return replace(host(), **_SIZES)
        except EngineError:
            return None


def bits(workload: str, vectors: str) -> str:
    """A line: checksums of outputs and parameters, and the mean of the outputs, to be read."""
    engine, reduced = CpuEngine(), small(WORKLOADS[workload])
    processor = runs_here(vectors)
    assert processor is not None
    engine.processor = processor
    with mock.patch("lamina.model.open_engine", return_value=engine):
        runner = Runner(reduced)
        if reduced.loss is not None:
            runner.run(3)
        outputs, parameters = runner._model.predict(runner._x), runner._model.parameters()
        runner.release()
    mean = np.mean(outputs, dtype="float64")
    return (
        f"{workload} {vectors}: outputs {_checksum(outputs)} with the mean {mean:.9g}, "
        f"parameters {_checksum(*parameters.values())}"
    )


def _checksum(*arrays: Array) -> str:
    return hashlib.sha256(b"".join(one.tobytes() for one in arrays)).hexdigest()[:16]
