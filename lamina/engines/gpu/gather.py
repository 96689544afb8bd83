"""Kernels around the runs of a program over a data set: a work item copies one word.

They gather the examples of a batch. On a device that counts the runs they also record the outputs,
and count.
"""

from __future__ import annotations

from lamina.codegen.c import Function, Module
from lamina.codegen.values import I32, I64, Type, Value, constant
from lamina.engines.gpu.launches import Gather
from lamina.engines.gpu.schedule import NARROW
from lamina.engines.gpu.work_item import items_below
from lamina.program.program import Buffer, Program


def write_gathers(module: Module, program: Program, *, counted: bool) -> tuple[Gather, ...]:
    """Writes the kernels of the inputs that have examples with elements.

    If `counted`, the number of the run is in a buffer.
    """
    # An input without axes has no examples: its program is not run over data sets.
    inputs = [one for one in program.of_kind("input") if one.shape and one.bytes]
    return tuple(_write_gather(module, buffer, counted=counted) for buffer in inputs)


def _write_gather(module: Module, buffer: Buffer, *, counted: bool) -> Gather:
    """Writes the kernel of an input; inputs of one size share it."""
    batch = buffer.shape[0]
    # Examples are whole, aligned words.
    element, words = _words(buffer.bytes // batch)
    name = f"gather_{batch}_{words}_{element.element}"
    gather = Gather(name, buffer.name, batch * words)
    if module.has(name):
        return gather
    buffers = [("examples", element.element), ("batch", element.element), ("rows", "i64")]
    buffers += [("run", "i32")] if counted else []
    code = module.kernel(name, buffers, [] if counted else [("run", I32)])
    examples, target, rows, given = code.parameters
    position = I32 if batch * words <= NARROW else I64

    def wide(value: Value) -> Value:
        return value if position == I64 else code.convert("zext", value, "i64")

    with items_below(code, batch * words) as (item, _):
        own = item if position == I64 else code.convert("trunc", item, "i32")
        example, word = own, constant(0, position)
        if words > 1:
            example = code.binary("udiv", own, constant(words, position))
            word = code.binary("urem", own, constant(words, position))
        run = code.load(given, I32) if counted else given
        first = code.multiply(code.convert("zext", run, "i64"), constant(batch, I64))
        row = code.load(_at(code, rows, code.add(first, wide(example)), I64), I64)
        source = code.add(code.multiply(row, constant(words, I64)), wide(word))
        value = code.load(_at(code, examples, source, element), element)
        code.store(value, _at(code, target, item, element))
    return gather


def _words(size: int) -> tuple[Type, int]:
    """The largest word whose size divides some bytes, and how many they are."""
    element = next(Type(f"i{bits}") for bits in (64, 32, 8) if size % (bits // 8) == 0)
    return element, size // element.bytes


def _at(code: Function, buffer: Value, index: Value, type: Type) -> Value:
    return code.offset(buffer, index, type.element)


def write_recorders(module: Module, program: Program) -> tuple[dict[str, tuple[str, int]], str]:
    """Writes the kernels that record the outputs of a run, and the one that counts it.

    Returns:
        the kernel of each output with elements, and the name of the other one.
    """
    outputs = [(name, program.buffers[buffer]) for name, buffer in program.outputs]
    found = {one.name: _write_recorder(module, one.bytes) for _, one in outputs if one.bytes}
    code = module.kernel("count", [("run", "i32")], [])
    (run,) = code.parameters
    with items_below(code, 1):
        code.store(code.add(code.load(run, I32), constant(1, I32)), run)
    return found, code.name


def _write_recorder(module: Module, size: int) -> tuple[str, int]:
    """Writes the kernel of an output; outputs of one size share it."""
    element, words = _words(size)
    name = f"record_{words}_{element.element}"
    if not module.has(name):
        buffers = [("records", element.element), ("output", element.element), ("run", "i32")]
        code = module.kernel(name, buffers, [])
        records, output, run = code.parameters
        with items_below(code, words) as (item, _):
            number = code.convert("zext", code.load(run, I32), "i64")
            target = code.add(code.multiply(number, constant(words, I64)), item)
            value = code.load(_at(code, output, item, element), element)
            code.store(value, _at(code, records, target, element))
    return name, words
