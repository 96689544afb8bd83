"""Floats of 16 bits on OpenCL devices, except for what the conformance tests check."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Leaves, run_program
from opencl_cases import for_gpus
from program_cases import compiled
from test_opencl_selftest import check_faults

from lamina import ops
from lamina.base.shapes import DType, bfloat16, float16, float32
from lamina.codegen.words import NATIVE_HALF, OPENCL
from lamina.engines.engine import Engine
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.opencl import devices, selftest
from lamina.engines.opencl import driver as driver_module
from lamina.engines.opencl.devices import chosen, found_devices
from lamina.engines.opencl.engine import _family_for
from lamina.engines.opencl.selftest import _faults_of_halves
from lamina.engines.opencl.selftest_kernels import halves_for
from lamina.engines.opencl.verdicts import HALF_FUNCTIONS, HALF_TYPE, Verdict, remember, verdict_of
from lamina.graph import evaluate


def with_verdict(driver: Any, *faults: Any, has_type: bool | None = None) -> Any:
    """A driver of the same device, after a self-test that found faults."""
    found = chosen(driver.record.engine, found_devices())
    with pytest.MonkeyPatch.context() as patch:
        if has_type is not None:
            patch.setattr(driver_module, "has_float16", lambda _: has_type)
        return driver_module.OpenClDriver(found, Verdict(faults))


def faults_of_halves(driver: Any) -> list[Any]:
    return list(_faults_of_halves(driver))


@contextmanager
def replaced(text: str, instead: str, *, native: bool = True) -> Generator[None]:
    """The self-test of the type of float16, or of its functions, has another text."""
    original = selftest.halves_for

    def halves_for(traits: Any, **how: bool) -> Any:
        right, kernels = original(traits, **how)
        return right.replace(text, instead) if how["native"] == native else right, kernels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "halves_for", halves_for)
        yield


@pytest.mark.parametrize("native", [False, True], ids=["functions", "type"])
def test_each_check_of_float16_finds_its_fault(driver: Any, native: bool) -> None:
    checks = halves_for(driver.traits, native=native)[1][0].checks
    # Conversions, and with the type four operations: of scalars, and of four lanes each.
    assert len(checks) == (6 if native else 2) * 5
    check_faults(checks)


@pytest.mark.parametrize(
    ("native", "text", "instead"),
    [
        (False, "vload_half(", "1 + vload_half("),
        (False, "vload_half4(", "1 + vload_half4("),
        (False, "vstore_half_rte(", "vstore_half_rtz("),
        (False, "vstore_half4_rte(", "vstore_half4_rtz("),
        (True, ") + as_half(", ") - as_half("),
        (True, ") * as_half4(", ") + as_half4("),
        (True, "convert_half_rte(", "convert_half_rtz("),
        (True, "convert_float4(as_half4(", "1 + convert_float4(as_half4("),
    ],
)
def test_wrong_functions_and_types_of_float16_are_found(
    driver: Any, native: bool, text: str, instead: str
) -> None:
    if native and not driver.traits.has_float16:
        pytest.skip("the device has no cl_khr_fp16")
    assert text in selftest.halves_for(driver.traits, native=native)[0]
    tested = driver if native else with_verdict(driver, has_type=False)
    with replaced(text, instead, native=native):
        assert faults_of_halves(tested) == [HALF_TYPE if native else HALF_FUNCTIONS]


def test_a_device_that_refuses_the_type_of_float16_does_without_it(driver: Any) -> None:
    claims = with_verdict(driver, has_type=True)
    with replaced("as_half", "no_half"):
        assert faults_of_halves(claims) == [HALF_TYPE]
    after = with_verdict(driver, HALF_TYPE, has_type=True)
    assert not after.traits.has_float16
    assert after.words.half == OPENCL.half


def test_words_follow_the_verdict(driver: Any) -> None:
    assert with_verdict(driver, has_type=False).words.half == OPENCL.half
    assert with_verdict(driver, HALF_FUNCTIONS, has_type=False).words.half is None
    assert with_verdict(driver, HALF_FUNCTIONS, has_type=True).words.half == NATIVE_HALF
    assert with_verdict(driver, HALF_FUNCTIONS, HALF_TYPE, has_type=True).words.half is None


def test_the_device_has_float16_only_if_the_self_test_passes(driver: Any) -> None:
    found = devices.chosen(driver.record.engine, devices.found_devices())
    claims = replace(found, record=replace(found.record, has_float16=True))
    before = verdict_of(found.handle)
    assert before is not None
    try:
        for faults, expected in (((), True), ((HALF_TYPE,), False)):
            remember(found.handle, Verdict(faults), on_disk=False)
            assert devices._with_verdict(claims).record.has_float16 is expected
    finally:
        remember(found.handle, before, on_disk=False)


@pytest.mark.parametrize("kernels", ["gpu", "processor"])
def test_float16_is_converted_as_integers_if_functions_are_wrong(driver: Any, kernels: str) -> None:

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
    found, wanted = outputs["y0"], expected["y0"]
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(nan, np.isnan(found))
    np.testing.assert_array_equal(found.view("u2")[~nan], wanted.view("u2")[~nan])


def check(engine: Engine, *arrays: Any) -> bool:
    memories = [engine.allocate(array.shape, array.dtype) for array in arrays]
    for memory, array in zip(memories, arrays, strict=True):
        memory.write(array)
    return engine.finite_check(memories)()


@pytest.mark.parametrize("dtype", [bfloat16, float16, float32], ids=str)
def test_the_largest_numbers_are_finite_and_their_successors_are_not(
    dtype: DType, engine: Engine
) -> None:
    bits = f"u{dtype.itemsize}"
    infinity = int(np.asarray(np.inf, dtype.numpy).view(bits))
    finite = np.array([infinity - 1, 0, 1], bits).view(dtype.numpy)
    assert check(engine, finite, -finite)
    for wrong in (infinity, infinity + 1, 2 ** (8 * dtype.itemsize) - 1):
        array = np.array([infinity - 1, wrong], bits).view(dtype.numpy)
        assert not check(engine, finite, array)


def test_arrays_of_several_float_types_are_checked_together(engine: Engine) -> None:
    dtypes = (bfloat16, float16, float32)
    # The bits of float16's infinity are those of a finite bfloat16.
    ones = [
        np.full(3, 0x7C00, "u2").view(bfloat16.numpy),
        *(np.ones(3, one.numpy) for one in dtypes),
    ]
    assert check(engine, *ones)
    for number in range(len(ones)):
        wrong = [one.copy() for one in ones]
        wrong[number][2] = np.inf
        assert not check(engine, *wrong)
