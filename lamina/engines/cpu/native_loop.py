"""The native side of running programs: barriers, parked helpers, and the loop over steps.

None of it depends on a program; it is compiled once in a process. Threads wait by spinning for a
short time and then sleeping: on a futex where the system is Linux, on a condition variable of the
C library elsewhere. Addresses of both stand in the waiting place itself, so that the code needs no
linking.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from lamina.engines.cpu.ir import I8, I32, I64, POINTER, Function, Module, Type, Value, constant

# Turns of spinning before sleep: some 50 microseconds at a barrier, and four times as long for
# helpers without a job, so that they are awake if the caller's next step comes soon.
BARRIER_SPINS, PARKED_SPINS = 2000, 8000

# A waiting place, in bytes from its start; each word that threads write has its own cache line.
ARRIVED, GENERATION, SLEEPERS, CALLS, MAILBOX, LOCK = 0, 64, 128, 192, 256, 320
GATE_BYTES = 512
# Under CALLS: the addresses of the functions that put to sleep and wake.
FUTEX_CALLS = ("syscall",)
CONDITION_CALLS = (
    *("pthread_mutex_lock", "pthread_mutex_unlock"),
    *("pthread_cond_wait", "pthread_cond_broadcast"),
)

# What every thread calls a program with.
PROGRAM_PARAMETERS = (
    ("table", POINTER),
    ("thread", I64),
    ("threads", I64),
    ("barrier", POINTER),
)

# A job, in words.
PROGRAM, TABLE, THREADS, RUNS, ROWS, BATCH, INPUTS, INPUT_LIST, OUTPUTS, OUTPUT_LIST, GATE = range(
    11
)
JOB_WORDS = 11

_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98, "arm64": 98}
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_PRIVATE = 0, 1, 128
_EVERYONE = 2**31 - 1


@dataclass(frozen=True)
class Waiting:
    """How threads wait on this machine.

    Attributes:
        machine: the processor's architecture, `"x86_64"`.
        futex: whether they sleep on a futex, not on a condition variable.
    """

    machine: str
    futex: bool


def waiting_for(machine: str) -> Waiting:
    """The best way to wait on this system."""
    return Waiting(machine, sys.platform == "linux" and machine in _FUTEX_NUMBER)


def emit_barrier(module: Module, waiting: Waiting) -> None:
    """Writes `barrier(gate, threads)`: all threads meet, and see what each did before."""
    _emit_wait(module, waiting)
    _emit_publish(module, waiting)
    code = module.function("barrier", (("gate", POINTER), ("threads", I64)))
    gate, threads = code.parameters
    with code.when(code.compare("sgt", threads, constant(1, I64))):
        old = _load_atomic(code, _at(code, gate, GENERATION), I32, "acquire")
        arrived = _at(code, gate, ARRIVED)
        before = code.instruction(f"atomicrmw add {arrived}, i64 1 acq_rel", I64)
        last = code.compare("eq", before, code.subtract(threads, constant(1, I64)))
        with code.when(last):
            code.line(f"store atomic i64 0, {arrived} monotonic, align 8")
            code.call_void("publish", gate, code.add(old, constant(1, I32)))
        with code.when(code.binary("xor", last, constant(True, last.type))):
            code.call_void("wait", gate, old, constant(BARRIER_SPINS, I64))
    code.finish()


def emit_native_loop(waiting: Waiting) -> Module:
    """The module that exports `run_job(job, thread)`, `park(gate, thread)` and `post`."""
    module = Module(fused=False)
    emit_barrier(module, waiting)
    _emit_copy(module)
    _emit_run_job(module)
    _emit_park(module)
    _emit_post(module)
    return module


EXPORTED = ("run_job", "park", "post")


def _at(code: Function, gate: Value, offset: int) -> Value:
    return code.offset(gate, offset, "i8")


def _load_atomic(code: Function, place: Value, type: Type, order: str) -> Value:
    return code.instruction(f"load atomic {type}, {place} {order}, align {type.bits // 8}", type)


def _pause(code: Function, machine: str) -> None:
    """Tells the processor that this thread waits in a loop."""
    if machine in ("x86_64", "AMD64"):
        code.module.declare("llvm.x86.sse2.pause", "void", [])
        code.call_void("llvm.x86.sse2.pause")
    else:
        code.module.declare("llvm.aarch64.hint", "void", [I32])
        # 1 is the number of YIELD.
        code.call_void("llvm.aarch64.hint", constant(1, I32))


def _emit_wait(module: Module, waiting: Waiting) -> None:
    """`wait(gate, old, spins)` returns when the generation is no longer the old one."""
    code = module.function("wait", (("gate", POINTER), ("old", I32), ("spins", I64)))
    gate, old, spins = code.parameters
    place = _at(code, gate, GENERATION)
    entry = code.block
    spinning = code.new_block()
    turns = Value("%turns", I64)
    now = _load_atomic(code, place, I32, "acquire")
    changed = code.compare("ne", now, old)
    again = code.new_block()
    _pause(code, waiting.machine)
    following = code.add(turns, constant(1, I64))
    more = code.compare("slt", following, spins)
    sleeping = code.new_block()
    sleepers = _at(code, gate, SLEEPERS)
    code.instruction(f"atomicrmw add {sleepers}, i32 1 seq_cst", I32)
    asleep = code.new_block()
    _sleep(code, gate, place, old, waiting)
    seen = _load_atomic(code, place, I32, "seq_cst")
    still = code.compare("eq", seen, old)
    awake = code.new_block()
    code.instruction(f"atomicrmw sub {sleepers}, i32 1 seq_cst", I32)
    done = code.new_block()
    code.finish()
    entry.jump = f"br label %{spinning.label}"
    spinning.lines.insert(
        0, f"%turns = phi i64 [ 0, %{entry.label} ], [ {following.text}, %{again.label} ]"
    )
    spinning.jump = f"br {changed}, label %{done.label}, label %{again.label}"
    again.jump = f"br {more}, label %{spinning.label}, label %{sleeping.label}"
    sleeping.jump = f"br label %{asleep.label}"
    # Sleeping may have added blocks: its end is the block in front of `awake`.
    end = code.blocks[code.blocks.index(awake) - 1]
    end.jump = f"br {still}, label %{asleep.label}, label %{awake.label}"
    awake.jump = f"br label %{done.label}"


def _sleep(code: Function, gate: Value, place: Value, old: Value, waiting: Waiting) -> None:
    """Sleeps while the generation is the old one; may wake for nothing."""
    if waiting.futex:
        call = code.load(_at(code, gate, CALLS), POINTER)
        number = _FUTEX_NUMBER[waiting.machine]
        code.line(
            f"call i64 (i64, ...) {call.text}(i64 {number}, {place}, "
            f"i32 {_FUTEX_WAIT | _FUTEX_PRIVATE}, {old}, ptr null, ptr null, i32 0)"
        )
        return
    lock, unlock, wait, _ = (
        code.load(_at(code, gate, CALLS + 8 * number), POINTER) for number in range(4)
    )
    mutex = code.load(_at(code, gate, LOCK), POINTER)
    condition = code.load(_at(code, gate, LOCK + 8), POINTER)
    code.line(f"call i32 {lock.text}({mutex})")
    seen = _load_atomic(code, place, I32, "seq_cst")
    with code.when(code.compare("eq", seen, old)):
        code.line(f"call i32 {wait.text}({condition}, {mutex})")
    code.line(f"call i32 {unlock.text}({mutex})")


def _emit_publish(module: Module, waiting: Waiting) -> None:
    """`publish(gate, new)` sets the generation and wakes those who sleep."""
    code = module.function("publish", (("gate", POINTER), ("new", I32)))
    gate, new = code.parameters
    place = _at(code, gate, GENERATION)
    code.line(f"store atomic {new}, {place} seq_cst, align 4")
    sleepers = _load_atomic(code, _at(code, gate, SLEEPERS), I32, "seq_cst")
    with code.when(code.compare("ne", sleepers, constant(0, I32))):
        if waiting.futex:
            call = code.load(_at(code, gate, CALLS), POINTER)
            number = _FUTEX_NUMBER[waiting.machine]
            code.line(
                f"call i64 (i64, ...) {call.text}(i64 {number}, {place}, "
                f"i32 {_FUTEX_WAKE | _FUTEX_PRIVATE}, i32 {_EVERYONE}, ptr null, ptr null, i32 0)"
            )
        else:
            lock, unlock, _, broadcast = (
                code.load(_at(code, gate, CALLS + 8 * index), POINTER) for index in range(4)
            )
            mutex = code.load(_at(code, gate, LOCK), POINTER)
            condition = code.load(_at(code, gate, LOCK + 8), POINTER)
            code.line(f"call i32 {lock.text}({mutex})")
            code.line(f"call i32 {broadcast.text}({condition})")
            code.line(f"call i32 {unlock.text}({mutex})")
    code.finish()


def _emit_copy(module: Module) -> None:
    """`copy(target, source, bytes)`, 64 bytes at a time and then one by one."""
    parameters = (("target", POINTER), ("source", POINTER), ("bytes", I64))
    code = module.function("copy", parameters)
    target, source, size = code.parameters
    whole = code.binary("and", size, constant(-64, I64))
    for start, stop, step, type in (
        (constant(0, I64), whole, 64, I8.wide(64)),
        (whole, size, 1, I8),
    ):
        loop = code.begin_loop(start, stop, step)
        value = code.load(code.offset(source, loop.index, "i8"), type)
        code.store(value, code.offset(target, loop.index, "i8"))
        code.end_loop(loop)
    code.finish()


def _emit_run_job(module: Module) -> None:
    """`run_job(job, thread)`: what every thread of the job does."""
    parameters = (("job", POINTER), ("thread", I64))
    code = module.function("run_job", parameters, internal=False)
    job, thread = code.parameters

    def word(number: int, type: Type) -> Value:
        return code.load(code.offset(job, number, "i64"), type)

    program, table, gate = word(PROGRAM, POINTER), word(TABLE, POINTER), word(GATE, POINTER)
    threads, batch = word(THREADS, I64), word(BATCH, I64)
    rows, inputs, outputs = word(ROWS, POINTER), word(INPUTS, I64), word(OUTPUTS, I64)
    input_list, output_list = word(INPUT_LIST, POINTER), word(OUTPUT_LIST, POINTER)
    first = code.binary("udiv", code.multiply(batch, thread), threads)
    following = code.add(thread, constant(1, I64))
    last = code.binary("udiv", code.multiply(batch, following), threads)
    runs = code.begin_loop(constant(0, I64), word(RUNS, I64))
    # The examples of this run: each thread copies its share of every input.
    of_run = code.offset(rows, code.multiply(runs.index, batch), "i64")
    each = code.begin_loop(constant(0, I64), inputs)
    source, target, size = _entry(code, input_list, each.index)
    examples = code.begin_loop(first, last)
    example = code.load(code.offset(of_run, examples.index, "i64"), I64)
    code.call_void(
        "copy",
        code.offset(target, code.multiply(examples.index, size), "i8"),
        code.offset(source, code.multiply(example, size), "i8"),
        size,
    )
    code.end_loop(examples)
    code.end_loop(each)
    code.call_void("barrier", gate, threads)
    code.line(f"call void {program.text}({table}, {thread}, {threads}, {gate})")
    code.call_void("barrier", gate, threads)
    with code.when(code.compare("eq", thread, constant(0, I64))):
        each = code.begin_loop(constant(0, I64), outputs)
        source, target, size = _entry(code, output_list, each.index)
        place = code.offset(target, code.multiply(runs.index, size), "i8")
        code.call_void("copy", place, source, size)
        code.end_loop(each)
    code.end_loop(runs)
    code.finish()


def _entry(code: Function, entries: Value, number: Value) -> tuple[Value, Value, Value]:
    """(source, target, bytes) of an entry of a list."""
    start = code.offset(entries, code.multiply(number, constant(3, I64)), "i64")
    source = code.load(start, POINTER)
    target = code.load(code.offset(start, 1, "i64"), POINTER)
    return source, target, code.load(code.offset(start, 2, "i64"), I64)


def _emit_park(module: Module) -> None:
    """`park(gate, thread)`: a helper waits for jobs in its mailbox until there is none in it."""
    parameters = (("gate", POINTER), ("thread", I64))
    code = module.function("park", parameters, internal=False)
    gate, thread = code.parameters
    entry = code.block
    waiting = code.new_block()
    seen = Value("%seen", I32)
    code.call_void("wait", gate, seen, constant(PARKED_SPINS, I64))
    job = code.load(_at(code, gate, MAILBOX), POINTER)
    following = code.add(seen, constant(1, I32))
    leave = code.instruction(f"icmp eq {job}, null", Type("i1"))
    working = code.new_block()
    code.call_void("run_job", job, thread)
    shared = code.load(code.offset(job, GATE, "i64"), POINTER)
    threads = code.load(code.offset(job, THREADS, "i64"), I64)
    code.call_void("barrier", shared, threads)
    left = code.new_block()
    code.finish()
    entry.jump = f"br label %{waiting.label}"
    waiting.lines.insert(
        0, f"%seen = phi i32 [ 0, %{entry.label} ], [ {following.text}, %{working.label} ]"
    )
    waiting.jump = f"br {leave}, label %{left.label}, label %{working.label}"
    working.jump = f"br label %{waiting.label}"


def _emit_post(module: Module) -> None:
    """`post(gates, count, job)`: puts a job into mailboxes and takes part in it as thread 0.

    Without a job the helpers leave.
    """
    parameters = (("gates", POINTER), ("count", I64), ("job", POINTER))
    code = module.function("post", parameters, internal=False)
    gates, count, job = code.parameters
    loop = code.begin_loop(constant(0, I64), count)
    gate = code.load(code.offset(gates, loop.index, "ptr"), POINTER)
    code.store(job, _at(code, gate, MAILBOX))
    place = _at(code, gate, GENERATION)
    old = _load_atomic(code, place, I32, "monotonic")
    code.call_void("publish", gate, code.add(old, constant(1, I32)))
    code.end_loop(loop)
    there = code.instruction(f"icmp ne {job}, null", Type("i1"))
    with code.when(there):
        code.call_void("run_job", job, constant(0, I64))
        shared = code.load(code.offset(job, GATE, "i64"), POINTER)
        threads = code.load(code.offset(job, THREADS, "i64"), I64)
        code.call_void("barrier", shared, threads)
    code.finish()
