"""What a layer is, and how applying one to tensors is remembered.

A layer is a frozen record of hyper-parameters. Applying it makes a tensor whose op is `LAYER`:
the shapes are checked at once, but the layer's own graph is built later, by `trace`, once in its
training and once in its inference form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Never, cast, final

from lamina import ops, shapes
from lamina.errors import DefinitionError, LaminaError
from lamina.garbage import without_collections
from lamina.graph import (
    CONSTANT,
    LEAF,
    Attributes,
    Graph,
    Lowering,
    Op,
    Origin,
    Tensor,
    apply,
    labelled,
    leaf,
    located,
    path_after,
    rebuild,
    rewrite,
    source_line,
    topological,
)
from lamina.graph.calls import checked
from lamina.graph.kinds import (
    HIGHEST,
    ElementType,
    Instance,
    Kind,
    Misfit,
    Operands,
    Whole,
    shown,
)
from lamina.layers.checks import Sourced
from lamina.layers.scope import IndexLimit, Record, Scope
from lamina.shapes import BATCH, Array, DType, DTypeLike, Shape, as_dtype


class Layer(Sourced, ABC):
    """The base of all layers, the user's own included.

    A subclass is a frozen dataclass of hyper-parameters with a `forward` made of ops; the
    gradient follows by itself.

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
            scope: gives parameters, state, random numbers, and says whether this is training.
            args: the tensors the layer is applied to, batch first; a layer names as many as it
                takes: `def forward(self, scope, x)`.
        """

    def __call__(self, *operands: Tensor, **named: Never) -> Tensor:
        """Applies the layer; shapes are checked here.

        Args:
            operands: the tensors, by their places; none has a name.

        Raises:
            ShapeError, DTypeError, DefinitionError: naming the layer and the line that made it.
        """
        if named:
            name = next(iter(named))
            raise DefinitionError(
                "a layer is applied to tensors by their places",
                facts=(("expected", "layer(x, ...)"), ("found", f"layer(..., {name}=...)")),
                where=str(Origin(type(self).__name__, self.source)),
                advice=f"Leave the name out, layer(x, {name}), or give an option where the layer "
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
                    advice="Tensors are compared by lm.ops.equal and lm.ops.not_equal."
                    if isinstance(operand, bool)
                    else "Start from lm.Input(...); arrays go to Model.predict.",
                )
        origin = Origin(path_after(operands, type(self).__name__), self.source)
        with labelled(origin):
            return apply(LAYER, *operands, layer=self)


def is_frozen_record(layer: Layer) -> bool:
    """Whether the layer's own class is a frozen dataclass."""
    cls = type(layer)
    parameters: Any = cls.__dict__.get("__dataclass_params__")
    return parameters is not None and parameters.frozen


def _infer_application(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    layer: Layer = attributes["layer"]
    dtype = next((t.dtype for t in operands if t.dtype.is_float), shapes.float32)
    record = Record(dtype, training=True, operands=operands)
    result = layer.forward(Scope(record, "check"), *operands)
    if not isinstance(cast(object, result), Tensor):
        raise DefinitionError(
            "forward must return a tensor",
            facts=(("expected", "Tensor"), ("found", type(result).__name__)),
        )
    return result.shape, result.dtype


def _no_reference(*_: Array, **__: Any) -> Array:
    raise LaminaError("a layer is computed only as part of a network")


LAYER = Op(
    *("layer", _infer_application, None, _no_reference, Lowering()),
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
    """A value that a network is given for every example.

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


class Trace:
    """The graph of a network in one form.

    Attributes:
        inputs: the leaves, `"input0"` and on.
        outputs: the results.
        record: parameters, state, penalties and random keys found on the way.
    """

    def __init__(
        self, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], record: Record
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.record = record


@without_collections
def trace(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    names: Mapping[Tensor, tuple[str, str]],
    *,
    dtype: DType,
    training: bool,
    input_dtypes: Sequence[DType] | None = None,
) -> Trace:
    """Builds the graph of ops behind tensors that layers were applied to.

    Args:
        inputs, outputs: the definition, as tensors.
        names: for each tensor of the definition the prefix of its parameters' names, `"1"`, and
            its path, `"net/1:Linear"`.
        dtype: the float type of the model.
        training: which form of the layers is built.
        input_dtypes: what arrives, where it differs from the definition: it is cast first.
    """
    tracer = _Tracer(dtype, training)
    leaves: list[Tensor] = []
    for number, tensor in enumerate(inputs):
        # In a float64 model all floats are, what was written down as float32 included.
        wanted = dtype if tensor.dtype == shapes.float32 else tensor.dtype
        arriving = input_dtypes[number] if input_dtypes else wanted
        with labelled(Origin(names[tensor][1], tensor.origin.source)):
            leaves.append(leaf(f"input{number}", "input", tensor.shape, arriving))
            tracer.new[tensor] = ops.cast(leaves[-1], wanted)
    for tensor in topological(outputs):
        if tensor not in tracer.new:
            tracer.build(tensor, *names.get(tensor, ("", "")))
    results, record = tuple(tracer.new[tensor] for tensor in outputs), tracer.record
    record.index_limits += _limits_of_ops(results, record.index_limits)
    return Trace(tuple(leaves), results, record)


@final
class _Tracer:
    """Builds graphs of ops; functions that call each other would only be freed by the collector.

    Attributes:
        record: what was found on the way.
        new: for each tensor of the definition the one that stands for it.
    """

    def __init__(self, dtype: DType, training: bool) -> None:
        self.record = Record(dtype, training)
        self.new: dict[Tensor, Tensor] = {}
        self._owners: dict[int, str] = {}
        self._graphs: dict[int, Graph] = {}

    def build(self, tensor: Tensor, prefix: str, path: str) -> None:
        """Makes what stands for a tensor whose operands were built."""
        new, record = self.new, self.record
        origin = Origin(path, tensor.origin.source)
        operands = tuple(new[operand] for operand in tensor.operands)
        with labelled(origin):
            if tensor.op is LAYER:
                layer: Layer = tensor.attributes["layer"]
                # A layer that is applied again keeps the name of its first place.
                owner = self._owners.setdefault(id(layer), prefix)
                record.layers[owner] = layer
                before = len(record.updated)
                try:
                    result = layer.forward(Scope(record, owner), *operands)
                except LaminaError as error:
                    raise located(error) from None
                # New values of states may depend on layers inside as well as the result does.
                changed = {name: record.updates[name] for name in record.updated[before:]}
                self._build_inner((result, *changed.values()), operands, owner, path)
                new[tensor] = new.get(result, result)
                record.updates.update((k, new.get(v, v)) for k, v in changed.items())
            else:
                new[tensor] = self._in_float_type(tensor, operands)

    def _in_float_type(self, tensor: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        """Written down in float32; what it says of floats holds for the model's float type."""
        dtype = self.record.dtype
        if tensor.op is CONSTANT and tensor.dtype == shapes.float32:
            exact = tensor.attributes["value"].exact
            return ops.cast(tensor if exact is None else exact, dtype)
        attributes: dict[str, Any] = {}
        for name, value in tensor.attributes.items():
            if isinstance(value, Graph):
                # Several tensors may share it: they still do afterwards.
                if id(value) not in self._graphs:
                    self._graphs[id(value)] = rewrite(value, self._in_float_type)
                attributes[name] = self._graphs[id(value)]
            else:
                attributes[name] = dtype if value == shapes.float32 else value
        return apply(tensor.op, *operands, **attributes)

    def _build_inner(
        self, results: Sequence[Tensor], operands: tuple[Tensor, ...], prefix: str, path: str
    ) -> None:
        """Layers that a layer applied in its forward become graph as well."""
        inside = topological(results, operands)
        if not any(tensor.op is LAYER for tensor in inside):
            return
        number = 0
        for tensor in inside:
            if tensor.op is LAYER:
                label = type(tensor.attributes["layer"]).__name__
                self.build(tensor, f"{prefix}.{number}", f"{path}/{number}:{label}")
                number += 1
            elif tensor in operands or not tensor.operands:
                self.new[tensor] = tensor
            else:
                changed = tuple(self.new[one] for one in tensor.operands)
                self.new[tensor] = rebuild(tensor, changed)


def _limits_of_ops(results: Sequence[Tensor], known: Sequence[IndexLimit]) -> list[IndexLimit]:
    """What ops expect of their indices, where no layer has said so already."""
    limited = {(limit.indices, limit.count) for limit in known}
    advice = "Indices do not count from the end; ops.clip brings them inside."
    found: list[IndexLimit] = []
    for node in topological(results):
        if node.op.places is not None:
            indices, extent = node.op.places(node)
            # How long an axis of the batch is, is not known here.
            if isinstance(extent, int) and (indices, extent) not in limited:
                found.append(IndexLimit(indices, extent, node.origin, "indices", advice))
    return found
