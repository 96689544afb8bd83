"""Jobs, which threads run together: kernels in phases, as records and as words of native code.

A job is a list of kernels in phases: the kernels of a phase are independent of each other, and the
next phase needs all of them. A program has two jobs: `load` packs operands after the parameters
have changed, `program` does the runs. Each kernel of a phase is split into slices, one for each
thread, and each slice into chunks of work items. The native code here runs chunks and whole phases,
selects the next phase, and copies the examples and results of a run. `scheduler` has the code of
the threads, and `members` that of jobs which run other jobs.
"""

from __future__ import annotations

from lamina.base.records import frozen_dataclass
from lamina.codegen.llvm import Function, Module, type_text, typed
from lamina.codegen.values import I8, I16, I32, I64, POINTER, Integer, Type, Value

# The arguments of every kernel: a section of the table of addresses, the number of the thread, its
# first work item, and the work item after its last.
KERNEL_PARAMETERS = (("section", POINTER), ("thread", I64), ("first", I64), ("last", I64))

# The words of a job: its kernels and phases, the runs to do, and its progress.
KERNELS, PHASES, CHUNK_COUNTS, PHASE_COUNT, JOB_THREADS, ITERATION, TICKS = range(7)
PHASE_BEFORE_RUN, FIRST_RUN, RUNS, ALONE, ROWS, BATCH = range(7, 13)
INPUTS, INPUT_LIST, OUTPUTS, OUTPUT_LIST = range(13, 17)
PHASE, RUN, PHASE_START_TICKS = range(17, 20)
# A window of runs, if its WINDOW_TICKS are not 0: the ticks and runs so far, and the reading of the
# counter after which it is over. Then no further run begins: the present one is the LAST_RUN.
WINDOW_TICKS, ELAPSED, DONE, WINDOW_END, LAST_RUN = range(20, 25)
# The members that a run computes: their count, 0 for a job without members, the address of their
# numbers, and the bytes between the ROWS of one member and of the next.
LANES, MEMBERS, MEMBER_ROWS = range(25, 28)
JOB_WORDS = 28
# The words of an entry of the lists of inputs and outputs. The bytes are those of an example or of
# a result. With members: the bytes from a member's data or record to the next one's, those of an
# element, and the members between which the elements of one member lie in the program's buffer.
SOURCE, TARGET, BYTES, MEMBER_BYTES, ELEMENT_BYTES, ENTRY_LANES = range(6)
ENTRY_WORDS = 6
# The words of a kernel and of a phase.
FUNCTION, SECTION, ITEMS, CHUNK_ITEMS, SLICE_COUNT, FIRST_SLOT = range(6)
KERNEL_WORDS = 6
FIRST, LAST, SHARED, BACK, ITERATIONS = range(5)
PHASE_WORDS = 5


@frozen_dataclass
class Kernel:
    """A function whose work items threads share.

    Attributes:
        function: the number of the function in the program.
        section: the offset of its step's section in the table of addresses, in words.
        items: the number of its work items.
        chunk_items: the number of work items in a chunk.
        slice_count: the number of slices.
        first_slot: the slot of the first slice; the next slots have the next slices.
    """

    function: int
    section: int
    items: int
    chunk_items: int
    slice_count: int
    first_slot: int

    def chunks(self, slot: int, threads: int) -> int:
        """The number of its chunks in a thread's slot."""
        number = (slot - self.first_slot) % threads
        if number >= self.slice_count:
            return 0
        first, last = (self.items * n // self.slice_count for n in (number, number + 1))
        return -(-(last - first) // self.chunk_items)


@frozen_dataclass
class Phase:
    """Kernels that are independent of each other.

    Attributes:
        first, last: the number of the first kernel, and of the kernel after the last.
        shared: whether threads share them; otherwise the thread that has completed the previous
            phase runs them all.
        back: the first phase of the repeated range that the phase ends, if it ends one.
        iterations: the number of runs of that range; 0 if the phase ends none.
    """

    first: int
    last: int
    shared: bool
    back: int = 0
    iterations: int = 0


@frozen_dataclass
class Entry:
    """The kernels and phases of one job.

    Attributes:
        threads: the number of threads that pay; 0 if there is nothing to run.
        functions: the number of functions that its kernels call. The module exports a table of
            their addresses under `exported_name`.
        kernels, phases: the kernels and phases of the job.
    """

    threads: int
    functions: int
    kernels: tuple[Kernel, ...]
    phases: tuple[Phase, ...]


@frozen_dataclass
class Layout:
    """The kernels of a native program, and its memory in addition to the program's buffers.

    Attributes:
        program: the job of every run.
        load: the job that runs once after the parameters were changed.
        thread_bytes: the size of a thread's workspace.
        shared_bytes: the size of the shared workspaces: prepacked operands and workspaces of
            steps. Packed parameters stay from run to run; all others reuse memory.
        shared_offsets: the offset of each of them.
        table: the table of addresses. Each entry is the number of a buffer: the program's buffers
            in its order, then the shared workspaces. Negative numbers count from the end and name
            the fixed workspaces.
        steps: the number of the step of each kernel of the program.
    """

    program: Entry
    load: Entry
    thread_bytes: int
    shared_bytes: int
    shared_offsets: tuple[int, ...]
    table: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def threads(self) -> int:
        """The number of threads that need a workspace."""
        return max(self.program.threads, self.load.threads, 1)

    @property
    def total_bytes(self) -> int:
        """The size of all workspaces."""
        return self.thread_bytes * self.threads + self.shared_bytes


def exported_name(entry: str) -> str:
    """The name of the table of functions of an entry, `"program"` or `"load"`."""
    return f"kernels_of_{entry}"


def emit_jobs(module: Module) -> None:
    """Writes the functions of jobs. `gather` and `gather_members` may be exported.

    `run_phase(job, thread)`, `run_chunk(job, thread, slot, number)`, `next_phase(job)`,
    `record(job)`, and the kernels `gather(job, thread, first, last)` and `gather_members`.
    """
    _emit_copy(module)
    _emit_interleave(module, "spread")
    _emit_interleave(module, "collect")
    _emit_gather(module)
    _emit_gather_members(module)
    _emit_record_members(module)
    _emit_record(module)
    _emit_run_phase(module)
    _emit_next_phase(module)
    _emit_run_chunk(module)


_JOB = ("job", POINTER)


def word_of(code: Function, record: Value, number: int, type: Type = I64) -> Value:
    """A word of a job, a kernel or a phase."""
    return code.load(code.offset(record, number, "i64"), type)


def set_word(code: Function, record: Value, number: int, value: Value) -> None:
    """Changes a word of a job."""
    code.store(value, code.offset(record, number, "i64"))


def record_of(code: Function, base: Value, number: Value, words: int) -> Value:
    """The address of a record in a list."""
    return code.offset(base, number * words, "i64")


def phase_of(code: Function, job: Value, number: Value) -> Value:
    """The address of a phase of a job."""
    return record_of(code, word_of(code, job, PHASES, POINTER), number, PHASE_WORDS)


def _emit_copy(module: Module) -> None:
    """`copy(target, source, bytes)`: 64 bytes at a time, then 4, the rest one by one."""
    parameters = (("target", POINTER), ("source", POINTER), ("bytes", I64))
    code = module.function("copy", parameters)
    target, source, size = code.parameters
    start: Integer = 0
    for step, type in ((64, I8.wide(64)), (4, I8.wide(4)), (1, I8)):
        stop = size & -step
        with code.loop(start, stop, step) as loop:
            value = code.load(code.offset(source, loop.index, "i8"), type)
            code.store(value, code.offset(target, loop.index, "i8"))
        start = stop


# The sizes of elements.
_WIDTHS = (I8, I16, I32, I64)


def _emit_interleave(module: Module, name: str) -> None:
    """`spread(lane, alone, bytes, bytes of an element, lanes)`, and `collect`, its inverse.

    `spread` copies the elements of one member from where they are neighbours to where those of
    `lanes` members lie between each other; `lane` is the member's first element there.
    """
    numbers = ((number, I64) for number in ("bytes", "width", "lanes"))
    code = module.function(name, (("lane", POINTER), ("alone", POINTER), *numbers))
    lane, alone, size, width, lanes = code.parameters
    with code.when(lanes.equals(1)):
        code.call_void("copy", *((lane, alone) if name == "spread" else (alone, lane)), size)
    for type in _WIDTHS:
        bytes = type.bits // 8
        count = code.select(lanes.differs(1) & width.equals(bytes), size // bytes, 0)
        with code.loop(0, count) as loop:
            text = type_text(type)
            between = code.offset(lane, loop.index * lanes, text)
            own = code.offset(alone, loop.index, text)
            target, source = (between, own) if name == "spread" else (own, between)
            code.store(code.load(source, type), target)


def _entry(code: Function, entries: Value, number: Value) -> tuple[Value, Value, Value]:
    """(source, target, bytes) of an entry of a list."""
    start = record_of(code, entries, number, ENTRY_WORDS)
    source, target = (word_of(code, start, number, POINTER) for number in (SOURCE, TARGET))
    return source, target, word_of(code, start, BYTES)


def _of_members(code: Function, entries: Value, number: Value) -> tuple[Value, Value, Value]:
    """(bytes between members, bytes of an element, lanes) of an entry of a list."""
    start = record_of(code, entries, number, ENTRY_WORDS)
    member_bytes, width, lanes = (
        word_of(code, start, n) for n in (MEMBER_BYTES, ELEMENT_BYTES, ENTRY_LANES)
    )
    return member_bytes, width, lanes


def _emit_gather(module: Module) -> None:
    """`gather(job, thread, first, last)`: copies the run's examples into the inputs' buffers."""
    code = module.function("gather", KERNEL_PARAMETERS, internal=False)
    job, _, first, last = code.parameters
    start = word_of(code, job, RUN) * word_of(code, job, BATCH)
    rows = code.offset(word_of(code, job, ROWS, POINTER), start, "i64")
    entries = word_of(code, job, INPUT_LIST, POINTER)
    with code.loop(0, word_of(code, job, INPUTS)) as inputs:
        source, target, size = _entry(code, entries, inputs.index)
        with code.loop(first, last) as examples:
            example = code.load(code.offset(rows, examples.index, "i64"), I64)
            to = code.offset(target, examples.index * size, "i8")
            code.call_void("copy", to, code.offset(source, example * size, "i8"), size)


def _emit_gather_members(module: Module) -> None:
    """`gather_members(job, thread, first, last)`: the same, of examples of each member's own."""
    code = module.function("gather_members", KERNEL_PARAMETERS, internal=False)
    job, _, first, last = code.parameters
    start = word_of(code, job, RUN) * word_of(code, job, BATCH)
    members, entries = (word_of(code, job, n, POINTER) for n in (MEMBERS, INPUT_LIST))
    all_rows = code.offset(word_of(code, job, ROWS, POINTER), start, "i64")
    with code.loop(0, word_of(code, job, INPUTS)) as inputs:
        source, target, size = _entry(code, entries, inputs.index)
        member_bytes, width, lanes = _of_members(code, entries, inputs.index)
        with code.loop(0, word_of(code, job, LANES)) as lane:
            member = code.load(code.offset(members, lane.index, "i64"), I64)
            rows = code.offset(all_rows, member * word_of(code, job, MEMBER_ROWS), "i8")
            data = code.offset(source, member * member_bytes, "i8")
            to = code.offset(target, lane.index * width, "i8")
            several = lanes.differs(1)
            for function, count in (("copy", (last, first)), ("spread", (first, last))):
                further = (width, lanes) if function == "spread" else ()
                with code.loop(first, code.select(several, *count[::-1])) as examples:
                    example = code.load(code.offset(rows, examples.index, "i64"), I64)
                    place = code.offset(to, examples.index * size * lanes, "i8")
                    alone = code.offset(data, example * size, "i8")
                    code.call_void(function, place, alone, size, *further)


def _emit_record_members(module: Module) -> None:
    """`record_members(job)`: copies the results of a run to the arrays of each member."""
    code = module.function("record_members", (_JOB,))
    (job,) = code.parameters
    run = word_of(code, job, RUN)
    members, entries = (word_of(code, job, n, POINTER) for n in (MEMBERS, OUTPUT_LIST))
    with code.loop(0, word_of(code, job, OUTPUTS)) as outputs:
        source, target, size = _entry(code, entries, outputs.index)
        member_bytes, width, lanes = _of_members(code, entries, outputs.index)
        own = code.select(lanes > 1, width, 0)
        with code.loop(0, word_of(code, job, LANES)) as lane:
            member = code.load(code.offset(members, lane.index, "i64"), I64)
            alone = code.offset(target, member * member_bytes + run * size, "i8")
            at = code.offset(source, lane.index * own, "i8")
            code.call_void("collect", at, alone, size, width, lanes)


def _emit_record(module: Module) -> None:
    """`record(job)`: copies the results of a run to the arrays of recorded outputs."""
    code = module.function("record", (_JOB,))
    (job,) = code.parameters
    run, entries = word_of(code, job, RUN), word_of(code, job, OUTPUT_LIST, POINTER)
    has_members = word_of(code, job, LANES).differs(0)
    with code.when(has_members):
        code.call_void("record_members", job)
    with code.loop(0, code.select(has_members, 0, word_of(code, job, OUTPUTS))) as outputs:
        source, target, size = _entry(code, entries, outputs.index)
        code.call_void("copy", code.offset(target, run * size, "i8"), source, size)


def _call_kernel(code: Function, kernel: Value, thread: Value, first: Value, last: Value) -> None:
    function, section = (word_of(code, kernel, n, POINTER) for n in (FUNCTION, SECTION))
    arguments = ", ".join(map(typed, (section, thread, first, last)))
    code.line(f"call void {function.name}({arguments})")


def _emit_run_phase(module: Module) -> None:
    """`run_phase(job, thread)`: runs the whole current phase in this thread."""
    code = module.function("run_phase", (_JOB, ("thread", I64)))
    job, thread = code.parameters
    phase = phase_of(code, job, word_of(code, job, PHASE))
    kernels = word_of(code, job, KERNELS, POINTER)
    with code.loop(word_of(code, phase, FIRST), word_of(code, phase, LAST)) as loop:
        kernel = record_of(code, kernels, loop.index, KERNEL_WORDS)
        _call_kernel(code, kernel, thread, code.constant(0), word_of(code, kernel, ITEMS))


def _emit_next_phase(module: Module) -> None:
    """`next_phase(job)`: the number of the phase after the one that is complete."""
    code = module.function("next_phase", (_JOB,), result=I64)
    (job,) = code.parameters
    number = word_of(code, job, PHASE)
    phase = phase_of(code, job, number)
    following = code.allocate(1, "i64")
    code.store(number + 1, following)
    iterations = word_of(code, phase, ITERATIONS)
    with code.when(iterations.differs(0)):
        iteration = word_of(code, job, ITERATION, POINTER)
        done = code.load(iteration, I64) + 1
        again = done < iterations
        code.store(code.select(again, done, 0), iteration)
        back, on = word_of(code, phase, BACK), code.load(following, I64)
        code.store(code.select(again, back, on), following)
    code.finish(code.load(following, I64))


def _emit_run_chunk(module: Module) -> None:
    """`run_chunk(job, thread, slot, number)`: runs a chunk that was claimed from a slot.

    A slot has the chunks of the phase's first kernel, then of the second one, and so on.
    """
    parameters = (_JOB, ("thread", I64), ("slot", I64), ("number", I64))
    code = module.function("run_chunk", parameters)
    job, thread, slot, number = code.parameters
    remaining, kernel_number = code.allocate(1, "i64"), code.allocate(1, "i64")
    threads, kernels = word_of(code, job, JOB_THREADS), word_of(code, job, KERNELS, POINTER)
    phase = phase_of(code, job, word_of(code, job, PHASE))
    code.store(number, remaining)
    code.store(word_of(code, phase, FIRST), kernel_number)
    with code.forever() as after:
        kernel = record_of(code, kernels, code.load(kernel_number, I64), KERNEL_WORDS)
        slice_count, chunk_items = (word_of(code, kernel, n) for n in (SLICE_COUNT, CHUNK_ITEMS))
        slice_number = (slot + threads - word_of(code, kernel, FIRST_SLOT)) % threads
        items = word_of(code, kernel, ITEMS)
        first, last = (items * edge // slice_count for edge in (slice_number, slice_number + 1))
        chunks = (last - first + chunk_items - 1) // chunk_items
        chunks = code.select(slice_number < slice_count, chunks, 0)
        chunk = code.load(remaining, I64)
        is_found = chunk < chunks
        with code.when(is_found):
            start = first + chunk * chunk_items
            _call_kernel(code, kernel, thread, start, code.minimum(start + chunk_items, last))
        code.leave_when(is_found, after)
        code.store(chunk - chunks, remaining)
        code.store(code.load(kernel_number, I64) + 1, kernel_number)
