"""The target of a program: the costs and limits of a device, as far as the compiler reads them.

Engines return the record; ops, layers and gradients do not depend on it. One graph becomes
different programs for different targets, and all of them compute the same results. Costs that are
equal on all devices are in `primitive_costs.py`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

from lamina.base.records import frozen_dataclass


@frozen_dataclass
class Target:
    """The costs and limits of a device.

    Attributes:
        name: the name, for people and part of the key of cached programs.
        launch_bytes: the fixed cost of a step: the bytes that are moved in the same time.
        narrow_positions: whether indices are computed in 32 bits if all of them fit, because 64
            bits take longer.
        scatter: the way in which values are added up. "in order": one worker adds one value after
            the other; "sorted": the indices are sorted, then one worker for each result adds.
        chains: whether contractions between which only functions of single elements and reductions
            of rows are computed become one step, a `Chain`, that stores nothing between them.
        alignment_bytes: the alignment of every temporary.
        largest_block_bytes: the most bytes of one allocation; None if there is no limit.
        operand_tile: the m or n for which a product converts an element of an operand once; None
            if conversions are free.
    """

    name: str
    launch_bytes: float
    narrow_positions: bool
    scatter: Literal["in order", "sorted"]
    chains: bool = False
    alignment_bytes: int = 1
    largest_block_bytes: int | None = None
    operand_tile: int | None = None

    @property
    def key(self) -> str:
        """All fields as text, the same in every process: part of the key of cached programs."""
        return json.dumps(asdict(self), sort_keys=True)
