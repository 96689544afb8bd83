"""Devices of doubles, which the cuda engine finds."""

import gc
from collections import Counter

import pytest

from lamina.engines.cuda import build, calls, devices
from lamina.engines.cuda import engine as cuda_engine


@pytest.fixture
def counts():
    """The calls of each function of the driver, and the compilations."""
    return Counter()


@pytest.fixture
def use(monkeypatch, counts):
    """Makes devices, which the engine finds, and returns their double.

    A test fails if a device has faults at its end; one that expects them calls `recover`.
    """
    from cuda_machine.driver_double import CudaDouble
    from cuda_machine.driver_state import DeviceDescription
    from cuda_machine.operations import Order

    made = []

    def forget():
        for cached in (calls.cuda, devices._found, cuda_engine._opened, build._architectures):
            cached.cache_clear()

    def use(*described, order=None):
        forget()
        descriptions = described or (DeviceDescription(),)
        double = CudaDouble(descriptions, order or Order("late"), counts=counts)
        made.append(double)
        monkeypatch.setattr(calls, "packages", lambda: (double.driver, double.nvrtc))
        monkeypatch.setattr(calls, "cublaslt_library", lambda: double.cublaslt.functions)
        monkeypatch.setattr(calls, "missing_packages", list)
        return double

    forget()
    yield use
    gc.collect()
    forget()
    assert [fault for cuda in made for fault in cuda.faults] == []


@pytest.fixture
def double(use):
    """The double of a device whose streams are late."""
    return use()


@pytest.fixture
def driver(double):
    return cuda_engine.open_device("cuda")
