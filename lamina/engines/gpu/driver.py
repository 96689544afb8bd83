"""The protocol of drivers: what the engines for GPUs need of OpenCL, or of CUDA.

A driver opens one device, and hands out buffers, modules, kernels and sequences as it holds them
itself: the engine passes these on and never looks inside. None stands for a buffer without bytes.

Ownership: each of these is given back when nobody holds it any more. A part of a buffer keeps the
whole buffer, a kernel its module and its buffers, a sequence its kernels.

Threads: any thread may call, those that launch the same kernel one at a time.

Errors: a command may fail after it was enqueued. The next call that waits raises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lamina.codegen.words import Words
from lamina.engines.engine import Device
from lamina.engines.gpu.allocated import Allocated
from lamina.engines.gpu.launches import Traits
from lamina.shapes import Array

Buffer = Any
Module = Any
Kernel = Any
LaunchSequence = Any


class Queue(Protocol):
    """Commands that the device runs in order, while the host goes on."""

    def launch(self, kernel: Kernel, number: int | None = None) -> None:
        """Enqueues a kernel, with a number as its last argument if it was made with one."""
        ...

    def run(self, sequence: LaunchSequence) -> None:
        """Enqueues all launches of a sequence."""
        ...

    def copy(self, target: Buffer, offset: int, source: Buffer, size: int) -> None:
        """Enqueues a copy of the first bytes of a buffer, to an offset in another one."""
        ...

    def flush(self) -> None:
        """Lets the device begin, if it has not."""
        ...

    def finish(self) -> None:
        """Waits until everything is done."""
        ...

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copies a contiguous array to a buffer behind all commands so far, and waits for that."""
        ...

    def read(self, array: Array, buffer: Buffer) -> None:
        """Fills a contiguous array from a buffer when all commands so far are done."""
        ...


class Driver(Protocol):
    """A device in use.

    Attributes:
        record: what it is, for people.
        traits: what kernels are written for.
        words: of the language that `build` takes.
        allocated: the bytes that were taken of it.
    """

    record: Device
    traits: Traits
    words: Words
    allocated: Allocated

    @property
    def queue(self) -> Queue:
        """Where commands go: one queue, so that whoever reads sees all that was written before.

        Raises:
            EngineError: in a process that was forked from the one that has opened the device.
        """
        ...

    def errors(self, doing: str, *facts: tuple[str, str]) -> AbstractContextManager[None]:
        """Turns what the driver refuses into an EngineError that says what Lamina was doing."""
        ...

    # Memory

    def available_bytes(self) -> int:
        """How much memory can still be taken."""
        ...

    def allocate(self, size: int) -> Buffer:
        """So many bytes, at least one, that are really there, and zero."""
        ...

    def part(self, buffer: Buffer, offset: int, size: int) -> Buffer:
        """Some bytes of a buffer, from a multiple of the device's alignment on, as a buffer."""
        ...

    def release(self, buffer: Buffer) -> None:
        """Gives the bytes back, as soon as nothing on the device uses them."""
        ...

    # Kernels

    def build(self, text: str) -> Module:
        """The functions of a text.

        Raises:
            InternalError: with the compiler's log, if it refuses the text.
            EngineError: if the driver fails otherwise.
        """
        ...

    def kernel(
        self, module: Module, name: str, buffers: Sequence[Buffer], items: int, *, numbered: bool
    ) -> Kernel:
        """A kernel with its arguments, for at least so many work items.

        Args:
            module: where its function is.
            name: of the function.
            buffers: the first arguments.
            items: how many work items have work, at least one.
            numbered: whether a number follows as the last argument, an int that each launch says.
        """
        ...

    def sequence(self, launches: Sequence[tuple[Kernel, int | None]]) -> LaunchSequence:
        """Kernels in the order in which they are launched, each with its number if it has one.

        It is run again and again: what can be done for that beforehand is done here.
        """
        ...

    def timed(self, sequence: LaunchSequence) -> list[float]:
        """Runs a sequence behind all commands so far, and waits: the seconds of each launch."""
        ...
