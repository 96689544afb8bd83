"""Looks for gradients that should be exactly zero and are not, in random convolutions.

    python tools/exact_zeros.py [--cases 200] [--seed 0]

Each case is a convolution with its two gradients on the cpu engine: batches of 1 to 256 images, 8
to 64 channels, windows of 3x3 and 5x5, numbers of many magnitudes, and zeros of all kinds: single
elements, rows, channels, filters, elements of windows, and at random. All terms of a result are
zero if the same graph computes zero from the absolute signs; such a result must be exactly zero.
Results of some size in the oracle that are zero on the engine are counted as lost.

Set `LAMINA_VECTORS=avx2` (or `sse2`) to check narrower vectors. It fails if anything is found.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from lamina import ops
from lamina.base.shapes import Array, as_dtype
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.cpu.engine import CpuEngine
from lamina.graph import Graph, Tensor, evaluate, leaf
from lamina.ops.differentiate import gradients

# Tensors have no more numbers than this, so that the oracle is quick.
LARGEST = 1 << 20
# Numbers of this size are far above the rounding errors of the largest result.
SMALL = 1e-3


def numbers(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Random numbers with some zeros: single ones, or whole indices of some axes."""
    orders = float(generator.choice([0.0, 1.0, 4.0]))
    values = generator.uniform(-1, 1, shape) * 10 ** generator.uniform(-orders, orders, shape)
    kind = int(generator.integers(6))
    if kind == 1:
        values *= generator.random(shape) < generator.choice([0.01, 0.1, 0.5, 0.9])
    elif kind > 1:
        # All but some indices along one axis or more.
        for axis in range(len(shape)):
            if generator.random() < 0.5:
                along = [1] * len(shape)
                along[axis] = shape[axis]
                kept = generator.random(shape[axis]) < generator.choice([0.1, 0.5])
                values *= kept.reshape(along)
    return values.astype(dtype)


def case(number: int, seed: int) -> tuple[Graph, dict[str, Array]]:
    """The graph of a case, and the arrays of its leaves."""
    generator = np.random.default_rng([seed, number])
    dtype = "float64" if number % 5 == 4 else "float32"
    while True:
        batch = int(2 ** generator.integers(0, 9))
        channels, filters = (int(n) for n in generator.integers(8, 65, 2))
        height, width = (int(n) for n in generator.integers(1, 33, 2))
        if batch * max(channels, filters) * height * width <= LARGEST:
            break
    size = int(generator.choice([3, 5]))
    padding = size // 2
    feeds = {
        "x": numbers(generator, (batch, channels, height, width), dtype),
        "weight": numbers(generator, (filters, channels, size, size), dtype),
        "upstream": numbers(generator, (batch, filters, height, width), dtype),
    }
    leaves = {name: leaf(name, "input", x.shape, as_dtype(x.dtype)) for name, x in feeds.items()}
    x, weight, upstream = leaves.values()
    y = ops.conv(x, weight, [1, 1], [(padding, padding)] * 2, [1, 1])
    outputs: list[Tensor] = [y, *gradients(ops.sum(y * upstream), [x, weight])]
    named = tuple(zip(("y", "of_x", "of_weight"), outputs, strict=True))
    return Graph(tuple(leaves.values()), named), feeds


def main() -> None:
    """Runs the cases and prints what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    engine, zeros, noise, lost = CpuEngine(), 0, 0, 0
    for number in range(arguments.cases):
        graph, feeds = case(number, arguments.seed)
        program = compile_graph(graph, batch=1, name="case", target=DEFAULT_TARGET)
        executable = engine.compile(program, {})
        executable.run([feeds[buffer.name] for buffer in program.of_kind("input")])
        counts, _ = evaluate(graph, {name: abs(np.sign(feed)) for name, feed in feeds.items()})
        values, _ = evaluate(graph, feeds)
        for name, count in counts.items():
            result, sizes = executable.output(name), abs(values[name])
            noisy = np.count_nonzero(result[count == 0])
            empty = np.count_nonzero(result[sizes > SMALL * sizes.max()] == 0)
            zeros, noise, lost = zeros + int((count == 0).sum()), noise + noisy, lost + empty
            if noisy or empty:
                print(f"case {number}: {name} has {noisy} noisy zeros, {empty} lost numbers")
        executable.release()
    print(f"{arguments.cases} cases, {zeros} exact zeros: {noise} noisy, {lost} lost numbers")
    sys.exit(bool(noise or lost))


if __name__ == "__main__":
    main()
