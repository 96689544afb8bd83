"""The CPU engine's algorithms for contractions over windows, on several processors."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial

import cpu_cases
import numpy as np
import pytest
from cpu_cases import ZEN_4, same_for_threads
from emulated import emulate
from harness import Leaves, check, compare, run_program
from program_cases import compiled
from tolerances import AMPLIFICATION, ROUNDED_AMPLIFICATION, expected_of
from windowed_graphs import FILTERED_SEEDS, SEEDS, FilteredGraph, WindowedGraph

from lamina import ops
from lamina.base.shapes import bfloat16, float16, float32
from lamina.codegen.filtering import FILTERINGS, ROUNDED_FILTERINGS
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.processor import host
from lamina.engines.simd.decide.contractions import panels_of
from lamina.engines.simd.decide.convolutions import schedule_by
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD,
    WINOGRAD_WEIGHT_GRADIENT,
    readings,
)
from lamina.errors import EngineError
from lamina.graph import evaluate
from lamina.ops.differentiate import gradients
from lamina.program.steps import Contraction
from lamina.step.rounding import with_rounded_products

pytestmark = pytest.mark.sampled

# By kinds of vectors: caches so small that images are split into blocks, and numbers of threads.
SMALL = {
    "avx512": {"level2_bytes": 4 << 10, "threads": 3},
    "avx2": {"level2_bytes": 6 << 10, "threads": 1},
    "sse2": {"level2_bytes": 4 << 10, "threads": 16},
}
if not host().triple.startswith("x86_64"):
    SMALL = {"neon": {"level2_bytes": 4 << 10, "threads": 3}}


def engine_of(vectors, monkeypatch):
    """The engine for a smaller processor; a processor without AVX-512 emulates it."""
    size = SMALL[vectors]
    monkeypatch.setenv("LAMINA_VECTORS", vectors)
    try:
        engine = CpuEngine()
    except EngineError:
        emulate(monkeypatch, vectors)
        engine = CpuEngine()
    engine.processor = replace(engine.processor, **size)
    return engine


def windows_of(program, schedule=None):
    """The schedules of contractions over windows, and how their algorithms read them."""
    windows = cpu_cases.windows_of(program, host(), schedule)
    return [(chosen, readings(step)[chosen.algorithm]) for step, chosen in windows]


def winograd(program, processor=None):
    """A schedule with Winograd's algorithms wherever possible, whether they pay or not.

    Rounded operands have the larger tiles.
    """
    processor = processor or host()
    forced = {
        number: schedule_by(windowed, panels_of(step, processor), processor)
        for number, step in enumerate(program.steps)
        if isinstance(step, Contraction)
        for windowed in readings(step).values()
        if windowed.filtering
    }
    return decide(program, processor, forced)


def test_the_graphs_of_the_conformance_suite_take_every_algorithm():
    graphs = [WindowedGraph(seed).graph for seed in SEEDS]
    # With windows of 3x3 and 5x5, and with rounded operands.
    filtered = {seed: FilteredGraph(seed).graph for seed in FILTERED_SEEDS}
    rounded = [graph for seed, graph in filtered.items() if seed % 5 != 4]
    graphs += [*filtered.values(), *(with_rounded_products(graph, bfloat16) for graph in rounded)]
    # Wide vectors and caches of a common size: how often each algorithm pays depends on these.
    processor = replace(ZEN_4, bfloat16_pairs=False, level1_bytes=48 << 10)
    taken = Counter()
    for program in map(compiled, graphs):
        for schedule, windowed in windows_of(program, decide(program, processor)):
            kinds = {
                "": True,
                ", direct": windowed.image.is_direct,
                ", image": not windowed.image.is_direct,
                f", {windowed.step.dtype}": True,
                ", several outer axes": len(windowed.image.outer) > 1,
                ", several outer positions": windowed.outer.extent > 1,
                ", groups": windowed.step.batch[0].extent > 1,
            }
            taken.update(f"{schedule.algorithm}{kind}" for kind, holds in kinds.items() if holds)
    fewest = {
        **{
            f"{name}, {kind}": count
            for name in (IMPLICIT_GEMM, WEIGHT_GRADIENT)
            for kind, count in (
                *(("direct", 20), ("image", 20), ("f32", 10), ("f64", 10)),
                *(("several outer positions", 10), ("several outer axes", 2), ("groups", 5)),
            )
        },
        **dict.fromkeys((*WINOGRAD.values(), *WINOGRAD_WEIGHT_GRADIENT.values()), 5),
        COL2IM: 8,
        f"{COL2IM}, f64": 1,
        f"{COL2IM}, several outer positions": 5,
    }
    few = {name: taken[name] for name, count in fewest.items() if taken[name] < count}
    assert not few, taken
    for kind in ("f64", "groups"):
        for names in (WINOGRAD, WINOGRAD_WEIGHT_GRADIENT):
            assert sum(taken[f"{name}, {kind}"] for name in names.values()) >= 3


@pytest.mark.sampled
@pytest.mark.parametrize("vectors", SMALL)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("half", [None, bfloat16, float16], ids=str)
def test_graphs_with_winograd_equal_their_evaluation(seed, half, vectors, monkeypatch):
    engine = engine_of(vectors, monkeypatch)
    made = FilteredGraph(seed)
    graph = made.graph if half is None else with_rounded_products(made.graph, half)
    check(graph, engine, made.feeds, schedules=lambda one: [winograd(one, engine.processor)])


# The transforms, and the dtype of the numbers; ROUNDED numbers are float32 with bfloat16's digits,
# WEIGHT_UNROUNDED too except for weights.
ROUNDED, WEIGHT_UNROUNDED = "rounded", "weight unrounded"
TRANSFORMS = [
    pytest.param(FILTERINGS[3], "float32", id="3-float32"),
    pytest.param(FILTERINGS[5], "float32", id="5-float32"),
    pytest.param(FILTERINGS[3], "float64", id="3-float64"),
    pytest.param(FILTERINGS[5], "float64", id="5-float64"),
    pytest.param(ROUNDED_FILTERINGS[3], ROUNDED, id="3-rounded"),
    pytest.param(ROUNDED_FILTERINGS[3], WEIGHT_UNROUNDED, id="3-weight-unrounded"),
]


def convolution(dtype="float32", channels=24, size=3):
    """A convolution of images of odd size, and its gradients."""
    generator, leaves = np.random.default_rng(0), Leaves()
    number = "float32" if dtype in (ROUNDED, WEIGHT_UNROUNDED) else dtype

    def leaf(*shape):
        return leaves.add(generator.uniform(-1, 1, shape).astype(number))

    x, weight = leaf(3, channels, 9, 11), leaf(20, channels, size, size)
    upstream, padding = leaf(3, 20, 9, 11), (size // 2, size // 2)
    if number != dtype:
        x, upstream = (ops.rounded(tensor, bfloat16) for tensor in (x, upstream))
        weight = ops.rounded(weight, bfloat16) if dtype == ROUNDED else weight
    y = ops.conv(x, weight, [1, 1], [padding, padding], [1, 1])
    return leaves.graph([y, *gradients(ops.sum(y * upstream), [x, weight])]), leaves.feeds


def by_winograd(graph, feeds):
    program = compiled(graph)
    outputs, _ = run_program(program, CpuEngine(), feeds, schedule=winograd(program))
    return [outputs[name] for name, _ in program.outputs]


@pytest.mark.parametrize(
    "rounded", [(), ("x",), ("weight",), ("x", "weight"), ("stored",)], ids="".join
)
def test_tiles_of_4x4_are_for_convolutions_with_a_rounded_operand(rounded):
    """Not for data that are stored in 16 bits."""
    leaves = Leaves()
    x = leaves.add(np.ones((2, 32, 16, 16), "float32"))
    weight = leaves.add(np.ones((32, 32, 3, 3), "float32"))
    if "stored" in rounded:
        x = ops.cast(leaves.add(np.ones((2, 32, 16, 16), bfloat16.numpy)), float32)
    x = ops.rounded(x, bfloat16) if "x" in rounded else x
    weight = ops.rounded(weight, bfloat16) if "weight" in rounded else weight
    y = ops.conv(x, weight, [1, 1], [(1, 1)] * 2, [1, 1])
    program = compiled(leaves.graph([y]))
    (step,) = (step for step in program.steps if isinstance(step, Contraction))
    tiles = {name for name in readings(step) if "4x4" in name}
    assert tiles == ({"Winograd F(4x4, 3x3)"} if rounded else set())
    (schedule, _), *_ = windows_of(program)
    size = "4x4" if rounded and "stored" not in rounded else "2x2"
    assert schedule.algorithm == f"Winograd F({size}, 3x3)"


def test_gradients_of_strided_convolutions_are_sums_of_copied_images_if_they_are_rounded():
    """Operands that are cast are copied. Tiles of a gathered product would read mostly zeros."""
    generator, leaves = np.random.default_rng(0), Leaves()
    x, weight, upstream = (
        leaves.add(generator.uniform(-1, 1, shape).astype("float32"))
        for shape in ((3, 16, 14, 15), (24, 16, 3, 3), (3, 7, 8, 24))
    )
    y = ops.conv(x, weight, [2, 2], [(1, 1)] * 2, [1, 1])
    # Channels are contiguous, as in a network.
    of_x = gradients(ops.sum(y * ops.transpose(upstream, (0, 3, 1, 2))), [x])
    graph = with_rounded_products(leaves.graph(of_x), bfloat16)
    engine = CpuEngine()
    engine.processor = replace(engine.processor, bfloat16_pairs=False)
    program = check(graph, engine, leaves.feeds)
    ((schedule, windowed),) = windows_of(program, decide(program, engine.processor))
    assert schedule.algorithm == COL2IM
    assert not windowed.image.is_direct


def gain(what, filtering):
    """The mean square of a result of Winograd's algorithm, if signs of terms were random.

    Inputs and weights (or gradients) have mean squares of 1. The transforms are the same along both
    axes, so the gain is the square of the gain along one.
    """
    back, factors = (
        (filtering.output_transform, filtering.weight_transform)
        if what == "forward"
        else (filtering.weight_gradient_transform, filtering.gradient_transform)
    )
    products = np.square(factors).sum(1) * np.square(filtering.data_transform).sum(1)
    return float((np.square(back) @ products).max()) ** 2


def filtering_deviation(what, filtering, sums):
    """The standard deviation of a result's error, in units of the unit roundoff.

    A rounding is off by up to a unit, at random: by the square root of 1/3 (Higham and Mary, 2019).
    Inputs are drawn from -1 to 1: their mean square is 1/3. The k-th of `sums` additions rounds k
    products, so each product is rounded sums/2 times on average. A transform rounds as often as its
    rows have elements, along each axis.
    """
    numbers = filtering.input_tile + filtering.window + filtering.results
    roundings = sums / 2 + 1 + 2 * numbers
    return math.sqrt(roundings / 3 * sums * gain(what, filtering) / 3 / 3)


def direct_deviation(terms):
    """The same for a sum of products in any order."""
    return math.sqrt((terms / 2 + 1) / 3 * terms / 3 / 3)


@pytest.mark.parametrize(("filtering", "dtype"), TRANSFORMS)
def test_errors_of_winograd_are_those_of_its_roundings(filtering, dtype):
    size = filtering.window
    graph, feeds = convolution(dtype, size=size)
    program = compiled(graph)
    schedule = winograd(program)
    names = [WINOGRAD[filtering]] * 2 + [WINOGRAD_WEIGHT_GRADIENT[filtering]]
    assert sorted(window.algorithm for window, _ in windows_of(program, schedule)) == sorted(names)
    outputs, _ = run_program(program, CpuEngine(), feeds, schedule=schedule)
    expected, _ = evaluate(graph, feeds)
    # The sums are over channels, outputs, and the tiles of images of 9x11.
    tiles = -(-9 // filtering.results) * -(-11 // filtering.results)
    cases = (
        ("forward", 24, 24 * size**2),
        ("forward", 20, 20 * size**2),
        ("weight gradient", 3 * tiles, 3 * 9 * 11),
    )
    for (name, value), (what, sums, terms) in zip(expected.items(), cases, strict=True):
        deviation = math.hypot(filtering_deviation(what, filtering, sums), direct_deviation(terms))
        # One of a billion values is six standard deviations off.
        compare(name, outputs[name], value, 6 * deviation * float(np.finfo(value.dtype).eps) / 2)


@pytest.mark.parametrize(
    ("filterings", "amplifications"),
    [(FILTERINGS, AMPLIFICATION), (ROUNDED_FILTERINGS, ROUNDED_AMPLIFICATION)],
)
def test_tolerances_of_windows_are_those_of_winograd(filterings, amplifications):
    for size, filtering in filterings.items():
        forward = math.sqrt(gain("forward", filtering)) / size
        gradient = math.sqrt(gain("weight gradient", filtering)) / filtering.results
        assert max(forward, gradient) <= amplifications[size] <= 1.1 * max(forward, gradient)


def thinned(array, share):
    return array * (np.random.default_rng(array.size).random(array.shape) < share)


def only(array, *index):
    kept = np.zeros_like(array)
    kept[index] = array[index]
    return kept


def scaled(array, share):
    """Few numbers, of all sizes."""
    factors = 10.0 ** np.random.default_rng(0).integers(-6, 7, array.shape)
    return (thinned(array, share) * factors).astype(array.dtype)


def identity(weight):
    """Each output is a channel."""
    middle = weight.shape[-1] // 2
    channels = np.arange(len(weight))
    return only(weight, channels, channels, middle, middle)


EVERY = np.s_[:]
# (image, weight, upstream gradient) -> the same with zeros.
CHANGES = {
    "one position": lambda x, w, g: (x, w, only(g, EVERY, EVERY, 0, 0)),
    "corners": lambda x, w, g: (
        only(x, EVERY, EVERY, -1, -1),
        w,
        only(g, EVERY, np.s_[1::2], np.s_[-2:], np.s_[-1:]),
    ),
    "channels": lambda x, w, g: (
        only(x, EVERY, np.s_[1::2]),
        only(w, np.r_[:4, 7 : len(w)]),
        only(g, EVERY, np.flatnonzero(np.arange(g.shape[1]) % 3 != 1)),
    ),
    "masks": lambda x, w, g: (
        only(x, EVERY, np.r_[:3, 9 : x.shape[1]], np.s_[4:]),
        w,
        only(g, EVERY, EVERY, np.s_[:4]),
    ),
    "elements": lambda x, w, g: (
        only(x, EVERY, EVERY, 4),
        only(w, EVERY, EVERY, np.s_[1:]),
        only(g, EVERY, EVERY, EVERY, 3),
    ),
    "identity": lambda x, w, g: (thinned(x, 0.3), identity(w), thinned(g, 0.3)),
    "few": lambda x, w, g: (scaled(x, 0.03), scaled(w, 0.02), scaled(g, 0.03)),
    # Single positions between zeros; no weight is zero.
    "islands": lambda x, w, g: (
        only(x, EVERY, EVERY, np.s_[::5], np.s_[1::4]),
        w,
        only(g, EVERY, EVERY, np.s_[::5], np.s_[1::4]),
    ),
}


@pytest.mark.parametrize("vectors", SMALL)
@pytest.mark.parametrize(("filtering", "dtype"), [*TRANSFORMS[:3], *TRANSFORMS[4:]])
def test_winograd_gives_zeros_where_all_terms_are_zero(dtype, filtering, vectors, monkeypatch):
    engine = engine_of(vectors, monkeypatch)
    graph, original = convolution(dtype, size=filtering.window)
    program = compiled(graph)
    executable = engine.compile(program, {}, schedule=winograd(program, engine.processor))
    noise = {}
    for change, change_of in CHANGES.items():
        feeds = dict(zip(original, change_of(*original.values()), strict=True))
        # The number of nonzero terms of each result.
        counts, _ = evaluate(graph, {name: abs(np.sign(feed)) for name, feed in feeds.items()})
        expected = expected_of(graph, feeds).outputs
        executable.run([feeds[buffer.name] for buffer in program.of_kind("input")])
        for name, count in counts.items():
            output = executable.output(name)
            noise[change, name] = np.count_nonzero(output[count == 0])
            assert np.count_nonzero(output) <= np.count_nonzero(count), (change, name)
            compare(name, output, *expected[name])
    executable.release()
    assert not any(noise.values()), noise


@pytest.mark.parametrize(("filtering", "dtype"), [*TRANSFORMS[:2], *TRANSFORMS[4:]])
def test_nonfinite_values_count_as_nonzero(filtering, dtype):
    graph, feeds = convolution(dtype, size=filtering.window)
    feeds["x0"][1, 3, 4, 5] = np.inf
    feeds["x1"][:] = feeds["x2"][:] = 0
    feeds["x1"][7] = 1
    # Infinity times zero.
    y, _, of_weight = by_winograd(graph, feeds)
    assert np.isnan(y[1, :7, 4, 5]).all()
    assert np.isnan(of_weight[:, 3]).any(axis=(1, 2)).all()
    assert not np.delete(of_weight, 3, axis=1).any()


@pytest.mark.parametrize("dtype", ["float32", ROUNDED])
def test_winograd_does_not_depend_on_the_number_of_threads(dtype):
    graph, feeds = convolution(dtype, channels=64)
    program = compiled(graph)
    same_for_threads(program, feeds, (1, 2, 5), schedule=partial(winograd, program))


@pytest.mark.parametrize("padding", [0, 2])
def test_gradients_of_few_weights_have_partial_sums_for_every_number_of_threads(padding):
    generator, leaves = np.random.default_rng(0), Leaves()
    x, weight, upstream = (
        leaves.add(generator.uniform(-1, 1, shape).astype("float32"))
        for shape in ((7, 1, 14, 14), (20, 1, 5, 5), (7, 20, 10 + 2 * padding, 10 + 2 * padding))
    )
    y = ops.conv(x, weight, [1, 1], [(padding, padding)] * 2, [1, 1])
    graph = leaves.graph(gradients(ops.sum(y * upstream), [weight]))
    program = check(graph, CpuEngine(), leaves.feeds)
    for threads in (1, 2, 5):
        ((schedule, _),) = windows_of(program, decide(program, replace(host(), threads=threads)))
        # A kernel for the partial sums, and one that adds them up.
        assert (schedule.algorithm, len(schedule.works)) == (WEIGHT_GRADIENT, 2)
        assert schedule.partial_sums > 1
        assert schedule.works[0].items >= 7
    same_for_threads(program, leaves.feeds, (1, 2, 5))


def test_with_tiles_of_4x4_a_nan_reaches_results_of_its_tiles_only():
    graph, feeds = convolution(ROUNDED)
    feeds["x0"][1, 3, 4, 5] = np.nan
    y, _, _ = by_winograd(graph, feeds)
    # Rows 3 and 4 to 5 are in two tiles; columns 4 to 6 in one.
    possible, certain = np.zeros((2, *y.shape), bool)
    possible[1, :, :8, 4:8] = True
    certain[1, :, 3:6, 4:7] = True
    assert np.isnan(y[certain]).all()
    assert not np.isnan(y[~possible]).any()


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("pixel", [(0, 0), (4, 5)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_values_reach_the_results_whose_terms_contain_them(size, pixel, value):
    """Results of their windows, and gradients of the weights of their channel."""
    graph, feeds = convolution(size=size)
    feeds["x0"][(1, 3, *pixel)] = value
    y, _, of_weight = (~np.isfinite(result) for result in by_winograd(graph, feeds))
    reached, reach = np.zeros(y.shape, bool), size // 2
    rows, columns = (slice(max(at - reach, 0), at + reach + 1) for at in pixel)
    reached[1, :, rows, columns] = True
    np.testing.assert_array_equal(y, reached)
    assert of_weight[:, 3].any(axis=(1, 2)).all()
    assert not np.delete(of_weight, 3, axis=1).any()


@pytest.mark.parametrize("vectors", SMALL)
@pytest.mark.parametrize("extent", [9, 25, 27, 30, 31])
def test_lanes_that_are_masked_out_are_zero(extent, vectors, monkeypatch):
    engine = engine_of(vectors, monkeypatch)
    leaves = Leaves()
    x = leaves.add(np.arange(3.0 * (extent + 1)).reshape(3, extent + 1).astype("float32"))
    # The last vector has an odd number of lanes, and a constant mask.
    last = ops.pad(x[:, extent:], [(0, 0), (extent - 1, 0)])
    check(leaves.graph([x[:, :extent] + last]), engine, leaves.feeds)
