"""What threads run together: kernels in phases, as records and in words that native code reads.

A job is a list of kernels in phases: the kernels of a phase are independent of each other, and the
next phase needs all of them. Each kernel of a phase is cut into slices, one for each thread, and
each slice into chunks. Here is the native code that runs chunks and whole phases, goes on to the
next phase, and copies the examples and results of a run. `scheduler` has that of the threads.
"""

from __future__ import annotations

from lamina.codegen.llvm import Function, Module, typed
from lamina.codegen.values import I8, I64, POINTER, Type, Value, constant
from lamina.records import frozen_dataclass

# What every kernel is called with: a section of the table of addresses, the number of the thread,
# and its first and last unit.
KERNEL_PARAMETERS = (("section", POINTER), ("thread", I64), ("first", I64), ("last", I64))

# A job, in words: what it is, which runs of it are wanted, and how far it is.
KERNELS, PHASES, LIMITS, PHASE_COUNT, JOB_THREADS, ITERATION, TICKS = range(7)
START, FROM, RUNS, ALONE, ROWS, BATCH, INPUTS, INPUT_LIST, OUTPUTS, OUTPUT_LIST = range(7, 17)
PHASE, RUN, BEFORE, ELAPSED = range(17, 21)
JOB_WORDS = 21
# A kernel and a phase, in words.
FUNCTION, SECTION, UNITS, AT_ONCE, SHARE, OFFSET = range(6)
KERNEL_WORDS = 6
FIRST, LAST, SHARED, BACK, ITERATIONS = range(5)
PHASE_WORDS = 5


@frozen_dataclass
class Kernel:
    """A call of a function that threads share.

    Attributes:
        function: its number among the functions of the program.
        section: where the addresses of its step begin in the table of addresses, in words.
        units: how many there are.
        at_once: of how many a chunk consists.
        share: into how many slices they are cut.
        offset: whose slot has the first slice; the following slots have the following ones.
    """

    function: int
    section: int
    units: int
    at_once: int
    share: int
    offset: int

    def chunks(self, slot: int, threads: int) -> int:
        """How many chunks of it are in a thread's slot."""
        number = (slot - self.offset) % threads
        if number >= self.share:
            return 0
        first, last = (self.units * n // self.share for n in (number, number + 1))
        return -(-(last - first) // self.at_once)


@frozen_dataclass
class Phase:
    """Kernels that are independent of each other.

    Attributes:
        first, last: the number of the first kernel, and of the one behind the last.
        shared: whether they are worth sharing; otherwise one thread runs them, the one that has
            completed the phase before.
        back: if the phase ends a repeated part of the program, the phase that begins it.
        iterations: how often that part is run; 0 if the phase ends none.
    """

    first: int
    last: int
    shared: bool
    back: int = 0
    iterations: int = 0


def emit_jobs(module: Module) -> None:
    """Writes the functions of jobs, of which `gather` can be exported.

    `run_phase(job, thread)`, `run_chunk(job, thread, slot, number)`, `next_phase(job)`,
    `record(job)`, and the kernel `gather(job, thread, first, last)`.
    """
    _emit_copy(module)
    _emit_gather(module)
    _emit_record(module)
    _emit_run_phase(module)
    _emit_next_phase(module)
    _emit_run_chunk(module)


ZERO, ONE = constant(0, I64), constant(1, I64)
_JOB = ("job", POINTER)


def word_of(code: Function, record: Value, number: int, type: Type = I64) -> Value:
    """A word of a job, a kernel or a phase."""
    return code.load(code.offset(record, number, "i64"), type)


def set_word(code: Function, record: Value, number: int, value: Value) -> None:
    """Changes a word of a job."""
    code.store(value, code.offset(record, number, "i64"))


def _record(code: Function, base: Value, number: Value, words: int) -> Value:
    return code.offset(base, code.multiply(number, constant(words, I64)), "i64")


def phase_of(code: Function, job: Value, number: Value) -> Value:
    """The address of a phase of a job."""
    return _record(code, word_of(code, job, PHASES, POINTER), number, PHASE_WORDS)


def _emit_copy(module: Module) -> None:
    """`copy(target, source, bytes)`, 64 bytes at a time and then one by one."""
    parameters = (("target", POINTER), ("source", POINTER), ("bytes", I64))
    code = module.function("copy", parameters)
    target, source, size = code.parameters
    whole = code.binary("and", size, constant(-64, I64))
    for start, stop, step, type in (
        (ZERO, whole, 64, I8.wide(64)),
        (whole, size, 1, I8),
    ):
        loop = code.begin_loop(start, stop, step)
        value = code.load(code.offset(source, loop.index, "i8"), type)
        code.store(value, code.offset(target, loop.index, "i8"))
        code.end_loop(loop)
    code.finish()


def _entry(code: Function, entries: Value, number: Value) -> tuple[Value, Value, Value]:
    """(source, target, bytes) of an entry of a list."""
    start = _record(code, entries, number, 3)
    return (
        word_of(code, start, 0, POINTER),
        word_of(code, start, 1, POINTER),
        word_of(code, start, 2),
    )


def _emit_gather(module: Module) -> None:
    """`gather(job, thread, first, last)`: copies examples of this run into the inputs' buffers."""
    code = module.function("gather", KERNEL_PARAMETERS, internal=False)
    job, _, first, last = code.parameters
    start = code.multiply(word_of(code, job, RUN), word_of(code, job, BATCH))
    rows = code.offset(word_of(code, job, ROWS, POINTER), start, "i64")
    entries = word_of(code, job, INPUT_LIST, POINTER)
    each = code.begin_loop(ZERO, word_of(code, job, INPUTS))
    source, target, size = _entry(code, entries, each.index)
    examples = code.begin_loop(first, last)
    example = code.load(code.offset(rows, examples.index, "i64"), I64)
    code.call_void(
        "copy",
        code.offset(target, code.multiply(examples.index, size), "i8"),
        code.offset(source, code.multiply(example, size), "i8"),
        size,
    )
    code.end_loop(examples)
    code.end_loop(each)
    code.finish()


def _emit_record(module: Module) -> None:
    """`record(job)`: copies the results of a run to where they are kept."""
    code = module.function("record", (_JOB,))
    (job,) = code.parameters
    run, entries = word_of(code, job, RUN), word_of(code, job, OUTPUT_LIST, POINTER)
    each = code.begin_loop(ZERO, word_of(code, job, OUTPUTS))
    source, target, size = _entry(code, entries, each.index)
    code.call_void("copy", code.offset(target, code.multiply(run, size), "i8"), source, size)
    code.end_loop(each)
    code.finish()


def _call_kernel(code: Function, kernel: Value, thread: Value, first: Value, last: Value) -> None:
    function, section = (
        word_of(code, kernel, FUNCTION, POINTER),
        word_of(code, kernel, SECTION, POINTER),
    )
    arguments = ", ".join(map(typed, (section, thread, first, last)))
    code.line(f"call void {function.name}({arguments})")


def _emit_run_phase(module: Module) -> None:
    """`run_phase(job, thread)`: runs the whole phase of a job in this thread."""
    code = module.function("run_phase", (_JOB, ("thread", I64)))
    job, thread = code.parameters
    phase = phase_of(code, job, word_of(code, job, PHASE))
    kernels = word_of(code, job, KERNELS, POINTER)
    each = code.begin_loop(word_of(code, phase, FIRST), word_of(code, phase, LAST))
    kernel = _record(code, kernels, each.index, KERNEL_WORDS)
    _call_kernel(code, kernel, thread, ZERO, word_of(code, kernel, UNITS))
    code.end_loop(each)
    code.finish()


def _emit_next_phase(module: Module) -> None:
    """`next_phase(job)`: the number of the phase that follows the one that is complete."""
    code = module.function("next_phase", (_JOB,), result=I64)
    (job,) = code.parameters
    number = word_of(code, job, PHASE)
    phase = phase_of(code, job, number)
    following = code.allocate(1, "i64")
    code.store(code.add(number, ONE), following)
    iterations = word_of(code, phase, ITERATIONS)
    with code.when(code.compare("ne", iterations, ZERO)):
        place = word_of(code, job, ITERATION, POINTER)
        done = code.add(code.load(place, I64), ONE)
        again = code.compare("slt", done, iterations)
        code.store(code.select(again, done, ZERO), place)
        back, on = word_of(code, phase, BACK), code.load(following, I64)
        code.store(code.select(again, back, on), following)
    code.finish(code.load(following, I64))


def _emit_run_chunk(module: Module) -> None:
    """`run_chunk(job, thread, slot, number)`: runs a chunk that was claimed from a slot.

    The chunks of a slot are those of the phase's first kernel, then of the second one, and so on.
    """
    parameters = (_JOB, ("thread", I64), ("slot", I64), ("number", I64))
    code = module.function("run_chunk", parameters)
    job, thread, slot, number = code.parameters
    left, which = code.allocate(1, "i64"), code.allocate(1, "i64")
    threads, kernels = word_of(code, job, JOB_THREADS), word_of(code, job, KERNELS, POINTER)
    phase = phase_of(code, job, word_of(code, job, PHASE))
    code.store(number, left)
    code.store(word_of(code, phase, FIRST), which)
    with code.forever() as behind:
        kernel = _record(code, kernels, code.load(which, I64), KERNEL_WORDS)
        share, at_once = word_of(code, kernel, SHARE), word_of(code, kernel, AT_ONCE)
        distance = code.subtract(code.add(slot, threads), word_of(code, kernel, OFFSET))
        slice_ = code.binary("urem", distance, threads)
        units = word_of(code, kernel, UNITS)
        first, last = (
            code.binary("udiv", code.multiply(units, edge), share)
            for edge in (slice_, code.add(slice_, ONE))
        )
        rounded = code.subtract(code.add(code.subtract(last, first), at_once), ONE)
        chunks = code.binary("udiv", rounded, at_once)
        chunks = code.select(code.compare("slt", slice_, share), chunks, ZERO)
        ahead = code.load(left, I64)
        here = code.compare("slt", ahead, chunks)
        with code.when(here):
            start = code.add(first, code.multiply(ahead, at_once))
            _call_kernel(code, kernel, thread, start, code.minimum(code.add(start, at_once), last))
        code.leave_when(here, behind)
        code.store(code.subtract(ahead, chunks), left)
        code.store(code.add(code.load(which, I64), ONE), which)
    code.finish()
