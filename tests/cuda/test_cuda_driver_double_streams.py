"""The double of the CUDA driver: streams, events and faults, in all orders."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from cuda.bindings.driver import CUdeviceptr, CUevent_flags
from cuda_double_cases import EARLY, LATE, ORDERS, Session

from cuda_machine.device_attributes import DeviceDescription
from cuda_machine.operations import Order

in_all_orders = pytest.mark.parametrize("order", ORDERS, ids=str)


@pytest.fixture
def late() -> Session:
    return Session(LATE)


# The order of streams.


def read_by_second_stream(order: Order, *, wait: bool) -> int:
    """What a second stream reads of a kernel's result, with or without a wait for an event."""
    session = Session(order)
    pointer, host = session.number(1), session.pinned()
    first, second, event = session.stream(), session.stream(), session.event()
    session.launch("set_value", first, pointer, 7)
    session("cuEventRecord", event, first)
    if wait:
        session("cuStreamWaitEvent", second, event, 0)
    session("cuMemcpyDtoHAsync", host.ctypes.data, pointer, 4, second)
    session("cuStreamSynchronize", second)
    return int(host[0])


def test_a_stream_without_a_wait_shows_as_a_wrong_result() -> None:
    assert read_by_second_stream(LATE, wait=False) == 1
    assert read_by_second_stream(EARLY, wait=False) == 7


def test_random_orders_show_it_for_some_seeds() -> None:
    seeds = [Order("random", seed) for seed in range(16)]
    assert {read_by_second_stream(order, wait=False) for order in seeds} == {1, 7}


@in_all_orders
def test_a_stream_waits_for_an_event(order: Order) -> None:
    assert read_by_second_stream(order, wait=True) == 7


def overwritten_too_soon(order: Order, *, wait: bool) -> int:
    """What a stream reads of memory that another one overwrites, with or without a wait."""
    session = Session(order)
    source, target = session.number(1), session.number(0)
    reader, writer, event = session.stream(), session.stream(), session.event()
    session.launch("copy_value", reader, target, source)
    session("cuEventRecord", event, reader)
    if wait:
        session("cuStreamWaitEvent", writer, event, 0)
    session.launch("set_value", writer, source, 2)
    session("cuStreamSynchronize", writer)
    return session.read(target)


def test_memory_that_is_overwritten_too_soon_shows_as_a_wrong_result() -> None:
    assert overwritten_too_soon(LATE, wait=False) == 2
    assert overwritten_too_soon(EARLY, wait=False) == 1


@in_all_orders
def test_memory_is_overwritten_after_a_wait(order: Order) -> None:
    assert overwritten_too_soon(order, wait=True) == 1


@in_all_orders
def test_a_stream_keeps_its_order(order: Order) -> None:
    session = Session(order)
    first, second, stream = session.number(0), session.number(0), session.stream()
    session.launch("set_value", stream, first, 1)
    session.launch("add_value", stream, first, 10)
    session.launch("copy_value", stream, second, first)
    session.launch("set_value", stream, first, 5)
    assert (session.read(first), session.read(second)) == (5, 11)


def test_a_stream_that_is_destroyed_ends_its_work(late: Session) -> None:
    pointer, stream, event = late.number(1), late.stream(), late.event()
    late.launch("set_value", stream, pointer, 7)
    late("cuEventRecord", event, stream)
    late("cuStreamDestroy", late.streams.pop())
    late("cuEventSynchronize", event)
    assert late.error("cuStreamSynchronize", stream) == "INVALID_HANDLE"
    assert late.read(pointer) == 7


@in_all_orders
def test_threads_use_their_own_streams(order: Order) -> None:
    session = Session(order)
    pointers = [session.number(0) for _ in range(4)]
    assert session.module

    def work(pointer: CUdeviceptr) -> None:
        session.enter()
        stream = session.stream()
        for _ in range(5):
            session.launch("add_value", stream, pointer, 1)
        session("cuStreamSynchronize", stream)

    threads = [threading.Thread(target=work, args=(pointer,)) for pointer in pointers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [session.read(pointer) for pointer in pointers] == [5, 5, 5, 5]


# Events.


def test_an_event_without_a_record_has_nothing_to_wait_for(late: Session) -> None:
    event, stream = late.event(), late.stream()
    late("cuEventSynchronize", event)
    late("cuStreamWaitEvent", stream, event, 0)
    late("cuStreamSynchronize", stream)


def test_an_event_is_ready_when_what_came_before_has_run(late: Session) -> None:
    pointer, stream, event, host = late.number(0), late.stream(), late.event(), late.pinned(2)
    source = host.ctypes.data
    host[:] = 1, 1
    late("cuMemcpyDtoHAsync", source, pointer, 4, stream)
    late("cuEventRecord", event, stream)
    late("cuMemcpyDtoHAsync", source + 4, pointer, 4, stream)
    assert host.tolist() == [1, 1]
    late("cuEventSynchronize", event)
    # What came later has not run.
    assert host.tolist() == [0, 1]


def test_a_wait_is_for_the_record_before_it(late: Session) -> None:
    pointer, event, host = late.number(0), late.event(), late.pinned(2)
    first, second, third = late.stream(), late.stream(), late.stream()
    host[:] = 1, 1
    late("cuMemcpyDtoHAsync", host.ctypes.data, pointer, 4, first)
    late("cuEventRecord", event, first)
    late("cuStreamWaitEvent", third, event, 0)
    late("cuMemcpyDtoHAsync", host.ctypes.data + 4, pointer, 4, second)
    late("cuEventRecord", event, second)
    late("cuStreamSynchronize", third)
    assert host.tolist() == [0, 1]


def test_a_destroyed_event_is_still_waited_for(late: Session) -> None:
    pointer, event = late.number(1), late.event()
    first, second, host = late.stream(), late.stream(), late.pinned()
    late.launch("set_value", first, pointer, 7)
    late("cuEventRecord", event, first)
    late("cuStreamWaitEvent", second, event, 0)
    late("cuEventDestroy", event)
    assert late.error("cuEventSynchronize", event) == "INVALID_HANDLE"
    late("cuMemcpyDtoHAsync", host.ctypes.data, pointer, 4, second)
    late("cuStreamSynchronize", second)
    assert host[0] == 7


@in_all_orders
def test_elapsed_time_grows_with_the_work(order: Order) -> None:
    session = Session(order)
    pointer, stream = session.number(), session.stream()
    events = [session.event() for _ in range(3)]
    session("cuEventRecord", events[0], stream)
    session.launch("set_value", stream, pointer, 1)
    session("cuEventRecord", events[1], stream)
    for _ in range(3):
        session.launch("set_value", stream, pointer, 1)
    session("cuEventRecord", events[2], stream)
    session("cuStreamSynchronize", stream)
    one = session("cuEventElapsedTime", events[0], events[1])
    three = session("cuEventElapsedTime", events[1], events[2])
    assert one > 0
    assert three == pytest.approx(3 * one)


def test_elapsed_time_needs_records_that_are_done_and_timed(late: Session) -> None:
    pointer, stream = late.number(), late.stream()
    start, end = late.event(), late.event()
    untimed = late.event(CUevent_flags.CU_EVENT_DISABLE_TIMING)
    assert late.error("cuEventElapsedTime", start, end) == "INVALID_HANDLE"
    for event in (start, untimed):
        late("cuEventRecord", event, stream)
    late.launch("set_value", stream, pointer, 1)
    late("cuEventRecord", end, stream)
    late("cuEventSynchronize", start)
    assert late.error("cuEventElapsedTime", start, end) == "NOT_READY"
    late("cuStreamSynchronize", stream)
    late("cuEventElapsedTime", start, end)
    assert late.error("cuEventElapsedTime", untimed, end) == "INVALID_HANDLE"


def test_events_order_the_streams_of_two_devices() -> None:
    session = Session(LATE, [DeviceDescription(), DeviceDescription()])
    source, first, event = session.number(1), session.stream(), session.event()
    session.launch("set_value", first, source, 7)
    session("cuEventRecord", event, first)
    session.use(1)
    target, second = session.number(0), session.stream()
    session("cuStreamWaitEvent", second, event, 0)
    session("cuMemcpyDtoDAsync", target, source, 4, second)
    session("cuStreamSynchronize", second)
    assert session.read(target) == 7


# Faults.


def test_a_fault_shows_when_something_waits_and_from_then_on(late: Session) -> None:
    stream, other = late.stream(), late.stream()
    late.launch("race", stream, late.number(), threads=2)
    late("cuStreamSynchronize", other)
    assert late.error("cuStreamSynchronize", stream) == "LAUNCH_FAILED"
    assert late.error("cuStreamSynchronize", other) == "LAUNCH_FAILED"
    assert late.error("cuMemAlloc", 4) == "LAUNCH_FAILED"
    assert len(late.double.faults) == 1
    assert "race" in str(late.double.faults[0])


@in_all_orders
def test_a_copy_of_memory_that_nobody_wrote_is_still_not_written(order: Order) -> None:
    session = Session(order)
    source, copy, target = session.number(), session.number(), session.number()
    session("cuMemcpyDtoDAsync", copy, source, 4, session.own)
    session.launch("copy_value", session.own, target, copy)
    assert session.error("cuStreamSynchronize", session.own) == "LAUNCH_FAILED"
    assert "a read of global memory that is not written" in str(session.double.faults[0])


def test_a_kernel_cannot_access_the_memory_of_another_device() -> None:
    session = Session(LATE, [DeviceDescription(), DeviceDescription()])
    pointer = session.number(1)
    session.use(1)
    session.launch("set_value", session.own, pointer, 2)
    assert session.error("cuStreamSynchronize", session.own) == "ILLEGAL_ADDRESS"


def test_a_null_pointer_is_an_illegal_address(late: Session) -> None:
    late.launch("set_value", late.own, CUdeviceptr(0), 2)
    assert late.error("cuStreamSynchronize", late.own) == "ILLEGAL_ADDRESS"


def test_a_fault_in_the_early_order_shows_from_the_next_call_on() -> None:
    session = Session(EARLY)
    stream = session.stream()
    session.launch("race", stream, session.number(), threads=2)
    assert session.error("cuMemGetInfo") == "LAUNCH_FAILED"


def test_a_device_does_nothing_after_a_fault(late: Session) -> None:
    host, stream = late.pinned(), late.stream()
    host[0] = 1
    pointer = late.number(2)
    late.launch("race", stream, late.number(), threads=2)
    late("cuMemcpyDtoHAsync", host.ctypes.data, pointer, 4, stream)
    assert late.error("cuStreamSynchronize", stream) == "LAUNCH_FAILED"
    assert host[0] == 1


def test_a_test_may_go_on_after_a_fault(late: Session) -> None:
    pointer, stream, other = late.number(1), late.stream(), late.stream()
    late.launch("race", stream, late.number(), threads=2)
    late.launch("set_value", other, pointer, 2)
    assert late.error("cuStreamSynchronize", stream) == "LAUNCH_FAILED"
    assert len(late.double.recover()) == 1
    assert late.double.faults == []
    # What had not run is lost.
    assert late.read(pointer) == 1


def test_a_fault_leaves_other_devices_alone() -> None:
    session = Session(LATE, [DeviceDescription(), DeviceDescription()])
    session.launch("race", session.own, session.number(), threads=2)
    assert session.error("cuStreamSynchronize", session.own) == "LAUNCH_FAILED"
    session.use(1)
    assert session.read(session.number(3)) == 3


def test_memory_that_is_freed_before_a_kernel_runs_is_an_illegal_address(late: Session) -> None:
    pointer, stream = late.number(), late.stream()
    late.launch("set_value", stream, pointer, 1)
    late("cuMemFree", pointer)
    assert late.error("cuStreamSynchronize", stream) == "ILLEGAL_ADDRESS"


def test_memory_that_is_freed_before_a_copy_runs_is_an_illegal_address(late: Session) -> None:
    pointer, stream = late.number(), late.stream()
    late("cuMemsetD8Async", pointer, 0, 4, stream)
    late("cuMemFree", pointer)
    assert late.error("cuStreamSynchronize", stream) == "ILLEGAL_ADDRESS"
    assert str(late.double.faults[0]) == "a copy or fill runs after its memory was freed"


def test_an_address_that_is_not_aligned_is_reported(late: Session) -> None:
    pointer = CUdeviceptr(int(late("cuMemAlloc", 8)) + 1)
    late.launch("set_value", late.own, pointer, 1)
    assert late.error("cuStreamSynchronize", late.own) == "MISALIGNED_ADDRESS"


def test_a_kernel_that_runs_after_its_module_was_unloaded_is_a_fault(late: Session) -> None:
    late.launch("set_value", late.own, late.number(), 1)
    late("cuModuleUnload", late.module)
    assert late.error("cuStreamSynchronize", late.own) == "LAUNCH_FAILED"
    assert str(late.double.faults[0]) == "set_value runs after its module was unloaded"


def test_a_copy_that_runs_after_its_page_locked_memory_was_freed_is_a_fault(late: Session) -> None:
    pointer, host, stream = late.number(), late("cuMemHostAlloc", 4, 0), late.stream()
    late("cuMemcpyHtoDAsync", pointer, host, 4, stream)
    late("cuMemFreeHost", host)
    assert late.error("cuStreamSynchronize", stream) == "LAUNCH_FAILED"
    assert str(late.double.faults[0]) == "a copy runs after its page-locked memory was freed"
