"""Workspaces: memory that the kernels of a step use in addition to the step's own buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.shapes import DType, size_of
from lamina.program.index import Axis, row_major
from lamina.program.program import Buffer
from lamina.program.scalar import Load, Scalar
from lamina.program.steps import Store


@final
class StepWorkspaces:
    """The workspaces of a step of a name; `made` has all of them, in order."""

    def __init__(self, step: str) -> None:
        self._step, self.made = step, list[Buffer]()

    def add(self, size: int, dtype: DType) -> str:
        """A further workspace, of a number of elements; returns its name."""
        name = f"workspace {len(self.made)} of {self._step}"
        self.made.append(Buffer(name, "temporary", (size,), dtype))
        return name

    def kept(self, axes: Sequence[Axis], value: Scalar) -> tuple[Store, Load]:
        """The store of a value at each point of some axes in a further workspace, and its load."""
        location = row_major(axes)
        name = self.add(size_of([axis.extent for axis in axes]), value.dtype)
        return Store(name, location, value), Load(name, location, value.dtype)
