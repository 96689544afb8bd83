"""Tracing: from a network's layers to its graph of ops, in training mode or in inference mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from lamina import ops
from lamina.base import shapes
from lamina.base.garbage import without_collections
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType
from lamina.checks.origin import Origin, current_origin, labelled, located
from lamina.errors import DefinitionError, LaminaError
from lamina.graph import CONSTANT, Graph, Tensor, apply, leaf, rebuild, rewrite, topological
from lamina.graph.tensor import Tensors
from lamina.layers.gradients import GRADIENT, gradients_with, sources_of
from lamina.layers.layer import LAYER, RESULT, Layer, apply_layer, results_of, shapes_known
from lamina.layers.scope import IndexLimit, Record, Scope

_Names = Mapping[Tensor, tuple[str, str]]


@frozen_dataclass(eq=False, repr=False)
class Trace:
    """The graph of a network in training mode or in inference mode.

    Its inputs are leaves, named `"input0"`, `"input1"`, ...
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    record: Record


@without_collections
def trace(
    inputs: Tensors,
    outputs: Tensors,
    names: _Names,
    *,
    dtype: DType,
    training: bool,
    input_dtypes: Sequence[DType],
) -> Trace:
    """Builds the graph of ops of a definition: each layer is replaced by its own graph.

    Args:
        names: the prefix of each tensor's parameters, `"1"`, and its path, `"net/1:Linear"`.
        input_dtypes: the dtypes of the arrays that the program is given and casts first.
    """
    record = Record(dtype, training)
    tracer = _Tracer(record)
    leaves: list[Tensor] = []
    for number, tensor in enumerate(inputs):
        with labelled(Origin(names[tensor][1], tensor.origin.source)):
            leaves.append(leaf(f"input{number}", "input", tensor.shape, input_dtypes[number]))
            tracer.new[tensor] = ops.cast(leaves[-1], dtype_in_model(tensor, dtype))
    results = tracer.built(outputs, names)
    record.index_limits += limits_of_ops(results, record.index_limits)
    record.activations = [tracer.new.get(node, node) for node in record.activations]
    return Trace(tuple(leaves), results, record)


def applied(
    nodes: Tensors, operands: Mapping[Tensor, Tensor], name_of: Callable[[Tensor], str | None]
) -> dict[Tensor, Tensor]:
    """The nodes of a definition, operands first, applied to the replacements of its inputs."""
    new = dict(operands) | _isolated(nodes, operands)
    dtypes = [tensor.dtype for old, tensor in operands.items() if old.dtype == shapes.float32]
    dtype = next((dtype for dtype in dtypes if dtype.is_float), shapes.float32)
    results: dict[Tensor, tuple[Tensor, ...]] = {}
    graphs: dict[int, Graph] = {}
    for node in nodes:
        if node in new:
            continue
        inner = tuple(new[operand] for operand in node.operands)
        if node.op is LAYER:
            results[node] = results_of(apply_layer(node.attributes["layer"], inner, name_of(node)))
            new[node] = results[node][0]
        elif node.op is RESULT:
            new[node] = results[node.operands[0]][node.attributes["number"]]
        elif node.op is GRADIENT:
            new[node] = gradients_with(node, inner)[node.attributes["number"]]
        else:
            new[node] = in_float_type(node, inner, dtype, graphs)
    return new


def _isolated(nodes: Sequence[Tensor], operands: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """The operands with respect to which there are gradients, as tensors of their own."""
    # Gradients then count the paths of the definition alone: an operand may depend on another one.
    sources = sources_of(nodes)
    return {
        given: ops.computed_again(tensor) for given, tensor in operands.items() if given in sources
    }


def traced_within(
    scope: Scope, operands: Mapping[Tensor, Tensor], outputs: Tensors, names: _Names
) -> tuple[Tensor, ...]:
    """The results of a definition that is a part of a layer, as graphs of ops."""
    record, prefix = scope._record, scope._name  # pyright: ignore[reportPrivateUsage]
    tracer = _Tracer(record)
    tracer.new |= {**operands, **_isolated(topological(outputs), operands)}
    outer = current_origin().path
    return tracer.built(
        outputs,
        {
            tensor: (f"{prefix}.{name}", f"{outer}/{path.removeprefix('net/')}")
            for tensor, (name, path) in names.items()
        },
    )


def dtype_in_model(tensor: Tensor, dtype: DType) -> DType:
    """The dtype of a tensor of the definition in a model: its float type in place of float32."""
    return dtype if tensor.dtype == shapes.float32 else tensor.dtype


def in_float_type(
    tensor: Tensor, operands: tuple[Tensor, ...], dtype: DType, graphs: dict[int, Graph]
) -> Tensor:
    """The same op in a model's float type, which replaces float32 of the definition.

    Tensors that share a graph as attribute share the rewritten one, in `graphs` by the graph's id.
    """
    if dtype == shapes.float32:
        return apply(tensor.op, *operands, **tensor.attributes)
    if tensor.op is CONSTANT and tensor.dtype == shapes.float32:
        exact = tensor.attributes["value"].exact
        return ops.cast(tensor if exact is None else exact, dtype)
    attributes: dict[str, Any] = {}
    for name, value in tensor.attributes.items():
        if isinstance(value, Graph):
            if id(value) not in graphs:
                graphs[id(value)] = rewrite(
                    value, lambda inner, new: in_float_type(inner, new, dtype, graphs)
                )
            attributes[name] = graphs[id(value)]
        else:
            attributes[name] = dtype if value == shapes.float32 else value
    return apply(tensor.op, *operands, **attributes)


@final
class _Tracer:
    """Builds the graph of ops of a network, tensor by tensor."""

    def __init__(self, record: Record) -> None:
        self.record = record
        # The replacement of each tensor of the definition.
        self.new: dict[Tensor, Tensor] = {}
        # All results of each layer of the definition, and all gradients of each call.
        self._results: dict[Tensor, tuple[Tensor, ...]] = {}
        self._gradients: dict[tuple[tuple[Tensor, ...], bool], tuple[Tensor, ...]] = {}
        # The tensors with respect to which gradients are taken.
        self._sources: set[Tensor] = set()
        self._graphs: dict[int, Graph] = {}

    def built(self, outputs: Tensors, names: _Names) -> tuple[Tensor, ...]:
        """The replacements of the outputs of a definition, with names as for `trace`."""
        nodes = topological(outputs)
        self._sources |= sources_of(nodes)
        for tensor in nodes:
            if tensor not in self.new:
                self.build(tensor, *names.get(tensor, ("", "")))
        return tuple(self.new[tensor] for tensor in outputs)

    def build(self, tensor: Tensor, prefix: str, path: str) -> None:
        """Builds the replacement of a tensor, after the replacements of its operands."""
        operands = tuple(self.new[operand] for operand in tensor.operands)
        with labelled(Origin(path, tensor.origin.source)):
            if tensor.op is LAYER:
                self._results[tensor] = self._build_layer(tensor, operands, prefix, path)
                self.new[tensor] = self._as_source(tensor, self._results[tensor][0])
            elif tensor.op in (RESULT, GRADIENT):
                self._build_result(tensor)
            else:
                dtype = self.record.dtype
                self.new[tensor] = in_float_type(tensor, operands, dtype, self._graphs)
        self.record.activations.append(self.new[tensor])

    def _build_result(self, tensor: Tensor) -> None:
        """Builds the replacement of a further result of a layer, or of a gradient."""
        number: int = tensor.attributes["number"]
        if tensor.op is RESULT:
            results = self._results[tensor.operands[0]]
        else:
            call = tensor.operands, tensor.attributes["seeded"]
            if call not in self._gradients:
                operands = tuple(self.new[operand] for operand in tensor.operands)
                self._gradients[call] = gradients_with(tensor, operands)
            results = self._gradients[call]
        if number >= len(results):
            raise located(
                DefinitionError(
                    "forward must return as many tensors in inference mode as in training mode",
                    facts=(("expected", f"more than {number}"), ("found", str(len(results)))),
                )
            )
        self.new[tensor] = self._as_source(tensor, results[number])

    def _as_source(self, tensor: Tensor, new: Tensor) -> Tensor:
        """The replacement of a tensor, which no other tensor has if gradients depend on that."""
        # In inference mode, for example, the result of `Dropout` is its operand. Its gradient still
        # counts its own users alone.
        shared = tensor in self._sources and new in self.new.values()
        return ops.computed_again(new) if shared else new

    def _build_layer(
        self, tensor: Tensor, operands: tuple[Tensor, ...], prefix: str, path: str
    ) -> tuple[Tensor, ...]:
        """The results of a layer, as graphs of ops."""
        new, record = self.new, self.record
        layer: Layer = tensor.attributes["layer"]
        owner = record.prefix_of(layer, prefix)
        before = len(record.updated)
        try:
            with shapes_known():
                results = results_of(layer.forward(Scope(record, owner), *operands))
        except LaminaError as error:
            raise located(error) from None
        # New values of states may contain layers too, like the results.
        changed = {name: record.updates[name] for name in record.updated[before:]}
        self._build_inner((*results, *changed.values()), operands, owner, path)
        record.updates.update((k, new.get(v, v)) for k, v in changed.items())
        return tuple([new.get(result, result) for result in results])

    def _build_inner(self, results: Tensors, operands: Tensors, prefix: str, path: str) -> None:
        """Builds the layers that a layer has applied in its `forward`."""
        inside = topological(results, operands)
        if not any(tensor.op is LAYER for tensor in inside):
            return
        self._sources |= sources_of(inside)
        number = 0
        named: dict[str, Layer] = {}
        for tensor in inside:
            # While shapes are checked, an operand may be the result of a layer that is not built.
            if tensor in operands or not tensor.operands:
                self.new[tensor] = tensor
            elif tensor.op is LAYER:
                layer: Layer = tensor.attributes["layer"]
                name: str = tensor.attributes["name"] or str(number)
                if named.setdefault(name, layer) is not layer:
                    raise located(
                        DefinitionError(
                            f"two layers in this layer are named {name!r}",
                            advice="Give each its own name.",
                        )
                    )
                label = f"{name}:{type(layer).__name__}"
                self.build(tensor, f"{prefix}.{name}", f"{path}/{label}")
                number += 1
            elif tensor.op in (RESULT, GRADIENT):
                self._build_result(tensor)
            else:
                changed = tuple(self.new[operand] for operand in tensor.operands)
                self.new[tensor] = rebuild(tensor, changed)


def limits_of_ops(
    results: Sequence[Tensor], of_layers: Sequence[IndexLimit], known_tensors: Sequence[Tensor] = ()
) -> list[IndexLimit]:
    """The ranges of indices that ops after the known tensors expect, where no layer has one."""
    limited = {(limit.indices, limit.count) for limit in of_layers}
    advice = "Indices do not count from the end; ops.clip brings them inside."
    limits: list[IndexLimit] = []
    for node in topological(results, known_tensors):
        if node.op.indices is not None:
            indices, extent = node.op.indices(node)
            # The extent of an axis that depends on the batch is not known here.
            if isinstance(extent, int) and (indices, extent) not in limited:
                limits.append(IndexLimit(indices, extent, node.origin, "indices", advice))
    return limits
