"""Parameters that networks share, because they have the same layer objects."""

from __future__ import annotations

from lamina.base.shapes import shape_text
from lamina.errors import DefinitionError, ShapeError
from lamina.layers.scope import Record


def shared_names(whole: Record, part: Record) -> dict[str, str]:
    """The names of a part's parameters and states in the whole, by their names in the part.

    Both have the same layer objects. A layer may make new inner layers in each trace; their
    parameters are found by their path within the layer.
    """
    prefixes = whole.prefixes
    variables = {**whole.parameters, **whole.states}
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
