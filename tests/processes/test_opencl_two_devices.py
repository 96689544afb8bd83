"""Two OpenCL devices in one process: models on both at the same time, and copies between them."""

import pytest
from fresh_python import run_python

TWO = """
import sys, threading
import numpy as np
import lamina as lm
from lamina.engines.discovery import open_engine

names = [one.engine for one in lm.devices() if one.engine.startswith("opencl") and not one.problem]
if len(names) < 2:
    sys.exit(3)
first, second = names[:2]
network = lm.Sequential(lm.Input(3), lm.Linear(8), lm.Tanh(), lm.Linear(2))
x = np.linspace(-1, 1, 48, dtype="float32").reshape(16, 3)
data = x, np.arange(16) % 2

def fitted(name, seed):
    model = lm.Model(network, engine=name, seed=seed)
    options = dict(loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), progress=False)
    model.fit(data, epochs=3, batch_size=8, **options)
    return model

alone = [fitted(first, seed).parameters() for seed in (0, 1)]
together = {}

def work(name, seed):
    together[seed] = fitted(name, seed)

threads = [threading.Thread(target=work, args=pair) for pair in ((first, 0), (second, 1))]
for one in threads:
    one.start()
for one in threads:
    one.join()
for seed in (0, 1):
    found = together[seed].parameters()
    for name, expected in alone[seed].items():
        np.testing.assert_array_equal(found[name], expected)
print("trained together")

one, other = together[0], together[1]
other.set_parameters(one.parameters())
np.testing.assert_array_equal(one.predict(x), other.predict(x))
print("copied")

drivers = [open_engine(name).arena().driver for name in (first, second)]
assert drivers[0] is not drivers[1]
before = [driver.allocated.bytes for driver in drivers]
memory = open_engine(second).allocate((1024,), np.dtype("float32"))
assert [driver.allocated.bytes for driver in drivers] == [before[0], before[1] + 4096]
"""


def test_two_devices_train_at_the_same_time_and_exchange_parameters():
    pytest.importorskip("pyopencl", reason="needs pyopencl: pip install 'lamina[opencl]'")
    # PoCL then has two devices. Other drivers ignore it.
    done = run_python("-c", TWO, POCL_DEVICES="pthread pthread")
    if done.returncode == 3:
        pytest.skip("fewer than two OpenCL devices; PoCL has as many as POCL_DEVICES names")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained together\ncopied\n"
