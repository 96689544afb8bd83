"""The protocol of drivers: the functions of a device's API, such as OpenCL, that engines need.

A driver opens one device, and returns its own handles of buffers, modules, kernels and sequences.
The engine only passes these objects on. None stands for a buffer without bytes. Below the protocol
are the count of allocated bytes, and the errors of drivers.

Ownership: each handle is released when its last reference is gone. A part of a buffer keeps the
whole, a kernel its module and its buffers, a sequence its kernels.

Threads: any thread may call; threads that launch the same kernel do so one at a time.

Errors: a command may fail after it was enqueued. The next call that waits raises its error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Protocol, final

from lamina.base.shapes import Array
from lamina.codegen.words import Words
from lamina.engines.engine import Device
from lamina.engines.gpu.launches import Traits
from lamina.errors import EngineError, InternalError

Buffer = Any
Module = Any
Kernel = Any
LaunchSequence = Any

# The end of the commands of a queue up to one of them; its method `wait` waits for it.
Event = Any


class Queue(Protocol):
    """Commands that the device runs in order, while the host continues."""

    def launch(self, kernel: Kernel, number: int | None = None) -> None:
        """Enqueues a kernel, with a number as its last argument if it was made with one."""
        ...

    def run(self, sequence: LaunchSequence) -> None:
        """Enqueues all launches of a sequence; no handler of a signal runs in between."""
        ...

    def copy(self, target: Buffer, offset: int, source: Buffer, size: int) -> None:
        """Enqueues a copy of the first bytes of a buffer, to an offset in another one."""
        ...

    def flush(self) -> None:
        """Submits all enqueued commands to the device, without waiting."""
        ...

    def finish(self) -> None:
        """Waits until everything is done."""
        ...

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copies a contiguous array to a buffer after all commands so far, and waits for that."""
        ...

    def send(self, buffer: Buffer, array: Array, offset: int = 0) -> Event:
        """Enqueues a copy of a part of a `host_array` to an offset in a buffer; returns its end.

        Neither array nor result may be released before the copy is done; `wait` waits for that.
        """
        ...

    def mark(self) -> Event:
        """The end of all commands so far."""
        ...

    def wait_for(self, events: Sequence[Event]) -> None:
        """Lets later commands wait on the device for events of another queue; does not wait."""
        ...

    def fetch(self, array: Array, buffer: Buffer, offset: int) -> Event:
        """Enqueues a copy from an offset in a buffer to a part of a `host_array`; returns its end.

        Nothing may be released before the copy is done.
        """
        ...

    def read(self, array: Array, buffer: Buffer) -> None:
        """Fills a contiguous array from a buffer when all commands so far are done."""
        ...


class Driver(Protocol):
    """A device in use.

    Attributes:
        record: its description.
        traits: the properties for which kernels are written.
        words: the words of the language that `build` takes.
        allocated: the count of its allocated bytes.
    """

    record: Device
    traits: Traits
    words: Words
    allocated: Allocated

    @property
    def queue(self) -> Queue:
        """The queue of all commands except uploads during runs and timed launches.

        A read sees all writes before it.

        Raises:
            EngineError: in a process that was forked from the one that has opened the device.
        """
        ...

    @property
    def upload_queue(self) -> Queue:
        """A second queue, whose copies are done while the other one runs kernels."""
        ...

    def errors(self, doing: str, *facts: tuple[str, str]) -> AbstractContextManager[None]:
        """Turns the driver's errors into an EngineError that states what Lamina was doing."""
        ...

    def available_bytes(self) -> int:
        """The bytes that can still be allocated."""
        ...

    def allocate(self, size: int) -> Buffer:
        """Allocates bytes, at least one, filled with zeros; raises if the device lacks them."""
        ...

    def host_array(self, size: int) -> Array:
        """Bytes in the computer's memory, from which the device copies fast; at least one."""
        ...

    def shared_buffer(self, array: Array) -> Buffer:
        """A contiguous array of the host as a buffer that kernels only read.

        None if the device has memory of its own, or cannot use the array where it is. The array
        exists unchanged until no command uses the buffer.
        """
        ...

    def part(self, buffer: Buffer, offset: int) -> Buffer:
        """The bytes of a buffer from an offset on, a multiple of the device's alignment."""
        ...

    def release(self, buffer: Buffer) -> None:
        """Releases the bytes, as soon as no command on the device uses them."""
        ...

    def build(self, text: str) -> Module:
        """Compiles the functions of a text.

        Raises:
            InternalError: with the compiler's log, if it refuses the text.
            EngineError: if the driver fails otherwise.
        """
        ...

    def kernel(
        self,
        module: Module,
        name: str,
        buffers: Sequence[Buffer],
        items: int,
        *,
        numbers: Sequence[int] = (),
        numbered: bool,
        group: int = 0,
        local_bytes: int = 0,
    ) -> Kernel:
        """A kernel with its arguments, for at least `items` work items.

        Args:
            module: the module with its function.
            name: the function's name.
            buffers: the first arguments.
            items: the number of work items that have work, at least one.
            numbers: further arguments, ints.
            numbered: whether an int follows as the last argument, which each launch sets.
            group: the number of work items in a work group; 0 if it may have any size.
            local_bytes: bytes of local memory for each group, in addition to what the function
                declares; 0 on devices whose launches cannot add any.
        """
        ...

    def sequence(self, launches: Sequence[tuple[Kernel, int | None]]) -> LaunchSequence:
        """Kernels in the order in which they are launched, each with its number if it has one.

        The sequence is run many times, so work that can be done once is done here.
        """
        ...

    def timed(self, launches: Sequence[tuple[Kernel, int | None]]) -> Callable[[], float]:
        """A function that runs launches after all commands so far, and waits.

        It returns the seconds that the device took for them, without the host's calls.
        """
        ...


@final
class Allocated:
    """A count of allocated bytes that threads may change at the same time: drivers have none."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = Lock()

    def add(self, size: int) -> None:
        """Adds allocated bytes; a negative size is released."""
        with self._lock:
            self.bytes += size


_ADVICE = "If the device has too little memory, take a smaller batch. Otherwise update the driver."


def driver_failure(
    api: str,
    doing: str,
    reported: str,
    facts: tuple[tuple[str, str], ...],
    record: Device,
    advice: str = _ADVICE,
) -> EngineError:
    """The error for a call that failed, of the driver of an API such as `"OpenCL"`."""
    return EngineError(
        f"the {api} driver failed at {doing}",
        facts=(("driver reported", reported), *facts, ("device", record.description)),
        where=record.engine,
        advice=advice,
    )


# The most lines of a compiler's log in an error.
_LOG_LINES = 20


def refused_kernel(
    compiler: str, fact: tuple[str, str], text: str, log: str, location: str, where: str
) -> InternalError:
    """The error for a text that a compiler refuses, with the source lines named in its log.

    `location` is a regular expression of a line's number in a message, `where` names the engine.
    """
    messages = log.strip().splitlines()
    shown = [line for line in messages if re.search(r"\berror\b", line)] or messages
    lines = text.splitlines()
    facts = [fact]
    for line in shown[:_LOG_LINES]:
        facts.append(("compiler", line.strip()))
        match = re.search(location, line)
        if match is not None and 0 < int(match[1]) <= len(lines):
            facts.append((f"line {match[1]}", lines[int(match[1]) - 1].strip()))
    return InternalError(f"{compiler} refuses a kernel", facts=tuple(facts), where=where)
