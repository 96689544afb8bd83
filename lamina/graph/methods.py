"""The methods of tensors: `x.sum(axes=1)` is `lamina.ops.sum(x, axes=1)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar, final

if TYPE_CHECKING:
    from lamina.base.shapes import Dim, DTypeLike
    from lamina.graph.tensor import Tensor, TensorLike

    _Axes = int | Sequence[int] | None
    _Bound = TensorLike | None

# The functions of Python's operators and of methods, by name. The decorator registers them.
OPERATORS: dict[str, Callable[..., Any]] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


def operator(function: Function) -> Function:
    """Registers the function that an operator or a method of tensors calls.

    `x + y` calls `add(x, y)`, and `x.sum()` calls `sum(x)`.
    """
    OPERATORS[function.__name__] = function
    return function


@final
class _Method:
    """A function of `lamina.ops` as a method: the tensor is its first argument."""

    def __init__(self, function: str) -> None:
        self._function = function

    def __get__(self, tensor: object, owner: type) -> Any:
        function = OPERATORS[self._function]
        return function if tensor is None else MethodType(function, tensor)


class Methods:
    """The methods that tensors share with NumPy's arrays, with the options of `lamina.ops`."""

    __slots__ = ()

    if TYPE_CHECKING:

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
        def std(
            self, axes: _Axes = None, correction: float = 0, keepdims: bool = False
        ) -> Tensor: ...
        def sum(self, axes: _Axes = None, keepdims: bool = False) -> Tensor: ...
        def tanh(self) -> Tensor: ...
        def transpose(self, axes: int | Sequence[int] | None = None) -> Tensor: ...
        def var(
            self, axes: _Axes = None, correction: float = 0, keepdims: bool = False
        ) -> Tensor: ...
        def variance(
            self, axes: _Axes = None, correction: float = 0, keepdims: bool = False
        ) -> Tensor: ...

    else:
        abs = _Method("abs")
        all = _Method("all")
        any = _Method("any")
        argmax = _Method("argmax")
        argmin = _Method("argmin")
        astype = _Method("cast")
        clip = _Method("clip")
        cumsum = _Method("cumsum")
        dot = _Method("dot")
        exp = _Method("exp")
        expand_dims = _Method("expand_dims")
        log = _Method("log")
        log_softmax = _Method("log_softmax")
        matmul = _Method("matmul")
        max = _Method("max")
        mean = _Method("mean")
        min = _Method("min")
        prod = _Method("prod")
        relu = _Method("relu")
        reshape = _Method("reshape")
        sigmoid = _Method("sigmoid")
        softmax = _Method("softmax")
        sqrt = _Method("sqrt")
        squeeze = _Method("squeeze")
        std = _Method("std")
        sum = _Method("sum")
        tanh = _Method("tanh")
        transpose = _Method("transpose")
        var = _Method("variance")
        variance = _Method("variance")
