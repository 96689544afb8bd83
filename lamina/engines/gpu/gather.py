"""Kernels around the runs of a program over a data set: a work item copies words.

The first one gathers the examples of a batch. It rounds an input that the program only reads to
round it, so that the input itself is not written. On a device that counts the runs, the last one
records the outputs. There a buffer has the number of the present run twice: the first kernel reads
it and sets the copy, which the last kernel reads before it sets the number of the next run. So no
work item overwrites what others of its kernel read.
"""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float32, size_of
from lamina.codegen.c import Function, Module
from lamina.codegen.primitives import conversion, memory_element
from lamina.codegen.values import I32, I64, Type, Value, constant
from lamina.engines.gpu.launches import Gather, Recorder
from lamina.engines.gpu.schedule import NARROW
from lamina.program.program import Buffer, Program
from lamina.program.scalar import CONVERSIONS, Apply, Load
from lamina.program.steps import Loop, Step, Store, Write, reads_of


def rounding_steps(program: Program) -> dict[str, int]:
    """The inputs that a program only reads to round them, and the step that does it.

    The memory of the rounded elements is not used before that step.
    """
    rounding: dict[str, int] = {}
    for buffer in program.of_kind("input"):
        readers = [n for n, step in enumerate(program.steps) if buffer.name in reads_of(step)]
        if len(readers) == 1 and program.repeated(readers[0]) is None:
            store = _rounding_store(program.steps[readers[0]], buffer)
            if store is not None and _is_unused(program, store.buffer, readers[0]):
                rounding[buffer.name] = readers[0]
    return rounding


def _rounding_store(step: Step, input: Buffer) -> Store | None:
    """The store of a step that rounds all elements of an input, and does nothing else."""
    if not isinstance(step, Loop) or len(step.stages) != 1 or not isinstance(step.stages[0], Write):
        return None
    (write,) = step.stages
    assert isinstance(write, Write)
    (store, *others) = write.stores
    axes = (*step.axes, *write.axes)
    is_all = not others and size_of([axis.extent for axis in axes]) == input.size
    if not is_all or store.accumulate or not isinstance(store.value, Apply):
        return None
    is_same = store.value.operands == (Load(input.name, store.index, float32),)
    return store if is_same and store.value.primitive in CONVERSIONS else None


def _is_unused(program: Program, buffer: str, step: int) -> bool:
    """Whether a buffer is a temporary whose memory is used in no step before a step."""
    positions, plan = program.plan.positions(), program.plan.allocations
    (allocation,) = [planned for planned in plan if planned.buffer == buffer] or [None]
    if allocation is None:
        return False
    begin = positions[buffer]
    return not any(
        planned.first < step
        and planned is not allocation
        and positions[planned.buffer] < begin + allocation.bytes
        and begin < positions[planned.buffer] + planned.bytes
        for planned in plan
    )


@frozen_dataclass
class _Input:
    """An input, and the words of an example: how they are read and stored, and their number.

    Attributes:
        store: the store of the step that rounds them; None if they are copied.
    """

    name: str
    batch: int
    read: Type
    stored: Type
    words: int
    store: Store | None = None


def _input(program: Program, input: Buffer, rounding: Mapping[str, int]) -> _Input:
    """An input in words: vectors if they are rounded."""
    name, batch = input.name, input.shape[0]
    if name not in rounding:
        element, count = _words(input.bytes // batch)
        return _Input(name, batch, element, element, count)
    store = _rounding_store(program.steps[rounding[name]], input)
    assert store is not None
    count = input.size // batch
    lanes = next(lanes for lanes in (4, 2, 0) if not lanes or count % lanes == 0)
    read, stored = (
        Type(memory_element(dtype)).wide(lanes) for dtype in (input.dtype, store.value.dtype)
    )
    return _Input(name, batch, read, stored, count // max(lanes, 1), store)


def write_gather(
    module: Module, program: Program, rounding: Mapping[str, int], *, counted: bool
) -> Gather | None:
    """Writes the kernel of the inputs that have examples with elements; None if there are none.

    Inputs in `rounding` are rounded as these steps do. If `counted`, the number of the run is in a
    buffer, and there always is a kernel.
    """
    # An input without axes has no examples: its program is not run over data sets.
    input_buffers = [buffer for buffer in program.of_kind("input") if buffer.shape and buffer.bytes]
    if not input_buffers and not counted:
        return None
    # Examples are whole, aligned words.
    inputs = [_input(program, buffer, rounding) for buffer in input_buffers]
    buffers = [
        (f"{kind}{number}", type.element)
        for number, input_ in enumerate(inputs)
        for kind, type in (("examples", input_.read), ("batch", input_.stored))
    ]
    buffers += [("rows", "i64"), *([("runs", "i32")] if counted else [])]
    code = module.kernel("gather", buffers, [] if counted else [("run", I32)])
    *copied, rows, last = code.parameters
    item = code.item()
    run = code.load(last, I32) if counted else last
    for number, input_ in enumerate(inputs):
        source, target = copied[2 * number : 2 * number + 2]
        with code.when(code.compare("ult", item, input_.batch * input_.words)):
            _gather(code, input_, (source, target, rows), item, run)
    if counted:
        _count(code, item, run, _at(code, last, constant(1, I64), I32))
    most = max((input_.batch * input_.words for input_ in inputs), default=1)
    stored = {input_.name: input_.store.buffer for input_ in inputs if input_.store is not None}
    names = tuple(input_.name for input_ in inputs)
    return Gather(code.name, names, most, stored, tuple(rounding[name] for name in stored))


def _gather(
    code: Function, input_: _Input, buffers: tuple[Value, Value, Value], item: Value, run: Value
) -> None:
    """Copies a word of an example to an input, or rounds it."""
    (examples, target, rows), words, read = buffers, input_.words, input_.read
    is_narrow = input_.batch * words <= NARROW

    def wide(value: Value) -> Value:
        return code.convert("zext", value, "i64") if is_narrow else value

    number = code.convert("trunc", item, "i32") if is_narrow else item
    example, word = number, constant(0, number.type)
    if words > 1:
        example, word = number // words, number % words
    first = code.convert("zext", run, "i64") * input_.batch
    row = code.load(_at(code, rows, first + wide(example), I64), I64)
    source = row * words + wide(word)
    value = code.load(_at(code, examples, source, read), read, _vector_bytes(read))
    if input_.store is not None:
        assert isinstance(input_.store.value, Apply)
        value = conversion(code, input_.store.value, value)
    code.store(value, _at(code, target, item, input_.stored), _vector_bytes(input_.stored))


def _vector_bytes(type: Type) -> int:
    """The alignment of a vector: its size; 0 for a single word, which has its own."""
    return type.lanes * type.bytes


def _words(size: int) -> tuple[Type, int]:
    """The largest word whose size divides some bytes, and how many they are."""
    element = next(Type(f"i{bits}") for bits in (64, 32, 8) if size % (bits // 8) == 0)
    return element, size // element.bytes


def _at(code: Function, buffer: Value, index: Value, type: Type) -> Value:
    """The address of a word or vector of a number."""
    if type.lanes:
        index *= type.lanes
    return code.offset(buffer, index, type.element)


def _count(code: Function, item: Value, number: Value, address: Value) -> None:
    """The first work item stores a number of the run."""
    with code.when(item.equals(0)):
        code.store(number, address)


def write_recorder(module: Module, program: Program) -> Recorder:
    """Writes the kernel that records the outputs of a run with elements, and counts the run."""
    outputs = [
        (name, _words(program.buffers[buffer].bytes))
        for name, buffer in program.outputs
        if program.buffers[buffer].bytes
    ]
    buffers = [
        (f"{kind}{number}", element.element)
        for number, (_, (element, _)) in enumerate(outputs)
        for kind in ("records", "output")
    ]
    code = module.kernel("record", [*buffers, ("runs", "i32")], [])
    *copied, runs = code.parameters
    item = code.item()
    run = code.load(_at(code, runs, constant(1, I64), I32), I32)
    number = code.convert("zext", run, "i64")
    for position, (_, (element, words)) in enumerate(outputs):
        records, output = copied[2 * position : 2 * position + 2]
        with code.when(code.compare("ult", item, words) & code.is_given(records)):
            target = number * words + item
            value = code.load(_at(code, output, item, element), element)
            code.store(value, _at(code, records, target, element))
    _count(code, item, run + 1, runs)
    return Recorder(code.name, {name: words for name, (_, words) in outputs})
