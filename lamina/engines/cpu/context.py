"""What the functions of a program are written into and for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lamina.engines.cpu.ir import POINTER, Module, Type
from lamina.engines.cpu.points import Points
from lamina.engines.cpu.processor import Processor
from lamina.engines.cpu.workspaces import Workspaces
from lamina.program.index import Axis
from lamina.program.program import Buffer
from lamina.shapes import DType


@dataclass
class Context:
    """One program while it is written.

    Attributes:
        module: where functions are written.
        buffers: all buffers of the program, and those that its steps ask for.
        table: the number of each buffer in the table of addresses.
        processor: what the functions are written for.
        workspaces: where steps ask for memory that they need while they run.
        turn: the axis whose turns the step that is being written is repeated for, if it is.
    """

    module: Module
    buffers: dict[str, Buffer]
    table: dict[str, int]
    processor: Processor
    workspaces: Workspaces
    turn: Axis | None = None

    def need_buffer(self, name: str, shape: Sequence[int], dtype: DType) -> None:
        """A buffer that is no part of the program, for a step's own use."""
        self.buffers[name] = Buffer(name, "temporary", tuple(shape), dtype)
        self.table[name] = self.workspaces.next_slot()

    def begin(
        self, name: str, parameters: Sequence[tuple[str, Type]], used: Iterable[str]
    ) -> Points:
        """Begins a function that computes with buffers; its first parameter is their table."""
        code = self.module.function(name, parameters)
        used = sorted(used)
        bases = {
            buffer: code.load(code.offset(code.parameters[0], self.table[buffer], "ptr"), POINTER)
            for buffer in used
        }
        points = Points(code, bases, {buffer: self.buffers[buffer].size for buffer in used})
        if self.turn is not None:
            points.fix(self.turn, self.workspaces.turn(code, code.parameters[0]))
        return points
