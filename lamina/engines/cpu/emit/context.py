"""What the functions of a step are written into and for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from lamina.codegen import points
from lamina.codegen.llvm import Function, Module
from lamina.codegen.values import I64, POINTER, Type, Value
from lamina.engines.cpu.emit.workspaces import SLOTS, Workspaces
from lamina.engines.cpu.processor import Processor
from lamina.program.index import Axis
from lamina.program.program import Buffer
from lamina.records import frozen_dataclass
from lamina.shapes import DType, uint8

# Points of a function in LLVM's language.
Points = points.Points[Function]

# What the function of a part is called with.
ITEM_RANGE_PARAMETERS = (("table", POINTER), ("thread", I64), ("first", I64), ("last", I64))


@frozen_dataclass
class WrittenKernel:
    """A function that the threads share: each runs it for some of its work items.

    Attributes:
        function: its name; it takes the step's section of the table of addresses, the number of the
            thread, and the first and last work item.
        reads, writes: the buffers it uses.
    """

    function: str
    reads: frozenset[str]
    writes: frozenset[str]


@dataclass
class Context:
    """One step while it is written.

    Attributes:
        module: where functions are written.
        buffers: those that it uses, in the order in which the step's section of the table of
            addresses has them.
        processor: what the functions are written for.
        workspaces: where steps ask for memory that they need while they run.
        iteration: the axis that the step is repeated for, if it is.
        asked: the names of the buffers that the step has asked for, for the time that it runs.
    """

    # The one that all threads see, for operands and sums.
    SHARED: ClassVar[str] = "shared"

    module: Module
    buffers: dict[str, Buffer]
    processor: Processor
    workspaces: Workspaces
    iteration: Axis | None = None
    asked: list[str] = field(default_factory=list[str])

    def need_buffer(self, name: str, shape: Sequence[int], dtype: DType) -> None:
        """A buffer that is no part of the program, for a step's own use."""
        self.buffers[name] = Buffer(name, "temporary", tuple(shape), dtype)
        if name not in self.asked:
            self.asked.append(name)

    def need_shared(self, size: int) -> None:
        """Asks for bytes that all threads see."""
        known = self.buffers[self.SHARED].bytes if self.SHARED in self.buffers else 0
        self.need_buffer(self.SHARED, [max(known, size)], uint8)

    def address(self, code: Function, name: str) -> Value:
        """Where a buffer lies; the function's first parameter is the step's section."""
        slot = len(SLOTS) + list(self.buffers).index(name)
        return code.load(code.offset(code.parameters[0], slot, "ptr"), POINTER)

    def begin(
        self,
        name: str,
        parameters: Sequence[tuple[str, Type]],
        used: Iterable[str],
        *,
        calling: bool = False,
    ) -> Points:
        """Begins a function that computes with buffers; its first parameter is their section.

        If it is `calling`, it calls others for vectors whose elements lie apart.
        """
        code = self.module.function(name, parameters)
        used = sorted(used)
        bases = {buffer: self.address(code, buffer) for buffer in used}
        sizes = {buffer: self.buffers[buffer].size for buffer in used}
        begun = Points(code, bases, sizes, calling=calling)
        if self.iteration is not None:
            begun.fix(self.iteration, self.workspaces.iteration(code, code.parameters[0]))
        return begun
