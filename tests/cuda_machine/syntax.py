"""What a PTX text consists of: records that the parser makes and the code generator reads."""

from __future__ import annotations

from dataclasses import dataclass, field

# Bits of the fundamental types (PTX ISA, Fundamental Types, and Packed Data Types).
BITS = {
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 16,
    "f32": 32,
    "f64": 64,
    "pred": 1,
}
# Instructions that lead elsewhere, and what may follow the name. `.uni` says that all threads do
# the same, and changes no result.
CONTROL = {"bra": ("", "uni"), "ret": ("", "uni"), "exit": ("",)}


@dataclass(frozen=True)
class Register:
    """A register; its name is unique within the kernel."""

    name: str
    type: str


@dataclass(frozen=True)
class Not:
    """A negated predicate, `!%p1`."""

    register: Register


@dataclass(frozen=True)
class Immediate:
    """A constant: an "integer", or the bits of an "f32" or "f64"."""

    bits: int
    kind: str


@dataclass(frozen=True)
class Special:
    """A special register, such as `%tid.x`."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """The address of a variable plus bytes, or a label, or a function."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`; the offset is in bytes."""

    base: Register | Symbol
    offset: int


@dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]


Operand = Register | Not | Immediate | Special | Symbol | Address | Vector


@dataclass(frozen=True)
class Instruction:
    """An instruction such as "ld": modifiers without points, operands with destinations first.

    The guard is the predicate of `@%p`, or its negation; line and text say where it stands.
    """

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | Not | None
    line: int
    text: str


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Variable:
    """A variable in a state space.

    Attributes:
        name: unique within its scope.
        space: "shared", "const" or "global".
        size, align: in bytes; the size of `extern` arrays is 0.
        initial: the first bytes; those after them are zero.
    """

    name: str
    space: str
    size: int
    align: int
    initial: bytes = b""
    extern: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel; offset and size are in bytes."""

    name: str
    size: int
    offset: int


@dataclass
class Module:
    """A PTX text: its target, such as "sm_80", its kernels and variables."""

    target: str = ""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)

    @property
    def architecture(self):
        return int("".join(filter(str.isdigit, self.target)))


@dataclass
class Kernel:
    """A kernel with its own shared variables; `maxntid` bounds the threads of a block."""

    name: str
    line: int
    module: Module = field(repr=False)
    parameters: list[Parameter]
    shared: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)
    maxntid: tuple[int, ...] | None = None


def aligned(offset, align):
    return -(-offset // align) * align


def shared_layout(kernel):
    """The offset of each shared variable, and the bytes of the static ones, the module's included.

    Dynamic shared memory follows the static one; all `extern` arrays begin there.
    """
    every = [*kernel.module.variables.values(), *kernel.shared.values()]
    variables = [variable for variable in every if variable.space == "shared"]
    offsets = {}
    end = 0
    for variable in variables:
        if not variable.extern:
            offsets[variable.name] = end = aligned(end, variable.align)
            end += variable.size
    dynamic = [variable for variable in variables if variable.extern]
    begin = aligned(end, max((variable.align for variable in dynamic), default=1))
    offsets.update((variable.name, begin) for variable in dynamic)
    return offsets, begin if dynamic else end
