"""A network as plain data, and back: layer names with their fields, op names with attributes.

Reading runs no code from the file: names are looked up among Lamina's own classes and those the
caller passes in, and everything is built through the same checks as when a person writes it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from lamina import layers, ops
from lamina.errors import DefinitionError, FileFormatError
from lamina.graph import LEAF, ConstantValue, Graph, Tensor, apply
from lamina.layers import init
from lamina.layers.layer import LAYER, Input, Layer
from lamina.network import Network
from lamina.shapes import Array, DType, Size, as_dtype

Json = Any
USER_PREFIX = "user."


def _own_classes() -> dict[str, type]:
    """Lamina's layers, initialisers and regularisers, by the name under which they are saved."""
    found: dict[str, type] = {}
    for prefix, module in (("", layers), ("init.", init)):
        for name in dir(module):
            value = getattr(module, name)
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                found[prefix + name] = value
    return found


def classes_of(network: Network) -> list[type]:
    """The classes of all records in a network: its layers, and what their fields hold."""
    found: dict[type, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, tuple | list):
            for item in cast(Sequence[Any], value):
                visit(item)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            found[type(value)] = None
            for field in dataclasses.fields(value):
                visit(getattr(value, field.name))

    for node in network.nodes:
        if node.op is LAYER:
            visit(node.attributes["layer"])
    own = set(_own_classes().values())
    return [cls for cls in found if cls not in own]


def encode(network: Network) -> tuple[Json, dict[str, Array]]:
    """A network as JSON data, and the arrays that it fixes, by name.

    Raises:
        DefinitionError: if a layer has a field that is no plain value.
    """
    arrays: dict[str, Array] = {}
    own = {cls: name for name, cls in _own_classes().items()}
    users: dict[str, type] = {}
    # A layer object in several places is written once and shared again.
    unique: dict[int, int] = {}
    records: list[Json] = []
    graphs: dict[int, int] = {}
    graph_records: list[Json] = []

    def name_of(cls: type, where: str) -> str:
        """Users' classes have a prefix, so that they are never taken for Lamina's."""
        if cls in own:
            return own[cls]
        if users.setdefault(cls.__name__, cls) is not cls:
            raise DefinitionError(
                f"two classes of the network are named {cls.__name__}",
                where=where,
                advice="A file knows classes by their names: rename one of them.",
            )
        return USER_PREFIX + cls.__name__

    def layer_number(layer: Layer, where: str) -> int:
        if id(layer) not in unique:
            data = record(layer, where)  # layers in its fields are numbered first
            unique[id(layer)] = len(records)
            records.append(data)
        return unique[id(layer)]

    def record(value: Any, where: str) -> Json:
        fields = {
            field.name: plain(getattr(value, field.name), f"{where}.{field.name}")
            for field in dataclasses.fields(value)
            if field.init
        }
        return {"record": name_of(value.__class__, where), "fields": fields}

    def plain(value: Any, where: str) -> Json:
        if isinstance(value, np.generic):
            value = cast(Any, value).item()
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, tuple | list):
            items = cast(Sequence[Any], value)
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [plain(item, where) for item in items]}
        if isinstance(value, DType):
            return {"dtype": value.name}
        if isinstance(value, Size):
            return {"size": [value.coefficient, value.offset]}
        if isinstance(value, Graph):
            return {"graph": graph_number(value)}
        if isinstance(value, ConstantValue) and value.exact is not None:
            return {"number": plain(value.exact, where), "dtype": value.array.dtype.name}
        if isinstance(value, ConstantValue):
            name = f"constant.{len(arrays)}"
            arrays[name] = value.array
            return {"array": name}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if isinstance(value, Layer):
                return {"layer": layer_number(value, where)}
            return record(value, where)
        raise DefinitionError(
            f"{where} cannot be saved",
            facts=(
                ("expected", "numbers, text, tuples, or records of them"),
                ("found", type(value).__name__),
            ),
            advice="Keep layer fields plain: a file holds data, never code.",
        )

    def op_entry(node: Tensor, positions: Mapping[Tensor, int]) -> Json:
        operands = [positions[operand] for operand in node.operands]
        attributes = {k: plain(v, node.op.name) for k, v in node.attributes.items()}
        return {"op": node.op.name, "operands": operands, "attributes": attributes}

    def graph_number(graph: Graph) -> int:
        """A graph that is an attribute of ops, such as the step of a recurrence."""
        if id(graph) not in graphs:
            order = {node: number for number, node in enumerate(graph.nodes())}
            data = {
                "nodes": [op_entry(node, order) for node in order],
                "inputs": [order[tensor] for tensor in graph.inputs],
                "outputs": [[name, order[tensor]] for name, tensor in graph.outputs],
            }
            graphs[id(graph)] = len(graph_records)
            graph_records.append(data)
        return graphs[id(graph)]

    positions = {node: number for number, node in enumerate(network.nodes)}
    nodes: list[Json] = []
    for node in network.nodes:
        if node.op is LEAF:
            shape = list(node.shape[1:])
            dtype = None if node.attributes.get("flexible") else node.dtype.name
            nodes.append({"input": shape, "dtype": dtype})
        elif node.op is LAYER:
            layer: Layer = node.attributes["layer"]
            number = layer_number(layer, network.path(node))
            operands = [positions[operand] for operand in node.operands]
            nodes.append({"layer": number, "operands": operands})
        else:
            nodes.append(op_entry(node, positions))
    definition = {
        "layers": records,
        "graphs": graph_records,
        "nodes": nodes,
        "inputs": [positions[tensor] for tensor in network.inputs],
        "outputs": [positions[tensor] for tensor in network.outputs],
    }
    return definition, arrays


def decode(definition: Json, arrays: Mapping[str, Array], user_layers: Sequence[type]) -> Network:
    """The network that `encode` wrote.

    Args:
        definition: the JSON data.
        arrays: the arrays that it fixes.
        user_layers: the caller's own classes of layers, initializers and regularizers that the
            network may contain.

    Raises:
        FileFormatError: for a class or op that is not known.
        LaminaError, TypeError, KeyError, ValueError, IndexError: for data that is no network; the
            caller says which file it was.
    """
    classes = _own_classes() | {USER_PREFIX + cls.__name__: cls for cls in user_layers}
    records: list[Any] = []
    graphs: list[Graph] = []

    def value_of(data: Json) -> Any:
        if not isinstance(data, dict):
            return data
        table = cast(dict[str, Any], data)
        if "tuple" in table:
            return tuple(value_of(item) for item in table["tuple"])
        if "list" in table:
            return [value_of(item) for item in table["list"]]
        if "number" in table:
            exact = float(value_of(table["number"]))
            return ConstantValue(np.asarray(exact, as_dtype(str(table["dtype"])).numpy), exact)
        if "float" in table:
            return float(table["float"])
        if "dtype" in table:
            return as_dtype(str(table["dtype"]))
        if "size" in table:
            coefficient, offset = table["size"]
            return Size(int(coefficient), int(offset))
        if "array" in table:
            return ConstantValue(arrays[table["array"]])
        if "layer" in table:
            return _earlier(records, table["layer"])
        if "graph" in table:
            return _earlier(graphs, table["graph"])
        return record_of(table)

    def applied(entry: dict[str, Any], made: Sequence[Tensor]) -> Tensor:
        operands = [_earlier(made, number) for number in entry["operands"]]
        attributes = {k: value_of(v) for k, v in entry["attributes"].items()}
        return apply(ops.BY_NAME[entry["op"]], *operands, **attributes)

    def record_of(table: dict[str, Any]) -> Any:
        name = table["record"]
        if name not in classes:
            shown = str(name).removeprefix(USER_PREFIX)
            raise FileFormatError(
                f"the network contains a {shown}, which is not among Lamina's layers",
                facts=(("known", ", ".join(sorted(classes))),),
                advice=f"If it is your own, pass its class: lm.load(path, layers=[{shown}]).",
            )
        return classes[name](**{k: value_of(v) for k, v in table["fields"].items()})

    for table in definition["layers"]:
        records.append(record_of(table))
    # Files of networks without any do not mention them.
    for table in definition.get("graphs", []):
        made: list[Tensor] = []
        for entry in table["nodes"]:
            made.append(applied(entry, made))
        inputs = tuple(_earlier(made, number) for number in table["inputs"])
        outputs = tuple((str(name), _earlier(made, number)) for name, number in table["outputs"])
        graphs.append(Graph(inputs, outputs))
    nodes: list[Tensor] = []
    for entry in definition["nodes"]:
        operands = [_earlier(nodes, number) for number in entry.get("operands", [])]
        if "input" in entry:
            nodes.append(Input(*entry["input"], dtype=entry["dtype"]))
        elif "layer" in entry:
            layer = _earlier(records, entry["layer"])
            if not isinstance(layer, Layer):
                raise ValueError(f"{type(layer).__name__} is no layer")
            nodes.append(layer(*operands))
        else:
            nodes.append(applied(entry, nodes))
    return Network(
        [_earlier(nodes, number) for number in definition["inputs"]],
        [_earlier(nodes, number) for number in definition["outputs"]],
    )


def _earlier(made: Sequence[Any], number: int) -> Any:
    if not 0 <= number < len(made):
        raise IndexError(number)
    return made[number]
