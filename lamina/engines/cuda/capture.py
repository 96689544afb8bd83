"""Launches as a CUDA graph that a single call replays."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any

from lamina.engines.cuda.calls import CudaError


def captured(calls: Any, launches: Iterable[Callable[[Any], None]]) -> Any:
    """The executable graph of launches, functions that add to a stream, that run in order.

    The device's context is current. The stream is made for the capture: what any thread adds to a
    stream that captures becomes a part of the graph, and no thread may wait for it (CUDA
    Programming Guide, "Stream Capture").
    """
    module = calls.module
    mode = module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    stream = calls.cuStreamCreate(int(module.CUstream_flags.CU_STREAM_NON_BLOCKING))
    try:
        calls.cuStreamBeginCapture(stream, mode)
        try:
            for enqueue in launches:
                enqueue(stream)
        except BaseException:
            # The error of a capture that has failed would replace the one that says why.
            with suppress(CudaError):
                calls.cuGraphDestroy(calls.cuStreamEndCapture(stream))
            raise
        graph = calls.cuStreamEndCapture(stream)
    finally:
        calls.cuStreamDestroy(stream)
    try:
        return calls.cuGraphInstantiate(graph, 0)
    finally:
        calls.cuGraphDestroy(graph)


@contextmanager
def library_call(calls: Any) -> Generator[None]:
    """Inside, a library may load its kernels and allocate memory while its calls are captured.

    Otherwise that would end the capture (cuThreadExchangeStreamCaptureMode). Nvidia documents that
    cuBLAS can be captured, but not that its first call can.
    """
    relaxed = calls.module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    mode = calls.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        calls.cuThreadExchangeStreamCaptureMode(mode)
