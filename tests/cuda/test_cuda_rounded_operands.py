"""Trainings whose operands are stored rounded, on the machine that runs PTX, and by cuBLASLt."""

from dataclasses import replace

import numpy as np
import pytest
from training_cases import same

import lamina as lm
from lamina.engines.cuda import family
from lamina.engines.gpu import gpus, kernels
from lamina.engines.gpu.executable import GpuProgram

PRECISIONS = [{"precision": "tf32"}, {"dtype": "mixed-bfloat16"}, {"dtype": "mixed-float16"}]
X = np.random.default_rng(1).normal(size=(11, 9)).astype("float32")
Y = np.arange(11) % 5
HOW = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(0.01), "batch_size": 4}


@pytest.fixture(autouse=True)
def device(use, monkeypatch):
    """A double of devices for which all operands of products are stored rounded."""
    target_for = gpus.target_for

    def storing(*of):
        return replace(target_for(*of), operand_tile=1, launch_bytes=0.0)

    monkeypatch.setattr(gpus, "target_for", storing)
    monkeypatch.setenv("LAMINA_TUNE", "0")
    return use()


def made(features=9, **precision):
    network = lm.Sequential(lm.Input(features), lm.Linear(8), lm.ReLU(), lm.Linear(5))
    return lm.Model(network, "cuda", **precision)


def change(model):
    name, value = next(iter(model.parameters().items()))
    model.set_parameters({name: value * 1.5})


def used(**precision):
    """What a fit with a smaller last batch, training steps and predictions make of a model."""
    model = made(**precision)
    model.fit((X, Y), epochs=2, validation=(X, Y), **HOW)
    results = {"after fit": model.predict(X)}
    with model.training(**HOW) as training:
        for number in range(3):
            training.step(X[:4], Y[:4])
            if number == 1:
                results["between"] = model.predict(X[:4])
                change(model)
                results["changed"] = model.predict(X[:4])
    return {**results, **model.parameters()}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_copies_follow_parameters_whoever_changes_them(monkeypatch, precision):
    results = used(**precision)
    pack = GpuProgram._pack_changed

    def pack_always(self):
        self._loaded = -1
        pack(self)

    monkeypatch.setattr(GpuProgram, "_pack_changed", pack_always)
    assert same(results, used(**precision))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("features", [9, 8])
def test_inputs_are_rounded_while_they_are_gathered(monkeypatch, tmp_path, precision, features):
    """If their step has a kernel of its own."""
    monkeypatch.setattr(kernels, "joined_launches", lambda *of: [])
    write, rounded = kernels.write_gather, []

    def noted(*of, **options):
        gather = write(*of, **options)
        rounded.extend(() if gather is None else gather.rounded_buffers)
        return gather

    monkeypatch.setattr(kernels, "write_gather", noted)

    def losses(cache):
        monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / cache))
        model = made(features, **precision)
        return np.array(model.fit((X[:, :features], Y), epochs=3, **HOW)["loss"])

    rounding_losses = losses("rounding")
    # Of the programs for whole batches, and for the last one.
    assert rounded == ["input0", "input0"]
    monkeypatch.setattr(kernels, "rounding_steps", lambda program: {})
    assert np.array_equal(rounding_losses, losses("copying"))
    assert len(rounded) == 2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_copies_are_made_again_only_if_another_changed_parameters_or_the_arena(counts, precision):
    model = made(**precision)
    with model.training(**HOW) as training:

        def graphs():
            """The graphs that a training step launches: copies are a graph of their own."""
            before = counts["cuGraphLaunch"]
            float(training.step(X[:4], Y[:4]))
            return counts["cuGraphLaunch"] - before

        assert [graphs() for _ in range(3)] == [2, 1, 1]
        change(model)
        assert [graphs(), graphs()] == [2, 1]
        # The first time the arena may become larger, but not later.
        for _ in range(2):
            model.predict(X)
            assert [graphs(), graphs()] == [2, 1]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_cublaslt_multiplies_operands_that_are_stored_rounded(
    monkeypatch, tmp_path, device, precision
):
    expected = used(**precision)
    monkeypatch.setattr(family, "is_large", lambda step: True)
    # The cache has kernels for the same products.
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    results = used(**precision)
    # Of each program once, as they are captured.
    assert len(device.cublaslt.problems) > 30
    assert {problem.is_tf32 for problem in device.cublaslt.problems} == {"precision" in precision}
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=0.02, atol=0.02, err_msg=name)
