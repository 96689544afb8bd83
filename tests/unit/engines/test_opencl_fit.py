"""Fits on an OpenCL device: what is read from it, failures of the driver, and other engines."""

import gc

import numpy as np
import pytest
from error_texts import error_text
from opencl_cases import failure
from training_cases import TEST, fit, network, same

import lamina as lm
from lamina.base.shapes import bfloat16, float16, float32, float64
from lamina.data import Dataset
from lamina.engines.discovery import open_engine
from lamina.engines.opencl import driver as driver_module
from lamina.engines.opencl import launch_plan
from lamina.errors import EngineError, NonFiniteError
from lamina.runtime import memories as snapshots


def test_a_fit_reads_losses_and_metrics_only(opencl_name, driver, on_call):
    read = []
    after = []
    on_call(driver.queue, "read", lambda array, _: read.append(array.nbytes))
    model = lm.Model(network(), engine=opencl_name)
    fit(model, metrics=[lm.Accuracy()], epochs=4, callbacks=[lambda _: after.append(sum(read))])
    # Seven training steps: a loss and the sums of a metric of each, and one flag.
    each = 4 + 2 * 4
    assert {after[n + 1] - after[n] for n in range(3)} == {7 * each + 4}


@pytest.mark.parametrize("dtype", [bfloat16, float16, float32, float64], ids=str)
def test_a_value_that_is_not_finite_is_found_anywhere(engine, driver, dtype):
    if dtype == float64 and not driver.traits.has_float64:
        pytest.skip("this device cannot compute with float64")
    bits, sign = f"u{dtype.itemsize}", 1 << (8 * dtype.itemsize - 1)
    infinity = int(np.asarray(np.inf, dtype.numpy).view(bits))
    largest = np.full((70, 9), infinity - 1, bits)
    largest[0, :3] = infinity - 1 | sign, 1, sign
    # A finite bfloat16 has the bits of float16's infinity.
    arrays = [np.full(3, 0x7C00, "u2").view(bfloat16.numpy), np.array(3.0, dtype.numpy)]
    arrays += [np.zeros((0, 2), dtype.numpy), largest.view(dtype.numpy)]
    memories = [engine.allocate(array.shape, array.dtype) for array in arrays]
    for memory, array in zip(memories, arrays, strict=True):
        memory.write(array)
    are_finite = engine.finite_check(memories)
    assert are_finite()
    for position in (0, 64, 629):
        for wrong in (infinity, infinity + 1, infinity | sign, 2 * sign - 1):
            spoiled = largest.copy()
            spoiled.reshape(-1)[position] = wrong
            memories[3].write(spoiled.view(dtype.numpy))
            assert not are_finite()
    memories[3].write(arrays[3])
    memories[1].write(np.array(np.nan, dtype.numpy))
    assert not are_finite()
    memories[1].write(arrays[1])
    assert are_finite()
    assert engine.finite_check([])()


@pytest.fixture(params=["on the device", "on the host"])
def kept(request, monkeypatch):
    if request.param == "on the host":
        monkeypatch.setattr(snapshots, "_FRACTION", 0.0)
    return request.param


@pytest.mark.usefixtures("kept")
def test_an_overflow_puts_the_model_back_to_the_last_good_epoch(opencl_name):
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)), engine=opencl_name)
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    after = []
    with pytest.raises(NonFiniteError):
        fit(
            model,
            Dataset(x, x[:, :3]),
            loss=lm.MSE(),
            optimizer=lm.SGD(30.0),
            epochs=100,
            callbacks=[lambda _: after.append(model.parameters())],
        )
    assert after
    assert same(model.parameters(), after[-1])


# Methods of the queue.
FAULTS = {
    "a launch": ("run", "clEnqueueCommandBufferKHR", "running a program"),
    "a gather": ("launch", "clEnqueueNDRangeKernel", "running a program"),
    "a record": ("copy", "clEnqueueCopyBuffer", "running a program"),
    "a wait": ("finish", "clFinish", "running a program"),
    "a read": ("read", "clEnqueueReadBuffer", "reading memory"),
}


@pytest.mark.usefixtures("kept")
@pytest.mark.cases("method, routine, doing", FAULTS)
def test_a_driver_that_fails_in_a_fit_leaves_the_model_of_the_last_epoch(
    opencl_name, driver, on_call, method, routine, doing
):
    model = lm.Model(network(), engine=opencl_name, seed=3)
    after = []
    faults = []

    def note(_):
        after.append(model.parameters())
        if len(after) == 2:
            faults.append(True)

    def fail(*_):
        if faults and faults[-1]:
            faults.append(False)
            raise failure("OUT_OF_RESOURCES", routine)

    on_call(driver.queue, method, fail)
    gc.collect()
    held = driver.allocated.bytes
    with pytest.raises(EngineError) as caught:
        fit(model, epochs=5, callbacks=[note], progress=False)
    text = str(caught.value)
    # The snapshot of the epoch is made with the same functions, and fails first.
    assert f"the OpenCL driver failed at {doing}" in text or "failed at copying memory" in text
    assert "model            restored to its state before epoch 3" in text
    assert f"OUT_OF_RESOURCES in {routine}" in text
    assert same(model.parameters(), after[-1])
    del caught
    gc.collect()
    assert driver.allocated.bytes == held
    # The same model continues as if the fit had ended after two epochs.
    other = lm.Model(network(), engine=opencl_name, seed=3)
    fit(other, epochs=2, progress=False)
    assert same(other.parameters(), model.parameters())
    assert fit(model, epochs=1).values["loss"][0] == fit(other, epochs=1).values["loss"][0]


def test_a_training_step_that_was_enqueued_in_part_is_undone(
    opencl_name, driver, on_call, monkeypatch
):
    left = []

    def limit(*_):
        if left:
            left[0] -= 1
            if left[0] == 0:
                raise failure("OUT_OF_RESOURCES", "clEnqueueNDRangeKernel")

    def begin(_):
        after.append(model.parameters())
        if len(after) == 2:
            # In the second training step of the next epoch, after half of its launches. A
            # kernel before each step gathers its examples.
            left[:] = [1 + launches + 1 + launches // 2]

    # Each kernel is enqueued by a call, and each phase is a launch.
    monkeypatch.setattr(launch_plan, "_LAUNCH_CYCLES", -1.0)
    monkeypatch.setenv("LAMINA_CACHE", "0")
    monkeypatch.setattr(driver, "_command_buffers", None)
    on_call(driver_module.cl, "enqueue_nd_range_kernel", limit)
    model = lm.Model(network(), engine=opencl_name, seed=3)
    after = []
    plan = network().plan(8, lm.CrossEntropy(), lm.Adam(0.01), engine=opencl_name)
    launches = open_engine(opencl_name).launch_count(plan.program)
    assert launches > 3
    with pytest.raises(EngineError, match="restored to its state before epoch 3"):
        fit(model, epochs=5, callbacks=[begin], progress=False)
    assert left == [0]
    assert same(model.parameters(), after[-1])


def test_a_model_that_cannot_be_restored_is_reported(opencl_name, driver, on_call):
    broken = []
    held = []

    def fail(*_):
        if broken:
            raise failure("OUT_OF_RESOURCES", "clEnqueueCopyBuffer")

    def refuse_copies_back(_, targets):
        if broken and targets is not held[0]:
            raise EngineError("the OpenCL driver failed at copying memory")
        held[:] = [targets]

    on_call(driver.queue, "run", fail)
    on_call(snapshots, "_copy", refuse_copies_back)
    model = lm.Model(network(), engine=opencl_name)
    begin = [lambda _: broken.append(True)]
    text = error_text(EngineError, lambda: fit(model, epochs=3, callbacks=begin, progress=False))
    assert (
        "model            not restored (the OpenCL driver failed at copying memory): load it "
        in text
    )


@pytest.mark.cases(
    ("method", "status", "routine"),
    ("allocate", "MEM_OBJECT_ALLOCATION_FAILURE", "clCreateBuffer"),
    ("build", "OUT_OF_HOST_MEMORY", "clBuildProgram"),
    ("kernel", "OUT_OF_HOST_MEMORY", "clCreateKernel"),
    ("sequence", "OUT_OF_HOST_MEMORY", "clFinalizeCommandBufferKHR"),
)
def test_a_driver_that_refuses_anything_leaves_no_memory_allocated(
    opencl_name, driver, on_call, method, status, routine
):
    model = lm.Model(network(), engine=opencl_name, seed=3)
    calls = [0]

    def count(*_, **__):
        calls[0] -= 1
        if calls[0] == 0:
            with driver.errors("testing"):
                raise failure(status, routine)

    on_call(driver, method, count)
    gc.collect()
    held = driver.allocated.bytes

    trained = []

    def run():
        note = [lambda _: trained.append(-calls[0])]
        return fit(model, validation=TEST, epochs=1, progress=False, callbacks=note)

    run()
    # Later calls make the arena smaller. Their failures come at the next run.
    total = trained[0]
    assert total > 1
    for number in sorted({1, total // 2, total}):
        calls[0] = number
        with pytest.raises(EngineError, match=f"{status} in {routine}"):
            run()
        gc.collect()
        assert driver.allocated.bytes == held
    calls[0] = 0
    assert np.isfinite(run().values["loss"][0])


def moved(name, opencl_name):
    return opencl_name if name == "opencl" else name


@pytest.mark.cases("order", ("cpu", "opencl"), ("opencl", "cpu"))
def test_a_checkpoint_continues_on_another_engine(opencl_name, order, tmp_path):
    first, second = (moved(name, opencl_name) for name in order)
    path = tmp_path / "checkpoint"
    how = {"checkpoint": path, "seed": 7, "optimizer": lm.EMA(lm.Adam(0.01)), "progress": False}
    fit(lm.Model(network(), engine=first, seed=3), epochs=2, **how)
    model = lm.Model(network(), engine=second, seed=9)
    continued = fit(model, epochs=4, resume=True, **how)
    # The reference stays on the first engine. Dropout and shuffles draw the same random bits.
    other = lm.Model(network(), engine=first, seed=3)
    reference = fit(other, epochs=4, **(how | {"checkpoint": None}))
    losses, expected = continued.values["loss"], reference.values["loss"]
    assert losses[:2] == expected[:2]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for name, value in other.parameters().items():
        np.testing.assert_allclose(model.parameters()[name], value, rtol=1e-3, atol=1e-5)
