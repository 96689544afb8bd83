"""Streams, events, captures and graphs of the double of the CUDA driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cuda_machine.operations import Operation


@dataclass(frozen=True, eq=False)
class Node:
    """An operation of a graph. Its action runs at each launch, after that of the node before it."""

    name: str
    action: Callable[[], float]


@dataclass(eq=False)
class Capture:
    """A capture of one stream, from cuStreamBeginCapture to cuStreamEndCapture.

    Its mode is CU_STREAM_CAPTURE_MODE_THREAD_LOCAL. An invalidated one has no graph any more.
    """

    thread: int = field(default_factory=threading.get_ident)
    invalidated: bool = False
    nodes: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Graph:
    """Nodes in the order of their capture."""

    handle: int
    nodes: tuple[Node, ...]


@dataclass(eq=False)
class ExecutableGraph:
    """An instantiated graph. A launch comes after the one before it."""

    handle: int
    nodes: tuple[Node, ...]
    last: Operation | None = None


@dataclass(eq=False)
class Stream:
    """A queue of operations, which does not wait for the default stream."""

    handle: int
    context: Any
    last: Operation | None = None
    capture: Capture | None = None

    def predecessors(self) -> tuple[Operation, ...]:
        """The operations that the next operation of this stream waits for."""
        return (self.last,) if self.last is not None and not self.last.done else ()


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
