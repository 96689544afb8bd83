"""The base of layers, the op that applies them, and the inputs of networks.

A layer is a frozen record of hyper-parameters. Applying it makes a tensor whose op is `LAYER`.
Shapes are checked at once. `tracing.py` builds the layer's own graph later, in training mode and in
inference mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Annotated, Any, Never, cast

from lamina import shapes
from lamina.calls import checked
from lamina.errors import DefinitionError, LaminaError
from lamina.graph import (
    LEAF,
    Attributes,
    LoweringRule,
    Op,
    Origin,
    Tensor,
    apply,
    labelled,
    path_after,
    source_line,
    with_final_paths,
)
from lamina.graph.kinds import HIGHEST, ElementType, Instance, Kind, Misfit, Operands, Whole, shown
from lamina.layers.checks import Sourced
from lamina.layers.scope import Record, Scope
from lamina.shapes import BATCH, Array, DType, DTypeLike, Shape, as_dtype


class Layer(Sourced, ABC):
    """The base of all layers, also of users' own.

    A subclass is a frozen dataclass of hyper-parameters. Its `forward` is made of ops, from which
    the gradient is derived.

    Example:
        >>> from dataclasses import dataclass
        >>> import lamina as lm
        >>> @dataclass(frozen=True)
        ... class Swish(lm.Layer):
        ...     def forward(self, scope, x):
        ...         beta = scope.parameter("beta", shape=(), init=lm.init.Constant(1.0))
        ...         return x * lm.ops.sigmoid(beta * x)
    """

    @abstractmethod
    def forward(self, scope: Scope, /, *args: Any, **kwargs: Any) -> Tensor:
        """Builds the layer's graph.

        Args:
            scope: creates parameters, states and random numbers; `scope.training` is the mode.
            args: the tensors to which the layer is applied, batch first. A layer declares one
                parameter for each: `def forward(self, scope, x)`.
        """

    def __call__(self, *operands: Tensor, **named: Never) -> Tensor:
        """Applies the layer; shapes are checked here.

        Args:
            operands: the tensors, positional arguments only.

        Raises:
            ShapeError, DTypeError, DefinitionError: naming the layer and the line that made it.
        """
        if named:
            name = next(iter(named))
            raise DefinitionError(
                "a layer takes its tensors as positional arguments",
                facts=(("expected", "layer(x, ...)"), ("found", f"layer(..., {name}=...)")),
                where=str(Origin(type(self).__name__, self.source)),
                advice=f"Pass tensors without names, layer(x, {name}), and options when the layer "
                f"is made: {type(self).__name__}(...).",
            )
        if not is_frozen_record(self):
            raise DefinitionError(
                "a layer is a frozen dataclass, so that it can be saved and shared",
                facts=(("found", f"class {type(self).__name__}"),),
                where=str(Origin(type(self).__name__, self.source)),
                advice=f"Write @dataclass(frozen=True) above class {type(self).__name__}.",
            )
        for operand in cast(Sequence[object], operands):
            if not isinstance(operand, Tensor):
                raise DefinitionError(
                    "a layer is applied to tensors",
                    facts=(("expected", "Tensor"), ("found", type(operand).__name__)),
                    where=str(Origin(type(self).__name__, self.source)),
                    advice="Compare tensors with lm.ops.equal and lm.ops.not_equal."
                    if isinstance(operand, bool)
                    else "Start from lm.Input(...); arrays go to Model.predict.",
                )
        origin = Origin(path_after(operands, type(self).__name__), self.source)
        with labelled(origin):
            try:
                return apply(LAYER, *operands, layer=self)
            except LaminaError as error:
                # The paths of the operands are numbered again: when an operand was made, the
                # network may have had fewer tensors.
                error.facts = with_final_paths(error.facts, operands)
                raise


def is_frozen_record(layer: Layer) -> bool:
    """Whether the layer's own class is a frozen dataclass."""
    cls = type(layer)
    parameters: Any = cls.__dict__.get("__dataclass_params__")
    return parameters is not None and parameters.frozen


# Whether a network is being traced, whose shapes were checked when it was defined.
_tracing: ContextVar[bool] = ContextVar("tracing", default=False)
# Shapes and dtypes of results, by the layer's fields and the operands' shapes and dtypes. Tracing a
# layer applies the layers in it again; this saves running their `forward` for the shape alone.
_results: dict[Hashable, tuple[Shape, DType]] = {}
_MOST_RESULTS = 1 << 12


@contextmanager
def shapes_known() -> Generator[None]:
    """Within the block, layers take the shape of their result from an earlier application."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def _infer_application(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    """Shape and dtype of a layer's result, by running its `forward` in training mode."""
    layer: Layer = attributes["layer"]
    key = _key(layer, operands)
    if _tracing.get() and key in _results:
        return _results[key]
    dtype = next((t.dtype for t in operands if t.dtype.is_float), shapes.float32)
    record = Record(dtype, training=True, operands=operands)
    result = layer.forward(Scope(record, "check"), *operands)
    if not isinstance(cast(object, result), Tensor):
        raise DefinitionError(
            "forward must return a tensor",
            facts=(("expected", "Tensor"), ("found", type(result).__name__)),
        )
    if key is not None:
        if len(_results) >= _MOST_RESULTS:
            _results.clear()
        _results[key] = result.shape, result.dtype
    return result.shape, result.dtype


def _key(layer: Layer, operands: Sequence[Tensor]) -> Hashable:
    """A key of all that decides the shape of a layer's result; None if a field has no key."""
    record = _plain(layer)
    if record is None:
        return None
    return record, tuple([(operand.shape, operand.dtype) for operand in operands])


def _plain(value: Any) -> Hashable:
    """A field of a layer as a key; different values have different keys. None if it has no key."""
    if isinstance(value, tuple):
        items = [_plain(item) for item in cast(tuple[Any, ...], value)]
        return None if None in items else tuple(items)
    kind = type(cast(object, value))
    if is_dataclass(value) and not isinstance(value, type):
        items = [_plain(getattr(value, field.name)) for field in fields(value)]
        return None if None in items else (kind, *items)
    known = value is None or isinstance(value, bool | int | float | str | FunctionType)
    return (kind, cast(Hashable, value)) if known else None


def _no_reference(*_: Array, **__: Any) -> Array:
    raise LaminaError("a layer is computed only as part of a network")


LAYER = Op(
    *("layer", _infer_application, None, _no_reference, LoweringRule()),
    operands=(0, None),
    attributes={"layer": Instance(Layer)},
)


_EXTENT = Whole(1)


class _Extent(Kind):
    """An extent of an example."""

    def read(self, value: Any, operands: Operands = ()) -> int:
        try:
            return _EXTENT.read(value)
        except Misfit:
            wide = " of 64 bits" if (shapes.as_whole(value) or 0) > HIGHEST else ""
            raise shapes.ShapeError(
                f"an input's dimensions are whole numbers above zero{wide}",
                facts=(("expected", "Input(784) or Input(1, 28, 28)"), ("found", shown(value))),
                advice="Leave the batch out: it is always the first axis and never written.",
            ) from None


@checked
def Input(
    *shape: Annotated[int, _Extent()], dtype: Annotated[DTypeLike, ElementType()] | None = None
) -> Tensor:
    """An input of a network: a tensor with a value for every example.

    Args:
        shape: of one example, without the batch axis; `lm.Input()` is a scalar per example.
        dtype: a fixed element type, such as `"int64"` for indices. By default the float type of
            the model; arrays of small integers are then converted on the device.

    Raises:
        ShapeError: for a dimension below 1.

    Example:
        >>> import lamina as lm
        >>> lm.Input(3, 32, 32)
        Tensor(f32[batch, 3, 32, 32], leaf)
    """
    fixed = as_dtype(dtype) if dtype is not None else shapes.float32
    with labelled(Origin("net/0:Input", source_line())):
        tensor = apply(
            LEAF,
            name="input",
            role="input",
            shape=(BATCH, *shape),
            dtype=fixed,
            flexible=dtype is None,
        )
    return tensor
