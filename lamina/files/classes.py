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
