"""The driver's functions for captures and graphs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from cuda.bindings.driver import (
    CUgraph,
    CUgraphExec,
    CUgraphNode,
    CUresult,
    CUstreamCaptureMode,
    CUstreamCaptureStatus,
)

from cuda_machine.capture import Capture, Graph, Node
from cuda_machine.driver_state import Calls, CudaError, OutsideTheDouble, driver_call
from cuda_machine.operations import Operation

INVALID_VALUE = CUresult.CUDA_ERROR_INVALID_VALUE


@dataclass(eq=False)
class ExecutableGraph:
    """An instantiated graph. A launch comes after the one before it."""

    handle: int
    nodes: tuple[Node, ...]
    last: Operation | None = None


class GraphCalls(Calls):
    """cuStreamBeginCapture, cuStreamEndCapture, cuStreamIsCapturing and cuGraph..."""

    @driver_call()
    def cuStreamBeginCapture(self, hStream: Any, mode: CUstreamCaptureMode) -> None:
        stream = self.state.find_stream(hStream)
        if stream.legacy:
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        if stream.capture is not None:
            raise CudaError(CUresult.CUDA_ERROR_ILLEGAL_STATE)
        self.state.captures.append(Capture(stream, CUstreamCaptureMode(mode)))

    @driver_call(1)
    def cuStreamEndCapture(self, hStream: Any) -> CUgraph:
        stream = self.state.find_stream(hStream)
        capture = stream.capture
        if capture is None:
            raise CudaError(CUresult.CUDA_ERROR_ILLEGAL_STATE)
        if capture.origin is not stream:
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
        relaxed = capture.mode == CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        if not relaxed and capture.thread != threading.get_ident():
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        joined = capture.is_joined()
        capture.end()
        self.state.captures.remove(capture)
        if capture.invalidated:
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        if not joined:
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        graph = Graph(self.state.new_handle(), tuple(capture.nodes))
        return CUgraph(self.state.add(graph).handle)

    @driver_call(1)
    def cuStreamIsCapturing(self, hStream: Any) -> CUstreamCaptureStatus:
        stream = self.state.find_stream(hStream)
        if stream.legacy and any(one.blocking and one.capture for one in stream.context.streams):
            # This call, other than all others, leaves the capture as it is.
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        status = CUstreamCaptureStatus
        if stream.capture is None:
            return status.CU_STREAM_CAPTURE_STATUS_NONE
        if stream.capture.invalidated:
            return status.CU_STREAM_CAPTURE_STATUS_INVALIDATED
        return status.CU_STREAM_CAPTURE_STATUS_ACTIVE

    @driver_call(1, context=False)
    def cuThreadExchangeStreamCaptureMode(self, mode: CUstreamCaptureMode) -> CUstreamCaptureMode:
        before = self.state.capture_mode
        self.state.capture_mode = CUstreamCaptureMode(mode)
        return before

    @driver_call(1)
    def cuGraphInstantiate(self, hGraph: Any, flags: int) -> CUgraphExec:
        if int(flags) != 0:
            raise OutsideTheDouble("the double instantiates graphs without flags")
        executable = ExecutableGraph(self.state.new_handle(), self._graph(hGraph).nodes)
        return CUgraphExec(self.state.add(executable).handle)

    @driver_call()
    def cuGraphLaunch(self, hGraphExec: Any, hStream: Any) -> None:
        executable = self.state.find(ExecutableGraph, hGraphExec, INVALID_VALUE)
        stream = self.state.find_stream(hStream)
        self.state.check_implicit_dependency(stream)
        if stream.capture is not None:
            raise OutsideTheDouble("the capture of a launch of a graph")
        before = stream.predecessors()
        if executable.last is not None and not executable.last.done:
            before = (*before, executable.last)
        # An operation for each node, and one at each end that the stream sees.
        first = Operation("graph begins", stream.context, None, before)
        self.state.scheduler.submit(first)
        operations: dict[Node, Operation] = {}
        for node in executable.nodes:
            after = tuple(operations[one] for one in node.after)
            operation = Operation(node.name, node.context, node.action, (first, *after))
            operations[node] = operation
            self.state.scheduler.submit(operation)
        # The reverse order makes the late order differ from that of the capture.
        every = (*reversed(operations.values()), first)
        executable.last = Operation("graph ends", stream.context, None, every)
        self.state.submit(stream, executable.last)

    @driver_call(2)
    def cuGraphGetNodes(self, hGraph: Any, numNodes: int = 0) -> tuple[list[CUgraphNode], int]:
        """Without `numNodes`, the number of nodes; with it, as many nodes."""
        nodes = self._graph(hGraph).nodes
        if numNodes == 0:
            return [], len(nodes)
        handles = [node.handle for node in nodes[:numNodes]]
        padding = [0] * (numNodes - len(handles))
        return [CUgraphNode(handle) for handle in (*handles, *padding)], len(handles)

    @driver_call()
    def cuGraphDestroy(self, hGraph: Any) -> None:
        """Executable graphs of it live on."""
        del self.state.handles[self._graph(hGraph).handle]

    @driver_call()
    def cuGraphExecDestroy(self, hGraphExec: Any) -> None:
        """What it is doing goes on to its end."""
        executable = self.state.find(ExecutableGraph, hGraphExec, INVALID_VALUE)
        del self.state.handles[executable.handle]

    def _graph(self, handle: Any) -> Graph:
        return self.state.find(Graph, handle, INVALID_VALUE)
