"""The classes of records that a model file may name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from lamina import layers
from lamina.layers import init
from lamina.layers.layer import LAYER
from lamina.network import Network

USER_PREFIX = "user."


def own_classes() -> dict[str, type]:
    """Lamina's layers, initialisers and regularisers, by their names in files."""
    found: dict[str, type] = {}
    for prefix, module in (("", layers), ("init.", init)):
        for name in dir(module):
            value = getattr(module, name)
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                found[prefix + name] = value
    return found


def classes_of(network: Network) -> list[type]:
    """The users' classes of records in a network: layers, and records in their fields."""
    found: dict[type, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, tuple | list):
            for item in cast(Sequence[Any], value):
                visit(item)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            found[type(value)] = None
            for field in dataclasses.fields(value):
                visit(getattr(value, field.name))
        elif isinstance(value, Network):
            for node in value.nodes:
                if node.op is LAYER:
                    visit(node.attributes["layer"])

    visit(network)
    own = set(own_classes().values())
    return [cls for cls in found if cls not in own]
