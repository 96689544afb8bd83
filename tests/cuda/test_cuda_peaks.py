"""The peaks of Nvidia's GPUs: as many multiply-adds are counted as kernels do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cuda_machine.requirements import skip_without_nvrtc
from lamina.base.shapes import DType, bfloat16, float16, float32
from lamina.engines.gpu import peaks

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings: pip install cuda-bindings")

from cublaslt_cases import DoubledDevice

from cuda_machine.machine import Machine
from cuda_machine.program import Counts

skip_without_nvrtc()

# The multiply-adds of an instruction, by its name.
PRODUCTS = {"m16n8k16": 16 * 8 * 16, "m16n8k8": 16 * 8 * 8}


@pytest.mark.parametrize(
    ("capability", "dtype", "tf32", "shape", "operands"),
    [
        ((8, 0), bfloat16, False, "m16n8k16", "bf16"),
        ((9, 0), float16, False, "m16n8k16", "f16"),
        ((7, 5), float16, False, "m16n8k8", "f16"),
        ((8, 0), float32, True, "m16n8k8", "tf32"),
        ((8, 0), float32, False, "", ""),
        # The oldest devices have no instructions on bfloat16: float32 computes.
        ((7, 5), bfloat16, False, "", ""),
    ],
)
def test_the_operations_of_a_peak_are_those_of_its_kernel(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: DType,
    tf32: bool,
    shape: str,
    operands: str,
) -> None:
    done: list[Counts] = []
    launch = Machine.launch

    def counted(*given: Any, **options: Any) -> Counts:
        done.append(launch(*given, **options))
        return done[-1]

    def one_run(driver: Any, kernel: Any) -> float:
        driver.queue.launch(kernel)
        driver.queue.finish()
        return 1.0

    monkeypatch.setattr(Machine, "launch", counted)
    monkeypatch.setattr(peaks, "_runs_a_second", one_run)
    monkeypatch.setattr(peaks, "_ITEMS_PER_COMPUTE_UNIT", 5)
    monkeypatch.setattr(peaks, "_CALLS", 3)
    monkeypatch.setattr(peaks, "_MOST_BYTES", 1 << 10)
    device = DoubledDevice(capability)
    found = peaks.measured_peaks(device.driver, dtype, tf32=tf32)
    assert device.double.recover() == []
    executed: Counter[str] = done[0].matrix_instructions
    if not shape:
        assert executed == {}
        items = 5 * device.driver.traits.compute_units
        # Vectors of four lanes, twelve sums, three iterations.
        assert found.operations == 2 * items * 4 * 12 * 3
        return
    ((name, count),) = executed.items()
    assert shape in name
    assert name.count(f".{operands}.") >= 1
    assert found.operations == 2 * count * PRODUCTS[shape]
