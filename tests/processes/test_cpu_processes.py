"""The cpu engine in processes: forks, exits, signals, code in little room, and no allocations."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from fresh_python import printed
from test_cpu_thread_pool import COMMON, Counting, run_script

# By behaviour: a program after `COMMON`, and what it prints. Those that fork come first.
FORKING = {
    "a child continues with a program that was running when it was forked": (
        """
from lamina.engines.cpu.run.thread_pool import pool
wide = lm.Sequential(lm.Input(300), lm.Linear(1500), lm.Tanh(), lm.Linear(5))
model = lm.Model(wide, engine="cpu", seed=0)
first = model.parameters()
with model.training(loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), batch_size=400) as one:
    def losses():
        model.set_parameters(first)
        return [float(one.step(x, y)) for _ in range(3)]
    expected = losses()
    worker = threading.Thread(target=lambda: one.run((x, y), 200))
    worker.start()
    for _ in range(20):
        time.sleep(0.007)
        child = os.fork()
        if child == 0:
            is_right = losses() == expected
            os._exit(0 if is_right and all(helper.is_alive() for helper in pool().helpers) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    worker.join()
print("done")
""",
        "done\n",
    ),
    "a child forked while another thread compiles can compile": (
        """
def compile_on():
    for width in range(20, 32):
        other = lm.Sequential(lm.Input(3), lm.Linear(width), lm.Tanh(), lm.Linear(1))
        lm.Model(other).predict(np.ones((2, 3), "float32"))
worker = threading.Thread(target=compile_on)
worker.start()
codes = set()
while worker.is_alive():
    child = os.fork()
    if child == 0:
        lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1))).predict(np.ones((1, 2), "float32"))
        os._exit(0)
    # One after the other: on a slow machine they would leave the thread no time to end.
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(codes)
""",
        "{0}\n",
    ),
}
PROGRAMS = {
    "exit handlers run models while the helpers are there": (
        """
import atexit
atexit.register(lambda: print(model.predict(x).shape))
print(model.predict(x).shape)
""",
        "(400, 5)\n(400, 5)\n",
    ),
    "the process ends in the middle of a run": (
        """
one = training()
threading.Thread(target=lambda: one.run((x, y), 10**7), daemon=True).start()
time.sleep(0.3)
print("leaving")
""",
        "leaving\n",
    ),
    "ctrl c in a training step leaves no stale packed weights": (
        """
import signal
# Whoever started the tests may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
wide = lm.Sequential(lm.Input(300), lm.Linear(400), lm.Tanh(), lm.Linear(300))
model = lm.Model(wide, engine="cpu", seed=0)
x = np.tile(x, (30, 1))
before = model.predict(x[:50])
with model.training(loss=lm.MSE(), optimizer=lm.SGD(0.5), batch_size=len(x)) as one:
    one.step(x, x)
    model.predict(x[:50])
    threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            one.step(x, x)
    except KeyboardInterrupt:
        pass
fresh = lm.Model(wide, engine="cpu", seed=1)
fresh.set_parameters(model.parameters())
found = model.predict(x[:50])
print((fresh.predict(x[:50]) == found).all(), (before == found).all())
""",
        "True False\n",
    ),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("behaviour", FORKING)
def test_processes_that_fork(behaviour):
    script, expected = FORKING[behaviour]
    cache = {"LAMINA_CACHE": "off"} if "compile" in behaviour else {}
    assert run_script(script, LAMINA_THREADS="2", **cache) == expected


@pytest.mark.parametrize("behaviour", PROGRAMS)
def test_processes(behaviour):
    script, expected = PROGRAMS[behaviour]
    for _ in range(3 if "stale" in behaviour else 1):
        assert run_script(script, LAMINA_THREADS="2") == expected


TRAINING = """
one = training()
def work():
    while True:
        one.step(x[:100], y[:100])
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""
PARAMETERS = "['1.bias', '1.weight', '3.bias', '3.weight']"


@pytest.mark.cases(
    ("early", "late", "expected"),
    ("print(model.predict(x).shape)", "model.predict(x)", "(400, 5)\n"),
    ("print(sorted(model.parameters()))", TRAINING, f"{PARAMETERS}\n"),
    ids=["it runs a model alone", "it reads a model that was being trained"],
)
def test_an_exit_handler_after_the_helpers_have_left(early, late, expected):
    handler = f"import atexit\natexit.register(lambda: {early})\nimport lamina as lm\n"
    assert printed(handler + COMMON + late, LAMINA_THREADS="2") == expected


def test_results_do_not_depend_on_the_number_of_threads():
    script = """
import hashlib
wide = lm.Sequential(lm.Input(300), lm.Linear(513), lm.Tanh(), lm.Dropout(0.2), lm.Linear(5))
model = lm.Model(wide, engine="cpu", seed=0)
with model.training(
    loss=lm.CrossEntropy(), optimizer=lm.Adam(), batch_size=130, clip=lm.ClipGlobalNorm(1.0)
) as training:
    digest = hashlib.sha256(training.run((x, y), 30).tobytes())
for value in model.parameters().values():
    digest.update(value.tobytes())
print(digest.hexdigest())
"""
    digests = [run_script(script, LAMINA_THREADS=str(threads)) for threads in (1, 2, 3, 8)]
    assert len(set(digests)) == 1


def test_a_job_begins_with_the_first_iteration_after_an_interrupted_job():
    # As in a child that was forked in the middle of a run.
    counting = Counting(2, 5)
    counting.job._iteration[0] = 3
    counting.job._start(alone=True)
    counting.check()


# Code, constants and a table have sections of their own. All of the address space is reserved but
# for a hole of a few pages, and a large free range more than 4 GiB below it.
_LITTLE_ROOM = """
import ctypes
import mmap

from lamina.engines.cpu.processor import host
from lamina.engines.cpu.llvm import assemble, load

PAGE, FAR = mmap.PAGESIZE, 4 << 30
NO_RESERVE = 0x4000
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def reserve(size):
    found = libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE, -1, 0)
    assert found != ctypes.c_void_p(-1).value
    return found

code = assemble('''
    @table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
    define double @sum(double %x) {
      %first = fadd double %x, 1.25
      %second_address = getelementptr [4 x double], ptr @table, i64 0, i64 2
      %second = load volatile double, ptr %second_address
      %sum = fadd double %first, %second
      ret double %sum
    }''', host())
load(code, ("sum",)).release()  # LLVM has loaded what it needs itself.
start = reserve(FAR)
for pages in range(1, 17):
    while reserve(PAGE) > start:
        pass  # Fills what is free above.
    libc.munmap(start + FAR - pages * PAGE, pages * PAGE)
    loaded = load(code, ("sum",))
    sum_of = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(loaded.addresses["sum"])
    print(sum_of(1.0))
    loaded.release()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux gives the highest addresses first")
def test_code_and_constants_reach_each_other_in_a_fragmented_address_space():
    assert printed(_LITTLE_ROOM).split() == ["5.75"] * 16


ALLOCATING = """
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
    report = json.loads(printed(ALLOCATING.replace("BATCH", str(batch)), LAMINA_THREADS="2"))
    for name, (python, heap, resident) in report.items():
        # A loss, say, is a few hundred bytes, and the last one is still there; one byte in each
        # call would be 10,000.
        assert python < 2_000, name
        assert heap < 10_000, name
        assert resident < 200_000, name


@pytest.mark.sampled
def test_programs_of_modules_that_changed_meanwhile_are_not_cached(tmp_path):
    script = """
import lamina as lm
from lamina.base import cache
net = lm.Sequential(lm.Input(9), lm.Linear(4))
model = lm.Model(net)
asked = cache.sources_checksum
import lamina.engines.cpu.compilation  # what runs machine code is loaded
cache.sources_checksum = lambda *packages: "exchanged meanwhile"
model.predict([[0.0] * 9])
"""
    counts = []
    for text in (script, script.replace('lambda *packages: "exchanged meanwhile"', "asked")):
        assert printed(text, LAMINA_CACHE=str(tmp_path)) == ""
        counts.append(len(list(tmp_path.rglob("*.object"))))
    # The program, and its machine code.
    assert counts[1] == counts[0] + 2


@pytest.mark.sampled
def test_cache_keys_are_equal_in_all_processes(tmp_path):
    script = """
import lamina as lm
net = lm.Sequential(lm.Input(9), lm.Linear(20), lm.Tanh(), lm.Dropout(0.5), lm.Linear(4))
lm.Model(net).training(loss=lm.CrossEntropy(), optimizer=lm.Adam(), batch_size=3)
"""
    names = []
    for seed in ("1", "2", "3"):
        assert printed(script, PYTHONHASHSEED=seed, LAMINA_CACHE=str(tmp_path)) == ""
        names.append({path.name for path in tmp_path.rglob("*.object")})
    assert len(names[0]) > 0
    assert names[0] == names[1] == names[2]


@pytest.mark.sampled
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="it reads /proc")
def test_training_on_a_mapped_file_takes_no_memory_of_its_own(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((30_000, 256), "float32"))
    code = f"""
import re, numpy as np, lamina as lm

def own():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

data = lm.data.load({str(path)!r}, on_disk=True)
data = lm.data.Dataset(data.inputs, np.zeros((30_000, 1), "float32"))
model = lm.Model(lm.Sequential(lm.Input(256), lm.Linear(1)))
fit = lambda data: model.fit(
    data, loss=lm.MSE(), optimizer=lm.SGD(1e-4), batch_size=100, progress=False
)
fit(data.subset(0, 1000))
before = own()
fit(data)
print(own() - before)
"""
    assert int(printed(code)) < 8 << 20  # the file has 30 MB
