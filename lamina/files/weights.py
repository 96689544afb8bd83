"""Weights of other networks, of PyTorch for example: which array belongs to which parameter.

Layers are paired with modules by name where both have one, otherwise in order. Numbers are not
names: Lamina counts all tensors of a network, PyTorch the modules of a sequence. Lamina's layers
name and lay out their parameters as PyTorch's modules do, with the exceptions in this file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Annotated, Any, cast, final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, float32, float64, shape_text, static
from lamina.checks.kinds import Kind, Misfit, Operands, ReadBy, Row, Text
from lamina.data.conversion import convert
from lamina.errors import DefinitionError, ShapeError
from lamina.files.encode import own_classes
from lamina.layers.definition_names import (
    after_numbers,
    before_numbers,
    common_modules,
    in_order_of_numbers,
    order_of_numbers,
)
from lamina.layers.scope import Record, Variable
from lamina.network import Network
from lamina.reports import table_text

# Counts training steps; layers without momentum need it.
_COUNTER = "num_batches_tracked"
# The names of inner layers and states in PyTorch's modules.
_INNER: dict[str, dict[str, str]] = {
    "TransformerEncoderBlock": {
        "attention": "self_attn",
        "attention_norm": "norm1",
        "hidden": "linear1",
        "output": "linear2",
        "feedforward_norm": "norm2",
    },
    "TransformerDecoderBlock": {
        "attention": "self_attn",
        "attention_norm": "norm1",
        "memory_attention": "multihead_attn",
        "memory_attention_norm": "norm2",
        "hidden": "linear1",
        "output": "linear2",
        "feedforward_norm": "norm3",
    },
    "MultiHeadAttention": {"output": "out_proj"},
    "BatchNorm": {"running_variance": "running_var", "batches": _COUNTER},
    "InstanceNorm": {"running_variance": "running_var"},
}
# PyTorch keeps the weights of queries, keys and values in one array, thirds of its rows; where
# their inputs differ in size, in three.
_THIRDS = {"queries": (0, "q_proj"), "keys": (1, "k_proj"), "values": (2, "v_proj")}


class StateDict(Kind):
    """Arrays by name."""

    def read(self, value: Any, operands: Operands = ()) -> Any:
        advice = ""
        if isinstance(value, Mapping):
            table = cast(Mapping[Any, Any], value)
            unnamed = [key for key in table if not isinstance(key, str)]
            if unnamed:
                advice = "Make keys text: {str(key): array}."
                raise Misfit(*_ARRAYS, advice=advice, value_text=f"the key {unnamed[0]!r}")
            if not (advice := _advice_on_tables(table)):
                return table
            kinds = _some(f"{name!r}: {type(entry).__name__}" for name, entry in table.items())
            raise Misfit(*_ARRAYS, advice=advice, value_text=f"{{{kinds}}}")
        if hasattr(value, "state_dict"):
            advice = "Give its weights: module.state_dict()."
        elif isinstance(value, str | os.PathLike):
            advice = "Read it first: torch.load(path, weights_only=True)."
        raise Misfit(*_ARRAYS, advice=advice)


_ARRAYS = ("arrays by name", "{'0.weight': array, ...}")


def _advice_on_tables(weights: Mapping[Any, Any]) -> str:
    """The advice for a table that has tables of arrays as entries; "" if it has none."""
    tables = [
        name
        for name, value in weights.items()
        if isinstance(value, Mapping)
        and value
        and all(hasattr(entry, "shape") for entry in cast(Mapping[Any, Any], value).values())
    ]
    if not tables:
        return ""
    if len(tables) == len(weights) > 1:
        return "Join the names of nested tables: {'dense.kernel': array}."
    return f"The arrays are one of its entries: give state_dict[{tables[0]!r}]."


def _text_table(value: Any) -> Any:
    table = cast(Mapping[object, object], value) if isinstance(value, Mapping) else {0: 0}
    if all(isinstance(text, str) for pair in table.items() for text in pair):
        return table
    raise Misfit("names of modules by names of layers", "{name}={'3': 'features.3'}")


NamedArrays = Annotated[Mapping[str, Any], StateDict()]
Names = Annotated[Mapping[str, str], ReadBy(_text_table)]
Patterns = Annotated[Sequence[str], Row(Text(), example="['fc.*']")]


@frozen_dataclass
class Pair:
    """A parameter or state of a network, and its array: all rows, or a third (0, 1, 2) of them."""

    name: str
    source: str
    third: int | None = None


@final
@frozen_dataclass
class Pairing:
    """Which parameters and states of a network take which arrays; `print` shows it.

    Attributes:
        pairs: the pairs in the order of the layers.
        kept: parameters and states that keep their values.
        unused: arrays that are not needed.
        values: the arrays by the names of the parameters.
    """

    pairs: tuple[Pair, ...]
    kept: tuple[str, ...]
    unused: tuple[str, ...]
    values: Mapping[str, Array]

    def __str__(self) -> str:
        rows = [
            (
                pair.name,
                pair.source + ("" if pair.third is None else f", third {pair.third + 1}"),
                shape_text(self.values[pair.name].shape),
            )
            for pair in self.pairs
        ]
        rows += [(name, "keeps its value", "") for name in self.kept]
        rows += [("not needed", name, "") for name in self.unused]
        return table_text(("parameter", "from", "shape"), rows)


def pair_by_name(network: Network, arrays: NamedArrays, skip: Patterns) -> Pairing:
    """Pairs parameters and states with the arrays of the same names; the others are listed."""
    record = network.variables(float32)
    variables = {v.name: v for v in (*record.parameters.values(), *record.states.values())}
    _require_matches(skip, list(variables), arrays, "load_parameters")
    names = [name for name in variables if name in arrays and not _fits(name, skip)]
    values = {name: _array(arrays[name], name) for name in names}
    wrong = [n for n in names if values[n].shape != static(variables[n].tensor.shape)]
    advice = f"To keep their values: skip={[*skip, *dict.fromkeys(map(_whole_module, wrong))]}."
    for name, value in values.items():
        _require_shape(variables[name], name, value, advice)
    # The first tensor of a network is an input, and has no parameters.
    foreign = any(name.startswith("0.") and not _fits(name, skip) for name in arrays)
    if foreign or not values:
        other = "the arrays are numbered otherwise than layers are here"
        raise DefinitionError(
            other if values else "no array has the name of a parameter",
            facts=(("expected", _some(variables)), ("found", _some(arrays))),
            where="load_parameters",
            advice="lm.from_torch pairs the arrays of PyTorch's modules, also in order.",
        )
    kept = tuple(name for name in variables if name not in values)
    unused = tuple(name for name in arrays if name not in values)
    return Pairing(tuple(Pair(name, name) for name in values), kept, unused, values)


def pair(network: Network, arrays: NamedArrays, names: Names, skip: Patterns) -> Pairing:
    """Pairs the parameters and states of a network with arrays, by name or in order.

    Args:
        arrays: PyTorch's `state_dict`, or any other arrays by name.
        names: the module of a layer, `{"3": "features.3"}`, or the array of a parameter,
            `{"3.weight": "pos"}`.
        skip: patterns of names in the network that keep their values, and of arrays that are not
            needed.
    """
    return _Pairing(network.variables(float32), arrays, names, skip).pairing()


@frozen_dataclass
class _Layer:
    """A layer with a module in PyTorch; each variable has its name there, and its third."""

    prefix: str
    variables: tuple[tuple[Variable, str, int | None], ...]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [static(variable.tensor.shape) for variable, *_ in self.variables]

    @property
    def suffixes(self) -> list[str]:
        """The names of its arrays in the module, also of queries, keys and values alone."""
        separate = (f"{name}_weight" for _, name in _THIRDS.values())
        return [*(suffix for _, suffix, _ in self.variables), *separate]


class _Pairing:
    """Pairs the layers of a network, one after the other."""

    def __init__(self, record: Record, arrays: NamedArrays, names: Names, skip: Patterns) -> None:
        self._arrays, self._names, self._skip = arrays, names, skip
        self._unused = [n for n in arrays if n.endswith(_COUNTER) or _fits(n, skip)]
        # The arrays that are not taken yet, in order.
        self._left = dict.fromkeys(in_order_of_numbers(arrays))
        for name in self._unused:
            del self._left[name]
        variables = (*record.parameters.values(), *record.states.values())
        _require_matches(skip, [variable.name for variable in variables], arrays, "from_torch")
        self._kept = [variable.name for variable in variables if _fits(variable.name, skip)]
        self._layers = _layers_of(record, [v for v in variables if v.name not in self._kept])
        self._around = common_modules(list(self._left), [layer.prefix for layer in self._layers])
        self._pairs: dict[str, Pair] = {}
        self._values: dict[str, Array] = {}
        # The layers without an entry in `names` and their modules, and the pairs that
        # were next in order.
        self._modules: list[tuple[_Layer, str]] = []
        self._next: list[tuple[_Layer, str]] = []

    def pairing(self) -> Pairing:
        """All pairs: first by name, then in order within each name, then the others in order."""
        self._require_known_names()
        layers = [self._without_named_arrays(layer) for layer in self._layers]
        for layer in layers:
            if layer.prefix in self._names:
                self._take(layer, self._names[layer.prefix])
        layers = [layer for layer in layers if layer.variables and layer.prefix not in self._names]
        groups: dict[str, list[_Layer]] = {}
        for layer in layers:
            groups.setdefault(before_numbers(layer.prefix), []).append(layer)
        for name, group in groups.items():
            # Numbers mean the same here and there if they find a module for each layer.
            if name and all(map(self._has_module, group)):
                for layer in group:
                    self._take(layer, self._around + layer.prefix)
        # In order: within the innermost names first; at last the layers without a name.
        innermost = sorted(filter(None, groups), key=lambda name: -name.count("."))
        for name in (*innermost, ""):
            within = f"{self._around}{name}." if name else ""
            for layer in groups[name] if name else layers:
                is_paired = layer.variables[0][0].name in self._pairs
                if not is_paired and (not name or any(x.startswith(within) for x in self._left)):
                    self._take(layer, self._next_module(layer, within))
        self._require_same_order()
        self._require_no_alphabet()
        if self._left:
            patterns = dict.fromkeys([*self._skip, *map(_whole_module, self._left)])
            paired = f"{len(self._pairs)} parameters and states"
            raise DefinitionError(
                "some arrays belong to no layer of the network",
                facts=(("paired", paired), ("left over", _some(self._left))),
                where="from_torch",
                advice="print(network) shows its layers. If it needs no more arrays, leave these "
                f"out: skip={list(patterns)}.",
            )
        pairs = tuple(self._pairs[v.name] for layer in self._layers for v, *_ in layer.variables)
        return Pairing(pairs, tuple(self._kept), tuple(self._unused), self._values)

    def _require_known_names(self) -> None:
        layers = [layer.prefix for layer in self._layers]
        variables = [v.name for layer in self._layers for v, *_ in layer.variables]
        first = next(iter(layers), "3")
        for name in self._names:
            if name not in layers and name not in variables:
                raise DefinitionError(
                    f"the network has no layer {name!r} with parameters, and no such parameter",
                    facts=(
                        ("layers", _some(layers)),
                        ("parameters", _some(variables)),
                        ("found", f"names={{{name!r}: {self._names[name]!r}}}"),
                    ),
                    where="names",
                    advice="Names in the network come first, for example "
                    f"names={{{first!r}: {self._names[name]!r}}}; print(network) shows them.",
                )

    def _without_named_arrays(self, layer: _Layer) -> _Layer:
        """Takes the arrays that are named for parameters; returns the layer without these."""
        for variable, *_ in layer.variables:
            if variable.name in self._names:
                self._take_array(layer, variable, self._names[variable.name], None)
        rest = (row for row in layer.variables if row[0].name not in self._names)
        return _Layer(layer.prefix, tuple(rest))

    def _has_module(self, layer: _Layer) -> bool:
        module = self._around + layer.prefix
        names = [f"{module}.{suffix}" for suffix in layer.suffixes]
        # A single parameter may be an `nn.Parameter` of PyTorch.
        return any(name in self._left for name in [*names, *[module] * (len(layer.variables) == 1)])

    def _next_module(self, layer: _Layer, within: str) -> str:
        """The module of the first array left; rather a module that ends with the layer's name."""
        # That name is what follows the last number of the prefix.
        left = [name for name in self._left if name.startswith(within)]
        words = after_numbers(layer.prefix)
        for module in (_module_of(layer, name) for name in left if words):
            if module is not None and f".{module}".endswith(f".{words}"):
                return module
        module = _module_of(layer, left[0]) if left else None
        if module is None:
            raise DefinitionError(
                f"the arrays do not fit layer {layer.prefix} of the network",
                facts=(
                    ("expected", _some(_wanted(layer))),
                    ("found next", left[0] if left else "no more arrays"),
                    ("paired before", f"{len(self._pairs)} parameters and states"),
                ),
                where="from_torch",
                advice=self._advice_on_layer(layer, left[0].rpartition(".")[0] if left else ""),
            )
        self._next.append((layer, module))
        return module

    def _require_same_order(self) -> None:
        """Raises DefinitionError if numbers of layers have another order than their modules'."""
        for (layer, module), (other, another) in combinations(self._modules, 2):
            if order_of_numbers(layer.prefix, other.prefix) * order_of_numbers(module, another) < 0:
                raise _in_doubt(
                    "two layers are in another order than their modules",
                    {layer.prefix: module, other.prefix: another},
                    "Otherwise put the layers in the order of the modules.",
                )

    def _require_no_alphabet(self) -> None:
        """Raises DefinitionError if equal modules are in alphabetical order."""
        # Files of safetensors are sorted. PyTorch has the weight of a module before its bias.
        names = [name for name in self._arrays if not name.endswith(_COUNTER)]
        weights = [re.sub("bias$", "weight", name) for name in names if name.endswith("bias")]
        if names != sorted(names) or not any(name in self._arrays for name in weights):
            return
        for (layer, module), (other, another) in combinations(self._next, 2):
            if _wanted(layer) == _wanted(other) and not order_of_numbers(module, another):
                raise _in_doubt(
                    "the arrays are in alphabetical order, which is not the order of the layers",
                    {layer.prefix: module, other.prefix: another},
                    "Otherwise give module.state_dict(), in the order of PyTorch.",
                )

    def _take(self, layer: _Layer, module: str) -> None:
        """Pairs a layer with a module."""
        if layer.prefix not in self._names:
            self._modules.append((layer, module))
        for variable, suffix, third in layer.variables:
            source = f"{module}.{suffix}" if module else suffix
            if third is not None and source not in self._arrays:
                # The array of queries, keys or values alone.
                separate = _THIRDS[variable.name.split(".")[-2]][1]
                source, third = source.replace("in_proj", separate), None
            is_single = len(layer.variables) == 1
            if source not in self._arrays and is_single and module in self._arrays:
                source = module  # an nn.Parameter of its own, not one of a module
            self._take_array(layer, variable, source, third)

    def _take_array(
        self, layer: _Layer, variable: Variable, source: str, third: int | None
    ) -> None:
        module = source.rpartition(".")[0]
        if source not in self._arrays:
            siblings = _some(n for n in self._arrays if n.startswith(module))
            raise DefinitionError(
                f"there is no array for {variable.name!r}",
                facts=(("expected", source), ("found", siblings)),
                where="from_torch",
                advice=self._advice_on_layer(layer, module),
            )
        value = _array(self._arrays[source], source)
        if third is not None:
            rows = len(value) // 3
            value = value[third * rows : (third + 1) * rows]
        _require_shape(variable, source, value, self._advice_on_layer(layer, module))
        self._pairs[variable.name] = Pair(variable.name, source, third)
        self._values[variable.name] = value
        self._left.pop(source, None)
        if source in self._unused:
            self._unused.remove(source)

    def _advice_on_layer(self, layer: _Layer, module: str) -> str:
        for name in self._left:
            other = _module_of(layer, name)
            arrays = [self._arrays.get(f"{other}.{suffix}") for _, suffix, _ in layer.variables]
            shapes = [getattr(array, "shape", None) for array in arrays]
            if other != module and shapes == layer.shapes:
                return f"If it is module {other}, name it: names={{{layer.prefix!r}: {other!r}}}."
        patterns = [*self._skip, *(f"{prefix}.*" for prefix in (layer.prefix, module) if prefix)]
        return f"To keep the first values of the layer: skip={list(dict.fromkeys(patterns))}."


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _array(value: Any, name: str) -> Array:
    """A value as an array of numbers; PyTorch's tensors are copied from their device."""
    if hasattr(value, "detach") and str(getattr(value, "device", "")) != "meta":
        value = value.detach().cpu()
    return convert(value, float64, name)


def _require_shape(variable: Variable, source: str, value: Array, advice: str) -> None:
    expected = static(variable.tensor.shape)
    if value.shape != expected:
        if [n for n in value.shape if n != 1] == [n for n in expected if n != 1]:
            shape = ", ".join(map(str, expected))
            advice = f"Give it in this shape: state_dict[{source!r}].reshape({shape})."
        elif value.shape == expected[::-1]:
            advice = f"Weights are (outputs, inputs): give state_dict[{source!r}].T. {advice}"
        raise ShapeError(
            f"{source} does not fit the parameter {variable.name!r}",
            facts=(
                ("expected", f"{shape_text(expected)}   for {variable.tensor.origin}"),
                ("found", shape_text(value.shape)),
            ),
            advice=advice,
        )


def _in_doubt(problem: str, pairs: Mapping[str, str], advice: str) -> DefinitionError:
    return DefinitionError(
        problem,
        facts=(("layers", ", ".join(pairs)), ("modules", ", ".join(pairs.values()))),
        where="from_torch",
        advice=f"If these pairs are right, name them: names={pairs}. {advice}",
    )


def _module_of(layer: _Layer, array: str) -> str | None:
    """The module of an array, if it has one of the names of a layer's arrays."""
    for suffix in layer.suffixes:
        if f".{array}".endswith(f".{suffix}"):
            return array.removesuffix(suffix).removesuffix(".")
    return None


def _whole_module(name: str) -> str:
    """The pattern of all arrays of the module of an array."""
    module, dot, _ = name.rpartition(".")
    return f"{module}.*" if dot else name


def _require_matches(
    patterns: Sequence[str], names: Sequence[str], arrays: Iterable[str], where: str
) -> None:
    """Checks that each pattern fits a name; raises DefinitionError if one fits none."""
    listed = list(arrays)
    example = _whole_module(next(iter((*names, *listed)), "fc.weight"))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in (*names, *listed)):
            raise DefinitionError(
                "a pattern fits no parameter and no array",
                facts=(
                    ("pattern", repr(pattern)),
                    ("parameters", _some(names)),
                    ("arrays", _some(listed)),
                ),
                where=f"{where}, skip",
                advice=f"A star stands for any text: {example!r} is all of a layer.",
            )


def _layers_of(record: Record, variables: Sequence[Variable]) -> list[_Layer]:
    """The layers that have a module in PyTorch, in order: Lamina's layers, not users'."""
    laminas = set(own_classes().values())
    groups: dict[str, list[Variable]] = {}
    for variable in variables:
        words = variable.name.split(".")
        prefixes = [".".join(words[:count]) for count in range(1, len(words))]
        layers = [prefix for prefix in prefixes if prefix in record.layers]
        ours = (prefix for prefix in layers if type(record.layers[prefix]) in laminas)
        groups.setdefault(next(ours, layers[-1]), []).append(variable)
    return [
        _Layer(prefix, tuple((v, *_in_torch(record, prefix, v.name)) for v in group))
        for prefix, group in groups.items()
    ]


def _in_torch(record: Record, prefix: str, name: str) -> tuple[str, int | None]:
    """The name of a variable in PyTorch's module of a layer, and the third that it is."""
    words: list[str] = []
    path = prefix
    inner = name.removeprefix(f"{prefix}.").split(".")
    for number, word in enumerate(inner):
        kind = type(record.layers.get(path)).__name__
        if kind == "MultiHeadAttention" and word in _THIRDS:
            return ".".join([*words, f"in_proj_{inner[number + 1]}"]), _THIRDS[word][0]
        words.append(_INNER.get(kind, {}).get(word, word))
        path = f"{path}.{word}"
    return ".".join(words), None


def _wanted(layer: _Layer) -> list[str]:
    rows = zip(layer.variables, layer.shapes, strict=True)
    return [f"{suffix} {shape_text(shape)}" for (_, suffix, _), shape in rows]


def _some(names: Iterable[str]) -> str:
    """The first six of these names, and how many more there are."""
    listed = list(names)
    more = f", and {len(listed) - 6} more" if len(listed) > 6 else ""
    return ", ".join(listed[:6]) + more or "none"
