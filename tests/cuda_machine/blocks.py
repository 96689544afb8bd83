"""Divides a kernel into basic blocks, and finds the registers that live between them."""

from dataclasses import dataclass, field, replace

from cuda_machine.faults import Fault
from cuda_machine.syntax import (
    BITS,
    Address,
    Immediate,
    Instruction,
    Label,
    Not,
    Register,
    Symbol,
    Vector,
)

# Instructions whose first operand is no destination.
_WITHOUT_RESULT = ["st", "bra", "bar", "barrier", "cp", "fence", "prefetch", "ret", "exit"]
# PTX ISA: undefined unless all threads of the warp execute them: those that are .aligned, and
# shfl.sync with all of them in its mask.
_WHOLE_WARP = ("mma", "ldmatrix", "shfl", "wgmma")

# What the instructions that end a block do.
_KINDS = {
    **dict.fromkeys(("ret", "exit"), "exit"),
    **dict.fromkeys(("bar", "barrier"), "barrier"),
    "bra": "branch",
}
# Repeated, it is NaN in floats of 16 and of 32 bits.
_BITS = 0xFFA5
_SHORT_INTEGERS = ("b16", "u16", "s16")


@dataclass
class Block:
    """Instructions that are run one after another by the same lanes.

    Attributes:
        number: blocks are numbered in the order of the text; the lowest ones are run first.
        instructions: without `last`.
        kind: "next", "branch", "exit" or "barrier".
        last: the instruction that ends the block; None if it only falls through.
        successors: of a branch: where it leads to if it is taken, and otherwise.
        together: whether all lanes of a warp must arrive together.
        live_in, written: registers that are read before they are written, and those that are
            written and read by later blocks.
    """

    number: int
    instructions: list[Instruction] = field(default_factory=list)
    kind: str = "next"
    last: Instruction | None = None
    successors: tuple[int, ...] = ()
    together: bool = False
    live_in: set[Register] = field(default_factory=set)
    written: set[Register] = field(default_factory=set)

    def all(self):
        return [*self.instructions, *([self.last] if self.last else [])]


def basic_blocks(kernel):
    """The blocks of a kernel, with their successors and the registers that live between them."""
    blocks, labels = _divided(kernel)
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        after = (following.number,) if following else ()
        block.successors = after if block.kind in ("next", "barrier") else ()
        if block.kind == "branch":
            branch = block.last
            (target,) = branch.operands
            if target.name not in labels:
                what = f"a branch to {target.name}, which is no label"
                raise Fault(what, kernel=kernel.name, line=branch.line, text=branch.text)
            block.successors = (labels[target.name], *(after if branch.guard else ()))
    _find_lives(blocks)
    return blocks


def _divided(kernel):
    blocks = [Block(0)]
    labels = {}

    def begin():
        if blocks[-1].all():
            blocks.append(Block(len(blocks)))
        return blocks[-1]

    def add(instruction):
        if instruction.name in _WHOLE_WARP:
            begin().together = True
        kind = _KINDS.get(instruction.name, "next")
        if kind == "next":
            blocks[-1].instructions.append(instruction)
        else:
            blocks[-1].last, blocks[-1].kind = instruction, kind
            begin()

    for statement in kernel.body:
        if isinstance(statement, Label):
            labels[statement.name] = begin().number
        elif (guard := statement.guard) is None or statement.name == "bra":
            add(statement)
        else:
            # A branch around it: the lanes without the predicate skip the instruction.
            skip = guard.register if isinstance(guard, Not) else Not(guard)
            end = f"skip#{len(blocks)}#{statement.line}"
            add(replace(statement, name="bra", modifiers=(), operands=(Symbol(end),), guard=skip))
            add(replace(statement, guard=None))
            labels[end] = begin().number
    if blocks[-1].kind == "next":
        # The end of a body is a return.
        blocks[-1].kind = "exit"
    return blocks, labels


def registers_in(operand):
    """All registers that an operand consists of."""
    match operand:
        case Register():
            yield operand
        case Not(register):
            yield register
        case Address(base, _):
            yield from registers_in(base)
        case Vector(elements):
            for element in elements:
                yield from registers_in(element)
        case _:
            pass


def read_and_written(instruction):
    """The registers that an instruction reads, and those that it writes."""
    results = 1 if instruction.operands and instruction.name not in _WITHOUT_RESULT else 0
    # A product of warpgroups is added to its result.
    sources = instruction.operands[results if instruction.name != "wgmma" else 0 :]
    read, written = (
        {register for operand in operands for register in registers_in(operand)}
        for operands in ((*sources, instruction.guard), instruction.operands[:results])
    )
    return read, written


def _find_lives(blocks):
    """Sets `live_in` and `written` by the usual backward analysis."""
    uses = []
    defined = []
    for block in blocks:
        used = set()
        definitions = set()
        for instruction in block.all():
            read, written = read_and_written(instruction)
            used |= read - definitions
            definitions |= written
        uses.append(used)
        defined.append(definitions)
    live = [set(registers) for registers in uses]
    before = [set() for _ in blocks]
    for block in blocks:
        for successor in block.successors:
            before[successor].add(block.number)
    waiting = set(range(len(blocks)))
    while waiting:
        number = max(waiting)
        waiting.discard(number)
        out = set().union(*(live[successor] for successor in blocks[number].successors))
        new = uses[number] | (out - defined[number])
        if new != live[number]:
            live[number] = new
            waiting |= before[number]
    for block in blocks:
        block.live_in = uses[block.number]
        out = set().union(*(live[successor] for successor in block.successors))
        block.written = defined[block.number] & out


def with_undefined_values(kernel):
    """The kernel with constants for registers that are never written, where NVRTC reads them.

    NVRTC stores vectors with such elements if it stores these elements a second time, with their
    values. And it computes with such integers of 16 bits to fill the bytes of a word that the
    instruction which takes the word ignores, for example `dp2a.lo`. The values do not affect the
    results of a correct kernel. Here they are NaN as floats, so that results that they do affect
    are wrong.
    """
    written = {
        register.name
        for statement in kernel.body
        if isinstance(statement, Instruction)
        for register in read_and_written(statement)[1]
    }

    def value(operand, type):
        if not isinstance(operand, Register) or operand.name in written:
            return operand
        bits = int.from_bytes(_BITS.to_bytes(2, "little") * (BITS[type] // 16), "little")
        return Immediate(bits, type if type in ("f32", "f64") else "integer")

    def defined(statement):
        if isinstance(statement, Label):
            return statement
        type = statement.modifiers[-1] if statement.modifiers else ""
        operands = list(statement.operands)
        for number, each in enumerate(operands[1:], 1):
            if statement.name == "st" and isinstance(each, Vector):
                operands[number] = Vector(tuple(value(element, type) for element in each.elements))
            elif statement.name not in ("st", "setp") and type in _SHORT_INTEGERS:
                is_short = isinstance(each, Register) and each.type in _SHORT_INTEGERS
                operands[number] = value(each, type) if is_short else each
        return replace(statement, operands=tuple(operands))

    return replace(kernel, body=[defined(statement) for statement in kernel.body])
