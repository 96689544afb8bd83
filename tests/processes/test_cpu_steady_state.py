"""Compiled programs allocate nothing: counted over 10,000 training steps and predictions."""

import json
from typing import Any

import pytest
from fresh_python import printed

SCRIPT = """
import ctypes, json, os, sys, tracemalloc
import numpy as np
import lamina as lm

STEPS = 10_000

class Info(ctypes.Structure):
    _fields_ = [(f"field{n}", ctypes.c_size_t) for n in range(10)]

# Bytes that malloc has given out and not taken back, where the C library says how many.
info = getattr(ctypes.CDLL(None), "mallinfo2", Info)
info.restype = Info

def heap():
    found = info()
    return found.field4 + found.field7  # hblkhd: mapped; uordblks: from the heap

def resident():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0

def growth(work):
    # What Python and NumPy keep for reuse is kept after the first calls.
    tracemalloc.start()
    work(STEPS)
    def now():
        return tracemalloc.get_traced_memory()[0], heap(), resident()
    now()
    before = now()
    work(STEPS)
    after = now()
    tracemalloc.stop()
    return [new - old for new, old in zip(after, before)]

net = lm.Sequential(lm.Input(20), lm.Linear(64), lm.ReLU(), lm.Dropout(0.1), lm.Linear(5))
model = lm.Model(net, engine="cpu")
x = np.random.default_rng(0).normal(size=(BATCH, 20)).astype("float32")
y = np.random.default_rng(1).integers(0, 5, BATCH)
training = model.training(loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-3), batch_size=BATCH)

def steps(count):
    for _ in range(count):
        loss = training.step(x, y)
    float(loss)

def predictions(count):
    for _ in range(count):
        model.predict(x)

print(json.dumps({"step": growth(steps), "predict": growth(predictions)}))
"""


@pytest.mark.parametrize("batch", [1, 64])
def test_training_steps_and_predictions_allocate_nothing(batch):
    found = printed(SCRIPT.replace("BATCH", str(batch)), LAMINA_THREADS="2")
    report: dict[str, Any] = json.loads(found)
    for name, (python, heap, resident) in report.items():
        # A loss, say, is a few hundred bytes, and the last one is still there; one byte in each
        # call would be 10,000.
        assert python < 2_000, name
        assert heap < 10_000, name
        assert resident < 200_000, name
