"""`from_torch`: a model with the weights of a PyTorch module."""

from __future__ import annotations

from lamina.calls import checked
from lamina.engines.discovery import DEFAULT_ENGINE
from lamina.graph.kinds import FloatType
from lamina.model import Model, OfNetwork
from lamina.tf32_products import Products
from lamina.weights import NamedArrays, Names, Patterns, pair


@checked
def from_torch(
    network: OfNetwork,
    state_dict: NamedArrays,
    engine: str = DEFAULT_ENGINE,
    *,
    dtype: FloatType = "float32",
    precision: Products = "float32",
    names: Names | None = None,
    skip: Patterns = (),
    seed: int = 0,
    show: bool = True,
) -> Model:
    """A model with the weights of a PyTorch module of the same layers.

    Layers with a name are paired with the module of that name, and the others in order: the first
    layer that has parameters with the first module, and so on. Running statistics are states of
    the model; counters of training steps are skipped.

    Args:
        network: the definition.
        state_dict: PyTorch's `module.state_dict()`, or any mapping from names to arrays.
        engine, dtype, precision: as in `Model`.
        names: the modules of some layers: `{"3": "features.3"}`.
        skip: patterns of names of parameters that keep their initial values, and of arrays that
            are not needed: `["fc.*"]`.
        seed: of the parameters that keep their initial values.
        show: whether to print which parameter takes which array.

    Raises:
        DefinitionError: if an array is missing or left over.
        ShapeError: if an array has another shape than its parameter.

    Example:
        >>> import numpy as np, lamina as lm
        >>> net = lm.Sequential(lm.Input(3), lm.Linear(2))
        >>> weights = {"0.weight": np.ones((2, 3)), "0.bias": np.zeros(2)}
        >>> model = lm.from_torch(net, weights)
        parameter  from      shape
        ---------  --------  ------
        1.weight   0.weight  [2, 3]
        1.bias     0.bias    [2]
    """
    pairing = pair(network, state_dict, names, skip)
    model = Model(network, engine=engine, seed=seed, dtype=dtype, precision=precision)
    model.load_parameters(pairing.values)
    if show:
        print(pairing)
    return model
