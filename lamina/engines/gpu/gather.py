"""Kernels around the runs of a program over a data set: a work item copies words.

The first one gathers the examples of a batch. On a device that counts the runs, the last one
records the outputs. There a buffer has the number of the present run twice: the first kernel reads
it and sets the copy, which the last kernel reads before it sets the number of the next run. So no
work item overwrites what others of its kernel read.
"""

from __future__ import annotations

from lamina.codegen.c import Function, Module
from lamina.codegen.values import I32, I64, Type, Value, constant
from lamina.engines.gpu.launches import Gather, Recorder
from lamina.engines.gpu.schedule import NARROW
from lamina.program.program import Program


def write_gather(module: Module, program: Program, *, counted: bool) -> Gather | None:
    """Writes the kernel of the inputs that have examples with elements; None if there are none.

    If `counted`, the number of the run is in a buffer, and there always is a kernel.
    """
    # An input without axes has no examples: its program is not run over data sets.
    inputs = [one for one in program.of_kind("input") if one.shape and one.bytes]
    if not inputs and not counted:
        return None
    # Examples are whole, aligned words.
    words = [_words(one.bytes // one.shape[0]) for one in inputs]
    buffers = [
        (f"{kind}{number}", element.element)
        for number, (element, _) in enumerate(words)
        for kind in ("examples", "batch")
    ]
    buffers += [("rows", "i64"), *([("runs", "i32")] if counted else [])]
    code = module.kernel("gather", buffers, [] if counted else [("run", I32)])
    *copied, rows, given = code.parameters
    item = code.item()
    run = code.load(given, I32) if counted else given
    for number, (one, (element, count)) in enumerate(zip(inputs, words, strict=True)):
        source, target = copied[2 * number : 2 * number + 2]
        with code.when(code.compare("ult", item, constant(one.shape[0] * count, I64))):
            _gather(code, one.shape[0], element, count, (source, target, rows), item, run)
    if counted:
        _count(code, item, run, _at(code, given, constant(1, I64), I32))
    most = max(
        (one.shape[0] * count for one, (_, count) in zip(inputs, words, strict=True)), default=1
    )
    return Gather(code.name, tuple(one.name for one in inputs), most)


def _gather(
    code: Function,
    batch: int,
    element: Type,
    words: int,
    buffers: tuple[Value, Value, Value],
    item: Value,
    run: Value,
) -> None:
    """Copies a word of an example to an input."""
    examples, target, rows = buffers
    position = I32 if batch * words <= NARROW else I64

    def wide(value: Value) -> Value:
        return value if position == I64 else code.convert("zext", value, "i64")

    own = item if position == I64 else code.convert("trunc", item, "i32")
    example, word = own, constant(0, position)
    if words > 1:
        example = code.binary("udiv", own, constant(words, position))
        word = code.binary("urem", own, constant(words, position))
    first = code.multiply(code.convert("zext", run, "i64"), constant(batch, I64))
    row = code.load(_at(code, rows, code.add(first, wide(example)), I64), I64)
    source = code.add(code.multiply(row, constant(words, I64)), wide(word))
    value = code.load(_at(code, examples, source, element), element)
    code.store(value, _at(code, target, item, element))


def _words(size: int) -> tuple[Type, int]:
    """The largest word whose size divides some bytes, and how many they are."""
    element = next(Type(f"i{bits}") for bits in (64, 32, 8) if size % (bits // 8) == 0)
    return element, size // element.bytes


def _at(code: Function, buffer: Value, index: Value, type: Type) -> Value:
    return code.offset(buffer, index, type.element)


def _count(code: Function, item: Value, number: Value, address: Value) -> None:
    """The first work item stores a number of the run."""
    with code.when(code.compare("eq", item, constant(0, I64))):
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
        inside = code.compare("ult", item, constant(words, I64))
        with code.when(code.binary("and", inside, code.is_given(records))):
            target = code.add(code.multiply(number, constant(words, I64)), item)
            value = code.load(_at(code, output, item, element), element)
            code.store(value, _at(code, records, target, element))
    _count(code, item, code.add(run, constant(1, I32)), runs)
    return Recorder(code.name, {name: words for name, (_, words) in outputs})
