"""Samples: inputs on which the generated tests run an op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast, final

from lamina.base.records import cached_property, frozen_dataclass


@frozen_dataclass
class Sample:
    """Inputs on which an op is tested: against its reference, its gradient, on every engine.

    Attributes:
        shapes: one shape for each operand.
        attributes: the op's attributes.
        low, high: the range of operand values, which are drawn uniformly.
        dtypes: the dtypes of the operands; by default all of the float type under test, whose name
            here is "float".
        differentiable: whether the gradient is checked by finite differences here.
        diagonal: the summand of the diagonal of the first operand, matrices in its last two axes.
    """

    shapes: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    low: float = -2.0
    high: float = 2.0
    dtypes: tuple[str, ...] = ()
    differentiable: bool = True
    diagonal: float = 0.0


@final
class Samples(Sequence[Sample]):
    """Samples that are made when they are first read: by tests only.

    Args:
        make: returns all of them.
    """

    def __init__(self, make: Callable[[], Iterable[Sample]]) -> None:
        self._make = make

    @cached_property
    def _all(self) -> tuple[Sample, ...]:
        return tuple(self._make())

    def __getitem__(self, key: Any) -> Any:
        return cast(Any, self._all)[key]

    def __len__(self) -> int:
        return len(self._all)
