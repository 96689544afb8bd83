"""Reads PTX: `parse` makes a `Module` of a text, and refuses what it does not know."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from cuda_machine.faults import Fault
from cuda_machine.operands import Scopes, number, read_operands
from cuda_machine.syntax import (
    BITS,
    CONTROL,
    Immediate,
    Instruction,
    Label,
    Not,
    Parameter,
    Register,
    Variable,
    aligned,
)
from cuda_machine.syntax import Kernel as Kernel
from cuda_machine.syntax import Module as Module

_COMMENTS: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Debugging information: says which line of CUDA C an instruction is from.
_LOCATIONS: Final = re.compile(r"^[ \t]*\.(?:loc|file)\b[^\n]*", re.MULTILINE)
_SPACE: Final = re.compile(r"\s+")
_LABEL: Final = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_HEADER: Final = re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.entry\b")
_VARIABLE: Final = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<space>global|const|shared|local)\b"
    r"(?:\s*\.align\s+(?P<align>\d+))?\s*\.(?P<type>\w+)\s+(?P<name>[\w$%]+)"
    r"(?P<extents>(?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(?P<initial>.*))?$",
    re.DOTALL,
)
_PARAMETER: Final = re.compile(
    r"\.(?P<space>param|reg)\b(?:\s*\.align\s+(?P<align>\d+))?\s*\.(?P<type>\w+)"
    r"(?P<pointer>\s*\.ptr(?:\s*\.(?:const|global|local|shared))?(?:\s*\.align\s+\d+)?)?"
    r"\s+(?P<name>[\w$%]+)\s*(?:\[\s*(?P<extent>\d+)\s*\])?$"
)
_INSTRUCTION: Final = re.compile(
    r"(?:@(?P<not>!)?(?P<guard>[\w$%]+)\s+)?(?P<name>[a-z]\w*)(?P<modifiers>(?:\.[\w:]+)*)"
    r"(?P<operands>.*)$",
    re.DOTALL,
)
# Hints on speed that change no result: PTX ISA, Performance-Tuning Directives.
_HINTS: Final = ("maxnreg", "minnctapersm", "maxnctapersm")
# Hints on loops and on the stack; "noreturn" is checked by nobody.
_PRAGMAS: Final = ("nounroll", "used_bytes_mask")


def parse(text: str) -> Module:
    """The module of a PTX text."""
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        def blank(found: re.Match[str]) -> str:
            return re.sub(r"[^\n]", " ", found.group())

        self.text = _LOCATIONS.sub(blank, _COMMENTS.sub(blank, text))
        self.position = 0
        self._lines, self._counted = 1, 0

    def module(self) -> Module:
        module = Module()
        while self._skip_space():
            if _HEADER.match(self.text, self.position):
                self._function(module)
            else:
                line, statement = self._module_statement()
                self._directive(module, line, statement)
        if not module.target:
            raise Fault("the PTX text has no .target")
        return module

    def _skip_space(self) -> bool:
        found = _SPACE.match(self.text, self.position)
        if found:
            self.position = found.end()
        return self.position < len(self.text)

    def _line(self) -> int:
        """The line of the present position; positions only grow."""
        self._lines += self.text.count("\n", self._counted, self.position)
        self._counted = self.position
        return self._lines

    def _statement(self) -> tuple[int, str]:
        """The line and text of a statement, which ends with a semicolon."""
        line = self._line()
        end = self.text.find(";", self.position)
        if end < 0:
            raise Fault("a statement without an end", line=line, text=self.text[self.position :])
        statement = self.text[self.position : end].strip()
        self.position = end + 1
        return line, statement

    def _module_statement(self) -> tuple[int, str]:
        """A statement outside of functions: some end with their line."""
        found = re.compile(r"\.(version|target|address_size)[^\n;]*").match(
            self.text, self.position
        )
        if not found:
            return self._statement()
        line = self._line()
        self.position = found.end()
        return line, found.group().strip()

    def _directive(self, module: Module, line: int, statement: str) -> None:
        words = statement.split()
        match words:
            case [".version", version]:
                major, minor = version.split(".")
                module.version = int(major), int(minor)
            case [".target", target] if re.fullmatch(r"sm_\d+[af]?", target):
                module.target = target
            case [".address_size", "64"]:
                pass
            case _:
                variable = _variable(line, statement)
                # A declaration may precede the definition.
                known = module.variables.get(variable.name)
                if known is None or known.extern:
                    module.variables[variable.name] = variable

    def _function(self, module: Module) -> None:
        """A kernel, or the declaration of one."""
        line = self._line()
        end = min(
            (one for one in (self.text.find(c, self.position) for c in "{;") if one >= 0),
            default=-1,
        )
        if end < 0:
            raise Fault("a function without a body", line=line)
        header = self.text[self.position : end]
        body = self.text[end] == "{"
        self.position = end + 1
        kernel = _header(module, line, header)
        if not body:
            return
        module.kernels[kernel.name] = kernel
        self._body(kernel, Scopes())

    def _body(self, kernel: Kernel, scopes: Scopes) -> None:
        depth = 1
        while depth:
            if not self._skip_space():
                raise Fault("a body without an end", kernel=kernel.name, line=kernel.line)
            character = self.text[self.position]
            if character == "{":
                depth += 1
                scopes.open()
                self.position += 1
            elif character == "}":
                depth -= 1
                scopes.close()
                self.position += 1
            elif found := _LABEL.match(self.text, self.position):
                self.position = found.end()
                self._label(kernel, scopes, found[1])
            else:
                line, statement = self._statement()
                try:
                    _body_statement(kernel, scopes, line, statement)
                except Fault as fault:
                    raise Fault(
                        fault.what, kernel=kernel.name, line=line, text=" ".join(statement.split())
                    ) from None

    def _label(self, kernel: Kernel, scopes: Scopes, name: str) -> None:
        self._skip_space()
        if self.text.startswith(".branchtargets", self.position):
            _, statement = self._statement()
            names = statement.removeprefix(".branchtargets").split(",")
            kernel.targets[name] = tuple(one.strip() for one in names)
        elif self.text.startswith((".callprototype", ".calltargets"), self.position):
            line, statement = self._statement()
            raise Fault("unknown directive", kernel=kernel.name, line=line, text=statement)
        else:
            kernel.body.append(Label(name))


def _header(module: Module, line: int, header: str) -> Kernel:
    text = " ".join(header.split())
    found = re.fullmatch(
        r"(?:\.(?:visible|extern|weak|common) )*\.entry "
        r"(?P<name>[\w$]+) ?(?:\((?P<parameters>[^)]*)\))?"
        r"(?P<rest>.*)",
        text,
    )
    if not found:
        raise Fault("unknown syntax of a function", line=line, text=text)
    kernel = Kernel(found["name"], line, module=module)
    kernel.parameters = _parameters(line, found["parameters"])
    rest = found["rest"].strip()
    while rest:
        one = re.match(r"\.(\w+)((?: ?\d+ ?,?)*) ?", rest)
        if not one or one[1] not in (*_HINTS, "maxntid"):
            raise Fault("unknown directive", kernel=kernel.name, line=line, text=rest)
        if one[1] == "maxntid":
            kernel.maxntid = tuple(int(text) for text in re.findall(r"\d+", one[2]))
        rest = rest[one.end() :]
    return kernel


def _parameters(line: int, text: str | None) -> list[Parameter]:
    parameters: list[Parameter] = []
    offset = 0
    for one in (text or "").split(","):
        if not one.strip():
            continue
        found = _PARAMETER.match(one.strip())
        if not found or found["type"] not in BITS:
            raise Fault("unknown syntax of a parameter", line=line, text=one.strip())
        element = BITS[found["type"]] // 8
        size = element * int(found["extent"] or 1)
        align = int(found["align"] or element)
        offset = aligned(offset, align)
        parameters.append(Parameter(found["name"], size, align, offset))
        offset += size
    return parameters


def _variable(line: int, statement: str) -> Variable:
    found = _VARIABLE.match(statement)
    if not found or found["type"] not in BITS:
        raise Fault("unknown directive", line=line, text=" ".join(statement.split()))
    element = BITS[found["type"]] // 8
    extents = re.findall(r"\[\s*(\d*)\s*\]", found["extents"])
    count = 1
    for extent in extents:
        count *= int(extent or 0)
    return Variable(
        found["name"],
        found["space"],
        element * count,
        int(found["align"] or element),
        _initial(line, found["initial"], found["type"]),
        extern=(bool(extents) and not extents[0]) or ".extern" in found["linkage"],
    )


def _initial(line: int, text: str | None, type: str) -> bytes:
    """The bytes of an initialiser."""
    data = bytearray()
    for word in re.sub(r"[{}]", " ", text).split(",") if text else ():
        value = number(word.strip())
        kind = "integer" if type[0] in "bus" else type
        # A zero may be an integer.
        if value is None or value.kind not in (kind, "" if value.bits else "integer"):
            raise Fault("unknown syntax of an initialiser", line=line, text=word.strip())
        data += (value.bits % (1 << BITS[type])).to_bytes(BITS[type] // 8, "little")
    return bytes(data)


def _body_statement(kernel: Kernel, scopes: Scopes, line: int, statement: str) -> None:
    text = " ".join(statement.split())
    if text.startswith(".reg"):
        scopes.declare_registers(text.removeprefix(".reg").strip())
    elif text.startswith((".shared", ".local")):
        variable = _variable(line, statement)
        own = kernel.shared if variable.space == "shared" else kernel.local
        name = scopes.declare_variable(variable.name)
        own[name] = replace(variable, name=name)
    elif text.startswith(".pragma"):
        if not any(f'"{one}' in text for one in _PRAGMAS):
            raise Fault("unknown pragma")
    elif text.startswith("."):
        raise Fault("unknown directive")
    else:
        kernel.body.append(_instruction(scopes, line, text))


def _instruction(scopes: Scopes, line: int, text: str) -> Instruction:
    found = _INSTRUCTION.match(text)
    if not found:
        raise Fault("unknown syntax of an instruction")
    guard: Register | Not | None = None
    if found["guard"]:
        operand = scopes.find(found["guard"])
        if not isinstance(operand, Register):
            raise Fault(f"unknown register {found['guard']}")
        guard = Not(operand) if found["not"] else operand
    operands = read_operands(scopes, found["operands"])
    modifiers = tuple(one for one in found["modifiers"].split(".") if one)
    if ".".join(modifiers) not in CONTROL.get(found["name"], (".".join(modifiers),)):
        raise Fault("unknown instruction")
    return Instruction(found["name"], modifiers, operands, guard, line, text)


__all__ = ["Immediate", "Kernel", "Module", "parse"]
