"""The native code with which threads share the kernels of a job.

Work is claimed, not assigned. A thread claims the chunks of its own slices first, so that its
core's caches keep what lies there, and then what is left of others' (work stealing). Who is there
does all of it. Whoever completes the last chunk of a phase publishes the next one; a thread waits
only for chunks that somebody has claimed and not yet completed. Which thread does a chunk changes
nothing about its result. `jobs` says what kernels, phases, slices and chunks are.

A thread that has worked for two milliseconds offers its core to others, at a moment when it has
claimed nothing. So the system rarely takes the core away in the middle of a chunk, which everybody
would then wait for.

The state of claims lies in one block of memory that is never freed. Helpers touch the memory of a
job only while they have a claim, and a job does not end before its claims are completed: a helper
that comes late finds nothing to claim, and does no harm.
"""

from __future__ import annotations

from lamina.codegen.llvm import Function, Module, type_text, typed
from lamina.codegen.values import I32, I64, POINTER, Type, Value, constant
from lamina.engines.cpu.run.clock import emit_ticks
from lamina.engines.cpu.run.jobs import (
    ALONE,
    BEFORE,
    ELAPSED,
    FROM,
    ITERATION,
    JOB_THREADS,
    LIMITS,
    ONE,
    PHASE,
    PHASE_COUNT,
    RUN,
    RUNS,
    SHARED,
    START,
    TICKS,
    ZERO,
    emit_jobs,
    phase_of,
    set_word,
    word_of,
)
from lamina.engines.cpu.run.waiting import (
    CALLS_BYTES,
    Waiting,
    emit_pause,
    emit_sleep,
    emit_wake,
    emit_yield,
)
from lamina.engines.cpu.slices import MOST_CHUNKS

# Turns of spinning before sleep: some 50 microseconds for who runs a job, and four times as long
# for helpers, so that they are awake if the next job comes soon. No turn counts while helpers are
# kept awake.
OWNER_SPINS, HELPER_SPINS, SPINS_WHEN_BUSY = 2000, 8000, 100
# Who runs jobs has done something else if it has not yielded for so many times as long as usual.
_YIELDS_MISSED = 8
# A helper without a slice of its own lets others begin with theirs.
_COURTESY_SPINS = 32

# The state of claims, in bytes: what helpers write has cache lines of its own. Times are kept as
# the readings since which they run: a counter that begins anew, when a machine wakes, ends them.
JOB, THREADS, YIELD_TICKS, GAP_TICKS, BUSY_TICKS, AWAKE_TICKS, AWAKE_SINCE = range(0, 56, 8)
CALLS, LEFT = 64, 128
GENERATION, FINISHED, LEAVING, SLOTS = 192, 200, 208, 256
assert CALLS + CALLS_BYTES <= LEFT
# A slot for each thread: what is left to claim of its slices, whether it sleeps, when it last
# offered its core, and when it last found that somebody else had it.
WORD, ASLEEP, SIGNAL, YIELDED, BUSY_SINCE = 0, 8, 12, 16, 24
SLOT_BYTES = 64
# A word of claims: the threads that may claim, how many chunks there are, and the next one.
_THREADS_SHIFT, _CHUNKS_SHIFT = 48, 24
assert MOST_CHUNKS < 1 << _CHUNKS_SHIFT
MOST_THREADS = 1024


def emit_scheduler(waiting: Waiting) -> Module:
    """The module that exports the functions of EXPORTED.

    `run_job(state, job)` runs a job, alone or with what helpers claim of it; `help(state, thread)`
    makes a helper of the calling thread, until `leave(state, threads)` sends all of them home.
    `gather(job, thread, first, last)` is the kernel that copies the examples of a run;
    `read_ticks(place)` reads the processor's counter.
    """
    module = Module(fused=False)
    emit_sleep(module, waiting)
    emit_wake(module, waiting)
    emit_jobs(module)
    _emit_wake_sleeper(module)
    _emit_publish(module)
    _emit_advance(module, waiting.machine)
    _emit_complete(module)
    _emit_give_way(module, waiting.machine)
    _emit_work(module)
    _emit_wait(module, waiting)
    _emit_take_part(module, waiting.machine)
    _emit_run_job(module, waiting.machine)
    _emit_help(module)
    _emit_leave(module)
    _emit_read_ticks(module, waiting.machine)
    return module


EXPORTED = ("run_job", "help", "leave", "gather", "read_ticks")

_STATE, _JOB, _THREAD = ("state", POINTER), ("job", POINTER), ("thread", I64)


def _byte(code: Function, base: Value, offset: int) -> Value:
    return code.offset(base, offset, "i8")


def _load_atomic(code: Function, place: Value, type: Type, order: str) -> Value:
    return code.instruction(
        f"load atomic {type_text(type)}, {typed(place)} {order}, align {type.bits // 8}", type
    )


def _store_atomic(code: Function, value: Value, place: Value, order: str) -> None:
    code.line(f"store atomic {typed(value)}, {typed(place)} {order}, align {value.type.bits // 8}")


def _slot(code: Function, state: Value, number: Value) -> Value:
    first = _byte(code, state, SLOTS)
    return code.offset(first, code.multiply(number, constant(SLOT_BYTES, I64)), "i8")


def _emit_wake_sleeper(module: Module) -> None:
    """`wake_sleeper(state, slot)`: wakes the slot's thread if it sleeps."""
    code = module.function("wake_sleeper", (_STATE, ("slot", POINTER)))
    state, slot = code.parameters
    place = _byte(code, slot, ASLEEP)
    asleep = _load_atomic(code, place, I32, "seq_cst")
    with code.when(code.compare("ne", asleep, constant(0, I32))):
        # Waking takes its time: nobody else need do it meanwhile.
        _store_atomic(code, constant(0, I32), place, "monotonic")
        code.call_void("wake", _byte(code, state, CALLS), _byte(code, slot, SIGNAL))
    code.finish()


def _emit_publish(module: Module) -> None:
    """`publish(state, job)`: lets threads claim the chunks of the job's phase."""
    code = module.function("publish", (_STATE, _JOB))
    state, job = code.parameters
    threads = word_of(code, job, JOB_THREADS)
    # A row of limits: how many chunks each slot has, and how many there are in all.
    columns = code.add(threads, ONE)
    row = code.multiply(word_of(code, job, PHASE), columns)
    limits = code.offset(word_of(code, job, LIMITS, POINTER), row, "i64")
    total = code.load(code.offset(limits, threads, "i64"), I64)
    _store_atomic(code, total, _byte(code, state, LEFT), "monotonic")
    allowed = code.binary("shl", threads, constant(_THREADS_SHIFT, I64))
    each = code.begin_loop(ZERO, threads)
    chunks = code.load(code.offset(limits, each.index, "i64"), I64)
    shifted = code.binary("shl", chunks, constant(_CHUNKS_SHIFT, I64))
    word = code.binary("or", allowed, shifted)
    _store_atomic(code, word, _byte(code, _slot(code, state, each.index), WORD), "release")
    code.end_loop(each)
    code.instruction(f"atomicrmw add {typed(_byte(code, state, GENERATION))}, i64 1 seq_cst", I64)
    each = code.begin_loop(ZERO, threads)
    chunks = code.load(code.offset(limits, each.index, "i64"), I64)
    with code.when(code.compare("ne", chunks, ZERO)):
        code.call_void("wake_sleeper", state, _slot(code, state, each.index))
    code.end_loop(each)
    code.finish()


def _emit_advance(module: Module, machine: str) -> None:
    """`advance(state, job, thread)`: what follows a phase that is complete.

    Runs the phases that are not worth sharing, and all of them if the job is run alone; comes back
    when a phase is published, or when the job is finished.
    """
    code = module.function("advance", (_STATE, _JOB, _THREAD))
    state, job, thread = code.parameters
    alone = code.compare("ne", word_of(code, job, ALONE), ZERO)
    count = word_of(code, job, PHASE_COUNT)
    with code.forever() as behind:
        ticks = word_of(code, job, TICKS, POINTER)
        with code.when(code.instruction(f"icmp ne {typed(ticks)}, null", Type("i1"))):
            now = emit_ticks(code, machine)
            place = code.offset(ticks, word_of(code, job, PHASE), "i64")
            spent = code.subtract(now, word_of(code, job, BEFORE))
            code.store(code.add(code.load(place, I64), spent), place)
            set_word(code, job, BEFORE, now)
        following = code.call("next_phase", I64, job)
        set_word(code, job, PHASE, following)
        over = code.compare("eq", following, count)
        with code.when(over):
            code.call_void("record", job)
            run = code.add(word_of(code, job, RUN), ONE)
            set_word(code, job, RUN, run)
            set_word(code, job, PHASE, word_of(code, job, START))
            finished = code.compare("eq", run, word_of(code, job, RUNS))
            with code.when(code.binary("and", finished, _not(code, alone))):
                _store_atomic(code, ONE, _byte(code, state, FINISHED), "release")
                generation = _byte(code, state, GENERATION)
                code.instruction(f"atomicrmw add {typed(generation)}, i64 1 seq_cst", I64)
                code.call_void("wake_sleeper", state, _slot(code, state, ZERO))
            code.leave_when(finished, behind)
        with code.when(_not(code, over)):
            phase = phase_of(code, job, following)
            shared = code.compare("ne", word_of(code, phase, SHARED), ZERO)
            shared = code.binary("and", shared, _not(code, alone))
            with code.when(shared):
                code.call_void("publish", state, job)
            code.leave_when(shared, behind)
            code.call_void("run_phase", job, thread)
    code.finish()


def _not(code: Function, value: Value) -> Value:
    return code.binary("xor", value, constant(True, value.type))


def _emit_complete(module: Module) -> None:
    """`complete(state, thread, chunks)`: notes chunks as completed; the last one advances."""
    code = module.function("complete", (_STATE, _THREAD, ("chunks", I64)))
    state, thread, chunks = code.parameters
    with code.when(code.compare("ne", chunks, ZERO)):
        job = code.load(_byte(code, state, JOB), POINTER)
        left = _byte(code, state, LEFT)
        before = code.instruction(f"atomicrmw sub {typed(left)}, {typed(chunks)} acq_rel", I64)
        with code.when(code.compare("eq", before, chunks)):
            code.call_void("advance", state, job, thread)
    code.finish()


def _emit_give_way(module: Module, machine: str) -> None:
    """`give_way(state, thread, chunks)`: now and then completes the chunks and yields.

    Gives the chunks that are still to be noted as completed.
    """
    code = module.function("give_way", (_STATE, _THREAD, ("chunks", I64)), result=I64)
    state, thread, chunks = code.parameters
    left = code.allocate(1, "i64")
    code.store(chunks, left)
    yielded = _byte(code, _slot(code, state, thread), YIELDED)
    since = code.subtract(emit_ticks(code, machine), code.load(yielded, I64))
    patience = code.load(_byte(code, state, YIELD_TICKS), I64)
    with code.when(code.compare("ugt", since, patience)):
        code.call_void("complete", state, thread, chunks)
        code.store(ZERO, left)
        emit_yield(code, _byte(code, state, CALLS))
        code.store(emit_ticks(code, machine), yielded)
    code.finish(code.load(left, I64))


def _emit_work(module: Module) -> None:
    """`work(state, thread)`: claims and runs all that there is; gives 1 if there was anything."""
    code = module.function("work", (_STATE, _THREAD), result=I64)
    state, thread = code.parameters
    open_, found = code.allocate(1, "i64"), code.allocate(1, "i64")
    code.store(ZERO, open_)
    code.store(ZERO, found)
    threads = _load_atomic(code, _byte(code, state, THREADS), I64, "monotonic")
    slots = code.begin_loop(ZERO, threads)
    number = code.binary("urem", code.add(thread, slots.index), threads)
    place = _byte(code, _slot(code, state, number), WORD)
    mask = constant(MOST_CHUNKS, I64)
    with code.forever() as behind:
        word = _load_atomic(code, place, I64, "acquire")
        following = code.binary("and", word, mask)
        chunks = code.binary("lshr", word, constant(_CHUNKS_SHIFT, I64))
        chunks = code.binary("and", chunks, mask)
        allowed = code.binary("lshr", word, constant(_THREADS_SHIFT, I64))
        nothing = code.compare("uge", following, chunks)
        code.leave_when(code.binary("or", nothing, code.compare("uge", thread, allowed)), behind)
        claimed = code.add(word, ONE)
        pair = code.instruction(
            f"cmpxchg {typed(place)}, {typed(word)}, {typed(claimed)} acq_rel acquire",
            Type("{ i64, i1 }"),
        )
        with code.when(code.instruction(f"extractvalue {typed(pair)}, 1", Type("i1"))):
            job = code.load(_byte(code, state, JOB), POINTER)
            code.call_void("run_chunk", job, thread, number, following)
            code.store(code.add(code.load(open_, I64), ONE), open_)
            done = code.load(open_, I64)
            code.store(code.call("give_way", I64, state, thread, done), open_)
            code.store(ONE, found)
    code.end_loop(slots)
    code.call_void("complete", state, thread, code.load(open_, I64))
    code.finish(code.load(found, I64))


def _emit_wait(module: Module, waiting: Waiting) -> None:
    """`wait(state, thread, seen, spins)` returns when the generation is another one.

    Spins for a while and then sleeps. May return early.
    """
    parameters = (_STATE, _THREAD, ("seen", I64), ("spins", I64))
    code = module.function("wait", parameters)
    state, thread, seen, spins = code.parameters
    place, calls = _byte(code, state, GENERATION), _byte(code, state, CALLS)
    awake_since = _byte(code, state, AWAKE_SINCE)
    awake_ticks = code.load(_byte(code, state, AWAKE_TICKS), I64)
    busy_ticks = code.load(_byte(code, state, BUSY_TICKS), I64)
    slot = _slot(code, state, thread)
    signal, asleep = _byte(code, slot, SIGNAL), _byte(code, slot, ASLEEP)
    busy_since = _byte(code, slot, BUSY_SINCE)
    left, before = code.allocate(1, "i64"), code.allocate(1, "i64")
    code.store(emit_ticks(code, waiting.machine), before)
    code.store(spins, left)
    since = code.subtract(code.load(before, I64), code.load(busy_since, I64))
    with code.when(code.compare("ult", since, busy_ticks)):
        few = constant(SPINS_WHEN_BUSY, I64)
        code.store(code.minimum(spins, few), left)
    with code.forever() as behind:
        now = _load_atomic(code, place, I64, "acquire")
        remaining = code.load(left, I64)
        over = code.compare("sle", remaining, ZERO)
        code.leave_when(code.binary("or", code.compare("ne", now, seen), over), behind)
        emit_pause(code, waiting.machine)
        ticks = emit_ticks(code, waiting.machine)
        since = code.subtract(ticks, _load_atomic(code, awake_since, I64, "monotonic"))
        tired = code.convert("zext", code.compare("uge", since, awake_ticks), "i64")
        code.store(code.subtract(remaining, tired), left)
        gap = code.subtract(ticks, code.load(before, I64))
        code.store(ticks, before)
        # Somebody else had this core.
        with code.when(code.compare("ugt", gap, code.load(_byte(code, state, GAP_TICKS), I64))):
            code.store(ticks, busy_since)
            code.store(ZERO, left)
    with code.when(code.compare("sle", code.load(left, I64), ZERO)):
        old = _load_atomic(code, signal, I32, "seq_cst")
        code.instruction(f"atomicrmw xchg {typed(asleep)}, i32 1 seq_cst", I32)
        now = _load_atomic(code, place, I64, "seq_cst")
        with code.when(code.compare("eq", now, seen)):
            code.call_void("sleep", calls, signal, old)
        _store_atomic(code, constant(0, I32), asleep, "seq_cst")
        code.store(emit_ticks(code, waiting.machine), _byte(code, slot, YIELDED))
    code.finish()


def _emit_take_part(module: Module, machine: str) -> None:
    """`take_part(state, thread, end, spins)`: claims and waits, until the word `end` is set."""
    parameters = (_STATE, _THREAD, ("end", POINTER), ("spins", I64))
    code = module.function("take_part", parameters)
    state, thread, end, spins = code.parameters
    own = _byte(code, _slot(code, state, thread), WORD)
    with code.forever() as behind:
        seen = _load_atomic(code, _byte(code, state, GENERATION), I64, "acquire")
        over = _load_atomic(code, end, I64, "acquire")
        code.leave_when(code.compare("ne", over, ZERO), behind)
        word = _load_atomic(code, own, I64, "monotonic")
        of_own = code.binary("lshr", word, constant(_CHUNKS_SHIFT, I64))
        of_own = code.binary("and", of_own, constant(MOST_CHUNKS, I64))
        with code.when(code.compare("eq", of_own, ZERO)):
            courtesy = code.begin_loop(0, _COURTESY_SPINS)
            emit_pause(code, machine)
            code.end_loop(courtesy)
        found = code.call("work", I64, state, thread)
        with code.when(code.compare("eq", found, ZERO)):
            # Who has no part in this job need not be awake for its next phase.
            threads = _load_atomic(code, _byte(code, state, THREADS), I64, "monotonic")
            taking_part = code.compare("slt", thread, threads)
            code.call_void("wait", state, thread, seen, code.select(taking_part, spins, ZERO))
    code.finish()


def _emit_run_job(module: Module, machine: str) -> None:
    """`run_job(state, job)`: runs a job and returns when it is complete."""
    code = module.function("run_job", (_STATE, _JOB), internal=False)
    state, job = code.parameters
    started = emit_ticks(code, machine)
    set_word(code, job, PHASE, word_of(code, job, START))
    set_word(code, job, RUN, word_of(code, job, FROM))
    set_word(code, job, BEFORE, started)
    # In a forked child it may be that of a run which its parent goes on with.
    code.store(ZERO, word_of(code, job, ITERATION, POINTER))
    shared = code.compare("eq", word_of(code, job, ALONE), ZERO)
    with code.when(shared):
        code.store(job, _byte(code, state, JOB))
        threads = word_of(code, job, JOB_THREADS)
        _store_atomic(code, threads, _byte(code, state, THREADS), "monotonic")
        _store_atomic(code, ZERO, _byte(code, state, FINISHED), "monotonic")
        # After a while without jobs the thread has most likely slept: its time begins anew.
        yielded = _byte(code, _slot(code, state, ZERO), YIELDED)
        since = code.subtract(started, code.load(yielded, I64))
        patience = code.load(_byte(code, state, YIELD_TICKS), I64)
        many = code.multiply(patience, constant(_YIELDS_MISSED, I64))
        with code.when(code.compare("ugt", since, many)):
            code.store(started, yielded)
    code.call_void("advance", state, job, ZERO)
    with code.when(shared):
        end, spins = _byte(code, state, FINISHED), constant(OWNER_SPINS, I64)
        code.call_void("take_part", state, ZERO, end, spins)
    spent = code.subtract(emit_ticks(code, machine), started)
    set_word(code, job, ELAPSED, code.add(word_of(code, job, ELAPSED), spent))
    code.finish()


def _emit_help(module: Module) -> None:
    code = module.function("help", (_STATE, _THREAD), internal=False)
    state, thread = code.parameters
    end, spins = _byte(code, state, LEAVING), constant(HELPER_SPINS, I64)
    code.call_void("take_part", state, thread, end, spins)
    code.finish()


def _emit_leave(module: Module) -> None:
    """`leave(state, threads)`: every helper leaves; none of them has a claim."""
    code = module.function("leave", (_STATE, ("threads", I64)), internal=False)
    state, threads = code.parameters
    _store_atomic(code, ONE, _byte(code, state, LEAVING), "seq_cst")
    code.instruction(f"atomicrmw add {typed(_byte(code, state, GENERATION))}, i64 1 seq_cst", I64)
    each = code.begin_loop(ZERO, threads)
    code.call_void("wake_sleeper", state, _slot(code, state, each.index))
    code.end_loop(each)
    code.finish()


def _emit_read_ticks(module: Module, machine: str) -> None:
    code = module.function("read_ticks", (("place", POINTER),), internal=False)
    code.store(emit_ticks(code, machine), code.parameters[0])
    code.finish()
