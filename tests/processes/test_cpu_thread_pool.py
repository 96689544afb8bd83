"""The threads of the cpu engine: claims, the native loop, forks and the end of the process."""

import ctypes
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from fresh_python import printed

from lamina.codegen.llvm import Module, typed
from lamina.codegen.values import I64, POINTER, constant
from lamina.engines.cpu.compilation import compiled
from lamina.engines.cpu.llvm import load
from lamina.engines.cpu.native import scheduler, waiting
from lamina.engines.cpu.native.jobs import (
    DONE,
    ELAPSED,
    FIRST_RUN,
    KERNEL_PARAMETERS,
    RUN,
    SHARED,
    WINDOW_TICKS,
    Entry,
    Kernel,
    Phase,
)
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.run import thread_pool as pools
from lamina.engines.cpu.run.thread_choice import ThreadChoice
from lamina.engines.cpu.run.thread_pool import Job, ThreadPool
from lamina.engines.simd.decide.work import slices

ITEMS, ROUNDS = 8, 2000


@contextmanager
def each_item(module, name):
    """A kernel's loop over its items: the function, the table of addresses, and the item."""
    code = module.function(name, KERNEL_PARAMETERS)
    table, _, first, last = code.parameters
    with code.loop(first, last) as loop:
        yield code, table, loop.index


def cell(code, table, buffer, item):
    """The address of an item's cell of a buffer; cells are 8 words apart."""
    start = code.load(code.offset(table, buffer, "ptr"), POINTER)
    return code.offset(start, code.multiply(item, 8), "i64")


def made_job(module, names, kernels, phases, threads, *buffers):
    """The machine code of kernels, and a job that runs them with the buffers in its table."""
    module.export_functions("kernels", list(names))
    library = load(compiled(module.text(), host()), ("kernels",))
    functions = (ctypes.c_uint64 * len(names)).from_address(library.addresses["kernels"])
    table = np.array([buffer.ctypes.data for buffer in buffers], np.uint64)
    entry = Entry(threads, len(functions), tuple(kernels), tuple(phases))
    return library, Job([*functions], entry, table, np.zeros(1, np.int64))


class Counting:
    """A job of two kernels, again and again in two phases.

    `count` adds one to each item's cell, `sum` adds all cells to each item's sum.
    """

    def __init__(self, threads, rounds=ROUNDS, *, shared=True):
        self.cells, self.sums = (np.zeros((ITEMS, 8), np.int64) for _ in range(2))
        self.threads, self.rounds = threads, rounds
        module = Module(fused=False)
        with each_item(module, "count") as (code, table, item):
            address = cell(code, table, 0, item)
            code.store(code.add(code.load(address, I64), 1), address)
        with each_item(module, "sum") as (code, table, item):
            each = code.begin_loop(0, ITEMS, 1, [constant(0, I64)])
            value = code.load(cell(code, table, 0, each.index), I64)
            (total,) = code.end_loop(each, [code.add(each.carried[0], value)])
            address = cell(code, table, 1, item)
            code.store(code.add(code.load(address, I64), total), address)
        count = min(threads, ITEMS)
        kernels = [Kernel(number, 0, ITEMS, -(-ITEMS // count), count, 0) for number in (0, 1)]
        phases = [Phase(0, 1, shared), Phase(1, 2, shared, back=0, iterations=rounds)]
        buffers = (self.cells, self.sums)
        self.library, self.job = made_job(
            module, ("count", "sum"), kernels, phases, threads, *buffers
        )

    def run(self, pool):
        assert pool.run(self.job)

    def check(self, runs=1):
        count = runs * self.rounds
        assert (self.cells[:, 0] == count).all()
        assert (self.sums[:, 0] == ITEMS * count * (count + 1) // 2).all()


COMMON = """
import os, sys, threading, time
import numpy as np
import lamina as lm
net = lm.Sequential(lm.Input(300), lm.Linear(200), lm.ReLU(), lm.Linear(5))
model = lm.Model(net, engine="cpu", seed=0)
x = np.random.default_rng(0).normal(size=(400, 300)).astype("float32")
y = np.random.default_rng(1).integers(0, 5, 400)
def training():
    return model.training(loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), batch_size=100)
"""


def run_script(script, **environment):
    """What the script prints after `COMMON`."""
    return printed(COMMON + script, **environment)


def asleep(pool, thread):
    start = scheduler.SLOTS + scheduler.SLOT_BYTES * thread + scheduler.ASLEEP
    return bool(pool._memory[start : start + 4].view(np.int32)[0])


@pytest.fixture
def own_pool():
    """A pool of the test's own, shut down at the end."""
    pool = ThreadPool()
    yield pool
    pool.shut_down()


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_thread_sees_the_writes_of_the_previous_phase(threads, own_pool):
    counting = Counting(threads)
    counting.run(own_pool)
    counting.check()


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_one_thread_runs_a_job_alone(threads):
    counting = Counting(threads, shared=threads > 1)
    for _ in range(5):
        counting.job._start(alone=True)
    counting.check(5)


def test_threads_can_sleep_on_a_condition_variable(monkeypatch):
    plain = replace(waiting.waiting_for(os.uname().machine), futex=False)
    monkeypatch.setattr(waiting, "waiting_for", lambda machine: plain)
    native = pools.Native()
    monkeypatch.setattr(pools, "native", lambda: native)
    pool = ThreadPool()
    # More threads than cores: most of them have to sleep.
    counting = Counting(6)
    for _ in range(3):
        counting.run(pool)
    counting.check(3)
    pool.shut_down()
    assert not any(helper.is_alive() for helper in pool.helpers)


@pytest.fixture
def calm_pool(monkeypatch):
    """A pool whose helpers ignore that they are preempted."""
    monkeypatch.setattr(pools, "GAP_SECONDS", 1000.0)
    monkeypatch.setattr(pools, "AWAKE_SECONDS", 1000.0)
    pool = ThreadPool()
    yield pool
    pool.shut_down()


def reading():
    """A reading of the processor's counter."""
    address = np.zeros(1, np.int64)
    pools.native().read_ticks(address.ctypes.data)
    return int(address[0])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this request")
def test_asking_for_short_time_slices_keeps_the_nice_value():
    code = (
        "import os, platform\n"
        "from lamina.engines.cpu.native.waiting import ask_for_short_slices\n"
        "os.nice(7)\n"
        "ask_for_short_slices(platform.machine())\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0) >= 7, os.sched_getscheduler(0) == os.SCHED_OTHER)"
    )
    assert printed(code) == "True True\n"


def test_helpers_stay_awake_as_long_as_they_are_asked_to(calm_pool):
    calm_pool.stay_awake(reading())
    counting = Counting(2)
    counting.run(calm_pool)
    time.sleep(0.1)
    assert not asleep(calm_pool, 1)
    calm_pool.stay_awake(reading() - int(2000 * pools.ticks_per_second()))
    falls_asleep(calm_pool)
    counting.run(calm_pool)
    counting.check(2)


def test_helpers_sleep_after_a_reset_of_the_cycle_counter(calm_pool):
    # As after a call before the machine slept, when its counter had a larger value.
    calm_pool.stay_awake(reading() + int(2000 * pools.ticks_per_second()))
    counting = Counting(2)
    counting.run(calm_pool)
    falls_asleep(calm_pool)
    counting.check()


def test_helpers_are_not_kept_awake_if_another_thread_needs_their_core(calm_pool):
    calm_pool.stay_awake(reading())
    slot = scheduler.SLOTS + scheduler.SLOT_BYTES + scheduler.BUSY_SINCE
    calm_pool._memory[slot : slot + 8].view(np.int64)[:] = reading()
    calm_pool._words[scheduler.BUSY_TICKS // 8] = int(1000 * pools.ticks_per_second())
    counting = Counting(2)
    counting.run(calm_pool)
    falls_asleep(calm_pool)


def falls_asleep(pool):
    """Waits until the helper sleeps."""
    end = time.monotonic() + 20.0
    while not asleep(pool, 1):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_helpers_stay_awake_while_one_thread_is_tried(monkeypatch):
    asked = []
    monkeypatch.setattr(ThreadPool, "stay_awake", lambda pool, ticks: asked.append(ticks))
    job = Counting(2, 20).job
    choice = job._choice
    monkeypatch.setattr(ThreadChoice, "record", lambda choice, ticks, runs: None)
    for choice.alone, choice.trial in ((False, False), (False, True), (True, False)):
        job.run()
    assert not asked
    choice.alone = choice.trial = True
    job.run()
    assert len(asked) == 1


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_jobs_are_run_in_turns(threads, window, own_pool, monkeypatch):
    monkeypatch.setattr(pools, "pool", lambda: own_pool)
    log, written = np.zeros(64, np.int64), np.zeros(1, np.int64)
    made = []
    for number in (1, 2):
        module = Module(fused=False)
        with each_item(module, "note") as (code, table, _):
            entries, count = (code.load(code.offset(table, n, "ptr"), POINTER) for n in range(2))
            place = code.load(count, I64)
            code.store(number, code.offset(entries, place, "i64"))
            code.store(place + 1, count)
        kernels, phases = [Kernel(0, 0, 1, 1, 1, 0)], [Phase(0, 1, threads > 1)]
        made.append(made_job(module, ("note",), kernels, phases, threads, log, written))
    (_first, long), (_second, short) = made
    long.set_runs(np.zeros((8, 1), np.int64), (), ())
    short.set_runs(np.zeros((4, 1), np.int64), (), ())
    if threads > 1:
        # A window of one tick ends after every run.
        monkeypatch.setattr(Job, "_choose", lambda job, _: job._words.__setitem__(ELAPSED, 0))
        long._words[WINDOW_TICKS] = window
    pools.run_turns([(long, 2), (short, 1)] * 4)
    assert log[:12].tolist() == [1, 1, 2] * 4
    assert written[0] == 12


@pytest.mark.parametrize("alone", [True, False])
def test_no_run_begins_after_the_end_of_the_window(alone, own_pool, monkeypatch):
    monkeypatch.setattr(pools, "pool", lambda: own_pool)
    counting = Counting(2, 20)
    words = counting.job._words
    counting.job.set_runs(np.zeros((5, 1), np.int64), (), ())
    for window, runs in ((1, 1), (int(1000 * pools.ticks_per_second()), 5), (0, 5)):
        words[WINDOW_TICKS], words[FIRST_RUN], words[ELAPSED], words[DONE] = window, 0, 0, 0
        counting.job._start(alone=alone)
        assert words[RUN] == words[DONE] == runs
        assert words[ELAPSED] > 0
    counting.check(11)


def test_jobs_of_different_numbers_of_threads_share_helpers_until_the_pool_is_shut_down(own_pool):
    jobs = [Counting(threads, 20) for threads in (2, 5, 1, 3)]
    for _ in range(50):
        for counting in jobs:
            counting.run(own_pool)
    for counting in jobs:
        counting.check(50)
    assert len(own_pool.helpers) == 4
    assert all(helper.is_alive() for helper in own_pool.helpers)
    own_pool.shut_down()
    assert not any(helper.is_alive() for helper in own_pool.helpers)


def test_a_busy_pool_refuses_a_job_without_waiting(own_pool):
    counting = Counting(2, 20)
    with own_pool._lock:
        assert not own_pool.run(counting.job)
    counting.check(0)


def test_several_python_threads_run_jobs(monkeypatch):
    pool = ThreadPool()
    monkeypatch.setattr(pools, "pool", lambda: pool)
    jobs = [Counting(2 + number % 2, 50) for number in range(6)]

    def work(counting):
        for _ in range(20):
            counting.job.run()

    with ThreadPoolExecutor(len(jobs)) as threads:
        list(threads.map(work, jobs))
    pool.shut_down()
    for counting in jobs:
        counting.check(20)


def test_without_helpers_the_calling_thread_does_everything(own_pool, monkeypatch):
    start = threading.Thread.start

    def fail(thread):
        raise RuntimeError("can't start new thread")

    counting = Counting(4, 50)
    monkeypatch.setattr(threading.Thread, "start", fail)
    counting.run(own_pool)
    assert not own_pool.helpers
    monkeypatch.setattr(threading.Thread, "start", start)
    counting.run(own_pool)
    counting.check(2)
    assert len(own_pool.helpers) == 3


class Blocking:
    """A job of one phase: a helper waits in its item for the latch; the caller for a helper."""

    def __init__(self):
        module = Module(fused=False)
        code = module.function("work", KERNEL_PARAMETERS)
        table, thread, first, last = code.parameters
        latch = code.load(code.offset(table, 1, "ptr"), POINTER)
        arrived = code.offset(latch, 8, "i64")
        helping = code.compare("ne", thread, 0)
        with code.when(helping):
            code.line(f"store atomic i64 1, {typed(arrived)} seq_cst, align 8")
        awaited = code.select(helping, latch, arrived)
        with code.loop(first, last) as loop:
            with code.forever() as after:
                seen = code.instruction(f"load atomic i64, {typed(awaited)} seq_cst, align 8", I64)
                code.leave_when(code.compare("ne", seen, 0), after)
            done = code.offset(code.load(table, POINTER), loop.index, "i64")
            code.instruction(f"atomicrmw add {typed(done)}, i64 1 seq_cst", I64)
        self.done, self.latch = np.zeros(64, np.int64), np.zeros(16, np.int64)
        kernels, phases = [Kernel(0, 0, 64, 1, 2, 0)], [Phase(0, 1, True)]
        buffers = (self.done, self.latch)
        self.library, self.job = made_job(module, ("work",), kernels, phases, 2, *buffers)


def test_a_job_waits_only_for_claimed_items(own_pool):
    blocking = Blocking()
    worker = threading.Thread(target=own_pool.run, args=(blocking.job,))
    worker.start()
    # The calling thread does all but the item that the helper has claimed, and waits for that.
    end = time.monotonic() + 60.0
    try:
        while blocking.done.sum() < 63:
            assert time.monotonic() < end
            time.sleep(0.001)
        time.sleep(0.01)
        assert sorted(blocking.done) == [0] + [1] * 63
        assert worker.is_alive()
    finally:
        blocking.latch[:] = 1
        worker.join()
    assert (blocking.done == 1).all()


def test_late_helpers_do_not_touch_a_released_job(own_pool):
    # Jobs come and go, and their memory with them, while helpers look for work.
    for _ in range(300):
        counting = Counting(3, 3)
        counting.run(own_pool)
        counting.check()
        counting.library.release()


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("items", [3, 64, 1001])
def test_every_item_is_done_once_whichever_thread_does_it(items, threads, own_pool):
    module = Module(fused=False)
    with each_item(module, "work") as (code, table, item):
        address = code.offset(code.load(table, POINTER), item, "i64")
        # The first items take longer: other threads steal them.
        is_early = code.compare("slt", item, items // threads)
        repetitions = code.select(is_early, constant(2000, I64), constant(1, I64))
        with code.loop(0, repetitions):
            code.instruction(f"atomicrmw add {typed(address)}, i64 1 monotonic", I64)
    done = np.zeros(items, np.int64)
    # The same items twice in one phase: in several chunks, and in one slice in another slot.
    slice_count, chunk_items = slices(items, 1e9, threads)
    kernels = [
        Kernel(0, 0, items, chunk_items, slice_count, 0),
        Kernel(0, 0, items, items, 1, threads - 1),
    ]
    _library, job = made_job(module, ("work",), kernels, [Phase(0, 2, True)], threads, done)
    for run in range(1, 20):
        own_pool.run(job)
        expected = np.where(np.arange(items) < items // threads, 4000 * run, 2 * run)
        np.testing.assert_array_equal(done, expected)


@pytest.mark.cases(
    ("items", "cycles", "threads", "expected"),
    # Not worth splitting; as many slices as pay; fewer items than threads.
    *((100, 1000.0, 8, (1, 100)), (100, 5000.0, 8, (3, 34)), (2, 1e5, 8, (2, 1))),
    # Slices that are worth stealing from are split into chunks of ten thousand cycles.
    *((100, 99_000.0, 2, (2, 50)), (100, 1e5, 2, (2, 10)), (100, 1e9, 2, (2, 1))),
    # No more chunks than a word of claims can count.
    (1 << 30, 1e15, 2, (2, 65)),
)
def test_kernels_are_split_by_their_cost(items, cycles, threads, expected):
    assert slices(items, cycles, threads) == expected


def test_threads_that_run_their_first_programs_together_share_one_native_library():
    script = """
import sys
sys.setswitchinterval(1e-6)
meeting = threading.Barrier(4)
models = [None] * 4
def work(number):
    meeting.wait()
    models[number] = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(4 + number)))
    for _ in range(20):
        models[number].predict(np.ones((3, 4), "float32"))
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print([one.predict(np.ones((3, 4), "float32")).shape for one in models])
"""
    for _ in range(3):
        assert run_script(script) == "[(3, 4), (3, 5), (3, 6), (3, 7)]\n"


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 7, 64, 200, 40_000])
def test_the_native_loop_takes_rows_and_records_results(size, threads):
    generator = np.random.default_rng(size)
    data = generator.integers(0, 256, (30, size), np.uint8)
    rows = generator.integers(0, 30, (25, 5))
    batch, result = np.zeros((5, size), np.uint8), np.zeros((5, size), np.uint8)
    record = np.zeros((25, 5, size), np.uint8)
    module = Module(fused=False)
    code = module.function("program", KERNEL_PARAMETERS)
    table, *_ = code.parameters
    # Copies a batch from the first buffer of its table to the second one.
    source, target = (code.load(code.offset(table, n, "ptr"), POINTER) for n in range(2))
    with code.loop(0, 5 * size) as loop:
        value = code.load(code.offset(source, loop.index, "i8"), I64.of("i8"))
        code.store(value, code.offset(target, loop.index, "i8"))
    kernels, phases = [Kernel(0, 0, 1, 1, 1, 0)], [Phase(0, 1, False)]
    _library, job = made_job(module, ("program",), kernels, phases, threads, batch, result)
    job.set_runs(
        rows,
        [(data.ctypes.data, batch.ctypes.data, size, 0, 0, 1)],
        [(result.ctypes.data, record.ctypes.data, result.nbytes, 0, 0, 1)],
    )
    job.run()
    np.testing.assert_array_equal(record, data[rows])
    # Examples that take long to copy are gathered by all threads.
    assert bool(job._phases[1, SHARED]) == (threads > 1 and size == 40_000)
