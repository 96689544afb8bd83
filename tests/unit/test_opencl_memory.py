"""OpenCL devices with little memory, or a low limit of one allocation; released models."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.engines import room
from lamina.engines.discovery import open_engine
from lamina.errors import EngineError

cl = pytest.importorskip("pyopencl", reason="needs pyopencl: pip install 'lamina[opencl]'")

LOSS, OPTIMIZER = lm.CrossEntropy(), lm.Adam(0.01)
STEP: dict[str, Any] = {"loss": LOSS, "optimizer": OPTIMIZER}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 3, 8, 8)).astype("float32")
Y = np.arange(48) % 4


def network() -> lm.Network:
    return lm.Sequential(
        *(lm.Input(3, 8, 8), lm.Conv2d(8, 3, padding=1), lm.ReLU(), lm.MaxPool2d(2)),
        *(lm.Flatten(), lm.Linear(24), lm.Tanh(), lm.Linear(4)),
    )


@pytest.fixture
def driver(opencl_name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(room, "NOT_ASKED_BYTES", 0)
    engine: Any = open_engine(opencl_name)
    gc.collect()
    return engine.arena().driver


@pytest.fixture
def sizes(driver: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all allocations."""
    found: list[int] = []
    allocate = driver.allocate

    def counted(size: int) -> Any:
        found.append(size)
        return allocate(size)

    monkeypatch.setattr(driver, "allocate", counted)
    return found


@pytest.fixture
def leave(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Limits the memory that is left on the device."""

    def only(count: int) -> None:
        most = driver.allocated.bytes + count
        monkeypatch.setattr(driver, "available_bytes", lambda: most - driver.allocated.bytes)

    return only


@pytest.fixture
def limit(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Limits one allocation, for models that are made afterwards."""

    def only(count: int) -> None:
        monkeypatch.setattr(driver, "traits", replace(driver.traits, largest_block_bytes=count))

    return only


# Little memory ------------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_is_refused_with_the_largest_that_does(
    opencl_name: str, sizes: list[int], leave: Callable[[int], None]
) -> None:
    model = lm.Model(network(), engine=opencl_name)
    leave(1 << 20)
    sizes.clear()
    with pytest.raises(EngineError) as caught:
        model.training(**STEP, batch_size=4096)
    assert sizes == []
    text = str(caught.value)
    assert f"in {opencl_name}: a batch of 4,096 examples needs more memory than there is" in text
    assert "available   1 MiB" in text
    assert re.search(r"needed      \d+\.\d+ MiB", text)
    found = re.fullmatch(r"Take a batch of at most (\d+) examples\.", caught.value.advice)
    assert found is not None
    largest = int(found[1])
    assert 1 < largest < 4096
    with model.training(**STEP, batch_size=largest) as training:
        training.step(np.resize(X, (largest, 3, 8, 8)), np.resize(Y, largest))
    assert 1 << 19 < sum(sizes) <= 1 << 20
    with pytest.raises(EngineError, match="needs more memory than there is"):
        model.training(**STEP, batch_size=largest + 1)


def test_fit_and_predict_are_refused_before_anything_is_allocated(
    opencl_name: str, sizes: list[int], leave: Callable[[int], None]
) -> None:
    model = lm.Model(network(), engine=opencl_name)
    leave(10_000)
    sizes.clear()
    with pytest.raises(EngineError, match="a batch of 16 examples needs more memory"):
        model.fit((X, Y), **STEP, batch_size=16, progress=False)
    with pytest.raises(EngineError, match="a batch of 48 examples needs more memory") as caught:
        model.predict(X)
    # Only the seed and the counter of random numbers.
    assert max(sizes, default=0) <= 8
    assert re.fullmatch(r"Take a batch of at most \d+ examples?\.", caught.value.advice)


def test_the_largest_batch_of_a_plan_is_the_largest_for_a_model(
    opencl_name: str, driver: Any, leave: Callable[[int], None]
) -> None:
    leave(3 << 20)
    largest = network().max_batch_size(loss=LOSS, optimizer=OPTIMIZER, engine=opencl_name)
    bill = network().plan(largest, LOSS, OPTIMIZER, engine=opencl_name)
    assert bill.peak_bytes <= 3 << 20
    model = lm.Model(network(), engine=opencl_name)
    before = driver.allocated.bytes
    with model.training(**STEP, batch_size=largest) as training:
        # Buffers are aligned, and the constants are in the bill.
        taken = driver.allocated.bytes - before + bill.parameter_bytes
        assert abs(taken - bill.peak_bytes) <= 1024
        training.step(np.resize(X, (largest, 3, 8, 8)), np.resize(Y, largest))


# A low limit of one allocation --------------------------------------------------------------------

LIMIT = 24 << 10


def test_a_training_within_a_low_limit_of_one_allocation_is_the_same(
    opencl_name: str, sizes: list[int], limit: Callable[[int], None]
) -> None:
    def trained() -> tuple[dict[str, Any], int]:
        model = lm.Model(network(), engine=opencl_name, seed=3)
        with model.training(**STEP, batch_size=8, seed=1) as training:
            for start in range(0, 48, 8):
                training.step(X[start : start + 8], Y[start : start + 8])
            blocks = len(training.bill.program.plan.blocks)
        return model.parameters(), blocks

    expected, blocks = trained()
    assert blocks == 1
    assert max(sizes) > LIMIT
    limit(LIMIT)
    sizes.clear()
    found, blocks = trained()
    assert blocks > 1
    assert max(sizes) <= LIMIT
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_data_set_above_the_limit_is_refused_and_a_smaller_one_is_not(
    opencl_name: str, sizes: list[int], limit: Callable[[int], None]
) -> None:
    limit(LIMIT)
    model = lm.Model(network(), engine=opencl_name)
    how = {**STEP, "batch_size": 8, "progress": False}
    with pytest.raises(EngineError) as caught:
        model.fit((X, Y), **how)
    assert "this data set needs more memory in one allocation than the device allows" in str(
        caught.value
    )
    assert "at most  24 KiB" in str(caught.value)
    assert "needed   36 KiB for input input0 f32[48, 3, 8, 8]" in str(caught.value)
    model.fit((X[:32], Y[:32]), **how, epochs=1)
    assert max(sizes) <= LIMIT


def test_a_batch_above_the_limit_is_refused_with_the_largest_that_is_not(
    opencl_name: str, sizes: list[int], limit: Callable[[int], None]
) -> None:
    limit(LIMIT)
    model = lm.Model(network(), engine=opencl_name)
    sizes.clear()
    with pytest.raises(EngineError) as caught:
        model.training(**STEP, batch_size=48)
    assert sizes == []
    assert "is larger than the largest block of memory on this device" in str(caught.value)
    found = re.fullmatch(r"Take a batch of at most (\d+) examples\.", caught.value.advice)
    assert found is not None
    model.training(**STEP, batch_size=int(found[1])).release()
    assert max(sizes) <= LIMIT
    largest = network().max_batch_size("1 GiB", LOSS, OPTIMIZER, engine=opencl_name)
    assert largest == int(found[1])


# Released models ----------------------------------------------------------------------------------


def live_objects() -> int:
    """The number of buffers, kernels and programs of OpenCL in this process."""
    gc.collect()
    kinds = (cl.Buffer, cl.Kernel, cl.Program)
    return sum(isinstance(one, kinds) for one in gc.get_objects())


def resident_bytes() -> int:
    """The memory of this process; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


@pytest.mark.slow
def test_a_thousand_models_leave_nothing(
    opencl_name: str, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A build takes longer than all the rest of a model.
    monkeypatch.setattr(driver, "build", cache(driver.build))
    net = lm.Sequential(lm.Input(2), lm.Linear(1))
    x = np.ones((4, 2), "float32")

    def use(count: int) -> None:
        for seed in range(count):
            lm.Model(net, engine=opencl_name, seed=seed).predict(x)

    use(50)
    objects, allocated, resident = live_objects(), driver.allocated.bytes, resident_bytes()
    use(1000)
    assert live_objects() == objects
    assert driver.allocated.bytes == allocated
    # 1,000 kernels that were not released would take about 10 MiB.
    assert resident_bytes() - resident < 8 << 20
    model = lm.Model(net, engine=opencl_name)
    model.predict(x)
    assert live_objects() > objects
    assert driver.allocated.bytes > allocated


def test_released_trainings_leave_no_programs(opencl_name: str, driver: Any) -> None:
    def use(count: int) -> None:
        for seed in range(count):
            model = lm.Model(network(), engine=opencl_name, seed=seed)
            with model.training(**STEP, batch_size=8) as training:
                training.step(X[:8], Y[:8])

    use(1)
    objects, allocated = live_objects(), driver.allocated.bytes
    use(3)
    assert live_objects() == objects
    assert driver.allocated.bytes == allocated
