"""OpenCL devices with little memory, or a low limit of one allocation; released models."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from error_texts import error_text, refused
from opencl_cases import cl, for_gpus
from training_cases import same

import lamina as lm
from lamina.engines import room
from lamina.engines.discovery import open_engine
from lamina.engines.gpu import engine as engine_module
from lamina.engines.gpu.launches import Workspace
from lamina.engines.opencl import engine as opencl_module
from lamina.errors import EngineError
from lamina.program.encoding import checksum

LOSS, OPTIMIZER = lm.CrossEntropy(), lm.Adam(0.01)
STEP = {"loss": LOSS, "optimizer": OPTIMIZER}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 3, 8, 8)).astype("float32")
Y = np.arange(48) % 4


def network():
    return lm.Sequential(
        *(lm.Input(3, 8, 8), lm.Conv2d(8, 3, padding=1), lm.ReLU(), lm.MaxPool2d(2)),
        *(lm.Flatten(), lm.Linear(24), lm.Tanh(), lm.Linear(4)),
    )


@pytest.fixture
def driver(engine, monkeypatch):
    monkeypatch.setattr(room, "NOT_ASKED_BYTES", 0)
    gc.collect()
    return engine.arena().driver


@pytest.fixture
def sizes(driver, on_call):
    found = []
    on_call(driver, "allocate", found.append)
    return found


@pytest.fixture
def leave(driver, monkeypatch):
    """Limits the memory that is left on the device."""

    def only(count):
        most = driver.allocated.bytes + count
        monkeypatch.setattr(driver, "available_bytes", lambda: most - driver.allocated.bytes)

    return only


@pytest.fixture
def limit(driver, monkeypatch):
    """Limits one allocation, for models that are made afterwards."""

    def only(count):
        monkeypatch.setattr(driver, "traits", replace(driver.traits, largest_block_bytes=count))

    return only


def test_the_largest_batch_of_a_plan_is_the_largest_for_a_model(opencl_name, driver, leave):
    leave(3 << 20)
    largest = network().max_batch_size(loss=LOSS, optimizer=OPTIMIZER, engine=opencl_name)
    bills = [network().plan(largest + more, **STEP, engine=opencl_name) for more in range(2)]
    needed, above = (
        bill.peak_bytes + (open_engine(opencl_name).workspace_bytes(bill.program) or 0)
        for bill in bills
    )
    assert needed <= 3 << 20 < above
    model = lm.Model(network(), engine=opencl_name)
    before = driver.allocated.bytes
    with model.training(**STEP, batch_size=largest) as training:
        # Buffers are aligned, and the constants are in the bill.
        taken = driver.allocated.bytes - before + bills[0].parameter_bytes
        assert abs(taken - needed) <= 1024
        training.step(np.resize(X, (largest, 3, 8, 8)), np.resize(Y, largest))


def test_kernels_are_written_once_and_for_few_sizes_of_a_search(opencl_name, leave, on_call):
    written = []
    on_call(engine_module, "compile_program", lambda *args, **_: written.append(checksum(args[0])))
    leave(3 << 20)
    model = lm.Model(network(), engine=opencl_name)
    with model.training(**STEP, batch_size=8) as training:
        training.step(X[:8], Y[:8])
    assert len(written) == 1
    written.clear()
    network().max_batch_size(**STEP, engine=opencl_name)
    assert len(written) == len({*written}) <= 8
    written.clear()
    with pytest.raises(EngineError, match="needs more memory than there is"):
        model.training(**STEP, batch_size=4096)
    assert len(written) == len({*written}) <= 8


LIMIT = 24 << 10


@pytest.mark.parametrize("kernels", ["of the device", "for GPUs"])
def test_a_training_within_a_low_limit_of_one_allocation_is_the_same(
    opencl_name, kernels, sizes, limit, monkeypatch
):
    if kernels == "for GPUs":
        monkeypatch.setattr(opencl_module, "_family_for", for_gpus)

    def trained():
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
    parameters, blocks = trained()
    assert blocks > 1
    assert max(sizes) <= LIMIT
    assert same(parameters, expected)


def test_a_data_set_above_the_limit_is_streamed_in_chunks_within_the_limit(
    opencl_name, sizes, limit, on_call
):
    chunks = []
    on_call(engine_module.GpuEngine, "staging", lambda _, sizes: chunks.append(sizes))

    def fitted():
        model = lm.Model(network(), engine=opencl_name, seed=3)
        history = model.fit((X, Y), **STEP, batch_size=8, epochs=2, seed=1, progress=False)
        return model.parameters(), history.values

    expected, history = fitted()
    limit(LIMIT)
    assert X.nbytes > LIMIT
    sizes.clear()
    parameters, again = fitted()
    assert max(sizes) <= LIMIT
    # Four batches of eight examples.
    assert [max(chunk.values()) for chunk in chunks] == [4 * 8 * X[0].nbytes] * 2
    assert again == history
    assert same(parameters, expected)


def test_a_streamed_batch_above_the_limit_is_refused_with_the_largest_that_is_not(
    opencl_name, sizes, limit
):
    limit(4096)
    model = lm.Model(lm.Sequential(lm.Input(64), lm.Linear(2)), engine=opencl_name)
    data = lm.data.Dataset(np.zeros((100, 64), "float32"), np.zeros(100, "int64"))
    sizes.clear()
    text = error_text(EngineError, lambda: model.evaluate(data, loss=LOSS, batch_size=20))
    # Only the seed and the counter of random numbers.
    assert max(sizes, default=0) <= 8
    assert text == (
        f"in {opencl_name}: a batch of 20 examples needs more memory in one allocation than the "
        "device allows\n"
        "  at most  4 KiB\n"
        "  needed   5 KiB for input0\n"
        "  Take a batch of at most 16 examples."
    )
    model.evaluate(data, loss=LOSS, batch_size=16)
    assert max(sizes) <= 4096
    wide = lm.Model(lm.Sequential(lm.Input(1025), lm.ReLU()), engine=opencl_name)
    data = lm.data.Dataset(np.zeros((10, 1025), "float32"), np.zeros((10, 1025), "float32"))
    error = refused(EngineError, lambda: wide.evaluate(data, loss=lm.MSE(), batch_size=1))
    assert str(error).startswith(f"in {opencl_name}: a batch of 1 example needs more memory")
    assert error.advice == "Not even one example fits: take smaller examples."


def test_workspaces_above_the_limit_are_refused_by_name(opencl_name, sizes, limit, monkeypatch):
    compiled = engine_module.compile_program

    def with_workspace(program, *how, **options):
        """The kernels, and a workspace of 6,000 bytes for each example."""
        launches = compiled(program, *how, **options)
        batch = program.buffers["input0"].shape[0]
        added = Workspace(0, 6000 * batch, len(launches.workspace_blocks))
        return replace(launches, workspaces={**launches.workspaces, "products": added})

    monkeypatch.setattr(engine_module, "compile_program", with_workspace)
    limit(LIMIT)
    model = lm.Model(network(), engine=opencl_name)
    sizes.clear()
    text = error_text(EngineError, lambda: model.training(**STEP, batch_size=8))
    assert sizes == []
    assert text == (
        f"in {opencl_name}: a batch of 8 examples needs more memory in one allocation than the "
        "device allows\n"
        "  at most  24 KiB\n"
        "  needed   46.88 KiB for workspace 'products'\n"
        "  Take a batch of at most 4 examples, or divide the batch: micro_batch=4."
    )
    model.training(**STEP, batch_size=4).release()
    assert max(sizes) <= LIMIT
    assert network().max_batch_size("1 GiB", **STEP, engine=opencl_name) == 4
    limit(4 << 10)
    assert error_text(
        EngineError, lambda: network().max_batch_size("1 GiB", engine=opencl_name)
    ) == (
        "in max_batch_size: not even a batch of one example fits\n"
        "  at most  4 KiB in one allocation\n"
        "  needed   12 KiB for parameter 5.weight f32[24, 128]\n"
        "  Take a smaller network, or an optimizer with less state."
    )


def live_objects():
    """The number of buffers, kernels and programs of OpenCL in this process."""
    gc.collect()
    kinds = (cl.Buffer, cl.Kernel, cl.Program)
    return sum(issubclass(type(one), kinds) for one in gc.get_objects())


def test_released_models_and_trainings_leave_nothing(opencl_name, driver):
    def use(count):
        models = []
        for seed in range(count):
            models = [lm.Model(network(), engine=opencl_name, seed=seed)]
            models[0].predict(X[:8])
            with models[0].training(**STEP, batch_size=8) as training:
                training.step(X[:8], Y[:8])
        return models

    use(1)
    objects, allocated = live_objects(), driver.allocated.bytes
    use(3)
    assert live_objects() == objects
    assert driver.allocated.bytes == allocated
    kept = use(1)
    assert live_objects() > objects
    assert driver.allocated.bytes > allocated
    del kept
