"""Instructions and structures with their expected results by NumPy, for the tests of all builders.

All cases are written into one function. Each case reads vectors of its operands, element by element
for scalars, and writes its results to an address of its own; so do structures: loops, conditions,
calls, and loads of some lanes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.base.shapes import Array
from lamina.codegen.builder import Builder
from lamina.codegen.c import Module
from lamina.codegen.values import I64, Type, Value, constant, constants

COUNT = 16
DTYPES = {"i8": "uint8", "i32": "uint32", "i64": "uint64", "float": "float32", "double": "float64"}

# (code, operands) -> result; all are values with the case's lanes.
Write = Callable[[Builder, Sequence[Value]], Value]


@dataclass(frozen=True)
class Case:
    """An instruction and its expected results.

    Attributes:
        name: for people.
        operands: the arrays of its operands, each of COUNT elements.
        write: writes it.
        meaning: (arrays) -> array.
        lanes: of the vectors.
    """

    name: str
    operands: tuple[str, ...]
    write: Write
    meaning: Callable[..., Any]
    lanes: int = 0

    @property
    def expected(self) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(self.meaning(*(INPUTS[name] for name in self.operands)))


def _inputs() -> dict[str, Array]:
    """Numbers of every type, including difficult ones; `small` ones are below 2**31."""
    generator = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for element in ("i8", "i32", "i64"):
        dtype = np.dtype(DTYPES[element])
        bits = 8 * dtype.itemsize
        edges = [0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1, 3]
        drawn = generator.integers(0, 2**bits, COUNT, dtype, endpoint=False)
        drawn[: len(edges)] = edges
        inputs[f"{element}.a"] = drawn
        inputs[f"{element}.b"] = np.roll(drawn, 5)
        inputs[f"{element}.c"] = np.maximum(np.roll(drawn, 3), 1)
        inputs[f"{element}.shift"] = (np.arange(COUNT) % bits).astype(dtype)
    for element in ("float", "double"):
        dtype = np.dtype(DTYPES[element])
        limits = np.finfo(dtype)
        special = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, limits.max, limits.tiny]
        drawn = generator.normal(size=COUNT).astype(dtype)
        drawn[: len(special)] = special
        inputs[f"{element}.a"] = drawn
        inputs[f"{element}.b"] = np.roll(drawn, 4)
        inputs[f"{element}.c"] = generator.normal(size=COUNT).astype(dtype)
        inputs[f"{element}.d"] = generator.normal(size=COUNT).astype(dtype)
        with np.errstate(all="ignore"):
            inputs[f"{element}.far"] = drawn * dtype.type(1e10)
        for target in ("i8", "i32", "i64"):
            inputs[f"{element}.{target}"] = _around_the_ends(dtype, Type(target).bits)
    inputs["numbers"] = np.array([0, 1, 2, 7], "uint64")
    return inputs


def _around_the_ends(dtype: np.dtype[Any], bits: int) -> Array:
    """Floats at and next to the limits of signed and unsigned integers, and NaN and infinities."""
    ends = np.array([-(2.0 ** (bits - 1)), 2.0 ** (bits - 1), 2.0**bits], dtype)
    neighbours = [np.nextafter(ends, dtype.type(direction)) for direction in (-np.inf, np.inf)]
    others = np.array([-0.5, -1.0, -1.5, 0.75, np.inf, -np.inf, np.nan], dtype)
    return np.concatenate([ends, *neighbours, others])


INPUTS = _inputs()


def _signed(x: Array) -> Array:
    return x.view(x.dtype.name.replace("u", ""))


INTEGERS: Mapping[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "add": ("b", lambda x, y: x + y),
    "sub": ("b", lambda x, y: x - y),
    "mul": ("b", lambda x, y: x * y),
    "udiv": ("c", lambda x, y: x // y),
    "urem": ("c", lambda x, y: x % y),
    "and": ("b", lambda x, y: x & y),
    "or": ("b", lambda x, y: x | y),
    "xor": ("b", lambda x, y: x ^ y),
    "shl": ("shift", lambda x, y: x << y),
    "lshr": ("shift", lambda x, y: x >> y),
    "ashr": ("shift", lambda x, y: (_signed(x) >> _signed(y)).view(x.dtype)),
}
FLOATS = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide}
RELATIONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
RELATIONS |= {"gt": np.greater, "ge": np.greater_equal}


def _binary(operation: str) -> Write:
    return lambda code, x: code.binary(operation, x[0], x[1])


def _compare(relation: str) -> Write:
    return lambda code, x: code.convert("zext", code.compare(relation, x[0], x[1]), "i8")


def _convert(operation: str, element: str) -> Write:
    return lambda code, x: code.convert(operation, x[0], element)


def cases_of(lanes: int) -> list[Case]:
    """The cases of scalars, if lanes is 0, or of vectors."""
    cases: list[Case] = []

    def add(name: str, operands: str, write: Write, meaning: Callable[..., Any]) -> None:
        """Adds a case; operands after the first one are of its type."""
        element, first = operands.split(".")
        names = tuple(f"{element}.{suffix}" for suffix in first.split())
        cases.append(Case(f"{name}-{lanes}", names, write, meaning, lanes))

    def minimum(x: Array, y: Array) -> Array:
        return np.minimum(_signed(x), _signed(y)).view(x.dtype)

    def first_of_groups(x: Array) -> Array:
        return _groups(x, lanes, lambda group: np.repeat(group[:1], len(group)))

    for kind in ("i8", "i32", "i64"):
        for operation, (other, meaning) in INTEGERS.items():
            add(f"{operation}-{kind}", f"{kind}.a {other}", _binary(operation), meaning)
        add(f"neg-{kind}", f"{kind}.a", lambda code, x: code.negate(x[0]), lambda x: 0 - x)
        add(f"minimum-{kind}", f"{kind}.a b", lambda code, x: code.minimum(x[0], x[1]), minimum)
        for relation, meaning in RELATIONS.items():
            if relation in ("eq", "ne"):
                add(f"{relation}-{kind}", f"{kind}.a b", _compare(relation), _as_bytes(meaning))
                continue
            add(f"u{relation}-{kind}", f"{kind}.a b", _compare(f"u{relation}"), _as_bytes(meaning))
            add(f"s{relation}-{kind}", f"{kind}.a b", _compare(f"s{relation}"), _on_signed(meaning))
    for kind in ("float", "double"):
        pair = f"{kind}.a b"
        for operation, meaning in FLOATS.items():
            add(f"{operation}-{kind}", pair, _binary(operation), meaning)
        for relation in ("eq", "lt", "le", "gt", "ge"):
            compared = _as_bytes(RELATIONS[relation])
            add(f"o{relation}-{kind}", pair, _compare(f"o{relation}"), compared)
        add(f"une-{kind}", pair, _compare("une"), _as_bytes(np.not_equal))
        add(f"one-{kind}", pair, _compare("one"), lambda x, y: _ordered(x, y) & (x != y))
        add(f"ord-{kind}", pair, _compare("ord"), _ordered)
        add(f"uno-{kind}", pair, _compare("uno"), lambda x, y: 1 - _ordered(x, y))
        add(f"neg-{kind}", f"{kind}.a", lambda code, x: code.negate(x[0]), np.negative)
        add(f"fabs-{kind}", f"{kind}.a", lambda code, x: code.intrinsic("fabs", x[0]), np.abs)
        add(
            *(f"sqrt-{kind}", f"{kind}.c"),
            lambda code, x: code.intrinsic("sqrt", code.intrinsic("fabs", x[0])),
            lambda x: np.sqrt(abs(x)),
        )
        add(f"copysign-{kind}", pair, lambda code, x: code.intrinsic("copysign", *x), np.copysign)
        add(
            *(f"select-{kind}", pair, lambda code, x: code.select(x[0] < x[1], *x)),
            lambda x, y: np.where(x < y, x, y),
        )
        # The same with one rounding and with two, if the product is exact.
        add(
            *(f"multiply_add-{kind}", f"{kind}.c d"),
            lambda code, x: code.multiply_add(x[0], 0.5, x[1]),
            lambda x, y: x * x.dtype.type(0.5) + y,
        )
        add(f"splat-{kind}", f"{kind}.a", lambda code, x: _spread(code, x[0]), first_of_groups)
    for kind, to in (("float", "i32"), ("double", "i64")):
        add(f"bitcast-{kind}", f"{kind}.a", _convert("bitcast", to), _view(to))
        for to in ("i8", "i32", "i64"):
            for sign, dtype in (("s", DTYPES[to][1:]), ("u", DTYPES[to])):
                for name in ("a", "far", to):
                    convert, operand = _convert(f"fpto{sign}i.sat", to), f"{kind}.{name}"
                    add(f"fpto{sign}i-{operand}-{to}", operand, convert, _saturating(dtype))
                convert, cast = _convert(f"{sign}itofp", kind), _cast(kind, signed=sign == "s")
                add(f"{sign}itofp-{to}-{kind}", f"{to}.a", convert, cast)
    add("fpext", "float.a", _convert("fpext", "double"), _cast("double"))
    add("fptrunc", "double.a", _convert("fptrunc", "float"), _cast("float"))
    for wide, narrow in (("i64", "i32"), ("i64", "i8"), ("i32", "i8")):
        add(f"trunc-{wide}-{narrow}", f"{wide}.a", _convert("trunc", narrow), _cast(narrow))
        for name in ("zext", "sext"):
            cast = _cast(wide, signed=name == "sext")
            add(f"{name}-{narrow}-{wide}", f"{narrow}.a", _convert(name, wide), cast)
    add("conditions", "i32.a b", _conditions, _meaning_of_conditions)
    if lanes:
        add("lanes", "float.c d", _moved_lanes, lambda x, y: _lanes_moved(x, y, lanes))
        numbers = np.tile(np.arange(lanes), COUNT // lanes).astype("uint32")
        row = constants(range(lanes), "i32")
        add("constants", "i32.a", lambda code, x: x[0] + row, lambda x: x + numbers)
    return cases


def _view(element: str) -> Callable[[Array], Array]:
    return lambda x: x.view(DTYPES[element])


def _cast(element: str, *, signed: bool = False) -> Callable[[Array], Array]:
    """A conversion; of signed integers to signed integers or floats."""
    dtype = DTYPES[element].removeprefix("u" if signed else "")
    return lambda x: (_signed(x) if signed else x).astype(dtype).view(DTYPES[element])


def _saturating(dtype: str) -> Callable[[Array], Array]:
    limits = np.iinfo(dtype)

    def saturated(x: Array) -> Array:
        numbers = [0 if np.isnan(n) else int(max(min(n, 2**70), -(2**70))) for n in x.astype("f8")]
        result = np.array([max(min(n, limits.max), limits.min) for n in numbers], dtype)
        return result.view(f"uint{limits.bits}")

    return saturated


def _as_bytes(meaning: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: meaning(x, y).astype("uint8")


def _on_signed(meaning: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: meaning(_signed(x), _signed(y)).astype("uint8")


def _ordered(x: Array, y: Array) -> Array:
    return (~np.isnan(x) & ~np.isnan(y)).astype("uint8")


def _groups(x: Array, lanes: int, change: Callable[[Array], Array]) -> Array:
    return np.concatenate([change(group) for group in x.reshape(-1, lanes or 1)])


def _spread(code: Builder, value: Value) -> Value:
    lanes = value.type.lanes
    return code.splat(code.extract(value, 0), lanes) if lanes else code.splat(value, 0)


def _conditions(code: Builder, x: Sequence[Value]) -> Value:
    """(a < b and not a even) or a == b, as 3 or 5, by conditions alone."""
    type = x[0].type
    truth = constant(True, type.of("i1"))
    odd = code.convert("trunc", x[0], "i1")
    below = code.compare("ult", x[0], x[1])
    even = code.binary("xor", odd, truth)
    both = code.binary("and", below, code.binary("xor", even, truth))
    either = code.binary("or", both, code.compare("eq", x[0], x[1]))
    chosen = code.select(either, below, code.select(below, even, odd))
    # A condition that holds is the larger one.
    chosen = code.binary("or", chosen, code.compare("ugt", chosen, truth))
    chosen = code.binary("and", chosen, code.compare("uge", truth, chosen))
    number = code.convert("zext", chosen, "i32")
    return code.add(code.select(either, constant(3, type), constant(5, type)), number)


def _meaning_of_conditions(x: Array, y: Array) -> Array:
    odd, below = x % 2 == 1, x < y
    either = (below & odd) | (x == y)
    chosen = np.where(either, below, np.where(below, ~odd, odd))
    return (np.where(either, 3, 5) + chosen).astype("uint32")


def _moved_lanes(code: Builder, x: Sequence[Value]) -> Value:
    """The lanes backwards, some of the other operand's, one replaced, and padded again."""
    lanes = x[0].type.lanes
    half = code.shuffle(x[0], x[1], [lanes + 1, *range(lanes // 2 - 1, 0, -1)])
    inserted = code.insert(half, code.extract(x[1], lanes - 1), 0) if lanes > 4 else half
    return code.padded(inserted, lanes, 7.5)


def _lanes_moved(x: Array, y: Array, lanes: int) -> Array:
    rows = []
    for a, b in zip(x.reshape(-1, lanes), y.reshape(-1, lanes), strict=True):
        half = np.array([b[1], *a[lanes // 2 - 1 : 0 : -1]], a.dtype)
        if lanes > 4:
            half[0] = b[-1]
        rows.append(np.concatenate([half, np.full(lanes - len(half), 7.5, a.dtype)]))
    return np.concatenate(rows)


# Structure: each case gives one number of 64 bits, from a number below 16 that is read from memory.


def _swapped(code: Builder, n: Value) -> Value:
    """Fibonacci's numbers: the first carried value becomes the old second one."""
    carried = (constant(0, I64), constant(1, I64))
    loop = code.begin_loop(constant(0, I64), n, 1, carried)
    one, other = loop.carried
    one, _ = code.end_loop(loop, (other, code.add(one, other)))
    return one


def _shifted(code: Builder, n: Value) -> Value:
    """The reverse: the second carried value becomes the old first one."""
    carried = (constant(1, I64), constant(0, I64))
    loop = code.begin_loop(constant(0, I64), n, 1, carried)
    newer, older = loop.carried
    _, older = code.end_loop(loop, (code.add(newer, older), newer))
    return older


def _never(code: Builder, n: Value) -> Value:
    """A loop without iterations returns the initial values."""
    loop = code.begin_loop(n, n, 1, (constant(5, I64),))
    (result,) = code.end_loop(loop, (code.add(loop.carried[0], n),))
    return result


def _until(code: Builder, n: Value) -> Value:
    """The first square above some number, by steps of two."""
    loop = code.begin_loop(0, 100, 2, (constant(0, I64),))
    square = code.multiply(loop.index, loop.index)
    going = code.compare("sle", square, code.multiply(n, constant(3, I64)))
    (result,) = code.end_loop(loop, (square,), going)
    return result


def _nested(code: Builder, n: Value) -> Value:
    """A sum over pairs; code that needs the outer index alone is hoisted from the inner loop."""
    outer = code.begin_loop(constant(1, I64), n, 1, (constant(0, I64),))
    inner = code.begin_loop(0, 3, 1, outer.carried)
    with code.at(inner.before):
        square = code.multiply(outer.index, outer.index)
    term = code.multiply(square, code.add(inner.index, constant(1, I64)))
    received = code.end_loop(inner, (code.add(inner.carried[0], term),))
    (result,) = code.end_loop(outer, received)
    return result


def _down(code: Builder, n: Value) -> Value:
    """A loop that may begin below zero."""
    first = code.subtract(constant(3, I64), n)
    loop = code.begin_loop(first, constant(2, I64), 1, (constant(0, I64),))
    (result,) = code.end_loop(loop, (code.add(loop.carried[0], loop.index),))
    return result


def _called(code: Builder, n: Value) -> Value:
    """A function of the module, written once and called twice."""
    if not code.module.has("twice"):
        inner = code.module.function("twice", (("x", I64),), result=I64)
        inner.finish(inner.add(inner.parameters[0], inner.parameters[0]))
    return code.call("twice", I64, code.call("twice", I64, n))


STRUCTURES: Mapping[str, tuple[Callable[[Builder, Value], Value], Callable[[int], int]]] = {
    "swapped": (_swapped, lambda n: [0, 1, 1, 2, 3, 5, 8, 13, 21][n]),
    "shifted": (_shifted, lambda n: [0, 1, 1, 2, 3, 5, 8, 13, 21][n]),
    "never": (_never, lambda n: 5),
    "until": (_until, lambda n: next(k * k for k in range(0, 100, 2) if k * k > 3 * n)),
    "nested": (_nested, lambda n: sum(6 * k * k for k in range(1, n))),
    "down": (_down, lambda n: sum(range(3 - n, 2)) % 2**64),
    "called": (_called, lambda n: 4 * n),
}
NUMBERS = tuple(INPUTS["numbers"].tolist())
# The lanes that are loaded by a masked load.
MASK = (1, 0, 0, 1)


def write(code: Builder, bases: Mapping[str, Value], out: Value, cases: Sequence[Case]) -> None:
    """The body of a function: all cases, then the structures, those with lanes if any case has.

    Args:
        code: the function.
        bases: the address of each input.
        out: the address of the results, each case's 128 bytes apart.
        cases: the instructions to write.
    """
    for number, case in enumerate(cases):
        with code.when(code.compare("slt", constant(number, I64), constant(1 << 40, I64))):
            lanes = case.lanes or 1
            for first in range(0, COUNT, lanes):
                operands: list[Value] = []
                for name in case.operands:
                    type = Type(name.partition(".")[0], case.lanes)
                    address = code.offset(bases[name], first, type.element)
                    operands.append(code.load(address, type))
                result = case.write(code, operands)
                kind = result.type.element
                start = code.offset(out, number * 16 * COUNT // 2, "i8")
                code.store(result, code.offset(start, first, kind))
    structures = code.offset(out, len(cases) * 8 * COUNT, "i8")
    _write_structures(code, bases["numbers"], structures)
    if _has_lanes(cases):
        masked = code.offset(structures, len(STRUCTURES) * len(NUMBERS), "i64")
        mask = constants(MASK, "i1")
        code.store(code.masked_load(bases["numbers"], mask, Type("i64", len(MASK))), masked)


def _write_structures(code: Builder, numbers: Value, out: Value) -> None:
    for structure, (write_one, _) in enumerate(STRUCTURES.values()):
        for number in range(len(NUMBERS)):
            n = code.load(code.offset(numbers, number, "i64"), I64)
            target = code.offset(out, structure * len(NUMBERS) + number, "i64")
            code.store(constant(99, I64), target)
            value = write_one(code, n)
            with code.when(code.compare("ne", value, constant(99, I64))):
                code.store(value, target)


def _has_lanes(cases: Sequence[Case]) -> bool:
    return any(case.lanes for case in cases)


def structures_of(cases: Sequence[Case]) -> Array:
    """The expected results of the structures that are written with these cases."""
    expected = [meaning(n) for _, meaning in STRUCTURES.values() for n in NUMBERS]
    if _has_lanes(cases):
        expected += [n if one else 0 for n, one in zip(NUMBERS, MASK, strict=True)]
    return np.array(expected, "uint64")


def room_for(cases: Sequence[Case]) -> Array:
    """Bytes for all results."""
    return np.zeros(8 * (len(cases) * COUNT + len(structures_of(cases))), np.uint8)


def results(raw: Array, cases: Sequence[Case]) -> dict[str, Array]:
    """The results of the cases by their names, and of the `"structures"`."""
    outputs: dict[str, Array] = {}
    for number, case in enumerate(cases):
        start = number * 8 * COUNT
        outputs[case.name] = raw[start : start + case.expected.nbytes].view(case.expected.dtype)
    outputs["structures"] = raw[len(cases) * 8 * COUNT :].view("uint64")
    return outputs


def write_kernel(module: Module, cases: Sequence[Case]) -> None:
    """The kernel `cases` of a language like C, whose arguments are the inputs and the results."""
    names = [name.replace(".", "_") for name in INPUTS]
    buffers = [(label, _element_of(name)) for label, name in zip(names, INPUTS, strict=True)]
    code = module.kernel("cases", [*buffers, ("out", "i8")], [])
    *bases, out = code.parameters
    write(code, dict(zip(INPUTS, bases, strict=True)), out, cases)


def _element_of(name: str) -> str:
    return "i64" if name == "numbers" else name.partition(".")[0]
