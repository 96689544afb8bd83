"""Tolerances of results against the oracle, derived for each element from the graph.

Engines agree on every op but three kinds, whose results may differ within a bound:

- Functions (exp, tanh, power, ...): by 4 units in the last place, as engines promise.
- Sums and products of n terms: by sqrt(n) eps times the sum of the terms' absolute values. Orders
  differ, and n roundings do not all have one sign (Higham and Mary, *A new approach to
  probabilistic rounding error analysis*, 2019). A product that is a term may be
  rounded with the sum, also in `multiply_add`.
- Contractions over windows of 3x3 and 5x5: by the largest such bound of the whole result times
  `AMPLIFICATION`. Winograd's algorithms add and subtract numbers of a whole tile.

All else is exact: movements, random numbers, comparisons, integers, and `+ - * / sqrt` of floats,
which IEEE 754 defines to the last bit. Additions into one element (scatter) are made in order.

How these errors add up in a graph depends on the values: differences cancel, divisions enlarge. So
the oracle runs several times. Each time all results of the three kinds are perturbed at random, by
half their bound to all of it, and later rounded results by up to a unit in the last place (Parker,
*Monte Carlo arithmetic*, 1997). An element may be off by `FACTOR` times the root mean square of its
changes. So tolerances follow from shapes and values, on any machine: where only exact ops are
involved, all bits must be equal, and zeros must be zeros.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from lamina.base.shapes import Array, converted, size_of, static
from lamina.compiler.expand import expand, widen
from lamina.compiler.unroll import unroll
from lamina.graph import CONSTANT, LEAF, Graph, Tensor, evaluate
from lamina.ops.lowering_rules import (
    Contracting,
    Elementwise,
    Movement,
    Reduction,
    Repeating,
    Scanning,
)
from lamina.program.scalar import Apply, Local, postorder

Values = Mapping[str, Array]

# With eight runs and this factor, an element whose true error is a third of its bound fails in one
# of ten million cases. Errors are smaller: roundings seldom have one sign.
RUNS = 8
FACTOR = 6.0
# Perturbations are scaled by this factor, as perturbations of a unit would be lost in rounding. If
# a graph rounds to 16 bits or to TF32 they are not: a unit of these is large enough, and 64 too
# many.
ENLARGED, ENLARGED_COARSE = 64.0, 1.0
# A unit in the last place of TF32, in units of float32.
TF32_UNITS = 2.0**13
FUNCTIONS = frozenset(
    (
        *("power", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"),
        *("atan2", "sinh", "cosh", "tanh", "erf", "erfc", "sigmoid", "softplus"),
    )
)
FUNCTION_UNITS = 4.0
ROUNDED = frozenset(("add", "subtract", "multiply", "divide", "square_root", "reciprocal", "cast"))
# By the size of square windows: how much larger the root mean square error of Winograd's method is
# than the direct sum's, for numbers of like size. Along one axis, with the matrices A, G and
# B of a convolution (or of the gradient of its weights) whose rows are squared element by element,
# it is the square root of the largest element of A (G 1 * B 1) / window. Of both it is the larger
# one, and squared, as there are two axes.
AMPLIFICATION = {3: 2.0, 5: 22.0}
# The same if an operand is rounded to 16 bits, where tiles of 4x4 positions are allowed.
ROUNDED_AMPLIFICATION = {3: 8.5}


@dataclass(frozen=True)
class Expected:
    """The oracle's results: values, and the tolerance of each element.

    Attributes:
        outputs: by name.
        leaves: after the last run, by name.
    """

    outputs: Mapping[str, tuple[Array, Array]]
    leaves: Mapping[str, tuple[Array, Array]]

    def __or__(self, other: "Expected") -> "Expected":
        """The results of two graphs."""
        return Expected({**self.outputs, **other.outputs}, {**self.leaves, **other.leaves})


def expected_of(graph: Graph, feeds: Values, runs: int = 1, *, exact: bool = False) -> Expected:
    """The oracle's results after some runs; each run starts from the updates of the run before.

    If numbers are so `exact` that nothing is rounded, no difference is allowed.
    """
    outputs: Values = {}
    leaves = dict(feeds)
    # Iterations of recurrences contain ops that stand for others, too, also for recurrences.
    simple = expand(widen(graph))
    while any(isinstance(node.op.lowering, Repeating) for node in simple.nodes()):
        simple = expand(unroll(simple))
    is_coarse = any(n.dtype.is_half or n.op.name == "round_to_tf32" for n in simple.nodes())
    enlarged = ENLARGED_COARSE if is_coarse else ENLARGED
    results, current = dict[str, _Repeated](), {name: [value] for name, value in feeds.items()}
    for _ in range(runs):
        outputs, updates = evaluate(graph, leaves)
        leaves |= updates
        if exact:
            results = {name: [value] for name, value in outputs.items()}
            current = {name: [value] for name, value in leaves.items()}
        else:
            results, updated = _perturbed_runs(simple, current, enlarged)
            current |= updated
    return Expected(
        {name: (value, _allowed(results[name], enlarged)) for name, value in outputs.items()},
        {name: (value, _allowed(current[name], enlarged)) for name, value in leaves.items()},
    )


# The oracle's result, then perturbed ones; a single value if perturbations do not change it.
_Repeated = list[Array]


def _allowed(values: _Repeated, enlarged: float) -> Array:
    first, *others = (value.astype("float64") for value in values)
    if not others:
        return np.zeros(first.shape)
    with np.errstate(all="ignore"):
        changes = np.abs(np.array(others) - first)
        changes = np.where(np.isfinite(changes), changes, 0)
        # Squares of small numbers would be zero.
        largest = np.max(changes, 0)
        share = np.nan_to_num(changes / largest)
        return np.asarray(FACTOR / enlarged * largest * np.sqrt(np.mean(share**2, 0)))


def _perturbed_runs(
    graph: Graph, feeds: Mapping[str, _Repeated], enlarged: float
) -> tuple[dict[str, _Repeated], dict[str, _Repeated]]:
    """Outputs and updates by name."""
    values: dict[Tensor, _Repeated] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes():
            if node.op is LEAF:
                values[node] = feeds[node.attributes["name"]]
            else:
                operands = [values[operand] for operand in node.operands]
                values[node] = _computed(node, operands, enlarged)
    outputs = {name: values[tensor] for name, tensor in graph.outputs}
    updates = {target.attributes["name"]: values[value] for target, value in graph.updates}
    return outputs, updates


def _computed(node: Tensor, operands: list[_Repeated], enlarged: float) -> _Repeated:
    is_perturbed = any(len(values) > 1 for values in operands)
    runs = range(RUNS + 1 if is_perturbed else 1)
    inputs = [[values[run if len(values) > 1 else 0] for values in operands] for run in runs]
    results = [
        converted(np.asarray(node.op.reference(*arrays, **node.attributes)), node.dtype.numpy)
        for arrays in inputs
    ]
    bound = _bound(node, inputs[0], results[0], is_perturbed)
    if bound is None:
        return results
    first, *others = results if is_perturbed else results * (RUNS + 1)
    bound = enlarged * bound
    perturbed = (_perturbed(value, bound, run, node.op.name) for run, value in enumerate(others))
    return [first, *perturbed]


def _perturbed(value: Array, bound: Array, number: int, op: str) -> Array:
    """The values perturbed by half their bounds to all of them, up or down.

    Equal values are perturbed equally, by a hash of their bits, as engines compute equal elements
    equally: a maximum has as many equal elements as before.
    """
    wide = np.asarray(value, "float64") + 0.0
    mixed = wide.view("uint64") ^ np.uint64(sum(op.encode()) * 256 + number)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    share = (mixed >> np.uint64(11)).astype("float64") * 2.0**-52 - 1
    share = np.copysign(0.5 + 0.5 * np.abs(share), share)
    return np.asarray(wide + bound * share, value.dtype)


# Bounds of single ops -----------------------------------------------------------------------------


def _bound(node: Tensor, operands: list[Array], value: Array, is_perturbed: bool) -> Array | None:
    """The largest difference of engines' results for equal operands; None if there is none.

    A rounded result of perturbed operands may be rounded to the other neighbour.
    """
    if not node.dtype.is_float or not value.size:
        return None
    lowering = node.op.lowering
    eps = float(ml_dtypes.finfo(value.dtype).eps)
    bound: Array | None = None
    if isinstance(lowering, Elementwise):
        primitives = _primitives(node)
        units = FUNCTION_UNITS if primitives & FUNCTIONS else 1.0
        if primitives & FUNCTIONS or (is_perturbed and primitives & ROUNDED):
            # Where a result is zero, it is exact.
            bound = units * np.where(value == 0, 0, _spacing(value))
        if is_perturbed and "round_to_tf32" in primitives:
            bound = TF32_UNITS * np.where(value == 0, 0, _spacing(value))
        if "multiply_add" in primitives:
            bound = eps * _of_absolute_values(node, operands)
    elif isinstance(lowering, Contracting):
        bound = eps * _contraction_bound(node, operands)
    elif isinstance(lowering, Reduction | Scanning) and lowering.combine in ("sum", "product"):
        terms = _terms(node, value)
        if terms > 1:
            bound = eps * math.sqrt(terms) * _of_absolute_values(node, operands)
    return None if bound is None else np.where(np.isfinite(bound), bound, 0)


def _spacing(value: Array) -> Array:
    """Units in the last place."""
    limits = ml_dtypes.finfo(value.dtype)
    _, exponent = np.frexp(np.abs(value.astype("float64")))
    least = float(limits.smallest_subnormal)
    return np.maximum(np.ldexp(float(limits.eps), exponent - 1), least)


def _primitives(node: Tensor) -> set[str]:
    """The primitives of an elementwise op."""
    lowering = node.op.lowering
    assert isinstance(lowering, Elementwise)
    probes = tuple(Local("probe", operand.dtype) for operand in node.operands)
    parts = postorder(lowering.scalar(node, probes))
    return {part.primitive for part in parts if isinstance(part, Apply)}


def _terms(node: Tensor, value: Array) -> int:
    """The number of terms of an element of a reduction, or of the last element of a scan."""
    if isinstance(node.op.lowering, Scanning):
        return value.shape[node.attributes["axis"]]
    return size_of(static(node.operands[0].shape)) // value.size


def _of_absolute_values(node: Tensor, operands: list[Array]) -> Array:
    found = node.op.reference(*(np.abs(x) for x in operands), **node.attributes)
    return np.asarray(found, "float64")


def _contraction_bound(node: Tensor, operands: list[Array]) -> Array:
    extents = {
        label: extent
        for side, x in zip(("left", "right"), operands, strict=True)
        for label, extent in zip(node.attributes[side], x.shape, strict=True)
    }
    terms = size_of([n for label, n in extents.items() if label not in node.attributes["output"]])
    sums = _of_absolute_values(node, operands)
    bound = math.sqrt(terms) * sums
    is_rounded = any(map(_is_rounded, node.operands))
    amplification = max(_amplification(operand, is_rounded=is_rounded) for operand in node.operands)
    if amplification:
        # Where all terms are zero, the result is exactly zero.
        bound = np.where(sums == 0, 0, amplification * np.max(bound))
    return bound


def _is_rounded(operand: Tensor) -> bool:
    """Whether the elements of an operand are floats of 16 bits, possibly cast and moved."""
    while not (operand.dtype.is_float and operand.dtype.itemsize == 2):
        if operand.op.name != "cast" and not isinstance(operand.op.lowering, Movement):
            return False
        operand = operand.operands[0]
    return True


def _amplification(operand: Tensor, *, is_rounded: bool) -> float:
    """The amplification of Winograd's algorithm if it may be used for the operand; otherwise 0."""
    while operand.op not in (LEAF, CONSTANT) and operand.op.name != "shear":
        if operand.op.name not in ("reshape", "transpose", "cast", "round_to_tf32", "slice"):
            return 0.0
        (operand,) = operand.operands
    if operand.op.name != "shear":
        return 0.0
    slopes = operand.attributes["slopes"]
    rates = {(slope[3], abs(slope[4]), slope[6]) for slope in slopes}
    if len(slopes) != 2 or rates != {(1, 1, 1)}:
        return 0.0
    sizes = {static(operand.shape)[slope[1]] for slope in slopes}
    if len(sizes) != 1:
        return 0.0
    (size,) = sizes
    factors = AMPLIFICATION | ROUNDED_AMPLIFICATION if is_rounded else AMPLIFICATION
    return factors.get(size, 0.0)
