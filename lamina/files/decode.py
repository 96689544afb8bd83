"""A network from plain data; runs no code from the file.

Names are looked up among Lamina's own classes and the classes that the caller passes. Layers and
ops are built through the same checks as in a user's program.
"""

from __future__ import annotations

import reprlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast, final

import numpy as np

from lamina.base.shapes import Array, Size, as_dtype, as_whole
from lamina.errors import FileFormatError, LaminaError
from lamina.files.encode import USER_PREFIX, own_classes
from lamina.graph import OPS, ConstantValue, Graph, Tensor, apply
from lamina.layers.gradients import GRADIENT
from lamina.layers.layer import RESULT, Input, Layer, apply_layer, results_of
from lamina.network import Network

Json = Any


def decode(definition: Json, arrays: Mapping[str, Array], user_layers: Sequence[type]) -> Network:
    """The network that `encode` wrote, from its constants and a caller's own classes of records.

    Data that are no network raise any of NONSENSE, which the caller makes a FileFormatError.
    """
    return _Decoder(arrays, user_layers).network(_table(definition))


@final
class _Decoder:
    """Decodes one network: first the graphs in attributes, then its layers, then its tensors."""

    def __init__(self, arrays: Mapping[str, Array], user_layers: Sequence[type]) -> None:
        self._arrays = arrays
        self._user_layer_names = [cls.__name__ for cls in user_layers]
        self._classes = own_classes() | {USER_PREFIX + cls.__name__: cls for cls in user_layers}
        self._layers: list[Any] = []
        self._graphs: list[Graph] = []

    def network(self, definition: Mapping[str, Any]) -> Network:
        """The network of a definition, after its graphs and layers."""
        # The key is missing in files of networks without graphs.
        for number, entry in enumerate(_list({"graphs": [], **definition}, "graphs")):
            with _rebuilding("graph", number, entry, ""):
                self._graphs.append(self._graph(_table(entry)))
        for number, entry in enumerate(_list(definition, "layers")):
            with _rebuilding("layer", number, entry, "record"):
                self._layers.append(self._record(_table(entry)))
        return self._network(definition)

    def _network(self, definition: Mapping[str, Any]) -> Network:
        nodes: list[Tensor] = []
        for number, entry in enumerate(_list(definition, "nodes")):
            with _rebuilding("node", number, entry, "op"):
                nodes.append(self._node(_table(entry), nodes))
        outputs = [_earlier(nodes, number) for number in _list(definition, "outputs")]
        inputs = [_earlier(nodes, number) for number in _list(definition, "inputs")]
        name = definition.get("name")
        if "output_names" not in definition:
            return Network(inputs, outputs, name=name)
        names = _list(definition, "output_names")
        return Network(inputs, dict(zip(names, outputs, strict=True)), name=name)

    def _graph(self, table: Mapping[str, Any]) -> Graph:
        made: list[Tensor] = []
        for inner in _list(table, "nodes"):
            made.append(self._application(_table(inner), made))
        inputs = tuple(_earlier(made, number) for number in _list(table, "inputs"))
        outputs = tuple((str(name), _earlier(made, n)) for name, n in _list(table, "outputs"))
        return Graph(inputs, outputs)

    def _node(self, entry: Mapping[str, Any], made: Sequence[Tensor]) -> Tensor:
        if "input" in entry:
            return Input(*_list(entry, "input"), dtype=entry["dtype"], name=entry.get("name"))
        if "result" in entry:
            return apply(RESULT, _earlier(made, entry["of"]), number=entry["result"])
        if "gradient" in entry:
            operands = [_earlier(made, number) for number in _list(entry, "operands")]
            attributes = {"number": entry["gradient"], "seeded": entry["seeded"]}
            return apply(GRADIENT, *operands, **attributes)
        if "layer" not in entry:
            return self._application(entry, made)
        layer = _earlier(self._layers, entry["layer"])
        if not isinstance(layer, Layer):
            raise ValueError(f"{type(layer).__name__} is not a layer")
        operands = tuple(_earlier(made, number) for number in _list(entry, "operands"))
        return results_of(apply_layer(layer, operands, entry.get("name")))[0]

    def _application(self, entry: Mapping[str, Any], made: Sequence[Tensor]) -> Tensor:
        operands = [_earlier(made, number) for number in _list(entry, "operands")]
        attributes = {k: self._value(v) for k, v in _table(entry["attributes"]).items()}
        op = OPS.own(entry["op"])
        if op is None:
            raise FileFormatError(
                f"the network contains an unknown op, {reprlib.repr(entry['op'])}",
                advice="The file may be from a later version of Lamina.",
            )
        return apply(op, *operands, **attributes)

    def _record(self, table: Mapping[str, Any], depth: int = 0) -> Any:
        if "record" not in table:
            raise ValueError(f"a value has an unknown kind: {reprlib.repr(dict(table))}")
        name = table["record"]
        if name not in self._classes:
            shown = str(name).removeprefix(USER_PREFIX)
            raise FileFormatError(
                f"the network contains a {shown}, which is not a layer of Lamina",
                facts=(("layers given", ", ".join(self._user_layer_names) or "none"),),
                advice=f"If it is your own, pass its class: lm.load(path, layers=[{shown}]).",
            )
        fields = _table(table["fields"])
        return self._classes[name](**{k: self._value(v, depth + 1) for k, v in fields.items()})

    def _value(self, data: Json, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"a value is nested more than {_DEEPEST} levels deep")
        if isinstance(data, list):
            raise ValueError("a list without a kind")
        if not isinstance(data, dict):
            return data
        table = cast(dict[str, Any], data)
        if "tuple" in table:
            return tuple(self._value(item, depth + 1) for item in _list(table, "tuple"))
        if "list" in table:
            return [self._value(item, depth + 1) for item in _list(table, "list")]
        if "number" in table:
            exact = float(self._value(table["number"], depth + 1))
            return ConstantValue(np.asarray(exact, as_dtype(str(table["dtype"])).numpy), exact)
        if "float" in table:
            return float(table["float"])
        if "dtype" in table:
            return as_dtype(str(table["dtype"]))
        if "size" in table:
            coefficient, offset = map(_whole, _list(table, "size"))
            return Size(coefficient, offset)
        if "array" in table:
            if table["array"] not in self._arrays:
                raise ValueError(f"there is no array {reprlib.repr(table['array'])}")
            return ConstantValue(self._arrays[table["array"]])
        if "layer" in table:
            return _earlier(self._layers, table["layer"])
        if "graph" in table:
            return _earlier(self._graphs, table["graph"])
        if "network" in table:
            return self._network(_table(table["network"]))
        return self._record(table, depth)


# The deepest nesting of records that is read.
_DEEPEST = 32
# Exceptions that building records from invalid data may raise, in layers of users too.
NONSENSE = (
    *(LaminaError, LookupError, TypeError, ValueError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError, NotImplementedError),
)


@contextmanager
def _rebuilding(kind: str, number: int, entry: Json, named_by: str) -> Generator[None]:
    """Names the layer, graph or node in errors that are raised inside."""
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


ADVICE = "Save the model again; the file was changed or truncated."


def _earlier(made: Sequence[Any], number: object) -> Any:
    index = _whole(number)
    if not 0 <= index < len(made):
        raise IndexError(f"it refers to number {index}, but only {len(made)} come before it")
    return made[index]


def _whole(value: object) -> int:
    number = as_whole(value)
    if number is None:
        raise ValueError(f"expected a whole number, found {reprlib.repr(value)}")
    return number


def _table(data: Json) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"expected a table of names, found {reprlib.repr(data)}")
    return cast(dict[str, Any], data)


def _list(table: Mapping[str, Any], name: str) -> list[Any]:
    data = table[name]
    if not isinstance(data, list):
        raise ValueError(f"expected a list for {name!r}, found {reprlib.repr(data)}")
    return cast(list[Any], data)
