"""Streams, events, graphs, their operations, and the orders in which a device may run them.

An operation depends on others: the one before it in its stream, and events that the stream waits
for. CUDA promises nothing else about the order. So a program is right only if its
results are the same in all of these orders:

- `Order("late")`: an operation runs when something waits for it, and nothing runs that this does
  not need.
- `Order("early")`: an operation runs before the call that enqueues it returns.
- `Order("random", seed)`: after each call some of the operations that may run do so, chosen at
  random, and so it goes on while something waits.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Order:
    """When operations run."""

    kind: Literal["late", "early", "random"] = "late"
    seed: int = 0


@dataclass(eq=False)
class Operation:
    """Something that a stream does; without an action, a point in the stream.

    An action returns its duration on the simulated clock of its context, in milliseconds.
    """

    context: Any
    action: Callable[[], float] | None
    after: tuple[Operation, ...]
    done: bool = False

    def run(self):
        if self.action is not None:
            self.context.clock += self.action()
        self.done = True
        # What has run is forgotten, so that a long stream takes no memory.
        self.action, self.after = None, ()


class Scheduler:
    """Runs operations in an order that their dependences allow."""

    def __init__(self, order):
        self.order = order
        self._pending = []
        self._random = random.Random(order.seed)
        # How likely it is that another operation runs between two calls: devices are slow or fast.
        self._speed = self._random.random() ** 2

    def submit(self, operation):
        if self.order.kind == "early":
            operation.run()
        else:
            self._pending.append(operation)

    def drop(self, context):
        for operation in self._pending:
            if operation.context is context and not operation.done:
                operation.action = None
                operation.run()

    def wait(self, operation):
        if self.order.kind == "random":
            while not operation.done:
                self._run_any()
        else:
            for needed in _needed(operation):
                needed.run()
            self._forget_done()

    def after_call(self):
        """Let time pass between two calls of the driver."""
        if self.order.kind == "random":
            while self._pending and self._random.random() < self._speed:
                self._run_any()

    def _run_any(self):
        self._forget_done()
        if self._pending:
            ready = [one for one in self._pending if all(before.done for before in one.after)]
            self._random.choice(ready).run()

    def _forget_done(self):
        self._pending = [operation for operation in self._pending if not operation.done]


def _needed(operation):
    """The operation and all that it depends on and that have not run, in an order that may run."""
    needed = []
    seen = set()
    # Pairs of an operation and whether those before it have been visited.
    stack = [(operation, False)]
    while stack:
        current, visited = stack.pop()
        if visited:
            needed.append(current)
        elif not current.done and current not in seen:
            seen.add(current)
            stack.append((current, True))
            stack.extend((before, False) for before in reversed(current.after))
    return needed


@dataclass(frozen=True, eq=False)
class Node:
    """An operation of a graph. Its action runs at each launch, after the previous node's action.

    One that `waits` is a kernel that ends after all earlier ones, even if it was launched early.
    Instead of an action it may have an event, which each launch records.
    """

    action: Callable[[], float] | None
    waits: bool = False
    event: Event | None = None


@dataclass(eq=False)
class Capture:
    """A capture of one stream, from cuStreamBeginCapture to cuStreamEndCapture.

    Its mode is CU_STREAM_CAPTURE_MODE_THREAD_LOCAL. An invalidated one has no graph any more.
    """

    thread: int = field(default_factory=threading.get_ident)
    invalidated: bool = False
    nodes: list[Node] = field(default_factory=list)

    def prohibits(self, thread):
        """Whether it would be ended by an unsafe call of a thread."""
        return self.thread == thread and not self.invalidated


@dataclass(eq=False)
class Graph:
    handle: int
    nodes: tuple[Node, ...]


@dataclass(eq=False)
class Queue:
    """Operations that wait for each other, and the last of them."""

    handle: int
    last: Operation | None = field(default=None, kw_only=True)

    def predecessors(self):
        """The operations that the next one waits for."""
        return (self.last,) if self.last is not None and not self.last.done else ()


@dataclass(eq=False)
class ExecutableGraph(Queue):
    """An instantiated graph. A launch comes after the one before it."""

    nodes: tuple[Node, ...]


@dataclass(eq=False)
class Stream(Queue):
    """A queue that does not wait for the default stream."""

    context: Any
    capture: Capture | None = None


@dataclass(eq=False)
class Event:
    """A point in a stream, or none before the first record.

    `time` is the context's simulated clock when the point was reached, in milliseconds. The clock
    counts threads and copied bytes. It is no measurement of any device.
    """

    handle: int
    context: Any
    timing: bool
    marker: Operation | None = None
    time: float = 0.0

    def recorded(self, after):
        """The operation that records the event, after others."""

        def reach():
            # A later record has another marker, whose time counts.
            if self.marker is marker:
                self.time = self.context.clock
            return 0.0

        self.marker = marker = Operation(self.context, reach, after)
        return marker
