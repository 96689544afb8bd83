"""A network as plain data: layer names with their fields, op names with their attributes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast, final

import numpy as np

from lamina import layers
from lamina.base.shapes import Array, DType, Size
from lamina.errors import DefinitionError
from lamina.graph import LEAF, ConstantValue, Graph, Tensor
from lamina.layers import init
from lamina.layers.definition_names import name_of
from lamina.layers.gradients import GRADIENT
from lamina.layers.layer import LAYER, RESULT, Layer, is_frozen_record
from lamina.network import Network
from lamina.ops.differentiate import COMPUTED_AGAIN

Json = Any
USER_PREFIX = "user."


def own_classes() -> dict[str, type]:
    """Lamina's layers, initialisers and regularisers, by their names in files."""
    return {
        prefix + name: value
        for prefix, module in (("", layers), ("init.", init))
        for name, value in ((name, getattr(module, name)) for name in dir(module))
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    }


def classes_of(network: Network) -> list[type]:
    """The users' classes of records in a network: layers, and records in their fields."""
    classes: dict[type, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, tuple | list):
            for item in cast(Sequence[Any], value):
                visit(item)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            classes[type(value)] = None
            for field in dataclasses.fields(value):
                visit(getattr(value, field.name))
        elif isinstance(value, Network):
            for node in value.nodes:
                if node.op is LAYER:
                    visit(node.attributes["layer"])

    visit(network)
    laminas = set(own_classes().values())
    return [cls for cls in classes if cls not in laminas]


def encode(network: Network) -> tuple[Json, dict[str, Array]]:
    """A network as JSON data, and the arrays of its constants, by name."""
    encoder = _Encoder()
    return encoder.network(network, network.nodes), encoder.arrays


def are_alike(first: Network, second: Network) -> bool:
    """Whether two networks compute the same: they may differ in what `Recompute` computes again."""
    data, of_other = (
        _Encoder().network(network, [x for x in network.nodes if x.op is not COMPUTED_AGAIN])
        for network in (first, second)
    )
    return data == of_other


@final
class _Encoder:
    """Encodes one network. Layers and graphs used several times are written once."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._name_of_class = {cls: name for name, cls in own_classes().items()}
        self._users: dict[str, type] = {}
        # The number of each layer among the records, by the layer's id.
        self._layer_numbers: dict[int, int] = {}
        self._layers: list[Json] = []
        self._graph_numbers: dict[int, int] = {}
        self._graphs: list[Json] = []

    def network(self, network: Network, nodes: Sequence[Tensor]) -> Json:
        """The whole definition; a node that is not among these is the same as its operand."""
        definition = self._definition(network, nodes)
        return {"layers": self._layers, "graphs": self._graphs, **definition}

    def _definition(self, network: Network, nodes: Sequence[Tensor]) -> Json:
        positions = {node: number for number, node in enumerate(nodes)}
        for node in network.nodes:
            if node not in positions:
                positions[node] = positions[node.operands[0]]
        encoded = [self._node(network, node, positions) for node in nodes]
        names = {"output_names": list(network.output_names)} if network.has_output_names else {}
        return {
            "nodes": encoded,
            "inputs": [positions[tensor] for tensor in network.inputs],
            "outputs": [positions[tensor] for tensor in network.outputs],
            **names,
            **_named(network.name),
        }

    def _node(self, network: Network, node: Tensor, positions: Mapping[Tensor, int]) -> Json:
        if node.op is LEAF:
            dtype = None if node.attributes.get("flexible") else node.dtype.name
            return {"input": list(node.shape[1:]), "dtype": dtype} | _named(name_of(node))
        operands = [positions[operand] for operand in node.operands]
        if node.op is LAYER:
            number = self._layer(node.attributes["layer"], network.path(node))
            return {"layer": number, "operands": operands} | _named(name_of(node))
        if node.op is RESULT:
            return {"result": node.attributes["number"], "of": operands[0]}
        if node.op is GRADIENT:
            number, seeded = node.attributes["number"], node.attributes["seeded"]
            return {"gradient": number, "seeded": seeded, "operands": operands}
        return self._application(node, positions)

    def _application(self, node: Tensor, positions: Mapping[Tensor, int]) -> Json:
        operands = [positions[operand] for operand in node.operands]
        attributes = {k: self._value(v, node.op.name) for k, v in node.attributes.items()}
        return {"op": node.op.name, "operands": operands, "attributes": attributes}

    def _layer(self, layer: Layer, where: str) -> int:
        """The number of a layer among the records."""
        if id(layer) not in self._layer_numbers:
            data = self._record(layer, where)  # layers in its fields are numbered first
            self._layer_numbers[id(layer)] = len(self._layers)
            self._layers.append(data)
        return self._layer_numbers[id(layer)]

    def _graph(self, graph: Graph) -> int:
        """The number of a graph that is an attribute of an op: one iteration of a recurrence."""
        if id(graph) not in self._graph_numbers:
            order = {node: number for number, node in enumerate(graph.nodes())}
            data = {
                "nodes": [self._application(node, order) for node in order],
                "inputs": [order[tensor] for tensor in graph.inputs],
                "outputs": [[name, order[tensor]] for name, tensor in graph.outputs],
            }
            self._graph_numbers[id(graph)] = len(self._graphs)
            self._graphs.append(data)
        return self._graph_numbers[id(graph)]

    def _record(self, value: Any, where: str) -> Json:
        fields = {
            field.name: self._value(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
            if field.init and not (field.name == "name" and value.name is None)
        }
        return {"record": self._class_name(value.__class__, where), "fields": fields}

    def _class_name(self, cls: type, where: str) -> str:
        """The name of a class. The prefix of users' classes keeps them apart from Lamina's."""
        if cls in self._name_of_class:
            return self._name_of_class[cls]
        if self._users.setdefault(cls.__name__, cls) is not cls:
            raise DefinitionError(
                f"two classes of the network are named {cls.__name__}",
                where=where,
                advice="A file refers to classes by name: rename one of them.",
            )
        return USER_PREFIX + cls.__name__

    def _value(self, value: Any, where: str) -> Json:
        if isinstance(value, np.generic):
            value = cast(Any, value).item()
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, tuple | list):
            items = [self._value(item, where) for item in cast(tuple[Any, ...], value)]
            return {"tuple" if isinstance(value, tuple) else "list": items}
        if isinstance(value, DType):
            return {"dtype": value.name}
        if isinstance(value, Size):
            return {"size": [value.coefficient, value.offset]}
        if isinstance(value, Graph):
            return {"graph": self._graph(value)}
        if isinstance(value, ConstantValue) and value.exact is not None:
            return {"number": self._value(value.exact, where), "dtype": value.array.dtype.name}
        if isinstance(value, ConstantValue):
            name = f"constant.{len(self.arrays)}"
            self.arrays[name] = value.array
            return {"array": name}
        if isinstance(value, Layer) and is_frozen_record(value):
            return {"layer": self._layer(value, where)}
        if isinstance(value, Network):
            return {"network": self._definition(value, value.nodes)}
        if dataclasses.is_dataclass(value) and not isinstance(value, Layer | type):
            return self._record(value, where)
        expected = "numbers, text, tuples, layers, networks, or records of them"
        raise DefinitionError(
            f"{where} cannot be saved",
            facts=(("expected", expected), ("found", type(value).__name__)),
            advice="Keep layer fields plain: a file holds data, never code.",
        )


def _named(name: str | None) -> dict[str, Json]:
    return {} if name is None else {"name": name}
