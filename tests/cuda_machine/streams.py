"""Streams and events of the double of the CUDA driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuda_machine.operations import Operation

if TYPE_CHECKING:
    from cuda_machine.capture import Capture, Node, Position


@dataclass(eq=False)
class Stream:
    """A queue of operations.

    The legacy default stream and each blocking stream of its context wait for each other: an
    operation of one waits for all that was enqueued before in the other ("Stream synchronization
    behavior" in the driver's reference).
    """

    handle: int
    context: Any
    blocking: bool
    legacy: bool = False
    last: Operation | None = None
    # While the stream is capturing: the capture, the nodes that its next node comes after, and
    # how many things it has done in the capture.
    capture: Capture | None = None
    tail: tuple[Node, ...] = ()

    def predecessors(self) -> tuple[Operation, ...]:
        """The operations that the next operation of this stream waits for."""
        if self.legacy:
            before = [self, *(stream for stream in self.context.streams if stream.blocking)]
        elif self.blocking:
            before = [self, self.context.default_stream]
        else:
            before = [self]
        return tuple(one.last for one in before if one.last is not None and not one.last.done)


@dataclass(eq=False)
class Event:
    """A point in a stream, or none before the first record.

    `time` is the context's simulated clock when the point was reached, in milliseconds. The clock
    counts instructions of the machine and copied bytes. It is no measurement of any device.
    """

    handle: int
    context: Any
    timing: bool
    marker: Operation | None = None
    time: float = 0.0
    # The point in a capture, if the last record was captured.
    position: Position | None = None
