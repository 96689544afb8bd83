"""The addresses that the work items of a group access, computed from the text of a kernel in PTX.

The instructions run once, in the order of the text, for all work items of a group at the same
time; the bodies of loops run once too, with the values of their first iteration. Positions follow
from the numbers of the group and of the work item. Floats, and what is read from memory, have no
value; what depends on them has none either. Branches that depend on them are not taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from cuda_devices import WARP
from ptx_text import Instruction, Kernel, MemoryOperand

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array

# Values of all work items, as unsigned integers of 64 bits; None if they are not known.
Values = Array | None
_ADDRESS = re.compile(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_ALL = np.uint64(2**64 - 1)
# Buffers begin at multiples of it, so no two overlap, and all are aligned.
_BUFFER_DISTANCE = 1 << 40
# Arrays in shared memory begin at multiples of it.
_SHARED_ALIGNMENT = 16
_LEAVING = "the end of the kernel"


@frozen_dataclass
class Access:
    """An access of a group to memory.

    Attributes:
        instruction: in PTX.
        operand: of the instruction.
        addresses: of each work item, in bytes; None if they are not known.
        active: which work items access memory; none, if the instruction was skipped.
    """

    instruction: Instruction
    operand: MemoryOperand
    addresses: Values
    active: Array


def accesses_of(kernel: Kernel, group: int, number: int, groups: int) -> list[Access]:
    """The accesses of a work group to global and shared memory, in the order of the text.

    Args:
        kernel: in PTX.
        group: the number of work items of a group.
        number: of the work group.
        groups: the number of work groups.
    """
    return _Group(kernel, group, number, groups).run()


@final
class _Group:
    """The registers of the work items of a group."""

    def __init__(self, kernel: Kernel, group: int, number: int, groups: int) -> None:
        self._kernel, self._items = kernel, group
        self._registers: dict[str, Values] = {
            "%tid.x": np.arange(group, dtype=np.uint64),
            "%ntid.x": self._constant(group),
            "%ctaid.x": self._constant(number),
            "%nctaid.x": self._constant(groups),
        }
        self._parameters: dict[str, Values] = {}
        for before, (type, name) in enumerate(kernel.parameters):
            # Buffers are apart; other numbers are 0, as in a first iteration.
            value = (before + 1) * _BUFFER_DISTANCE if type == "u64" else 0
            self._parameters[name] = self._constant(value)
        begin = 0
        for name, size in kernel.shared:
            self._registers[name] = self._constant(begin)
            begin += -(-size // _SHARED_ALIGNMENT) * _SHARED_ALIGNMENT
        self._active = np.ones(group, bool)
        # The work items that wait for a label, because they have branched to it.
        self._waiting: dict[str, Array] = {}

    def run(self) -> list[Access]:
        accesses: list[Access] = []
        passed: set[str] = set()
        for instruction in self._kernel.body:
            if not instruction.opcode:
                (label,) = instruction.operands
                passed.add(label)
                self._waiting.pop(label, None)
            elif instruction.words[0] in ("bra", "ret", "exit"):
                target = instruction.operands[0] if instruction.operands else _LEAVING
                # Loops are not repeated.
                if target not in passed:
                    before = self._waiting.get(target, np.zeros(self._items, bool))
                    self._waiting[target] = before | self._runs(instruction, if_unknown=False)
            else:
                accesses += (self._access(instruction, operand) for operand in instruction.memory)
                self._execute(instruction)
            waiting = list(self._waiting.values())
            self._active = ~np.logical_or.reduce(waiting) if waiting else np.ones_like(self._active)
        return accesses

    def _constant(self, value: int) -> Array:
        return np.full(self._items, value & int(_ALL), np.uint64)

    def _runs(self, instruction: Instruction, *, if_unknown: bool) -> Array:
        """The work items that run an instruction."""
        if not instruction.guard:
            return self._active
        guard = self._registers.get(instruction.guard)
        if guard is None:
            return self._active if if_unknown else np.zeros_like(self._active)
        return self._active & ((guard == 0) == instruction.negated)

    def _access(self, instruction: Instruction, operand: MemoryOperand) -> Access:
        match = _ADDRESS.fullmatch(instruction.operands[operand.number])
        addresses: Values = None
        if match:
            base, offset = match.groups()
            value = self._value(base)
            if value is not None:
                # Shared memory has addresses of 32 bits.
                bits = 32 if operand.space == "shared" else 64
                addresses = value + self._constant(int(offset or "0", 0)) & _mask(bits)
        active = self._runs(instruction, if_unknown=True)
        if operand.items is not None:
            active = active & (np.arange(self._items) % WARP < operand.items)
        length = (
            None if operand.length is None else self._value(instruction.operands[operand.length])
        )
        if length is not None:
            # A copy reads all bytes or none, and writes zeros instead.
            active = active & (length & _mask(32) > 0)
        return Access(instruction, operand, addresses, active)

    def _value(self, operand: str) -> Values:
        """The values of an operand."""
        operand = operand.strip()
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
            return self._constant(int(operand.rstrip("U"), 0))
        return self._registers.get(operand)

    def _execute(self, instruction: Instruction) -> None:
        """Sets the destination of an instruction."""
        if not instruction.operands or not instruction.operands[0].startswith(("%", "{")):
            return
        destination, *sources = instruction.operands
        runs = self._runs(instruction, if_unknown=True)
        for name in re.findall(r"%\w+", destination):
            # Several destinations have different values.
            value = self._result(instruction, sources) if name == destination else None
            before = self._registers.get(name)
            if value is not None and not runs.all() and before is not None:
                value = np.where(runs, value, before)
            self._registers[name] = value

    def _result(self, instruction: Instruction, sources: Sequence[str]) -> Values:
        """The values that an instruction computes; None if it is not known here."""
        name, *words = instruction.words
        if name == "ld":
            return self._parameters.get(sources[0].strip("[] ")) if words[0] == "param" else None
        operation = _OPERATIONS.get(name)
        type = words[-1] if words else ""
        if operation is None or not re.fullmatch(r"[bus]\d+|pred", type):
            return None
        values = [self._value(source) for source in sources]
        defined = [value for value in values if value is not None]
        if len(defined) < len(values):
            return None
        bits = 1 if type == "pred" else int(type[1:])
        result = operation(defined, words, bits)
        wide = 2 * bits if "wide" in words else 64 if name in ("setp", "cvt") else bits
        return None if result is None else result & _mask(wide)


# What instructions compute: PTX ISA, sections Integer Arithmetic Instructions, Comparison and
# Selection, Logic and Shift, Data Movement. Values have as many bits as the type; the bits
# of results above them are cleared later.

_Operation = Callable[[Sequence[Array], Sequence[str], int], Values]


def _mask(bits: int) -> np.uint64:
    return _ALL >> np.uint64(64 - bits)


def _numbers(values: Array, type: str) -> Array:
    """The numbers that bits of a type mean: int64 for signed types, otherwise uint64."""
    bits = np.uint64(64 - int(type[1:]))
    if type[0] != "s":
        return (values << bits) >> bits
    return (values << bits).view(np.int64) >> bits.astype(np.int64)


def _bits(numbers: Array) -> Array:
    return np.ascontiguousarray(numbers).view(np.uint64)


def _multiplied(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    left, right = (_numbers(value, words[-1]) for value in values[:2])
    if "hi" not in words:
        return _bits(left * right)
    products = left.astype(object) * right.astype(object) >> bits
    return np.array([int(product) & int(_ALL) for product in products], np.uint64)


def _multiplied_and_added(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    product = _multiplied(values, words, bits)
    return None if product is None else product + values[2]


def _divided(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    left, right = (_numbers(value, words[-1]) for value in values)
    if words[-1][0] == "s" or not right.all():
        return None
    return left // right


def _remainder(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    quotient = _divided(values, words, bits)
    return None if quotient is None else values[0] - quotient * values[1]


def _shifted_left(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    distance = values[1] & _mask(32)
    return np.where(distance >= bits, 0, values[0] << np.minimum(distance, np.uint64(63)))


def _shifted_right(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    number = _numbers(values[0], words[-1])
    # Larger distances leave nothing but copies of the sign.
    distance = np.minimum(values[1] & _mask(32), np.uint64(63))
    return _bits(number >> distance.astype(number.dtype))


def _compared(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    if len(words) != 2 or len(values) != 2:
        return None
    relation = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(words[0], words[0])
    left, right = (_numbers(value, words[-1]) for value in values)
    results = {
        "eq": left == right,
        "ne": left != right,
        "lt": left < right,
        "le": left <= right,
        "gt": left > right,
        "ge": left >= right,
    }
    holds = results.get(relation)
    return None if holds is None else holds.astype(np.uint64)


def _converted(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    # A saturating conversion has a third word.
    if len(words) != 2 or not re.fullmatch(r"[bus]\d+", words[0]):
        return None
    return _bits(_numbers(values[0], words[1])) & _mask(int(words[0][1:]))


def _inserted(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
    field, base, position, length = values
    position, length = position & np.uint64(255), length & np.uint64(255)
    if (position >= bits).any() or (length > bits).any():
        return None
    ones = np.where(length == 0, 0, _ALL >> np.minimum(64 - length, np.uint64(63)))
    kept = base & ~(ones << position)
    return kept | (field & ones) << position


def _picked(choose: Callable[[Array, Array], Array]) -> _Operation:
    def pick(values: Sequence[Array], words: Sequence[str], bits: int) -> Values:
        left, right = (_numbers(value, words[-1]) for value in values)
        return _bits(choose(left, right))

    return pick


_OPERATIONS: dict[str, _Operation] = {
    "mov": lambda values, words, bits: values[0],
    "cvta": lambda values, words, bits: values[0],
    "add": lambda values, words, bits: values[0] + values[1],
    "sub": lambda values, words, bits: values[0] - values[1],
    "neg": lambda values, words, bits: np.uint64(0) - values[0],
    "and": lambda values, words, bits: values[0] & values[1],
    "or": lambda values, words, bits: values[0] | values[1],
    "xor": lambda values, words, bits: values[0] ^ values[1],
    "not": lambda values, words, bits: ~values[0],
    "mul": _multiplied,
    "mad": _multiplied_and_added,
    "div": _divided,
    "rem": _remainder,
    "shl": _shifted_left,
    "shr": _shifted_right,
    "min": _picked(np.minimum),
    "max": _picked(np.maximum),
    "setp": _compared,
    "selp": lambda values, words, bits: np.where(values[2] != 0, values[0], values[1]),
    "cvt": _converted,
    "bfi": _inserted,
}
