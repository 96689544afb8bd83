"""Products of pairs of bfloat16 on the cpu engine: instructions, choices, results."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cpu_cases import ZEN_4, Convolution, rounded_workload, same_for_threads, share_of, windows_of
from emulated import emulate
from harness import Leaves, check
from program_cases import compiled
from simd_alternatives import alternatives_of

import lamina as lm
from lamina.base.shapes import float32
from lamina.codegen.matrix import stored
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.llvm import listing
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import host
from lamina.engines.simd.decide.images import Image, Side
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import GemmSchedule, ProgramSchedule, WindowSchedule
from lamina.engines.simd.decide.windows import WEIGHT_GRADIENT, reading
from lamina.engines.simd.processor import Processor
from lamina.program.index import Axis
from lamina.program.program import Program
from lamina.program.scalar import Apply, Literal, Load
from lamina.program.steps import Contraction, Loop, stores_of
from lamina.program.windows import Sliding

pytestmark = pytest.mark.sampled


def is_filtered(how: GemmSchedule | WindowSchedule) -> bool:
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
    found: list[list[bytes]] = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("LAMINA_THREADS", threads)
        model = lm.Model(net, dtype="mixed-bfloat16")
        with model.training(lm.MSE(), lm.SGD(0.1), len(x)) as training:
            training.step(x, np.ones((40, 70), "float32"))
        found.append([value.tobytes() for value in model.parameters().values()])
    assert found[0] == found[1] == found[2]


@pytest.fixture
def engine(monkeypatch):
    """The engine with pairs, and so little cache that images are split into blocks."""
    if not host().bfloat16_pairs:
        emulate(monkeypatch, "avx512")
    engine = CpuEngine()
    engine.processor = replace(engine.processor, level2_bytes=6 << 10, threads=3)
    return engine


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
        ((step, found),) = windows_of(case.program("weight"), ZEN_4)
        windowed = reading(step, WEIGHT_GRADIENT, paired=True)
        _, high, wide = step.k
        assert windowed.image.size(high.extent) == high.extent * wide.extent * case.channels
        assert found.block == high.extent


def test_an_image_is_not_read_after_the_last_window():
    """Of 17 columns, 9 are even and 8 odd: the copy has an odd one more, of zeros."""
    ((step, _),) = windows_of(strided((17, 17), (3, 3)).program("weight"), ZEN_4)
    load = stored(reading(step, WEIGHT_GRADIENT, paired=True).image.view)
    assert load is not None
    (bound,) = load.load.bounds
    assert (bound.index.bounds, bound.low, bound.high) == ((0, 17), 0, 17)


def test_sides_with_a_negative_dilation_are_split():
    position, element, residue = Axis("p", 4), Axis("e", 3), Axis("r", 2)
    side = Side(Axis("side", 5), Sliding(position, element, 2, -1, 2, 1, 10), residue)
    sides = (Side(residue, Sliding(None, None, 1, 1, 0, 1, 2)), side)
    image = Image(Literal(0, float32), (), (position,), (element,), sides, {})
    assert image.size(4) == 10
    # The first window has its elements at 2, 1 and 0.
    assert image.split_offsets(4) == [1, 5, 0]


def pairs_along_positions(program: Program, processor: Processor) -> Iterator[ProgramSchedule]:
    for number, step in enumerate(program.steps):
        if isinstance(step, Contraction):
            for one in alternatives_of(step, processor):
                if isinstance(one, WindowSchedule) and one.paired:
                    assert one.algorithm == WEIGHT_GRADIENT
                    yield decide(program, processor, {number: one})


CASES = {
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


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_weights_equal_the_oracles(name, engine):
    leaves, of = Leaves(), engine.processor
    program = check(
        CASES[name].graph(leaves, "weight"),
        engine,
        leaves.feeds,
        exact=True,
        schedules=lambda one: pairs_along_positions(one, of),
    )
    pairs = name != "one axis"
    assert [one.paired for _, one in windows_of(program, of)] == [pairs]
    assert len([*pairs_along_positions(program, of)]) == 2 * pairs


def test_strided_gradients_do_not_depend_on_the_number_of_threads(engine):
    generator, leaves = np.random.default_rng(0), Leaves()
    program = compiled(CASES["3x3"].graph(leaves, "weight"))
    feeds = {
        name: generator.standard_normal(feed.shape, "float32").astype(feed.dtype)
        for name, feed in leaves.feeds.items()
    }
    assert [one.paired for _, one in windows_of(program, engine.processor)] == [True]
    same_for_threads(program, feeds, engine=engine)
