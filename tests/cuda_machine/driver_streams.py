"""The driver's functions for streams, events, captures and graphs."""

from __future__ import annotations

import threading
from typing import Any

from cuda.bindings.driver import (
    CUevent,
    CUevent_flags,
    CUevent_record_flags,
    CUgraph,
    CUgraphExec,
    CUstream,
    CUstream_flags,
    CUstreamCaptureMode,
)

from cuda_machine.driver_state import CudaError, OutsideTheDouble, State, driver_call
from cuda_machine.operations import Capture, Event, ExecutableGraph, Graph, Node, Operation, Stream

INVALID_VALUE = "INVALID_VALUE"


class StreamCalls(State):
    """cuStream..., cuEvent... and cuGraph..."""

    @driver_call(1)
    def cuStreamCreate(self, Flags):
        if int(Flags) != CUstream_flags.CU_STREAM_NON_BLOCKING:
            raise OutsideTheDouble("a stream that waits for the default stream")
        return CUstream(self.add(Stream, self.current()).handle)

    @driver_call()
    def cuStreamDestroy(self, hStream):
        """What the stream still has to do is done."""
        stream = self.find_stream(hStream)
        if stream.capture is not None:
            raise OutsideTheDouble("the end of a stream that is capturing")
        del self.handles[stream.handle]

    @driver_call()
    def cuStreamSynchronize(self, hStream):
        stream = self.find_stream(hStream)
        if stream.capture is not None:
            stream.capture.invalidated = True
            raise CudaError("STREAM_CAPTURE_UNSUPPORTED")
        self.check_unsafe_call()
        for one in stream.predecessors():
            self.wait(one)

    @driver_call()
    def cuStreamWaitEvent(self, hStream, hEvent, Flags):
        """Waits for the point that the event has now; without any, there is nothing to wait for."""
        if int(Flags) != 0:
            raise OutsideTheDouble("the double has no external events of graphs")
        stream, event = self.find_stream(hStream), self.find(Event, hEvent)
        _require_no_capture(stream)
        if event.marker is not None:
            before = (*stream.predecessors(), event.marker)
            self.submit(stream, Operation(stream.context, None, before))

    @driver_call(1)
    def cuEventCreate(self, Flags):
        if int(Flags) & ~CUevent_flags.CU_EVENT_DISABLE_TIMING:
            raise OutsideTheDouble(f"an event with the flags {Flags}")
        return CUevent(self.add(Event, self.current(), not int(Flags)).handle)

    @driver_call()
    def cuEventDestroy(self, hEvent):
        """A stream that waits for the event goes on waiting for what it captured."""
        del self.handles[self.find(Event, hEvent).handle]

    @driver_call()
    def cuEventRecord(self, hEvent, hStream):
        event, stream = self._recorded(hEvent, hStream)
        _require_no_capture(stream)
        self.submit(stream, event.recorded(stream.predecessors()))

    @driver_call()
    def cuEventRecordWithFlags(self, hEvent, hStream, flags):
        """In a capture: each launch of its graph records the event."""
        if int(flags) != CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL:
            raise OutsideTheDouble(f"the record of an event with the flags {flags}")
        event, stream = self._recorded(hEvent, hStream)
        if stream.capture is None:
            raise OutsideTheDouble("an external record outside of a capture")
        stream.capture.nodes.append(Node(None, event=event))

    def _recorded(self, event: Any, stream: Any) -> tuple[Event, Stream]:
        """An event, and the stream in which it is recorded."""
        found, own = self.find(Event, event), self.find_stream(stream)
        if found.context is not own.context:
            raise CudaError("INVALID_HANDLE")
        return found, own

    @driver_call()
    def cuEventSynchronize(self, hEvent):
        event = self.find(Event, hEvent)
        event.context.check()
        self.check_unsafe_call()
        if event.marker is not None:
            self.wait(event.marker)

    @driver_call(1)
    def cuEventElapsedTime(self, hStart, hEnd):
        """Milliseconds of the simulated clock, which is no measurement."""
        start, end = self.find(Event, hStart), self.find(Event, hEnd)
        for event in (start, end):
            if event.marker is None or not event.timing or start.context is not end.context:
                raise CudaError("INVALID_HANDLE")
            if not event.marker.done:
                raise CudaError("NOT_READY")
        return end.time - start.time

    # Captures and graphs

    @driver_call()
    def cuStreamBeginCapture(self, hStream, mode):
        if mode != CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
            raise OutsideTheDouble(f"a capture of the mode {mode}")
        stream = self.find_stream(hStream)
        if stream.capture is not None:
            raise CudaError("ILLEGAL_STATE")
        stream.capture = Capture()

    @driver_call(1)
    def cuStreamEndCapture(self, hStream):
        stream = self.find_stream(hStream)
        capture = stream.capture
        if capture is None:
            raise CudaError("ILLEGAL_STATE")
        if capture.thread != threading.get_ident():
            raise CudaError("STREAM_CAPTURE_WRONG_THREAD")
        stream.capture = None
        if capture.invalidated:
            raise CudaError("STREAM_CAPTURE_INVALIDATED")
        return CUgraph(self.add(Graph, tuple(capture.nodes)).handle)

    @driver_call(1, context=False)
    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.thread.capture_mode = self.thread.capture_mode, CUstreamCaptureMode(mode)
        return before

    @driver_call(1)
    def cuGraphInstantiate(self, hGraph, flags):
        if int(flags) != 0:
            raise OutsideTheDouble("the double instantiates graphs without flags")
        nodes = self.find(Graph, hGraph, INVALID_VALUE).nodes
        return CUgraphExec(self.add(ExecutableGraph, nodes).handle)

    @driver_call()
    def cuGraphLaunch(self, hGraphExec, hStream):
        executable = self.find(ExecutableGraph, hGraphExec, INVALID_VALUE)
        stream = self.find_stream(hStream)
        if stream.capture is not None:
            raise OutsideTheDouble("the capture of a launch of a graph")
        before = (*stream.predecessors(), *executable.predecessors())
        for node in executable.nodes:
            if node.event is not None:
                self.find(Event, node.event.handle)
                operation = node.event.recorded(before)
            else:
                operation = Operation(stream.context, node.action, before)
            executable.last = self.submit(stream, operation)
            before = (operation,)

    @driver_call()
    def cuGraphDestroy(self, hGraph):
        """Executable graphs of it live on."""
        del self.handles[self.find(Graph, hGraph, INVALID_VALUE).handle]

    @driver_call()
    def cuGraphExecDestroy(self, hGraphExec):
        """What it is doing goes on to its end."""
        del self.handles[self.find(ExecutableGraph, hGraphExec, INVALID_VALUE).handle]


def _require_no_capture(stream: Stream) -> None:
    if stream.capture is not None:
        raise OutsideTheDouble("an event in a capture")
