"""Cases of moves, selections and comparisons."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from cuda_exact import as_bits
from cuda_float_cases import bits, wide
from cuda_forms import Case, Modifiers, cases_of, full
from cuda_integer_cases import columns, dtype_of, is_float, tuples, values

_ORDERED = {
    "eq": operator.eq,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_SPECIAL = {
    "%laneid": lambda n: n % 32,
    "%tid.x": lambda n: n % 128,
    "%ctaid.x": lambda n: n // 128,
    "%ntid.x": lambda n: 128,
    "%tid.y": lambda n: 0,
    "%ntid.z": lambda n: 1,
}


def _unsigned(type: str) -> str:
    """The bits of a type."""
    return f"u{int(type[1:]) // 8}"


@lru_cache
def _numbers() -> tuple[np.ndarray, ...]:
    """As many numbers as three blocks have threads."""
    return (np.arange(384, dtype="u4"),)


@cases_of("mov")
def _moves(name: str, modifiers: Modifiers) -> Iterator[Case]:
    (type,) = modifiers
    if type == "pred":
        code = "setp.gt.u32 q, a, 5; mov.pred p, q; selp.u32 d, 1, 0, p;"
        yield Case(code, tuples("u4"), (tuples("u4")[0] > 5).astype("u4"))
        return
    kind = _unsigned(type)
    (a,) = inputs = tuples(kind)
    yield Case(f"mov.{type} d, a;", inputs, a)
    if is_float(type):
        constant = {"f32": "0fC0490FDB", "f64": "0dC00921FB54442D18"}[type]
        pi = as_bits([-math.pi], type).view(kind)
        yield Case(f"mov.{type} d, {constant};", inputs, np.resize(pi, len(a)))
        return
    yield Case(f"mov.{type} d, -2;", inputs, np.full(len(a), -2).astype(f"i{kind[1]}").view(kind))
    if type == "u32":
        (numbers,) = _numbers()
        for register, function in _SPECIAL.items():
            want = np.array([function(one) for one in numbers.tolist()], "u4")
            yield Case(f"mov.u32 d, {register};", _numbers(), want)
    if type[0] == "b" and kind != "u2":
        half = np.dtype(kind).type(int(type[1:]) // 2)
        first, second = ("x", "y") if kind == "u8" else ("h", "l")
        # PTX ISA, mov: a.x is in the least significant bits.
        code = f"mov.{type} {{{first}, {second}}}, a; mov.{type} d, {{{second}, {first}}};"
        yield Case(code, inputs, (a << half) | (a >> half))
    if type == "b64":
        code = """.reg .b16 j, k; mov.b64 {h, l, j, k}, a; mov.b64 d, {k, j, l, h};"""
        yield Case(code, inputs, a.view("u2").reshape(-1, 4)[:, ::-1].copy().view("u8").reshape(-1))


@cases_of("selp")
def _selections(name: str, modifiers: Modifiers) -> Iterator[Case]:
    kind = _unsigned(modifiers[0])
    a, b, c = inputs = columns((kind, kind, "u4"), *[tuple(values(kind))] * 2, (0, 1))
    for predicate, want in (("p", c == 1), ("!p", c == 0)):
        code = f"setp.ne.u32 p, c, 0; {full(name, modifiers)} d, a, b, {predicate};"
        yield Case(code, inputs, np.where(want, a, b))


def _compared(comparison: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """PTX ISA, Comparison and Selection: ordered comparisons are false if an operand is NaN,
    unordered ones (equ, neu, ltu, ...) true."""
    unordered = np.isnan(a) | np.isnan(b) if a.dtype.kind == "f" else np.zeros(len(a), bool)
    if comparison in ("num", "nan"):
        return unordered if comparison == "nan" else ~unordered
    name = _UNSIGNED.get(comparison, comparison.removesuffix("u"))
    found = (a < b) | (a > b) if name == "ne" else _ORDERED[name](a, b)
    return found | unordered if comparison.endswith("u") else found & ~unordered


@lru_cache
def _operands(type: str) -> tuple[np.ndarray, ...]:
    """The values that are compared."""
    return wide(type, 2) if is_float(type) else tuples(dtype_of(type), dtype_of(type))


@cases_of("setp")
def _comparisons(name: str, modifiers: Modifiers) -> Iterator[Case]:
    comparison, type = modifiers
    found = _compared(comparison, *_operands(type)).astype("u4")
    inputs = bits(type, 2) if is_float(type) else tuples(dtype_of(type), dtype_of(type))
    code = f"{full(name, modifiers)} p, a, b; selp.u32 d, 1, 0, p;"
    yield Case(code, inputs, found)
