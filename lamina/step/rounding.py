"""Which tensors are rounded: to floats of 16 bits in mixed precision, or operands to TF32.

In mixed precision, parameters, states of optimizers and layers, and all arithmetic are float32. Two
passes insert `ops.rounded`, and the compiler stores in 16 bits what is only used rounded:

1. `with_rounded_activations`, before differentiation: results of layers that follow from products
   are rounded, and therefore their gradients too.
2. `with_rounded_products`, after differentiation: the operands of all products are rounded,
   forwards and backwards. Sums of products are float32.

Devices without instructions for these floats multiply in float32. There parameters and inputs,
which are stored in float32, are multiplied as they are.

Devices with tensor cores for TF32 multiply numbers of 11 bits of precision exactly, and add up the
products in float32. `with_tf32_products` rounds the operands of all products, forwards and
backwards. A contraction reads a rounded operand through its view, so no rounded tensor is stored.

After Micikevicius, Narang, Alben, Diamos, Elsen, Garcia, Ginsburg, Houston, Kuchaiev, Venkatesh,
Wu: Mixed precision training (2018).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, final

from lamina import ops
from lamina.base.shapes import DType, Size, float32
from lamina.graph import (
    CONSTANT,
    LEAF,
    Graph,
    Tensor,
    leaf,
    reached_all,
    reached_ends,
    rebuild,
    rewrite,
    topological,
    users_of,
)
from lamina.layers.tracing import Trace
from lamina.ops.conversion import CAST, RECOMPUTED, ROUNDED
from lamina.ops.convolution import CONV_WEIGHT_GRADIENT
from lamina.ops.convolution_layouts import Axes
from lamina.ops.differentiate import COMPUTED_AGAIN
from lamina.ops.lowering_rules import Elementwise, Generator, Movement, Repeating, read_operands


class _Origin(Enum):
    """What a float tensor follows from."""

    NUMBERS = auto()  # parameters, constants, random numbers; all that does not grow with the batch
    PRODUCT = auto()
    DATA = auto()  # data, or rows of parameters, without products; or ops that keep float32


def with_rounded_activations(trace: Trace, half: DType) -> Trace:
    """The trace in which activations are rounded: results of layers that follow from products.

    Not rounded are the results of the network, tensors that do not grow with the batch, and results
    that need not be stored: a product that one elementwise op uses, and elementwise functions of
    rounded tensors that only elementwise ops use.
    """
    changed = tuple(trace.record.updates.items())
    results = tuple((str(n), tensor) for n, tensor in enumerate(trace.outputs))
    penalties = tuple((f"penalty{n}", x) for n, x in enumerate(trace.record.penalties))
    graph = Graph(trace.inputs, (*results, *changed, *penalties))
    chosen = _chosen(graph, trace)

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        node, new = rebuild(node, operands), node
        return ops.rounded(node, half) if new in chosen else node

    new = [tensor for _, tensor in rewrite(graph, rule).outputs]
    outputs, rest = tuple(new[: len(results)]), new[len(results) :]
    updates = dict(zip(trace.record.updates, rest, strict=False))
    record = replace(trace.record, updates=updates, penalties=rest[len(changed) :], activations=[])
    return Trace(trace.inputs, outputs, record)


def _chosen(graph: Graph, trace: Trace) -> set[Tensor]:
    """The tensors that are rounded: the same ones if a gradient computes tensors again."""
    new: dict[Tensor, Tensor] = {}

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        new[node] = operands[0] if node.op is COMPUTED_AGAIN else rebuild(node, operands)
        return new[node]

    plain = rewrite(graph, rule)
    candidates = {new.get(x, x) for x in trace.record.activations}
    for node in plain.nodes():
        if isinstance(node.op.lowering, Repeating):
            # The sequences of recurrences hold what layers compute before their loops.
            varying = node.operands[node.attributes["states"] :]
            candidates |= {*varying[: node.attributes["sequences"]]}
    activations = _activations(plain, candidates - {new[x] for x in trace.outputs})
    return {x for x in new if new[x] in activations and x.op is not COMPUTED_AGAIN}


def _activations(graph: Graph, candidates: set[Tensor]) -> set[Tensor]:
    """The candidates that are rounded: made from products, needed later, and large."""
    nodes = graph.nodes()
    users, uses = users_of(nodes), Counter(x for node in nodes for x in node.operands)
    origins: dict[Tensor, _Origin] = {}
    for node in nodes:
        if node.dtype == float32:
            origins[node] = _origin(node, [origins[x] for x in node.operands if x in origins])
    activations: set[Tensor] = set()
    # Tensors that are computed from a product, element by element, and from no rounded tensor.
    fresh: set[Tensor] = set()
    for node in nodes:
        is_fresh = node.op.multiplies or (
            isinstance(node.op.lowering, Elementwise | Movement)
            and any(x in fresh for x in node.operands)
        )
        others = [x for x in users[node] if not isinstance(x.op.lowering, Elementwise)]
        needed = others or (is_fresh and uses[node] > 1)
        if node in candidates and origins.get(node) is _Origin.PRODUCT and needed and _grows(node):
            activations.add(node)
        elif is_fresh:
            fresh.add(node)
    return activations


def _grows(node: Tensor) -> bool:
    """Whether the tensor grows with the batch."""
    return any(isinstance(dim, Size) for dim in node.shape)


def _origin(node: Tensor, operands: list[_Origin]) -> _Origin:
    if node.op is LEAF:
        is_data = node.attributes["role"] == "input"
        return _Origin.DATA if is_data else _Origin.NUMBERS
    if node.op is CONSTANT or isinstance(node.op.lowering, Generator) or not _grows(node):
        return _Origin.NUMBERS
    if node.op.multiplies or isinstance(node.op.lowering, Repeating):
        return _Origin.PRODUCT
    if node.op is CAST:
        return _Origin.DATA if node.operands[0].dtype.kind == "int" else _Origin.NUMBERS
    if all(origin is _Origin.NUMBERS for origin in operands):
        return _Origin.DATA if node.op.indices is not None else _Origin.NUMBERS
    if _Origin.DATA in operands or node.op.keeps_float32:
        return _Origin.DATA
    return _Origin.PRODUCT


def with_rounded_products(graph: Graph, half: DType, *, leaves: bool = True) -> Graph:
    """The graph in which the operands of products are rounded.

    A computed operand is rounded for all of its users, so that it is stored once. An output of the
    graph is not rounded, unless it is made of the states of a recurrence. With `leaves`, a
    parameter or an input is rounded where it is multiplied. Only float32 is rounded.
    """
    return _Products(half, leaves).rounded_graph(graph, keep_outputs=True)


def with_tf32_products(graph: Graph) -> Graph:
    """The graph in which the operands of products of float32 are rounded to TF32.

    They are rounded where they are multiplied; other ops get them in float32. Depthwise
    convolutions are not rounded: no device multiplies these with tensor cores.
    """
    # All results of a recurrence share the graph of an iteration.
    bodies: dict[Graph, Graph] = {}

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        if isinstance(node.op.lowering, Repeating):
            body: Graph = node.attributes["body"]
            if body not in bodies:
                bodies[body] = rewrite(body, rule)
            return rebuild(node, operands, body=bodies[body])
        is_rounded = bool(_multiplied(node))
        if is_rounded and "groups" in node.attributes:
            weight = node if node.op is CONV_WEIGHT_GRADIENT else node.operands[1]
            is_rounded = not Axes(weight.shape, node.attributes).is_depthwise
        if not is_rounded:
            return rebuild(node, operands)
        if "tf32" in node.op.attributes:
            # Its products are inside.
            return rebuild(node, operands, tf32=True)
        return rebuild(node, tuple(map(ops.round_to_tf32, operands)))

    return rewrite(graph, rule)


@final
class _Products:
    """Rounds the operands of products, also in the iterations of recurrences."""

    def __init__(self, half: DType, leaves: bool) -> None:
        self._half = half
        self._leaves = leaves
        # Rounded graphs of iterations, by the graphs and their computed inputs.
        self._bodies: dict[tuple[Graph, frozenset[Tensor]], Graph] = {}
        # Graphs with inputs and results of 16 bits, by the rounded ones and their rounded inputs.
        self._narrow: dict[tuple[Graph, tuple[bool, ...]], Graph] = {}
        self._casts: dict[Tensor, Tensor] = {}

    def rounded_graph(
        self, graph: Graph, *, keep_outputs: bool = False, computed: frozenset[Tensor] = frozenset()
    ) -> Graph:
        """The graph with rounded operands; `computed` are leaves that are computed outside."""
        nodes = graph.nodes()
        chosen = {
            source
            for node in nodes
            # If a gradient uses a tensor that is rounded later on, it uses the rounded one, so that
            # the tensor is stored once.
            for operand in (node.operands if self._is_rounded(node) else _multiplied(node))
            for source in _sources(operand)
            if _leaf_of(source) is None and not self._is_rounded(source)
        }
        chosen |= _computed_again(nodes, chosen)
        redundant = self._rounded_later(graph, chosen)
        chosen -= redundant

        def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
            if self._is_rounded(node):
                # It is rounded already, or will be later.
                done = node in redundant or self._is_rounded(operands[0])
                return operands[0] if done else rebuild(node, operands)
            if isinstance(node.op.lowering, Repeating):
                return self._repeated(node, operands, computed)
            changed: dict[str, Any] = {}
            if "products" in node.op.attributes and node.dtype == float32:
                changed["products"] = self._half
            new = rebuild(node, operands, **changed)
            multiplied = _multiplied(new)
            if multiplied:
                beginning = tuple(self._with_rounded_leaves(x, computed) for x in multiplied)
                new = rebuild(new, (*beginning, *new.operands[len(beginning) :]))
            if node not in chosen:
                return new
            narrow = ops.rounded(new, self._half)
            wide[narrow] = new
            return narrow

        wide: dict[Tensor, Tensor] = {}
        new_graph = rewrite(graph, rule)
        if not keep_outputs:
            return new_graph
        outputs: list[tuple[str, Tensor]] = []
        for name, tensor in new_graph.outputs:
            sources = _sources(tensor)
            widened = {source: wide.get(source, source) for source in sources}
            is_changed = any(source is not new for source, new in widened.items())
            outputs.append((name, _moved_again(tensor, sources, widened) if is_changed else tensor))
        return replace(new_graph, outputs=tuple(outputs))

    def _is_rounded(self, node: Tensor) -> bool:
        return node.op is ROUNDED and node.attributes["to"] == self._half

    def _rounded_later(self, graph: Graph, chosen: set[Tensor]) -> set[Tensor]:
        """The rounded tensors that need not be, as all tensors that use them are rounded."""
        # The results of ops that select elements are the same if their operands are rounded before.
        nodes, roots = graph.nodes(), set(graph.roots)
        users = users_of(nodes)
        redundant: set[Tensor] = set()
        for node in reversed(nodes):
            if node in roots or not (self._is_rounded(node) or node in chosen):
                continue
            above = users[node]
            if above and all(
                user.op.selects and (user in chosen or self._is_rounded(user)) for user in above
            ):
                redundant.add(node)
        return redundant

    # Recurrences

    def _repeated(
        self, node: Tensor, operands: tuple[Tensor, ...], computed: frozenset[Tensor]
    ) -> Tensor:
        """A result of a recurrence; its sequences and results are stored in 16 bits if they can."""
        # The graph of an iteration gets and returns floats of 16 bits instead of rounded ones.
        body: Graph = node.attributes["body"]
        states: int = node.attributes["states"]
        varying = states + node.attributes["sequences"]
        varying_leaves = frozenset(
            leaf_
            for number, (leaf_, operand) in enumerate(zip(body.inputs, node.operands, strict=True))
            if number < varying or _is_computed(operand, computed)
        )
        if (body, varying_leaves) not in self._bodies:
            self._bodies[body, varying_leaves] = self.rounded_graph(body, computed=varying_leaves)
        iteration = self._bodies[body, varying_leaves]
        are_narrow = tuple(
            number >= states and operand.dtype == float32 and self._has_rounded_elements(operand)
            for number, operand in enumerate(operands)
        )
        if (iteration, are_narrow) not in self._narrow:
            self._narrow[iteration, are_narrow] = self._narrowed(iteration, states, are_narrow)
        narrow = self._narrow[iteration, are_narrow]
        new = tuple(
            self._cast(operand) if x.dtype == self._half and operand.dtype == float32 else operand
            for operand, x in zip(operands, narrow.inputs, strict=True)
        )
        return ops.cast(rebuild(node, new, body=narrow), node.dtype)

    def _cast(self, operand: Tensor) -> Tensor:
        """A tensor as floats of 16 bits, moved after they are cast."""
        sources = _sources(operand)
        for source in sources - self._casts.keys():
            is_cast = _is_cast_from(source, self._half)
            wide = source.operands[0] if is_cast or self._is_rounded(source) else source
            self._casts[source] = wide if is_cast else ops.cast(wide, self._half)
        return _moved_again(operand, sources, self._casts)

    def _has_rounded_elements(self, tensor: Tensor) -> bool:
        """Whether the elements come from rounded tensors or are casts of floats of 16 bits."""
        return all(
            self._is_rounded(source) or _is_cast_from(source, self._half)
            for source in _sources(tensor)
        )

    def _narrowed(self, body: Graph, states: int, are_narrow: tuple[bool, ...]) -> Graph:
        """The graph of an iteration with inputs and results of 16 bits.

        A state has 16 bits if all that an iteration does with it is to multiply it, another input
        where `are_narrow` says so, and a further result if its elements are rounded.
        """
        users = users_of(body.nodes())
        results = [tensor for _, tensor in body.outputs]
        narrow = list(are_narrow)
        for number, state in enumerate(body.inputs[:states]):
            used = users[state]
            only_multiplied = used and all(map(self._is_rounded, used)) and state not in results
            narrow[number] = bool(only_multiplied) and state.dtype == float32
        replaced: dict[Tensor, Tensor] = {}
        inputs: list[Tensor] = []
        for leaf_, is_narrow in zip(body.inputs, narrow, strict=True):
            name = leaf_.attributes["name"]
            new = leaf(name, "input", leaf_.shape, self._half) if is_narrow else leaf_
            inputs.append(new)
            replaced[leaf_] = ops.cast(new, leaf_.dtype)

        def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
            return replaced[node] if node in replaced else rebuild(node, operands)

        # The leaves that are replaced are no inputs while the graph is rewritten.
        inner = rewrite(Graph((), body.outputs), rule)
        outputs = tuple(
            (name, ops.cast(tensor, self._half))
            if (narrow[number] if number < states else self._has_rounded_elements(result))
            else (name, tensor)
            for number, ((name, tensor), result) in enumerate(
                zip(inner.outputs, results, strict=True)
            )
        )
        return Graph(tuple(inputs), outputs)

    def _with_rounded_leaves(self, operand: Tensor, computed: frozenset[Tensor]) -> Tensor:
        """An operand in which leaves below movements are rounded, if they are to be."""
        # Leaves are rounded with the computed elements next to which they are stored.
        if not (self._leaves or _is_computed(operand, computed)):
            return operand
        sources = _sources(operand)
        replaced = {
            source: source if _leaf_of(source) is None else ops.rounded(source, self._half)
            for source in sources
        }
        return _moved_again(operand, sources, replaced)


def _computed_again(nodes: Sequence[Tensor], chosen: set[Tensor]) -> set[Tensor]:
    """The tensors that a gradient computes again in place of chosen ones."""
    # If the tensors that are computed again are rounded too, `Recompute` changes no number.
    if not any(node.op is COMPUTED_AGAIN for node in nodes):
        return set()
    unchanged = RECOMPUTED, COMPUTED_AGAIN
    # Tensors of equal numbers have equal values.
    numbers: dict[object, int] = {}
    number_of: dict[Tensor, int] = {}
    for node in nodes:
        if node.op in unchanged:
            number_of[node] = number_of[node.operands[0]]
            continue
        attributes = tuple(sorted(node.attributes.items()))
        key = node.op, attributes, *(number_of[x] for x in node.operands)
        number_of[node] = numbers.setdefault(key, len(numbers))
    chosen_numbers = {number_of[node] for node in chosen}
    return {x for x in nodes if number_of[x] in chosen_numbers and x.op not in unchanged}


def _leaf_of(node: Tensor) -> Tensor | None:
    """The leaf or constant that a tensor is, or is cast from; None if it is computed."""
    while node.op is CAST:
        (node,) = node.operands
    return node if node.op in (LEAF, CONSTANT) else None


def _is_computed(operand: Tensor, computed: frozenset[Tensor]) -> bool:
    """Whether some elements of an operand are computed, here or in a leaf of `computed`."""
    leaves = [_leaf_of(source) for source in _sources(operand)]
    return any(origin is None or origin in computed for origin in leaves)


def _is_cast_from(node: Tensor, half: DType) -> bool:
    return node.op is CAST and node.operands[0].dtype == half


def _multiplied(node: Tensor) -> tuple[Tensor, ...]:
    """The operands of a node that are multiplied, in float32."""
    return node.operands[: node.op.multiplies] if node.dtype == float32 else ()


def _moved_again(tensor: Tensor, sources: set[Tensor], replaced: dict[Tensor, Tensor]) -> Tensor:
    """A tensor whose sources are replaced by those known; each new tensor becomes known."""
    # Tensors for which a movement only waits, without reading them, stay as they are.
    moved = reached_all([tensor], lambda x: () if x in sources else read_operands(x))
    awaited = {x for node in moved - sources for x in node.operands} - moved
    for node in topological([tensor], [*sources, *awaited]):
        if node not in replaced:
            operands = tuple(replaced.get(x, x) for x in node.operands)
            replaced[node] = node if node in awaited else rebuild(node, operands)
    return replaced[tensor]


def _sources(operand: Tensor) -> set[Tensor]:
    """The tensors whose elements an operand has, below movements."""

    def is_end(node: Tensor) -> bool:
        floats = [x.dtype.is_float for x in read_operands(node)]
        return not (isinstance(node.op.lowering, Movement) and all(floats))

    return reached_ends([operand], is_end, read_operands)
