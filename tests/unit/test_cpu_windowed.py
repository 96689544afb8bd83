"""In which ways the CPU engine makes contractions over windows, on processors of several kinds."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Leaves, check, compare, run_program
from tolerances import AMPLIFICATION, expected_of
from windowed_graphs import FILTERED_SEEDS, SEEDS, FilteredGraph, WindowedGraph

from lamina import ops
from lamina.compiler.pipeline import compile_graph
from lamina.engines.cpu.emit import winograd
from lamina.engines.cpu.emit.contractions import windows_of
from lamina.engines.cpu.emit.implicit_gemm import windowed
from lamina.engines.cpu.emit.native_program import write_program
from lamina.engines.cpu.emit.parts import write_parts
from lamina.engines.cpu.emit.windows import Windowed
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.processor import host
from lamina.errors import EngineError
from lamina.graph import Graph, Tensor, evaluate
from lamina.ops.differentiate import gradients
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.shapes import Array, size_of

# Caches so small that images are cut into blocks, for so many threads, by kinds of vectors.
SMALL: dict[str, dict[str, Any]] = {
    "avx512": {"level2_bytes": 4 << 10, "threads": 3},
    "avx2": {"level2_bytes": 6 << 10, "threads": 1},
    "sse2": {"level2_bytes": 4 << 10, "threads": 16},
}
if not host().triple.startswith("x86_64"):
    SMALL = {"neon": {"level2_bytes": 4 << 10, "threads": 3}}


def engine_of(vectors: str, monkeypatch: pytest.MonkeyPatch) -> CpuEngine:
    """The engine as it is on a lesser processor."""
    monkeypatch.setenv("LAMINA_VECTORS", vectors)
    try:
        engine = CpuEngine()
    except EngineError:
        pytest.skip(f"this processor has no {vectors}")
    engine.processor = replace(engine.processor, **SMALL[vectors])
    return engine


def ways_of(program: Program) -> list[Windowed]:
    """How its contractions over windows are made."""
    processor = CpuEngine().processor
    found = (windows_of(step, processor) for step in program.steps if isinstance(step, Contraction))
    return [how for how in found if how is not None]


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    """Those that the conformance suite compares with the oracle."""
    return [compile_graph(WindowedGraph(seed).graph, batch=1, name="test") for seed in SEEDS]


@pytest.fixture(scope="module")
def filtered_programs() -> list[Program]:
    """Those of windows of 3x3 and 5x5."""
    graphs = (FilteredGraph(seed).graph for seed in FILTERED_SEEDS)
    return [compile_graph(graph, batch=1, name="test") for graph in graphs]


@pytest.fixture
def always_filtered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Minimal filtering is taken where it can be, whether it pays or not."""
    windowed.cache_clear()
    monkeypatch.setattr(winograd, "MUST_GAIN", float("inf"))
    # The key of what is kept says nothing of that.
    monkeypatch.setenv("LAMINA_CACHE", "off")
    yield
    windowed.cache_clear()


def test_the_conformance_suite_takes_every_way(
    programs: list[Program], filtered_programs: list[Program]
) -> None:
    taken = Counter[str]()
    for how in (how for one in (*programs, *filtered_programs) for how in ways_of(one)):
        names = [how.way, f"{how.way}, {'direct' if how.image.is_direct else 'image'}"]
        names += [f"{how.way}, {how.step.dtype}"]
        if len(how.image.outer) > 1:
            names.append(f"{how.way}, several outer axes")
        if size_of([axis.extent for axis in how.image.outer]) > 1:
            names.append(f"{how.way}, several outer places")
        if how.step.batch[0].extent > 1:
            names.append(f"{how.way}, groups")
        taken.update(names)
    fewest = {
        **{f"{way}, {kind}": 20 for way in ("places", "elements") for kind in ("direct", "image")},
        **{f"{way}, {dtype}": 10 for way in ("places", "elements") for dtype in ("f32", "f64")},
        **{f"{way}, several outer places": 10 for way in ("places", "elements")},
        **{f"{way}, several outer axes": 2 for way in ("places", "elements")},
        **{f"{way}, groups": 5 for way in ("places", "elements")},
        **{f"minimal {way}": 15 for way in ("places", "elements")},
        **{f"minimal {way}, f64": 3 for way in ("places", "elements")},
        **{f"minimal {way}, groups": 3 for way in ("places", "elements")},
        "scattered": 8,
        "scattered, f64": 1,
        "scattered, several outer places": 5,
    }
    few = {name: taken[name] for name, count in fewest.items() if taken[name] < count}
    assert not few, taken


@pytest.mark.usefixtures("always_filtered")
@pytest.mark.parametrize("vectors", SMALL)
def test_blocks_of_images_have_rests(
    vectors: str,
    monkeypatch: pytest.MonkeyPatch,
    programs: list[Program],
    filtered_programs: list[Program],
) -> None:
    engine = engine_of(vectors, monkeypatch)
    rests = Counter[str]()
    for program in (*programs[:100], *filtered_programs):
        text = write_program(program, engine.processor).text
        for number, step in enumerate(program.steps):
            how = windows_of(step, engine.processor) if isinstance(step, Contraction) else None
            if how is not None:
                panel = "" if how.way.endswith("places") else "_(full|rest)"
                blocks = (rf"@step{number}{panel}_{block}\(" for block in ("whole", "rest"))
                rests[how.way] += all(re.search(f"define .*{block}", text) for block in blocks)
    ways = ["places", "elements", "minimal elements"]
    # So many threads take single rows of tiles.
    ways += ["minimal places"] * (engine.processor.threads < 16)
    assert min(rests[way] for way in ways) >= 2, rests


@pytest.mark.parametrize("vectors", SMALL)
@pytest.mark.parametrize("seed", range(30))
def test_blocks_and_narrow_vectors_change_nothing(
    seed: int, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(vectors, monkeypatch)
    made = WindowedGraph(seed)
    check(made.graph, engine, made.feeds)


@pytest.mark.parametrize("size", [3, 4])
def test_many_channels_are_not_taken_for_places(size: int) -> None:
    leaves = Leaves()
    # Two images of 4x4 places, and windows with some hundred elements.
    x = leaves.add(np.ones((2, 64, 8, 8), "float32"))
    weight = leaves.add(np.ones((32, 64, size, size), "float32"))
    y = ops.conv(x, weight, [2, 2], [(1, 1), (1, 1)], [1, 1])
    graph = leaves.graph([y, *gradients(ops.sum(y * y), [weight])])
    program = compile_graph(graph, batch=1, name="test")
    found = {how.step.extents[1]: how.way for how in ways_of(program)}
    assert found == {2 * 4 * 4: "places", 64 * size * size: "elements"}


@pytest.mark.usefixtures("always_filtered")
@pytest.mark.parametrize("vectors", SMALL)
@pytest.mark.parametrize("seed", range(20))
def test_minimal_filtering_changes_nothing(
    seed: int, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(vectors, monkeypatch)
    made = FilteredGraph(seed)
    check(made.graph, engine, made.feeds)


def convolution(
    dtype: str = "float32", channels: int = 24, size: int = 3
) -> tuple[Graph, dict[str, Any]]:
    """A convolution of images of odd size, and its gradients."""
    generator, leaves = np.random.default_rng(0), Leaves()

    def leaf(*shape: int) -> Tensor:
        return leaves.add(generator.uniform(-1, 1, shape).astype(dtype))

    x, weight = leaf(3, channels, 9, 11), leaf(20, channels, size, size)
    upstream, padding = leaf(3, 20, 9, 11), (size // 2, size // 2)
    y = ops.conv(x, weight, [1, 1], [padding, padding], [1, 1])
    return leaves.graph([y, *gradients(ops.sum(y * upstream), [x, weight])]), leaves.feeds


def gain(way: str, size: int) -> float:
    """The mean square of a result of minimal filtering, if its terms were of either sign at random.

    Numbers and weights (or gradients) have mean squares of 1. The transforms are the same along
    both axes, so it is the square of what they give along one.
    """
    filtering = winograd.FILTERINGS[size]
    back, factors = (
        (filtering.of_products, filtering.of_weights)
        if way == "minimal places"
        else (filtering.of_sums, filtering.of_factors)
    )
    products = np.square(factors).sum(1) * np.square(filtering.of_numbers).sum(1)
    return float((np.square(back) @ products).max()) ** 2


def filtering_deviation(way: str, size: int, sums: int) -> float:
    """The standard deviation of a result's error, in units of the unit roundoff.

    A rounding is off by up to a unit, at random: by the square root of 1/3 (Higham and Mary, 2019).
    Numbers are drawn from -1 to 1: their mean square is 1/3. The k-th of `sums` additions rounds k
    products, which are sums/2 roundings of all. Transforms have as many roundings as their rows
    have numbers, along each axis.
    """
    numbers = size + winograd.RESULTS - 1
    roundings = sums / 2 + 1 + 2 * (numbers + size + winograd.RESULTS)
    return math.sqrt(roundings / 3 * sums * gain(way, size) / 3 / 3)


def direct_deviation(terms: int) -> float:
    """The same of a sum of products in any order."""
    return math.sqrt((terms / 2 + 1) / 3 * terms / 3 / 3)


@pytest.mark.usefixtures("always_filtered")
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_of_minimal_filtering_are_those_of_its_roundings(dtype: str, size: int) -> None:
    graph, feeds = convolution(dtype, size=size)
    program = compile_graph(graph, batch=1, name="test")
    assert sorted(how.way for how in ways_of(program)) == [
        *("minimal elements", "minimal places", "minimal places")
    ]
    found, _ = run_program(program, CpuEngine(), feeds)
    expected, _ = evaluate(graph, feeds)
    # Images are 9x11, so there are 5x6 tiles; the sums are over channels, outputs, tiles.
    cases = (
        ("minimal places", 24, 24 * size**2),
        ("minimal places", 20, 20 * size**2),
        ("minimal elements", 3 * 5 * 6, 3 * 9 * 11),
    )
    for (name, value), (way, sums, terms) in zip(expected.items(), cases, strict=True):
        deviation = math.hypot(filtering_deviation(way, size, sums), direct_deviation(terms))
        # One of a billion numbers is six standard deviations off.
        compare(name, found[name], value, 6 * deviation * float(np.finfo(dtype).eps) / 2)


def test_tolerances_of_windows_are_those_of_minimal_filtering() -> None:
    for size in winograd.FILTERINGS:
        places = math.sqrt(gain("minimal places", size)) / size
        elements = math.sqrt(gain("minimal elements", size)) / winograd.RESULTS
        assert max(places, elements) <= AMPLIFICATION[size] <= 1.1 * max(places, elements)


def _only(array: Array, *place: Any) -> None:
    """Zeros everywhere but at a place."""
    kept = array[place].copy()
    array[:] = 0
    array[place] = kept


def _thinned(array: Array, share: float) -> None:
    """Zeros at random places."""
    array *= np.random.default_rng(array.size).random(array.shape) < share


def _one_place(x: Array, weight: Array, upstream: Array) -> None:
    _only(upstream, np.s_[:], np.s_[:], 0, 0)


def _corners(x: Array, weight: Array, upstream: Array) -> None:
    _only(x, np.s_[:], np.s_[:], -1, -1)
    _only(upstream, np.s_[:], np.s_[1::2], np.s_[-2:], np.s_[-1:])


def _channels(x: Array, weight: Array, upstream: Array) -> None:
    x[:, ::2] = 0
    upstream[:, 1::3] = 0
    weight[4:7] = 0


def _masks(x: Array, weight: Array, upstream: Array) -> None:
    upstream[:, :, 4:] = 0
    x[:, :, :4] = 0
    x[0, 3:9, :, 2:] = 0


def _elements(x: Array, weight: Array, upstream: Array) -> None:
    weight[:, :, 0] = 0
    weight[3, :, :, -1] = 0
    _only(x, np.s_[:], np.s_[:], 4)
    _only(upstream, np.s_[:], np.s_[:], np.s_[:], 3)


def _identity(x: Array, weight: Array, upstream: Array) -> None:
    middle = weight.shape[-1] // 2
    for channel in range(len(weight)):
        _only(weight[channel], channel, middle, middle)
    _thinned(x, 0.3)
    _thinned(upstream, 0.3)


def _few(x: Array, weight: Array, upstream: Array) -> None:
    for array, share in ((x, 0.03), (weight, 0.02), (upstream, 0.03)):
        _thinned(array, share)
        array *= 10.0 ** np.random.default_rng(0).integers(-6, 7, array.shape)


@pytest.mark.usefixtures("always_filtered")
@pytest.mark.parametrize("vectors", SMALL)
@pytest.mark.parametrize(("size", "dtype"), [(3, "float32"), (5, "float32"), (3, "float64")])
def test_minimal_filtering_gives_zeros_where_all_terms_are_zero(
    dtype: str, size: int, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(vectors, monkeypatch)
    graph, original = convolution(dtype, size=size)
    program = compile_graph(graph, batch=1, name="test")
    executable = engine.compile(program, {})
    noise: dict[tuple[str, str], int] = {}
    for change in (_one_place, _corners, _channels, _masks, _elements, _identity, _few):
        feeds = {name: value.copy() for name, value in original.items()}
        change(*feeds.values())
        # How many terms of each result are not zero.
        counts, _ = evaluate(graph, {name: abs(np.sign(feed)) for name, feed in feeds.items()})
        expected = expected_of(graph, feeds).outputs
        executable.run([feeds[buffer.name] for buffer in program.of_kind("input")])
        for name, count in counts.items():
            found = executable.output(name)
            noise[change.__name__, name] = np.count_nonzero(found[count == 0])
            assert np.count_nonzero(found) <= np.count_nonzero(count), (change, name)
            compare(name, found, *expected[name])
    executable.release()
    assert not any(noise.values()), noise


@pytest.mark.usefixtures("always_filtered")
@pytest.mark.parametrize("size", [3, 5])
def test_what_is_not_finite_is_no_zero(size: int) -> None:
    graph, feeds = convolution(size=size)
    feeds["x0"][1, 3, 4, 5] = np.inf
    feeds["x1"][:] = feeds["x2"][:] = 0
    feeds["x1"][7] = 1
    program = compile_graph(graph, batch=1, name="test")
    outputs, _ = run_program(program, CpuEngine(), feeds)
    # Infinity times zero.
    y, _, of_weight = (outputs[name] for name, _ in program.outputs)
    assert np.isnan(y[1, :7, 4, 5]).all()
    assert np.isnan(of_weight[:, 3]).any(axis=(1, 2)).all()
    assert not np.delete(of_weight, 3, axis=1).any()


@pytest.mark.usefixtures("always_filtered")
def test_minimal_filtering_does_not_depend_on_the_number_of_threads() -> None:
    graph, feeds = convolution(channels=64)
    program = compile_graph(graph, batch=1, name="test")
    found: list[dict[str, Any]] = []
    for threads in (1, 2, 5):
        engine = CpuEngine()
        engine.processor = replace(engine.processor, threads=threads)
        found.append(dict(run_program(program, engine, feeds)[0]))
    for outputs in found[1:]:
        for name, value in outputs.items():
            np.testing.assert_array_equal(value, found[0][name], name)


@pytest.mark.parametrize("padding", [0, 2])
def test_gradients_of_few_weights_are_sums_of_blocks_whatever_the_number_of_threads(
    padding: int,
) -> None:
    generator, leaves = np.random.default_rng(0), Leaves()
    x, weight, upstream = (
        leaves.add(generator.uniform(-1, 1, shape).astype("float32"))
        for shape in ((7, 1, 14, 14), (20, 1, 5, 5), (7, 20, 10 + 2 * padding, 10 + 2 * padding))
    )
    y = ops.conv(x, weight, [1, 1], [(padding, padding)] * 2, [1, 1])
    graph = leaves.graph(gradients(ops.sum(y * upstream), [weight]))
    program = check(graph, CpuEngine(), leaves.feeds)
    assert [how.way for how in ways_of(program)] == ["elements"]
    found: list[bytes] = []
    for threads in (1, 2, 5):
        engine = CpuEngine()
        engine.processor = replace(engine.processor, threads=threads)
        written = write_parts(program, engine.processor, lambda one, other: one == other)
        assert [part.function for part in written.parts][-2:] == ["step0", "step0_total"]
        assert written.parts[-2].units >= 7
        outputs, _ = run_program(program, engine, leaves.feeds)
        found.append(outputs[program.outputs[0][0]].tobytes())
    assert len(set(found)) == 1


@pytest.mark.usefixtures("always_filtered")
@pytest.mark.parametrize("size", [3, 5])
def test_a_nan_reaches_the_results_that_see_it(size: int) -> None:
    graph, feeds = convolution(size=size)
    feeds["x0"][1, 3, 4, 5] = np.nan
    program = compile_graph(graph, batch=1, name="test")
    outputs, _ = run_program(program, CpuEngine(), feeds)
    y = outputs[program.outputs[0][0]]
    seen = np.zeros(y.shape, bool)
    reach = size // 2
    seen[1, :, 4 - reach : 5 + reach, 5 - reach : 6 + reach] = True
    np.testing.assert_array_equal(np.isnan(y), seen)


@pytest.mark.usefixtures("always_filtered")
@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("place", [(0, 0), (4, 5)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_only_gradients_of_the_weights_of_its_channel(
    size: int, place: tuple[int, int], value: float
) -> None:
    graph, feeds = convolution(size=size)
    feeds["x0"][(1, 3, *place)] = value
    program = compile_graph(graph, batch=1, name="test")
    outputs, _ = run_program(program, CpuEngine(), feeds)
    lost = ~np.isfinite(outputs[program.outputs[2][0]])
    assert lost[:, 3].any(axis=(1, 2)).all()
    assert not np.delete(lost, 3, axis=1).any()


@pytest.mark.parametrize("vectors", SMALL)
@pytest.mark.parametrize("extent", [9, 25, 27, 30, 31])
def test_lanes_that_are_masked_out_are_zero(
    extent: int, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(vectors, monkeypatch)
    leaves = Leaves()
    x = leaves.add(np.arange(3.0 * (extent + 1)).reshape(3, extent + 1).astype("float32"))
    # The vector that is left has an odd number of lanes, and a mask that is known beforehand.
    last = ops.pad(x[:, extent:], [(0, 0), (extent - 1, 0)])
    check(leaves.graph([x[:, :extent] + last]), engine, leaves.feeds)


@pytest.mark.parametrize("vectors", SMALL)
@pytest.mark.parametrize("extent", [2, 9, 16, 31, 66])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "bool"])
def test_what_lies_backwards_is_read_in_the_right_order(
    dtype: str, extent: int, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(vectors, monkeypatch)
    leaves = Leaves()
    values = np.random.default_rng(extent).integers(0, 2 if dtype == "bool" else 99, (3, extent))
    x = leaves.add(values.astype(dtype))
    mirrored = ops.pad_with(x, [(1, 0), (extent - 1, 1)], "reflect")
    check(leaves.graph([ops.flip(x), mirrored]), engine, leaves.feeds)
