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

from lamina.errors import DefinitionError
from lamina.graph import Origin, source_line

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
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
        return _called(function, function, name, values, options)

    return call


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
        return function(*map(_plain, values), **{k: _plain(v) for k, v in options.items()})
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
    if not isinstance(value, tuple | list):
        return value
    entries = cast(Sequence[Any], value)
    if not any(isinstance(one, np.generic) for one in entries):
        return entries
    plain = [_plain(one) for one in entries]
    return tuple(plain) if isinstance(value, tuple) else plain


def _misfit(
    shown: Callable[..., Any], name: str, values: Sequence[Any], options: Mapping[str, Any]
) -> DefinitionError | None:
    """What is wrong with the arguments; None if nothing is."""
    signature = inspect.signature(shown)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    named = [one.name for one in parameters if one.kind != one.VAR_POSITIONAL]
    written = ", ".join(one.name if one.name in named else f"*{one.name}" for one in parameters)
    facts = (("expected", f"{name}({written})"),)
    unknown = next((option for option in options if option not in named), "")
    advice = ""
    try:
        signature.bind(*values, **options)
    except TypeError as error:
        if unknown:
            problem = f"there is no option {unknown!r}"
            facts += (("found", f"{unknown}={reprlib.repr(options[unknown])}"),)
            advice = _advice(unknown, named)
        else:
            problem = str(error)
            if not problem.startswith("missing") and not _PAIRS.isdisjoint(named):
                advice = _PAIR
        where = str(Origin(name, source_line()))
        return DefinitionError(problem, facts=facts, where=where, advice=advice)
    return None


def _advice(unknown: str, accepted: Sequence[str]) -> str:
    ours = [option for option in accepted if unknown in _ELSEWHERE.get(option, "").split()]
    if ours:
        return f"Here it is called {' and '.join(ours)}."
    for words, advice in _NEEDLESS.items():
        if unknown in words.split():
            return advice
    near = get_close_matches(unknown, accepted, 1)
    return f"Did you mean {near[0]}?" if near else ""


# Arguments that take inputs and targets together.
_PAIRS = {"train", "data"}
_PAIR = "Inputs and targets are one argument, a pair: (x, y)."

# What other frameworks call our options.
_ELSEWHERE = {
    "affine": "elementwise_affine scale center",
    "axes": "normalized_shape axis dim",
    "axis": "dim",
    "beta1": "betas b1",
    "beta2": "betas b2",
    "bias": "use_bias",
    "bias_init": "bias_initializer",
    "bias_regularizer": "bias_regulariser",
    "causal": "is_causal use_causal_mask",
    "channels": "out_channels filters",
    "class_weights": "weight weights class_weight",
    "classes": "num_classes n_classes",
    "count": "num_embeddings input_dim vocab_size",
    "decay": "alpha rho beta ema_decay",
    "deviation": "std stddev",
    "dilation": "dilation_rate",
    "dropout": "dropout_rate p",
    "engine": "device backend",
    "epsilon": "eps",
    "every": "step_size",
    "factor": "gamma upscale_factor downscale_factor",
    "features": "units out_features hidden_size embed_dim embedding_dim output_dim d_model key_dim",
    "groups": "num_groups",
    "heads": "num_heads nhead",
    "hidden": "dim_feedforward intermediate_size",
    "input": "input_shape shape",
    "k": "top_k n",
    "layers": "num_layers n_layers",
    "limit": "max_norm clip_value",
    "low": "min_val",
    "high": "max_val",
    "padding": "padding_idx",
    "positive_weight": "pos_weight",
    "probability": "p rate",
    "rate": "lr learning_rate",
    "rate_decay": "lr_decay",
    "returns": "return_sequences",
    "scale": "scale_factor",
    "shape": "dims size target_shape",
    "slope": "negative_slope",
    "steps": "T_max total_iters",
    "stride": "strides",
    "strength": "l1 l2 weight_decay",
    "train": "data dataset",
    "validation": "validation_data",
    "vocabulary": "vocab_size",
    "weight_init": "kernel_initializer",
    "weight_regularizer": "kernel_regularizer",
    "widths": "hidden hidden_sizes hidden_layers",
    "window": "kernel_size pool_size kernel",
}

# What they ask for and nobody needs to say here.
_NEEDLESS = {
    "activation": "An activation is a layer of its own, lm.ReLU() for example, behind this one.",
    "in_features in_channels input_size input_dim num_features": "What comes in is found out "
    "when the layer is applied: leave it out.",
    "batch_first": "The batch always comes first: leave it out.",
    "x y targets labels": _PAIR,
}
