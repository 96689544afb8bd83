"""Matrix products in the tile registers of AMX: machine code, and results of emulated tiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_cases import FEATURES, SAPPHIRE_RAPIDS, check_threads
from emulated import emulate
from error_texts import error_text
from harness import Leaves, check
from simd_alternatives import legal_schedules
from test_cpu_pairs import program_of, rounded

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, bfloat16, float32
from lamina.engines.cpu import tile_permission
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.machine_code import compiled, listing
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import HostProcessor, host
from lamina.engines.cpu.run import peaks
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import (
    ALONG_K,
    AMX,
    DIRECT,
    GemmSchedule,
    LoopSchedule,
    Schedule,
)
from lamina.errors import EngineError
from lamina.graph import Graph, Tensor
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.step.rounding import with_rounded_products

pytestmark = pytest.mark.sampled


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> CpuEngine:
    """The engine with emulated tiles."""
    emulate(monkeypatch, "amx")
    return CpuEngine()


def products_of(program: Program, processor: HostProcessor) -> list[GemmSchedule]:
    """The schedules of matrix products."""
    steps = decide(program, processor).steps
    return [one for one in steps if isinstance(one, GemmSchedule)]


@pytest.fixture(scope="module")
def assembly() -> str:
    net = lm.Sequential(lm.Input(130), lm.Linear(64))
    program = rounded(net, 70, lm.MSE(), lm.SGD(0.1))
    return listing(write_program(program, SAPPHIRE_RAPIDS).text, SAPPHIRE_RAPIDS)


def test_a_micro_kernel_loads_each_operand_once_for_four_products(assembly: str) -> None:
    check_configurations(assembly)
    body = re.search(
        r"^amx_24x2_\d+_over_kx32_from_zero:(.*?)\tretq", assembly, re.MULTILINE | re.DOTALL
    )
    assert body is not None
    # The numbers of the registers of each instruction, in the order of the code.
    registers: dict[str, list[str]] = {}
    for word, operands in re.findall(r"\t(tile\w+|tdp\w+)\t(.*)", body[1]):
        registers.setdefault(word, []).append("".join(re.findall(r"%tmm(\d)", operands)))
    # Of products: right operand, left operand, sums.
    assert registers == {
        "tilezero": ["0", "1", "2", "3"],
        "tileloadd": ["6", "7", "4", "5"],
        "tdpbf16ps": ["640", "741", "652", "753"],
        "tilestored": ["0", "1", "2", "3"],
    }


def check_configurations(assembly: str) -> None:
    """Each function that calls micro-kernels configures tiles before, and releases them once."""
    functions = re.split(r"^(?=\w+:\s)", assembly, flags=re.MULTILINE)
    callers = [text for text in functions if re.search(r"callq?\s+amx_", text)]
    assert callers
    for text in callers:
        words = re.findall(r"\t(ldtilecfg|tilerelease|callq?\tamx_)", text)
        assert words[0] == "ldtilecfg"
        assert words[-1] == "tilerelease"
        assert words.count("tilerelease") == 1


@pytest.mark.parametrize("workload", ["mlp", "transformer"])
def test_large_matrix_products_are_in_tile_registers(workload: str) -> None:
    program = program_of(workload)
    work = tiled = 0
    for step, how in zip(program.steps, decide(program, SAPPHIRE_RAPIDS).steps, strict=True):
        if isinstance(step, Contraction) and not isinstance(how, LoopSchedule):
            b, m, n, k = step.extents
            work += b * m * n * k
            tiled += b * m * n * k * (how.algorithm == AMX)
    assert tiled > 0.9 * work
    text = str(products_of(program, SAPPHIRE_RAPIDS)[0])
    assert workload != "mlp" or text.startswith("AMX tiles of 32x32 for M=128, N=256, K=784; ")


@pytest.mark.parametrize(("k", "left"), [(64, DIRECT), (66, ALONG_K)])
def test_operands_are_read_in_place_only_without_zeros_along_k(k: int, left: str) -> None:
    net = lm.Sequential(lm.Input(40), lm.Linear(k), lm.ReLU(), lm.Linear(64))
    program = rounded(net, 32)
    assert products_of(program, SAPPHIRE_RAPIDS)[-1].left == left


def test_small_products_are_not_in_tile_registers() -> None:
    net = lm.Sequential(lm.Input(100), lm.Linear(100))
    program = rounded(net, 12)
    assert [one.algorithm for one in products_of(program, SAPPHIRE_RAPIDS)] == ["tiles"]


def rounded_product(
    leaves: Leaves, b: int, m: int, n: int, k: int, transposed: str = "", epilogue: bool = False
) -> Graph:
    """A product of random matrices of bfloat16, some transposed in memory: `"l"`, `"r"`, `"lr"`."""
    generator = np.random.default_rng(m * n + k)

    def operand(rows: int, columns: int, is_transposed: bool) -> Tensor:
        shape = (b, columns, rows) if is_transposed else (b, rows, columns)
        x = leaves.add(generator.standard_normal(shape, "float32").astype(bfloat16.numpy))
        return ops.transpose(x, (0, 2, 1)) if is_transposed else x

    left = operand(m, k, "l" in transposed)
    right = operand(k, n, "r" in transposed)
    product = ops.matmul(ops.cast(left, "float32"), ops.cast(right, "float32"))
    if epilogue:
        product = ops.tanh(product + leaves.add(generator.standard_normal(n, "float32")))
        return leaves.graph([product, ops.sum(product, (0, 1))])
    return leaves.graph([product])


def in_tile_registers(program: Program, engine: CpuEngine) -> Iterator[Schedule]:
    """Other schedules in which all matrix products are in tile registers."""
    for schedule in legal_schedules(program, engine.processor):
        products = [one for one in schedule.steps if isinstance(one, GemmSchedule)]
        if products and all(one.algorithm == AMX for one in products):
            yield schedule


@pytest.mark.parametrize(
    ("b", "m", "n", "k", "transposed"),
    [
        (1, 33, 31, 65, ""),  # a row more than two tiles; a K that is odd
        (1, 16, 17, 64, "l"),
        (2, 37, 50, 70, "r"),
        (3, 50, 33, 34, "lr"),
        (1, 100, 64, 128, ""),
    ],
)
def test_products_equal_the_oracles(
    b: int, m: int, n: int, k: int, transposed: str, engine: CpuEngine
) -> None:
    leaves = Leaves()
    graph = rounded_product(leaves, b, m, n, k, transposed)
    program = check(
        graph, engine, leaves.feeds, schedules=lambda one: in_tile_registers(one, engine)
    )
    assert [one.algorithm for one in products_of(program, engine.processor)] == [AMX]
    assert len([*in_tile_registers(program, engine)]) == 3


def test_epilogues_and_fused_column_sums_read_the_sums_of_tiles(engine: CpuEngine) -> None:
    leaves = Leaves()
    graph = rounded_product(leaves, 1, 70, 50, 40, epilogue=True)
    program = check(graph, engine, leaves.feeds)
    assert "fused after it" in str(decide(program, engine.processor))


def check_rounded(x: Array, y: Array, engine: CpuEngine, *, exact: bool) -> None:
    leaves = Leaves()
    graph = leaves.graph([ops.matmul(leaves.add(x), leaves.add(y))])
    check(with_rounded_products(graph, bfloat16), engine, leaves.feeds, exact=exact)


def test_float32_operands_are_rounded_when_they_are_packed(engine: CpuEngine) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 45, 45), "float32")
    check_rounded(x, y, engine, exact=False)


def test_infinite_numbers_next_to_zeros_along_k_give_no_nan(engine: CpuEngine) -> None:
    x, y = np.ones((2, 20, 33, 33), "float32")[:, 0]
    x[-1, :], y[:, -1] = np.inf, 2
    check_rounded(x, y, engine, exact=True)


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, "amx")
    check_threads(
        lm.Sequential(lm.Input(100), lm.Linear(70), lm.ReLU(), lm.Linear(33)),
        np.random.default_rng(0).standard_normal((150, 100), "float32"),
        np.ones((150, 33), "float32"),
        monkeypatch,
        "mixed-bfloat16",
    )


def test_the_peak_of_bfloat16_is_that_of_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, "amx")
    texts: list[str] = []
    monkeypatch.setattr(peaks, "_CALLS", 3)
    monkeypatch.setattr(peaks, "_best", lambda run: run() or 1.0)
    monkeypatch.setattr(peaks, "_bytes", lambda *_: 1.0)
    monkeypatch.setattr(
        peaks, "compiled", lambda text, of: texts.append(text) or compiled(text, of)
    )
    processor = host()
    of_tiles, of_vectors = (
        peaks.measured_peaks(processor, dtype).operations for dtype in (bfloat16, float32)
    )
    # Two multiplications and two additions for each pair, step along K, row and column.
    assert of_tiles == 3 * 4 * 128 * 32 * 32 * processor.threads
    assert of_vectors < of_tiles
    assert ["amx_32x2" in text for text in texts] == [True, False]


@pytest.mark.parametrize(
    ("vectors", "refusal", "ending"),
    [
        ("", lambda: "", "threads, amx"),
        (
            *("", lambda: "Invalid argument"),
            "threads, avx512 (the system refuses the tile registers of AMX: Invalid argument)",
        ),
        # The system is not asked.
        ("avx512", None, "threads, avx512"),
        ("amx", lambda: "Invalid argument", "  system    refuses tile registers: Invalid argument"),
    ],
    ids=["permitted", "refused", "not wanted", "wanted and refused"],
)
def test_tiles_are_used_if_the_system_permits_it(
    vectors: str, refusal: Any, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = dict.fromkeys([*FEATURES, "amx-tile", "amx-bf16"], True)
    monkeypatch.setattr(
        "lamina.engines.cpu.llvm.host_target",
        lambda: ("sapphirerapids", dict(flags), "x86_64-unknown-linux-gnu"),
    )
    monkeypatch.setattr("lamina.engines.cpu.tile_permission.refusal", refusal)
    monkeypatch.setenv("LAMINA_VECTORS", vectors)
    if vectors == "amx":
        assert error_text(EngineError, CpuEngine).splitlines()[2:4] == ["  found     'amx'", ending]
        return
    engine = CpuEngine()
    assert engine.device.description.endswith(ending)
    assert engine.processor.bfloat16_pairs
    assert engine.processor.bfloat16_tiles == ending.endswith("amx")


def test_the_reason_is_the_systems_text() -> None:
    """Empty on processors with AMX; on others the system has no such state to save."""
    reasons = ("", "Invalid argument", "Operation not supported", "only Linux is asked for them")
    assert tile_permission.refusal() in reasons
