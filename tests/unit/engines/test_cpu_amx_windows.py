"""Convolutions in the tile registers of AMX: machine code, choices, results of emulated tiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from alternatives import schedules_of
from cpu_cases import SAPPHIRE_RAPIDS, ZEN_4, Convolution, same_for_threads, windows_of
from emulated import emulate
from harness import Leaves, check
from program_cases import compiled
from simd_alternatives import legal_schedules
from test_cpu_amx import check_configurations
from test_cpu_pairs import program_of

from lamina import ops
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.machine_code import listing
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import HostProcessor
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import Schedule, WindowSchedule
from lamina.engines.simd.decide.windows import COL2IM, IMPLICIT_GEMM, WINOGRAD
from lamina.graph import Graph
from lamina.program.program import Program
from lamina.program.steps import Contraction

pytestmark = pytest.mark.sampled


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> CpuEngine:
    """The engine with emulated tiles, and so little cache that images are split into blocks."""
    emulate(monkeypatch, "amx")
    engine = CpuEngine()
    engine.processor = replace(engine.processor, level2_bytes=10 << 10, threads=3)
    return engine


def kernels_of(program: Program, processor: HostProcessor = SAPPHIRE_RAPIDS) -> set[str]:
    """The rows and the tile registers along N of each micro-kernel: `"32x2"`."""
    return set(re.findall(r"@amx_(\d+x\d)_", write_program(program, processor).text))


@pytest.fixture(scope="module")
def assembly() -> str:
    program = Convolution((8, 40), (3, 3), n=48, padding=(1, 1)).program()
    return listing(write_program(program, SAPPHIRE_RAPIDS).text, SAPPHIRE_RAPIDS)


def test_a_convolution_multiplies_in_tile_registers(assembly: str) -> None:
    check_configurations(assembly)
    assert "tdpbf16ps" in assembly
    assert "vdpbf16ps" not in assembly


@pytest.mark.parametrize("workload", ["vgg", "resnet-18"])
def test_convolutions_and_gradients_of_images_prefer_tile_registers_to_winograd(
    workload: str,
) -> None:
    program = program_of(workload)
    work = tiled = 0
    for step, how in zip(program.steps, decide(program, SAPPHIRE_RAPIDS).steps, strict=True):
        if isinstance(step, Contraction) and isinstance(how, WindowSchedule):
            b, m, n, k = step.extents
            is_forward = how.algorithm in (IMPLICIT_GEMM, *WINOGRAD.values())
            work += b * m * n * k * is_forward
            tiled += b * m * n * k * how.amx
    assert tiled > 0.9 * work


@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        (Convolution((4, 64), (1, 3), padding=(0, 0), n=48), {"31x2", "31x1"}),
        # Three rows of positions with two rows of padding between them, and the last two rows.
        (Convolution((8, 8), (3, 3), padding=(1, 1), n=32), {"28x2", "18x2"}),
        # Rows of positions are further apart than they are long: each has its own tiles.
        (Convolution((25, 25), (3, 3), stride=2, n=32), {"12x2"}),
    ],
    ids=["pieces of rows", "several rows", "strided"],
)
def test_tiles_have_the_fewest_registers(case: Convolution, kernels: set[str]) -> None:
    assert kernels_of(case.program()) == kernels


@pytest.mark.parametrize(
    "case",
    [
        Convolution((16, 16), (3, 3), channels=48, padding=(1, 1)),
        Convolution((16, 16), (3, 3), n=15, padding=(1, 1)),
        # Rows of two positions, far apart: tiles would be nearly empty.
        Convolution((32, 32), (3, 31)),
    ],
    ids=["half a tile of channels", "few results", "short rows"],
)
def test_tile_registers_that_would_be_half_empty_are_not_used(case: Convolution) -> None:
    for _, found in windows_of(case.program(), SAPPHIRE_RAPIDS):
        assert not found.amx


SAME = Convolution((16, 16), (3, 3), padding=(1, 1))


@pytest.mark.parametrize(
    ("case", "result", "processor", "expected"),
    [
        (SAME, "y", ZEN_4, (IMPLICIT_GEMM, True, False)),
        # Pairs are not gathered from positions that lie a stride apart.
        (replace(SAME, n=32, stride=2), "x", SAPPHIRE_RAPIDS, (COL2IM, True, False)),
        (Convolution((12, 12), (5, 5), n=32), "x", ZEN_4, (COL2IM, True, False)),
        (Convolution((12, 12), (5, 5), n=32), "x", SAPPHIRE_RAPIDS, (IMPLICIT_GEMM, True, True)),
    ],
    ids=["without tiles", "strided gradient", "gradient without tiles", "gradient"],
)
def test_algorithms_depend_on_tile_registers(
    case: Convolution, result: str, processor: HostProcessor, expected: tuple[str, bool, bool]
) -> None:
    ((_, found),) = windows_of(case.program(result), processor)
    assert (found.algorithm, found.paired, found.amx) == expected
    assert ("; AMX tiles of up to 32 rows; " in str(found)) == found.amx


def in_tile_registers(program: Program, engine: CpuEngine) -> Iterator[Schedule]:
    """Other schedules in which all contractions over windows are in tile registers."""
    for schedule in legal_schedules(program, engine.processor):
        found = [one for one in schedule.steps if isinstance(one, WindowSchedule)]
        if found and all(one.amx for one in found):
            yield schedule


CASES = {
    # Two panels of N, the last one not full; blocks of rows that leave a rest.
    "several rows": Convolution((5, 7), (3, 3), n=41, padding=(1, 1)),
    "pieces of rows": Convolution((3, 37), (2, 3), batch=1, channels=64, n=20),
    "one axis": Convolution((45,), (5,), n=17, padding=(2, 2)),
    "three axes": Convolution((3, 3, 6), (2, 2, 3), n=16, padding=(1, 1)),
    "stride": Convolution((9, 17), (3, 3), stride=2, n=33),
    "stride and padding": Convolution((9, 15), (3, 3), stride=2, padding=(1, 1)),
    "uneven strides": Convolution((6, 13), (3, 3), stride=(1, 2), padding=(1, 1)),
    "dilation": Convolution((7, 18), (2, 3), dilation=2, padding=(1, 1)),
    "groups": Convolution((4, 10), (2, 2), channels=64, n=38, groups=2, padding=(1, 1)),
}


def check_tiles(graph: Graph, leaves: Leaves, engine: CpuEngine) -> None:
    """The results of both schedules in tile registers equal the oracle's."""
    others = partial(in_tile_registers, engine=engine)
    program = check(graph, engine, leaves.feeds, schedules=others)
    assert [one.amx for _, one in windows_of(program, engine.processor)] == [True]
    assert len([*others(program)]) == 2


@pytest.mark.parametrize("name", CASES)
def test_convolutions_equal_the_oracles(name: str, engine: CpuEngine) -> None:
    leaves = Leaves()
    check_tiles(CASES[name].graph(leaves), leaves, engine)


@pytest.mark.parametrize(
    "case",
    [
        Convolution((5, 9), (3, 3), n=32, channels=35, padding=(1, 1)),
        Convolution((6, 11), (2, 3), n=64, channels=16, dilation=2),
    ],
)
def test_gradients_of_images_equal_the_oracles(case: Convolution, engine: CpuEngine) -> None:
    leaves = Leaves()
    check_tiles(case.graph(leaves, "x"), leaves, engine)


def test_nonfinite_numbers_reach_the_results_whose_windows_contain_them(engine: CpuEngine) -> None:
    """Not those that follow in the image after the rows between."""
    leaves = Leaves()
    graph = Convolution((5, 7), (3, 3), padding=(1, 1)).graph(leaves)
    for feed in leaves.feeds.values():
        feed[:] = np.random.default_rng(0).integers(-4, 5, feed.shape)
    leaves.feeds["x0"][0, 2, 6, 3] = np.inf
    leaves.feeds["x0"][1, 4, 0, 31] = np.nan
    program = check(graph, engine, leaves.feeds, exact=True)
    assert kernels_of(program, engine.processor) == {"25x1", "16x1"}


def test_results_do_not_depend_on_the_number_of_threads(engine: CpuEngine) -> None:
    leaves = Leaves()
    graph = Convolution((5, 9), (3, 3), batch=5, n=32, padding=(1, 1)).graph(leaves, "y", "x")
    program = compiled(graph)
    assert [one.amx for _, one in windows_of(program, engine.processor)] == [True, True]
    same_for_threads(program, leaves.feeds, engine=engine)


def test_a_contraction_without_k_has_schedules(engine: CpuEngine) -> None:
    leaves = Leaves()
    column, row = (leaves.add(np.ones(size, "float32")) for size in (6, 32))
    graph = leaves.graph([ops.outer(column, row)])
    program = compiled(graph, engine.target)
    check(graph, engine, leaves.feeds, schedules=partial(schedules_of, engine))
    assert [*legal_schedules(program, engine.processor)]
