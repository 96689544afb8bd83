"""OpenCL in processes: missing drivers, forks, signals, models on two devices at once."""

import os
import signal
from contextlib import suppress

import pytest
from fresh_python import run_python
from opencl_cases import with_offsets
from test_opencl_programs import EMPTY, LAUNCHES, X, made

from lamina.engines.discovery import open_engine
from lamina.engines.gpu.launches import Launch, Launches, RepeatedLaunches


def output_of(code, **variables):
    """What a program prints that ends well; drivers may write to standard error."""
    done = run_python("-c", code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


OPEN = """
import lamina as lm
print([device.problem for device in lm.devices() if device.engine == "opencl"])
try:
    lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)), engine="opencl")
except lm.errors.EngineError as error:
    print(error)
"""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("before", "variables", "said"),
    [
        ("", {"OCL_ICD_VENDORS": "/nonexistent"}, (
            "['there is no OpenCL device on this machine (expected a driver, ",
            "for any processor pocl-opencl-icd",
            "for Intel intel-opencl-icd",
            "OCL_ICD_VENDORS  /nonexistent",
            "OCL_ICD_VENDORS hides all other drivers: unset it, or name a driver",
        )),
        ("import sys\nsys.modules['pyopencl'] = None\n", {}, (
            "['the opencl engine needs the package pyopencl (expected pyopencl 2024.1",
            "pip install 'lamina[opencl]'",
        )),
        ("import sys\nsys.path.insert(0, {folder!r})\n", {}, (
            "found one that cannot be imported: no libOpenCL.so.1",
        )),
    ],
    ids=["no driver", "no package", "a package that fails"],
)  # fmt: skip
def test_what_is_missing_is_reported_with_the_packages_to_install(
    tmp_path, before, variables, said
):
    (tmp_path / "pyopencl.py").write_text("raise ImportError('no libOpenCL.so.1')")
    output = output_of(before.format(folder=str(tmp_path)) + OPEN, **variables)
    assert [one for one in said if one not in output] == []


FORK = """
import os, signal
import lamina as lm
model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)), engine="opencl")
child = os.fork()
if not child:
    signal.alarm(20)
    try:
        model.parameters()
    except lm.errors.EngineError as error:
        print(error, flush=True)
    print([one.problem for one in lm.devices() if one.engine == "opencl"], flush=True)
    del model
    os._exit(0)
print("status", os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_is_refused_the_device(opencl_name):
    output = output_of(FORK)
    assert output.count("in a process that was forked from one that has used it") == 2
    assert "status 0" in output


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


@pytest.mark.parametrize("are_recorded", [True, False], ids=["recorded", "one by one"])
def test_signals_are_handled_between_runs(are_recorded, opencl_name, monkeypatch):
    engine = open_engine(opencl_name)
    driver = engine.arena().driver
    if not are_recorded:
        monkeypatch.setattr(driver, "_command_buffers", None)
    elif driver._command_buffers is None:
        pytest.skip(f"{driver.record.description} has no command buffers that Lamina knows")
    text = with_offsets("""
    kernel void begin(global float* p) { if (get_global_id(0) == 0) p[0] += 1.0f; }
    kernel void end(global float* p) { if (get_global_id(0) == 0) p[1] += 1.0f; }
    """)
    middle = LAUNCHES.launches[0]
    launches = (Launch("begin", ("p",), 1, 0), middle, Launch("end", ("p",), 1, 2))
    repeated = Launches(
        LAUNCHES.text + text, launches, (RepeatedLaunches(1, 2, 3000),), LAUNCHES.gather
    )
    executable, memory = made(engine, launches=repeated)
    executable.run([X, EMPTY])
    executable._driver.queue.finish()
    handled = []

    def interrupt(*_):
        handled.append(1)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    runs = 1
    try:
        # Alarms come while the launches are enqueued, which takes some milliseconds.
        for _ in range(20):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                executable.run([X, EMPTY])
                runs += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    begun, ended, _ = memory.read()
    assert handled
    assert begun == ended
    # An alarm may come before a run begins, and may be handled after its end.
    assert runs <= begun <= runs + len(handled)
