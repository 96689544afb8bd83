"""`load` and `from_torch`: models with the parameters of a file, or of a module of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from lamina.base.shapes import DTypeLike, as_dtype, float32
from lamina.checks import checked
from lamina.checks.kinds import FloatType, Instance, ModelType, OrNone, Row
from lamina.data.conversion import rounded_parameters
from lamina.engines.discovery import DEFAULT_ENGINE, open_engine
from lamina.files.model_file import read_model
from lamina.files.weights import NamedArrays, Names, Patterns, pair
from lamina.model import Model, OfNetwork
from lamina.runtime import Parameters
from lamina.step.precision import MIXED, ProductPrecision, Products, precision_of

OfFile = Annotated[DTypeLike | None, OrNone(ModelType())]
ProductsOfFile = Annotated[str | None, OrNone(ProductPrecision())]


@checked
def load(
    path: str | os.PathLike[str],
    engine: str = DEFAULT_ENGINE,
    *,
    dtype: OfFile = None,
    precision: ProductsOfFile = None,
    layers: Annotated[Sequence[type], Row(Instance(type), example="[MyLayer]")] = (),
) -> Model:
    """A model from a file; runs no code from it.

    Args:
        path: a file written by `Model.save`, or a checkpoint of `Model.fit`.
        engine: the engine of the model, as in `Model`.
        dtype: the precision of the model, as in `Model`: parameters and states are rounded to it.
            By default it is the precision in the file.
        precision: the precision of products, as in `Model`; by default the file's precision.
        layers: the classes of your own layers, initializers and regularizers, if the network
            contains any.

    Raises:
        FileFormatError: if the file is missing, truncated, damaged or of another format.
        DataError: if a parameter is too large for float16.
        DTypeError: for `precision="tf32"` if the dtype is not float32.
    """
    saved, opened = read_model(path, layers), open_engine(engine)
    kept, values = saved.precision, saved.values
    if dtype is not None or precision is not None:
        new_dtype = dtype or kept.name
        if precision is None:
            # TF32 is for float32 only; the file's does not hold for another dtype.
            is_float32 = new_dtype not in MIXED and as_dtype(new_dtype) == float32
            precision = kept.products if is_float32 else "float32"
        kept = precision_of(new_dtype, lambda: opened.device, precision)
    if dtype is not None:
        values = rounded_parameters(values, kept.dtype)
    parameters = Parameters(saved.network, opened, kept, saved.seed, values)
    parameters.coding = saved.coding
    return Model.of_parameters(parameters)


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
    layer that has parameters with the first module, and so on. The layers of a network with a name,
    `"trunk.1"`, are paired in order with the modules of that name, `"trunk.0"`. Running statistics
    are states of the model; counters of training steps are skipped.

    Args:
        network: the definition.
        state_dict: PyTorch's `module.state_dict()`, or any mapping from names to arrays.
        engine, dtype, precision: the arguments of `Model`.
        names: the modules of some layers, by the names of the layers here: `{"3": "features.3"}`;
            or the arrays of some parameters, `{"pos.weight": "pos"}`, such as those that are an
            `nn.Parameter` alone.
        skip: patterns of names of parameters that keep their initial values, and of arrays that
            are not needed: `["fc.*"]`.
        seed: the seed of the parameters that keep their initial values.
        show: whether to print which parameter takes which array.

    Raises:
        DefinitionError: if an array is missing or left over, or a pattern fits no name; if the
            order of the layers is not the order of the modules, or is not known.
        ShapeError: if an array has another shape than its parameter.
        DataError, DTypeError: for an array that is not of numbers.

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
    pairing = pair(network, state_dict, names or {}, skip)
    model = Model(network, engine=engine, seed=seed, dtype=dtype, precision=precision)
    model.load_parameters(pairing.values)
    if show:
        print(pairing)
    return model
