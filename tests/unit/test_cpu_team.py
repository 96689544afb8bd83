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
from lamina.engines.cpu.loops import PART_PARAMETERS, Part
from lamina.engines.cpu.machine_code import Library, compiled
from lamina.engines.cpu.native_loop import emit_barrier
from lamina.engines.cpu.processor import host
from lamina.engines.cpu.sharing import emit_shared
from lamina.engines.cpu.team import Job, Team
from lamina.engines.cpu.workspaces import SLOTS, Workspaces
from lamina.engines.host import aligned
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


def test_a_helper_that_could_not_be_started_is_started_later(
    own_team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = native_loop.waiting_for(os.uname().machine)
    Meeting(2, waiting, 20).run(own_team)
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    meeting = Meeting(4, waiting, 20)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="can't start"):
        meeting.run(own_team)
    monkeypatch.setattr(threading.Thread, "start", start)
    meeting.run(own_team)
    meeting.check()
    assert len(own_team._helpers) == 3


# Sharing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("units", [3, 64, 1001])
def test_every_unit_is_done_once_whoever_does_it(units: int, threads: int, own_team: Team) -> None:
    module, workspaces = Module(fused=False), Workspaces()
    work = module.function("work", PART_PARAMETERS)
    section, thread, first, last = work.parameters
    counts = workspaces.own(work, section, thread)
    loop = work.begin_loop(first, last)
    place = work.offset(counts, loop.index, "i64")
    # The first units take longer: the others come to help.
    turns = work.select(
        work.compare("slt", loop.index, constant(units // threads, I64)),
        constant(2000, I64),
        constant(1, I64),
    )
    inner = work.begin_loop(constant(0, I64), turns)
    work.instruction(f"atomicrmw add {place}, i64 1 monotonic", I64)
    work.end_loop(inner)
    work.end_loop(loop)
    work.finish()
    code = module.function("program", native_loop.PROGRAM_PARAMETERS, internal=False)
    part = Part("work", units, 1e9, frozenset(), frozenset())
    emit_shared(code, part, threads, workspaces, *code.parameters[:2])
    code.finish()
    library = Library(compiled(module.text(), host()))
    done, counters = np.zeros(units, np.int64), aligned(workspaces.counter_bytes)
    addresses = np.zeros(len(SLOTS), np.uint64)
    addresses[SLOTS.index("own")] = done.ctypes.data
    addresses[SLOTS.index("counters")] = counters.ctypes.data
    job = Job(library.address("program"), addresses, threads)
    for run in range(1, 20):
        own_team.run(job)
        expected = np.where(np.arange(units) < units // threads, 2000 * run, run)
        np.testing.assert_array_equal(done, expected)
        assert not counters.any()


def test_threads_that_run_their_first_programs_together_share_one_native_library() -> None:
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
        assert_prints(run_script(script), "[(3, 4), (3, 5), (3, 6), (3, 7)]\n")


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_goes_on_with_a_program_that_was_running_when_it_was_forked() -> None:
    script = """
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
            os._exit(0 if losses() == expected else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    worker.join()
print("done")
"""
    assert_prints(run_script(script, LAMINA_THREADS="2"), "done\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_forked_while_another_thread_compiles_can_compile() -> None:
    script = """
def compile_on():
    for width in range(20, 32):
        other = lm.Sequential(lm.Input(3), lm.Linear(width), lm.Tanh(), lm.Linear(1))
        lm.Model(other).predict(np.ones((2, 3), "float32"))
worker = threading.Thread(target=compile_on)
worker.start()
children = []
while worker.is_alive():
    child = os.fork()
    if child == 0:
        lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1))).predict(np.ones((1, 2), "float32"))
        os._exit(0)
    children.append(child)
    time.sleep(0.1)
print({os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children})
"""
    assert_prints(run_script(script, LAMINA_CACHE="off"), "{0}\n")


def test_exit_handlers_run_models_while_the_helpers_are_there() -> None:
    script = """
import atexit
atexit.register(lambda: print(model.predict(x).shape))
print(model.predict(x).shape)
"""
    assert_prints(run_script(script, LAMINA_THREADS="2"), "(400, 5)\n(400, 5)\n")


def test_an_exit_handler_after_the_helpers_have_left_gets_an_error() -> None:
    script = """
    import atexit
    def late():
        try:
            model.predict(x)
        except lm.errors.EngineError as error:
            print(error)
    atexit.register(late)
    """
    lines = [line[4:] for line in script.splitlines()]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines) + COMMON + "model.predict(x)"],
        env=os.environ | {"LAMINA_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = (
        "the process is ending: the threads that run programs have left\n"
        "  Register an exit handler after its model is made: it then comes before they leave.\n"
    )
    assert_prints(result, expected)


def test_an_exit_handler_can_read_a_model_that_was_being_trained() -> None:
    script = (
        """
import atexit
atexit.register(lambda: print(sorted(model.parameters())))
import lamina as lm
"""
        + COMMON
        + """
one = training()
def work():
    while True:
        one.step(x[:100], y[:100])
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"LAMINA_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert_prints(result, "['1.bias', '1.weight', '3.bias', '3.weight']\n")


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


def test_ctrl_c_in_the_middle_of_a_step_leaves_nothing_stale() -> None:
    script = """
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
"""
    for _ in range(3):
        assert_prints(run_script(script, LAMINA_THREADS="2"), "True False\n")
