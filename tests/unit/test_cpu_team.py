"""The threads of the cpu engine: barriers, the native loop, forks and the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from lamina.engines.cpu import native_loop
from lamina.engines.cpu import team as teams
from lamina.engines.cpu.ir import I64, POINTER, Module, constant
from lamina.engines.cpu.machine_code import Library, compiled
from lamina.engines.cpu.native_loop import emit_barrier
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.team import Job, Team
from lamina.shapes import Array

ROUNDS = 2000


def meeting_program(waiting: native_loop.Waiting, rounds: int) -> Library:
    """In every round each thread counts in its own cell, meets the others, and adds all cells.

    The table holds the cells (one for each thread, 8 words apart) and the sums (the same).
    """
    module = Module(fused=False)
    emit_barrier(module, waiting)
    parameters = (("table", POINTER), ("thread", I64), ("threads", I64), ("gate", POINTER))
    code = module.function("program", parameters, internal=False)
    table, thread, threads, gate = code.parameters
    cells = code.load(table, POINTER)
    sums = code.load(code.offset(table, 1, "ptr"), POINTER)
    own = code.multiply(thread, constant(8, I64))
    loop = code.begin_loop(0, rounds)
    cell = code.offset(cells, own, "i64")
    code.store(code.add(code.load(cell, I64), constant(1, I64)), cell)
    code.call_void("barrier", gate, threads)
    each = code.begin_loop(constant(0, I64), threads, 1, [constant(0, I64)])
    other = code.offset(cells, code.multiply(each.index, constant(8, I64)), "i64")
    (total,) = code.end_loop(each, [code.add(each.carried[0], code.load(other, I64))])
    place = code.offset(sums, own, "i64")
    code.store(code.add(code.load(place, I64), total), place)
    code.call_void("barrier", gate, threads)
    code.end_loop(loop)
    code.finish()
    return Library(compiled(module.text(), host()))


class Meeting:
    """A job of the program above."""

    def __init__(self, threads: int, waiting: native_loop.Waiting, rounds: int = ROUNDS) -> None:
        self.cells = np.zeros((threads, 8), np.int64)
        self.sums = np.zeros((threads, 8), np.int64)
        self.threads, self.rounds = threads, rounds
        self._library = meeting_program(waiting, rounds)
        table = np.array([self.cells.ctypes.data, self.sums.ctypes.data], np.uint64)
        self.job = Job(self._library.address("program"), table, threads)

    def run(self, team: Team) -> None:
        if self.threads == 1:
            teams.run(self.job)
        else:
            team.run(self.job)

    def check(self, runs: int = 1) -> None:
        count = runs * self.rounds
        assert (self.cells[:, 0] == count).all()
        assert (self.sums[:, 0] == self.threads * count * (count + 1) // 2).all()


@pytest.fixture
def own_team() -> Iterator[Team]:
    """A team of the test's own, sent home at the end."""
    team = Team()
    yield team
    team.leave()


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_all_threads_see_what_each_did_before_a_barrier(threads: int, own_team: Team) -> None:
    meeting = Meeting(threads, native_loop.waiting_for(os.uname().machine))
    meeting.run(own_team)
    meeting.check()


def test_threads_can_sleep_on_a_condition_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(native_loop.waiting_for(os.uname().machine), futex=False)
    monkeypatch.setattr(native_loop, "waiting_for", lambda machine: plain)
    monkeypatch.setattr(teams, "_native", teams._Native)
    team = Team()
    # More threads than cores: most of them have to sleep.
    meeting = Meeting(6, plain)
    meeting.run(team)
    meeting.check()
    team.leave()
    assert not any(helper.is_alive() for helper in team._helpers)


def test_jobs_of_different_sizes_take_turns(own_team: Team) -> None:
    waiting = native_loop.waiting_for(os.uname().machine)
    meetings = [Meeting(threads, waiting, 20) for threads in (2, 5, 1, 3)]
    for _ in range(50):
        for meeting in meetings:
            meeting.run(own_team)
    for meeting in meetings:
        meeting.check(50)
    assert len(own_team._helpers) == 4


def test_several_python_threads_share_the_team(own_team: Team) -> None:
    waiting = native_loop.waiting_for(os.uname().machine)
    meetings = [Meeting(2 + number % 2, waiting, 50) for number in range(6)]

    def work(meeting: Meeting) -> None:
        for _ in range(20):
            meeting.run(own_team)

    threads = [threading.Thread(target=work, args=(meeting,)) for meeting in meetings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for meeting in meetings:
        meeting.check(20)


def test_helpers_leave_when_they_are_sent_home() -> None:
    team = Team()
    Meeting(3, native_loop.waiting_for(os.uname().machine)).run(team)
    assert all(helper.is_alive() for helper in team._helpers)
    team.leave()
    assert not any(helper.is_alive() for helper in team._helpers)


# The native loop ----------------------------------------------------------------------------------


def copying_program(count: int) -> Library:
    """Copies `count` bytes from the first buffer of its table to the second one, on thread 0."""
    module = Module(fused=False)
    parameters = (("table", POINTER), ("thread", I64), ("threads", I64), ("gate", POINTER))
    code = module.function("program", parameters, internal=False)
    table, thread, *_ = code.parameters
    source = code.load(table, POINTER)
    target = code.load(code.offset(table, 1, "ptr"), POINTER)
    with code.when(code.compare("eq", thread, constant(0, I64))):
        loop = code.begin_loop(0, count)
        value = code.load(code.offset(source, loop.index, "i8"), I64.of("i8"))
        code.store(value, code.offset(target, loop.index, "i8"))
        code.end_loop(loop)
    code.finish()
    return Library(compiled(module.text(), host()))


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_the_native_loop_takes_rows_and_records_results(
    size: int, threads: int, own_team: Team
) -> None:
    generator = np.random.default_rng(size)
    data: Array = generator.integers(0, 256, (30, size), np.uint8)
    rows = generator.integers(0, 30, (25, 5))
    batch, result = np.zeros((5, size), np.uint8), np.zeros((5, size), np.uint8)
    record = np.zeros((25, 5, size), np.uint8)
    library = copying_program(5 * size)
    table = np.array([batch.ctypes.data, result.ctypes.data], np.uint64)
    job = Job(library.address("program"), table, threads)
    job.many(
        rows,
        [(data.ctypes.data, batch.ctypes.data, size)],
        [(result.ctypes.data, record.ctypes.data, result.nbytes)],
    )
    if threads == 1:
        teams.run(job)
    else:
        own_team.run(job)
    np.testing.assert_array_equal(record, data[rows])


# Processes ----------------------------------------------------------------------------------------

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


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMON + script],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_prints(result: subprocess.CompletedProcess[str], expected: str) -> None:
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_runs_with_helpers_of_its_own() -> None:
    script = """
with training() as one:
    one.run((x, y), 20)
    child = os.fork()
    losses = one.run((x, y), 20)
    if child == 0:
        os._exit(0 if np.isfinite(losses).all() and len(losses) == 20 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(losses))
"""
    assert_prints(run_script(script, LAMINA_THREADS="3"), "0 20\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_forked_in_the_middle_of_a_run_works() -> None:
    script = """
with training() as one:
    worker = threading.Thread(target=lambda: one.run((x, y), 3000))
    worker.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        scores = model.predict(x[:7])
        os._exit(0 if scores.shape == (7, 5) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    worker.join()
    print(one.steps_done)
"""
    assert_prints(run_script(script, LAMINA_THREADS="2"), "0\n3000\n")


def test_the_process_ends_in_the_middle_of_a_run() -> None:
    script = """
one = training()
threading.Thread(target=lambda: one.run((x, y), 10**7), daemon=True).start()
time.sleep(0.3)
print("leaving")
"""
    assert_prints(run_script(script, LAMINA_THREADS="2"), "leaving\n")


def test_two_models_train_in_two_threads_as_they_do_alone() -> None:
    script = """
def train(seed):
    model = lm.Model(net, engine="cpu", seed=seed)
    with model.training(loss=lm.CrossEntropy(), optimizer=lm.Adam(), batch_size=50) as one:
        return one.run((x, y), 100).tobytes()
alone = [train(seed) for seed in (1, 2)]
together = {}
threads = [
    threading.Thread(target=lambda seed=seed: together.update({seed: train(seed)}))
    for seed in (1, 2)
]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(alone == [together[1], together[2]])
"""
    assert_prints(run_script(script, LAMINA_THREADS="2"), "True\n")


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    script = """
import hashlib
wide = lm.Sequential(lm.Input(300), lm.Linear(513), lm.Tanh(), lm.Dropout(0.2), lm.Linear(5))
model = lm.Model(wide, engine="cpu", seed=0)
with model.training(
    loss=lm.CrossEntropy(), optimizer=lm.Adam(), batch_size=130, clip=lm.ClipGlobalNorm(1.0)
) as one:
    digest = hashlib.sha256(one.run((x, y), 30).tobytes())
for value in model.parameters().values():
    digest.update(value.tobytes())
print(digest.hexdigest())
"""
    found = [run_script(script, LAMINA_THREADS=str(threads)) for threads in (1, 2, 3, 8)]
    assert {(one.returncode, one.stderr) for one in found} == {(0, "")}
    assert len({one.stdout for one in found}) == 1


def test_ctrl_c_ends_a_run_between_two_steps() -> None:
    script = """
import signal
one = training()
timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
timer.start()
try:
    one.run((x, y), 10**6)
except KeyboardInterrupt:
    done = one.steps_done
    print(0 < done < 10**6, np.isfinite(float(one.step(x[:100], y[:100]))))
"""
    assert_prints(run_script(script, LAMINA_THREADS="2"), "True True\n")
