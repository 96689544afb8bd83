"""The base of layers, the op that applies them, and the inputs of networks.

A layer is a frozen record of hyper-parameters. Applying it makes a tensor whose op is `LAYER`.
Shapes are checked at once. `tracing.py` builds the layer's own graph later, in training mode and in
inference mode.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import field
from typing import Annotated, Any, Never, cast

from lamina.base import shapes
from lamina.base.records import frozen_dataclass
from lamina.base.remembered import OwnCodeError, plain_key
from lamina.base.shapes import BATCH, Array, DType, DTypeLike, Shape, as_dtype
from lamina.checks import checked, without_init
from lamina.checks.kinds import (
    HIGHEST,
    ElementType,
    Instance,
    Kind,
    Misfit,
    Operands,
    OrNone,
    Whole,
    shown,
)
from lamina.checks.origin import Origin, current_origin, labelled, located, source_line
from lamina.errors import DefinitionError, LaminaError
from lamina.graph import (
    LEAF,
    Attributes,
    LoweringRule,
    Op,
    Tensor,
    apply,
    path_after,
    with_final_paths,
)
from lamina.graph.attributes import whole
from lamina.graph.tensor import Tensors
from lamina.layers.checks import Sourced, origin_text
from lamina.layers.scope import BUILDING, Record, Scope

__all__ = ["Input", "Layer"]

# Words that are joined by dots. The first does not begin with a digit: numbers are the names of
# layers without a name.
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*", re.ASCII)


class Name(Kind):
    """The name that a user gives to a layer, an input or a network."""

    def read(self, value: Any, operands: Operands = ()) -> str:
        if isinstance(value, str) and _NAME.fullmatch(value):
            return value
        raise Misfit(
            "a name of letters, digits, '_' and '-'",
            "'head' or 'block1.conv'",
            advice="It begins with a letter or '_'; words may be joined by dots.",
        )


OwnName = Annotated[str | None, OrNone(Name())]
_Results = Tensor | tuple[Tensor, ...]


@frozen_dataclass(kw_only=True)
class Layer(Sourced, ABC):
    """The base of all layers, also of users' own.

    A subclass is a frozen dataclass of hyper-parameters. Its `forward` is made of ops, from which
    the gradient is derived.

    Args:
        name: the name of the layer in networks, such as `"head"` or `"block1.conv"`. The names of
            its parameters begin with it: `"head.weight"`. By default they begin with the layer's
            number, which changes when layers are inserted before it.

    Raises:
        ShapeError, DTypeError: when it is applied to tensors that its description does not name:
            of another rank, of other extents, of integers where it takes floats.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Swish(lm.Layer):
        ...     def forward(self, scope, x):
        ...         beta = scope.parameter("beta", shape=(), init=lm.init.Constant(1.0))
        ...         return x * lm.ops.sigmoid(beta * x)
    """

    name: OwnName = field(default=None, repr=False)

    @abstractmethod
    def forward(self, scope: Scope, /, *args: Any, **kwargs: Any) -> Any:
        """Builds the layer's graph.

        Args:
            scope: the maker of parameters, states and random numbers; `scope.training` is the mode.
            args: the tensors to which the layer is applied, batch first. A layer declares one
                parameter for each: `def forward(self, scope, x)`.

        Returns:
            A tensor, or a tuple of tensors: as many in training mode as in inference mode.
        """

    def __call__(self, *operands: Tensor, **named: Never) -> Tensor:
        """Applies the layer; shapes are checked here.

        Args:
            operands: the tensors, positional arguments only.

        Returns:
            A tensor; where `forward` returns a tuple, a tuple of tensors, which type checkers see
            as a tensor, because most layers return one.

        Raises:
            ShapeError, DTypeError, DefinitionError: naming the layer and the line that made it.
        """
        if named:
            name = next(iter(named))
            raise DefinitionError(
                "a layer takes its tensors as positional arguments",
                facts=(("expected", "layer(x, ...)"), ("found", f"layer(..., {name}=...)")),
                where=origin_text(self),
                advice=f"Pass tensors without names, layer(x, {name}), and options when the layer "
                f"is made: {type(self).__name__}(...).",
            )
        if not is_frozen_record(self):
            problem = "a layer is a frozen dataclass, so that it can be saved and shared"
            raise without_init(type(self), problem)
        for operand in cast(Sequence[object], operands):
            if not isinstance(operand, Tensor):
                raise DefinitionError(
                    "a layer is applied to tensors",
                    facts=(("expected", "Tensor"), ("found", type(operand).__name__)),
                    where=origin_text(self),
                    advice=_ADVICE.get(type(operand), _NOT_ARRAYS),
                )
        return cast(Tensor, apply_layer(self, operands, self.name))


def apply_layer(layer: Layer, operands: tuple[Tensor, ...], name: str | None) -> _Results:
    """Applies a layer under a name, which may differ from its own within a named network."""
    record = BUILDING.get()
    if record is not None:
        return _built(layer, operands, record)
    path = path_after(operands, type(layer).__name__, name)
    with labelled(Origin(path, layer.source)):
        try:
            types, several = _types_of_results(layer, operands)
            first = apply(LAYER, *operands, layer=layer, types=types, name=name)
            later = [apply(RESULT, first, number=n) for n in range(1, len(types))]
            return (first, *later) if several else first
        except LaminaError as error:
            # The paths of the operands are numbered again: when an operand was made, the network
            # may have had fewer tensors.
            error.facts = with_final_paths(error.facts, operands)
            raise located(error) from None


def _built(layer: Layer, operands: tuple[Tensor, ...], record: Record) -> _Results:
    """The results of a layer outside of a network, as graphs of ops."""
    path = f"{current_origin().path}/{type(layer).__name__}"
    with labelled(Origin(path.removeprefix("/"), layer.source)):
        try:
            result = _forward(layer, Scope(record, type(layer).__name__), operands)
            results_of(result)
            if record.parameters or record.states:
                raise DefinitionError(
                    "only layers without parameters and states are applied outside of a network",
                    facts=(("found", ", ".join((*record.parameters, *record.states))),),
                    advice="Apply it in the network, and give its result as an output: "
                    "lm.Network(x, [y, layer(y)]). The loss gets all outputs.",
                )
        except LaminaError as error:
            raise located(error) from None
    return result


# Advice on operands that are not tensors.
_NOT_ARRAYS = "Start from lm.Input(...); arrays go to Model.predict."
_ADVICE: dict[Any, str] = {
    bool: "Compare tensors with lm.ops.equal and lm.ops.not_equal.",
    list: "Pass the tensors one by one: layer(a, b).",
    tuple: "A layer with several results gives a tuple: take one of them, y, *states = layer(x).",
}


def is_frozen_record(layer: Layer) -> bool:
    """Whether the layer's own class is a frozen dataclass."""
    cls = type(layer)
    parameters: Any = cls.__dict__.get("__dataclass_params__")
    return parameters is not None and parameters.frozen


# Whether a network is being traced, whose shapes were checked when it was defined.
_tracing: ContextVar[bool] = ContextVar("tracing", default=False)
# The types of a layer's results, and whether `forward` returned a tuple.
_Types = tuple[tuple[tuple[Shape, DType], ...], bool]
# They are kept by the layer's fields and the operands' shapes and dtypes. Tracing a layer applies
# the layers in it again; this saves running their `forward` for the shapes alone.
_results: dict[Hashable, _Types] = {}
_MOST_RESULTS = 1 << 12


@contextmanager
def shapes_known() -> Generator[None]:
    """Within the block, layers take the shapes of their results from an earlier application."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def _types_of_results(layer: Layer, operands: tuple[Tensor, ...]) -> _Types:
    """Shapes and dtypes of a layer's results, by running its `forward` in training mode."""
    # All that decides the types; None if a field has no key. A user's layers may have changed.
    key = None
    with suppress(OwnCodeError):
        try:
            record, is_known = plain_key(layer), True
        except OwnCodeError:
            record, is_known = plain_key(layer, own=True), _tracing.get()
        key = record, tuple([(x.shape, x.dtype) for x in operands])
        if is_known and key in _results:
            return _results[key]
    dtype = next((t.dtype for t in operands if t.dtype.is_float), shapes.float32)
    scope = Scope(Record(dtype, training=True, operands=operands), "check")
    returned = _forward(layer, scope, operands)
    results = results_of(returned)
    types = tuple([(result.shape, result.dtype) for result in results]), returned is results
    if key is not None:
        if len(_results) >= _MOST_RESULTS:
            _results.clear()
        _results[key] = types
    return types


def _forward(layer: Layer, scope: Scope, operands: tuple[Tensor, ...]) -> Any:
    """What a layer's `forward` returns."""
    try:
        return layer.forward(scope, *operands)
    except TypeError:
        # Checked only after a TypeError, because signatures are slow.
        signature = inspect.signature(layer.forward)
        if _binds(signature, scope, *operands):
            raise
        misfit = _misfit_of_forward(signature, operands)
    except LaminaError as error:
        if error.facts[-1:] == (("found", type(scope).__name__),):
            error.advice = _SCOPE_FIRST
        raise
    raise misfit


def _misfit_of_forward(signature: inspect.Signature, operands: Tensors) -> DefinitionError:
    names = [*signature.parameters]
    if _binds(signature, *operands) and "scope" not in names:
        return DefinitionError(
            "forward does not take the scope",
            facts=(
                ("expected", f"def forward({', '.join(['self', 'scope', *names])})"),
                ("found", f"def forward({', '.join(['self', *names])})"),
            ),
            advice=_SCOPE_FIRST,
        )
    count = len(operands)
    inputs = f"{count} tensor{'s' * (count != 1)}"
    facts = (("expected", f"layer({', '.join(names[1:])})"), ("found", inputs))
    return DefinitionError("the layer is applied to another number of tensors", facts=facts)


def _binds(signature: inspect.Signature, *values: object) -> bool:
    try:
        signature.bind(*values)
    except TypeError:
        return False
    return True


_SCOPE_FIRST = (
    "The first argument of forward is the scope, which creates parameters and states: "
    "def forward(self, scope, x)."
)


def results_of(returned: object) -> tuple[Tensor, ...]:
    """The results of a `forward`: a tensor, or a tuple of them; else a DefinitionError."""
    results = cast(tuple[object, ...], returned if isinstance(returned, tuple) else (returned,))
    wrong = [type(result).__name__ for result in results if not isinstance(result, Tensor)]
    if wrong or not results:
        kinds = ", ".join(wrong) or "an empty tuple"
        facts = (("expected", "Tensor, or (Tensor, ...)"), ("found", kinds))
        raise DefinitionError("forward must return a tensor, or a tuple of tensors", facts=facts)
    return cast(tuple[Tensor, ...], results)


def no_reference(*_: Array, **__: Any) -> Array:
    """The reference of ops that tracing replaces."""
    raise LaminaError("a layer is computed only as part of a network")


def _infer_result(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    types: tuple[tuple[Shape, DType], ...] = operands[0].attributes.get("types", ())
    number: int = attributes["number"]
    if number >= len(types):
        facts = (("expected", f"less than {len(types)}"), ("found", str(number)))
        raise DefinitionError("the layer has no such result", facts=facts)
    return types[number]


# `types` are the shapes and dtypes of all results; the tensor is the first. `name` is the name of
# the layer in the network, or None.
LAYER = Op(
    "layer",
    lambda _, attributes: attributes["types"][0],
    *(None, no_reference, LoweringRule()),
    operands=(0, None),
    attributes={"layer": Instance(Layer), "types": Instance(tuple), "name": OrNone(Name())},
    applies_layer=True,
)

# A further result of a layer: `number` counts from 0, the tensor of the layer itself.
RESULT = Op(
    *("result", _infer_result, None, no_reference, LoweringRule()), attributes={"number": whole(1)}
)

# The name of the leaf of an input that was given none: no user's name has parentheses.
UNNAMED = "(input)"
_EXTENT = Whole(1)


class _Extent(Kind):
    """An extent of an example."""

    def read(self, value: Any, operands: Operands = ()) -> int:
        try:
            return _EXTENT.read(value)
        except Misfit:
            wide = " of 64 bits" if (shapes.as_whole(value) or 0) > HIGHEST else ""
            advice = "Leave the batch out: it is always the first axis and never written."
            shape: Any = value
            if isinstance(shape, tuple | list):
                extents = [extent for extent in cast(Sequence[object], shape) if extent is not None]
                advice = f"Write Input({', '.join(map(shown, extents))}), without the batch."
            raise shapes.ShapeError(
                f"an input's dimensions are whole numbers above zero{wide}",
                facts=(("expected", "Input(784) or Input(1, 28, 28)"), ("found", shown(value))),
                advice=advice,
            ) from None


@checked
def Input(
    *shape: Annotated[int, _Extent()],
    dtype: Annotated[DTypeLike, ElementType()] | None = None,
    name: OwnName = None,
) -> Tensor:
    """An input of a network: a tensor with a value for every example.

    Args:
        shape: the shape of one example, without the batch axis; `lm.Input()` is a scalar per
            example.
        dtype: a fixed element type, such as `"int64"` for indices. By default the float type of
            the model; arrays of small integers are then converted on the device.
        name: the name of the input, in errors and in the summary of the network, and for arrays
            that are given by name: `model.predict({"age": ages})`.

    Raises:
        ShapeError: for a dimension below 1.

    Example:
        >>> lm.Input(3, 32, 32)
        Tensor(f32[batch, 3, 32, 32], leaf)
    """
    fixed = as_dtype(dtype) if dtype is not None else shapes.float32
    with labelled(Origin(path_after((), "Input", name), source_line())):
        tensor = apply(
            LEAF,
            name=name or UNNAMED,
            role="input",
            shape=(BATCH, *shape),
            dtype=fixed,
            flexible=dtype is None,
        )
    return tensor
