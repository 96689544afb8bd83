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
    CUresult,
    CUstream,
    CUstream_flags,
    CUstreamCaptureMode,
)

from cuda_machine.driver_state import Calls, CudaError, OutsideTheDouble, driver_call
from cuda_machine.operations import Capture, Event, ExecutableGraph, Graph, Node, Operation, Stream

INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE


class StreamCalls(Calls):
    """cuStream... and cuEvent..., other than captures."""

    @driver_call(1)
    def cuStreamCreate(self, Flags: int) -> CUstream:
        if int(Flags) != CUstream_flags.CU_STREAM_NON_BLOCKING:
            raise OutsideTheDouble("a stream that waits for the default stream")
        stream = Stream(self.state.new_handle(), self.state.current())
        return CUstream(self.state.add(stream).handle)

    @driver_call()
    def cuStreamDestroy(self, hStream: Any) -> None:
        """What the stream still has to do is done."""
        stream = self.state.find_stream(hStream)
        if stream.capture is not None:
            raise OutsideTheDouble("the end of a stream that is capturing")
        del self.state.handles[stream.handle]

    @driver_call()
    def cuStreamSynchronize(self, hStream: Any) -> None:
        stream = self.state.find_stream(hStream)
        if stream.capture is not None:
            stream.capture.invalidated = True
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        self.state.check_unsafe_call()
        self.state.wait(*stream.predecessors())
        stream.context.check()

    @driver_call()
    def cuStreamWaitEvent(self, hStream: Any, hEvent: Any, Flags: int) -> None:
        """Waits for the point that the event has now; without any, there is nothing to wait for."""
        if int(Flags) != 0:
            raise OutsideTheDouble("the double has no external events of graphs")
        stream, event = self.state.find_stream(hStream), self.state.find(Event, hEvent)
        _require_no_capture(stream)
        if event.marker is not None:
            self.state.enqueue(stream, "wait for an event", None, (event.marker,))

    @driver_call(1)
    def cuEventCreate(self, Flags: int) -> CUevent:
        if int(Flags) & ~CUevent_flags.CU_EVENT_DISABLE_TIMING:
            raise OutsideTheDouble(f"an event with the flags {Flags}")
        event = Event(self.state.new_handle(), self.state.current(), not int(Flags))
        return CUevent(self.state.add(event).handle)

    @driver_call()
    def cuEventDestroy(self, hEvent: Any) -> None:
        """A stream that waits for the event goes on waiting for what it captured."""
        del self.state.handles[self.state.find(Event, hEvent).handle]

    @driver_call()
    def cuEventRecord(self, hEvent: Any, hStream: Any) -> None:
        event, stream = self._recorded(hEvent, hStream)
        _require_no_capture(stream)
        self.state.submit(stream, event.recorded(stream.predecessors()))

    @driver_call()
    def cuEventRecordWithFlags(self, hEvent: Any, hStream: Any, flags: int) -> None:
        """In a capture: each launch of its graph records the event."""
        if int(flags) != CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL:
            raise OutsideTheDouble(f"the record of an event with the flags {flags}")
        event, stream = self._recorded(hEvent, hStream)
        if stream.capture is None:
            raise OutsideTheDouble("an external record outside of a capture")
        stream.capture.nodes.append(Node("event", None, event=event))

    def _recorded(self, event: Any, stream: Any) -> tuple[Event, Stream]:
        """An event, and the stream in which it is recorded."""
        found, own = self.state.find(Event, event), self.state.find_stream(stream)
        if found.context is not own.context:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_HANDLE)
        return found, own

    @driver_call()
    def cuEventSynchronize(self, hEvent: Any) -> None:
        event = self.state.find(Event, hEvent)
        event.context.check()
        self.state.check_unsafe_call()
        if event.marker is not None:
            self.state.wait(event.marker)

    @driver_call(1)
    def cuEventElapsedTime(self, hStart: Any, hEnd: Any) -> float:
        """Milliseconds of the simulated clock, which is no measurement."""
        start, end = self.state.find(Event, hStart), self.state.find(Event, hEnd)
        for event in (start, end):
            if event.marker is None or not event.timing or start.context is not end.context:
                raise CudaError(CUresult.CUDA_ERROR_INVALID_HANDLE)
            if not event.marker.done:
                raise CudaError(CUresult.CUDA_ERROR_NOT_READY)
        return end.time - start.time


class GraphCalls(Calls):
    """cuStreamBeginCapture, cuStreamEndCapture and cuGraph..."""

    @driver_call()
    def cuStreamBeginCapture(self, hStream: Any, mode: CUstreamCaptureMode) -> None:
        if mode != CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
            raise OutsideTheDouble(f"a capture of the mode {mode}")
        stream = self.state.find_stream(hStream)
        if stream.capture is not None:
            raise CudaError(CUresult.CUDA_ERROR_ILLEGAL_STATE)
        stream.capture = Capture()

    @driver_call(1)
    def cuStreamEndCapture(self, hStream: Any) -> CUgraph:
        stream = self.state.find_stream(hStream)
        capture = stream.capture
        if capture is None:
            raise CudaError(CUresult.CUDA_ERROR_ILLEGAL_STATE)
        if capture.thread != threading.get_ident():
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        stream.capture = None
        if capture.invalidated:
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        graph = Graph(self.state.new_handle(), tuple(capture.nodes))
        return CUgraph(self.state.add(graph).handle)

    @driver_call(1, context=False)
    def cuThreadExchangeStreamCaptureMode(self, mode: CUstreamCaptureMode) -> CUstreamCaptureMode:
        before = self.state.capture_mode
        self.state.capture_mode = CUstreamCaptureMode(mode)
        return before

    @driver_call(1)
    def cuGraphInstantiate(self, hGraph: Any, flags: int) -> CUgraphExec:
        if int(flags) != 0:
            raise OutsideTheDouble("the double instantiates graphs without flags")
        nodes = self.state.find(Graph, hGraph, INVALID_VALUE).nodes
        return CUgraphExec(self.state.add(ExecutableGraph(self.state.new_handle(), nodes)).handle)

    @driver_call()
    def cuGraphLaunch(self, hGraphExec: Any, hStream: Any) -> None:
        executable = self.state.find(ExecutableGraph, hGraphExec, INVALID_VALUE)
        stream = self.state.find_stream(hStream)
        if stream.capture is not None:
            raise OutsideTheDouble("the capture of a launch of a graph")
        before = stream.predecessors()
        if executable.last is not None and not executable.last.done:
            before = (*before, executable.last)
        for node in executable.nodes:
            if node.event is not None:
                self.state.find(Event, node.event.handle)
                operation = node.event.recorded(before)
            else:
                operation = Operation(node.name, stream.context, node.action, before)
            executable.last = self.state.submit(stream, operation)
            before = (operation,)

    @driver_call()
    def cuGraphDestroy(self, hGraph: Any) -> None:
        """Executable graphs of it live on."""
        del self.state.handles[self.state.find(Graph, hGraph, INVALID_VALUE).handle]

    @driver_call()
    def cuGraphExecDestroy(self, hGraphExec: Any) -> None:
        """What it is doing goes on to its end."""
        executable = self.state.find(ExecutableGraph, hGraphExec, INVALID_VALUE)
        del self.state.handles[executable.handle]


def _require_no_capture(stream: Stream) -> None:
    if stream.capture is not None:
        raise OutsideTheDouble("an event in a capture")
