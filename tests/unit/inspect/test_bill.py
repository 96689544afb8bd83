"""The memory bill: bytes by hand count, bounds, the largest batch; nothing is allocated."""

import math
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from error_texts import error_text, refused
from network_cases import raised_line

import lamina as lm
from lamina import ops
from lamina.checks import refused as as_error
from lamina.checks.kinds import Misfit
from lamina.engines import machine_memory
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import DataError, DefinitionError, EngineError, ShapeError
from lamina.inspect.bill import MemorySize, largest_batch

SMALL = lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU(), lm.Linear(2))


def residual():
    x = lm.Input(32)
    h = x
    for _ in range(4):
        h = lm.Add()(h, lm.Linear(32)(lm.ReLU()(lm.Linear(64)(h))))
    return lm.Network(x, lm.Linear(10)(h))


def two_branches():
    a, b = lm.Input(20), lm.Input(6)
    joined = lm.concat([lm.Tanh()(lm.Linear(30)(a)), lm.Sigmoid()(lm.Linear(10)(b))])
    return lm.Network([a, b], lm.Linear(5)(lm.Dropout(0.5)(joined)))


NETWORKS = {
    "small": SMALL,
    "deep": lm.Sequential(
        lm.Input(64), *(layer for _ in range(6) for layer in (lm.Linear(64), lm.GELU())),
        lm.Linear(10),
    ),
    "wide": lm.Sequential(lm.Input(784), lm.Linear(500), lm.ReLU(), lm.Linear(10)),
    "residual": residual(),
    "two branches": two_branches(),
    "attention": lm.Sequential(
        lm.Input(8, 16), lambda x: ops.matmul(ops.softmax(x @ ops.transpose(x, (0, 2, 1)), 2), x),
        lm.Flatten(), lm.Linear(10),
    ),
}  # fmt: skip


def bill(name, batch=32):
    return NETWORKS[name].plan(batch, lm.CrossEntropy(), lm.Adam(1e-3))


def test_bytes_are_counted():
    inference, step = SMALL.plan(8), SMALL.plan(8, lm.MSE(), lm.SGD(0.1))
    assert inference.parameter_bytes == 4 * (15 + 8)
    assert inference.state_bytes == 0
    assert SMALL.plan(8, dtype="float64").parameter_bytes == 8 * (15 + 8)
    # Inputs and targets of one batch; class numbers have 8 bytes.
    assert step.input_bytes == 8 * (4 * 4 + 2 * 4)
    assert SMALL.plan(8, lm.CrossEntropy(), lm.SGD(0.1)).input_bytes == 8 * (4 * 4 + 8)
    # Dropout has a seed.
    net = lm.Sequential(lm.Input(4), lm.Dropout(0.5), lm.Linear(3))
    assert net.plan(8, lm.MSE(), lm.SGD(0.1)).state_bytes == 8 + 8 + 4
    net = lm.Sequential(lm.Input(4), lambda x: x * np.arange(4, dtype="float32"))
    assert net.plan(8).constant_bytes == 4 * 4
    parts = ("parameter", "state", "input", "constant", "arena")
    for planned in (bill("wide"), net.plan(8)):
        assert planned.peak_bytes == sum(getattr(planned, f"{part}_bytes") for part in parts)


@pytest.mark.cases(
    ("optimizer", "slots", "numbers"),
    (lm.SGD(0.1), 0, 1),
    (lm.SGD(0.1, momentum=0.9), 1, 2),
    (lm.Adagrad(0.1), 1, 2),
    # The rate, epsilon, beta2, and 1 - beta and log(beta) of both.
    (lm.Adam(1e-3), 2, 7),
)
def test_state_is_the_optimizers_slots_and_numbers_and_the_step_counter(optimizer, slots, numbers):
    found = SMALL.plan(8, lm.MSE(), optimizer)
    assert found.state_bytes == slots * 4 * (15 + 8) + numbers * 4 + 8


@pytest.mark.parametrize("batch", [1, 7, 32, 256])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_is_at_most_5_percent_above_its_lower_bound(name, batch):
    planned = bill(name, batch)
    # Offsets are aligned, which in a tiny arena is more than 5%.
    alignment = 64 * len(planned.program.plan.allocations)
    largest = planned.program.plan.largest_live_bytes
    assert planned.arena_bytes <= max(1.05 * largest, largest + alignment)
    assert planned.lower_bound_bytes <= planned.peak_bytes
    assert batch < 256 or planned.peak_bytes <= 1.05 * planned.lower_bound_bytes


@pytest.mark.parametrize("memory", [8_000, 100_000, 1_234_567])
@pytest.mark.parametrize("training", [False, True])
def test_the_largest_batch_fits_and_the_next_does_not(memory, training):
    how = (lm.MSE(), lm.Adam(1e-3)) if training else ()
    size = SMALL.max_batch_size(memory, *how)
    assert SMALL.plan(size, *how).peak_bytes <= memory
    assert SMALL.plan(size + 1, *how).peak_bytes > memory
    assert size == SMALL.max_batch_size(f"{memory / 1000} kB", *how)
    for count in (1, 37):  # exactly enough memory
        assert SMALL.max_batch_size(SMALL.plan(count, *how).peak_bytes, *how) >= count


def test_a_larger_batch_fits_in_mixed_precision():
    net = lm.Sequential(lm.Input(64), lm.Linear(512), lm.ReLU(), lm.Linear(10))
    how = "10 MiB", lm.CrossEntropy(), lm.Adam()
    mixed = net.max_batch_size(*how, dtype="mixed-bfloat16")
    assert mixed > 1.5 * net.max_batch_size(*how)


def test_without_an_amount_the_memory_of_the_device_counts(monkeypatch):
    available = [100_000]
    monkeypatch.setattr(machine_memory, "available_bytes", lambda: available[0])
    assert SMALL.max_batch_size() == SMALL.max_batch_size(100_000)
    available[0] = None
    assert error_text(EngineError, SMALL.max_batch_size) == (
        "in max_batch_size: the available memory is not known\n"
        "  engine  cpu\n"
        '  Give the memory: net.max_batch_size("2 GiB").'
    )


@pytest.mark.parametrize(
    "bytes_of", [lambda n: 3 * n + 7, lambda n: n * n, lambda n: 64 * (n // 9)]
)
@pytest.mark.parametrize("too_large", [None, 1000])
def test_the_largest_batch_is_found_for_any_growth_of_bytes(bytes_of, too_large):
    for limit in (0, 1, 10, 100, 640, 1000):
        fitting = [n for n in range(1, 2000) if bytes_of(n) <= limit]
        found = largest_batch(bytes_of, limit, too_large)
        assert found == (max(fitting) if fitting else 0)
    assert largest_batch(lambda n: n if n < 40 else math.inf, 1000, too_large) == 39


def test_a_memory_too_small_for_one_example_is_refused():
    how = ("1 MiB", lm.CrossEntropy(), lm.Adam(1e-3))
    assert error_text(EngineError, NETWORKS["wide"].max_batch_size, *how).startswith(
        "in max_batch_size: not even a batch of one example fits\n"
        "  available  1 MiB\n"
        "  needed     4.5"
    )


@pytest.mark.cases(
    ("text", "count"),
    *((4096, 4096), (2e9, 2_000_000_000), ("0", 0), ("512", 512), ("512 B", 512)),
    *(("500 MB", 500_000_000), ("2 GiB", 2 * 2**30), ("1.5kib", 1536), (" 3 TB ", 3 * 10**12)),
)
def test_amounts_of_memory_are_read(text, count):
    assert MemorySize().read(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "much", "2 GiBs", "GiB", "1e999 GB", "-1 GB", "nan", -5, True, float("nan"), None, "1 2"],
)
def test_invalid_amounts_of_memory_are_refused(text):
    misfit = refused(Misfit, MemorySize().read, text)
    assert str(as_error(misfit, "memory", text, "plan")).partition(": ")[2] == (
        "this is not an amount of memory\n"
        '  expected  "2 GiB", "500 MB" or a number of bytes\n'
        f"  found     {text!r}"
    )


def test_planning_terabytes_neither_allocates_nor_compiles(monkeypatch):
    for name in ("allocate", "compile"):
        monkeypatch.setattr(InterpreterEngine, name, None)
    net = lm.Sequential(lm.Input(10**6), lm.Linear(10**6), lm.ReLU(), lm.Linear(10))
    SMALL.max_batch_size(100_000)
    tracemalloc.start()
    try:
        planned = net.plan(1000, lm.CrossEntropy(), lm.Adam(1e-3))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert planned.parameter_bytes > 4 * 10**12
    assert peak < 20 * 2**20


def test_the_bill_is_shown_as_a_table():
    planned = SMALL.plan(8, lm.MSE(), lm.Adam(1e-3))
    lines = str(planned).splitlines()
    for number, text in (
        *((0, "memory bytes"), (2, "parameters 92 B"), (3, "optimizer and other state 220 B")),
        *((4, "inputs and targets, 8 examples 192 B"), (8, "peak "), (9, "lower bound ")),
    ):
        assert " ".join(lines[number].split()).startswith(text)
    assert lines[9].endswith(" steps")
    assert len(planned.buffers().splitlines()) == 2 + len(planned.program.plan.allocations)


@pytest.mark.parametrize("size", [0, -3, 2.5, True, "8", None])
def test_a_batch_size_is_a_whole_number_above_zero(size):
    with pytest.raises(DefinitionError) as caught:
        SMALL.plan(size)
    assert str(caught.value) == (
        f"in Network.plan (test_bill.py:{raised_line(caught)}): a batch has at least one example\n"
        "  expected  batch_size >= 1\n"
        f"  found     {size!r}\n"
        "  The batch size is a whole number."
    )


def test_a_loss_without_an_optimizer_is_refused():
    error = refused(DefinitionError, SMALL.plan, 8, lm.MSE())
    assert error.where == "plan"
    assert error.facts[1] == ("optimizer", "None")


def test_the_bytes_of_data_stand_in_the_bill():
    net = lm.Sequential(lm.Input(4), lm.Linear(3))
    x, y = np.zeros((1000, 4), "float32"), np.zeros(1000, "int64")
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1)}
    plain = net.plan(8, **how)
    assert plain.data_bytes == 0
    assert "data" not in str(plain)
    stream = lm.data.Stream([(x, y)], buffer_bytes=1 << 20)
    for data, expected in (
        ((x, y), 24_000),
        (lm.data.Dataset(x, y), 24_000),
        (stream, 1 << 20),
        (lambda: [(x, y)], 64 << 20),
    ):
        bill = net.plan(8, **how, data=data)
        assert bill.data_bytes == expected
        assert bill.peak_bytes == plain.peak_bytes + expected
    assert re.search(r"^data +1 MiB$", str(net.plan(8, **how, data=stream)), re.MULTILINE)


_PIXELS = np.zeros((40, 12), "uint8")
_CLASSES = np.zeros(40, "uint8")
_WEIGHTS = np.ones(40, "float32")


@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16"])
@pytest.mark.cases(
    "data",
    lm.data.Dataset(_PIXELS, _CLASSES),
    lm.data.Dataset(_PIXELS, _CLASSES, weights=_WEIGHTS),
    lm.data.Dataset({"pixels": _PIXELS}, _CLASSES, weights=_WEIGHTS.astype("int32")),
    ids=["bytes", "weights", "names"],
)
def test_a_plan_for_data_is_that_of_a_training_on_it(data, dtype, micro_batch):
    pixels = lm.Input(12, name="pixels")
    net = lm.Network(inputs=pixels, outputs=lm.Linear(3)(pixels))
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(), "micro_batch": micro_batch}
    plain, bill = net.plan(8, **how, dtype=dtype), net.plan(8, **how, dtype=dtype, data=data)
    with lm.Model(net, dtype=dtype).training(batch_size=8, data=data, **how) as training:
        assert str(training.bill) == str(replace(bill, data_bytes=0))
    assert bill.input_bytes < plain.input_bytes
    assert bill.data_bytes == data.nbytes


def test_a_forward_pass_is_planned_for_the_dtypes_of_data():
    net = lm.Sequential(lm.Input(12), lm.Linear(1))
    assert net.plan(8).input_bytes == 8 * 12 * 4
    assert net.plan(8, data=(_PIXELS, _CLASSES)).input_bytes == 8 * 12
    assert net.plan(8, data=_PIXELS).input_bytes == 8 * 12
    # More bytes than floats fit.
    assert net.max_batch_size("64 KiB", data=_PIXELS) > 2 * net.max_batch_size("64 KiB")


def test_a_plan_for_data_that_is_none_is_refused():
    assert "this is not a data set" in error_text(DataError, SMALL.plan, 8, data="train.npz")
    assert "input 0" in error_text(ShapeError, SMALL.plan, 8, data=_PIXELS)
