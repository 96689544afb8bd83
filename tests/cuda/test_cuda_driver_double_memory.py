"""The double of the CUDA driver: memory, and when copies read and write that of the host."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from cuda_double_cases import EARLY, LATE, ORDERS, Session

from cuda_machine.device_attributes import DeviceDescription
from cuda_machine.operations import Order

in_all_orders = pytest.mark.parametrize("order", ORDERS, ids=str)


@pytest.fixture
def late() -> Session:
    return Session(LATE)


def test_memory_is_counted(late: Session) -> None:
    free, total = late("cuMemGetInfo")
    late("cuMemAlloc", 1 << 20)
    assert late("cuMemGetInfo") == (free - (1 << 20), total)


def test_memory_ends() -> None:
    session = Session(LATE, [DeviceDescription(memory=1 << 20)])
    assert session.error("cuMemAlloc", 1 << 21) == "OUT_OF_MEMORY"


def test_an_allocation_of_nothing_is_an_error(late: Session) -> None:
    assert late.error("cuMemAlloc", 0) == "INVALID_VALUE"
    assert late.error("cuMemHostAlloc", 0, 0) == "INVALID_VALUE"


def test_memory_is_freed_once(late: Session) -> None:
    pointer, host = late.number(), late("cuMemHostAlloc", 4, 0)
    late("cuMemFree", pointer)
    assert late.error("cuMemFree", pointer) == "INVALID_VALUE"
    late("cuMemFreeHost", host)
    assert late.error("cuMemFreeHost", host) == "INVALID_VALUE"


def test_a_copy_outside_of_an_allocation_is_an_error(late: Session) -> None:
    pointer, host = late.number(), np.zeros(2, np.int32).ctypes.data
    assert late.error("cuMemcpyDtoHAsync", host, pointer, 8, late.own) == "INVALID_VALUE"
    late("cuMemFree", pointer)
    assert late.error("cuMemcpyHtoDAsync", pointer, host, 4, late.own) == "INVALID_VALUE"


def test_fills_write_bytes(late: Session) -> None:
    pointer = late.number()
    late("cuMemsetD8Async", pointer, 1, 4, late.own)
    assert late.read(pointer) == 0x01010101


def test_devices_copy_to_each_other() -> None:
    session = Session(LATE, [DeviceDescription(), DeviceDescription()])
    source = session.number(5)
    session.use(1)
    target = session.number()
    session("cuMemcpyDtoDAsync", target, source, 4, session.own)
    assert session.read(target) == 5


# When copies read and write the host's memory.


def copied_after_change(order: Order, *, pinned: bool) -> int:
    """What a copy brings to the device, if the host's memory changes after the call."""
    session = Session(order)
    pointer, stream = session.number(), session.stream()
    host = session.pinned() if pinned else np.zeros(1, np.int32)
    host[0] = 1
    session("cuMemcpyHtoDAsync", pointer, host.ctypes.data, 4, stream)
    host[0] = 2
    return session.read(pointer)


def test_page_locked_memory_is_read_when_the_copy_runs() -> None:
    assert copied_after_change(LATE, pinned=True) == 2
    assert copied_after_change(EARLY, pinned=True) == 1


@in_all_orders
def test_pageable_memory_is_read_by_the_call(order: Order) -> None:
    assert copied_after_change(order, pinned=False) == 1


def read_without_wait(order: Order, *, pinned: bool) -> int:
    """What the host finds after an asynchronous copy that it does not wait for."""
    session = Session(order)
    pointer, stream = session.number(3), session.stream()
    host = session.pinned() if pinned else np.zeros(1, np.int32)
    host[0] = 1
    session("cuMemcpyDtoHAsync", host.ctypes.data, pointer, 4, stream)
    return int(host[0])


def test_page_locked_memory_is_written_when_the_copy_runs() -> None:
    assert read_without_wait(LATE, pinned=True) == 1
    assert read_without_wait(EARLY, pinned=True) == 3


@in_all_orders
def test_pageable_memory_is_written_by_the_call(order: Order) -> None:
    assert read_without_wait(order, pinned=False) == 3
