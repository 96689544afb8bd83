"""Reads the kernels of a PTX text: their instructions, and counts of some of them.

The counts are static: an instruction counts once, however often it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lamina.records import frozen_dataclass

_KERNEL = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)(.*?)\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(?:\s+\.\w+(?:\s+\d+)?)*\s+(\w+)")
_SHARED = re.compile(r"\.shared\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d+)\]")
_INSTRUCTION = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_BEFORE = re.compile(r"[{}]|([\w$]+):(?!:)")
# Commas between operands, and not those within braces.
_COMMA = re.compile(r",\s*(?![^{]*\})")
_LANES = {"v2": 2, "v4": 4, "v8": 8}
_MULTIPLY_ADDS = re.compile(r"fma\.")
# PTX ISA, sections on matrix multiply-accumulate instructions.
_TENSOR = re.compile(r"(mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)\.")
_MEMORY = re.compile(r"(ld|st|ldu|atom|red|cp|ldmatrix|stmatrix)\.")


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
    def space(self) -> str:
        """`"global"` or `"shared"` for a load or store of that memory, otherwise ""."""
        words = self.words
        if words[0] not in ("ld", "st"):
            return ""
        return next((word for word in words if word in ("global", "shared")), "")

    @property
    def bytes(self) -> int:
        """That a load or store of a work item moves."""
        *words, type = self.words
        lanes = max(_LANES.get(word, 1) for word in words)
        return int(re.sub(r"\D", "", type)) // 8 * lanes

    @property
    def is_other_access(self) -> bool:
        """Whether it accesses such memory, and is neither a load nor a store."""
        spaces = {"global", "shared"} & set(self.words)
        return bool(spaces and _MEMORY.match(self.opcode) and not self.space)


@frozen_dataclass
class Kernel:
    """A kernel in PTX.

    Attributes:
        name: of its function.
        parameters: the type and the name of each.
        shared: the name and the bytes of each array in shared memory.
        body: its instructions and labels, in the order of the text.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    shared: tuple[tuple[str, int], ...]
    body: tuple[Instruction, ...]

    def count(self, space: str) -> tuple[int, int]:
        """Loads from a memory: those of 16 bytes by a work item, and all."""
        loads = [one for one in self.body if one.space == space and one.opcode.startswith("ld")]
        return sum(one.bytes == 16 for one in loads), len(loads)

    def tensor_instructions(self) -> tuple[int, int]:
        """Instructions of tensor cores, and all that multiply and add floats."""
        tensor = sum(bool(_TENSOR.match(one.opcode)) for one in self.body)
        return tensor, tensor + sum(bool(_MULTIPLY_ADDS.match(one.opcode)) for one in self.body)


def kernels_in(ptx: str) -> Iterator[Kernel]:
    """The kernels of a text, as NVRTC writes it."""
    text = re.sub(r"//[^\n]*", "", ptx)
    # Arrays that several kernels could share are declared outside of them.
    outer = _SHARED.findall(_KERNEL.sub("", text))
    for name, parameters, _, body in _KERNEL.findall(text):
        yield Kernel(
            name,
            tuple(_PARAMETER.findall(parameters)),
            tuple((label, int(size)) for label, size in [*outer, *_SHARED.findall(body)]),
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
