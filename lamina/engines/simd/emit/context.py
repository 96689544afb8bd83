"""The state that is shared by the writers of a step's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, uint8
from lamina.codegen import points
from lamina.codegen.builder import Builder, Module
from lamina.codegen.values import I64, POINTER, TABLE, Type, Value
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.emit.addresses import Addresses, Workspaces
from lamina.engines.simd.processor import Processor
from lamina.program.index import Axis
from lamina.program.program import Buffer

# Points of a function in LLVM's language.
Points = points.Points[Builder]

# The parameters of a kernel's function: its section of the table of addresses, the thread, and the
# range of work items.
ITEM_RANGE_PARAMETERS = (("table", TABLE), ("thread", I64), ("first", I64), ("last", I64))


@frozen_dataclass
class WrittenKernel:
    """A kernel: a function that each thread calls for some of its work items.

    Attributes:
        function: the name of the function; its parameters are `ITEM_RANGE_PARAMETERS`.
        reads, writes: the buffers that it uses.
    """

    function: str
    reads: frozenset[str]
    writes: frozenset[str]


def vectors_along(
    points: Points, axis: Axis, start: Value, panel: Panel, read: Callable[[], Value]
) -> Iterator[Value]:
    """What `read` gives for each vector of a panel whose columns along an axis begin at `start`."""
    for number in range(panel.vectors):
        with points.along(axis, start + number * panel.lanes, panel.present(number)):
            value = read()
        yield value


def parameters(addresses: str, numbers: str = "") -> tuple[tuple[str, Type], ...]:
    """The parameters of a function, by the names of its addresses and of its numbers."""
    pointers = ((name, POINTER) for name in addresses.split())
    return (*pointers, *((name, I64) for name in numbers.split()))


@dataclass
class Context:
    """One step while it is written.

    Attributes:
        module: the module that receives the functions.
        buffers: the buffers of the step, in the order of its section of the table of addresses.
        processor: the processor for which the functions are written.
        workspaces: the memory that steps need while they run.
        addresses: the addresses of buffers and workspaces.
        iteration: the axis of the repeat that contains the step; None if there is none.
        whole_vectors: whether buffers are aligned to vectors, and a vector is read whole or not at
            all if all of its lanes have the same bounds.
        requested: the names of the temporary buffers that the step has requested.
    """

    # The name of the temporary buffer that all threads share, for operands and sums.
    SHARED: ClassVar[str] = "shared"

    module: Module
    buffers: dict[str, Buffer]
    processor: Processor
    workspaces: Workspaces
    addresses: Addresses
    iteration: Axis | None = None
    whole_vectors: bool = False
    requested: list[str] = field(default_factory=list[str])

    def need_buffer(self, name: str, shape: Sequence[int], dtype: DType) -> None:
        """Requests a temporary buffer for the step that is not in the program."""
        self.buffers[name] = Buffer(name, "temporary", tuple(shape), dtype)
        if name not in self.requested:
            self.requested.append(name)

    def need_shared(self, size: int) -> None:
        """Requests `size` bytes that all threads share."""
        reserved = self.buffers[self.SHARED].bytes if self.SHARED in self.buffers else 0
        self.need_buffer(self.SHARED, [max(reserved, size)], uint8)

    def address(self, code: Builder, name: str) -> Value:
        """The address of a buffer; the function's first parameter is the table."""
        return self.addresses.buffer(code, code.parameters[0], list(self.buffers).index(name))

    def thread_memory(self, code: Builder) -> Value:
        """The address of the thread's memory; a function's first parameters are table, thread."""
        table, thread, *_ = code.parameters
        return self.addresses.thread_memory(code, table, thread)

    def begin(
        self,
        name: str,
        parameters: Sequence[tuple[str, Type]],
        used: Iterable[str],
        *,
        calling: bool = False,
    ) -> Points:
        """Begins a function that uses buffers; its first parameter is their table.

        With `calling`, it calls functions to load and store vectors that are not contiguous.
        """
        code = self.module.function(name, parameters)
        used = sorted(used)
        bases = {buffer: self.address(code, buffer) for buffer in used}
        sizes = {buffer: self.buffers[buffer].size for buffer in used}
        begun = Points(code, bases, sizes, calling=calling, whole_vectors=self.whole_vectors)
        if self.iteration is not None:
            begun.fix(self.iteration, self.addresses.iteration(code, code.parameters[0]))
        return begun
