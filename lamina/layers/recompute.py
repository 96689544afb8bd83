"""Gradient checkpointing: layers whose results are not kept for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

from lamina import ops
from lamina.checks.origin import Origin, source_line
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope

__all__ = ["Recompute"]


@final
class Recompute:
    """Layers that follow one another, and are computed again in the backward pass.

    The results of the layers inside are not kept for the gradient. Only the operands and the result
    are: the backward pass computes the layers again from the operands, with the same random
    numbers. So a deep network of such blocks takes less memory, and a training step about a third
    more arithmetic. Results, gradients and states are the same, except that the compiler may join
    the second computation with other steps, so that sums are rounded differently; states are
    updated once. It may stand within another `Recompute`. A prediction is computed as without it.
    From Chen, Xu, Zhang, Guestrin: Training deep nets with sublinear memory cost (2016); PyTorch's
    `torch.utils.checkpoint`.

    Args:
        layers: layers or networks; the first may take several tensors, all others take one.

    Raises:
        DefinitionError: without layers, for something else than a layer, or for a network with
            several outputs.

    Example:
        >>> block = lm.Recompute(lm.Linear(64), lm.ReLU(), lm.Linear(64), lm.ReLU())
        >>> lm.Sequential(lm.Input(64), block, lm.Linear(10)).parameter_count()
        8970
    """

    def __init__(self, *layers: Any, **unknown: Any) -> None:
        self._source = source_line()
        if unknown:
            name = next(iter(unknown))
            raise self._error(
                f"Recompute has no option {name}",
                "layers and networks",
                f"{name}={unknown[name]!r}",
                "It changes no names: name the layers in it, lm.Linear(64, name='first')."
                if name == "name"
                else "Leave it out.",
            )
        for layer in layers:
            # A network has outputs; its class is defined in terms of layers.
            is_layer = isinstance(layer, Layer | Recompute) or hasattr(layer, "outputs")
            if isinstance(layer, type) or not is_layer:
                raise self._error(
                    "layers and networks can be computed again",
                    "Recompute(lm.Linear(10), lm.ReLU())",
                    repr(cast(object, layer)),
                    "Unpack the list: Recompute(*layers)."
                    if isinstance(layer, list | tuple)
                    else "",
                )
        if not layers:
            raise self._error("there is no layer to compute again", "at least one layer", "none")
        self.layers: tuple[Any, ...] = layers

    def __repr__(self) -> str:
        return f"Recompute({', '.join(map(repr, self.layers))})"

    def __call__(self, *operands: Tensor) -> Tensor:
        """Applies the layers."""
        y = self.layers[0](*operands)
        for layer in self.layers[1:]:
            self._require_single(y)
            y = layer(y)
        self._require_single(y)
        return ops.computed_again(y, *operands)

    def forward(self, scope: Scope, /, *operands: Tensor) -> Tensor:
        y = scope.layer("0", self.layers[0], *operands)
        for number, layer in enumerate(self.layers[1:], start=1):
            y = scope.layer(str(number), layer, y)
        return ops.computed_again(y, *operands)

    def _require_single(self, y: object) -> None:
        if not isinstance(y, Tensor):
            found = f"{len(cast(Sequence[object], y))} outputs" if isinstance(y, tuple) else repr(y)
            raise self._error("what is computed again has one output", "a tensor", found)

    def _error(self, problem: str, expected: str, actual: str, advice: str = "") -> DefinitionError:
        return DefinitionError(
            problem,
            facts=(("expected", expected), ("found", actual)),
            where=str(Origin("Recompute", self._source)),
            advice=advice,
        )
