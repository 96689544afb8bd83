"""Makes a program of a kernel: a Python function for each basic block."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Importing the families of instructions registers them.
from cuda_machine import arithmetic as arithmetic
from cuda_machine import matrices as matrices
from cuda_machine import memory_access as memory_access
from cuda_machine import warpgroups as warpgroups
from cuda_machine.blocks import Block, basic_blocks, registers_in, with_undefined_values
from cuda_machine.faults import Fault
from cuda_machine.syntax import BITS, Kernel, shared_layout
from cuda_machine.writer import HELPERS, Writer, canonical


@dataclass(frozen=True)
class Program:
    """A kernel that is ready to run.

    Attributes:
        kernel: its parameters and limits.
        blocks, codes: basic blocks and their functions (lanes, registers, idx, count).
        registers: the NumPy type of each register.
        lines: the text of each line with an instruction.
        granules: bytes of the smallest access of "shared" and "global" memory.
        shared_bytes: static shared memory of a block.
        by_warpgroups: whether warpgroups multiply matrices in shared memory.
    """

    kernel: Kernel
    blocks: list[Block]
    codes: list[Callable]
    registers: list[str]
    names: list[str]
    lines: dict[int, str]
    granules: dict[str, int]
    shared_bytes: int
    by_warpgroups: bool


def make_program(kernel, addresses):
    """The program of a kernel; variables of its module have a space and an address."""
    blocks = basic_blocks(with_undefined_values(kernel))
    warpgroups.check_sums(kernel.name, blocks)
    shared, shared_bytes = shared_layout(kernel)
    places = {**addresses, **{name: ("shared", offset) for name, offset in shared.items()}}
    places.update((parameter.name, ("param", parameter.offset)) for parameter in kernel.parameters)
    instructions = [instruction for block in blocks for instruction in block.all()]
    registers = {
        register.name: canonical(register)
        for instruction in instructions
        for operand in (*instruction.operands, instruction.guard)
        for register in registers_in(operand)
    }
    numbers = {name: number for number, name in enumerate(registers)}
    constants = {}
    writers = [Writer(kernel, numbers, places, constants) for _ in blocks]
    source = "\n".join(map(_source, writers, blocks))
    space = {**HELPERS, **constants}
    exec(compile(source, f"<{kernel.name}>", "exec"), space)
    return Program(
        kernel,
        blocks,
        [space[f"b{block.number}"] for block in blocks],
        list(registers.values()),
        list(registers),
        {instruction.line: instruction.text for instruction in instructions},
        {name: _granule(instructions, name) for name in ("shared", "global")},
        shared_bytes,
        any(instruction.name == "wgmma" for instruction in instructions),
    )


def _granule(instructions, space):
    """Bytes that are always accessed together: the size of the smallest access of a space."""
    sizes = [16]
    for instruction in instructions:
        if instruction.name in ("ld", "st"):
            if space in instruction.modifiers:
                sizes.append(BITS.get(instruction.modifiers[-1], 8) // 8)
        elif instruction.name == "cp":
            # A copy may read fewer bytes than its size, but whole elements of 16 bits.
            sizes.append(2 if space == "global" else 4)
        elif instruction.name == "ldmatrix":
            sizes.append(2 if "trans" in instruction.modifiers else 4)
    return min(sizes)


def _source(writer, block):
    """The function of a block."""
    try:
        for instruction in block.instructions:
            writer.write_instruction(instruction)
        result = _result(writer, block)
        written = sorted(block.written, key=lambda register: writer.numbers[register.name])
        kept = [(writer.numbers[register.name], writer.kept(register)) for register in written]
    except Fault as fault:
        raise Fault(
            fault.what, kernel=writer.kernel.name, line=fault.line, text=fault.text
        ) from fault.__cause__
    return _function(f"b{block.number}", writer, kept, result)


def _result(writer, block):
    """What the function returns: which lanes take a branch, or where a switch leads."""
    instruction = block.last
    if instruction is None or block.kind == "exit":
        return "None"
    if block.kind == "barrier":
        writer.write_instruction(instruction)
        return writer.lines.pop()
    return "None" if instruction.guard is None else writer.read(instruction.guard, "pred")


def _function(name, writer, kept, result):
    lines = [f"def {name}(m, R, idx, n):"]
    if writer.inputs:
        lines.append("    if idx is None:")
        lines += [f"        {line}" for line, _ in writer.inputs]
        lines.append("    else:")
        lines += [f"        {line}" for _, line in writer.inputs]
    lines += [f"    {line}" for line in writer.lines]
    if kept:
        lines.append("    if idx is None:")
        lines += [f"        R[{number}] = {value}" for number, value in kept]
        lines.append("    else:")
        lines += [f"        R.keep({number}, {value}, idx)" for number, value in kept]
    lines.append(f"    return {result}")
    return "\n".join(lines) + "\n"


class Registers(list[Any]):
    """The registers of all lanes; None for one that nobody wrote."""

    def __init__(self, types, count):
        super().__init__([None] * len(types))
        self._types = [np.dtype(name) for name in types]
        self._count = count

    def keep(self, number, value, idx):
        if self[number] is None:
            self[number] = np.zeros(self._count, self._types[number])
        self[number][idx] = value
