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
            one = block.last
            (target,) = one.operands
            if target.name not in labels:
                what = f"a branch to {target.name}, which is no label"
                raise Fault(what, kernel=kernel.name, line=one.line, text=one.text)
            block.successors = (labels[target.name], *(after if one.guard else ()))
    _find_lives(blocks)
    return blocks


def _divided(kernel):
    blocks = [Block(0)]
    labels = {}

    def begin():
        if blocks[-1].all():
            blocks.append(Block(len(blocks)))
        return blocks[-1]

    def add(one):
        if one.name in _WHOLE_WARP:
            begin().together = True
        kind = _KINDS.get(one.name, "next")
        if kind == "next":
            blocks[-1].instructions.append(one)
        else:
            blocks[-1].last, blocks[-1].kind = one, kind
            begin()

    for one in kernel.body:
        if isinstance(one, Label):
            labels[one.name] = begin().number
        elif one.guard is None or one.name == "bra":
            add(one)
        else:
            # A branch around it: the lanes without the predicate skip the instruction.
            skip = one.guard.register if isinstance(one.guard, Not) else Not(one.guard)
            end = f"skip#{len(blocks)}#{one.line}"
            add(replace(one, name="bra", modifiers=(), operands=(Symbol(end),), guard=skip))
            add(replace(one, guard=None))
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
            for one in elements:
                yield from registers_in(one)
        case _:
            pass


def read_and_written(one):
    """The registers that an instruction reads, and those that it writes."""
    results = 1 if one.operands and one.name not in _WITHOUT_RESULT else 0
    # A product of warpgroups is added to its result.
    sources = one.operands[results if one.name != "wgmma" else 0 :]
    read, written = (
        {register for operand in operands for register in registers_in(operand)}
        for operands in ((*sources, one.guard), one.operands[:results])
    )
    return read, written


def _find_lives(blocks):
    """Sets `live_in` and `written` by the usual backward analysis."""
    uses = []
    defined = []
    for block in blocks:
        used = set()
        known = set()
        for one in block.all():
            read, written = read_and_written(one)
            used |= read - known
            known |= written
        uses.append(used)
        defined.append(known)
    live = [set(one) for one in uses]
    before = [set() for _ in blocks]
    for block in blocks:
        for successor in block.successors:
            before[successor].add(block.number)
    waiting = set(range(len(blocks)))
    while waiting:
        number = max(waiting)
        waiting.discard(number)
        out = set().union(*(live[one] for one in blocks[number].successors))
        new = uses[number] | (out - defined[number])
        if new != live[number]:
            live[number] = new
            waiting |= before[number]
    for block in blocks:
        block.live_in = uses[block.number]
        out = set().union(*(live[one] for one in block.successors))
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
        for one in kernel.body
        if isinstance(one, Instruction)
        for register in read_and_written(one)[1]
    }

    def value(one, type):
        if not isinstance(one, Register) or one.name in written:
            return one
        bits = int.from_bytes(_BITS.to_bytes(2, "little") * (BITS[type] // 16), "little")
        return Immediate(bits, type if type in ("f32", "f64") else "integer")

    def defined(one):
        type = one.modifiers[-1] if one.modifiers else ""
        operands = list(one.operands)
        for number, each in enumerate(operands[1:], 1):
            if one.name == "st" and isinstance(each, Vector):
                operands[number] = Vector(tuple(value(element, type) for element in each.elements))
            elif one.name not in ("st", "setp") and type in _SHORT_INTEGERS:
                is_short = isinstance(each, Register) and each.type in _SHORT_INTEGERS
                operands[number] = value(each, type) if is_short else each
        return replace(one, operands=tuple(operands))

    body = [defined(one) if isinstance(one, Instruction) else one for one in kernel.body]
    return replace(kernel, body=body)
