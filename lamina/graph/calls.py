"""How users call records and functions: an option that there is not is an error that says which.

NumPy's numbers become Python's on the way in, so that a record holds nothing but plain values.
"""

from __future__ import annotations

import inspect
import reprlib
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from lamina.errors import DefinitionError, LaminaError
from lamina.graph.tensor import Origin, located, source_line

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Called(ABCMeta):
    """The class of records that users make: layers, losses, optimizers and the like."""

    def __call__(cls: type[Result], *values: Any, **options: Any) -> Result:
        make: Callable[..., Any] = partial(cast(Any, ABCMeta.__call__), cls)
        return _called(make, cls, cls.__name__, values, options)

    @property
    def __signature__(cls) -> inspect.Signature:
        """Of the call: that of `__init__`, which editors show."""
        whole = inspect.signature(cls.__init__)
        return whole.replace(parameters=list(whole.parameters.values())[1:])


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, with the same care for its arguments as records have."""
    name = _name_of(function)

    @wraps(function)
    def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
        return _called(function, function, name, values, options)

    return call


def checked_as_given(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The same for functions of tensors: NumPy's numbers stay, for their dtype counts.

    Errors that do not say where something was made get the layer and line that are worked on.
    """
    name = _name_of(function)

    @wraps(function)
    def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return function(*values, **options)
        except LaminaError as error:
            located(error)
            raise
        except TypeError:
            misfit = _misfit(function, name, values, options)
            if misfit is None:
                raise
            raise misfit from None

    return call


def _name_of(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__").removesuffix(".__new__")


def _called(
    function: Callable[..., Result],
    shown: Callable[..., Any],
    name: str,
    values: Sequence[Any],
    options: Mapping[str, Any],
) -> Result:
    """Calls a function with plain values.

    Args:
        function: what is called.
        shown: what has the signature that users know.
        name: of that.
        values, options: what the user gave.

    Raises:
        DefinitionError: if it does not take these arguments.
    """
    try:
        plain = {option: _plain(value) for option, value in options.items()}
        return function(*map(_plain, values), **plain)
    except TypeError:
        # Only now is it worth the time to look whether the arguments were to blame.
        misfit = _misfit(shown, name, values, options)
        if misfit is None:
            raise
        raise misfit from None


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, also those in a list or tuple."""
    if isinstance(value, np.generic):
        return cast(Any, value).item()
    kind = type(cast(object, value))
    if kind is not tuple and kind is not list:  # named tuples, too, stay what they are
        return value
    entries = cast(Sequence[Any], value)
    if not any(isinstance(one, np.generic) for one in entries):
        return entries
    plain = [_plain(one) for one in entries]
    return tuple(plain) if kind is tuple else plain


def _misfit(
    shown: Callable[..., Any], name: str, values: Sequence[Any], options: Mapping[str, Any]
) -> DefinitionError | None:
    """What is wrong with the arguments; None if nothing is."""
    signature = inspect.signature(shown)
    try:
        signature.bind(*values, **options)
        return None
    except TypeError as error:
        problem = str(error)
    empty = inspect.Parameter.empty
    method = not _OWNERS.isdisjoint(signature.parameters)
    parameters = [
        one.replace(default=empty, annotation=empty)
        for one in signature.parameters.values()
        if one.name not in _OWNERS
    ]
    bare = signature.replace(parameters=parameters, return_annotation=empty)
    facts = (("expected", f"{name}{bare}"),)
    accepted = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, _ANY)]
    takes_any = any(one.kind == _ANY for one in parameters)
    unknown = next((one for one in options if one not in accepted and not takes_any), "")
    advice = ""
    if unknown:
        problem = f"there is no option {unknown!r}"
        facts += (("found", f"{unknown}={reprlib.repr(options[unknown])}"),)
        advice = _advice(unknown, shown, accepted)
    elif not problem.startswith("missing"):
        places = values[1:] if method else values
        by_name = [one.name for one in parameters if one.kind == one.KEYWORD_ONLY]
        lacking = next((option for option in by_name if option not in options), "")
        if not _PAIRS.isdisjoint(accepted) and len(places) > 1 and all(map(_is_data, places[:2])):
            advice = _PAIR
        elif problem.startswith("too many positional") and lacking:
            advice = f"Give it by name: {lacking}=..."
    where = str(Origin(name, source_line()))
    return DefinitionError(problem, facts=facts, where=where, advice=advice)


def _is_data(value: object) -> bool:
    return isinstance(value, list) or hasattr(value, "__array__")


def _advice(unknown: str, shown: Callable[..., Any], accepted: Sequence[str]) -> str:
    """What to do about an option that there is not.

    First what it is called here, then what to do in its place, last what is written much like it.
    """
    ours = [option for option in accepted if unknown in _ELSEWHERE.get(option, "").split()]
    if ours:
        return f"Here it is called {' and '.join(ours)}."
    for words, fits, advice in _INSTEAD:
        if unknown in words.split() and fits(shown, accepted):
            return advice
    near = get_close_matches(unknown, accepted, 1)
    return f"Did you mean {near[0]}?" if near else ""


_ANY = inspect.Parameter.VAR_KEYWORD
# The first parameter of methods.
_OWNERS = {"self", "cls"}

# Arguments that take inputs and targets together.
_PAIRS = {"train", "data"}
_PAIR = "Inputs and targets are one argument, a pair: (x, y)."

# What other frameworks call our options.
_ELSEWHERE = {
    "activation": "nonlinearity",
    "affine": "elementwise_affine scale center",
    "axes": "axis dim",
    "axis": "dim axes",
    "beta1": "betas b1",
    "beta2": "betas b2",
    "bias": "use_bias",
    "bias_init": "bias_initializer",
    "bias_regularizer": "bias_regulariser",
    "causal": "is_causal use_causal_mask",
    "channels": "out_channels filters",
    "class_weights": "weight weights class_weight",
    "classes": "num_classes n_classes",
    "correction": "ddof unbiased",
    "count": "num_embeddings input_dim vocab_size",
    "decay": "alpha rho beta ema_decay",
    "deviation": "std stddev",
    "dilation": "dilation_rate",
    "dilations": "dilation",
    "dropout": "dropout_rate p",
    "engine": "device backend",
    "epsilon": "eps",
    "every": "step_size",
    "factor": "gamma upscale_factor downscale_factor",
    "features": "units out_features hidden_size embed_dim embedding_dim output_dim d_model",
    "groups": "num_groups",
    "heads": "num_heads nhead",
    "hidden": "dim_feedforward intermediate_size",
    "input": "input_shape shape in_channels in_features input_dim input_size",
    "indices": "index",
    "inputs": "input_shape in_channels in_features input_dim input_size",
    "k": "top_k n",
    "keepdims": "keepdim keep_dims",
    "layers": "num_layers n_layers",
    "limit": "max_norm clip_value",
    "low": "min_val min a_min",
    "high": "max_val max a_max",
    "padding": "padding_idx",
    "positive_weight": "pos_weight",
    "probability": "p rate",
    "progress": "verbose",
    "rate": "lr learning_rate",
    "rate_decay": "lr_decay",
    "returns": "return_sequences",
    "scale": "scale_factor",
    "shape": "dims size target_shape",
    "slope": "negative_slope alpha",
    "steps": "T_max total_iters",
    "stride": "strides",
    "strides": "stride",
    "strength": "l1 l2 weight_decay",
    "train": "data dataset",
    "validation": "validation_data",
    "vocabulary": "vocab_size",
    "weight_init": "kernel_initializer",
    "weight_regularizer": "kernel_regularizer",
    "widths": "hidden hidden_sizes hidden_layers pad pad_width",
    "window": "kernel_size pool_size kernel",
    "x": "input tensor a",
}


def _is_layer(shown: Callable[..., Any], _: Sequence[str]) -> bool:
    return hasattr(shown, "forward")


# What they ask for and is said in another way here: the words, the callables that this holds for
# (of themselves and their options), and what to do.
_INSTEAD: tuple[tuple[str, Callable[[Callable[..., Any], Sequence[str]], bool], str], ...] = (
    (
        "activation",
        lambda shown, _: "Linear" in shown.__name__ or shown.__name__.startswith("Conv"),
        "An activation is a layer of its own, lm.ReLU() for example, behind this one.",
    ),
    (
        "in_features in_channels input_size input_dim num_features",
        _is_layer,
        "What comes in is found out when the layer is applied: leave it out.",
    ),
    (
        "num_classes",
        lambda shown, _: shown.__name__ == "one_hot",
        "Here it is called depth.",
    ),
    ("batch_first", _is_layer, "The batch always comes first: leave it out."),
    (
        "normalized_shape",
        lambda shown, _: shown.__name__ == "LayerNorm",
        "LayerNorm normalises axes, the last one by default.",
    ),
    (
        "validation_split",
        lambda _, accepted: "validation" in accepted,
        "Split the data set first: train, validation = lm.data.Dataset(x, y).split(0.9).",
    ),
    ("x y targets labels", lambda _, accepted: not _PAIRS.isdisjoint(accepted), _PAIR),
)
