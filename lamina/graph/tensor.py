"""Tensors, ops and graphs: what the user said.

A `Tensor` is a symbolic value: the output of an `Op` applied to other tensors. It knows its shape
and dtype and holds no data. Everything here is immutable, so a graph can be shared freely, and a
pass over it builds a new one.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast, final
from weakref import WeakKeyDictionary

import numpy as np

from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError
from lamina.graph.attributes import LABEL, Many, MayLack
from lamina.graph.kinds import ElementType, Extent, Flag, Instance, Kind, Misfit, Word, refusal
from lamina.records import frozen_dataclass
from lamina.shapes import (
    PUBLIC_DTYPES,
    Array,
    Dim,
    DType,
    Shape,
    Size,
    as_dtype,
    converted,
    shape_text,
)

Attributes = Mapping[str, Any]


class Lowering:
    """How the compiler turns an op into program steps; the kinds stand in `lamina.ops.lowering`."""


@frozen_dataclass
class Sample:
    """Inputs on which an op is tested: against its reference, its gradient, on every engine.

    Attributes:
        shapes: one shape for each operand.
        attributes: the op's attributes.
        low, high: the range from which operand values are drawn, evenly.
        dtypes: of the operands; by default all of the float type under test. "float" stands
            for that type.
        differentiable: whether the gradient is checked by finite differences here.
    """

    shapes: tuple[tuple[int, ...], ...]
    attributes: Attributes = field(default_factory=dict[str, Any])
    low: float = -2.0
    high: float = 2.0
    dtypes: tuple[str, ...] = ()
    differentiable: bool = True


@final
class Samples(Sequence[Sample]):
    """Samples that are made when they are first looked at: by tests, never by users.

    Args:
        make: makes all of them.
    """

    def __init__(self, make: Callable[[], Iterable[Sample]]) -> None:
        self._make = make

    @cached_property
    def _all(self) -> tuple[Sample, ...]:
        return tuple(self._make())

    def __getitem__(self, key: Any) -> Any:
        return cast(Any, self._all)[key]

    def __len__(self) -> int:
        return len(self._all)


@frozen_dataclass(eq=False)
class Op:
    """A primitive mathematical operation: all its rules in one record.

    Attributes:
        name: unique; what printed graphs show.
        infer: the shape rule: (operands, attributes) -> (shape, dtype) of the result. Raises
            `ShapeError` or `DTypeError`.
        gradient: (result, upstream) -> for each operand the gradient that flows back to it, or
            None where there is none. None if the op has no derivative at all.
        reference: the NumPy oracle: (operand arrays..., **attributes) -> array.
        lowering: how it becomes program steps.
        samples: inputs for the generated tests.
        joint_gradient: of an op with several results, each a tensor of its own, in place of
            `gradient`: {result: upstream} of one application -> what `gradient` gives.
        operands: how many there are; of a pair, at least and at most, None for any number.
        attributes: what each attribute may be. The rules above see no other values.
        places: of an op with indices: result -> those, and the extent of the axis they index.
    """

    name: str
    infer: Callable[[tuple[Tensor, ...], Attributes], tuple[Shape, DType]]
    gradient: Callable[[Tensor, Tensor], tuple[Tensor | None, ...]] | None
    reference: Callable[..., Array]
    lowering: Lowering
    samples: Sequence[Sample] = ()
    joint_gradient: Callable[[Mapping[Tensor, Tensor]], tuple[Tensor | None, ...]] | None = None
    operands: int | tuple[int, int | None] = 1
    attributes: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    places: Callable[[Tensor], tuple[Tensor, Dim]] | None = None

    def __post_init__(self) -> None:
        _ops[self.name] = self

    def __reduce__(self) -> tuple[Callable[[str, str], Op], tuple[str, str]]:
        # Ops are compared by identity: a copy, or what is unpickled, is the op of that name. The
        # module of its shape rule brings it along; that of leaves would not bring the operators.
        module = self.infer.__module__
        return _op_named, (self.name, "lamina.ops" if module == __name__ else module)

    def __repr__(self) -> str:
        return f"Op({self.name})"


_ops: dict[str, Op] = {}


def _op_named(name: str, module: str) -> Op:
    import_module(module)
    return _ops[name]


@frozen_dataclass
class Origin:
    """Where a tensor comes from: the path of its layer, `"net/2:Linear"`, and the source line."""

    path: str = ""
    source: str = ""

    def __str__(self) -> str:
        return (
            f"{self.path} ({self.source})"
            if self.path and self.source
            else (self.path or self.source)
        )


_origin: ContextVar[Origin] = ContextVar("origin", default=Origin())
_numbers = itertools.count()
_package_folder = str(Path(__file__).resolve().parents[1]) + os.sep
# Code that people type has no file; what else begins with "<" is generated, and skipped.
_TYPED = ("<stdin>", "<python-input", "<ipython-input", "<doctest")


@contextmanager
def labelled(origin: Origin) -> Generator[None]:
    """Tensors made inside carry this origin; it changes names in messages and nothing else."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def source_line() -> str:
    """`"file.py:12"`: the innermost line of the caller's stack outside this package, or ""."""
    # inspect.stack() reads the sources of all frames; currentframe() may be None.
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_of_users(name):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


# Asked for each frame below each op that is applied outside layers.
@lru_cache(maxsize=1 << 10)
def _is_of_users(file: str) -> bool:
    generated = file.startswith("<") and not file.startswith(_TYPED)
    return not file.startswith(_package_folder) and not generated


def current_origin() -> Origin:
    """The layer that is being built and its line; outside layers only the user's line."""
    current = _origin.get()
    return current if current.source else Origin(current.path, source_line())


# Filled by lamina.ops, so that `x + y` can be written on tensors: name -> function.
operators: dict[str, Callable[..., Tensor]] = {}


@frozen_dataclass(eq=False)
class Tensor:
    """A symbolic value; made by the functions in `lamina.ops`, by layers and by `lamina.Input`.

    Python numbers may stand beside tensors in arithmetic; they take the tensor's dtype.

    Attributes:
        op: the op that makes it.
        operands: the tensors the op is applied to.
        attributes: the op's other arguments, immutable and hashable.
        shape: dimensions; the batch may be left open (`lamina.shapes.Size`).
        dtype: of the elements.
        origin: the layer and source line that made it.
        number: rises in the order in which tensors are made.
    """

    op: Op
    operands: tuple[Tensor, ...]
    attributes: Attributes
    shape: Shape
    dtype: DType
    origin: Origin = field(default_factory=current_origin)
    number: int = field(default_factory=lambda: next(_numbers))

    def __array_ufunc__(self, function: Any, method: str, *values: Any, **options: Any) -> Tensor:
        """`array + tensor` is a tensor; NumPy must not take it over by looking at elements."""
        name = _UFUNCS.get(function.__name__, "")
        if function.__name__ in _SYMBOLS and method == "__call__" and list(options) == ["out"]:
            symbol = _SYMBOLS[function.__name__]
            raise LaminaError(
                f"array {symbol}= tensor would write numbers, and a tensor holds no data yet",
                where=source_line(),
                advice=f"It makes a tensor: array = array {symbol} tensor.",
            )
        if not name or method != "__call__" or options:
            raise _no_numbers(function.__name__)
        return operators[name](*values)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise _no_numbers(function.__name__)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise _no_numbers("array")

    def __float__(self) -> NoReturn:
        raise _no_numbers("float")

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Tensor({shape_text(self.shape, self.dtype)}, {self.op.name})"

    def __bool__(self) -> bool:
        raise LaminaError(
            "a tensor has no truth value: it holds no data yet",
            where=str(self.origin),
            advice="Use ops.where(condition, a, b) to choose between values.",
        )

    def __eq__(self, other: object) -> bool:
        """Whether it is the same tensor; elements are compared by `ops.equal`."""
        if not isinstance(other, Tensor) and isinstance(other, _NUMBERS):
            raise LaminaError(
                "== and != do not compare the elements of a tensor",
                where=source_line(),
                advice="Use lm.ops.equal(x, y) or lm.ops.not_equal(x, y).",
            )
        return self is other

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Tensor]:
        raise LaminaError(
            "a tensor cannot be iterated over",
            where=str(self.origin),
            advice="Use ops.unstack(x, axis) or x[i].",
        )

    def __add__(self, other: TensorLike) -> Tensor:
        return operators["add"](self, other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return operators["add"](other, self)

    def __sub__(self, other: TensorLike) -> Tensor:
        return operators["sub"](self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return operators["sub"](other, self)

    def __mul__(self, other: TensorLike) -> Tensor:
        return operators["mul"](self, other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return operators["mul"](other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return operators["div"](self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return operators["div"](other, self)

    def __pow__(self, other: TensorLike) -> Tensor:
        return operators["pow"](self, other)

    def __rpow__(self, other: TensorLike) -> Tensor:
        return operators["pow"](other, self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return operators["matmul"](self, other)

    def __neg__(self) -> Tensor:
        return operators["neg"](self)

    def __abs__(self) -> Tensor:
        return operators["abs"](self)

    def __lt__(self, other: TensorLike) -> Tensor:
        return operators["less"](self, other)

    def __le__(self, other: TensorLike) -> Tensor:
        return operators["less_equal"](self, other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return operators["greater"](self, other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return operators["greater_equal"](self, other)

    def __getitem__(self, key: Any) -> Tensor:
        return operators["getitem"](self, key)


TensorLike = Tensor | bool | int | float | Array
_NUMBERS = int | float | np.generic | np.ndarray

# The ufuncs that NumPy's arrays make of operators, and ours.
_UFUNCS = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "power": "pow",
    "matmul": "matmul",
    "less": "less",
    "less_equal": "less_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
}
_SYMBOLS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "power": "**",
    "matmul": "@",
}
# NumPy's names of functions that are called otherwise here.
_RENAMED = {
    **_UFUNCS,
    "absolute": "abs",
    "concatenate": "concat",
    "negative": "neg",
    "var": "variance",
}


def _no_numbers(function: str) -> LaminaError:
    """The error for what NumPy or Python would do with the elements of a tensor."""
    advice = "Calculate with tensors by the functions in lm.ops"
    ours = _RENAMED.get(function, function)
    return LaminaError(
        f"{function}() needs numbers, and a tensor holds no data yet",
        where=source_line(),
        advice=f"{advice}: lm.ops.{ours}." if ours in _ops else f"{advice}.",
    )


def apply(op: Op, *operands: Tensor, **attributes: Any) -> Tensor:
    """The op applied to tensors: what its record says of them and of attributes is checked here.

    Raises:
        DefinitionError: for an attribute, or a number of operands, that the op does not take.
        LaminaError: from the shape rule. All with the layer and source line added.
    """
    try:
        given = checked_attributes(op, operands, attributes)
        shape, dtype = _inferred(op, operands, given)
    except LaminaError as error:
        label = op.name.replace("_", " ").title().replace(" ", "")
        if op.name == "layer" or not _origin.get().path:
            # The network is being written down; inside a layer, paths are final already.
            error.facts = _with_final_paths(error.facts, operands)
        raise located(error, path_after(operands, label)) from None
    return Tensor(op, operands, given, shape, dtype)


def checked_attributes(op: Op, operands: tuple[Tensor, ...], given: Attributes) -> Attributes:
    """The attributes as the op keeps them: what its record says of them holds.

    Raises:
        DefinitionError: if there is another number of operands, an attribute is missing or there
            is none of that name, or its value is none of its kind.
    """
    count, kinds = len(operands), op.attributes
    if not given and not kinds and count == op.operands:
        return given
    least, most = (op.operands,) * 2 if isinstance(op.operands, int) else op.operands
    if count < least or (most is not None and count > most):
        number = str(least) if least == most else f"{least} or more" if most is None else ""
        raise DefinitionError(
            f"{op.name}: the number of operands does not fit",
            facts=(("expected", number or f"{least} to {most}"), ("found", str(count))),
        )
    if given.keys() != kinds.keys():
        needed = [name for name, kind in kinds.items() if not isinstance(kind, MayLack)]
        if not (given.keys() <= kinds.keys() and given.keys() >= set(needed)):
            raise DefinitionError(
                f"{op.name}: the attributes do not fit",
                facts=(("expected", _names(kinds)), ("found", _names(given))),
            )
    changed: dict[str, Any] = {}
    for name, value in given.items():
        try:
            kept = kinds[name].read(value, operands)
        except Misfit as misfit:
            facts = (("tensor", described(operands[0])),) if operands else ()
            raise refusal(misfit, name, value, subject=f"{op.name}: ", facts=facts) from None
        if kept is not value:
            changed[name] = kept
    return {**given, **changed} if changed else given


def _names(of: Mapping[str, object]) -> str:
    return ", ".join(map(str, of)) or "none"


# No machine has room for so many elements; places in such a tensor still fit 64 bits, with strides.
LARGEST_SIZE = 2**53


def _inferred(op: Op, operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    """What the shape rule gives, if there can be such a tensor.

    Raises:
        ShapeError: if an extent is negative, or the result is larger than any memory.
    """
    shape, dtype = op.infer(operands, attributes)
    size = 1
    for dim in shape:
        if isinstance(dim, Size):
            size *= max(dim.coefficient + dim.offset, 1)
        elif dim >= 0:
            size *= dim
        else:
            raise ShapeError(
                f"{op.name}: an extent is negative",
                facts=(*_operand_facts(operands), ("result", shape_text(shape, dtype))),
                advice="Where it depends on the batch, a larger batch is needed.",
            )
    if size > LARGEST_SIZE:
        raise ShapeError(
            f"{op.name}: the result is larger than any memory",
            facts=(*_operand_facts(operands), ("result", shape_text(shape, dtype))),
        )
    return shape, dtype


def _operand_facts(operands: Sequence[Tensor]) -> tuple[tuple[str, str], ...]:
    return tuple((f"operand {number}", described(x)) for number, x in enumerate(operands[:3]))


def located(error: LaminaError, path: str = "") -> LaminaError:
    """The error with the layer and source line added that are being worked on.

    Args:
        path: of the tensor that was being made, used outside layers.
    """
    origin = current_origin()
    return error.at(str(Origin(origin.path or path, origin.source)))


def path_after(operands: Sequence[Tensor], label: str) -> str:
    """`"net/4:Add"`: the path of a tensor made from these, counting what comes before it."""
    return f"net/{_count_before(operands)}:{label}"


# For a tensor that all that comes before another one leads through: how many tensors there are up
# to it, constants and leaves aside, and the leaves among them.
_counted: WeakKeyDictionary[Tensor, tuple[int, frozenset[Tensor]]] = WeakKeyDictionary()


def _count_before(operands: Sequence[Tensor]) -> int:
    """How many tensors these are made of, constants aside, themselves included.

    It is asked at each layer of a network: the count goes back no further than to the last tensor
    on which everything else depends, and goes on from what was counted there.
    """
    count = 0
    leaves: set[Tensor] = set()
    seen: set[Tensor] = set()
    # The latest first, so that all users of a tensor are there before it is.
    waiting: list[tuple[int, Tensor]] = []

    def add(tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor in seen or tensor.op is CONSTANT:
                continue
            seen.add(tensor)
            if tensor.operands:
                heappush(waiting, (-tensor.number, tensor))
            else:
                leaves.add(tensor)

    add(operands)
    alone = waiting[0][1] if len(waiting) == 1 and not leaves else None
    while waiting:
        _, node = heappop(waiting)
        known = _counted.get(node) if not waiting else None
        if known is not None:
            count += known[0]
            leaves |= known[1]
            break
        count += 1
        add(node.operands)
    if alone is not None:
        _counted[alone] = count, frozenset(leaves)
    return count + len(leaves)


class Described(str):
    """A tensor as text, for the facts of an error; remembers which tensor it is about."""

    tensor: Tensor


def described(tensor: Tensor, path: str = "") -> Described:
    """`"f32[batch, 10]   from net/3:Linear"`, for the facts of an error."""
    text = shape_text(tensor.shape, tensor.dtype)
    path = path or tensor.origin.path
    result = Described(f"{text}   from {path}" if path else text)
    result.tensor = tensor
    return result


def _with_final_paths(
    facts: tuple[tuple[str, str], ...], operands: Sequence[Tensor]
) -> tuple[tuple[str, str], ...]:
    """Facts in which tensors have the numbers that a network of all operands would give them.

    While a network is written down, a tensor knows what it was made from, but not the branches
    beside it; where they meet, all are known.
    """
    known = sorted(
        (node for node in topological(operands) if node.op is not CONSTANT),
        key=lambda node: node.number,
    )
    numbers = {node: number for number, node in enumerate(known)}

    def renamed(value: str) -> str:
        if not isinstance(value, Described) or value.tensor not in numbers:
            return value
        _, colon, label = value.tensor.origin.path.partition(":")
        path = f"net/{numbers[value.tensor]}:{label}" if colon else ""
        return described(value.tensor, path)

    return tuple((name, renamed(value)) for name, value in facts)


class Leaf(Lowering):
    """No step: the tensor is a buffer."""


class ConstantValue:
    """An immutable array that compares by content, so that equal constants are shared.

    Attributes:
        array: the elements.
        exact: the Python float that was rounded to make them; a model of another float type
            rounds it anew.
    """

    def __init__(self, array: Array, exact: float | None = None) -> None:
        self.array = np.array(array, order="C")
        self.exact = exact
        self.array.flags.writeable = False
        self._key = (self.array.shape, self.array.dtype.str, self.array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantValue) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return str(self.array[()]) if self.array.ndim == 0 else f"array{self.array.shape}"


def _infer_leaf(_: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    return attributes["shape"], attributes["dtype"]


def _leaf_reference(**_: Any) -> Array:
    raise LaminaError("a leaf has no value of its own: feed it")


def _infer_constant(_: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    array = attributes["value"].array
    return array.shape, as_dtype(array.dtype)


def _constant_reference(value: ConstantValue) -> Array:
    return value.array


def _no_operands(_result: Tensor, _upstream: Tensor) -> tuple[Tensor | None, ...]:
    return ()


LEAF = Op(
    *("leaf", _infer_leaf, _no_operands, _leaf_reference, Leaf()),
    operands=0,
    attributes={
        "name": LABEL,
        "role": Word(("input", "parameter", "state")),
        "shape": Many(Extent()),
        "dtype": ElementType(),
        "flexible": MayLack(Flag()),
    },
)
CONSTANT = Op(
    *("constant", _infer_constant, _no_operands, _constant_reference, Leaf()),
    operands=0,
    attributes={"value": Instance(ConstantValue)},
)


def leaf(name: str, role: str, shape: Shape, dtype: DType) -> Tensor:
    """A value that comes from outside: role `"input"`, `"parameter"` or `"state"`."""
    return apply(LEAF, name=name, role=role, shape=shape, dtype=dtype)


def constant(value: Any, dtype: DType | None = None) -> Tensor:
    """A tensor with a fixed value; arrays keep their dtype unless one is given."""
    array = _as_array(value)
    if dtype is None:
        first: object = array.item(0) if array.size else None
        from_python = first is not None and isinstance(
            value, int | float | np.generic | list | tuple
        )
        dtype = as_dtype(type(first) if from_python else array.dtype)
    exact = value if isinstance(value, float) else None
    return apply(CONSTANT, value=ConstantValue(converted(array, dtype.numpy), exact))


def _as_array(value: Any) -> Array:
    """Numbers, lists of them, arrays, and what can become one, as an array of numbers.

    Raises:
        DTypeError: for anything else.
    """
    found, reason = type(value).__name__, ""
    try:
        # What holds numbers says so; text, None and any object would become arrays of objects.
        if isinstance(value, _NUMBERS | list | tuple) or hasattr(value, "__array__"):
            array = np.asarray(value)
            if array.dtype.kind in "biuf":
                return array
            found = f"{found} of {array.dtype.name}"
    except LaminaError:
        raise
    except Exception as error:  # whatever another library raises
        reason = f": {error}"
    raise located(
        DTypeError(
            f"a tensor, a number or an array of numbers is needed here{reason}",
            facts=(("expected", ", ".join(PUBLIC_DTYPES)), ("found", found)),
            advice="Make an array first, for example with np.asarray(x, 'float32').",
        )
    )


@frozen_dataclass
class Graph:
    """A function of its leaves: named results, and new values for parameters and state.

    Attributes:
        inputs: the leaves with role `"input"`, in the order in which callers give them; some may
            be unused.
        outputs: (name, tensor) pairs.
        updates: (leaf, new value) pairs: after a run the leaf holds the new value. All new values
            are functions of the old ones.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[tuple[str, Tensor], ...]
    updates: tuple[tuple[Tensor, Tensor], ...] = ()
    _nodes: tuple[Tensor, ...] = field(init=False, default=(), compare=False, repr=False)

    def __reduce__(self) -> tuple[Callable[..., Graph], tuple[Any, ...]]:
        # Flat: tensors that hold their operands, and so on, would be as deep as the graph is.
        nodes = sorted(self.nodes(), key=lambda node: node.number)
        numbers = {node: number for number, node in enumerate(nodes)}
        rows = [
            (n.op, [numbers[x] for x in n.operands], n.attributes, n.shape, n.dtype, n.origin)
            for n in nodes
        ]
        inputs = [numbers[tensor] for tensor in self.inputs]
        outputs = [(name, numbers[tensor]) for name, tensor in self.outputs]
        updates = [(numbers[leaf], numbers[tensor]) for leaf, tensor in self.updates]
        return _graph_of_rows, (rows, inputs, outputs, updates)

    @property
    def roots(self) -> tuple[Tensor, ...]:
        """Everything the graph must compute."""
        return tuple(t for _, t in self.outputs) + tuple(t for _, t in self.updates)

    def nodes(self) -> tuple[Tensor, ...]:
        """Every tensor that a root depends on, operands first; inputs and updated leaves too."""
        if not self._nodes:
            # Remembered, as each pass asks for them several times.
            leaves = (leaf for leaf, _ in self.updates)
            nodes = topological((*self.inputs, *leaves, *self.roots))
            object.__setattr__(self, "_nodes", nodes)
        return self._nodes


def _graph_of_rows(
    rows: Sequence[tuple[Op, Sequence[int], Attributes, Shape, DType, Origin]],
    inputs: Sequence[int],
    outputs: Sequence[tuple[str, int]],
    updates: Sequence[tuple[int, int]],
) -> Graph:
    """The graph that was copied or pickled."""
    made: list[Tensor] = []
    for op, operands, attributes, shape, dtype, origin in rows:
        made.append(Tensor(op, tuple(made[n] for n in operands), attributes, shape, dtype, origin))
    return Graph(
        tuple(made[number] for number in inputs),
        tuple((name, made[number]) for name, number in outputs),
        tuple((made[leaf], made[number]) for leaf, number in updates),
    )


def topological(roots: Sequence[Tensor], given: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
    """All tensors that the roots depend on, each after its operands.

    What the given ones are made of is left out.
    """
    order: list[Tensor] = []
    seen: set[Tensor] = set()
    ends = set(given)
    for root in roots:
        # None stands above a tensor whose operands come first.
        stack: list[Tensor | None] = [root]
        while stack:
            node = stack.pop()
            if node is None:
                order.append(cast(Tensor, stack.pop()))
            elif node not in seen:
                seen.add(node)
                if node.operands and node not in ends:
                    stack += (node, None, *node.operands[::-1])
                else:
                    order.append(node)
    return tuple(order)


Rule = Callable[[Tensor, tuple[Tensor, ...]], Tensor]


def rebuild(node: Tensor, operands: tuple[Tensor, ...], **changed: Any) -> Tensor:
    """The node with other operands or attributes, its shape inferred anew, its origin kept."""
    attributes: Attributes = node.attributes
    if changed:
        attributes = checked_attributes(node.op, operands, {**attributes, **changed})
    elif operands == node.operands:
        return node
    elif _look_alike(operands, node.operands):
        # What the shape rule gives follows from these.
        return Tensor(node.op, operands, attributes, node.shape, node.dtype, node.origin)
    shape, dtype = _inferred(node.op, operands, attributes)
    return Tensor(node.op, operands, attributes, shape, dtype, node.origin)


def _look_alike(operands: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether tensors have the same shapes and dtypes as others, one by one."""
    if len(operands) != len(others):
        return False
    for one, other in zip(operands, others, strict=True):
        if one is not other and (one.dtype is not other.dtype or one.shape != other.shape):
            return False
    return True


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """The graph with every node, operands first, replaced by `rule(node, new operands)`.

    It is the same graph if nothing changes.
    """
    new: dict[Tensor, Tensor] = {}
    before = _origin.set(Origin())
    try:
        for node in graph.nodes():
            operands = tuple([new[operand] for operand in node.operands])
            _origin.set(node.origin)
            new[node] = rule(node, operands)
    finally:
        _origin.reset(before)
    if all(one is other for one, other in new.items()):
        return graph
    return Graph(
        tuple(new[t] for t in graph.inputs),
        tuple((name, new[t]) for name, t in graph.outputs),
        tuple((new[leaf_], new[t]) for leaf_, t in graph.updates),
    )
