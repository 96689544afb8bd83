"""The methods and operators of tensors: `x.sum(axes=1)` is `lamina.ops.sum(x, axes=1)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, final

from lamina.checks.calls import checked_as_given

if TYPE_CHECKING:
    from lamina.base.shapes import Dim, DTypeLike
    from lamina.graph.tensor import Tensor, TensorLike

    _Axes = int | Sequence[int] | None
    _Bound = TensorLike | None

# The functions of Python's operators and of methods, by name. The decorator registers them.
OPERATORS: dict[str, Callable[..., Any]] = {}
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def operator(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Registers a checked function that an operator or a method of tensors calls.

    `x + y` calls `add(x, y)`, and `x.sum()` calls `sum(x)`.
    """
    checked = OPERATORS[function.__name__] = checked_as_given(function)
    return checked


# Python's operators by NumPy's names of them: the function here, the special method, and the symbol
# of operators that may be followed by `=`.
BINARY: dict[str, tuple[str, str, str]] = {
    "add": ("add", "__add__", "+"),
    "subtract": ("sub", "__sub__", "-"),
    "multiply": ("mul", "__mul__", "*"),
    "divide": ("div", "__truediv__", "/"),
    "power": ("pow", "__pow__", "**"),
    "remainder": ("remainder", "__mod__", "%"),
    "floor_divide": ("floor_divide", "__floordiv__", "//"),
    "bitwise_and": ("bitwise_and", "__and__", "&"),
    "bitwise_or": ("bitwise_or", "__or__", "|"),
    "bitwise_xor": ("bitwise_xor", "__xor__", "^"),
    "left_shift": ("left_shift", "__lshift__", "<<"),
    "right_shift": ("right_shift", "__rshift__", ">>"),
    "matmul": ("matmul", "__matmul__", "@"),
    "less": ("less", "__lt__", ""),
    "less_equal": ("less_equal", "__le__", ""),
    "greater": ("greater", "__gt__", ""),
    "greater_equal": ("greater_equal", "__ge__", ""),
}
# The functions of methods that have other names.
_FUNCTIONS = {
    **{method: function for function, method, _ in BINARY.values()},
    "__neg__": "neg",
    "__invert__": "bitwise_not",
    "__abs__": "abs",
    "__round__": "round",
    "__getitem__": "getitem",
    "astype": "cast",
    "var": "variance",
}


@final
class _Method:
    """A function of `lamina.ops` as a method: the tensor is its first argument, or its last one."""

    def __init__(self, name: str) -> None:
        self._is_reflected = name.startswith("__r") and name not in _FUNCTIONS
        method = name.replace("__r", "__", 1) if self._is_reflected else name
        self._function = _FUNCTIONS.get(method, method)

    def __get__(self, tensor: object, owner: type) -> Any:
        function = OPERATORS[self._function]
        if tensor is None:
            return function
        if not self._is_reflected:
            return MethodType(function, tensor)

        def reflected(other: Any) -> Any:
            return function(other, tensor)

        return reflected


class Methods:
    """The methods and operators that tensors share with NumPy's arrays, as type checkers see them.

    Below, each becomes the function of `lamina.ops`, with its options.
    """

    __slots__ = ()

    def abs(self) -> Tensor: ...
    def all(self, axes: _Axes = None, keepdims: bool = False) -> Tensor: ...
    def any(self, axes: _Axes = None, keepdims: bool = False) -> Tensor: ...
    def argmax(self, axis: int, keepdims: bool = False) -> Tensor: ...
    def argmin(self, axis: int, keepdims: bool = False) -> Tensor: ...
    def astype(self, dtype: DTypeLike) -> Tensor: ...
    def clip(self, low: _Bound = None, high: _Bound = None) -> Tensor: ...
    def cumsum(self, axis: int, reverse: bool = False) -> Tensor: ...
    def dot(self, right: Tensor) -> Tensor: ...
    def exp(self) -> Tensor: ...
    def expand_dims(self, axes: int | Sequence[int]) -> Tensor: ...
    def log(self) -> Tensor: ...
    def log_softmax(self, axis: int = -1) -> Tensor: ...
    def matmul(self, right: Tensor) -> Tensor: ...
    def max(self, axes: _Axes = None, keepdims: bool = False) -> Tensor: ...
    def mean(self, axes: _Axes = None, keepdims: bool = False) -> Tensor: ...
    def min(self, axes: _Axes = None, keepdims: bool = False) -> Tensor: ...
    def prod(self, axes: _Axes = None, keepdims: bool = False) -> Tensor: ...
    def relu(self) -> Tensor: ...
    def reshape(self, shape: int | Sequence[Dim]) -> Tensor: ...
    def sigmoid(self) -> Tensor: ...
    def softmax(self, axis: int = -1) -> Tensor: ...
    def sqrt(self) -> Tensor: ...
    def squeeze(self, axes: _Axes = None) -> Tensor: ...
    def std(self, axes: _Axes = None, correction: float = 0, keepdims: bool = False) -> Tensor: ...
    def sum(self, axes: _Axes = None, keepdims: bool = False) -> Tensor: ...
    def tanh(self) -> Tensor: ...
    def transpose(self, axes: int | Sequence[int] | None = None) -> Tensor: ...
    def var(self, axes: _Axes = None, correction: float = 0, keepdims: bool = False) -> Tensor: ...
    def variance(
        self, axes: _Axes = None, correction: float = 0, keepdims: bool = False
    ) -> Tensor: ...

    def __add__(self, other: TensorLike) -> Tensor: ...
    def __matmul__(self, other: Tensor) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __getitem__(self, key: Any) -> Tensor: ...

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
    __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __add__
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __add__
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __add__
    __lt__ = __le__ = __gt__ = __ge__ = __add__
    __invert__ = __abs__ = __round__ = __neg__


for _name, _stub in list(vars(Methods).items()):
    if isinstance(_stub, FunctionType):
        setattr(Methods, _name, _Method(_name))
