"""Expands calls of functions, so that a kernel is one list of instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cuda_machine.faults import Fault
from cuda_machine.syntax import (
    BITS,
    Address,
    Arguments,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Not,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)


@dataclass
class Flat:
    """A kernel without calls.

    Attributes:
        body: instructions and labels with unique names.
        local: its local variables, and those of each call.
        targets: the labels of each list of branch targets.
    """

    kernel: Kernel
    body: list[Instruction | Label] = field(default_factory=list)
    local: dict[str, Variable] = field(default_factory=dict)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)


def flat(kernel: Kernel) -> Flat:
    """The kernel with the bodies of all functions that it calls.

    Arguments and results, which PTX passes in `.param` variables, become registers.

    Raises:
        Fault: a recursive or indirect call, or a function that is not defined.
    """
    result = Flat(kernel)
    _Expansion(result).expand(kernel, "", {}, (kernel.name,))
    _check_passed(result)
    return result


def renamed(operand: Operand, change: Callable[[str], str]) -> Operand:
    """The operand with other names of registers and symbols."""
    match operand:
        case Register(name, type):
            return Register(change(name), type)
        case Not(register):
            return Not(Register(change(register.name), register.type))
        case Symbol(name, offset):
            return Symbol(change(name), offset)
        case Address(base, offset):
            changed = renamed(base, change)
            assert isinstance(changed, Register | Symbol | Immediate)
            return Address(changed, offset)
        case Vector(elements):
            return Vector(tuple(renamed(one, change) for one in elements))
        case Arguments(elements):
            return Arguments(tuple(renamed(one, change) for one in elements))
        case Pair(first, second):
            return Pair(renamed(first, change), renamed(second, change))
        case _:
            return operand


class _Expansion:
    def __init__(self, result: Flat) -> None:
        self.result = result
        self.calls = 0

    def expand(
        self, function: Kernel, prefix: str, passed: Mapping[str, str], callers: tuple[str, ...]
    ) -> None:
        """Appends a body.

        Args:
            function: the kernel or function.
            prefix: of its names of registers, labels and local variables.
            passed: the variable of each parameter and result.
            callers: the functions that are being expanded.
        """
        result = self.result
        labels = {one.name for one in function.body if isinstance(one, Label)}
        known = {*labels, *function.registers, *function.local, *function.targets}

        def change(name: str) -> str:
            if name in passed:
                return passed[name]
            # Variables of arguments have the names of their scope, such as "param0@3".
            own = name in known or "@" in name
            return prefix + name if own and name not in function.shared else name

        for name, variable in function.local.items():
            result.local[prefix + name] = replace(variable, name=prefix + name)
        for name, targets in function.targets.items():
            result.targets[prefix + name] = tuple(prefix + one for one in targets)
        end = f"{prefix}return"
        for one in function.body:
            if isinstance(one, Label):
                result.body.append(Label(change(one.name)))
                continue
            guard = renamed(one.guard, change) if one.guard else None
            assert guard is None or isinstance(guard, Register | Not)
            operands = tuple(renamed(operand, change) for operand in one.operands)
            new = replace(one, operands=operands, guard=guard)
            if one.name == "call":
                self.call(new, function, prefix, callers)
            elif one.name == "ret" and prefix:
                result.body.append(replace(new, name="bra", modifiers=(), operands=(Symbol(end),)))
            else:
                result.body.extend(_passing(new, function))
        if prefix:
            result.body.append(Label(end))

    def call(
        self, call: Instruction, caller: Kernel, prefix: str, callers: tuple[str, ...]
    ) -> None:
        def fault(what: str) -> Fault:
            return Fault(what, kernel=self.result.kernel.name, line=call.line, text=call.text)

        if call.guard is not None:
            raise fault("a call with a predicate is unknown")
        lists = [one.elements for one in call.operands if isinstance(one, Arguments)]
        names = [one.name for one in call.operands if isinstance(one, Symbol)]
        given = isinstance(call.operands[0], Arguments)
        results = lists.pop(0) if given and lists else ()
        arguments = lists.pop(0) if lists else ()
        if len(names) != 1 or lists:
            raise fault("a call that is not direct is unknown")
        assert caller.module is not None
        callee = caller.module.functions.get(names[0])
        if callee is None:
            raise fault(f"a call of {names[0]}, which the PTX does not define")
        if callee.name in callers:
            raise fault(f"a recursive call of {callee.name}")
        parameters = [*callee.results, *callee.parameters]
        values = [*results, *arguments]
        if len(parameters) != len(values) or not all(isinstance(one, Symbol) for one in values):
            raise fault("a call whose arguments are not those of the function")
        self.calls += 1
        passed = {
            parameter.name: value.name
            for parameter, value in zip(parameters, values, strict=True)
            if isinstance(value, Symbol)
        }
        self.expand(callee, f"{prefix}{callee.name}#{self.calls}:", passed, (*callers, callee.name))


def _passing(instruction: Instruction, function: Kernel) -> list[Instruction]:
    """A load or store of a `.param` variable as moves; any other instruction as it is."""
    if instruction.name not in ("ld", "st") or instruction.modifiers[:1] != ("param",):
        return [instruction]
    register, address = instruction.operands
    if instruction.name == "st":
        register, address = address, register
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        return [instruction]
    name = address.base.name
    if function.entry and any(one.name == name for one in function.parameters):
        return [instruction]
    type = instruction.modifiers[-1]
    bits = BITS.get(type, 0)
    if type.startswith("s") and bits < 32:
        raise Fault(
            "a signed parameter of less than 32 bits is unknown",
            line=instruction.line,
            text=instruction.text,
        )
    elements = register.elements if isinstance(register, Vector) else (register,)
    moves: list[Instruction] = []
    for number, element in enumerate(elements):
        position = address.offset + number * bits // 8
        kept = Register(f"{name}+{position}:{bits}", f"b{max(bits, 16)}")
        pair = (kept, element) if instruction.name == "st" else (element, kept)
        moves.append(_move(instruction, pair, bits))
    return moves


def _move(instruction: Instruction, pair: tuple[Operand, Operand], bits: int) -> Instruction:
    modifiers: tuple[str, ...] = (f"b{bits}",)
    name = "mov"
    if bits == 8:
        # Registers have at least 16 bits; upper bits of a parameter of 8 bits are zero.
        name, modifiers = "cvt", ("u16", "u8")
    return replace(instruction, name=name, modifiers=modifiers, operands=pair)


def _check_passed(result: Flat) -> None:
    """Each byte of an argument is read in the size in which it was written."""
    written: set[str] = set()
    for one in result.body:
        if isinstance(one, Instruction) and one.operands and isinstance(one.operands[0], Register):
            written.add(one.operands[0].name)
    for one in result.body:
        for operand in one.operands[1:] if isinstance(one, Instruction) else ():
            if (
                isinstance(operand, Register)
                and "+" in operand.name
                and operand.name not in written
            ):
                raise Fault(
                    "a parameter of a function that is not written in the size that is read",
                    kernel=result.kernel.name,
                    line=one.line,
                    text=one.text,
                )
