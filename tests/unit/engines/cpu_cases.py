"""Made-up processors, and equal bits with every number of threads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from harness import Leaves, run_program
from program_cases import compiled

import lamina as lm
from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, bfloat16, size_of
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import GemmSchedule, ProgramSchedule, WindowSchedule
from lamina.engines.simd.processor import Processor
from lamina.graph import Graph, Tensor
from lamina.ops.differentiate import gradients
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.workloads import WORKLOADS

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


def classifier(*widths: int) -> lm.Network:
    layers = [x for width in widths[1:] for x in (lm.Linear(width), lm.ReLU())]
    return lm.Sequential(lm.Input(widths[0]), *layers[:-1])


def rounded(network: lm.Network, *how: Any) -> Program:
    """The program of a network whose parameters are rounded, as with instructions for bfloat16."""
    return network.plan(*how, dtype="mixed-bfloat16", engine="interpreter").program


def rounded_workload(workload: str) -> Program:
    one = WORKLOADS[workload]
    return rounded(one.network(), one.batch, one.loss, one.optimizer)


def same_for_threads(
    program: Program,
    feeds: Mapping[str, Array],
    threads: Sequence[int] = (1, 2, 3),
    engine: CpuEngine | None = None,
    schedule: Callable[[HostProcessor], Any] = lambda _: None,
) -> None:
    """A program gives the same outputs with each number of threads."""
    engine = engine or CpuEngine()
    results: list[dict[str, bytes]] = []
    for count in threads:
        engine.processor = replace(engine.processor, threads=count)
        outputs, _ = run_program(program, engine, feeds, schedule=schedule(engine.processor))
        results.append({name: np.asarray(value).tobytes() for name, value in outputs.items()})
    assert all(result == results[0] for result in results[1:])


@frozen_dataclass
class Convolution:
    """A convolution of numbers of bfloat16, with contiguous channels of results.

    Attributes:
        image: the extents of an image.
        window: the extents of a window.
        batch, channels, n, groups: the numbers of images, of their channels, of results, of groups.
        stride, dilation: along each axis, or along all axes.
        padding: before and after all axes.
        last: whether channels are contiguous in the image.
        whole: whether the numbers are small integers.
    """

    image: tuple[int, ...]
    window: tuple[int, ...]
    batch: int = 2
    channels: int = 32
    n: int = 16
    groups: int = 1
    stride: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1
    padding: tuple[int, int] = (0, 0)
    last: bool = True
    whole: bool = False

    def graph(self, leaves: Leaves, *results: str) -> Graph:
        """The convolution, or any of `"y"`, and the gradients of `"x"` and of the `"weight"`."""
        generator, rank = np.random.default_rng(0), len(self.image)
        to_last, to_first = (0, *range(2, rank + 2), 1), (0, rank + 1, *range(1, rank + 1))

        def leaf(*shape: int, last: bool = True) -> Tensor:
            """[images, channels, ...]; the last or the second axis of the leaf has the channels."""
            shape = (shape[0], *shape[2:], shape[1]) if last else shape
            drawn = generator.integers(-4, 5, shape) if self.whole else generator.normal(size=shape)
            x = ops.cast(leaves.add(drawn.astype(bfloat16.numpy)), "float32")
            return ops.transpose(x, to_first) if last else x

        x = leaf(self.batch, self.channels, *self.image, last=self.last)
        weight = leaf(self.n, self.channels // self.groups, *self.window)
        padding = [self.padding] * rank
        y = ops.conv(x, weight, self.stride, padding, self.dilation, groups=self.groups)
        tensors = {"y": y}
        if results:
            total = ops.sum(y * leaf(self.batch, *y.shape[1:]))
            slopes = gradients(total, [x, weight])
            tensors |= dict(zip(("x", "weight"), slopes, strict=True))
        made = [ops.transpose(tensors[name], to_last) for name in results or ("y",)]
        return leaves.graph(made)

    def program(self, *results: str) -> Program:
        return compiled(self.graph(Leaves(), *results))


def windows_of(
    program: Program, processor: Processor, schedule: ProgramSchedule | None = None
) -> list[tuple[Contraction, WindowSchedule]]:
    """The contractions over windows, and their schedules."""
    schedule = schedule or decide(program, processor)
    return [
        (step, step_schedule)
        for step, step_schedule in zip(program.steps, schedule.steps, strict=True)
        if isinstance(step, Contraction) and isinstance(step_schedule, WindowSchedule)
    ]


def share_of(
    program: Program,
    processor: Processor,
    counts: Callable[[GemmSchedule | WindowSchedule], bool],
    among: Callable[[GemmSchedule | WindowSchedule], bool] = lambda _: True,
) -> float:
    """The share of multiply-adds of contractions that count, of some or of all but loops."""
    works = [
        (how, size_of(step.extents))
        for step, how in zip(program.steps, decide(program, processor).steps, strict=True)
        if isinstance(step, Contraction) and isinstance(how, GemmSchedule | WindowSchedule)
    ]
    counted, others = (sum(work for how, work in works if of(how)) for of in (counts, among))
    return counted / others
