"""Programs as bytes and back, for caches on disk.

A program is written as a list of rows without repetitions: numbers and texts literally, tuples
and records as the number of their kind and the numbers of earlier rows. The bytes depend on the
program's contents alone, so that their checksum identifies it in every process. Reading makes only
tuples and the records that are listed here, so a file cannot contain code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, cast, final

import numpy as np

from lamina.base.shapes import Array, DType, as_dtype
from lamina.errors import FileFormatError, InternalError, LaminaError
from lamina.program.check import verify
from lamina.program.index import Axis, Gathered, Index, Quotient, Remainder
from lamina.program.program import Allocation, Buffer, Plan, Program, Repeat
from lamina.program.scalar import Apply, Bound, Literal, Load, Local, Position, Within
from lamina.program.steps import (
    Chain,
    Contraction,
    InnerProduct,
    Loop,
    Reduce,
    Scan,
    SegmentSum,
    Sort,
    Store,
    WeightedSum,
    Write,
)
from lamina.program.windows import Sliding

_RECORDS: tuple[type[Any], ...] = (
    *(Axis, Quotient, Remainder, Gathered, Index),
    *(Literal, Load, Local, Position, Within, Apply, Bound),
    *(Store, Reduce, Write, Scan, Sort, SegmentSum, Loop, Contraction, Sliding),
    *(InnerProduct, WeightedSum, Chain),
    *(Buffer, Allocation, Plan, Repeat),
)
# The kinds of rows that are lists: tuples, element types by their names, records.
_TUPLE, _DTYPE, _FIRST_RECORD = range(3)
_KINDS: Mapping[type[Any], int] = {
    record: kind for kind, record in enumerate(_RECORDS, _FIRST_RECORD)
}
# The errors that making or checking records from damaged rows may raise.
_NONSENSE = (
    *(LaminaError, LookupError, TypeError, ValueError, AttributeError),
    *(ArithmeticError, RecursionError, AssertionError),
)
_PLAIN = (bool, int, float, str, type(None))
_LENGTH_BYTES = 8


def encode(program: Program) -> bytes:
    """The program as bytes, the same for equal programs."""
    constants = [(name, value.dtype.name, value.shape) for name, value in program.constants.items()]
    rows = _Rows()
    buffers, steps, outputs = tuple(program.buffers.values()), program.steps, program.outputs
    plan, repeats, prepared = program.plan, program.repeats, program.prepared
    kept = tuple(constants)
    rows.add((program.name, buffers, steps, outputs, plan, repeats, prepared, kept))
    text = json.dumps(rows.rows, separators=(",", ":")).encode()
    arrays = (np.ascontiguousarray(value).tobytes() for value in program.constants.values())
    data = b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *arrays))
    object.__setattr__(program, "checksum", hashlib.sha256(data).hexdigest())
    return data


def decode(data: bytes) -> Program:
    """The program that was encoded; FileFormatError if the bytes are none, or it breaks a rule."""
    try:
        program = _decoded(data)
        verify(program)
    except _NONSENSE as error:
        raise FileFormatError(f"this is not a program: {error}") from None
    object.__setattr__(program, "checksum", hashlib.sha256(data).hexdigest())
    return program


def checksum(program: Program) -> str:
    """SHA-256 of the program's bytes: its name in caches."""
    if not program.checksum:
        encode(program)
    return program.checksum


def _decoded(data: bytes) -> Program:
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    rows = json.loads(data[_LENGTH_BYTES:end])
    name, buffers, steps, outputs, plan, repeats, prepared, kept = _read(rows)
    named = {buffer.name: buffer for buffer in cast(tuple[Buffer, ...], buffers)}
    constants: dict[str, Array] = {}
    for constant, dtype, shape in kept:
        if (named[constant].shape, named[constant].dtype) != (shape, as_dtype(dtype)):
            raise ValueError(f"{constant} has another shape than its buffer")
        size = int(np.prod(shape, dtype=np.int64))
        # A copy is aligned like other arrays.
        array = np.frombuffer(data, as_dtype(dtype).numpy, size, end).reshape(shape).copy()
        array.flags.writeable = False
        constants[constant] = array
        end += array.nbytes
    if end != len(data):
        raise ValueError("its length does not fit its rows")
    return Program(name, named, steps, outputs, constants, plan, repeats, prepared)


@final
class _Rows:
    """The rows of values; the rows of a value's components come before its own."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        # The numbers of rows by their contents, and by the identity of objects seen before.
        self._numbers: dict[object, int] = {}
        self._row_of: dict[int, int] = {}
        # Keeps the objects alive, so that no other object gets their identity.
        self._alive: list[object] = []

    def add(self, value: object) -> int:
        """The number of a value's row; adds the row if there is none."""
        pending = [value]
        while pending:
            top = pending[-1]
            if id(top) in self._row_of or isinstance(top, _PLAIN):
                pending.pop()
                continue
            kind, values = self._components(top)
            missing = [v for v in values if not isinstance(v, _PLAIN) and id(v) not in self._row_of]
            if missing:
                pending += reversed(missing)
                continue
            pending.pop()
            row = (kind, *map(self._number, values))
            self._alive.append(top)
            self._row_of[id(top)] = self._row(row, list(row))
        return self._number(value)

    def _number(self, value: object) -> int:
        if isinstance(value, _PLAIN):
            # 1, 1.0 and True are equal, and so are 0.0 and -0.0.
            return self._row((type(value), repr(value)), value)
        return self._row_of[id(value)]

    def _row(self, key: object, row: object) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return self._numbers[key]

    def _components(self, value: object) -> tuple[int, tuple[object, ...]]:
        """The kind of a value, and its elements or fields."""
        if isinstance(value, tuple):
            return _TUPLE, cast(tuple[object, ...], value)
        if isinstance(value, DType):
            return _DTYPE, (value.name,)
        kind = _KINDS.get(type(value))
        if kind is None:
            raise InternalError(f"a program has no {type(value).__name__} in it: {value!r}")
        return kind, _FIELDS[kind](value)


def _values_of(record: type[Any]) -> Callable[[object], tuple[object, ...]]:
    """A function that returns the fields with which a record is made."""
    names = [field.name for field in fields(record) if field.init]
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


_FIELDS: Mapping[int, Callable[[object], tuple[object, ...]]] = {
    kind: _values_of(record) for record, kind in _KINDS.items()
}

_MAKERS: tuple[Callable[..., object], ...] = (lambda *elements: elements, as_dtype, *_RECORDS)


def _read(rows: list[Any]) -> Any:
    """The value of the last row."""
    values: list[object] = []
    for row in rows:
        if not isinstance(row, list):
            values.append(row)
            continue
        kind, *numbers = cast(list[int], row)
        if numbers and min(numbers) < 0:
            raise ValueError("a row counts from the end")
        values.append(_MAKERS[kind](*[values[number] for number in numbers]))
    return values[-1]
