"""Reads PTX: `parse` makes a `Module` of a text, and refuses what it does not know."""

import math
import re
from bisect import bisect_left
from collections import ChainMap
from dataclasses import replace

from cuda_machine.faults import Fault
from cuda_machine.syntax import (
    BITS,
    CONTROL,
    Address,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Module,
    Not,
    Parameter,
    Register,
    Special,
    Symbol,
    Variable,
    Vector,
    aligned,
)

# Comments, and debugging information, which says which line of CUDA C an instruction is from.
_IGNORED = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*\.(?:loc|file)\b[^\n]*", re.DOTALL | re.M)
# The statements outside of kernels, where some end with their line, and the statements within.
_OUTSIDE = re.compile(
    r"\s*(?:(?P<directive>\.(?:version|target|address_size)[^\n;]*)"
    r"|(?P<header>(?:\.(?:visible|extern|weak|common)\s+)*\.entry\b[^{;]*)[{;]|(?P<variable>[^;]+);)"
)
_WITHIN = re.compile(
    r"\s*(?:(?P<open>\{)|(?P<close>\})|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)|(?P<statement>[^;]+);)"
)
_HEADER = re.compile(r".*\.entry ([\w$]+) ?(?:\(([^)]*)\))?(.*)")
_HEADER_DIRECTIVE = re.compile(r" ?\.(\w+)((?: ?\d+ ?,?)*)")
_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<space>global|const|shared)\b"
    r"(?:\s*\.align\s+(?P<align>\d+))?\s*\.(?P<type>\w+)\s+(?P<name>[\w$%]+)"
    r"(?P<extents>(?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(?P<initial>.*))?$",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"\.param\b(?:\s*\.align\s+(?P<align>\d+))?\s*\.(?P<type>\w+)"
    r"(?:\s*\.ptr(?:\s*\.(?:const|global|local|shared))?(?:\s*\.align\s+\d+)?)?"
    r"\s+(?P<name>[\w$%]+)\s*(?:\[\s*(?P<extent>\d+)\s*\])?$"
)
_INSTRUCTION = re.compile(
    r"(?:@(?P<not>!)?(?P<guard>[\w$%]+) )?(?P<name>[a-z]\w*)(?P<modifiers>(?:\.[\w:]+)*)"
    r"(?P<operands>.*)$"
)
# Commas between operands, and not those within braces.
_COMMA = re.compile(r"\s*,\s*(?![^{]*\})")
_FLOAT = re.compile(r"0(?:[fF][0-9a-fA-F]{8}|[dD][0-9a-fA-F]{16})")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0|[1-9]\d*)U?")
_PLACE = re.compile(r"([A-Za-z_$%][\w$]*)(?: ?\+ ?(-?\d+))?")
# Hints on speed that change no result: PTX ISA, Performance-Tuning Directives.
_HINTS = ("maxnreg", "minnctapersm", "maxnctapersm")
# Hints on loops and on the stack; "noreturn" is checked by nobody.
_PRAGMAS = ("nounroll", "used_bytes_mask")
# Special registers with a value that PTX defines.
_SPECIALS = (
    *(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
    "%laneid",
)


def parse(text):
    """The module of a PTX text."""
    text = _IGNORED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    ends = [newline.start() for newline in re.finditer("\n", text)]
    module, body, position = Module(), None, 0
    while matched := (_OUTSIDE if body is None else _WITHIN).match(text, position):
        kind, position = str(matched.lastgroup), matched.end()
        line = bisect_left(ends, matched.start(kind)) + 1
        statement = " ".join(matched[kind].split())
        if body is not None:
            body = body if body.read(kind, line, statement) else None
        elif kind == "directive":
            _read_directive(module, line, statement)
        elif kind == "header":
            kernel = _header(module, line, statement)
            if text[position - 1] == "{":
                module.kernels[kernel.name] = kernel
                body = _Body(kernel)
        else:
            variable = _variable(line, statement)
            # A declaration may precede the definition.
            declared = module.variables.get(variable.name)
            if declared is None or declared.extern:
                module.variables[variable.name] = variable
    if body is not None or text[position:].strip():
        raise Fault("a statement without an end", text=text[position:])
    if not module.target:
        raise Fault("the PTX text has no .target")
    return module


def _read_directive(module, line, statement):
    match statement.split():
        case [".version", _] | [".address_size", "64"]:
            pass
        case [".target", target] if re.fullmatch(r"sm_\d+[af]?", target):
            module.target = target
        case _:
            raise Fault("unknown directive", line=line, text=statement)


def _header(module, line, text):
    match = _HEADER.fullmatch(text)
    if not match:
        raise Fault("unknown syntax of a function", line=line, text=text)
    name, parameters, rest = match.groups()
    kernel = Kernel(name, line, module, _parameters(line, parameters))
    while rest.strip():
        directive = _HEADER_DIRECTIVE.match(rest)
        if not directive or directive[1] not in (*_HINTS, "maxntid"):
            raise Fault("unknown directive", kernel=kernel.name, line=line, text=rest)
        if directive[1] == "maxntid":
            kernel.maxntid = tuple(map(int, re.findall(r"\d+", directive[2])))
        rest = rest[directive.end() :]
    return kernel


def _parameters(line, text):
    parameters = []
    offset = 0
    for declaration in filter(None, map(str.strip, (text or "").split(","))):
        match = _PARAMETER.match(declaration)
        if not match or match["type"] not in BITS:
            raise Fault("unknown syntax of a parameter", line=line, text=declaration)
        element = BITS[match["type"]] // 8
        size = element * int(match["extent"] or 1)
        offset = aligned(offset, int(match["align"] or element))
        parameters.append(Parameter(match["name"], size, offset))
        offset += size
    return parameters


def _variable(line, statement):
    match = _VARIABLE.match(statement)
    if not match or match["type"] not in BITS:
        raise Fault("unknown directive", line=line, text=statement)
    element = BITS[match["type"]] // 8
    extents = re.findall(r"\[\s*(\d*)\s*\]", match["extents"])
    return Variable(
        match["name"],
        match["space"],
        element * math.prod(int(extent or 0) for extent in extents),
        int(match["align"] or element),
        _initial(line, match["initial"], match["type"]),
        extern=extents[:1] == [""] or ".extern" in match["linkage"],
    )


def _initial(line, text, type):
    """The bytes of an initialiser."""
    data = bytearray()
    for word in re.sub(r"[{} ]", "", text).split(",") if text else ():
        value = _number(word)
        kind = "integer" if type[0] in "bus" else type
        # A zero may be an integer.
        if value is None or value.kind not in (kind, "" if value.bits else "integer"):
            raise Fault("unknown syntax of an initialiser", line=line, text=word)
        data += (value.bits % (1 << BITS[type])).to_bytes(BITS[type] // 8, "little")
    return bytes(data)


def _number(text):
    """The constant of a text; None if it is none."""
    if _FLOAT.fullmatch(text):
        return Immediate(int(text[2:], 16), "f32" if text[1] in "fF" else "f64")
    if _INTEGER.fullmatch(text):
        return Immediate(int(text.rstrip("U"), 0), "integer")
    return None


class _Body:
    """Reads the statements of a kernel.

    Names that are declared again in an inner scope become other registers.
    """

    def __init__(self, kernel):
        self._kernel = kernel
        self._names = ChainMap()
        self._opened = 0

    def read(self, kind, line, text):
        """Reads a statement; false if it is the end of the kernel."""
        if kind == "open":
            self._opened += 1
            self._names = self._names.new_child()
        elif kind == "close" and len(self._names.maps) == 1:
            return False
        elif kind == "close":
            self._names = self._names.parents
        elif kind == "label":
            self._kernel.body.append(Label(text))
        else:
            try:
                self._statement(line, text)
            except Fault as fault:
                raise Fault(fault.what, kernel=self._kernel.name, line=line, text=text) from None
        return True

    def _statement(self, line, text):
        if text.startswith(".reg"):
            self._declare(text.removeprefix(".reg").strip())
        elif text.startswith(".shared"):
            variable = _variable(line, text)
            self._names[variable.name] = name = self._unique(variable.name)
            self._kernel.shared[name] = replace(variable, name=name)
        elif text.startswith(".pragma"):
            if not any(f'"{pragma}' in text for pragma in _PRAGMAS):
                raise Fault("unknown pragma")
        elif text.startswith("."):
            raise Fault("unknown directive")
        else:
            self._kernel.body.append(self._instruction(line, text))

    def _unique(self, name):
        return name if len(self._names.maps) == 1 else f"{name}@{self._opened}"

    def _declare(self, text):
        """Registers of `.b32 %r<9>`, which are %r0 to %r8, or of `.pred p, q`."""
        type, _, names = text.removeprefix(".").partition(" ")
        if type not in BITS or BITS[type] == 8:
            raise Fault(f"unknown type of registers .{type}")
        for name in _COMMA.split(names):
            match = re.fullmatch(r"([\w$%]+)(?:<(\d+)>)?", name)
            if not match:
                raise Fault("unknown syntax of registers")
            for number in range(int(match[2])) if match[2] else ("",):
                register = f"{match[1]}{number}"
                self._names[register] = Register(self._unique(register), type)

    def _instruction(self, line, text):
        match = _INSTRUCTION.match(text)
        if not match:
            raise Fault("unknown syntax of an instruction")
        guard = None
        if match["guard"]:
            guard = self._register(match["guard"])
            guard = Not(guard) if match["not"] else guard
        texts = filter(None, _COMMA.split(match["operands"].strip()))
        operands = tuple(map(self._operand, texts))
        modifiers = match["modifiers"].removeprefix(".")
        if modifiers not in CONTROL.get(match["name"], (modifiers,)):
            raise Fault("unknown instruction")
        split = tuple(filter(None, modifiers.split(".")))
        return Instruction(match["name"], split, operands, guard, line, text)

    def _register(self, name):
        register = self._names.get(name)
        if not isinstance(register, Register):
            raise Fault(f"unknown register {name}")
        return register

    def _operand(self, text):
        if text[0] + text[-1] == "{}":
            return Vector(tuple(map(self._operand, _COMMA.split(text[1:-1].strip()))))
        if text.startswith("!"):
            return Not(self._register(text[1:]))
        if (value := _number(text)) is not None:
            return value
        if text in _SPECIALS:
            return Special(text)
        is_address = text[0] + text[-1] == "[]"
        match = _PLACE.fullmatch(text[1:-1].strip() if is_address else text)
        if not match:
            raise Fault(f"unknown syntax of an operand: {text}")
        offset = int(match[2] or 0)
        base = (
            self._register(match[1]) if match[1][0] == "%" else self._names.get(match[1], match[1])
        )
        if isinstance(base, str):
            return Address(Symbol(base), offset) if is_address else Symbol(base, offset)
        return Address(base, offset) if is_address else base
