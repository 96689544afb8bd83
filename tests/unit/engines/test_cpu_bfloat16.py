"""Products of bfloat16 on the cpu engine, as pairs and in the tile registers of AMX."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import program_cases
import pytest
from alternatives import schedules_of
from cpu_cases import (
    FEATURES,
    SAPPHIRE_RAPIDS,
    ZEN_4,
    Convolution,
    rounded,
    rounded_workload,
    same_for_threads,
    share_of,
    windows_of,
)
from emulated import emulate
from error_texts import error_text
from harness import Leaves, check
from simd_alternatives import alternatives_of, legal_schedules

import lamina as lm
from lamina import ops
from lamina.base.shapes import bfloat16, float32
from lamina.codegen.matrix import stored
from lamina.engines.cpu.compilation import compiled
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.llvm import listing
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import host, tile_refusal
from lamina.engines.cpu.run import peaks
from lamina.engines.simd.decide.images import Image, ImageSide
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import ALONG_K, AMX, DIRECT, GemmSchedule, WindowSchedule
from lamina.engines.simd.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD,
    paired_readings,
    reading,
)
from lamina.errors import EngineError
from lamina.program.index import Axis
from lamina.program.scalar import Apply, Literal, Load
from lamina.program.steps import Contraction, Loop, stores_of
from lamina.program.windows import Sliding
from lamina.step.rounding import with_rounded_products

pytestmark = pytest.mark.sampled


@pytest.fixture
def engine(monkeypatch):
    emulate(monkeypatch, "amx")
    return CpuEngine()


def with_little_cache(vectors, level2_bytes, monkeypatch):
    """An engine that has so little cache that images are split into blocks."""
    if vectors == "amx" or not host().bfloat16_pairs:
        emulate(monkeypatch, vectors)
    engine = CpuEngine()
    engine.processor = replace(engine.processor, level2_bytes=level2_bytes, threads=3)
    return engine


@pytest.fixture
def small_engine(monkeypatch):
    return with_little_cache("amx", 10 << 10, monkeypatch)


@pytest.fixture
def pair_engine(monkeypatch):
    return with_little_cache("avx512", 6 << 10, monkeypatch)


def products_of(program, processor):
    steps = decide(program, processor).steps
    return [one for one in steps if isinstance(one, GemmSchedule)]


def checked_assembly(program):
    """Each function that calls micro-kernels configures tiles before, and releases them once."""
    assembly = listing(write_program(program, SAPPHIRE_RAPIDS).text, SAPPHIRE_RAPIDS)
    functions = re.split(r"^(?=\w+:\s)", assembly, flags=re.MULTILINE)
    callers = [text for text in functions if re.search(r"callq?\s+amx_", text)]
    assert callers
    for text in callers:
        words = re.findall(r"\t(ldtilecfg|tilerelease|callq?\tamx_)", text)
        assert words[0] == "ldtilecfg"
        assert words[-1] == "tilerelease"
        assert words.count("tilerelease") == 1
    return assembly


def test_a_micro_kernel_loads_each_operand_once_for_four_products():
    net = lm.Sequential(lm.Input(130), lm.Linear(64))
    assembly = checked_assembly(rounded(net, 70, lm.MSE(), lm.SGD(0.1)))
    body = re.search(
        r"^amx_24x2_\d+_over_kx32_from_zero:(.*?)\tretq", assembly, re.MULTILINE | re.DOTALL
    )
    # The numbers of the registers of each instruction, in the order of the code.
    registers = {}
    for word, operands in re.findall(r"\t(tile\w+|tdp\w+)\t(.*)", body[1]):
        registers.setdefault(word, []).append("".join(re.findall(r"%tmm(\d)", operands)))
    # Of products: right operand, left operand, sums.
    assert registers == {
        "tilezero": ["0", "1", "2", "3"],
        "tileloadd": ["6", "7", "4", "5"],
        "tdpbf16ps": ["640", "741", "652", "753"],
        "tilestored": ["0", "1", "2", "3"],
    }


@pytest.mark.parametrize("workload", ["mlp", "transformer"])
def test_large_matrix_products_are_in_tile_registers(workload):
    program = rounded_workload(workload)
    assert share_of(program, SAPPHIRE_RAPIDS, lambda how: how.algorithm == AMX) > 0.9
    text = str(products_of(program, SAPPHIRE_RAPIDS)[0])
    assert workload != "mlp" or text.startswith("AMX tiles of 32x32 for M=128, N=256, K=784; ")


@pytest.mark.parametrize(("k", "left"), [(64, DIRECT), (66, ALONG_K)])
def test_operands_are_read_in_place_only_without_zeros_along_k(k, left):
    net = lm.Sequential(lm.Input(40), lm.Linear(k), lm.ReLU(), lm.Linear(64))
    program = rounded(net, 32)
    assert products_of(program, SAPPHIRE_RAPIDS)[-1].left == left


def test_small_products_are_not_in_tile_registers():
    net = lm.Sequential(lm.Input(100), lm.Linear(100))
    program = rounded(net, 12)
    assert [one.algorithm for one in products_of(program, SAPPHIRE_RAPIDS)] == ["tiles"]


def rounded_product(leaves, b, m, n, k, transposed="", epilogue=False):
    """A product of random matrices of bfloat16, some transposed in memory: `"l"`, `"r"`, `"lr"`."""
    generator = np.random.default_rng(m * n + k)

    def operand(rows, columns, is_transposed):
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


def in_tile_registers(program, engine, kind=GemmSchedule):
    """Other schedules in which all products, or contractions over windows, are in tiles."""
    for schedule in legal_schedules(program, engine.processor):
        steps = [step for step in schedule.steps if isinstance(step, kind)]
        if steps and all(step.algorithm == AMX or getattr(step, "amx", False) for step in steps):
            yield schedule


@pytest.mark.cases(
    ("b", "m", "n", "k", "transposed"),
    (1, 33, 31, 65, ""),  # a row more than two tiles; a K that is odd
    (1, 16, 17, 64, "l"),
    (2, 37, 50, 70, "r"),
    (3, 50, 33, 34, "lr"),
    (1, 100, 64, 128, ""),
)
def test_products_equal_the_oracles(b, m, n, k, transposed, engine):
    leaves = Leaves()
    graph = rounded_product(leaves, b, m, n, k, transposed)
    program = check(
        graph, engine, leaves.feeds, schedules=partial(in_tile_registers, engine=engine)
    )
    assert [product.algorithm for product in products_of(program, engine.processor)] == [AMX]
    assert len([*in_tile_registers(program, engine)]) == 3


def test_epilogues_and_fused_column_sums_read_the_sums_of_tiles(engine):
    leaves = Leaves()
    graph = rounded_product(leaves, 1, 70, 50, 40, epilogue=True)
    program = check(graph, engine, leaves.feeds)
    assert "fused after it" in str(decide(program, engine.processor))


@pytest.mark.parametrize("infinite", [False, True])
def test_float32_operands_are_rounded_when_they_are_packed(infinite, engine):
    """Infinite numbers next to zeros along K give no NaN."""
    x, y = np.random.default_rng(0).standard_normal((2, 45, 45), "float32")
    if infinite:
        x[:], y[:] = 1, 1
        x[-1, :], y[:, -1] = np.inf, 2
    leaves = Leaves()
    graph = leaves.graph([ops.matmul(leaves.add(x), leaves.add(y))])
    check(with_rounded_products(graph, bfloat16), engine, leaves.feeds, exact=infinite)


def test_the_peak_of_bfloat16_is_that_of_the_tiles(monkeypatch):
    emulate(monkeypatch, "amx")
    texts = []
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


@pytest.mark.cases(
    ("vectors", "refusal", "ending"),
    ("", lambda: "", "threads, amx"),
    (
        *("", lambda: "Invalid argument"),
        "threads, avx512 (the system refuses the tile registers of AMX: Invalid argument)",
    ),
    # The system is not asked.
    ("avx512", None, "threads, avx512"),
    ("amx", lambda: "Invalid argument", "  system    refuses tile registers: Invalid argument"),
    ids=["permitted", "refused", "not wanted", "wanted and refused"],
)
def test_tiles_are_used_if_the_system_permits_it(vectors, refusal, ending, monkeypatch):
    flags = dict.fromkeys([*FEATURES, "amx-tile", "amx-bf16"], True)
    monkeypatch.setattr(
        "lamina.engines.cpu.llvm.host_target",
        lambda: ("sapphirerapids", dict(flags), "x86_64-unknown-linux-gnu"),
    )
    monkeypatch.setattr("lamina.engines.cpu.processor.tile_refusal", refusal)
    monkeypatch.setenv("LAMINA_VECTORS", vectors)
    if vectors == "amx":
        assert error_text(EngineError, CpuEngine).splitlines()[2:4] == ["  found     'amx'", ending]
        return
    engine = CpuEngine()
    assert engine.device.description.endswith(ending)
    assert engine.processor.bfloat16_pairs
    assert engine.processor.bfloat16_tiles == ending.endswith("amx")


def test_the_reason_is_the_systems_text():
    """Empty on processors with AMX; on others the system has no such state to save."""
    reasons = ("", "Invalid argument", "Operation not supported", "only Linux is asked for them")
    assert tile_refusal() in reasons


def kernels_of(program, processor=SAPPHIRE_RAPIDS):
    """The rows and the tile registers along N of each micro-kernel: `"32x2"`."""
    return set(re.findall(r"@amx_(\d+x\d)_", write_program(program, processor).text))


def test_a_convolution_multiplies_in_tile_registers():
    assembly = checked_assembly(Convolution((8, 40), (3, 3), n=48, padding=(1, 1)).program())
    assert "tdpbf16ps" in assembly
    assert "vdpbf16ps" not in assembly


@pytest.mark.parametrize("workload", ["vgg", "resnet-18"])
def test_convolutions_and_gradients_of_images_prefer_tile_registers_to_winograd(workload):
    share = share_of(
        rounded_workload(workload),
        SAPPHIRE_RAPIDS,
        lambda how: getattr(how, "amx", False),
        among=lambda how: how.algorithm in (IMPLICIT_GEMM, *WINOGRAD.values()),
    )
    assert share > 0.9


@pytest.mark.cases(
    ("case", "kernels"),
    (Convolution((4, 64), (1, 3), padding=(0, 0), n=48), {"31x2", "31x1"}),
    # Three rows of positions with two rows of padding between them, and the last two rows.
    (Convolution((8, 8), (3, 3), padding=(1, 1), n=32), {"28x2", "18x2"}),
    # Rows of positions are further apart than they are long: each has its own tiles.
    (Convolution((25, 25), (3, 3), stride=2, n=32), {"12x2"}),
    ids=["pieces of rows", "several rows", "strided"],
)
def test_tiles_have_the_fewest_registers(case, kernels):
    assert kernels_of(case.program()) == kernels


@pytest.mark.cases(
    "case",
    Convolution((16, 16), (3, 3), channels=48, padding=(1, 1)),
    Convolution((16, 16), (3, 3), n=15, padding=(1, 1)),
    # Rows of two positions, far apart: tiles would be nearly empty.
    Convolution((32, 32), (3, 31)),
    ids=["half a tile of channels", "few results", "short rows"],
)
def test_tile_registers_that_would_be_half_empty_are_not_used(case):
    for _, schedule in windows_of(case.program(), SAPPHIRE_RAPIDS):
        assert not schedule.amx


SAME = Convolution((16, 16), (3, 3), padding=(1, 1))


@pytest.mark.cases(
    ("case", "result", "processor", "expected"),
    (SAME, "y", ZEN_4, (IMPLICIT_GEMM, True, False)),
    # Pairs are not gathered from positions that lie a stride apart.
    (replace(SAME, n=32, stride=2), "x", SAPPHIRE_RAPIDS, (COL2IM, True, False)),
    (Convolution((12, 12), (5, 5), n=32), "x", ZEN_4, (COL2IM, True, False)),
    (Convolution((12, 12), (5, 5), n=32), "x", SAPPHIRE_RAPIDS, (IMPLICIT_GEMM, True, True)),
    ids=["without tiles", "strided gradient", "gradient without tiles", "gradient"],
)
def test_algorithms_depend_on_tile_registers(case, result, processor, expected):
    ((_, schedule),) = windows_of(case.program(result), processor)
    assert (schedule.algorithm, schedule.paired, schedule.amx) == expected
    assert ("; AMX tiles of up to 32 rows; " in str(schedule)) == schedule.amx


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


GRADIENTS = {
    "uneven channels": Convolution((5, 9), (3, 3), n=32, channels=35, padding=(1, 1)),
    "dilated": Convolution((6, 11), (2, 3), n=64, channels=16, dilation=2),
}


@pytest.mark.parametrize(
    ("case", "results"),
    [*((one, ()) for one in CASES.values()), *((one, ("x",)) for one in GRADIENTS.values())],
    ids=[*CASES, *(f"gradient, {name}" for name in GRADIENTS)],
)
def test_convolutions_and_gradients_of_images_equal_the_oracles(case, results, small_engine):
    leaves, processor = Leaves(), small_engine.processor
    others = partial(in_tile_registers, engine=small_engine, kind=WindowSchedule)
    program = check(case.graph(leaves, *results), small_engine, leaves.feeds, schedules=others)
    assert [one.amx for _, one in windows_of(program, processor)] == [True]
    assert len([*others(program)]) == 2


def test_nonfinite_numbers_reach_the_results_whose_windows_contain_them(small_engine):
    """Not those that follow in the image after the rows between."""
    leaves = Leaves()
    graph = Convolution((5, 7), (3, 3), padding=(1, 1)).graph(leaves)
    for feed in leaves.feeds.values():
        feed[:] = np.random.default_rng(0).integers(-4, 5, feed.shape)
    leaves.feeds["x0"][0, 2, 6, 3] = np.inf
    leaves.feeds["x0"][1, 4, 0, 31] = np.nan
    program = check(graph, small_engine, leaves.feeds, exact=True)
    assert kernels_of(program, small_engine.processor) == {"25x1", "16x1"}


def test_a_contraction_without_k_has_schedules_but_no_pairs(small_engine):
    leaves = Leaves()
    column, row = (leaves.add(np.ones(size, "float32")) for size in (6, 32))
    graph = leaves.graph([ops.outer(column, row)])
    others = partial(schedules_of, small_engine)
    program = check(graph, small_engine, leaves.feeds, schedules=others)
    assert [*legal_schedules(program, small_engine.processor)]
    (step,) = program.steps
    assert not step.k
    assert paired_readings(step) == {}


def is_filtered(how):
    """Whether it has tiles of 4x4."""
    return "4x4" in how.algorithm


@pytest.mark.parametrize("workload", ["mlp", "lenet", "transformer", "lstm"])
def test_large_products_are_of_pairs(workload):
    assert share_of(rounded_workload(workload), ZEN_4, lambda how: how.paired) > 0.9


@pytest.mark.parametrize(("workload", "least"), [("vgg", 0.9), ("resnet-18", 0.5)])
def test_convolutions_of_3x3_have_tiles_of_4x4_instead_of_pairs(workload, least):
    """They take 4 times fewer multiplications, pairs half as many instructions."""
    program = rounded_workload(workload)
    assert share_of(program, ZEN_4, is_filtered) > least
    assert share_of(program, ZEN_4, lambda how: how.paired or is_filtered(how)) > 0.99


def test_without_the_instructions_no_product_is_of_pairs():
    program = rounded_workload("lenet")
    for how in decide(program, replace(ZEN_4, bfloat16_pairs=False)).steps:
        assert not getattr(how, "paired", False)


@pytest.mark.parametrize("workload", ["mlp", "lenet"])
def test_the_machine_code_multiplies_pairs(workload):
    native = write_program(rounded_workload(workload), ZEN_4)
    assembly = listing(native.text, ZEN_4)
    assert re.search(r"vdpbf16ps\s+.*\{1to16\}", assembly)
    assert re.search(r"vdpbf16ps\s+.*zmm", assembly)


@pytest.mark.parametrize("workload", ["wide-step", "mlp", "lenet", "vgg", "resnet-18"])
def test_casts_need_no_pass_of_their_own(workload):
    """Operands are rounded when they are packed, and results when they are computed."""
    for step in rounded_workload(workload).steps:
        if isinstance(step, Loop):
            values = [store.value for store in stores_of(step)]
            casts = [one for one in values if isinstance(one, Apply) and one.primitive == "cast"]
            assert not all(one in casts and isinstance(one.operands[0], Load) for one in values)


@pytest.mark.parametrize("vectors", ["avx512", "amx"])
def test_results_do_not_depend_on_the_number_of_threads(vectors, monkeypatch):
    if vectors == "amx" or not host().bfloat16_pairs:
        emulate(monkeypatch, vectors)
    layers = lm.Conv2d(33, 3), lm.ReLU(), lm.Flatten(), lm.Linear(70)
    net = lm.Sequential(lm.Input(8, 20, 20), *layers)
    x = np.random.default_rng(0).standard_normal((40, 8, 20, 20), "float32")
    parameters = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("LAMINA_THREADS", threads)
        model = lm.Model(net, dtype="mixed-bfloat16")
        with model.training(lm.MSE(), lm.SGD(0.1), len(x)) as training:
            training.step(x, np.ones((40, 70), "float32"))
        parameters.append([value.tobytes() for value in model.parameters().values()])
    assert parameters[0] == parameters[1] == parameters[2]


strided = partial(Convolution, stride=2, batch=3, channels=8, n=20, whole=True)


@pytest.mark.cases(
    ("case", "paired"),
    (strided((16, 16), (3, 3), padding=(1, 1)), True),
    (strided((16, 16), (1, 1)), True),
    (strided((16, 16), (1, 1), padding=(2, 2)), True),
    (strided((20, 20), (5, 5), stride=3), True),
    (strided((4, 8, 8), (3, 3, 3), padding=(1, 1)), True),
    # Odd numbers of positions.
    (strided((18, 18), (3, 3), padding=(1, 1)), False),
    (strided((18, 18), (1, 1)), False),
    (strided((64,), (3,)), False),
    ids=str,
)
def test_strided_gradients_of_weights_are_pairs(case, paired):
    ((_, found),) = windows_of(case.program("weight"), ZEN_4)
    assert (found.algorithm, found.paired) == (WEIGHT_GRADIENT, paired)
    assert found.transposed >= paired


def test_images_of_1x1_have_the_positions_alone():
    for case in (strided((16, 16), (1, 1)), strided((16, 16), (1, 1), padding=(2, 2))):
        ((step, schedule),) = windows_of(case.program("weight"), ZEN_4)
        windowed = reading(step, WEIGHT_GRADIENT, paired=True)
        _, high, wide = step.k
        assert windowed.image.size(high.extent) == high.extent * wide.extent * case.channels
        assert schedule.block == high.extent


def test_an_image_is_not_read_after_the_last_window():
    """Of 17 columns, 9 are even and 8 odd: the copy has an odd one more, of zeros."""
    ((step, _),) = windows_of(strided((17, 17), (3, 3)).program("weight"), ZEN_4)
    load = stored(reading(step, WEIGHT_GRADIENT, paired=True).image.view)
    (bound,) = load.load.bounds
    assert (bound.index.bounds, bound.low, bound.high) == ((0, 17), 0, 17)


def test_sides_with_a_negative_dilation_are_split():
    position, element, residue = Axis("p", 4), Axis("e", 3), Axis("r", 2)
    side = ImageSide(Axis("side", 5), Sliding(position, element, 2, -1, 2, 1, 10), residue)
    sides = (ImageSide(residue, Sliding(None, None, 1, 1, 0, 1, 2)), side)
    image = Image(Literal(0, float32), (), (position,), (element,), sides, {})
    assert image.size(4) == 10
    # The first window has its elements at 2, 1 and 0.
    assert image.split_offsets(4) == [1, 5, 0]


def pairs_along_positions(program, processor):
    for number, step in enumerate(program.steps):
        if isinstance(step, Contraction):
            for schedule in alternatives_of(step, processor):
                if isinstance(schedule, WindowSchedule) and schedule.paired:
                    assert schedule.algorithm == WEIGHT_GRADIENT
                    yield decide(program, processor, {number: schedule})


STRIDED = {
    # Blocks of rows that leave a rest, two panels of N, the last one not full.
    "3x3": strided((9, 20), (3, 3), padding=(1, 1), channels=17, n=41),
    "no padding": strided((9, 13), (3, 3)),
    "padding before": strided((7, 15), (3, 3), padding=(2, 0)),
    "padding after": strided((7, 15), (3, 3), padding=(0, 2)),
    "1x1": strided((13, 12), (1, 1), batch=5, channels=19, n=33),
    "1x1 with padding": strided((9, 13), (1, 1), padding=(2, 1), batch=5),
    "2x2": strided((10, 15), (2, 2), padding=(1, 0)),
    "5x5": strided((12, 16), (5, 5), padding=(1, 2), channels=3),
    "one channel": strided((12, 21), (3, 7), channels=1),
    "one row": strided((8, 17), (1, 5), padding=(1, 1)),
    "one column": strided((17, 16), (5, 1)),
    "channels first": strided((9, 20), (3, 3), padding=(1, 1), channels=5, last=False),
    "stride of 3": strided((13, 20), (3, 5), stride=3, channels=5),
    "longer stride than window": strided((13, 18), (2, 2), stride=(2, 5)),
    "stride of columns": strided((8, 13), (3, 3), stride=(1, 2)),
    "stride of rows": strided((13, 8), (3, 3), stride=(2, 1)),
    "dilation": strided((16, 21), (3, 4), dilation=(2, 3)),
    "dilation by the stride": strided((12, 17), (3, 3), dilation=2, padding=(1, 1)),
    "three axes": strided((4, 8, 12), (2, 3, 3), padding=(1, 1), batch=2, channels=3),
    "groups": strided((9, 12), (3, 3), padding=(1, 1), channels=12, n=24, groups=2),
    "one axis": strided((41,), (3,), n=40),
}


@pytest.mark.parametrize("name", STRIDED)
def test_gradients_of_weights_equal_the_oracles(name, pair_engine):
    leaves, of = Leaves(), pair_engine.processor
    program = check(
        STRIDED[name].graph(leaves, "weight"),
        pair_engine,
        leaves.feeds,
        exact=True,
        schedules=partial(pairs_along_positions, processor=of),
    )
    pairs = name != "one axis"
    assert [schedule.paired for _, schedule in windows_of(program, of)] == [pairs]
    assert len([*pairs_along_positions(program, of)]) == 2 * pairs


@pytest.mark.cases(
    ("vectors", "case", "results"),
    ("amx", Convolution((5, 9), (3, 3), batch=5, n=32, padding=(1, 1)), ("y", "x")),
    ("avx512", replace(STRIDED["3x3"], whole=False), ("weight",)),
)
def test_convolutions_do_not_depend_on_the_number_of_threads(vectors, case, results, monkeypatch):
    engine, leaves = with_little_cache(vectors, 10 << 10, monkeypatch), Leaves()
    program = program_cases.compiled(case.graph(leaves, *results))
    schedules = [schedule for _, schedule in windows_of(program, engine.processor)]
    assert len(schedules) == len(results)
    assert all(schedule.amx if vectors == "amx" else schedule.paired for schedule in schedules)
    same_for_threads(program, leaves.feeds, engine=engine)
