"""Targets and costs that lead to other decisions than the default target's."""

import pytest

from lamina.program.target import Target

# Everything is computed again.
RECOMPUTING = Target(
    name="recomputing",
    launch_bytes=2.0**20,
    narrow_positions=True,
    scatter="sorted",
    chains=True,
    alignment_bytes=128,
    largest_block_bytes=1 << 16,
)
# Every tensor with several users is stored.
STORING = Target("storing", launch_bytes=0.0, narrow_positions=False, scatter="in order")

TARGETS = (RECOMPUTING, STORING)

# The costs that belong to them: for each target, the values of constants of the compiler.
_COSTS = {
    "program.primitive_costs.SIMPLE_COST": (0.001, 1.5),
    "program.primitive_costs.EXPENSIVE_COST": (0.001, 1.5),
    "compiler.chains.LEAST_LENGTH": (1, 128),
    "compiler.fusion.costs._PACKING_BYTES": (0.0, 4.0),
    "compiler.fusion.costs._CACHED_RATIO": (2, 1 << 20),
    "ops.attention_blocks.BLOCK_QUERIES": (2, 1),
    "ops.attention_blocks.MOST_BLOCKS": (3, 5),
}


def use_costs_of(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles with the costs of one of these targets from now on."""
    for name, values in _COSTS.items():
        monkeypatch.setattr(f"lamina.{name}", values[TARGETS.index(target)])
