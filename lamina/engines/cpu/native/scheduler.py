"""The native code with which threads share the kernels of a job.

Threads claim their work. A thread claims the chunks of its own slices first, so that its
core's caches keep their data, and then the remaining chunks of other threads (work stealing). The
threads that have joined do all the work. The thread that completes the last chunk of a phase
publishes the next phase. A thread waits only for chunks that are claimed and not yet completed.
Results do not depend on the thread that runs a chunk. `jobs` defines kernels, phases, slices and
chunks.

A thread that has worked for two milliseconds yields its core, at a moment when it holds no claim.
So the system rarely preempts it in the middle of a chunk, for which all threads would then wait.

The state of claims is one block of memory that is never freed. Helpers touch the memory of a job
only while they hold a claim, and a job ends only after its claims are completed. So a helper that
comes late finds nothing to claim, and is harmless.
"""

from __future__ import annotations

from lamina.codegen.llvm import Function, Module, type_text, typed
from lamina.codegen.values import I32, I64, POINTER, Integer, Type, Value, as_value
from lamina.engines.cpu.native import jobs
from lamina.engines.cpu.native.jobs import emit_jobs, phase_of, set_word, word_of
from lamina.engines.cpu.native.members import emit_run_members
from lamina.engines.cpu.native.waiting import (
    CALLS_BYTES,
    Waiting,
    emit_pause,
    emit_sleep,
    emit_wake,
    emit_yield,
)
from lamina.engines.simd.decide.work import MOST_CHUNKS

# Spins before sleep: some 50 microseconds for the thread that runs a job, and four times as long
# for helpers, so that they are awake if the next job comes soon. While helpers are kept awake,
# spins are not counted, unless another thread may need the core.
OWNER_SPINS, HELPER_SPINS, SPINS_WHEN_BUSY = 2000, 8000, 100
# A thread that has not yielded for this many periods has done something other than running jobs.
_IDLE_PERIODS = 8
# A helper without a slice spins so often before it steals, so that others begin with their slices.
_SPINS_WITHOUT_SLICE = 32

# The state of claims, as offsets in bytes. Fields that helpers write have their own cache lines.
# Periods are stored as the counter's reading at their start. If a counter restarts, when a machine
# wakes, they end.
JOB, THREADS, YIELD_TICKS, GAP_TICKS, BUSY_TICKS, AWAKE_TICKS, AWAKE_SINCE = range(0, 56, 8)
CALLS, PENDING_CHUNKS = 64, 128
GENERATION, FINISHED, LEAVING, SLOTS = 192, 200, 208, 256
assert CALLS + CALLS_BYTES <= PENDING_CHUNKS
# The slot of a thread: the claims of its chunks, whether it sleeps, the futex word on which it
# sleeps, when it last yielded its core, and when it last found that it had been preempted.
CLAIMS, ASLEEP, SIGNAL, YIELDED_AT, BUSY_SINCE = 0, 8, 12, 16, 24
SLOT_BYTES = 64
# A word of claims: the number of threads that may claim, the number of chunks, and the next chunk.
_THREADS_SHIFT, _CHUNKS_SHIFT = 48, 24
assert MOST_CHUNKS < 1 << _CHUNKS_SHIFT
MOST_THREADS = 1024
# The words of a turn of `run_turns`.
TURN_WORDS = 3


def emit_scheduler(waiting: Waiting) -> Module:
    """The module that exports the functions of EXPORTED.

    `run_job(state, job)` does runs of a job, alone or together with helpers, and
    `run_turns(state, turns, count)` those of several jobs in turns; `help(state, thread)` makes the
    calling thread a helper, until `leave(state, threads)` dismisses all of them.
    `gather(job, thread, first, last)` and `gather_members` are kernels that copy the examples of a
    run; `run_members(section, thread, first, last)` is one that runs jobs;
    `read_ticks(address)` reads the processor's counter.
    """
    module = Module(fused=False)
    emit_sleep(module, waiting)
    emit_wake(module, waiting)
    emit_jobs(module)
    _emit_wake_sleeper(module)
    _emit_publish(module)
    _emit_advance(module, waiting.machine)
    _emit_complete(module)
    _emit_yield_if_due(module, waiting.machine)
    _emit_work(module)
    _emit_wait(module, waiting)
    _emit_join(module, waiting.machine)
    _emit_run_job(module, waiting.machine)
    _emit_run_turns(module)
    emit_run_members(module)
    code = module.function("help", (_STATE, _THREAD), internal=False)
    state, thread = code.parameters
    code.call_void("join", state, thread, _byte(code, state, LEAVING), HELPER_SPINS)
    _emit_leave(module)
    code = module.function("read_ticks", (("address", POINTER),), internal=False)
    code.store(_emit_ticks(code, waiting.machine), code.parameters[0])
    return module


EXPORTED = (
    *("run_job", "run_turns", "help", "leave", "gather", "gather_members", "run_members"),
    "read_ticks",
)

_STATE, _JOB, _THREAD = ("state", POINTER), ("job", POINTER), ("thread", I64)


def _byte(code: Function, base: Value, offset: int) -> Value:
    return code.offset(base, offset, "i8")


def _load_atomic(code: Function, address: Value, type: Type, order: str) -> Value:
    return code.instruction(
        f"load atomic {type_text(type)}, {typed(address)} {order}, align {type.bits // 8}", type
    )


def _store_atomic(
    code: Function, value: Integer, address: Value, order: str, type: Type = I64
) -> None:
    stored = typed(as_value(value, type))
    code.line(f"store atomic {stored}, {typed(address)} {order}, align {type.bits // 8}")


def _add_atomic(code: Function, address: Value) -> None:
    code.instruction(f"atomicrmw add {typed(address)}, i64 1 seq_cst", I64)


def _slot(code: Function, state: Value, number: Integer) -> Value:
    first = _byte(code, state, SLOTS)
    return code.offset(first, code.multiply(number, code.constant(SLOT_BYTES)), "i8")


def _emit_ticks(code: Function, machine: str) -> Value:
    """Reads the time counter, whose rate does not depend on the processor's clock frequency."""
    # On ARM only the system may read the cycle counter; on x86 its rate is constant.
    steady = machine in ("aarch64", "arm64")
    name = "llvm.readsteadycounter" if steady else "llvm.readcyclecounter"
    code.module.declare(name, "i64", [])
    return code.call(name, I64)


def _emit_wake_sleeper(module: Module) -> None:
    """`wake_sleeper(state, slot)`: wakes the slot's thread if it sleeps."""
    code = module.function("wake_sleeper", (_STATE, ("slot", POINTER)))
    state, slot = code.parameters
    address = _byte(code, slot, ASLEEP)
    asleep = _load_atomic(code, address, I32, "seq_cst")
    with code.when(asleep.differs(0)):
        # Waking takes a while. Other threads need not do it meanwhile.
        _store_atomic(code, 0, address, "monotonic", I32)
        code.call_void("wake", _byte(code, state, CALLS), _byte(code, slot, SIGNAL))


def _emit_publish(module: Module) -> None:
    """`publish(state, job)`: lets threads claim the chunks of the job's phase."""
    code = module.function("publish", (_STATE, _JOB))
    state, job = code.parameters
    threads = word_of(code, job, jobs.JOB_THREADS)
    # A row of counts: the chunks of each slot, and of all slots.
    columns = threads + 1
    row = word_of(code, job, jobs.PHASE) * columns
    counts = code.offset(word_of(code, job, jobs.CHUNK_COUNTS, POINTER), row, "i64")
    total = code.load(code.offset(counts, threads, "i64"), I64)
    _store_atomic(code, total, _byte(code, state, PENDING_CHUNKS), "monotonic")
    allowed = threads << _THREADS_SHIFT
    with code.loop(0, threads) as slots:
        chunks = code.load(code.offset(counts, slots.index, "i64"), I64)
        word = allowed | (chunks << _CHUNKS_SHIFT)
        _store_atomic(code, word, _byte(code, _slot(code, state, slots.index), CLAIMS), "release")
    _add_atomic(code, _byte(code, state, GENERATION))
    with code.loop(0, threads) as slots:
        chunks = code.load(code.offset(counts, slots.index, "i64"), I64)
        with code.when(chunks.differs(0)):
            code.call_void("wake_sleeper", state, _slot(code, state, slots.index))


def _emit_advance(module: Module, machine: str) -> None:
    """`advance(state, job, thread)`: continues after a completed phase.

    It runs the phases that threads do not share, and all phases if the job is run alone. It returns
    when a phase is published, or when the job is finished.
    """
    code = module.function("advance", (_STATE, _JOB, _THREAD))
    state, job, thread = code.parameters
    alone = word_of(code, job, jobs.ALONE).differs(0)
    count = word_of(code, job, jobs.PHASE_COUNT)
    with code.forever() as after:
        ticks = word_of(code, job, jobs.TICKS, POINTER)
        with code.when(code.instruction(f"icmp ne {typed(ticks)}, null", Type("i1"))):
            now = _emit_ticks(code, machine)
            address = code.offset(ticks, word_of(code, job, jobs.PHASE), "i64")
            spent = now - word_of(code, job, jobs.PHASE_START_TICKS)
            code.store(code.load(address, I64) + spent, address)
            set_word(code, job, jobs.PHASE_START_TICKS, now)
        following = code.call("next_phase", I64, job)
        set_word(code, job, jobs.PHASE, following)
        over = following.equals(count)
        with code.when(over):
            code.call_void("record", job)
            run = word_of(code, job, jobs.RUN) + 1
            set_word(code, job, jobs.RUN, run)
            set_word(code, job, jobs.PHASE, word_of(code, job, jobs.PHASE_BEFORE_RUN))
            with code.when(word_of(code, job, jobs.WINDOW_TICKS).differs(0)):
                late = _emit_ticks(code, machine) >= word_of(code, job, jobs.WINDOW_END)
                last = code.select(late, run, word_of(code, job, jobs.LAST_RUN))
                set_word(code, job, jobs.LAST_RUN, last)
            is_last_run = run.equals(word_of(code, job, jobs.LAST_RUN))
            with code.when(is_last_run & (alone ^ True)):
                _store_atomic(code, 1, _byte(code, state, FINISHED), "release")
                _add_atomic(code, _byte(code, state, GENERATION))
                code.call_void("wake_sleeper", state, _slot(code, state, 0))
            code.leave_when(is_last_run, after)
        with code.when(over ^ True):
            phase = phase_of(code, job, following)
            shared = word_of(code, phase, jobs.SHARED).differs(0) & (alone ^ True)
            with code.when(shared):
                code.call_void("publish", state, job)
            code.leave_when(shared, after)
            code.call_void("run_phase", job, thread)


def _emit_complete(module: Module) -> None:
    """`complete(state, thread, chunks)`: counts completed chunks; advances after the last one."""
    code = module.function("complete", (_STATE, _THREAD, ("chunks", I64)))
    state, thread, chunks = code.parameters
    with code.when(chunks.differs(0)):
        job = code.load(_byte(code, state, JOB), POINTER)
        left = _byte(code, state, PENDING_CHUNKS)
        before = code.instruction(f"atomicrmw sub {typed(left)}, {typed(chunks)} acq_rel", I64)
        with code.when(before.equals(chunks)):
            code.call_void("advance", state, job, thread)


def _emit_yield_if_due(module: Module, machine: str) -> None:
    """`yield_if_due(state, thread, chunks)`: after two milliseconds counts chunks and yields.

    Returns the number of chunks that are still to be counted as completed.
    """
    code = module.function("yield_if_due", (_STATE, _THREAD, ("chunks", I64)), result=I64)
    state, thread, chunks = code.parameters
    left = code.allocate(1, "i64")
    code.store(chunks, left)
    yielded_at = _byte(code, _slot(code, state, thread), YIELDED_AT)
    since = _emit_ticks(code, machine) - code.load(yielded_at, I64)
    patience = code.load(_byte(code, state, YIELD_TICKS), I64)
    with code.when(code.compare("ugt", since, patience)):
        code.call_void("complete", state, thread, chunks)
        code.store(0, left)
        emit_yield(code, _byte(code, state, CALLS))
        code.store(_emit_ticks(code, machine), yielded_at)
    code.finish(code.load(left, I64))


def _emit_work(module: Module) -> None:
    """`work(state, thread)`: claims and runs chunks until none is left; returns 1 if it ran any."""
    code = module.function("work", (_STATE, _THREAD), result=I64)
    state, thread = code.parameters
    uncounted, ran_any = code.allocate(1, "i64"), code.allocate(1, "i64")
    code.store(0, uncounted)
    code.store(0, ran_any)
    threads = _load_atomic(code, _byte(code, state, THREADS), I64, "monotonic")
    with code.loop(0, threads) as slots:
        number = (thread + slots.index) % threads
        address = _byte(code, _slot(code, state, number), CLAIMS)
        with code.forever() as after:
            word = _load_atomic(code, address, I64, "acquire")
            following = word & MOST_CHUNKS
            chunks = (word >> _CHUNKS_SHIFT) & MOST_CHUNKS
            allowed = word >> _THREADS_SHIFT
            nothing = code.compare("uge", following, chunks)
            code.leave_when(nothing | code.compare("uge", thread, allowed), after)
            swapped = ", ".join(map(typed, (address, word, word + 1)))
            pair = code.instruction(f"cmpxchg {swapped} acq_rel acquire", Type("{ i64, i1 }"))
            with code.when(code.instruction(f"extractvalue {typed(pair)}, 1", Type("i1"))):
                job = code.load(_byte(code, state, JOB), POINTER)
                code.call_void("run_chunk", job, thread, number, following)
                code.store(code.load(uncounted, I64) + 1, uncounted)
                done = code.load(uncounted, I64)
                code.store(code.call("yield_if_due", I64, state, thread, done), uncounted)
                code.store(1, ran_any)
    code.call_void("complete", state, thread, code.load(uncounted, I64))
    code.finish(code.load(ran_any, I64))


def _emit_wait(module: Module, waiting: Waiting) -> None:
    """`wait(state, thread, seen, spins)` waits until the generation differs from `seen`.

    Spins for a while and then sleeps. May return early.
    """
    parameters = (_STATE, _THREAD, ("seen", I64), ("spins", I64))
    code = module.function("wait", parameters)
    state, thread, seen, spins = code.parameters
    generation, calls = _byte(code, state, GENERATION), _byte(code, state, CALLS)
    awake_since = _byte(code, state, AWAKE_SINCE)
    busy_ticks = code.load(_byte(code, state, BUSY_TICKS), I64)
    slot = _slot(code, state, thread)
    signal, asleep = _byte(code, slot, SIGNAL), _byte(code, slot, ASLEEP)
    busy_since = _byte(code, slot, BUSY_SINCE)
    left, before = code.allocate(1, "i64"), code.allocate(1, "i64")
    code.store(_emit_ticks(code, waiting.machine), before)
    code.store(spins, left)
    since = code.load(before, I64) - code.load(busy_since, I64)
    busy = code.compare("ult", since, busy_ticks)
    awake_ticks = code.select(busy, 0, code.load(_byte(code, state, AWAKE_TICKS), I64))
    with code.when(busy):
        code.store(code.minimum(spins, SPINS_WHEN_BUSY), left)
    with code.forever() as after:
        now = _load_atomic(code, generation, I64, "acquire")
        remaining = code.load(left, I64)
        over = remaining <= 0
        code.leave_when(now.differs(seen) | over, after)
        emit_pause(code, waiting.machine)
        ticks = _emit_ticks(code, waiting.machine)
        since = ticks - _load_atomic(code, awake_since, I64, "monotonic")
        counted = code.convert("zext", code.compare("uge", since, awake_ticks), "i64")
        code.store(remaining - counted, left)
        gap = ticks - code.load(before, I64)
        code.store(ticks, before)
        # The thread was preempted.
        with code.when(code.compare("ugt", gap, code.load(_byte(code, state, GAP_TICKS), I64))):
            code.store(ticks, busy_since)
            code.store(0, left)
    with code.when(code.load(left, I64) <= 0):
        old = _load_atomic(code, signal, I32, "seq_cst")
        code.instruction(f"atomicrmw xchg {typed(asleep)}, i32 1 seq_cst", I32)
        now = _load_atomic(code, generation, I64, "seq_cst")
        with code.when(now.equals(seen)):
            code.call_void("sleep", calls, signal, old)
        _store_atomic(code, 0, asleep, "seq_cst", I32)
        code.store(_emit_ticks(code, waiting.machine), _byte(code, slot, YIELDED_AT))


def _emit_join(module: Module, machine: str) -> None:
    """`join(state, thread, end, spins)`: works and waits, until the word `end` is set."""
    parameters = (_STATE, _THREAD, ("end", POINTER), ("spins", I64))
    code = module.function("join", parameters)
    state, thread, end, spins = code.parameters
    claims = _byte(code, _slot(code, state, thread), CLAIMS)
    with code.forever() as after:
        seen = _load_atomic(code, _byte(code, state, GENERATION), I64, "acquire")
        over = _load_atomic(code, end, I64, "acquire")
        code.leave_when(over.differs(0), after)
        word = _load_atomic(code, claims, I64, "monotonic")
        chunks = (word >> _CHUNKS_SHIFT) & MOST_CHUNKS
        with code.when(chunks.equals(0)), code.loop(0, _SPINS_WITHOUT_SLICE):
            emit_pause(code, machine)
        ran_any = code.call("work", I64, state, thread)
        with code.when(ran_any.equals(0)):
            # A thread without a slot in this job need not be awake for the next phase.
            threads = _load_atomic(code, _byte(code, state, THREADS), I64, "monotonic")
            has_slot = thread < threads
            code.call_void("wait", state, thread, seen, code.select(has_slot, spins, 0))


def _emit_run_job(module: Module, machine: str) -> None:
    """`run_job(state, job)`: does the runs of a job, and returns after the last of the window."""
    code = module.function("run_job", (_STATE, _JOB), internal=False)
    state, job = code.parameters
    started = _emit_ticks(code, machine)
    set_word(code, job, jobs.PHASE, word_of(code, job, jobs.PHASE_BEFORE_RUN))
    set_word(code, job, jobs.RUN, word_of(code, job, jobs.FIRST_RUN))
    set_word(code, job, jobs.PHASE_START_TICKS, started)
    left = word_of(code, job, jobs.WINDOW_TICKS) - word_of(code, job, jobs.ELAPSED)
    set_word(code, job, jobs.WINDOW_END, started + left)
    set_word(code, job, jobs.LAST_RUN, word_of(code, job, jobs.RUNS))
    # In a forked child, the word may hold the iteration of a run that the parent continues.
    code.store(0, word_of(code, job, jobs.ITERATION, POINTER))
    shared = word_of(code, job, jobs.ALONE).equals(0)
    with code.when(shared):
        code.store(job, _byte(code, state, JOB))
        threads = word_of(code, job, jobs.JOB_THREADS)
        _store_atomic(code, threads, _byte(code, state, THREADS), "monotonic")
        _store_atomic(code, 0, _byte(code, state, FINISHED), "monotonic")
        # After a while without jobs the thread has most likely slept, so its period restarts.
        yielded_at = _byte(code, _slot(code, state, 0), YIELDED_AT)
        since = started - code.load(yielded_at, I64)
        patience = code.load(_byte(code, state, YIELD_TICKS), I64)
        with code.when(code.compare("ugt", since, patience * _IDLE_PERIODS)):
            code.store(started, yielded_at)
    code.call_void("advance", state, job, 0)
    with code.when(shared):
        code.call_void("join", state, 0, _byte(code, state, FINISHED), OWNER_SPINS)
    spent = _emit_ticks(code, machine) - started
    set_word(code, job, jobs.ELAPSED, word_of(code, job, jobs.ELAPSED) + spent)
    runs = word_of(code, job, jobs.RUN) - word_of(code, job, jobs.FIRST_RUN)
    set_word(code, job, jobs.DONE, word_of(code, job, jobs.DONE) + runs)


def _emit_run_turns(module: Module) -> None:
    """`run_turns(state, turns, count)`: does runs of jobs in turns, until a window of runs ends.

    The first word of `turns` is the number of turns that are done. Then each turn has TURN_WORDS:
    its job, the first of its runs that are not done, and the run after its last.
    """
    parameters = (_STATE, ("turns", POINTER), ("count", I64))
    code = module.function("run_turns", parameters, internal=False)
    state, turns, count = code.parameters
    with code.forever() as after:
        number = code.load(turns, I64)
        code.leave_when(number >= count, after)
        turn = code.offset(turns, number * TURN_WORDS + 1, "i64")
        job, last = word_of(code, turn, 0, POINTER), word_of(code, turn, 2)
        set_word(code, job, jobs.FIRST_RUN, word_of(code, turn, 1))
        set_word(code, job, jobs.RUNS, last)
        code.call_void("run_job", state, job)
        run = word_of(code, job, jobs.RUN)
        set_word(code, turn, 1, run)
        is_done = run.equals(last)
        code.store(code.select(is_done, number + 1, number), turns)
        window = word_of(code, job, jobs.WINDOW_TICKS)
        is_over = window.differs(0) & (word_of(code, job, jobs.ELAPSED) >= window)
        code.leave_when(is_over | (is_done ^ True), after)


def _emit_leave(module: Module) -> None:
    """`leave(state, threads)`: dismisses every helper; none of them holds a claim."""
    code = module.function("leave", (_STATE, ("threads", I64)), internal=False)
    state, threads = code.parameters
    _store_atomic(code, 1, _byte(code, state, LEAVING), "seq_cst")
    _add_atomic(code, _byte(code, state, GENERATION))
    with code.loop(0, threads) as slots:
        code.call_void("wake_sleeper", state, _slot(code, state, slots.index))
