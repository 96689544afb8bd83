"""Reads the kernels of a PTX text: their instructions, and counts of some of them.

The counts are static: an instruction counts once, however often it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lamina.base.records import frozen_dataclass

_KERNEL = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)(.*?)\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(?:\s+\.\w+(?:\s+\d+)?)*\s+(\w+)")
_SHARED = re.compile(r"\.shared\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d*)\]")
_INSTRUCTION = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_BEFORE = re.compile(r"[{}]|([\w$]+):(?!:)")
# Commas between operands, and not those within braces.
_COMMA = re.compile(r",\s*(?![^{]*\})")
_LANES = {"v2": 2, "v4": 4, "v8": 8}
_MATRICES = {"x1": 1, "x2": 2, "x4": 4}
_MULTIPLY_ADDS = re.compile(r"fma\.")
# PTX ISA, sections on matrix multiply-accumulate instructions.
_TENSOR = re.compile(r"(mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)\.")
_MEMORY = re.compile(r"(ld|st|ldu|atom|red|cp|ldmatrix|stmatrix)\.")


@frozen_dataclass
class MemoryOperand:
    """An operand of an instruction that is in memory.

    Attributes:
        space: `"global"` or `"shared"`.
        number: of the operand.
        bytes: that a work item moves.
        items: the work items of each warp that access it, the first ones; None if all do.
        length: the number of the operand that has the bytes that are read, if it is another one.
    """

    space: str
    number: int
    bytes: int
    items: int | None = None
    length: int | None = None

    @property
    def is_written(self) -> bool:
        """Whether it is written, because it is the destination; otherwise it is read."""
        return self.number == 0


@frozen_dataclass
class Instruction:
    """An instruction, or a label.

    Attributes:
        opcode: with its modifiers, `"ld.shared.v4.f32"`; "" for a label.
        operands: as text; the name of a label.
        guard: the predicate without which it does nothing; "" if there is none.
        negated: whether it does something without the predicate only.
    """

    opcode: str
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False

    @property
    def words(self) -> list[str]:
        """The opcode and its modifiers; `shared::cta` is `shared`."""
        return [word.partition("::")[0] for word in self.opcode.split(".")]

    @property
    def memory(self) -> tuple[MemoryOperand, ...]:
        """The operands in global and shared memory of instructions that read or write these.

        PTX ISA: ld, st, the non-bulk cp.async, and ldmatrix (the first eight work items have the
        addresses of the rows of the first matrix, the next eight of the second matrix).
        """
        name, *words = self.words
        spaces = [word for word in words if word in ("global", "shared")]
        if name in ("ld", "st") and spaces:
            lanes = max(_LANES.get(word, 1) for word in words)
            bytes = int(re.sub(r"\D", "", words[-1])) // 8 * lanes
            return (MemoryOperand(spaces[0], int(name == "ld"), bytes),)
        if name == "ldmatrix" and "m8n8" in words and words[-1] == "b16":
            (matrices,) = (_MATRICES[word] for word in words if word in _MATRICES)
            return (MemoryOperand("shared", 1, 16, 8 * matrices),)
        if (name, *words[:1]) == ("cp", "async") and spaces == ["shared", "global"]:
            bytes, length = int(self.operands[2]), 3 if len(self.operands) > 3 else None
            shared = MemoryOperand("shared", 0, bytes)
            return shared, MemoryOperand("global", 1, bytes, length=length)
        return ()

    @property
    def is_other_access(self) -> bool:
        """Whether it accesses such memory, and `memory` does not say where."""
        spaces = {"global", "shared"} & set(self.words)
        return bool(spaces and _MEMORY.match(self.opcode) and not self.memory)


@frozen_dataclass
class Kernel:
    """A kernel in PTX.

    Attributes:
        name: of its function.
        parameters: the type and the name of each.
        shared: the name and the bytes of each array in shared memory; the last one has none if it
            is the memory that launches add.
        body: its instructions and labels, in the order of the text.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    shared: tuple[tuple[str, int], ...]
    body: tuple[Instruction, ...]

    def count(self, space: str) -> tuple[int, int]:
        """Loads from a memory: the loads of 16 bytes by a work item, and all loads."""
        sizes = [
            operand.bytes
            for instruction in self.body
            for operand in instruction.memory
            if operand.space == space and not operand.is_written
        ]
        return sizes.count(16), len(sizes)

    def tensor_instructions(self) -> tuple[int, int]:
        """Instructions of tensor cores, and all that multiply and add floats."""
        opcodes = [instruction.opcode for instruction in self.body]
        tensor = sum(bool(_TENSOR.match(opcode)) for opcode in opcodes)
        return tensor, tensor + sum(bool(_MULTIPLY_ADDS.match(opcode)) for opcode in opcodes)


def kernels_in(ptx: str) -> Iterator[Kernel]:
    """The kernels of a text, as NVRTC writes it."""
    text = re.sub(r"//[^\n]*", "", ptx)
    # Arrays that several kernels could share are declared outside of them.
    outer = _SHARED.findall(_KERNEL.sub("", text))
    for name, parameters, _, body in _KERNEL.findall(text):
        arrays = [(label, int(size or 0)) for label, size in [*outer, *_SHARED.findall(body)]]
        yield Kernel(
            name,
            tuple(_PARAMETER.findall(parameters)),
            tuple(sorted(arrays, key=lambda array: not array[1])),
            tuple(_instructions(body)),
        )


def _instructions(body: str) -> Iterator[Instruction]:
    for statement in body.split(";"):
        line = statement.strip()
        # Labels, and braces around assembly language within C++, stand before an instruction.
        while match := _BEFORE.match(line):
            if match[1]:
                yield Instruction("", (match[1],))
            line = line[match.end() :].lstrip()
        if not line or line.startswith("."):
            continue
        match = _INSTRUCTION.fullmatch(line)
        assert match, line
        negated, guard, opcode, operands = match.groups()
        split = tuple(filter(None, _COMMA.split(operands.strip())))
        yield Instruction(opcode, split, guard or "", bool(negated))
