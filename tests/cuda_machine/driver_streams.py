"""The driver's functions for streams and events."""

from __future__ import annotations

from typing import Any

from cuda.bindings.driver import CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags

from cuda_machine.driver_state import Calls, CudaError, OutsideTheDouble, driver_call
from cuda_machine.operations import Operation
from cuda_machine.streams import Event, Stream

EVENT_FLAGS = CUevent_flags.CU_EVENT_BLOCKING_SYNC | CUevent_flags.CU_EVENT_DISABLE_TIMING


class StreamCalls(Calls):
    """cuStream... and cuEvent..., other than captures."""

    @driver_call(1)
    def cuStreamCreate(self, Flags: int) -> CUstream:
        if int(Flags) not in (0, 1):
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        context = self.state.current()
        blocking = int(Flags) != CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = self.state.add(Stream(self.state.new_handle(), context, blocking))
        context.streams.append(stream)
        return CUstream(stream.handle)

    @driver_call()
    def cuStreamDestroy(self, hStream: Any) -> None:
        """What the stream still has to do is done."""
        stream = self.state.find_stream(hStream)
        if stream.legacy:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_HANDLE)
        if stream.capture is not None:
            raise OutsideTheDouble("the end of a stream that is capturing")
        del self.state.handles[stream.handle]
        # The default stream goes on waiting for a blocking stream that has work left.
        context = stream.context
        context.streams = [
            one
            for one in context.streams
            if one.handle in self.state.handles or (one.last is not None and not one.last.done)
        ]

    @driver_call()
    def cuStreamSynchronize(self, hStream: Any) -> None:
        stream = self._idle_stream(hStream)
        # The default stream's work comes after that of the blocking streams.
        self.state.wait(*stream.predecessors())
        stream.context.check()

    @driver_call()
    def cuStreamQuery(self, hStream: Any) -> None:
        stream = self._idle_stream(hStream)
        self._query(stream.predecessors())
        stream.context.check()

    @driver_call()
    def cuStreamWaitEvent(self, hStream: Any, hEvent: Any, Flags: int) -> None:
        """Waits for the point that the event has now; without any, there is nothing to wait for."""
        if int(Flags) != 0:
            raise OutsideTheDouble("the double has no external events of graphs")
        stream, event = self.state.find_stream(hStream), self.state.find_event(hEvent)
        self.state.check_implicit_dependency(stream)
        self.state.check_capture(stream)
        if event.position is not None:
            self._wait_in_capture(stream, event)
        elif stream.capture is not None:
            # Work outside of the capture cannot be waited for in it.
            stream.capture.invalidate()
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
        elif event.marker is not None:
            self.state.enqueue(stream, "wait for an event", None, (event.marker,))

    @driver_call(1)
    def cuEventCreate(self, Flags: int) -> CUevent:
        if int(Flags) & ~EVENT_FLAGS:
            raise OutsideTheDouble("the double has no events between processes")
        timing = not int(Flags) & CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = Event(self.state.new_handle(), self.state.current(), timing)
        return CUevent(self.state.add(event).handle)

    @driver_call()
    def cuEventDestroy(self, hEvent: Any) -> None:
        """A stream that waits for the event goes on waiting for what it captured."""
        del self.state.handles[self.state.find_event(hEvent).handle]

    @driver_call()
    def cuEventRecord(self, hEvent: Any, hStream: Any) -> None:
        event, stream = self.state.find_event(hEvent), self.state.find_stream(hStream)
        if event.context is not stream.context:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_HANDLE)
        self.state.check_implicit_dependency(stream)
        self.state.check_capture(stream)
        if stream.capture is not None:
            event.position = stream.capture.position(stream)
            event.marker = None
            return

        def reach() -> float:
            # A later record has another marker, whose time counts.
            if event.marker is marker:
                event.time = stream.context.clock
            return 0.0

        marker = Operation("event", stream.context, reach, stream.predecessors())
        event.marker, event.position = marker, None
        self.state.submit(stream, marker)

    @driver_call()
    def cuEventSynchronize(self, hEvent: Any) -> None:
        marker = self._marker(hEvent)
        if marker is not None:
            self.state.wait(marker)

    @driver_call()
    def cuEventQuery(self, hEvent: Any) -> None:
        marker = self._marker(hEvent)
        if marker is not None:
            self._query((marker,))
            marker.context.check()

    @driver_call(1)
    def cuEventElapsedTime(self, hStart: Any, hEnd: Any) -> float:
        """Milliseconds of the simulated clock, which is no measurement."""
        start, end = self.state.find_event(hStart), self.state.find_event(hEnd)
        for event in (start, end):
            if event.position is not None:
                raise CudaError(CUresult.CUDA_ERROR_CAPTURED_EVENT)
            if event.marker is None or not event.timing or start.context is not end.context:
                raise CudaError(CUresult.CUDA_ERROR_INVALID_HANDLE)
        for event in (start, end):
            if event.marker is not None:
                self._query((event.marker,))
        return end.time - start.time

    def _query(self, operations: tuple[Operation, ...]) -> None:
        """NOT_READY, unless all have run. A device goes on by itself, so one more runs then."""
        for operation in operations:
            if not operation.done:
                self.state.scheduler.progress(operation)
                raise CudaError(CUresult.CUDA_ERROR_NOT_READY)

    def _idle_stream(self, handle: Any) -> Stream:
        """The stream of a call that waits or asks, which a capture does not allow."""
        stream = self.state.find_stream(handle)
        self.state.check_implicit_dependency(stream)
        if stream.capture is not None:
            stream.capture.invalidate()
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        self.state.check_unsafe_call()
        return stream

    def _marker(self, handle: Any) -> Operation | None:
        """The point that a call waits for or asks about, which must not be one of a capture."""
        event = self.state.find_event(handle)
        event.context.check()
        if event.position is not None:
            event.position.capture.invalidate()
            raise CudaError(CUresult.CUDA_ERROR_CAPTURED_EVENT)
        self.state.check_unsafe_call()
        return event.marker

    def _wait_in_capture(self, stream: Stream, event: Event) -> None:
        position = event.position
        if position is None or position.capture not in self.state.captures:
            # The capture has ended.
            raise CudaError(CUresult.CUDA_ERROR_CAPTURED_EVENT)
        capture = position.capture
        if capture.invalidated:
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        if stream.legacy:
            capture.invalidate()
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        if stream.capture is not None and stream.capture is not capture:
            stream.capture.invalidate()
            capture.invalidate()
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_MERGE)
        capture.wait(stream, position)
