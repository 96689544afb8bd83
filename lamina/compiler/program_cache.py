"""The program cache: programs that one process has compiled are read from disk by later ones.

The key of an entry is made of the graph, the batch size, the program's name, the target, Lamina's
sources and NumPy's version. The entry is the encoded program. Reading it runs no code, and an entry
that cannot be read is compiled again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, cast, final
from weakref import WeakValueDictionary

import numpy as np

from lamina.base.cache import Sources, find, folder, keep, key_of
from lamina.base.garbage import without_collections
from lamina.base.remembered import remembered
from lamina.base.shapes import DType, Size
from lamina.base.shielded import loaded
from lamina.errors import FileFormatError
from lamina.graph import OPS, ConstantValue, Graph, Tensor
from lamina.program.encoding import decode, encode
from lamina.program.program import Program
from lamina.program.target import Target

SOURCES = Sources(
    *("lamina.base", "lamina.checks", "lamina.graph", "lamina.ops", "lamina.compiler"),
    *("lamina.compiler.fusion", "lamina.compiler.lowering", "lamina.program"),
)


def passes() -> Callable[..., Program]:
    """`compile_graph`, which is imported only when it is used: cached programs need no passes."""

    def load() -> Callable[..., Program]:
        from lamina.compiler.pipeline import compile_graph

        return compile_graph

    return loaded(load)


@remembered()
@without_collections
def compile_cached(graph: Graph, *, batch: int, name: str, target: Target) -> Program:
    """The program of `compile_graph`, read from the cache if it was compiled before."""

    def compiled() -> Program:
        return passes()(graph, batch=batch, name=name, target=target)

    checksum = graph_checksum(graph) if SOURCES.checksum and folder() is not None else None
    if checksum is None:
        return compiled()
    versions = SOURCES.checksum, np.__version__
    key = key_of(("program", checksum, str(batch), name, target.key, *versions))
    program = _alive.get(key) or _read(key)
    if program is None:
        program = compiled()
        if SOURCES.are_unchanged:
            keep(key, encode(program))
    _alive[key] = program
    return program


# Programs that somebody holds, by their keys: equal networks share them.
_alive: WeakValueDictionary[str, Program] = WeakValueDictionary()


def _read(key: str) -> Program | None:
    """The program in the cache; None if there is none that can be read."""
    encoded = find(key)
    try:
        return None if encoded is None else decode(encoded)
    except FileFormatError:
        return None


def graph_checksum(graph: Graph) -> str | None:
    """A checksum of all that decides a graph's program; None if an op is defined outside Lamina."""
    try:
        rows = _Rows()
        rows.graph(graph)
        return hashlib.sha256(json.dumps(rows.rows).encode()).hexdigest()
    except _NoDescriptionError:
        return None


class _NoDescriptionError(Exception):
    """A graph has an op or attribute that may differ between processes."""


@final
class _Rows:
    """Tensors and graphs as rows of numbers and texts.

    Rows refer to tensors, and to graphs among their attributes, by number. So two equal tensors
    differ from one tensor that is used twice.
    """

    def __init__(self) -> None:
        self.rows: list[object] = []
        self._tensors: dict[Tensor, int] = {}
        self._graphs: dict[int, int] = {}

    def graph(self, graph: Graph) -> int:
        """The number of a graph. Its rows are added at the first call."""
        if id(graph) not in self._graphs:
            self._graphs[id(graph)] = len(self._graphs)
            for node in graph.nodes():
                if node not in self._tensors:
                    self._tensors[node] = len(self._tensors)
                    self.rows.append(self._row(node))
            numbers = self._tensors
            inputs = [numbers[tensor] for tensor in graph.inputs]
            outputs = [(name, numbers[tensor]) for name, tensor in graph.outputs]
            updates = [(numbers[leaf], numbers[tensor]) for leaf, tensor in graph.updates]
            self.rows.append((inputs, outputs, updates))
        return self._graphs[id(graph)]

    def _row(self, node: Tensor) -> object:
        if OPS.own(node.op.name) is not node.op:
            raise _NoDescriptionError
        attributes = [(name, self._value(v)) for name, v in sorted(node.attributes.items())]
        operands = [self._tensors[operand] for operand in node.operands]
        # Buffers and steps are named after the layers that made their tensors.
        named = (node.op.name, node.origin.path)
        return *named, operands, attributes, self._value(node.shape), node.dtype.name

    def _value(self, value: Any) -> object:
        """The description of an attribute, which distinguishes equal values of several types."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tuple):
            items = cast(tuple[Any, ...], value)
            return type(items).__name__, *(self._value(item) for item in items)
        if isinstance(value, Size):
            return "Size", value.coefficient, value.offset
        if isinstance(value, DType):
            return "DType", value.name
        if isinstance(value, ConstantValue):
            array = value.array
            content = hashlib.sha256(array.tobytes()).hexdigest()
            return "constant", array.dtype.str, array.shape, content, value.exact
        if isinstance(value, Graph):
            return "graph", self.graph(value)
        raise _NoDescriptionError
