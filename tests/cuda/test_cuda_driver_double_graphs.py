"""The double of the CUDA driver: captures and graphs, in all orders."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from cuda.bindings.driver import CUstreamCaptureMode, CUstreamCaptureStatus
from cuda_double_cases import BLOCKING, DEFAULT_STREAM, EARLY, LATE, ORDERS, Session

from cuda_machine.driver_state import OutsideTheDouble
from cuda_machine.operations import Order

GLOBAL = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
NONE = CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
ACTIVE = CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
INVALIDATED = CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED

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
    session("cuStreamBeginCapture", stream, GLOBAL)
    work()
    graph = session("cuStreamEndCapture", stream)
    executable = session("cuGraphInstantiate", graph, 0)
    session("cuGraphDestroy", graph)
    return executable


def follow(session: Session, stream: Any, other: Any) -> None:
    """Let a stream wait for another one."""
    event = session.event()
    session("cuEventRecord", event, other)
    session("cuStreamWaitEvent", stream, event, 0)
    session("cuEventDestroy", event)


def in_thread(action: Callable[[], str]) -> str:
    """The result of an action in another thread."""
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(action()))
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
def test_copies_and_fills_are_captured(order: Order) -> None:
    session = loaded(order)
    first, second = session.number(), session.number()
    stream, source, target = session.stream(), session.pinned(), session.pinned()

    def work() -> None:
        session("cuMemcpyHtoDAsync", first, source, 4, stream)
        session("cuMemsetD32Async", second, 100, 1, stream)
        session("cuMemcpyDtoDAsync", second, first, 4, stream)
        session.launch("add_value", stream, second, 1)
        session("cuMemcpyDtoHAsync", target, second, 4, stream)

    graph = captured(session, stream, work)
    # Page-locked memory is read at each launch.
    for value in (5, 6):
        source[0] = value
        session("cuGraphLaunch", graph, stream)
        session("cuStreamSynchronize", stream)
        assert target[0] == value + 1


def test_a_capture_of_pageable_memory_is_outside_of_the_double(late: Session) -> None:
    pointer, stream = late.number(), late.stream()
    late("cuStreamBeginCapture", stream, GLOBAL)
    with pytest.raises(OutsideTheDouble, match="the capture of a copy of pageable memory"):
        late("cuMemcpyHtoDAsync", pointer, b"abcd", 4, stream)


def fork_and_join(session: Session, *, wait: bool) -> tuple[Any, Any]:
    """A graph in which a second stream sets a number that the first one copies."""
    source, target = session.number(1), session.number(0)
    first, second = session.stream(), session.stream()

    def work() -> None:
        follow(session, second, first)
        session.launch("set_value", second, source, 7)
        if wait:
            follow(session, first, second)
        session.launch("copy_value", first, target, source)
        if not wait:
            follow(session, first, second)

    graph = captured(session, first, work)
    session("cuGraphLaunch", graph, first)
    return target, graph


@in_all_orders
def test_a_node_runs_after_those_it_depends_on(order: Order) -> None:
    session = loaded(order)
    target, _ = fork_and_join(session, wait=True)
    assert session.read(target) == 7


def test_nodes_without_a_dependence_run_in_any_order() -> None:
    results = {}
    for order in (LATE, EARLY):
        session = loaded(order)
        target, _ = fork_and_join(session, wait=False)
        results[order] = session.read(target)
    assert results == {LATE: 1, EARLY: 7}


@in_all_orders
def test_a_launch_comes_after_the_work_before_it_and_before_the_work_after_it(
    order: Order,
) -> None:
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
    graph = captured(late, first, lambda: late.launch("add_value", first, pointer, 1))
    late("cuGraphLaunch", graph, first)
    late("cuGraphLaunch", graph, second)
    late("cuStreamSynchronize", second)
    late("cuStreamQuery", first)
    assert late.read(pointer) == 2


def test_the_default_stream_waits_for_a_graph(late: Session) -> None:
    pointer, stream, host = late.number(0), late.stream(BLOCKING), late.pinned()
    graph = captured(late, stream, lambda: late.launch("set_value", stream, pointer, 4))
    late("cuGraphLaunch", graph, stream)
    late("cuMemcpyDtoHAsync", host, pointer, 4, DEFAULT_STREAM)
    late("cuStreamSynchronize", DEFAULT_STREAM)
    assert host[0] == 4


def test_a_destroyed_graph_ends_what_it_does(late: Session) -> None:
    pointer, stream = late.number(0), late.stream()
    graph = captured(late, stream, lambda: late.launch("set_value", stream, pointer, 4))
    late("cuGraphLaunch", graph, stream)
    late("cuGraphExecDestroy", graph)
    assert late.error("cuGraphLaunch", graph, stream) == "INVALID_VALUE"
    assert late.error("cuGraphExecDestroy", graph) == "INVALID_VALUE"
    assert late.read(pointer) == 4


def test_graphs_have_nodes(late: Session) -> None:
    pointer, stream = late.number(), late.stream()
    late("cuStreamBeginCapture", stream, GLOBAL)
    late.launch("set_value", stream, pointer, 1)
    late("cuMemsetD8Async", pointer, 0, 4, stream)
    graph = late("cuStreamEndCapture", stream)
    assert late("cuGraphGetNodes", graph) == ([], 2)
    nodes, count = late("cuGraphGetNodes", graph, 3)
    assert count == 2
    assert [int(node) != 0 for node in nodes] == [True, True, False]
    late("cuGraphDestroy", graph)
    assert late.error("cuGraphDestroy", graph) == "INVALID_VALUE"
    assert late.error("cuGraphInstantiate", graph, 0) == "INVALID_VALUE"


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


def test_graphs_are_leaks_until_they_are_destroyed(late: Session) -> None:
    stream, pointer = late.stream(), late.number()
    before = len(late.double.leaks())
    graph = captured(late, stream, lambda: late("cuMemsetD8Async", pointer, 0, 4, stream))
    assert len(late.double.leaks()) == before + 1
    late("cuGraphExecDestroy", graph)
    assert len(late.double.leaks()) == before


# Which captures are right.


def test_a_stream_says_whether_it_is_capturing(late: Session) -> None:
    stream = late.stream()
    assert late("cuStreamIsCapturing", stream) == NONE
    late("cuStreamBeginCapture", stream, GLOBAL)
    assert late("cuStreamIsCapturing", stream) == ACTIVE
    assert late.error("cuStreamSynchronize", stream) == "STREAM_CAPTURE_UNSUPPORTED"
    assert late("cuStreamIsCapturing", stream) == INVALIDATED
    assert late.error("cuStreamEndCapture", stream) == "STREAM_CAPTURE_INVALIDATED"
    assert late("cuStreamIsCapturing", stream) == NONE


def test_captures_begin_and_end_once(late: Session) -> None:
    stream = late.stream()
    assert late.error("cuStreamEndCapture", stream) == "ILLEGAL_STATE"
    late("cuStreamBeginCapture", stream, GLOBAL)
    assert late.error("cuStreamBeginCapture", stream, GLOBAL) == "ILLEGAL_STATE"
    late("cuStreamEndCapture", stream)


def test_the_default_stream_cannot_be_captured(late: Session) -> None:
    error = late.error("cuStreamBeginCapture", DEFAULT_STREAM, GLOBAL)
    assert error == "STREAM_CAPTURE_UNSUPPORTED"


@pytest.mark.parametrize("late_work", [False, True], ids=["no join", "work after the join"])
def test_a_stream_that_is_not_joined_is_an_error(late: Session, late_work: bool) -> None:
    pointer, first, second = late.number(), late.stream(), late.stream()
    late("cuStreamBeginCapture", first, GLOBAL)
    follow(late, second, first)
    late.launch("set_value", second, pointer, 1)
    if late_work:
        follow(late, first, second)
        late.launch("set_value", second, pointer, 2)
    assert late.error("cuStreamEndCapture", first) == "STREAM_CAPTURE_UNJOINED"
    assert late("cuStreamIsCapturing", second) == NONE


def test_a_stream_may_be_joined_through_another(late: Session) -> None:
    pointer = late.number()
    first, second, third = late.stream(), late.stream(), late.stream()
    late("cuStreamBeginCapture", first, GLOBAL)
    follow(late, second, first)
    follow(late, third, second)
    late.launch("set_value", third, pointer, 1)
    follow(late, second, third)
    follow(late, first, second)
    late("cuStreamEndCapture", first)


def test_a_capture_ends_in_the_stream_in_which_it_began(late: Session) -> None:
    first, second = late.stream(), late.stream()
    late("cuStreamBeginCapture", first, GLOBAL)
    follow(late, second, first)
    assert late.error("cuStreamEndCapture", second) == "STREAM_CAPTURE_UNMATCHED"


def test_a_capture_does_not_wait_for_work_outside_of_it(late: Session) -> None:
    first, second, event = late.stream(), late.stream(), late.event()
    late("cuEventRecord", event, second)
    late("cuStreamBeginCapture", first, GLOBAL)
    assert late.error("cuStreamWaitEvent", first, event, 0) == "STREAM_CAPTURE_ISOLATION"
    assert late.error("cuStreamEndCapture", first) == "STREAM_CAPTURE_INVALIDATED"


def test_two_captures_do_not_merge(late: Session) -> None:
    first, second, event = late.stream(), late.stream(), late.event()
    late("cuStreamBeginCapture", first, GLOBAL)
    late("cuStreamBeginCapture", second, GLOBAL)
    late("cuEventRecord", event, first)
    assert late.error("cuStreamWaitEvent", second, event, 0) == "STREAM_CAPTURE_MERGE"
    for stream in (first, second):
        assert late.error("cuStreamEndCapture", stream) == "STREAM_CAPTURE_INVALIDATED"


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("cuStreamSynchronize", "STREAM_CAPTURE_UNSUPPORTED"),
        ("cuStreamQuery", "STREAM_CAPTURE_UNSUPPORTED"),
        ("cuCtxSynchronize", "STREAM_CAPTURE_UNSUPPORTED"),
        ("cuEventQuery", "CAPTURED_EVENT"),
        ("cuEventSynchronize", "CAPTURED_EVENT"),
    ],
)
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=str)
def test_waiting_and_asking_invalidate_every_capture(
    late: Session, name: str, result: str, mode: CUstreamCaptureMode
) -> None:
    pointer, stream, event = late.number(), late.stream(), late.event()
    late("cuStreamBeginCapture", stream, mode)
    late("cuEventRecord", event, stream)
    arguments = {"cuS": (stream,), "cuE": (event,), "cuC": ()}[name[:3]]
    assert late.error(name, *arguments) == result
    # Nothing can be added to the capture any more.
    error = late.error("cuMemsetD8Async", pointer, 0, 4, stream)
    assert error == "STREAM_CAPTURE_INVALIDATED"
    assert late.error("cuStreamEndCapture", stream) == "STREAM_CAPTURE_INVALIDATED"


UNSAFE = ["cuMemAlloc", "cuMemAllocHost", "cuMemFree", "cuStreamSynchronize", "cuEventQuery"]


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize(
    ("mode", "here", "elsewhere"),
    [
        (GLOBAL, "STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_UNSUPPORTED"),
        (THREAD_LOCAL, "STREAM_CAPTURE_UNSUPPORTED", "SUCCESS"),
        (RELAXED, "SUCCESS", "SUCCESS"),
    ],
    ids=["global", "thread-local", "relaxed"],
)
@pytest.mark.parametrize("other_thread", [False, True], ids=["own thread", "other thread"])
def test_unsafe_calls_depend_on_the_mode_and_the_thread(
    late: Session,
    name: str,
    mode: CUstreamCaptureMode,
    here: str,
    elsewhere: str,
    *,
    other_thread: bool,
) -> None:
    pointer, other, event = late.number(), late.stream(), late.event()
    arguments = {
        "cuMemAlloc": (4,),
        "cuMemAllocHost": (4,),
        "cuMemFree": (pointer,),
        "cuStreamSynchronize": (other,),
        "cuEventQuery": (event,),
    }[name]
    stream = late.stream()
    late("cuStreamBeginCapture", stream, mode)

    def call() -> str:
        late("cuCtxSetCurrent", late.context)
        return late.error(name, *arguments)

    expected = elsewhere if other_thread else here
    assert (in_thread(call) if other_thread else call()) == expected
    ended = "SUCCESS" if expected == "SUCCESS" else "STREAM_CAPTURE_INVALIDATED"
    assert late.error("cuStreamEndCapture", stream) == ended


@pytest.mark.parametrize("captured_in", ["own thread", "other thread"])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=str)
def test_unsafe_calls_depend_on_the_mode_of_their_thread(
    late: Session, mode: CUstreamCaptureMode, captured_in: str
) -> None:
    stream = late.stream()
    late("cuStreamBeginCapture", stream, GLOBAL)
    found: list[Any] = []

    def call() -> str:
        late("cuCtxSetCurrent", late.context)
        found.append(late("cuThreadExchangeStreamCaptureMode", mode))
        result = late.error("cuMemAlloc", 4)
        found.append(late("cuThreadExchangeStreamCaptureMode", GLOBAL))
        return result

    is_own = captured_in == "own thread"
    is_allowed = mode == RELAXED or (mode == THREAD_LOCAL and not is_own)
    result = call() if is_own else in_thread(call)
    assert result == ("SUCCESS" if is_allowed else "STREAM_CAPTURE_UNSUPPORTED")
    assert found == [GLOBAL, mode]


@pytest.mark.parametrize(
    ("mode", "result"),
    [
        (GLOBAL, "STREAM_CAPTURE_WRONG_THREAD"),
        (THREAD_LOCAL, "STREAM_CAPTURE_WRONG_THREAD"),
        (RELAXED, "SUCCESS"),
    ],
    ids=["global", "thread-local", "relaxed"],
)
def test_only_relaxed_captures_end_in_another_thread(
    late: Session, mode: CUstreamCaptureMode, result: str
) -> None:
    stream = late.stream()
    late("cuStreamBeginCapture", stream, mode)

    def end() -> str:
        late("cuCtxSetCurrent", late.context)
        return late.error("cuStreamEndCapture", stream)

    assert in_thread(end) == result


def test_the_default_stream_ends_the_captures_of_blocking_streams(late: Session) -> None:
    pointer, stream = late.number(), late.stream(BLOCKING)
    late("cuStreamBeginCapture", stream, RELAXED)
    assert late.error("cuStreamIsCapturing", DEFAULT_STREAM) == "STREAM_CAPTURE_IMPLICIT"
    assert late("cuStreamIsCapturing", stream) == ACTIVE
    error = late.error("cuMemsetD8Async", pointer, 0, 4, DEFAULT_STREAM)
    assert error == "STREAM_CAPTURE_IMPLICIT"
    assert late("cuStreamIsCapturing", stream) == INVALIDATED


def test_the_default_stream_works_during_captures_of_other_streams(late: Session) -> None:
    pointer, stream = late.number(), late.stream()
    late("cuStreamBeginCapture", stream, GLOBAL)
    late("cuMemsetD8Async", pointer, 0, 4, DEFAULT_STREAM)
    late("cuStreamEndCapture", stream)


def test_an_event_of_a_capture_is_of_no_use_after_it(late: Session) -> None:
    stream, other, event = late.stream(), late.stream(), late.event()
    late("cuStreamBeginCapture", stream, GLOBAL)
    late("cuEventRecord", event, stream)
    late("cuStreamEndCapture", stream)
    assert late.error("cuStreamWaitEvent", other, event, 0) == "CAPTURED_EVENT"
    assert late.error("cuEventQuery", event) == "CAPTURED_EVENT"
    late("cuEventRecord", event, other)
    late("cuEventSynchronize", event)
