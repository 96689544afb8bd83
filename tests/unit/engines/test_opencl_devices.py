"""Devices of OpenCL: their names, why some cannot be used, and their memory."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from error_texts import error_text, refused
from opencl_cases import cl, refusing

import lamina as lm
from lamina.base.shapes import float32, float64
from lamina.engines.engine import Device
from lamina.engines.opencl import devices, requirements, selftest
from lamina.engines.opencl import driver as driver_module
from lamina.engines.opencl import engine as engine_module
from lamina.engines.opencl.devices import Found, chosen
from lamina.errors import EngineError


def found(*rows):
    return [
        Found(Device(f"opencl:{n}", description, 1 << 30, problem), None)
        for n, (description, problem) in enumerate(rows)
    ]


def test_a_device_is_chosen_by_number_or_by_a_substring_of_its_name():
    several = found(("Broken", "no compiler"), ("Radeon RX", ""), ("Radeon Pro", ""), ("PoCL", ""))
    names = ("opencl", "opencl:1", "opencl:2", "opencl:radeon", "opencl:radeon pro", "opencl:pocl")
    numbers = [chosen(name, several).record.engine[-1] for name in names]
    assert numbers == ["1", "1", "2", "1", "2", "3"]


@pytest.mark.cases(
    ("name", "said"),
    ("opencl:0", "cannot be used\n  opencl:0  Broken: no compiler"),
    ("opencl:9", "there is no OpenCL device number 9\n  opencl:0  Broken"),
    ("opencl:9", "\n  opencl:0  Broken: no compiler\n  opencl:1"),
    ("opencl:9", "Did you mean 'opencl:1'? lamina.devices(), or `lamina devices`"),
    ("opencl:01", "there is no OpenCL device number 01"),
    ("opencl:01", "Did you mean 'opencl:1'?"),
    ("opencl:arc", "no OpenCL device is named 'arc'"),
    ("opencl:arc", "  lamina.devices(), or `lamina devices` on the command line, lists all"),
    ("opencl:radeno", "Did you mean 'opencl:radeon'?"),
    ("opencl:Radoen", "Did you mean 'opencl:radeon'?"),
)
def test_a_device_that_is_missing_or_broken_is_refused(name, said):
    several = found(("Broken", "no compiler"), ("Radeon RX", ""))
    assert said in error_text(EngineError, lambda: chosen(name, several))


@pytest.mark.cases(
    ("change", "said"),
    ({}, ""),
    ({"version": "OpenCL 1.1 Mesa 22.3.6"}, "needs OpenCL 1.2, the driver has OpenCL 1.1"),
    ({"available": 0}, "not available"),
    ({"compiler_available": 0}, "no compiler"),
    ({"endian_little": 0}, "big-endian"),
    ({"profile": "EMBEDDED_PROFILE"}, "full profile"),
)
def test_an_unusable_device_has_a_problem(change, said):
    properties = {
        "version": "OpenCL 3.0 PoCL",
        "available": 1,
        "compiler_available": 1,
        "endian_little": 1,
        "profile": "FULL_PROFILE",
    }
    problem, remedy = devices._problem(SimpleNamespace(**(properties | change)))
    assert said in problem
    assert bool(problem) is bool(said) is remedy.endswith(".")


def test_mesa_without_devices_names_the_variable_that_shows_them(monkeypatch, tmp_path):
    monkeypatch.setattr(requirements, "_DEV", tmp_path)
    monkeypatch.delenv("RUSTICL_ENABLE", raising=False)
    error = requirements.no_device("drivers without one: rusticl", ["rusticl"])
    assert ("RUSTICL_ENABLE", "not set") in error.facts
    assert error.advice.startswith(
        "Mesa shows only the devices of drivers that RUSTICL_ENABLE names: set it to radeonsi for"
    )
    monkeypatch.setenv("RUSTICL_ENABLE", "iris")
    assert ("RUSTICL_ENABLE", "iris") in requirements.no_device("none", ["rusticl"]).facts


def test_a_gpu_that_the_user_may_not_open_is_named_with_the_group(monkeypatch, tmp_path):
    (tmp_path / "dri").mkdir()
    for name in ("dri/renderD128", "dri/card0", "kfd"):
        (tmp_path / name).touch()
    monkeypatch.setattr(requirements, "_DEV", tmp_path)
    assert "no permission" not in dict(requirements.no_device("no platform").facts)
    monkeypatch.setattr(requirements.os, "access", lambda *_: False)
    error = requirements.no_device("no platform")
    named = f"{tmp_path}/dri/renderD128, {tmp_path}/kfd"
    assert dict(error.facts)["no permission"] == named
    assert "sudo usermod -aG render $USER" in error.advice


@pytest.fixture
def found_on(monkeypatch):
    """The devices of these platforms, which are listed in the test; others after it."""

    def listed(*platforms):
        devices._found.cache_clear()
        monkeypatch.setattr(devices.cl, "get_platforms", lambda: list(platforms))
        return devices.found_devices()

    yield listed
    devices._found.cache_clear()


def platform(name, status):
    return SimpleNamespace(name=name, get_devices=refusing(status, "clGetDeviceIDs"))


NONE = platform("Empty", "DEVICE_NOT_FOUND")
BROKEN = platform("Broken", "OUT_OF_HOST_MEMORY")


def test_drivers_without_a_device_are_named(found_on):
    error = refused(EngineError, lambda: found_on(NONE, NONE))
    assert ("found", "drivers without one: Empty, Empty") in error.facts


def test_a_failing_driver_is_listed_with_its_error(found_on):
    (row,) = [device.record for device in found_on(BROKEN, NONE)]
    assert (row.engine, row.description) == ("opencl:0", "Broken")
    assert row.problem == "the driver fails: OUT_OF_HOST_MEMORY in clGetDeviceIDs"
    error = refused(EngineError, lambda: devices.chosen("opencl:0", found_on(BROKEN, NONE)))
    assert "Broken: the driver fails: OUT_OF_HOST_MEMORY" in str(error)
    assert error.advice == row.remedy
    assert row.remedy.startswith("Update the driver, or install another one")


def test_mesas_driver_without_a_device_is_listed_with_the_remedy(found_on):
    hidden = platform("rusticl", "DEVICE_NOT_FOUND")
    empty = SimpleNamespace(name="rusticl", get_devices=list)
    for mesa in (hidden, empty):
        _, row = (device.record for device in found_on(BROKEN, mesa))
        assert (row.engine, row.description) == ("opencl:1", "rusticl")
        assert row.problem == "Mesa's driver shows no device"
        assert row.remedy.startswith("Mesa shows only the devices of drivers that RUSTICL_ENABLE")


def test_a_device_whose_properties_cannot_be_read_is_listed(found_on):
    class Handle:
        type = 0
        name = property(refusing("OUT_OF_RESOURCES", "clGetDeviceInfo"))

    odd = SimpleNamespace(name="Odd", get_devices=lambda: [Handle()])
    (row,) = [device.record for device in found_on(odd)]
    assert row.problem == "the driver fails: OUT_OF_RESOURCES in clGetDeviceInfo"


def test_threads_that_open_a_device_at_once_share_it(opencl_name, monkeypatch):
    engine_module.open_device(opencl_name)
    opened = []

    def open_slowly(device, verdict):
        opened.append(device)
        time.sleep(0.2)
        return object()

    monkeypatch.setattr(engine_module, "_opened", cache(open_slowly))
    start = threading.Barrier(4)

    def work(_):
        start.wait()
        return engine_module.open_device(opencl_name)

    with ThreadPoolExecutor(4) as pool:
        drivers = {*pool.map(work, range(4))}
    assert len(drivers) == len(opened) == 1


def test_devices_are_listed_while_another_thread_tests_one(opencl_name, monkeypatch):
    verdicts, listed = iter((None, object())), []

    def list_meanwhile(device):
        lister = threading.Thread(target=lambda: listed.extend(lm.devices()))
        lister.start()
        lister.join(timeout=30)

    monkeypatch.setattr(engine_module, "verdict_of", lambda handle: next(verdicts))
    monkeypatch.setattr(engine_module, "_opened", lambda device, verdict: (device, len(listed)))
    monkeypatch.setattr(selftest, "run_selftest", list_meanwhile)
    opened, count = engine_module.open_device(opencl_name)
    assert opened.record.engine in [device.engine for device in listed]
    assert count == len(listed)


def test_more_memory_than_available_is_refused_before_it_is_allocated(engine):
    before = engine.available_bytes()
    text = error_text(EngineError, lambda: engine.allocate((1 << 44,), np.dtype("float32")))
    for part in ("there is not enough memory on the device", "64 TiB", engine.device.description):
        assert part in text
    assert abs(engine.available_bytes() - before) < 1 << 30


def test_memory_that_the_driver_refuses_is_an_error_of_the_engine(engine, driver, monkeypatch):
    # As a driver that allocates when a buffer is first used.
    refuse = refusing("MEM_OBJECT_ALLOCATION_FAILURE", "clEnqueueFillBuffer", cl.MemoryError)
    taken = driver.allocated.bytes
    monkeypatch.setattr(driver_module.cl, "enqueue_fill_buffer", refuse)
    text = error_text(EngineError, lambda: engine.allocate((1024,), np.dtype("float32")))
    assert "MEM_OBJECT_ALLOCATION_FAILURE in clEnqueueFillBuffer" in text
    assert "4 KiB" in text
    assert driver.allocated.bytes == taken


def test_parameters_larger_than_one_allocation_are_refused_by_name(
    opencl_name, driver, monkeypatch
):
    monkeypatch.setattr(driver, "traits", replace(driver.traits, largest_block_bytes=4096))
    net = lm.Sequential(lm.Input(64), lm.Linear(64))
    text = error_text(EngineError, lambda: lm.Model(net, engine=opencl_name))
    assert "this model needs more memory in one allocation than the device allows" in text
    assert "at most  4 KiB" in text
    assert "f32[64, 64]" in text


def test_float64_is_refused_where_the_device_has_none(engine, driver, monkeypatch):
    monkeypatch.setattr(driver, "traits", replace(driver.traits, has_float64=False))
    engine.allocate((2,), float32.numpy).release()
    with pytest.raises(EngineError, match="cannot compute with float64"):
        engine.allocate((2,), float64.numpy)


def test_peak_operations_and_bytes_per_second_are_measured(engine):
    peaks = engine.peaks(float32)
    assert min(peaks.operations, peaks.bytes) > 1e6
