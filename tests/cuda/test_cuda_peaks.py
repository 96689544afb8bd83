"""The peaks of Nvidia's GPUs: as many multiply-adds are counted as kernels do."""

from collections import Counter

import pytest
from doubles import DoubledDevice

from cuda_machine.matrices import multiplied
from cuda_machine.writer import HELPERS
from lamina.base.shapes import bfloat16, float16, float32
from lamina.engines.gpu import peaks


@pytest.mark.cases(
    ("capability", "dtype", "tf32", "k", "operands"),
    ((8, 0), bfloat16, False, 16, "bf16"),
    ((9, 0), float16, False, 16, "f16"),
    ((7, 5), float16, False, 8, "f16"),
    ((8, 0), float32, True, 8, "tf32"),
    ((8, 0), float32, False, 0, ""),
    # The oldest devices have no instructions on bfloat16: float32 computes.
    ((7, 5), bfloat16, False, 0, ""),
)
def test_the_operations_of_a_peak_are_those_of_its_kernel(
    monkeypatch, capability, dtype, tf32, k, operands
):
    # The matrices that warps have multiplied, by their extent along K and their elements.
    executed = Counter()

    def counted(k, kind, left, *others):
        executed[k, kind] += len(left[0]) // 32
        return multiplied(k, kind, left, *others)

    # Each begins with the results of the one before.
    runs = 3

    def one_run(driver, kernel):
        for _ in range(runs):
            driver.queue.launch(kernel)
        driver.queue.finish()
        return 1.0

    monkeypatch.setitem(HELPERS, "multiplied", counted)
    monkeypatch.setattr(peaks, "_runs_a_second", one_run)
    monkeypatch.setattr(peaks, "_ITEMS_PER_COMPUTE_UNIT", 5)
    monkeypatch.setattr(peaks, "_CALLS", 3)
    monkeypatch.setattr(peaks, "_MOST_BYTES", 1 << 10)
    device = DoubledDevice(capability)
    peak = peaks.measured_peaks(device.driver, dtype, tf32=tf32)
    assert device.double.recover() == []
    if not k:
        assert executed == {}
        items = 5 * device.driver.traits.compute_units
        # Vectors of four lanes, twelve sums, three iterations.
        assert peak.operations == 2 * items * 4 * 12 * 3
        return
    # 16 x K by K x 8 is an instruction.
    ((instruction, count),) = executed.items()
    assert instruction == (k, operands)
    assert peak.operations == 2 * count // runs * 16 * 8 * k
