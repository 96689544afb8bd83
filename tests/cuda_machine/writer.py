"""Writes the Python source of basic blocks: an instruction becomes a few calls of NumPy.

A block is a function of the running lanes `m`, their registers `R`, the numbers `idx` of the lanes
that run it (None for all lanes), and their count `n`. Within a block a register is a local variable
with a value for each of these lanes. Values are kept as bits: `v3_u4` is register 3 as uint32, and
`v3_f4` the same bits as float32.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cuda_machine.faults import Fault
from cuda_machine.syntax import BITS, Immediate, Not, Register, Special, Symbol

# The NumPy type of a PTX type.
DTYPES = {
    **{f"{kind}{bits}": f"{code}{bits // 8}" for kind, code in (("b", "u"), ("u", "u"), ("s", "i"))
       for bits in (8, 16, 32, 64)},
    "f16": "f2", "f32": "f4", "f64": "f8", "pred": "b1",
}  # fmt: skip
FLOATS = ("f16", "f32", "f64")


@dataclass(frozen=True)
class Known:
    """A form that the machine knows: what writes its code; the first architecture, 80 for sm_80."""

    handler: Callable
    since: int


# All instructions that the machine knows, except those that only lead elsewhere (blocks.py): their
# forms are the modifiers that may follow the name.
FORMS = {}
# Functions that the generated code calls.
HELPERS = {"np": np}

INTEGERS = "u16|s16|u32|s32|u64|s64"


def writes(*names, forms, since=75):
    """Registers the function that writes some forms of instructions.

    Args:
        names: of instructions, up to the first point.
        forms: texts such as "rn|rz ftz? f32": alternatives, and modifiers that may be absent.
        since: the first architecture that has these forms (PTX ISA, Target ISA Notes).
    """

    def register(handler):
        for name in names:
            handlers = FORMS.setdefault(name, {})
            for text in [forms] if isinstance(forms, str) else forms:
                for modifiers in expanded(text):
                    if modifiers in handlers:
                        raise ValueError(f"{name}: two functions for {modifiers}")
                    handlers[modifiers] = Known(handler, since)
        return handler

    return register


def expanded(text):
    """The forms that a text of `writes` stands for."""
    slots = [
        [*word.removesuffix("?").split("|"), *([""] if word.endswith("?") else [])]
        for word in text.split()
    ]
    for choice in itertools.product(*slots):
        yield tuple(modifier for modifier in choice if modifier)


def expressions(name, forms, code, *, others=(), result="", since=75):
    """Registers forms of an instruction whose result is an expression of its operands.

    Args:
        name: of the instruction, up to the first point.
        forms: as `writes` takes them; the last modifier is the type of the operands.
        code: the expression, with {0}, {1}, ... for the operands.
        others: the types of the operands from the second one on, if they differ; "" is the same.
        result: the type of the result, if it differs.
        since: the first architecture that has these forms.
    """

    def write(writer, instruction):
        type = instruction.modifiers[-1]
        target, *operands = instruction.operands
        types = [type, *(other or type for other in others)]
        values = writer.several(operands, types + [type] * (len(operands) - len(types)))
        kind = result or ("u16" if type == "f16" else type)
        writer.write(target, kind, code.format(*values))

    writes(name, forms=forms, since=since)(write)


def helper(function):
    """Registers a function that generated code calls by its name."""
    HELPERS[function.__name__] = function
    return function


def unknown(instruction, what=""):
    """Raises a fault: the machine does not know this instruction, or this form of it."""
    line, text = instruction.line, instruction.text
    raise Fault(f"unknown instruction{': ' if what else ''}{what}", line=line, text=text)


def canonical(register):
    """The NumPy type in which the bits of a register are kept between blocks."""
    bits = BITS[register.type]
    return "b1" if bits == 1 else f"u{bits // 8}"


class Writer:
    """Writes the body of a block.

    Args:
        kernel: with the block.
        numbers: of all registers of the kernel.
        addresses: of variables, by name and by the space that the address is in.
        constants: names of constants in the code, and their values.

    Attributes:
        lines: the code so far.
        offsets: of the kernel's parameters, and their sizes.
        inputs: code that reads registers (all lanes, some lanes), in the order of first use.
    """

    def __init__(self, kernel, numbers, addresses, constants):
        self.kernel, self.architecture = kernel, kernel.module.architecture
        self.numbers, self.addresses, self.constants = numbers, addresses, constants
        self.offsets = {
            parameter.name: (parameter.offset, parameter.size) for parameter in kernel.parameters
        }
        self.lines = []
        self.inputs = []
        # The types in which a register's present value is at hand.
        self._known = {}
        self._specials = set()
        self._temporaries = 0

    def write_instruction(self, instruction):
        """Appends the code of an instruction."""
        form = FORMS.get(instruction.name, {}).get(instruction.modifiers)
        if form is None:
            approximate = not {"approx", "full"}.isdisjoint(instruction.modifiers)
            what = "an approximation, whose result PTX does not say" if approximate else ""
            unknown(instruction, what)
        if self.architecture < form.since:
            unknown(instruction, f"only sm_{form.since} and later have it")
        try:
            form.handler(self, instruction)
        except (ValueError, KeyError, IndexError) as error:
            # A handler unpacks what it knows; anything else is unknown.
            what = f"unknown instruction or operands ({type(error).__name__}: {error})"
            raise Fault(what, line=instruction.line, text=instruction.text) from error

    def emit(self, line):
        self.lines.append(line)

    def temporary(self, expression):
        self._temporaries += 1
        name = f"t{self._temporaries}"
        self.emit(f"{name} = {expression}")
        return name

    def constant(self, value):
        """The name of a constant in the code."""
        key = f"c{len(self.constants)}"
        if isinstance(value, np.generic):
            key = f"c_{value.dtype.str[1:]}_{value.tobytes().hex()}"
        self.constants[key] = value
        return key

    def read(self, operand, type):
        """The code of an operand's value: an array of a value for each lane, or a constant.

        A register may be larger than an integer type: then its low bits are read (PTX ISA, Operand
        Size Exceeding Instruction-Type Size).
        """
        dtype = DTYPES[type]
        match operand:
            case Register():
                return self._register(operand, type)
            case Not(register):
                return self.temporary(f"~{self._register(register, 'pred')}")
            case Immediate():
                return self.constant(_constant(operand, type))
            case Special(name):
                value = self._special(name)
                return value if dtype == "u4" else f"{value}.astype({self.type(dtype)})"
            case Symbol(name, offset):
                if type not in ("b32", "u32", "s32", "b64", "u64", "s64"):
                    raise ValueError(f"an address as .{type}")
                return self.constant(np.array(self.address(name)[1] + offset).astype(dtype)[()])
            case _:
                raise ValueError(f"an operand of another kind is expected: {operand}")

    def array(self, operand, type):
        """Like `read`, but always an array of a value for each lane."""
        value = self.read(operand, type)
        if isinstance(operand, Register | Not):
            return value
        return self.temporary(f"np.full(n, {value})")

    def several(self, operands, types):
        """The code of operands, at least one of them an array."""
        has_register = any(isinstance(operand, Register | Not) for operand in operands)
        take = self.read if has_register else self.array
        return [take(operand, type) for operand, type in zip(operands, types, strict=True)]

    def address(self, name):
        if name not in self.addresses:
            raise ValueError(f"unknown variable {name}")
        return self.addresses[name]

    def located(self, instruction):
        """The last argument of the methods of `Lanes`, whose faults name this line from now on."""
        self.emit(f"m.line = {instruction.line}")
        return "idx"

    def type(self, dtype):
        self.constants[f"T_{dtype}"] = np.dtype(dtype)
        return f"T_{dtype}"

    def _register(self, register, type):
        have, want = _checked_bits(register, type)
        if want < have:
            full = self._view(register, f"{DTYPES[type][0]}{have // 8}")
            return self.temporary(f"{full}.astype({self.type(DTYPES[type])})")
        return self._view(register, DTYPES[type])

    def _view(self, register, dtype):
        number = self.numbers[register.name]
        if register.name not in self._known:
            base = canonical(register)
            self.inputs.append(
                (f"v{number}_{base} = R[{number}]", f"v{number}_{base} = R[{number}][idx]")
            )
            self._known[register.name] = [base]
        views = self._known[register.name]
        if dtype not in views:
            self.emit(f"v{number}_{dtype} = v{number}_{views[0]}.view({self.type(dtype)})")
            views.append(dtype)
        return f"v{number}_{dtype}"

    def _special(self, name):
        code = name[1:].replace(".", "_")
        if name.startswith(("%ntid", "%nctaid")):
            return f"m.{code}"
        if code not in self._specials:
            self._specials.add(code)
            self.inputs.append((f"s_{code} = m.{code}", f"s_{code} = m.{code}[idx]"))
        return f"s_{code}"

    def write(self, operand, type, value):
        """Sets a destination to a new array of a value for each lane.

        A register may be larger than an integer type: then it is extended by the sign or by zeros.
        """
        if not isinstance(operand, Register):
            raise ValueError("a destination that is no register")
        have, want = _checked_bits(operand, type)
        dtype = DTYPES[type]
        if want < have:
            dtype = f"{dtype[0]}{have // 8}"
            value = f"({value}).astype({self.type(dtype)})"
        number = self.numbers[operand.name]
        self.emit(f"v{number}_{dtype} = {value}")
        self._known[operand.name] = [dtype]

    def kept(self, register):
        """The present value of a register, as it is kept between blocks."""
        return self._view(register, canonical(register))


def _checked_bits(register, type):
    """The bits of a register and of a type that it is read or written as."""
    have, want = BITS[register.type], BITS[type]
    if (have == 1) != (want == 1) or want > have or (want < have and type in FLOATS):
        raise ValueError(f"{register.name} of .{register.type} as .{type}")
    return have, want


def _constant(operand, type):
    bits, kind = BITS[type], operand.kind
    if type == "pred" and kind == "integer":
        return np.bool_(operand.bits)
    # PTX ISA, Constants: literals of 0d may be used for .f32, if they are exact.
    if type in FLOATS if kind == "integer" else type not in (kind, f"b{BITS[kind]}"):
        raise ValueError(f"a constant of .{kind} as .{type}")
    return np.frombuffer((operand.bits % (1 << bits)).to_bytes(bits // 8, "little"), DTYPES[type])[
        0
    ]
