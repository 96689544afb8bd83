"""The names of the tensors of a definition, given by the user or numbers, and of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from lamina.base.shapes import shape_text
from lamina.checks.origin import Origin, source_line
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import CONSTANT, LEAF, Tensor
from lamina.layers.layer import LAYER, RESULT, UNNAMED
from lamina.layers.scope import Record
from lamina.ops.differentiate import COMPUTED_AGAIN


def names_of(nodes: Sequence[Tensor]) -> dict[Tensor, tuple[str, str]]:
    """For each tensor of a definition its name, which is its number by default, and its path.

    A further result of a layer has the layer's name: whether a network uses it changes no names of
    parameters. Likewise `Recompute` changes none: its result has the name of the last layer inside.
    Two layers or inputs of the same name are a DefinitionError.
    """
    names: dict[Tensor, tuple[str, str]] = {}
    taken: dict[str, Tensor] = {}
    count = 0
    for node in nodes:
        if node.op is RESULT:
            name, path = names[node.operands[0]]
            names[node] = (name, f"{path}[{node.attributes['number']}]")
        elif node.op is COMPUTED_AGAIN:
            names[node] = names[node.operands[0]]
        elif node.op is not CONSTANT:
            name = name_of(node)
            name = str(count) if name is None else name
            _require_single(taken.setdefault(name, node), node, name)
            names[node] = (name, f"net/{name}:{_label(node)}")
            count += 1
    return names


def name_of(node: Tensor) -> str | None:
    """The name that the user gave to a layer or an input of a definition."""
    if node.op is LAYER:
        return node.attributes["name"]
    named = node.op is LEAF and node.attributes["name"] != UNNAMED
    return node.attributes["name"] if named else None


def _require_single(first: Tensor, second: Tensor, name: str) -> None:
    """Raises DefinitionError if two different layers or inputs have the same name."""
    same = first.attributes.get("layer") is second.attributes.get("layer")
    if first is second or (same and first.op is LAYER):
        return
    raise DefinitionError(
        f"two layers or inputs of the network are named {name!r}",
        facts=(("first", str(first.origin)), ("second", str(second.origin))),
        where=str(Origin("Network", source_line())),
        advice="Give each its own name, or give the networks that contain them a name: "
        "lm.Sequential(..., name='left').",
    )


def _label(node: Tensor) -> str:
    if node.op is LAYER:
        return type(node.attributes["layer"]).__name__
    return "Input" if node.op is LEAF else node.op.name.replace("_", " ").title().replace(" ", "")


def shared_names(parent: Record, part: Record) -> dict[str, str]:
    """The names of a part's parameters and states in its parent, by their names in the part.

    Both have the same layer objects. A layer may make new inner layers in each trace; their
    parameters are found by their path within the layer.
    """
    prefixes = parent.prefixes
    variables = {**parent.parameters, **parent.states}
    names: dict[str, str] = {}
    for name, variable in {**part.parameters, **part.states}.items():
        words = name.split(".")
        # From the innermost layer outwards.
        candidates = [
            ".".join((prefixes[id(layer)][1], *words[end:]))
            for end in range(len(words) - 1, 0, -1)
            if id(layer := part.layers.get(".".join(words[:end]))) in prefixes
        ]
        names[name] = next((candidate for candidate in candidates if candidate in variables), "")
        if not names[name]:
            raise DefinitionError(
                "the part has a parameter that the whole does not have",
                facts=(("in the part", name), ("in the whole", ", ".join(variables) or "none")),
                where=str(variable.tensor.origin),
                advice="Apply the same layer objects again, or the same networks; equal layers are "
                "other layers.",
            )
        expected = variables[names[name]].tensor.shape
        if variable.tensor.shape != expected:
            raise ShapeError(
                f"the parameter {name!r} of the part has another shape in the whole",
                facts=(
                    ("in the part", shape_text(variable.tensor.shape)),
                    ("in the whole", f"{shape_text(expected)}   {names[name]}"),
                ),
                where=str(variable.tensor.origin),
                advice="The layer is applied to tensors of other shapes there.",
            )
    return names


def before_numbers(name: str) -> str:
    """The words of a name before its first number: `"encoder"` of `"encoder.1.query"`."""
    return ".".join(takewhile(lambda word: not word.isdecimal(), name.split(".")))


def after_numbers(name: str) -> str:
    """The words of a name after its last number; "" if it has none."""
    words = name.split(".")
    last = max((n for n, word in enumerate(words) if word.isdecimal()), default=len(words))
    return ".".join(words[last + 1 :])


def order_of_numbers(first: str, second: str) -> int:
    """-1 or 1 if two names differ first by a number, 0 if they differ by words."""
    for left, right in zip(first.split("."), second.split("."), strict=False):
        if left != right:
            both = left.isdecimal() and right.isdecimal()
            return (int(left) > int(right)) - (int(left) < int(right)) if both else 0
    return 0


def in_order_of_numbers(names: Iterable[str]) -> list[str]:
    """The names in their order, but those that differ by a number in the order of these."""
    # Files may have them in alphabetical order: 1, 10, 2.
    first: dict[tuple[str, ...], int] = {}
    keys: dict[str, list[tuple[int, int]]] = {}
    for name in names:
        words, key = name.split("."), list[tuple[int, int]]()
        for count, word in enumerate(words):
            is_number = word.isdecimal()
            position = first.setdefault((*words[:count], "" if is_number else word), len(first))
            key.append((position, int(word) if is_number else 0))
        keys[name] = key
    return sorted(keys, key=lambda name: keys[name])


def common_modules(arrays: Sequence[str], layers: Sequence[str]) -> str:
    """The modules around all others, such as `"model."`, after which no layer is named."""
    outer = {name.partition(".")[0] for name in arrays}
    named = outer & {name.partition(".")[0] for name in layers}
    if len(outer) != 1 or named or not all("." in name for name in arrays):
        return ""
    return f"{outer.pop()}." + common_modules([name.partition(".")[2] for name in arrays], layers)
