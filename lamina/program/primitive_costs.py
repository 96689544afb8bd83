"""The costs of scalar primitives, equal on all devices; a `Target` has the costs of a device."""

from __future__ import annotations

# Primitives that cost about as much as ten additions or more, on any device.
EXPENSIVE = frozenset(
    (
        *("power", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"),
        *("atan2", "sinh", "cosh", "tanh", "erf", "erfc", "sigmoid", "softplus"),
        *("divide", "quotient", "fmod", "square_root", "reciprocal", "random_bits"),
    )
)

# Costs of one element of a tensor; storing a float and loading it again costs 1. A value that costs
# more is computed once and stored; another one may be computed for each use. Four simple
# primitives take as long as a store and a load in the caches.
SIMPLE_COST, EXPENSIVE_COST = 0.25, 2.5


def cost_of_primitive(primitive: str) -> float:
    """The cost of one application of a primitive."""
    return EXPENSIVE_COST if primitive in EXPENSIVE else SIMPLE_COST
