"""Tensors and ops: a tensor is the output of an op applied to other tensors.

A tensor is symbolic. It has a shape and a dtype and holds no data. An op is one record with all
rules of a mathematical operation. Records of ops enter the registry here when they are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import Annotated, Any, ClassVar, NoReturn, cast, final

import numpy as np

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import Array, Dim, DType, Shape, shape_text
from lamina.checks.kinds import Instance, Kind, Row
from lamina.checks.origin import Origin, current_origin, source_line
from lamina.errors import LaminaError, Named, ShapeError
from lamina.foreign import function_here, sentence
from lamina.graph.methods import BINARY, OPERATORS, Methods

Attributes = Mapping[str, Any]


class LoweringRule:
    """How the compiler lowers an op to steps; `lamina.ops.lowering_rules` has the subclasses.

    Attributes:
        takes_halves: whether the op takes floats of 16 bits as they are. Other ops compute with
            them in float32, and round the result.
    """

    takes_halves: ClassVar[bool] = False


@frozen_dataclass
class Sample:
    """Inputs on which an op is tested: against its reference, its gradient, on every engine.

    Attributes:
        shapes: one shape for each operand.
        attributes: the op's attributes.
        low, high: the range of operand values, which are drawn uniformly.
        dtypes: the dtypes of the operands; by default all of the float type under test, whose name
            here is "float".
        differentiable: whether the gradient is checked by finite differences here.
        diagonal: the summand of the diagonal of the first operand, matrices in its last two axes.
    """

    shapes: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    low: float = -2.0
    high: float = 2.0
    dtypes: tuple[str, ...] = ()
    differentiable: bool = True
    diagonal: float = 0.0


@final
class Samples(Sequence[Sample]):
    """Samples that are made when they are first read: by tests only."""

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
        name: a unique name, which printed graphs show.
        infer: the shape rule: (operands, attributes) -> (shape, dtype) of the result. Raises
            `ShapeError` or `DTypeError`.
        gradient: (result, upstream) -> the gradient of each operand, or None where there is none.
            None if the op has no derivative.
        reference: the NumPy oracle: (operand arrays..., **attributes) -> array.
        lowering: the rule by which the compiler lowers it to steps.
        samples: inputs for the generated tests.
        joint_gradient: for an op with several results, each a separate tensor, instead of
            `gradient`: {result: upstream} of one application -> the gradient of each operand.
        operands: the number of operands, or the least and the largest number (None: no limit).
        attributes: the kind of each attribute. The rules above get no other values.
        indices: for an op with indices: result -> (indices, the extent of the axis they index).
        multiplies: the number of operands, from the first on, whose products it adds up.
        keeps_float32: whether its results stay in float32 in mixed precision, because they have a
            wide range or add up many terms.
        selects: whether its elements are elements of operands, or their negatives: rounding them
            before is the same as rounding them after.
        applies_layer: whether it is the op of a layer, which tracing replaces by the layer's ops.
    """

    name: str
    infer: Callable[[tuple[Tensor, ...], Attributes], tuple[Shape, DType]]
    gradient: Callable[[Tensor, Tensor], tuple[Tensor | None, ...]] | None
    reference: Callable[..., Array]
    lowering: LoweringRule
    samples: Sequence[Sample] = ()
    joint_gradient: Callable[[Mapping[Tensor, Tensor]], tuple[Tensor | None, ...]] | None = None
    operands: int | tuple[int, int | None] = 1
    attributes: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    indices: Callable[[Tensor], tuple[Tensor, Dim]] | None = None
    multiplies: int = 0
    keeps_float32: bool = False
    selects: bool = False
    applies_layer: bool = False

    def __post_init__(self) -> None:
        OPS.add(self)

    def __reduce__(self) -> tuple[Callable[[str, str], Op], tuple[str, str]]:
        # Ops are compared by identity: a copied or unpickled op is the registered op of this name.
        # Importing the module of its shape rule registers it, and all of Lamina's if it is one of
        # theirs. Leaves have theirs in another folder: they name the module of an operator.
        is_leaf = self.infer.__module__.startswith("lamina.graph.")
        return _op_named, (self.name, (OPERATORS["add"] if is_leaf else self.infer).__module__)

    def __repr__(self) -> str:
        return f"Op({self.name})"


@final
class Registry:
    """Every op by its name. Each record adds itself when it is made.

    A new record replaces an earlier one of the same name, so that a cell of a notebook may run
    again. But none replaces an op of Lamina.
    """

    def __init__(self) -> None:
        self._ops: dict[str, Op] = {}
        self._own: dict[str, Op] = {}

    def add(self, op: Op) -> None:
        """Adds a record."""
        if op.name not in self._own:
            self._ops[op.name] = op

    def seal(self) -> tuple[Op, ...]:
        """Keeps the names of Lamina's ops from here on; returns these ops."""
        names = [n for n, op in self._ops.items() if op.infer.__module__.startswith("lamina.")]
        self._own = {name: self._ops[name] for name in names}
        return tuple(self._own.values())

    def own(self, name: str) -> Op | None:
        """Lamina's op of a name; None if there is none, or the op is a user's."""
        return self._own.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._ops

    def __getitem__(self, name: str) -> Op:
        return self._ops[name]


OPS = Registry()


def _op_named(name: str, module: str) -> Op:
    import_module(module)
    return OPS[name]


_numbers = itertools.count()


@frozen_dataclass(eq=False)
class Tensor(Methods, Named):
    """A symbolic value; made by the functions in `lamina.ops`, by layers and by `lamina.Input`.

    Python numbers may be operands of arithmetic with tensors; they take the tensor's dtype.

    Attributes:
        op: the op that makes it.
        operands: the tensors to which the op is applied.
        attributes: the op's other arguments, immutable and hashable.
        shape: dimensions; the batch may be left open (`lamina.base.shapes.Size`).
        dtype: the dtype of the elements.
        origin: the layer and source line that made it.
        number: a number that rises in the order in which tensors are made.
    """

    op: Op
    operands: tuple[Tensor, ...]
    attributes: Attributes
    shape: Shape
    dtype: DType
    origin: Origin = field(default_factory=current_origin)
    number: int = field(default_factory=lambda: next(_numbers))

    def __array_ufunc__(self, function: Any, method: str, *values: Any, **options: Any) -> Tensor:
        """`array + tensor` is a tensor; NumPy must not compute it element by element."""
        name, _, symbol = BINARY.get(function.__name__, ("", "", ""))
        if symbol and method == "__call__" and list(options) == ["out"]:
            raise LaminaError(
                f"array {symbol}= tensor would write numbers, but a tensor holds no data yet",
                where=source_line(),
                advice=f"It makes a tensor: array = array {symbol} tensor.",
            )
        if not name or method != "__call__" or options:
            raise _no_function(function.__name__)
        return OPERATORS[name](*values)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise _no_function(function.__name__)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise _no_numbers("array")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, values: Sequence[Any] = (), options: Any = None
    ) -> Any:
        """What PyTorch calls in place of its functions of a tensor.

        Its operators leave the work to Lamina's tensor: an array of PyTorch + tensor is a tensor.
        """
        name = function.__name__
        # `**` calls the function pow, the other operators methods of PyTorch's tensors.
        is_power = name == "pow" and not isinstance(values[0], cls)
        if hasattr(function, "__objclass__") or is_power:
            return NotImplemented
        raise LaminaError(
            f"{name}() of PyTorch does not take a tensor of Lamina",
            advice=sentence(function_here(name)) or f"{_IN_OPS}.",
        )

    def __float__(self) -> NoReturn:
        raise _no_numbers("float")

    @property
    def ndim(self) -> int:
        """The number of axes, as NumPy calls it."""
        return len(self.shape)

    @property
    def T(self) -> Tensor:
        """The tensor with its axes in reverse order, as in NumPy.

        In a layer that moves the batch to the end; `mT` keeps it first.
        """
        return OPERATORS["transpose"](self)

    @property
    def mT(self) -> Tensor:
        """The tensor with its last two axes exchanged; ShapeError if it has fewer than two axes."""
        if self.rank < 2:
            tensor_type = shape_text(self.shape, self.dtype)
            raise ShapeError(
                "mT exchanges the last two axes, and there are fewer",
                facts=(("expected", "two axes or more"), ("found", tensor_type)),
                where=source_line(),
                advice="x.expand_dims(0) adds an axis.",
            )
        *before, rows, columns = range(self.rank)
        return OPERATORS["transpose"](self, (*before, columns, rows))

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
        if not isinstance(other, Tensor) and isinstance(other, NUMBERS):
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


TensorLike = Tensor | bool | int | float | Array
# The kind of arguments that are several tensors.
Tensors = Annotated[Sequence[Tensor], Row(Instance(Tensor))]

NUMBERS = int | float | np.generic | np.ndarray

_IN_OPS = "Calculate with tensors by the functions in lm.ops"


def _no_function(name: str) -> LaminaError:
    """The error for a function of NumPy that Lamina may have for tensors."""
    call = function_here(name).partition("(")[0]
    return _no_numbers(name, f": {call}" if call.startswith("lm.ops.") else "")


def _no_numbers(function: str, more: str = "") -> LaminaError:
    """The error for a function that needs the elements of a tensor."""
    return LaminaError(
        f"{function}() needs numbers, but a tensor holds no data yet",
        where=source_line(),
        advice=f"{_IN_OPS}{more}.",
    )
