"""Weights of other networks, of PyTorch for example: which array belongs to which parameter.

Layers are paired with modules by name where both have one, otherwise in order. Lamina's layers name
and lay out their parameters as PyTorch's modules do, with the exceptions in this file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, cast, final

from lamina.data.arrays import to_array
from lamina.errors import DefinitionError, ShapeError
from lamina.files.classes import own_classes
from lamina.graph.kinds import Kind, Misfit, Operands, Row, Text
from lamina.layers.scope import Record, Variable
from lamina.network import Network
from lamina.records import frozen_dataclass
from lamina.reports import table_text
from lamina.shapes import Array, float32, shape_text, static

# The names of inner layers in PyTorch's modules.
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
    "BatchNorm": {"running_variance": "running_var"},
    "InstanceNorm": {"running_variance": "running_var"},
}
# PyTorch keeps the weights of queries, keys and values in one array, thirds of its rows; where
# their inputs differ in size, in three.
_THIRDS = {"queries": (0, "q_proj"), "keys": (1, "k_proj"), "values": (2, "v_proj")}
# Counters of training steps, which Lamina's layers do not need.
_COUNTER = "num_batches_tracked"


class StateDict(Kind):
    """Arrays by name."""

    def read(self, value: Any, operands: Operands = ()) -> Any:
        if isinstance(value, Mapping):
            return cast(Any, value)
        advice = ""
        if hasattr(value, "state_dict"):
            advice = "Give its weights: module.state_dict()."
        elif isinstance(value, str | os.PathLike):
            advice = "Read it first: torch.load(path, weights_only=True)."
        raise Misfit("arrays by name", "{'0.weight': array, ...}", advice=advice)


class TextTable(Kind):
    """Texts by text."""

    def read(self, value: Any, operands: Operands = ()) -> Any:
        table = cast(Mapping[object, object], value) if isinstance(value, Mapping) else {0: 0}
        if all(isinstance(one, str) for pair in table.items() for one in pair):
            return table
        raise Misfit("names of modules by names of layers", "{name}={'3': 'features.3'}")


NamedArrays = Annotated[Mapping[str, Any], StateDict()]
Names = Annotated[Mapping[str, str], TextTable()]
Patterns = Annotated[Sequence[str], Row(Text(), example="['fc.*']")]


@frozen_dataclass
class Pair:
    """A parameter or state of a network, and the array that it takes.

    Attributes:
        name: in the network.
        source: the name of the array.
        third: which third of the array's rows it is; None for the whole array.
    """

    name: str
    source: str
    third: int | None = None


@final
@frozen_dataclass
class Pairing:
    """Which parameters and states of a network take which arrays; `print` shows it.

    Attributes:
        pairs: in the order of the layers.
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


def pair_by_name(network: Network, arrays: Mapping[str, Any], skip: Sequence[str]) -> Pairing:
    """Pairs parameters and states with the arrays of the same names; the others are listed.

    Args:
        network: takes the values.
        arrays: by name.
        skip: patterns of names that keep their values.

    Raises:
        DefinitionError: if no name is the same.
        ShapeError: if an array has another shape than its parameter.
    """
    record = network.variables(float32)
    everything = (*record.parameters.values(), *record.states.values())
    values: dict[str, Array] = {}
    for variable in everything:
        name = variable.name
        if name in arrays and not _fits(name, skip):
            values[name] = _array(arrays[name], name)
            _require_shape(variable, name, values[name], "Leave it out: skip=['fc.*'].")
    if not values:
        raise DefinitionError(
            "no array has the name of a parameter",
            facts=(
                ("expected", _some(one.name for one in everything)),
                ("found", _some(arrays)),
            ),
            where="load_parameters",
            advice="lm.from_torch pairs the arrays of PyTorch's modules, also in order.",
        )
    kept = tuple(one.name for one in everything if one.name not in values)
    unused = tuple(name for name in arrays if name not in values)
    return Pairing(tuple(Pair(name, name) for name in values), kept, unused, values)


def pair(
    network: Network,
    arrays: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    skip: Sequence[str] = (),
) -> Pairing:
    """Pairs the parameters and states of a network with arrays, by name or in order.

    Args:
        network: takes the values.
        arrays: by name: PyTorch's `state_dict`, or any other mapping.
        names: the module of a layer: `{"3": "features.3"}`.
        skip: patterns of names in the network that keep their values, and of arrays that are not
            needed.

    Raises:
        DefinitionError: if an array is missing or left over.
        ShapeError: if an array has another shape than its parameter.
    """
    return _Pairing(network.variables(float32), arrays, names or {}, skip).whole()


@frozen_dataclass
class _Layer:
    """A layer that has a module of its own in PyTorch.

    Attributes:
        prefix: of its names in the network.
        variables: its parameters and states.
        suffixes: for each of them, the name in PyTorch's module, and the third.
    """

    prefix: str
    variables: tuple[Variable, ...]
    suffixes: tuple[tuple[str, int | None], ...]


class _Pairing:
    """Pairs the layers of a network, one after the other."""

    def __init__(
        self,
        record: Record,
        arrays: Mapping[str, Any],
        names: Mapping[str, str],
        skip: Sequence[str],
    ) -> None:
        self._arrays = arrays
        self._names = names
        self._unused = [n for n in arrays if n.endswith(_COUNTER) or _fits(n, skip)]
        # The arrays that are not taken yet, in order.
        self._left = dict.fromkeys(arrays)
        for name in self._unused:
            del self._left[name]
        everything = (*record.parameters.values(), *record.states.values())
        self._kept = [one.name for one in everything if _fits(one.name, skip)]
        wanted = [one for one in everything if not _fits(one.name, skip)]
        self._layers = _layers_of(record, wanted)
        self._pairs: dict[str, Pair] = {}
        self._values: dict[str, Array] = {}

    def whole(self) -> Pairing:
        """All pairs: first by name, then the other layers in order."""
        known = [layer.prefix for layer in self._layers]
        for prefix in self._names:
            if prefix not in known:
                raise DefinitionError(
                    f"the network has no layer {prefix!r} with parameters",
                    facts=(("expected", ", ".join(known)), ("found", repr(prefix))),
                    where="names",
                    advice="print(network) shows the layers.",
                )
        remaining = [layer for layer in self._layers if not self._paired_by_name(layer)]
        for layer in remaining:
            self._take(layer, self._next_module(layer))
        if self._left:
            raise DefinitionError(
                "some arrays belong to no layer of the network",
                facts=(
                    ("paired", f"{len(self._pairs)} parameters and states"),
                    ("left over", _some(self._left)),
                ),
                where="from_torch",
                advice="Leave out what is not needed: skip=['aux.*'].",
            )
        pairs = tuple(self._pairs[one.name] for layer in self._layers for one in layer.variables)
        return Pairing(pairs, tuple(self._kept), tuple(self._unused), self._values)

    def _paired_by_name(self, layer: _Layer) -> bool:
        module = self._names.get(layer.prefix)
        # Numbers count layers here and modules there; that they are equal means nothing.
        if module is None and not layer.prefix.split(".")[0].isdigit():
            first, _ = layer.suffixes[0]
            module = layer.prefix if f"{layer.prefix}.{first}" in self._arrays else None
        if module is not None:
            self._take(layer, module)
        return module is not None

    def _next_module(self, layer: _Layer) -> str:
        """The module of the first array that is left.

        Raises:
            DefinitionError: if it has none of the names of the layer's parameters.
        """
        following = next(iter(self._left), "")
        alone = (f"{name}_weight" for _, name in _THIRDS.values())
        for suffix in (*(suffix for suffix, _ in layer.suffixes), *alone):
            if following == suffix or following.endswith(f".{suffix}"):
                return following.removesuffix(suffix).removesuffix(".")
        raise DefinitionError(
            f"the arrays do not fit layer {layer.prefix} of the network",
            facts=(
                ("expected", _some(_wanted(layer))),
                ("found next", following or "no more arrays"),
                ("paired before", f"{len(self._pairs)} parameters and states"),
            ),
            where="from_torch",
            advice=_ADVICE,
        )

    def _take(self, layer: _Layer, module: str) -> None:
        """Pairs a layer with a module.

        Raises:
            DefinitionError: if an array is missing.
            ShapeError: if one has another shape.
        """
        for variable, (suffix, third) in zip(layer.variables, layer.suffixes, strict=True):
            source = f"{module}.{suffix}" if module else suffix
            if third is not None and source not in self._arrays:
                source, third = self._separate(source, variable), None
            if source not in self._arrays:
                raise DefinitionError(
                    f"there is no array for {variable.name!r}",
                    facts=(
                        ("expected", source),
                        ("found", _some(n for n in self._arrays if n.startswith(module))),
                    ),
                    where="from_torch",
                    advice=_ADVICE,
                )
            value = _array(self._arrays[source], source)
            if third is not None:
                rows = len(value) // 3
                value = value[third * rows : (third + 1) * rows]
            _require_shape(variable, source, value, _ADVICE)
            self._pairs[variable.name] = Pair(variable.name, source, third)
            self._values[variable.name] = value
            self._left.pop(source, None)

    def _separate(self, source: str, variable: Variable) -> str:
        """The array of queries, keys or values alone."""
        part = variable.name.split(".")[-2]
        return source.replace("in_proj", _THIRDS[part][1])


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _array(value: Any, name: str) -> Array:
    """A value as an array; PyTorch's tensors are copied from their device."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    return to_array(value, f"{name} cannot be converted to an array")


def _require_shape(variable: Variable, source: str, value: Array, advice: str) -> None:
    wanted = static(variable.tensor.shape)
    if value.shape != wanted:
        raise ShapeError(
            f"{source} does not fit the parameter {variable.name!r}",
            facts=(
                ("expected", f"{shape_text(wanted)}   for {variable.tensor.origin}"),
                ("found", shape_text(value.shape)),
            ),
            advice=advice,
        )


_ADVICE = (
    "Layers without a name are paired in order: name the modules of those in another order, "
    "names={'3': 'features.3'}, or leave parameters out, skip=['fc.*']."
)


def _layers_of(record: Record, variables: Sequence[Variable]) -> list[_Layer]:
    """The layers that have a module in PyTorch, in order: those of Lamina, not of users."""
    own = set(own_classes().values())
    groups: dict[str, list[Variable]] = {}
    for variable in variables:
        words = variable.name.split(".")
        prefixes = [".".join(words[:count]) for count in range(1, len(words))]
        layers = [prefix for prefix in prefixes if prefix in record.layers]
        known = (prefix for prefix in layers if type(record.layers[prefix]) in own)
        groups.setdefault(next(known, layers[-1]), []).append(variable)
    found: list[_Layer] = []
    for prefix, group in groups.items():
        suffixes = tuple(_in_torch(record, prefix, variable.name) for variable in group)
        found.append(_Layer(prefix, tuple(group), suffixes))
    return found


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
    return [
        f"{suffix} {shape_text(static(variable.tensor.shape))}"
        for variable, (suffix, _) in zip(layer.variables, layer.suffixes, strict=True)
    ]


def _some(names: Iterable[str], most: int = 6) -> str:
    """The first of these names, and how many more there are."""
    listed = list(names)
    more = f", and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more or "none"
