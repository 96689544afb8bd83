"""Kernels that gather the examples of a batch: a work item copies one word."""

from __future__ import annotations

from lamina.codegen.c import Module
from lamina.codegen.values import I32, I64, Type, Value, constant
from lamina.engines.gpu.launches import Gather
from lamina.engines.gpu.schedule import NARROW
from lamina.engines.gpu.work_item import items_below
from lamina.program.program import Buffer, Program


def write_gathers(module: Module, program: Program) -> tuple[Gather, ...]:
    """Writes the kernels of the inputs that have examples with elements."""
    # An input without axes has no examples: its program is not run over data sets.
    inputs = [one for one in program.of_kind("input") if one.shape and one.bytes]
    return tuple(_write_gather(module, buffer) for buffer in inputs)


def _write_gather(module: Module, buffer: Buffer) -> Gather:
    """Writes the kernel of an input; inputs of one size share it."""
    batch = buffer.shape[0]
    each = buffer.bytes // batch
    # The largest word whose size divides an example, so that examples are whole, aligned words.
    element = next(Type(f"i{bits}") for bits in (64, 32, 8) if each % (bits // 8) == 0)
    words = each // element.bytes
    name = f"gather_{batch}_{words}_{element.element}"
    items = batch * words
    if not module.has(name):
        _write(module, name, element, batch, words)
    return Gather(name, buffer.name, items)


def _write(module: Module, name: str, element: Type, batch: int, words: int) -> None:
    buffers = [("examples", element.element), ("batch", element.element), ("rows", "i64")]
    code = module.kernel(name, buffers, [("run", I32)])
    examples, target, rows, run = code.parameters
    position = I32 if batch * words <= NARROW else I64

    def wide(value: Value) -> Value:
        return value if position == I64 else code.convert("zext", value, "i64")

    def at(buffer: Value, index: Value, type: Type) -> Value:
        return code.offset(buffer, index, type.element)

    with items_below(code, batch * words) as (item, _):
        own = item if position == I64 else code.convert("trunc", item, "i32")
        example, word = own, constant(0, position)
        if words > 1:
            example = code.binary("udiv", own, constant(words, position))
            word = code.binary("urem", own, constant(words, position))
        first = code.multiply(code.convert("zext", run, "i64"), constant(batch, I64))
        row = code.load(at(rows, code.add(first, wide(example)), I64), I64)
        source = code.add(code.multiply(row, constant(words, I64)), wide(word))
        value = code.load(at(examples, source, element), element)
        code.store(value, at(target, item, element))
    code.finish()
