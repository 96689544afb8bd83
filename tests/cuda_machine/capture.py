"""Captures of streams, and the graphs that they become."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cuda.bindings.driver import CUgraphNodeType, CUstreamCaptureMode

from cuda_machine.streams import Stream


@dataclass(eq=False)
class Node:
    """An operation of a graph. Its action runs at each launch."""

    handle: int
    kind: CUgraphNodeType
    name: str
    context: Any
    action: Callable[[], float]
    after: tuple[Node, ...]


@dataclass(eq=False)
class Graph:
    """Nodes in the order of their capture, so that each comes after those it depends on."""

    handle: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Position:
    """A point in a capture: what it comes after, and how far it has followed each stream."""

    capture: Capture
    nodes: tuple[Node, ...]
    followed: dict[Stream, int]


@dataclass(eq=False)
class Capture:
    """A capture, from cuStreamBeginCapture to cuStreamEndCapture."""

    origin: Stream
    mode: CUstreamCaptureMode
    thread: int = field(default_factory=threading.get_ident)
    invalidated: bool = False
    nodes: list[Node] = field(default_factory=list)
    # For each stream in the capture, how far it has followed each stream, itself included. A
    # stream has been joined once the origin has followed it as far as it went.
    followed: dict[Stream, dict[Stream, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._enter(self.origin)

    def prohibits_unsafe_calls(self) -> bool:
        """Whether the calling thread must not make calls such as cuMemAlloc."""
        mode = CUstreamCaptureMode
        if self.mode == mode.CU_STREAM_CAPTURE_MODE_RELAXED or self.invalidated:
            return False
        return (
            self.thread == threading.get_ident() or self.mode == mode.CU_STREAM_CAPTURE_MODE_GLOBAL
        )

    def involves(self, context: Any) -> bool:
        """Whether a stream of a context is in the capture."""
        return any(stream.context is context for stream in self.followed)

    def invalidate(self) -> None:
        """The capture has no graph any more. Its streams stay in it until it is ended."""
        self.invalidated = True

    def add(self, stream: Stream, node: Node) -> None:
        """Capture an operation of a stream."""
        self.nodes.append(node)
        stream.tail = (node,)
        self.followed[stream][stream] += 1

    def position(self, stream: Stream) -> Position:
        """The point that a stream has reached."""
        return Position(self, stream.tail, dict(self.followed[stream]))

    def wait(self, stream: Stream, position: Position) -> None:
        """Let the next node of a stream come after a point; the stream enters the capture."""
        if stream.capture is None:
            self._enter(stream)
        stream.tail = tuple(dict.fromkeys((*stream.tail, *position.nodes)))
        own = self.followed[stream]
        for other, steps in position.followed.items():
            own[other] = max(own.get(other, 0), steps)
        own[stream] += 1

    def is_joined(self) -> bool:
        """Whether the origin comes after all that other streams did in the capture."""
        reached = self.followed[self.origin]
        return all(reached.get(stream) == own[stream] for stream, own in self.followed.items())

    def end(self) -> None:
        """Let all streams leave the capture."""
        for stream in self.followed:
            stream.capture, stream.tail = None, ()

    def _enter(self, stream: Stream) -> None:
        stream.capture, stream.tail = self, ()
        self.followed[stream] = {stream: 0}
