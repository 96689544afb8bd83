"""The workloads and `lamina bench`."""

import dataclasses
import json

import numpy as np
import pytest
from cli_cases import succeed
from error_texts import error_text

from lamina import __version__, networks
from lamina.base.shapes import float32
from lamina.errors import DefinitionError
from lamina.files.encode import encode
from lamina.step.derive import default_targets
from lamina.workloads import (
    LARGE,
    LONGEST_RUN,
    PRODUCTS,
    WORKLOADS,
    Ready,
    Runner,
    chosen,
    measure,
    samples,
)


@pytest.mark.parametrize("name", WORKLOADS | PRODUCTS | LARGE)
def test_the_network_and_the_data_of_a_workload_fit_each_other(name):
    workload = dataclasses.replace(chosen([name])[0], examples=8)
    x, y = workload.data()
    network = workload.network()
    (declared,) = network.inputs
    assert x.dtype == declared.dtype.numpy
    assert x.shape[1:] == declared.shape[1:]
    if workload.loss is None:
        assert y is None
        return
    ((shape, dtype),) = default_targets(network, workload.loss, float32)
    assert (y.shape[1:], y.dtype) == (shape[1:], dtype.numpy)
    assert workload.optimizer is not None


READY = [name for name, workload in WORKLOADS.items() if isinstance(workload.architecture, Ready)]


@pytest.mark.parametrize("name", READY)
def test_a_ready_network_is_rebuilt_from_its_record(name):
    architecture = WORKLOADS[name].record()["architecture"]
    options = dict(architecture["options"])
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    again = getattr(networks, architecture["function"])(**options)
    assert encode(again)[0] == encode(WORKLOADS[name].network())[0]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_record_is_plain_data_and_no_workload_draws_random_numbers(name):
    record = WORKLOADS[name].record()
    assert json.loads(json.dumps(record)) == record
    trace = WORKLOADS[name].network().trace(dtype=float32, training=True)
    assert trace.record.random_streams == 0


def test_data_is_drawn_alike_each_time_and_repeats_half_of_its_inputs_with_other_targets():
    x, y = WORKLOADS["transformer"].data()
    for drawn in (x, y):
        assert (drawn.dtype, drawn.shape) == (np.int64, (16, 128))
        assert (drawn.min(), drawn.max()) == (0, 255)
    for first, second in zip(WORKLOADS["mlp"].data(), WORKLOADS["mlp"].data(), strict=True):
        np.testing.assert_array_equal(first, second)
    x, y = WORKLOADS["softmax"].data()
    np.testing.assert_array_equal(x[:50], x[50:])
    assert (y[:50] != y[50:]).any()


def test_flops_count_the_products_of_each_iteration_and_of_gradients():
    products = [784 * 256, 256 * 128, 128 * 10]
    backwards = 2 * sum(products) - products[0]
    assert WORKLOADS["mlp"].flops() == 2 * 128 * (sum(products) + backwards)
    assert WORKLOADS["wide-forward"].flops() == 2 * 2000 * (2000 * 1000 + 1000 * 200 + 200 * 10)
    tokens, inputs, features = 32 * 64, 64, 128
    from_input, from_state = tokens * inputs * 4 * features, tokens * features * 4 * features
    scores = 32 * features * 10
    assert WORKLOADS["lstm"].flops() == 2 * (2 * from_input + 3 * from_state + 3 * scores)


@pytest.mark.parametrize(("name", "extent"), [("product-1024", 1024), ("product-2000", 2000)])
def test_a_product_is_that_of_two_square_matrices_and_nothing_else(name, extent):
    (workload,) = chosen([name])
    assert workload.flops() == 2 * extent**3
    assert workload.network().parameter_count() == extent**2


def test_a_seed_is_the_wide_network_with_relu():
    for name in ("seed-forward", "seed-step"):
        seed, wide = LARGE[name], WORKLOADS[name.replace("seed", "wide")]
        assert (seed.flops(), seed.batch) == (wide.flops(), wide.batch)
        assert (seed.loss, seed.optimizer) == (wide.loss, wide.optimizer)
    layers = LARGE["seed-step"].record()["architecture"]["layers"]
    assert [layer["kind"] for layer in layers] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]


def test_a_large_network_has_five_times_as_many_of_everything():
    for name in ("forward", "step"):
        large, seed = LARGE[f"large-{name}"], LARGE[f"seed-{name}"]
        assert (large.loss, large.optimizer, large.batch) == (seed.loss, seed.optimizer, 10_000)
    products = [10_000 * 5000, 5000 * 1000, 1000 * 10]
    assert LARGE["large-forward"].flops() == 2 * 10_000 * sum(products)


def test_workloads_are_chosen_by_name_products_only_so():
    assert [workload.name for workload in chosen([])] == list(WORKLOADS)
    assert "there is no workload 'huge'" in error_text(DefinitionError, chosen, ["huge"])


def test_measuring_gives_seconds_per_training_step():
    found = measure(Runner(WORKLOADS["tiny-step"], "interpreter"), seconds=0.03)
    assert 1e-6 < min(found) <= max(found) < 1


def sampled(step_seconds, fixed=0.0, **how):
    """Samples of training steps that take so long, and how many were run at a time."""
    groups = []

    def run(steps):
        groups.append(steps)
        return fixed + steps * step_seconds

    return samples(run, **how), groups


def test_short_training_steps_are_timed_in_groups():
    found, groups = sampled(1e-6, seconds=0.1)
    assert found == pytest.approx([1e-6] * len(found))
    assert groups[-1] * 1e-6 >= 0.02
    assert len(found) >= 4


def test_a_run_has_the_given_length_unless_it_takes_too_long():
    for seconds, whole in ((1e-6, True), (LONGEST_RUN * 0.1 / 1000 * 1.1, False)):
        _, groups = sampled(seconds, seconds=0.1, run_length=1000)
        assert (groups[-1] == 1000) == whole
        assert max(groups) <= 1000


def test_the_fixed_cost_of_a_run_is_divided_by_many_training_steps():
    found, _ = sampled(1e-4, fixed=0.03, seconds=0.3, run_length=100_000)
    # With the first training step alone it would be 300 times as much.
    assert max(found) < 1.2e-4


def test_the_command_prints_a_table_and_writes_everything(tmp_path):
    file = tmp_path / "bench.json"
    options = ("--workload", "tiny-step", "--seconds", 0.05, "--dtype", "mixed-bfloat16")
    output = succeed("bench", *options, "--json", file).output
    assert output.startswith(f"lamina {__version__} in mixed-bfloat16 on cpu: ")
    assert "tiny-step" in output
    assert "GFLOP/s" in output
    report = json.loads(file.read_text())
    assert report["dtype"] == "mixed-bfloat16"
    result = report["workloads"]["tiny-step"]
    assert result["median"] == np.median(result["samples"])
    assert result["workload"]["optimizer"]["momentum"] == 0.9
