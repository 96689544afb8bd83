"""The self-test of OpenCL devices: it finds each fault, and its verdict is kept."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from error_texts import error_text
from harness import Leaves, run_program
from opencl_cases import cl, failure, for_gpus, refusing
from program_cases import compiled

import lamina as lm
from lamina import ops
from lamina.base.shapes import float16, float32
from lamina.codegen.words import NATIVE_HALF, OPENCL
from lamina.engines.discovery import devices, open_engine
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.opencl import build, selftest, verdicts
from lamina.engines.opencl import devices as devices_module
from lamina.engines.opencl import driver as driver_module
from lamina.engines.opencl import engine as engine_module
from lamina.engines.opencl.devices import Found, chosen, found_devices
from lamina.engines.opencl.driver import OpenClDriver
from lamina.engines.opencl.engine import _family_for, open_device
from lamina.engines.opencl.selftest import _failed, _faults_of, _faults_of_halves
from lamina.engines.opencl.selftest_kernels import halves_for, program_for
from lamina.engines.opencl.verdicts import (
    BINARIES,
    HALF_FUNCTIONS,
    HALF_TYPE,
    RECORDED,
    SHORT_LOOPS,
    TIMERS,
    Fault,
    Verdict,
    remember,
    verdict_of,
)
from lamina.errors import EngineError
from lamina.graph import evaluate


@pytest.fixture
def device(opencl_name):
    return chosen(opencl_name, found_devices())


@pytest.fixture
def first_use(monkeypatch):
    """No device was tested or opened before. Returns what is kept on disk."""
    disk = {}
    monkeypatch.setattr(verdicts, "_verdicts", {})
    monkeypatch.setattr(verdicts, "find", disk.get)
    monkeypatch.setattr(verdicts, "keep", disk.__setitem__)
    monkeypatch.setattr(engine_module, "_opened", cache(engine_module._opened.__wrapped__))
    return disk


def faults(driver):
    return list(_faults_of(driver))


def refused(driver):
    return [fault.what for fault in faults(driver) if not fault.workaround]


def test_a_sound_device_passes(driver):
    assert refused(driver) == []


def test_no_fault_of_pocl_is_avoided(driver):
    if "PoCL 3.1" not in driver._handle.platform.version:
        pytest.skip("other drivers have faults")
    # A fault of the engine would be avoided too, without a failed test.
    assert set(verdict_of(driver._handle).faults) <= {TIMERS}  # which a busy host may show


def test_each_check_finds_its_own_fault(driver):
    # Square roots and divisions need not be exact on all devices.
    traits = replace(driver.traits, exact_division=True, largest_group=64)
    for kernel in program_for(traits)[1]:
        check_faults(kernel.checks)


def check_faults(checks):
    """A wrong last bit of the last result of a check is that check's fault, and no other's."""
    sound = np.concatenate([check.expected for check in checks])
    assert list(_failed(checks, sound)) == []
    start = 0
    for check in checks:
        start += check.expected.size
        wrong = sound.copy()
        wrong[start - 1] ^= 1
        assert list(_failed(checks, wrong)) == [check.fault]


def test_inexact_divisions_may_differ_by_three_units_in_the_last_place(driver):
    traits = replace(driver.traits, exact_division=False, has_float64=False)
    checks = [check for check in program_for(traits)[1][0].checks if check.tolerance]
    names = [check.fault.what for check in checks]
    assert names == ["divisions are wrong", "square roots are wrong"]
    for check in checks:
        assert list(_failed([check], check.expected + np.uint64(3))) == []
        assert list(_failed([check], check.expected - np.uint64(3))) == []
        assert list(_failed([check], check.expected + np.uint64(4))) == [check.fault]


@pytest.mark.parametrize(
    ("text", "instead", "what"),
    [
        ("(long)ints[i] >= 1L", "(long)ints[i] >= 0L",
         "longs that are converted from ints are compared wrongly with constants"),
        ("(x[i] & 15)", "15", "private arrays are wrong"),
        ("vload16(0, x + 1 + 16 * i)", "vload16(i, x)", "vectors of 16 are wrong at addresses of"),
        ("shared[16 - 1 - own]", "shared[own]", "local memory is wrong after a barrier"),
        (" - 2147483648ul", " - 2147483647ul", "comparisons of 64-bit integers are wrong"),
        ("plain = plain - term", "plain = plain + term",
         "sums in loops of one work item are wrong"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_fails(driver, monkeypatch, text, instead, what):
    right, kernels = selftest.program_for(driver.traits)
    right = right.replace("own[x[i] & 15]", "own[(x[i] & 15)]")
    assert text in right
    wrong = right.replace(text, instead)
    monkeypatch.setattr(selftest, "program_for", lambda _: (wrong, kernels))
    assert any(fault.what.startswith(what) for fault in faults(driver))


def test_commands_in_another_order_and_misplaced_parts_of_blocks_are_found(driver, monkeypatch):
    monkeypatch.setattr(type(driver.queue), "copy", lambda *_: None)
    monkeypatch.setattr(driver, "part", lambda block, _: block)
    assert refused(driver) == [
        "commands of a queue run in another order",
        "a part of a block is at another location of it",
    ]


def last_number(sequence):
    return lambda launches: sequence([(kernel, launches[-1][1]) for kernel, _ in launches])


def seconds(number):
    return lambda timed: lambda launches: lambda: 0 * timed(launches)() + number


def refused_calls(_):
    return refusing("OUT_OF_RESOURCES", "clFlush", lambda _: EngineError("refused"))


@pytest.mark.cases(
    ("method", "wrong", "fault"),
    ("sequence", last_number, RECORDED),
    ("sequence", refused_calls, RECORDED),
    *(("timed", wrong, TIMERS) for wrong in (seconds(1e-9), seconds(1e6), refused_calls)),
)
def test_recorded_launches_and_wrong_times_of_launches_are_avoided(
    driver, monkeypatch, method, wrong, fault
):
    monkeypatch.setattr(driver, method, wrong(getattr(driver, method)))
    assert fault in faults(driver)
    assert refused(driver) == []


def test_the_timers_of_a_sound_driver_are_used(device):
    if "rusticl" in device.handle.platform.name:
        pytest.skip("this driver reports wrong times of launches")
    assert TIMERS not in faults(OpenClDriver(device, Verdict(())))


def test_the_hosts_clock_replaces_wrong_timers(device, monkeypatch):
    driver = OpenClDriver(device, Verdict((TIMERS,)))
    text, kernels = selftest.program_for(driver.traits)
    module = driver.build(text)
    monkeypatch.setattr(cl.Event, "profile", property(_never))
    assert selftest._has_timers(driver, module, kernels)


def test_binaries_that_compute_something_else_are_not_kept(driver, monkeypatch):
    other = program_for(driver.traits)[0].replace("own < step", "false")
    monkeypatch.setattr(driver, "loaded_again", lambda _: driver.build(other))
    assert BINARIES in faults(driver)
    assert refused(driver) == []


def test_binaries_that_do_not_load_are_not_kept(driver, on_call, monkeypatch):
    def refuse_binaries(_, *rest):
        if len(rest) > 1:
            raise failure("INVALID_BINARY", "clCreateProgramWithBinary", cl.LogicError)

    # PoCL has a cache of its own, so its binaries are not tested.
    monkeypatch.setattr(build, "has_src_build_cache", lambda _: None)
    monkeypatch.setattr(build, "keep", lambda *_: None)
    on_call(build.cl, "Program", refuse_binaries)
    assert BINARIES in faults(driver)


def test_a_device_with_short_loops_refuses_programs_that_need_more(
    device, first_use, opencl_name, monkeypatch
):
    remember(device.handle, Verdict((SHORT_LOOPS,)), on_disk=False)
    driver = open_device(opencl_name)
    assert driver.traits.most_iterations == 65_535
    # Otherwise the work items of a group would share the sum.
    monkeypatch.setattr(driver, "traits", replace(driver.traits, largest_group=1))
    total = lm.compile(x := lm.Input(70_000), ops.sum(x, 1), opencl_name)
    assert error_text(EngineError, lambda: total(np.ones((1, 70_000), "float32"))) == (
        f"in {opencl_name}: this device ends the loops of a work item too early\n"
        "  at most  65,535 iterations\n"
        "  needed   83,211 in step0\n"
        "  Use another device or engine. With a smaller batch, loops may be shorter."
    )


def test_a_device_with_unsound_binaries_keeps_none(device, first_use, opencl_name, monkeypatch):
    remember(device.handle, Verdict((BINARIES,)), on_disk=False)
    kept = []
    monkeypatch.setattr(build, "has_src_build_cache", lambda _: None)
    monkeypatch.setattr(build, "find", lambda key: None)
    monkeypatch.setattr(build, "keep", lambda key, _: kept.append(key))
    driver = open_device(opencl_name)
    driver.build("kernel void alone(global float* a) { a[0] = 1; }")
    assert kept == []
    (note,) = driver.record.notes
    assert note.startswith("a program made of its binary fails, or computes something else: Lamina")


def test_the_test_runs_once_and_its_verdict_stays_on_disk(first_use, opencl_name, monkeypatch):
    assert _state(opencl_name) == "not run yet"
    open_engine(opencl_name)
    assert len(first_use) == 1
    assert _state(opencl_name) == "passed"
    # As in another process.
    verdicts._verdicts.clear()
    engine_module._opened.cache_clear()
    monkeypatch.setattr(selftest, "run_selftest", _never)
    assert _state(opencl_name) == "passed"
    assert open_engine(opencl_name).device.self_test == "passed"


def _state(name):
    (record,) = [device for device in devices() if device.engine == name]
    return record.self_test


def _never(*_):
    raise AssertionError("the self-test ran again, or the driver's times are read")


def test_a_device_that_fails_is_refused_with_the_fault_and_the_remedy(
    first_use, opencl_name, monkeypatch
):
    results = selftest._results

    def wrong(driver, module, kernel):
        return results(driver, module, kernel) ^ (kernel.name == "memory")

    monkeypatch.setattr(selftest, "_results", wrong)
    text = error_text(EngineError, lambda: open_engine(opencl_name))
    assert f"in {opencl_name}: this OpenCL device cannot be used" in text
    for part in (
        "the self-test found faults of its driver: private arrays are wrong; vectors of 16",
        "Update the driver, or install another one",
        "Until then take another device, or the cpu engine.",
    ):
        assert part in text
    verdicts._verdicts.clear()
    (listed,) = [device for device in devices() if device.engine == opencl_name]
    assert listed.self_test == "failed"
    assert listed.problem.startswith("the self-test found faults of its driver: private arrays")


def test_a_driver_that_fails_in_the_test_is_tested_again_by_the_next_process(
    first_use, opencl_name, monkeypatch
):
    refuse = refusing("OUT_OF_RESOURCES", "clEnqueueNDRangeKernel", cl.MemoryError)
    monkeypatch.setattr(driver_module.cl, "enqueue_nd_range_kernel", refuse)
    assert (
        "found faults of its driver: the OpenCL driver failed at the self-test arithmetic: "
        "OUT_OF_RESOURCES in clEnqueueNDRangeKernel"
        in error_text(EngineError, lambda: open_engine(opencl_name))
    )
    assert first_use == {}
    verdicts._verdicts.clear()
    assert _state(opencl_name) == "not run yet"


@dataclass(frozen=True)
class Handle:
    """The properties of a device that identify it."""

    name: str = "Radeon"
    version: str = "OpenCL 3.0"
    driver_version: str = "1"
    platform: Any = field(
        default_factory=lambda: SimpleNamespace(name="Mesa", version="2"), compare=False
    )


@pytest.mark.cases(
    "other",
    Handle(name="Arc"),
    Handle(driver_version="2"),
    Handle(version="OpenCL 3.1"),
    Handle(platform=SimpleNamespace(name="ROCm", version="2"), driver_version="1 "),
)
def test_a_verdict_holds_for_one_device_one_driver_and_these_sources(first_use, monkeypatch, other):
    handle = Handle()
    verdict = Verdict((Fault("barriers are wrong"), Fault("NaN is wrong", "it is replaced")))
    remember(handle, verdict, on_disk=True)
    assert verdict_of(handle) == verdict
    assert [fault.what for fault in verdict.refused] == ["barriers are wrong"]
    assert verdict_of(other) is None
    # As in a process with other sources.
    verdicts._verdicts.clear()
    assert verdict_of(handle) == verdict
    verdicts._verdicts.clear()
    monkeypatch.setattr(verdicts.SOURCES, "checksum", "another")
    assert verdict_of(handle) is None


def test_the_first_device_that_passes_is_chosen(first_use, device, monkeypatch):
    first, second = Handle(name="Broken"), Handle(name="Sound")
    rows = [
        Found(replace(device.record, engine=f"opencl:{n}", description=handle.name), handle)
        for n, handle in enumerate((first, second))
    ]
    tested = []

    def run(row):
        tested.append(row.handle.name)
        faults = (Fault("barriers are wrong"),) if row.handle is first else ()
        remember(row.handle, Verdict(faults), on_disk=True)

    monkeypatch.setattr(devices_module, "_found", lambda: rows)
    monkeypatch.setattr("lamina.engines.opencl.selftest.run_selftest", run)
    monkeypatch.setattr(engine_module, "_opened", lambda row, verdict: row)
    chosen = engine_module.open_device("opencl")
    assert (chosen.record.engine, tested) == ("opencl:1", ["Broken", "Sound"])
    engine_module.open_device("opencl")
    assert tested == ["Broken", "Sound"]


def test_the_description_of_a_device_has_its_properties(opencl_name, driver):
    (row,) = [device for device in devices() if device.engine == opencl_name]
    texts = (row.name, row.platform, row.driver, row.version)
    assert all(texts)
    assert row.has_float16 in (True, False)
    assert row.has_float64 is driver.traits.has_float64
    assert row.largest_allocation_bytes == driver.traits.largest_block_bytes
    assert row.local_memory_bytes == driver.traits.local_bytes
    assert row.compute_units == driver.traits.compute_units
    assert row.shares_memory in (True, False)


def with_verdict(driver, *faults, has_type=None):
    """A driver of the same device, after a self-test that found faults."""
    device = chosen(driver.record.engine, found_devices())
    with pytest.MonkeyPatch.context() as patch:
        if has_type is not None:
            patch.setattr(driver_module, "has_float16", lambda _: has_type)
        return driver_module.OpenClDriver(device, Verdict(faults))


@contextmanager
def replaced(text, instead, *, native=True):
    """The self-test of the type of float16, or of its functions, has another text."""
    original = selftest.halves_for

    def halves_for(traits, **how):
        right, kernels = original(traits, **how)
        return right.replace(text, instead) if how["native"] == native else right, kernels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "halves_for", halves_for)
        yield


@pytest.mark.parametrize("native", [False, True], ids=["functions", "type"])
def test_each_check_of_float16_finds_its_fault(driver, native):
    checks = halves_for(driver.traits, native=native)[1][0].checks
    # Conversions, and with the type four operations: of scalars, and of four lanes each.
    assert len(checks) == (6 if native else 2) * 5
    check_faults(checks)


@pytest.mark.cases(
    ("native", "text", "instead"),
    (False, "vload_half(", "1 + vload_half("),
    (False, "vload_half4(", "1 + vload_half4("),
    (False, "vstore_half_rte(", "vstore_half_rtz("),
    (False, "vstore_half4_rte(", "vstore_half4_rtz("),
    (True, ") + as_half(", ") - as_half("),
    (True, ") * as_half4(", ") + as_half4("),
    (True, "convert_half_rte(", "convert_half_rtz("),
    (True, "convert_float4(as_half4(", "1 + convert_float4(as_half4("),
)
def test_wrong_functions_and_types_of_float16_are_found(driver, native, text, instead):
    if native and not driver.traits.has_float16:
        pytest.skip("the device has no cl_khr_fp16")
    assert text in selftest.halves_for(driver.traits, native=native)[0]
    tested = driver if native else with_verdict(driver, has_type=False)
    with replaced(text, instead, native=native):
        assert [*_faults_of_halves(tested)] == [HALF_TYPE if native else HALF_FUNCTIONS]


def test_a_device_that_refuses_the_type_of_float16_does_without_it(driver):
    claims = with_verdict(driver, has_type=True)
    with replaced("as_half", "no_half"):
        assert [*_faults_of_halves(claims)] == [HALF_TYPE]
    after = with_verdict(driver, HALF_TYPE, has_type=True)
    assert not after.traits.has_float16
    assert after.words.half == OPENCL.half


def test_words_follow_the_verdict(driver):
    assert with_verdict(driver, has_type=False).words.half == OPENCL.half
    assert with_verdict(driver, HALF_FUNCTIONS, has_type=False).words.half is None
    assert with_verdict(driver, HALF_FUNCTIONS, has_type=True).words.half == NATIVE_HALF
    assert with_verdict(driver, HALF_FUNCTIONS, HALF_TYPE, has_type=True).words.half is None


def test_the_device_has_float16_only_if_the_self_test_passes(driver):
    device = chosen(driver.record.engine, found_devices())
    claims = replace(device, record=replace(device.record, has_float16=True))
    before = verdict_of(device.handle)
    assert before is not None
    try:
        for faults, expected in (((), True), ((HALF_TYPE,), False)):
            remember(device.handle, Verdict(faults), on_disk=False)
            assert devices_module._with_verdict(claims).record.has_float16 is expected
    finally:
        remember(device.handle, before, on_disk=False)


@pytest.mark.parametrize("kernels", ["gpu", "processor"])
def test_float16_is_converted_as_integers_if_functions_are_wrong(driver, kernels):

    without = with_verdict(driver, HALF_FUNCTIONS, HALF_TYPE)

    engine = GpuEngine("opencl", lambda: without, for_gpus if kernels == "gpu" else _family_for)
    leaves = Leaves()
    x = leaves.add(np.arange(1 << 16, dtype=np.uint16).view(np.float16))
    # Not folded to x itself: rounded to float16 after a multiplication by 1.5.
    graph = leaves.graph([ops.cast(ops.cast(x, float32) * 1.5, float16)])
    program = compiled(graph, engine.target)
    assert "half" not in engine.listing(program, None, "opencl")
    outputs, _ = run_program(program, engine, leaves.feeds)
    expected, _ = evaluate(graph, leaves.feeds)
    converted, reference = outputs["y0"], expected["y0"]
    nan = np.isnan(reference)
    np.testing.assert_array_equal(nan, np.isnan(converted))
    np.testing.assert_array_equal(converted.view("u2")[~nan], reference.view("u2")[~nan])
