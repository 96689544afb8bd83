"""What compute units do in a clock: from the properties of the device, as far as they are known."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.engines.cuda.driver import traits_of
from lamina.engines.gpu.launches import Rates
from lamina.engines.opencl.driver import _rates

H100 = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "CLOCK_RATE": 1_980_000,
    "MEMORY_CLOCK_RATE": 2_619_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 5120,
}


def rates(**changed: int) -> Rates:
    return traits_of(defaultdict(int, H100 | changed).__getitem__, 1 << 30).rates


def test_an_h100_moves_3_35_terabytes_a_second_and_has_66_9_teraflops():
    found = rates()
    assert found.clock * 132 * found.memory_bytes == pytest.approx(3.35e12, rel=1e-3)
    assert 2 * found.clock * 132 * found.lanes == pytest.approx(66.9e12, rel=1e-3)


@pytest.mark.parametrize(
    ("major", "minor", "lanes"), [(7, 5, 64), (8, 0, 64), (8, 6, 128), (8, 9, 128), (12, 0, 128)]
)
def test_lanes_depend_on_the_compute_capability(major, minor, lanes):
    found = rates(COMPUTE_CAPABILITY_MAJOR=major, COMPUTE_CAPABILITY_MINOR=minor)
    assert found.lanes == lanes


@pytest.mark.parametrize("unknown", ["CLOCK_RATE", "MEMORY_CLOCK_RATE"])
def test_a_typical_gpu_has_the_memory_of_one_that_does_not_say(unknown):
    assert rates(**{unknown: 0}).memory_bytes == Rates().memory_bytes


def test_resident_work_items_are_those_of_the_device():
    assert rates(MAX_THREADS_PER_MULTIPROCESSOR=1536).resident_items == 1536


def test_opencl_devices_of_nvidia_have_the_lanes_of_their_compute_capability():
    properties = {"compute_capability_major_nv": 9, "compute_capability_minor_nv": 0}
    handle: Any = SimpleNamespace(
        max_clock_frequency=1980, extensions="cl_nv_device_attribute_query", **properties
    )
    assert (_rates(handle).lanes, _rates(handle).clock) == (128, 1.98e9)
    handle.extensions = "cl_khr_fp64"
    assert _rates(handle) == Rates(clock=1.98e9)
