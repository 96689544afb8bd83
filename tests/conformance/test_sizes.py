"""Contractions and reductions of the sizes at which engines change algorithms.

Random graphs are small. Algorithms for larger ones (tiles with edges, packed operands, split-K,
blocks of long reductions) are compared with the oracle here: random extents around the widths of
vectors, operands through every kind of view, epilogues, sums of stored results.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from harness import Drawn, Leaves, check, tens

from lamina import ops
from lamina.base.shapes import Array, DType, float32, float64
from lamina.graph import Tensor

EXTENTS = (1, 2, 3, 5, 7, 8, 10, 13, 15, 16, 17, 24, 31, 32, 33, 47, 64, 65, 100, 130)
LARGEST_WORK = 300_000
SMALLEST_WORK = 5_000


class Products(Drawn):
    """A random product of matrices, through views, with an epilogue."""

    def __init__(self, seed: int, leaves: Leaves) -> None:
        super().__init__(seed, leaves)
        self.dtype: DType = float64 if seed % 5 == 4 else float32
        self.batch = self.choose((1, 1, 1, 2, 3))
        while True:
            self.m, self.n, self.k = (self.choose(EXTENTS) for _ in range(3))
            work = self.batch * self.m * self.n * self.k
            if SMALLEST_WORK <= work <= LARGEST_WORK:
                break

    def leaf(self, *shape: int, role: str = "input") -> Tensor:
        array = self.generator.uniform(-1, 1, shape).astype(self.dtype.numpy)
        return self.leaves.add(array, role, f"{role[0]}{len(self.leaves.tensors)}")

    def operand(self, rows: int, columns: int) -> Tensor:
        """A matrix (rows, columns), or several, through one of many views."""
        lead = (self.batch,) if self.batch > 1 and self.generator.random() < 0.8 else ()
        role = self.choose(("input", "parameter"))
        swap = (*range(len(lead)), len(lead) + 1, len(lead))

        def bytes_of() -> Tensor:
            array = self.generator.integers(0, 3, (*lead, rows, columns)).astype("uint8")
            return ops.cast(self.leaves.add(array), self.dtype)

        def gathered() -> Tensor:
            indices = self.generator.integers(0, rows + 3, rows)
            table = self.leaf(*lead, rows + 3, columns)
            return ops.take(table, self.leaves.add(indices), len(lead))

        def padded() -> Tensor:
            middle = self.leaf(*lead, rows, max(columns - 1, 1))
            extra = columns - max(columns - 1, 1)
            return ops.pad(middle, [(0, 0)] * (len(lead) + 1) + [(extra, 0)])

        forms: list[Callable[[], Tensor]] = [
            lambda: self.leaf(*lead, rows, columns, role=role),
            lambda: self.leaf(*lead, rows, columns, role=role),
            lambda: ops.transpose(self.leaf(*lead, columns, rows, role=role), swap),
            lambda: ops.transpose(self.leaf(*lead, columns, rows, role=role), swap),
            lambda: self.leaf(*lead, rows, 2 * columns)[..., ::2],
            lambda: ops.flip(self.leaf(*lead, rows, columns), -1),
            lambda: ops.broadcast_to(self.leaf(1, columns), (*lead, rows, columns)),
            bytes_of,
            gathered,
            padded,
        ]
        return self.choose(forms)()

    def results(self) -> list[Tensor]:
        left, right = self.operand(self.m, self.k), self.operand(self.k, self.n)
        product = left @ right
        shape = tuple(extent for extent in product.shape if isinstance(extent, int))
        outputs = [product]
        epilogues: list[Callable[[], Tensor]] = [
            lambda: product + self.leaf(self.n),
            lambda: ops.tanh(product * 0.1 + self.leaf(self.n)),
            lambda: ops.relu(product) + self.leaf(*shape),
            lambda: product * ops.cast(self.leaf(*shape) > 0, self.dtype),
            lambda: ops.where(ops.uniform(shape, *self.seed(), 1, self.dtype) < 0.5, product, 0),
        ]
        for _ in range(self.choose((0, 1, 2))):
            outputs = [self.choose(epilogues)()]
        if self.chance(0.5):
            outputs.append(ops.sum(outputs[0], -2) * 2.0)
        if self.chance(0.3):
            outputs.append(ops.exp(ops.max(outputs[0], -1) * 0.01))
        if self.chance(0.3):
            outputs.append(self.leaf(5, self.k) @ right)
            outputs.append(self.leaf(9, self.k) @ right)
        return outputs

    def seed(self) -> tuple[Tensor, Tensor]:
        seed, step = (self.leaves.add(np.asarray(number, "int64")) for number in (3, 4))
        return seed, step


@pytest.mark.parametrize("first", tens(range(150)))
def test_products_equal_their_evaluation(first, check_cases):
    check_cases(range(first, first + 10), lambda *of: Products(*of).results())


# Sums of such small whole numbers are exact in every order, so that a lost product shows.
def whole_numbers(generator: np.random.Generator, dtype: DType, *shape: int) -> Array:
    return generator.integers(-3, 4, shape).astype(dtype.numpy)


DTYPES = pytest.mark.parametrize("dtype", [float32, float64], ids=str)


LARGE_K = ((3, 5, 9000), (33, 40, 4100), (40, 3, 8193), (2, 16, 4096), (15, 33, 9000))
# Rows a page multiple apart.
LARGE_K += ((37, 200, 2048),)


@DTYPES
def test_products_with_a_large_k_equal_their_evaluation(dtype, check_cases):
    def build(size, leaves):
        m, n, k = size
        generator = np.random.default_rng(k)
        a, b, c, d = (
            leaves.add(generator.uniform(-1, 1, shape).astype(dtype.numpy))
            for shape in ((m, k), (k, n), (k, m), (n, k))
        )
        products = [a @ b, c.T @ b, a @ d.T, c.T @ d.T]
        return [ops.tanh(y * 0.01) for y in products]

    check_cases(LARGE_K, build)


PRODUCTS = (
    *((1, 1, 33), (2, 3, 17), (3, 31, 65), (13, 16, 130), (14, 32, 64), (15, 33, 1)),
    *((29, 50, 47), (31, 7, 100), (64, 48, 10), (5, 100, 9001), (70, 130, 31)),
)


@DTYPES
@pytest.mark.parametrize("transposed", ["", "left", "right"])
def test_every_product_counts(transposed, dtype, check_cases):
    def build(size, leaves):
        m, n, k = size
        generator = np.random.default_rng(m)
        a, b = (whole_numbers(generator, dtype, *shape) for shape in ((m, k), (k, n)))
        # The transposed operand is stored so.
        a, b = (
            ops.transpose(leaves.add(x.T)) if side == transposed else leaves.add(x)
            for side, x in (("left", a), ("right", b))
        )
        product = a @ b
        return [product, ops.sum(product, 0), ops.sum(ops.relu(product), 1)]

    check_cases(PRODUCTS, build, exact=True)


SUMS = ((1,), (19,), (7, 33), (33, 7), (5, 3, 65), (70_001,), (66_000, 3), (5, 70_000))


@DTYPES
def test_every_number_of_a_sum_counts(dtype, check_cases):
    def build(shape, leaves):
        x = leaves.add(whole_numbers(np.random.default_rng(len(shape)), dtype, *shape))
        return [ops.sum(x), ops.sum(x, 0), ops.sum(x, -1), ops.sum(x * x), ops.cumsum(x, -1)]

    check_cases(SUMS, build, exact=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_argmax_and_argmin_return_the_first_of_equal_extremes(dtype, check_cases):
    def build(shape, leaves):
        low = 0 if dtype == "uint8" else -2
        values = np.random.default_rng(0).integers(low, 3, shape)
        x, constant = leaves.add(values.astype(dtype)), leaves.add(np.ones(shape, dtype))
        flat = [(ops.reshape(tensor, (-1,)), 0) for tensor in (x, constant)]
        return [
            position(of, axis)
            for of, axis in (*flat, (x, 0), (x, -1))
            for position in (ops.argmax, ops.argmin)
        ]

    check_cases(((70,), (3, 33), (33, 3), (4, 65)), build)


@DTYPES
def test_long_reductions_equal_their_evaluation(dtype, check_cases):
    def build(shape, leaves):
        generator = np.random.default_rng(len(shape))
        x = leaves.add(generator.uniform(-1, 1, shape).astype(dtype.numpy))
        return [
            ops.sum(x),
            ops.sum(x, 0),
            ops.max(x),
            ops.min(x * 2, 0),
            ops.mean(x * x, -1),
            # Exact in every order.
            ops.prod(ops.where(x > 0, 1.0, -1.0)),
            ops.logsumexp(x, tuple(range(len(shape)))),
            ops.argmax(ops.reshape(x, (-1,)), 0),
        ]

    check_cases(((70_001,), (66_000, 3), (5, 70_000), (64, 33, 65)), build)


def test_reductions_keep_nan(engine, leaves):
    x = leaves.add(np.where(np.arange(70_001) == 69_999, np.float32(math.nan), np.float32(0)))
    check(leaves.graph([ops.sum(x), ops.max(x), ops.min(x)]), engine, leaves.feeds)


def test_paddings_of_one_axis_have_their_own_bounds(engine, leaves):
    padded: list[Tensor] = []
    for rows, before in ((3, 0), (5, 0), (5, 3), (20, 1)):
        x = leaves.add(np.arange(1, rows * 37 + 1, dtype="float32").reshape(rows, 37))
        padded.append(ops.pad(x, [(before, 24 - rows - before), (0, 2)]))
    total = padded[0] + 2 * padded[1] + 3 * padded[2] + 4 * padded[3]
    check(leaves.graph([total]), engine, leaves.feeds)


@DTYPES
def test_random_numbers_are_subtracted_from_a_sum(dtype, check_cases):
    """Compilers that vectorize a sum of terms that a loop computes must not lose any.

    Intel's OpenCL compiler for processors gave the last iterations of such loops the wrong sign. It
    did not if terms were read from memory, or added instead of subtracted.
    """

    def build(extent, leaves):
        seed, step = (leaves.add(np.array(3)) for _ in range(2))
        return [ops.sum(ops.neg(ops.uniform((extent,), seed, step, 1, dtype)))]

    # Whole vectors of any width, and extents with a remainder.
    check_cases((10, 14, 21, 32, 38), build)
