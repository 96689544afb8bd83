"""The double of the CUDA driver: captures and graphs, in all orders."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from cuda.bindings.driver import CUstreamCaptureMode
from cuda_double_cases import LATE, ORDERS, Session

from cuda_machine.driver_state import OutsideTheDouble
from cuda_machine.operations import Order

GLOBAL = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

in_all_orders = pytest.mark.parametrize("order", ORDERS, ids=str)


def loaded(order: Order) -> Session:
    """A session that has loaded its kernels, which no capture allows."""
    session = Session(order)
    assert session.module
    return session


@pytest.fixture
def late() -> Session:
    return loaded(LATE)


def captured(session: Session, stream: Any, work: Callable[[], None]) -> Any:
    """The executable graph of what `work` adds to a stream."""
    session("cuStreamBeginCapture", stream, THREAD_LOCAL)
    work()
    graph = session("cuStreamEndCapture", stream)
    executable = session("cuGraphInstantiate", graph, 0)
    session("cuGraphDestroy", graph)
    return executable


def in_thread(session: Session, name: str, *arguments: Any) -> str:
    """The result of a call in another thread."""
    results: list[str] = []

    def call() -> None:
        session.enter()
        results.append(session.error(name, *arguments))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return results[0]


# What a graph does.


@in_all_orders
def test_a_graph_does_nothing_until_it_is_launched_and_all_of_it_each_time(order: Order) -> None:
    session = loaded(order)
    pointer, stream = session.number(0), session.stream()
    graph = captured(session, stream, lambda: session.launch("add_value", stream, pointer, 3))
    assert session.read(pointer) == 0
    for _ in range(4):
        session("cuGraphLaunch", graph, stream)
    assert session.read(pointer) == 12


@in_all_orders
def test_copies_and_fills_are_captured_in_their_order(order: Order) -> None:
    session = loaded(order)
    first, second = session.number(), session.number()
    stream, source, target = session.stream(), session.pinned(), session.pinned()

    def work() -> None:
        session("cuMemcpyHtoDAsync", first, source.ctypes.data, 4, stream)
        session("cuMemsetD8Async", second, 100, 4, stream)
        session("cuMemcpyDtoDAsync", second, first, 4, stream)
        session.launch("add_value", stream, second, 1)
        session("cuMemcpyDtoHAsync", target.ctypes.data, second, 4, stream)

    graph = captured(session, stream, work)
    # Page-locked memory is read at each launch.
    for value in (5, 6):
        source[0] = value
        session("cuGraphLaunch", graph, stream)
        session("cuStreamSynchronize", stream)
        assert target[0] == value + 1


@in_all_orders
def test_a_launch_comes_after_the_work_before_it_and_before_the_work_after_it(order: Order) -> None:
    session = loaded(order)
    pointer, copy, stream = session.number(0), session.number(0), session.stream()
    graph = captured(session, stream, lambda: session.launch("add_value", stream, pointer, 1))
    session.launch("set_value", stream, pointer, 10)
    session("cuGraphLaunch", graph, stream)
    session.launch("copy_value", stream, copy, pointer)
    session("cuGraphLaunch", graph, stream)
    assert (session.read(copy), session.read(pointer)) == (11, 12)


def test_a_launch_comes_after_the_launch_before_it_in_any_stream(late: Session) -> None:
    pointer, first, second = late.number(0), late.stream(), late.stream()
    host = late.pinned()
    graph = captured(late, first, lambda: late.launch("add_value", first, pointer, 1))
    late("cuGraphLaunch", graph, first)
    late("cuGraphLaunch", graph, second)
    late("cuMemcpyDtoHAsync", host.ctypes.data, pointer, 4, second)
    late("cuStreamSynchronize", second)
    assert host[0] == 2


def test_a_destroyed_graph_ends_what_it_does(late: Session) -> None:
    pointer, stream = late.number(0), late.stream()
    assert late.function("set_value")
    before = len(late.double.leaks())
    graph = captured(late, stream, lambda: late.launch("set_value", stream, pointer, 4))
    assert len(late.double.leaks()) == before + 1
    late("cuGraphLaunch", graph, stream)
    late("cuGraphExecDestroy", graph)
    assert len(late.double.leaks()) == before
    assert late.error("cuGraphLaunch", graph, stream) == "INVALID_VALUE"
    assert late.error("cuGraphExecDestroy", graph) == "INVALID_VALUE"
    assert late.read(pointer) == 4


def test_a_fault_in_a_graph_is_a_fault_of_the_context(late: Session) -> None:
    pointer, stream = late.number(), late.stream()
    graph = captured(late, stream, lambda: late.launch("race", stream, pointer, threads=2))
    late("cuGraphLaunch", graph, stream)
    assert late.error("cuStreamSynchronize", stream) == "LAUNCH_FAILED"


def test_a_graph_whose_memory_was_freed_is_an_illegal_address(late: Session) -> None:
    pointer, stream = late.number(), late.stream()
    graph = captured(late, stream, lambda: late.launch("set_value", stream, pointer, 1))
    late("cuMemFree", pointer)
    late("cuGraphLaunch", graph, stream)
    assert late.error("cuStreamSynchronize", stream) == "ILLEGAL_ADDRESS"


# Which captures are right.


def test_captures_begin_and_end_once(late: Session) -> None:
    stream = late.stream()
    assert late.error("cuStreamEndCapture", stream) == "ILLEGAL_STATE"
    late("cuStreamBeginCapture", stream, THREAD_LOCAL)
    assert late.error("cuStreamBeginCapture", stream, THREAD_LOCAL) == "ILLEGAL_STATE"
    assert in_thread(late, "cuStreamEndCapture", stream) == "STREAM_CAPTURE_WRONG_THREAD"
    graph = late("cuStreamEndCapture", stream)
    late("cuGraphDestroy", graph)
    assert late.error("cuGraphDestroy", graph) == "INVALID_VALUE"
    assert late.error("cuGraphInstantiate", graph, 0) == "INVALID_VALUE"


UNSAFE = ["cuMemAlloc", "cuMemHostAlloc", "cuMemFree", "cuStreamSynchronize", "cuEventSynchronize"]


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_calls_depend_on_the_thread_and_its_mode(late: Session, name: str) -> None:
    """cuThreadExchangeStreamCaptureMode: the thread that captures must not make them."""

    def arguments() -> tuple[Any, ...]:
        return {
            "cuMemAlloc": (4,),
            "cuMemHostAlloc": (4, 0),
            "cuMemFree": (pointers.pop(),),
            "cuStreamSynchronize": (late.own,),
            "cuEventSynchronize": (event,),
        }[name]

    target, *pointers = (late.number() for _ in range(4))
    event, stream = late.event(), late.stream()
    late("cuStreamBeginCapture", stream, THREAD_LOCAL)
    assert in_thread(late, name, *arguments()) == "SUCCESS"
    assert late("cuThreadExchangeStreamCaptureMode", RELAXED) == GLOBAL
    assert late.error(name, *arguments()) == "SUCCESS"
    assert late("cuThreadExchangeStreamCaptureMode", GLOBAL) == RELAXED
    assert late.error(name, *arguments()) == "STREAM_CAPTURE_UNSUPPORTED"
    # Nothing can be added to the capture any more.
    error = late.error("cuMemsetD8Async", target, 0, 4, stream)
    assert error == "STREAM_CAPTURE_INVALIDATED"
    assert late.error("cuStreamEndCapture", stream) == "STREAM_CAPTURE_INVALIDATED"


def test_waiting_for_a_stream_invalidates_its_capture(late: Session) -> None:
    stream = late.stream()
    late("cuStreamBeginCapture", stream, THREAD_LOCAL)
    assert in_thread(late, "cuStreamSynchronize", stream) == "STREAM_CAPTURE_UNSUPPORTED"
    assert late.error("cuStreamEndCapture", stream) == "STREAM_CAPTURE_INVALIDATED"


@pytest.mark.parametrize(
    ("what", "name", "arguments"),
    [
        ("a capture of the mode", "cuStreamBeginCapture", ("own", GLOBAL)),
        ("a copy of pageable memory", "cuMemcpyHtoDAsync", ("memory", 1 << 20, 4, "stream")),
        ("an event in a capture", "cuEventRecord", ("event", "stream")),
        ("an event in a capture", "cuStreamWaitEvent", ("stream", "event", 0)),
        ("the end of a stream that is capturing", "cuStreamDestroy", ("stream",)),
    ],
)
def test_what_the_engine_does_not_capture_is_outside_of_the_double(
    late: Session, what: str, name: str, arguments: tuple[Any, ...]
) -> None:
    made = {"own": late.own, "memory": late.number(), "event": late.event()}
    made["stream"] = late.stream()
    late("cuStreamBeginCapture", made["stream"], THREAD_LOCAL)
    with pytest.raises(OutsideTheDouble, match=what):
        late(name, *(made.get(one, one) for one in arguments))
