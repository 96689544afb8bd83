"""The driver's functions for captures and graphs."""

from __future__ import annotations

import threading
from typing import Any

from cuda.bindings.driver import CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode

from cuda_machine.driver_state import Calls, CudaError, OutsideTheDouble, driver_call
from cuda_machine.operations import Operation
from cuda_machine.streams import Capture, ExecutableGraph, Graph

INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE


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
