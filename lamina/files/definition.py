"""A network as plain data, and back: layer names with their fields, op names with attributes.

Reading runs no code from the file: names are looked up among Lamina's own classes and those the
caller passes in, and everything is built through the same checks as when a person writes it.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from lamina import layers, ops
from lamina.errors import DefinitionError, FileFormatError, LaminaError
from lamina.graph import LEAF, ConstantValue, Graph, Tensor, apply
from lamina.layers import init
from lamina.layers.layer import LAYER, Input, Layer
from lamina.network import Network
from lamina.shapes import Array, DType, Size, as_dtype, as_whole

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
        FileFormatError: for a class or op that is not known, and for a part that cannot be
            rebuilt, which is named.
        LaminaError, TypeError, KeyError, ValueError, IndexError: for data that is no network; the
            caller says which file it was.
    """
    classes = _own_classes() | {USER_PREFIX + cls.__name__: cls for cls in user_layers}
    records: list[Any] = []
    graphs: list[Graph] = []

    def value_of(data: Json, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"a value lies more than {_DEEPEST} levels deep")
        if not isinstance(data, dict):
            if isinstance(data, list):
                raise ValueError("a list without a kind")
            return data
        table = cast(dict[str, Any], data)
        if "tuple" in table:
            return tuple(value_of(item, depth + 1) for item in _list(table, "tuple"))
        if "list" in table:
            return [value_of(item, depth + 1) for item in _list(table, "list")]
        if "number" in table:
            exact = float(value_of(table["number"], depth + 1))
            return ConstantValue(np.asarray(exact, as_dtype(str(table["dtype"])).numpy), exact)
        if "float" in table:
            return float(table["float"])
        if "dtype" in table:
            return as_dtype(str(table["dtype"]))
        if "size" in table:
            coefficient, offset = map(_whole, _list(table, "size"))
            return Size(coefficient, offset)
        if "array" in table:
            if table["array"] not in arrays:
                raise ValueError(f"there is no array {reprlib.repr(table['array'])}")
            return ConstantValue(arrays[table["array"]])
        if "layer" in table:
            return _earlier(records, table["layer"])
        if "graph" in table:
            return _earlier(graphs, table["graph"])
        return record_of(table, depth)

    def applied(entry: Mapping[str, Any], made: Sequence[Tensor]) -> Tensor:
        operands = [_earlier(made, number) for number in _list(entry, "operands")]
        attributes = {k: value_of(v) for k, v in _table(entry["attributes"]).items()}
        op = ops.known(entry["op"])
        if op is None:
            raise FileFormatError(
                f"the network contains the op {reprlib.repr(entry['op'])}, which there is not",
                advice="It may be of a later version of Lamina.",
            )
        return apply(op, *operands, **attributes)

    def record_of(table: Mapping[str, Any], depth: int = 0) -> Any:
        if "record" not in table:
            raise ValueError(f"there is no kind of value like {reprlib.repr(dict(table))}")
        name = table["record"]
        if name not in classes:
            shown = str(name).removeprefix(USER_PREFIX)
            raise FileFormatError(
                f"the network contains a {shown}, which is not among Lamina's layers",
                facts=(("known", ", ".join(sorted(classes))),),
                advice=f"If it is your own, pass its class: lm.load(path, layers=[{shown}]).",
            )
        fields = _table(table["fields"])
        return classes[name](**{k: value_of(v, depth + 1) for k, v in fields.items()})

    def node_of(entry: Mapping[str, Any], made: Sequence[Tensor]) -> Tensor:
        if "input" in entry:
            return Input(*_list(entry, "input"), dtype=entry["dtype"])
        if "layer" not in entry:
            return applied(entry, made)
        layer = _earlier(records, entry["layer"])
        if not isinstance(layer, Layer):
            raise ValueError(f"{type(layer).__name__} is no layer")
        return layer(*(_earlier(made, number) for number in _list(entry, "operands")))

    whole = _table(definition)
    for number, entry in enumerate(_list(whole, "layers")):
        with _rebuilding("layer", number, entry, "record"):
            records.append(record_of(_table(entry)))
    # Files of networks without any do not mention them.
    for number, entry in enumerate(_list(whole, "graphs") if "graphs" in whole else ()):
        with _rebuilding("graph", number, entry, ""):
            table, made = _table(entry), list[Tensor]()
            for inner in _list(table, "nodes"):
                made.append(applied(_table(inner), made))
            inputs = tuple(_earlier(made, number) for number in _list(table, "inputs"))
            outputs = tuple((str(name), _earlier(made, n)) for name, n in _list(table, "outputs"))
            graphs.append(Graph(inputs, outputs))
    nodes: list[Tensor] = []
    for number, entry in enumerate(_list(whole, "nodes")):
        with _rebuilding("node", number, entry, "op"):
            nodes.append(node_of(_table(entry), nodes))
    return Network(
        [_earlier(nodes, number) for number in _list(whole, "inputs")],
        [_earlier(nodes, number) for number in _list(whole, "outputs")],
    )


# A file need not be read deeper than anybody writes records into records.
_DEEPEST = 32
# What making records of nonsense may raise, a layer of somebody's own included.
NONSENSE = (
    *(LaminaError, LookupError, TypeError, ValueError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError, NotImplementedError),
)


@contextmanager
def _rebuilding(kind: str, number: int, entry: Json, named_by: str) -> Generator[None]:
    """Errors inside say which part of the network it was."""
    name = cast(dict[str, Any], entry).get(named_by, "") if isinstance(entry, dict) else ""
    what = f"{kind} {number} of its network" + (f", {reprlib.repr(name)}," if name else "")
    try:
        yield
    except FileFormatError:
        raise
    except LaminaError as error:
        problem = f"{what} cannot be rebuilt: {error.problem}"
        raise FileFormatError(problem, facts=error.facts, advice=ADVICE) from error
    except NONSENSE as error:
        facts = (("found", f"{type(error).__name__}: {error}"),)
        raise FileFormatError(f"{what} cannot be rebuilt", facts=facts, advice=ADVICE) from error


ADVICE = "Save the model again; the file was changed, or cut short on its way."


def _earlier(made: Sequence[Any], number: object) -> Any:
    place = _whole(number)
    if not 0 <= place < len(made):
        raise IndexError(f"there is no number {place} among the {len(made)} before it")
    return made[place]


def _whole(value: object) -> int:
    found = as_whole(value)
    if found is None:
        raise ValueError(f"a whole number is needed, and there is {reprlib.repr(value)}")
    return found


def _table(data: Json) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"a table of names is needed, and there is {reprlib.repr(data)}")
    return cast(dict[str, Any], data)


def _list(table: Mapping[str, Any], name: str) -> list[Any]:
    data = table[name]
    if not isinstance(data, list):
        raise ValueError(f"{name} is a list, and there is {reprlib.repr(data)}")
    return cast(list[Any], data)
