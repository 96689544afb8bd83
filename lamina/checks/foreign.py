"""Calls as PyTorch and Keras write them, in Lamina's spelling, for the advice of errors.

`Conv2d(3, 6, 5)` has PyTorch's order: inputs, outputs, window. Its translation is `Conv2d(6, 5)`,
with the reason: the input's channels are inferred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import Kind, Misfit, shown
from lamina.checks.spellings import ELSEWHERE
from lamina.errors import LaminaError

# The parameters of classes of the same name in PyTorch and Keras, in order. Those before the bar
# are required. A class without a row has Lamina's own order. The first signature that takes the
# arguments is the one that was meant.
_CONV = "in_channels out_channels kernel_size | stride padding dilation groups bias padding_mode"
_TRANSPOSED = (
    "in_channels out_channels kernel_size | stride padding output_padding groups bias dilation"
)
_FILTERS = (
    "filters kernel_size | strides padding data_format dilation_rate groups activation use_bias"
)
_MAX = "kernel_size | stride padding dilation return_indices ceil_mode"
_AVG = "kernel_size | stride padding ceil_mode count_include_pad divisor_override"
_LP = "norm_type kernel_size | stride ceil_mode"
_RECURRENT = "input_size hidden_size | num_layers bias batch_first dropout bidirectional"
_CELL = "input_size hidden_size | bias nonlinearity"
_UNITS = "units | activation recurrent_activation use_bias"
_BATCH = "num_features | eps momentum affine track_running_stats"
_BAG = (
    "num_embeddings embedding_dim | max_norm norm_type scale_grad_by_freq mode sparse _weight "
    "include_last_offset padding_idx"
)
_REDUCED = "size_average reduce reduction"
_MOMENTS = "params | lr betas eps weight_decay"
_KERAS_MOMENTS = "| learning_rate beta_1 beta_2 epsilon"
_BLOCK = (
    "d_model nhead | dim_feedforward dropout activation layer_norm_eps batch_first norm_first bias"
)
_RANKS = ("1d", "2d", "3d")
SIGNATURES: dict[str, tuple[str, ...]] = {
    **{f"Conv{rank}": (_CONV, _FILTERS) for rank in _RANKS},
    **{f"ConvTranspose{rank}": (_TRANSPOSED, _FILTERS) for rank in _RANKS},
    **{f"MaxPool{rank}": (_MAX,) for rank in _RANKS},
    **{f"AvgPool{rank}": (_AVG,) for rank in _RANKS},
    **{f"LPPool{rank}": (_LP,) for rank in _RANKS},
    **dict.fromkeys(("BatchNorm", "InstanceNorm"), (_BATCH, "| axis momentum epsilon")),
    **dict.fromkeys(("LSTM", "GRU"), (_RECURRENT, _UNITS)),
    **dict.fromkeys(("RNNCell", "LSTMCell", "GRUCell"), (_CELL, _UNITS)),
    **dict.fromkeys(("Hardsigmoid", "Hardswish", "Mish"), ("| inplace",)),
    **dict.fromkeys(("Hardshrink", "Softshrink"), ("| lambd",)),
    **dict.fromkeys(("GLU", "Softmin"), ("| dim",)),
    **dict.fromkeys(("TransformerEncoderBlock", "TransformerDecoderBlock"), (_BLOCK,)),
    **dict.fromkeys(("Precision", "Recall", "F1", "AUROC", "AveragePrecision"), ("| average",)),
    **dict.fromkeys(("MeanIoU", "MatthewsCorrelation", "CohenKappa"), ("| logits",)),
    "CalibrationError": ("| bins norm",),
    "AlphaDropout": ("p | inplace", "rate | noise_shape seed"),
    "Bilinear": ("in1_features in2_features out_features | bias",),
    "CELU": ("| alpha inplace",),
    "CosineSimilarity": ("| dim eps",),
    "RReLU": ("| lower upper inplace",),
    "Softplus": ("| beta",),
    "Threshold": ("threshold value | inplace",),
    **dict.fromkeys(("ReLU", "ReLU6", "SELU", "SiLU"), ("| inplace",)),
    **dict.fromkeys(("BCE", "MultiLabelSoftMargin"), (f"| weight {_REDUCED}",)),
    **dict.fromkeys(("MSE", "MAE", "SoftMargin", "MultiLabelMargin"), (f"| {_REDUCED}",)),
    **dict.fromkeys(
        ("HingeEmbedding", "MarginRanking", "CosineEmbedding"), (f"| margin {_REDUCED}",)
    ),
    "CrossEntropy": ("| weight size_average ignore_index reduce reduction label_smoothing",),
    "NLL": ("| weight size_average ignore_index reduce reduction",),
    "BCEWithLogits": (f"| weight {_REDUCED} pos_weight",),
    "CTC": ("| blank reduction zero_infinity",),
    "Huber": ("| reduction delta",),
    "MultiMargin": (f"| p margin weight {_REDUCED}",),
    "PoissonNLL": ("| log_input full size_average eps reduce reduction",),
    "SmoothL1": (f"| {_REDUCED} beta",),
    **dict.fromkeys(("Adam", "AdamW"), (f"{_MOMENTS} amsgrad", f"{_KERAS_MOMENTS} amsgrad")),
    "Adadelta": ("params | lr rho eps weight_decay", "| learning_rate rho epsilon"),
    "Adagrad": (
        "params | lr lr_decay weight_decay initial_accumulator_value eps",
        "| learning_rate initial_accumulator_value epsilon",
    ),
    "Adamax": (_MOMENTS, _KERAS_MOMENTS),
    "Dropout": ("p | inplace", "rate | noise_shape seed"),
    "ELU": ("| alpha inplace",),
    "Embedding": (
        "num_embeddings embedding_dim | padding_idx max_norm norm_type scale_grad_by_freq sparse",
    ),
    "EmbeddingBag": (_BAG,),
    "Flatten": ("| start_dim end_dim",),
    "GroupNorm": ("num_groups num_channels | eps affine", "| groups axis epsilon"),
    "Hardtanh": ("| min_val max_val inplace",),
    "KLDivergence": (f"| {_REDUCED} log_target",),
    "LayerNorm": ("normalized_shape | eps elementwise_affine bias", "| axis epsilon"),
    "LocalResponseNorm": ("size | alpha beta k",),
    "LeakyReLU": ("| negative_slope inplace",),
    "LBFGS": (
        "params | lr max_iter max_eval tolerance_grad tolerance_change history_size line_search_fn",
    ),
    "Linear": ("in_features out_features | bias", "units | activation use_bias"),
    "Lion": (_KERAS_MOMENTS.removesuffix(" epsilon"),),
    "MultiHeadAttention": (
        "embed_dim num_heads | dropout bias batch_first",
        "num_heads key_dim | value_dim dropout use_bias",
    ),
    "NAdam": (f"{_MOMENTS} momentum_decay", _KERAS_MOMENTS),
    "PairwiseDistance": ("| p eps keepdim",),
    "PReLU": ("| num_parameters init",),
    "RMSNorm": ("normalized_shape | eps elementwise_affine", "| axis epsilon"),
    "RMSProp": (
        "params | lr alpha eps weight_decay momentum centered",
        "| learning_rate rho momentum epsilon centered",
    ),
    "RNN": ("input_size hidden_size | num_layers nonlinearity bias batch_first dropout", _UNITS),
    "RandomAffine": ("degrees | translate scale shear interpolation fill",),
    "RandomCrop": ("size | padding pad_if_needed fill padding_mode", "height width"),
    "RandomErasing": ("| p scale ratio value inplace",),
    "RandomFlip": ("| p", "| mode"),
    "RandomGreyscale": ("| p",),
    **dict.fromkeys(("Mixup", "CutMix"), ("| alpha num_classes labels_getter",)),
    "Rprop": ("params | lr etas step_sizes",),
    "SGD": (
        "params | lr momentum dampening weight_decay nesterov",
        "| learning_rate momentum nesterov",
    ),
    "Upsample": ("| size scale_factor mode align_corners",),
}

# Parameters that Lamina does not need, and why.
LEFT_OUT: dict[str, str] = {
    "activity_regularizer autocast capturable differentiable foreach fused maximize noise_shape "
    "name seed trainable": "there is no such option here",
    "batch_first time_major": "the batch always comes first",
    "data_format": "the channels always come before the positions",
    "d_model": "the input's features are inferred, leave them out",
    "device dtype": "lm.Model chooses the engine and the precision",
    "in1_features in2_features key_dim": "the input's features are inferred, leave them out",
    "in_channels num_channels": "the input's channels are inferred, leave them out",
    "in_features input_size": "the input's features are inferred, leave them out",
    "num_classes labels_getter": "the loss of the training step takes both targets",
    "line_search_fn": "there is no line search",
    "max_iter max_eval": "each training step evaluates the gradient once",
    "inplace": "memory is planned, so there is no in-place variant",
    "num_features": "the input's size is inferred, leave it out",
    "params": "fit and training know the parameters, leave them out",
    "reduce": "reduction is one of three words",
    "return_indices divisor_override track_running_stats": "there is no such option here",
}
# Those of them that many classes have, so that the signatures do not list them.
_ANYWHERE = (
    "activity_regularizer autocast batch_first capturable data_format device differentiable dtype "
    "foreach fused maximize name seed trainable"
)
_REASONS = {name: reason for names, reason in LEFT_OUT.items() for name in names.split()}

# Values that such a parameter must have; with another one, the call has no equal in Lamina.
_HARMLESS: dict[str, tuple[object, ...]] = {
    "data_format": (None, "channels_first"),
    "divisor_override": (None,),
    "norm_type": (2.0,),
    "pad_if_needed": (False,),
    "reduce": (None,),
    "return_indices": (False,),
    "scale_grad_by_freq": (False,),
    "sparse": (False,),
    "track_running_stats": (True,),
    "weight": (None,),
}


class _Unfit(Exception):
    """The value has no equal in Lamina."""


def _pair(names: tuple[str, str]) -> Callable[[Any], dict[str, Any]]:
    def split(value: Any) -> dict[str, Any]:
        if not isinstance(value, list | tuple) or len(cast(Sequence[Any], value)) != 2:
            raise _Unfit
        return dict(zip(names, cast(Sequence[Any], value), strict=True))

    return split


def _normalized(value: Any) -> dict[str, Any]:
    """The last k axes, for a shape of k dimensions."""
    if isinstance(value, int):
        return {}
    if not isinstance(value, list | tuple):
        raise _Unfit
    count = len(cast(Sequence[Any], value))
    return {} if count == 1 else {"axes": tuple(range(-count, 0))}


def _params(value: Any) -> dict[str, Any]:
    """The parameters of an optimizer, which are no rate."""
    if isinstance(value, int | float | str):
        raise _Unfit
    return {}


def _shift(value: Any) -> dict[str, Any]:
    """One share for both axes."""
    if not isinstance(value, list | tuple):
        raise _Unfit
    shares = set(cast(Sequence[Any], value))
    if len(shares) != 1:
        raise _Unfit
    return {"shift": shares.pop()}


# Activations that Keras names in a layer, as layers.
ACTIVATIONS = {
    "elu": "ELU",
    "gelu": "GELU",
    "leaky_relu": "LeakyReLU",
    "hard_sigmoid": "Hardsigmoid",
    "hard_silu": "Hardswish",
    "log_sigmoid": "LogSigmoid",
    "log_softmax": "LogSoftmax",
    "mish": "Mish",
    "relu6": "ReLU6",
    "softsign": "Softsign",
    "relu": "ReLU",
    "selu": "SELU",
    "sigmoid": "Sigmoid",
    "silu": "SiLU",
    "softmax": "Softmax",
    "softplus": "Softplus",
    "swish": "SiLU",
    "tanh": "Tanh",
}


def _degrees(value: Any) -> dict[str, Any]:
    """Degrees in both directions, of a number or a pair; numbers below 1 are shares of a circle."""
    pair = list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, int | float) for one in pair):
        raise _Unfit
    if len(pair) > 2 or (len(pair) == 2 and -pair[0] != pair[1]) or not pair:
        raise _Unfit
    return {"degrees": round(360.0 * pair[-1], 6) if 0 < pair[-1] < 1 else pair[-1]}


def _doubled(value: Any) -> dict[str, Any]:
    """The strength of Keras' L2, whose penalty has no factor of one half."""
    if not isinstance(value, int | float):
        raise _Unfit
    return {"strength": 2 * value}


def _flipped(value: Any) -> dict[str, Any]:
    """The axis of Keras' words for the directions of a flip."""
    axes = {"horizontal": -1, "vertical": -2}
    if not isinstance(value, str) or value not in axes:
        raise _Unfit
    return {"axis": axes[value]}


def _averaged(value: Any) -> dict[str, Any]:
    """The reduction, for PyTorch's older option."""
    if not isinstance(value, bool | None):
        raise _Unfit
    return {} if value is None else {"reduction": "mean" if value else "sum"}


def _outside(value: Any) -> dict[str, Any]:
    """The elements outside an image, which Keras calls fill_mode."""
    words = {"constant": "zeros", "nearest": "border"}
    if not isinstance(value, str) or value not in words:
        raise _Unfit
    return {"padding": words[value]}


# Parameters that become other options, or none.
_CONVERTED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "betas": _pair(("beta1", "beta2")),
    "etas": _pair(("decrease", "increase")),
    "step_sizes": _pair(("shortest", "longest")),
    "normalized_shape": _normalized,
    "num_parameters": lambda value: {} if value == 1 else {"per_channel": True},
    "params": _params,
    "size_average": _averaged,
    "translate": _shift,
    "return_sequences": lambda value: {"returns": "all" if value is True else "last"},
}
_BETWEEN: dict[str, str] = {
    "factor": "degrees are 360 * factor",
    "l2": "the penalty is strength / 2 times the sum of squares",
    "normalized_shape": "axes are given instead of a shape, the last one by default",
}
# The same in one class alone.
_CONVERTED_IN: dict[tuple[str, str], Callable[[Any], dict[str, Any]]] = {
    ("L2", "l2"): _doubled,
    ("RandomFlip", "mode"): _flipped,
    ("RandomRotation", "degrees"): _degrees,
    ("RandomRotation", "factor"): _degrees,
    ("RandomRotation", "fill_mode"): _outside,
}
# Required options that PyTorch has a default for, by the parameter before them.
_DEFAULTS: dict[str, dict[str, Any]] = {"nhead": {"hidden": 2048}}
# Names that mean another option in these classes than `ELSEWHERE` says.
_SPECIAL: dict[tuple[str, str], str] = {
    ("LPPool1d", "norm_type"): "power",
    ("LPPool2d", "norm_type"): "power",
    ("LPPool3d", "norm_type"): "power",
    ("Adagrad", "initial_accumulator_value"): "initial_sum",
    ("RMSProp", "alpha"): "decay",
    ("ELU", "alpha"): "alpha",
    ("CELU", "alpha"): "alpha",
    ("Cyclic", "base_lr"): "least",
    ("LocalResponseNorm", "size"): "window",
}
# Advice on arguments that say too little for a translation.
_WRITTEN = {
    "MaxUnpool": (
        "Write MaxUnpool(size=...): the extents before pooling, instead of the window. "
        'The indices are those of MaxPool2d(2, returns="indices").'
    ),
}
# Advice on values of which there is no translation: the class, the option and a test.
_REFUSED: tuple[tuple[str, str, Callable[[Any], bool], str], ...] = (
    (
        "Rescale",
        "scale",
        lambda value: isinstance(value, list | tuple),
        (
            "The scale is one number. Normalise channels before training, or with arrays of the "
            "shape [channels, 1, 1]: (x - mean) / deviation."
        ),
    ),
    (
        "",
        "rate",
        lambda value: isinstance(value, str),
        "A rate is a number, without quotes, or a schedule.",
    ),
    (
        "RandomFlip",
        "mode",
        lambda _: True,
        (
            "Each axis is a layer: RandomFlip(axis=-1) exchanges left and right, "
            "RandomFlip(axis=-2) top and bottom."
        ),
    ),
)
# Classes whose positional arguments mean one thing in PyTorch and another in Keras.
_TWO_MEANINGS = {
    "MultiHeadAttention": ("for PyTorch's arguments", "for Keras's"),
    "RandomCrop": ("for a padding, as in PyTorch", "for height and width, as in Keras"),
    "Upsample": ("for a size, as in PyTorch", "for a factor, as in Keras"),
    **dict.fromkeys(
        [f"Conv{transposed}{rank}" for transposed in ("", "Transpose") for rank in _RANKS],
        (
            "if the first number is the input's channels, as in PyTorch",
            "if the third is the stride, as in Keras",
        ),
    ),
}


def has_other_value(name: str, option: str) -> bool:
    """Whether an option of a class has another value here, not only another name."""
    return (name, option) in _CONVERTED_IN


@frozen_dataclass
class Translation:
    """A call in Lamina's spelling.

    Attributes:
        call: its text.
        reasons: why arguments were left out.
    """

    call: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.call}{': ' * bool(self.reasons)}{'; '.join(self.reasons)}"


def advice_for(
    name: str,
    kinds: Mapping[str, Kind],
    positional: Sequence[str],
    accepted: Sequence[str],
    required: Collection[str],
    values: Sequence[Any],
    options: Mapping[str, Any],
) -> str:
    """The advice for arguments that a class does not take; "" if they are in no known spelling.

    Args:
        name: of the class.
        kinds: of its options, by name.
        positional: the options that it takes by position.
        accepted: all of its options.
        required: those without a default.
        values: the arguments by position.
        options: the arguments by name.
    """
    call = _Call(name, kinds, positional, accepted, required, tuple(values), options)
    found: list[Translation] = []
    for one in call.translations():
        if one.call not in [earlier.call for earlier in found]:
            found.append(one)
    if name in _WRITTEN and (values or not found):
        return _WRITTEN[name]
    if not found:
        signature = SIGNATURES.get(name, ("| " + " ".join(accepted),))[-1].replace("| ", "")
        given = dict(zip(signature.split(), values, strict=False))
        given = {**given, **dict(zip(positional, values, strict=False)), **options}
        texts = [
            text
            for owner, option, is_wrong, text in _REFUSED
            if owner in ("", name) and option in given and is_wrong(given[option])
        ]
        return texts[0] if texts else ""
    meanings = _TWO_MEANINGS.get(name)
    if meanings and values and len(found) > 1 and not _is_unlikely(name, values):
        first, second = (f"{one.call} {why}" for one, why in zip(found, meanings, strict=False))
        return f"Write {first}, or {second}."
    return f"Write {found[0]}."


# Windows of usual convolutions are smaller.
_USUAL_WINDOWS = 8


def _is_unlikely(name: str, values: Sequence[Any]) -> bool:
    """Whether the second meaning is an unusual convolution.

    In it the numbers are channels, window and stride. `(3, 6, 5)` would be a window of 6 for 3
    channels, and `(64, 32, 3)` a window of 32.
    """
    if not name.startswith("Conv") or not all(isinstance(one, int) for one in values[:3]):
        return False
    channels, window, stride = values[:3]
    return not stride <= window < min(channels, _USUAL_WINDOWS)


@frozen_dataclass(eq=False)
class _Call:
    name: str
    kinds: Mapping[str, Kind]
    positional: Sequence[str]
    accepted: Sequence[str]
    required: Collection[str]
    values: tuple[Any, ...]
    options: Mapping[str, Any]

    def translations(self) -> Iterator[Translation]:
        """The call in Lamina's spelling, once for each meaning that it may have."""
        signatures = [*SIGNATURES.get(self.name, ()), "| " + " ".join(self.accepted)]
        for signature in signatures:
            required, _, others = signature.partition("|")
            try:
                yield self._translated(required.split(), others.split())
            except _Unfit:
                continue

    def _translated(self, required: list[str], others: list[str]) -> Translation:
        names = [*required, *others]
        if len(self.values) > len(names):
            raise _Unfit
        given = dict(zip(names, self.values, strict=False))
        if given.keys() & self.options.keys():
            raise _Unfit
        given |= self.options
        if "height" in given and "width" in given:
            given = {"size": (given.pop("height"), given.pop("width")), **given}
            required = ["size"]
        if self.values and not given.keys() >= set(required):
            raise _Unfit
        if "d_model" in names and not _is_divided(given.get("d_model"), given.get("nhead")):
            raise _Unfit
        ours: dict[str, Any] = {}
        reasons: list[str] = []
        after = ""
        for name, value in given.items():
            if name == "activation" and name not in self.accepted:
                after = self._after(value)
                reasons += ["an activation is a layer of its own"] * bool(after)
                continue
            read = self._read(name, value, name in names or name in _ANYWHERE.split())
            if ours.keys() & read.keys():
                raise _Unfit
            ours |= read
            between = _BETWEEN.get(name, "")
            if name == "factor" and name in self.accepted:
                between = ""  # Lamina's own option
            reason = between or ("" if read else _REASONS.get(name, ""))
            if reason and reason not in reasons:
                reasons.append(reason)
        for name in given.keys() & _DEFAULTS.keys():
            lacking = {n: v for n, v in _DEFAULTS[name].items() if n not in ours}
            reasons += [f"{n} is {v} by default in PyTorch" for n, v in lacking.items()]
            ours |= lacking
        return Translation(self._text(ours) + after, tuple(reasons))

    def _after(self, activation: Any) -> str:
        """The layer of an activation, as text after this one."""
        usual = "tanh" if self.name.startswith(("LSTM", "GRU")) else "linear"
        if activation is None or (isinstance(activation, str) and activation == usual):
            return ""
        if not self.name.startswith(("Linear", "Conv")):
            raise _Unfit
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise _Unfit
        return f", {ACTIVATIONS[activation]}()"

    def _read(self, name: str, value: Any, known: bool) -> dict[str, Any]:
        """The options that a parameter becomes; `known` is whether the signature has it."""
        if (self.name, name) in _CONVERTED_IN:
            return _CONVERTED_IN[self.name, name](value)
        if name in self.accepted and (self.name, name) not in _SPECIAL:
            return {name: value}
        if name in _CONVERTED:
            return _CONVERTED[name](value)
        special = _SPECIAL.get((self.name, name))
        ours = [one for one in self.accepted if name in ELSEWHERE.get(one, "").split()]
        if special or len(ours) == 1:
            return {special or ours[0]: value}
        if name in _HARMLESS and known:
            if value not in _HARMLESS[name]:
                raise _Unfit
            return {}
        if name not in _REASONS or not known:
            raise _Unfit
        return {}

    def _text(self, ours: dict[str, Any]) -> str:
        """The call with these options, if Lamina's class takes them."""
        for name, value in ours.items():
            kind = self.kinds.get(name)
            try:
                if kind is not None:
                    kind.read(value)
            except (Misfit, LaminaError):
                raise _Unfit from None
        if not ours.keys() >= set(self.required):
            raise _Unfit
        first = [name for name in self.positional if name in ours]
        if first != list(self.positional[: len(first)]):
            raise _Unfit
        by_name = {name: value for name, value in ours.items() if name not in first}
        return call_text(self.name, [ours[name] for name in first], by_name)


def _is_divided(features: object, heads: object) -> bool:
    """Whether a number of heads fits the features, or one of them is not given."""
    if not isinstance(features, int) or not isinstance(heads, int):
        return features is None or heads is None
    return heads > 0 and features % heads == 0


def call_text(name: str, values: Sequence[Any], options: Mapping[str, Any]) -> str:
    """A call as text."""
    texts = [*map(_shown, values), *(f"{name}={_shown(v)}" for name, v in options.items())]
    return f"{name}({', '.join(texts)})"


def _shown(value: Any) -> str:
    return "x" if hasattr(value, "rank") else shown(value)
