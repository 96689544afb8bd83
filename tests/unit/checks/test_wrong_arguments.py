"""Every public call with wrong values for each of its parameters.

The table below has a valid call of each public callable, and the values of `VALUES` that each
parameter takes. A public callable without a row, or a parameter without values, is a failure. Each
value is read once by each kind: it takes the values that the parameters of this kind take.

In wider runs (`--part`) all calls are made. For all other values a call must raise a `LaminaError`
that names the parameter or the callable; no other error, and no silent acceptance. Results of
accepted calls are used.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.checks.calls import _kinds_of, _kinds_of_class
from lamina.checks.kinds import Kind, Misfit
from lamina.errors import EngineError, InternalError, LaminaError
from lamina.learning.protocols import TrainingOptions
from lamina.step.derive import BatchSpecs, default_targets, training_graph


class ForeignTensor:
    """A tensor of another library, on a device that NumPy cannot read."""

    shape = (2,)
    dtype = "float32"
    requires_grad = False

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("can't convert device tensor to numpy")

    def __len__(self) -> int:
        return 2

    def detach(self) -> ForeignTensor:
        return self

    def __repr__(self) -> str:
        return "tensor([1., 2.], device='far:0')"


class NearTensor(ForeignTensor):
    """One that NumPy can read."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.array([1.0, 2.0])


VALUES: dict[str, Any] = {
    "None": None,
    "text": "a",
    "empty": "",
    "-1": -1,
    "0": 0,
    "1": 1,
    "1.5": 1.5,
    "half": np.float32(0.5),
    "nan": math.nan,
    "inf": math.inf,
    "True": True,
    "np.True_": np.True_,
    "()": (),
    "(1.0,)": (1.0,),
    "[1, 2]": [1, 2],
    "{}": {},
    "object": object(),
    "lambda": lambda *_, **__: None,
    "class": dict,
    "vector": np.array([1.0, 2.0]),
    "matrix": np.array([[1.0, 2.0], [3.0, 4.0]]),
    "np.int64(1)": np.int64(1),
    "huge": 10**30,
    "foreign": ForeignTensor(),
    "near": NearTensor(),
}
# Values that must mean the same.
EQUAL = {"np.int64(1)": "1", "np.True_": "True", "near": "vector"}

# Values that parameters accept.
Accepted = frozenset[str]


def some(*names: str) -> Accepted:
    assert set(names) <= VALUES.keys()
    return frozenset(names)


NOTHING = some()
OPTIONAL = some("None")
FLAG = some("True", "np.True_")
COUNT = some("1", "np.int64(1)")
FROM_ZERO = COUNT | some("0")
WHOLE = FROM_ZERO | some("-1")
POSITIVE = COUNT | some("1.5", "half", "huge")
NOT_NEGATIVE = POSITIVE | some("0")
NUMBER = NOT_NEGATIVE | some("-1")
FRACTION = some("0", "half")
UNIT = FRACTION | COUNT
TEXT = some("text", "empty")
PATH = some("text")
TEXT_OF_A_NAME = some("text")
BEST = some("None")
FUNCTION = some("lambda")
COUNTS = some("()", "[1, 2]")
NUMBERS = some("()", "(1.0,)", "[1, 2]", "vector", "near")

# By the parameter's name, where a row has no other values.
USUAL: dict[str, Accepted] = {
    "affine": FLAG,
    "amsgrad": FLAG,
    "batch_norm": FLAG,
    "batch_size": COUNT,
    "beta1": FRACTION,
    "beta2": FRACTION,
    "bias": FLAG,
    "bias_init": OPTIONAL | FUNCTION,
    "bias_regularizer": OPTIONAL | FUNCTION,
    "bidirectional": FLAG,
    "causal": FLAG,
    "ceil_mode": FLAG,
    "channels": COUNT,
    "class_weights": OPTIONAL | NUMBERS,
    "weights": OPTIONAL,
    "classes": COUNT,
    "clip": OPTIONAL,
    "count": COUNT,
    "count_padding": FLAG,
    "decay": FRACTION,
    "delta": POSITIVE,
    "deviation": NOT_NEGATIVE,
    "dilation": COUNT | some("[1, 2]"),
    "drop_last": FLAG,
    "dropout": UNIT,
    "dtype": NOTHING,
    "engine": NOTHING,
    "epsilon": NOT_NEGATIVE,
    "every": COUNT,
    "factor": COUNT,
    "features": COUNT,
    "final": NOT_NEGATIVE,
    "frozen": some("()"),
    "gain": POSITIVE,
    "groups": COUNT,
    "heads": COUNT,
    "hidden": COUNT,
    "k": COUNT,
    "keepdims": FLAG,
    "label_smoothing": UNIT,
    "layers": COUNT,
    "length": COUNT,
    "limit": POSITIVE,
    "loss": NOTHING,
    "mean": NUMBER,
    "metrics": some("()", "{}"),
    "mode": NOTHING,
    "momentum": NOT_NEGATIVE,
    "name": OPTIONAL | some("text"),
    "network": NOTHING,
    "optimizer": NOTHING,
    "power": POSITIVE,
    "precision": NOTHING,
    "probability": UNIT,
    "rate": NOT_NEGATIVE | FUNCTION,
    "reduction": NOTHING,
    "returns": NOTHING,
    "seed": WHOLE,
    "slope": NUMBER,
    "steps": COUNT,
    "strength": NOT_NEGATIVE,
    "stride": COUNT | some("[1, 2]"),
    "truncate": OPTIONAL | COUNT,
    "weight_decay": NOT_NEGATIVE,
    "weight_init": OPTIONAL | FUNCTION,
    "weight_regularizer": OPTIONAL | FUNCTION,
    "window": COUNT | some("[1, 2]"),
}


@dataclass(frozen=True)
class Row:
    """A public call.

    Attributes:
        valid: arguments of a valid call; a `Made` is made anew for each call.
        accepts: by parameter, where it differs from `USUAL`.
        use: a function of the result, which uses it.
        call: the callable, if not the public name itself: a method of an object.
        words: names in errors that may replace the parameter or the callable.
        long: parameters of which right values are not tried, since they take long.
    """

    valid: Mapping[str, Any] = field(default_factory=dict[str, Any])
    accepts: Mapping[str, Accepted] = field(default_factory=dict[str, Accepted])
    use: Callable[[Any], object] | None = None
    call: Callable[..., Any] | None = None
    words: tuple[str, ...] = ()
    long: tuple[str, ...] = ()


@dataclass(frozen=True)
class Made:
    make: Callable[[], Any]


ROWS: dict[str, Row] = {}


# Uses of records ----------------------------------------------------------------------------------


def applied(*shape: int, dtype: str | None = None, times: int = 1) -> Callable[[Any], object]:
    """Builds both modes of a network of the layer."""

    def use(layer: Any) -> None:
        x = [lm.Input(*shape, dtype=dtype) for _ in range(times)]
        lm.Network(x, layer(*x)).variables(float32)

    return use


def unpooled(layer: Any) -> None:
    values, indices = lm.Input(4, 3, 3), lm.Input(4, 3, 3, dtype="int64")
    lm.Network([values, indices], layer(values, indices)).variables(float32)


def with_targets(*shapes: tuple[int, ...], target: tuple[tuple[int, ...], str] | None) -> Any:
    def use(loss: Any) -> None:
        outputs = tuple(lm.Input(*shape) for shape in shapes)
        wanted = None if target is None else lm.Input(*target[0], dtype=target[1])
        assert loss(outputs if len(outputs) > 1 else outputs[0], wanted).shape == ()

    return use


def updated(optimizer: Any) -> None:
    """Builds the training graph of a network with the optimizer."""
    if not callable(getattr(optimizer, "rate", None)):
        build_training_graph(net(), lm.MSE(), optimizer)


def net() -> lm.Network:
    return lm.Sequential(lm.Input(3), lm.Linear(2))


def build_training_graph(network: lm.Network, loss: Any, optimizer: Any) -> None:
    targets = default_targets(network, loss, float32)
    training_graph(BatchSpecs(network, float32, targets=targets), TrainingOptions(loss, optimizer))


def scheduled(schedule: Any) -> None:
    if not callable(getattr(schedule, "then", None)):
        assert schedule.at(3) >= 0


def initial(init: Any) -> None:
    assert init((4, 3), 0, 0).shape == (4, 3)


def clipped(clip: Any) -> None:
    assert len(clip([lm.Input(3), lm.Input(2)])) == 2


def unused(_: object) -> None:
    return


# Layers -------------------------------------------------------------------------------------------

FEATURES, SEQUENCE, IMAGE = applied(6), applied(4, 6), applied(4, 6, 6)
INDICES, COLOURS = applied(4, dtype="int64"), applied(3, 6, 6)
SIDES, PAIR = FROM_ZERO | some("[1, 2]"), some("[1, 2]", "vector", "near")

# Of attention.
GROUPED = {"key_heads": OPTIONAL | COUNT, "rotary": OPTIONAL | POSITIVE}

for one in (
    *("Tanh", "Sigmoid", "ReLU", "SELU", "SiLU", "Mish", "LogSigmoid", "Softsign"),
    *("Tanhshrink", "ReLU6", "Hardsigmoid", "Hardswish"),
):
    ROWS[one] = Row(use=FEATURES)
ROWS |= {
    "LeakyReLU": Row(use=FEATURES),
    "PReLU": Row({}, {"per_channel": FLAG, "slope": NUMBER}, FEATURES),
    # Above the default of `low`, below that of `high`.
    "RReLU": Row({}, {"low": some("-1", "0"), "high": POSITIVE}, FEATURES),
    "Threshold": Row(
        {"threshold": 0.1, "value": 0.0}, {"threshold": NUMBER, "value": NUMBER}, FEATURES
    ),
    "CELU": Row({}, {"alpha": POSITIVE}, FEATURES),
    "Hardshrink": Row({}, {"threshold": NOT_NEGATIVE}, FEATURES),
    "Softshrink": Row({}, {"threshold": NOT_NEGATIVE}, FEATURES),
    "Softplus": Row({}, {"beta": POSITIVE}, FEATURES),
    "Softmin": Row({"axis": -1}, {"axis": WHOLE}, SEQUENCE),
    "GLU": Row({"axis": -1}, {"axis": WHOLE, "activation": NOTHING}, SEQUENCE),
    "ELU": Row({"alpha": 1.0}, {"alpha": NUMBER}, FEATURES),
    "GELU": Row({"approximate": "tanh"}, {"approximate": NOTHING}, FEATURES),
    "Softmax": Row({"axis": -1}, {"axis": WHOLE}, SEQUENCE),
    "LogSoftmax": Row({"axis": -1}, {"axis": WHOLE}, SEQUENCE),
    # Above the default of `low`, below that of `high`.
    "Hardtanh": Row({}, {"low": some("-1", "0", "half"), "high": NOT_NEGATIVE}, FEATURES),
    "Linear": Row({"features": 2}, {}, FEATURES),
    "TiedLinear": Row(
        {"layer": lm.Linear(4)},
        {"layer": NOTHING},
        lambda layer: layer,
    ),
    "Reshape": Row(
        {"shape": (2, 3)},
        {"dimensions": COUNT | some("-1"), "shape": some("()", "[1, 2]")},
        FEATURES,
    ),
    "Flatten": Row({}, {"first": WHOLE, "last": WHOLE}, FEATURES),
    "Rescale": Row({"scale": 2.0}, {"scale": NUMBER, "offset": NUMBER}, FEATURES),
    "Dropout": Row({"probability": 0.5}, {}, FEATURES),
    "SpatialDropout": Row({"probability": 0.5}, {}, IMAGE),
    "DropPath": Row({"probability": 0.5}, {}, FEATURES),
    "GaussianNoise": Row({"deviation": 0.5}, {}, FEATURES),
    "GaussianSample": Row(use=applied(6, times=2)),
    "RandomFlip": Row({"axis": 2}, {"axis": COUNT | some("-1")}, IMAGE),
    "RandomCrop": Row(
        {"size": 2},
        {
            "size": COUNT | some("[1, 2]"),
            "padding": SIDES,
            "padding_mode": NOTHING,
            "value": NUMBER,
        },
        IMAGE,
    ),
    "RandomShift": Row({"most": 2}, {"most": SIDES, "value": NUMBER}, IMAGE),
    "RandomErasing": Row(
        {"area": (0.1, 0.2)},
        {"area": NOTHING, "ratio": PAIR, "probability": UNIT, "value": NUMBER},
        IMAGE,
    ),
    "ColourJitter": Row(
        {},
        {
            **dict.fromkeys(("brightness", "contrast", "saturation"), NOT_NEGATIVE),
            "hue": FRACTION,
            "high": POSITIVE,
        },
        COLOURS,
    ),
    "RandomGreyscale": Row({}, {}, COLOURS),
    "RandomAffine": Row(
        {},
        {
            "degrees": NOT_NEGATIVE,
            "shift": NOT_NEGATIVE,
            "scale": PAIR,
            "shear": NOT_NEGATIVE - some("huge"),
            "padding": NOTHING,
        },
        IMAGE,
    ),
    "RandomRotation": Row(
        {"degrees": 10.0}, {"degrees": NOT_NEGATIVE - some("half"), "padding": NOTHING}, IMAGE
    ),
    "Mixup": Row({}, {"alpha": POSITIVE}, FEATURES),
    "CutMix": Row({}, {"alpha": POSITIVE}, IMAGE),
    "Embedding": Row(
        {"count": 5, "features": 2},
        {"padding": OPTIONAL | FROM_ZERO, "max_norm": OPTIONAL | POSITIVE},
        INDICES,
    ),
    "OneHot": Row({"classes": 3}, {}, INDICES),
    "SinusoidalPositions": Row(use=SEQUENCE),
    "LearnedPositions": Row(use=SEQUENCE),
    "Add": Row(use=applied(6, times=2)),
    "Multiply": Row(use=applied(6, times=2)),
    "Concat": Row({"axis": 1}, {"axis": COUNT}, applied(6, times=2)),
    "EmbeddingBag": Row(
        {"count": 5, "features": 2},
        {"padding": OPTIONAL | FROM_ZERO, "mode": NOTHING, "max_norm": OPTIONAL | POSITIVE},
        INDICES,
    ),
    "Bilinear": Row({"features": 2}, {}, applied(6, times=2)),
    "CosineSimilarity": Row({}, {"axis": WHOLE, "epsilon": POSITIVE}, applied(6, times=2)),
    "PairwiseDistance": Row({}, {"power": POSITIVE, "epsilon": POSITIVE}, applied(6, times=2)),
    "Identity": Row(use=FEATURES),
    "AlphaDropout": Row({"probability": 0.5}, {"whole_channels": FLAG}, IMAGE),
    "ChannelShuffle": Row({"groups": 2}, {}, IMAGE),
    "LocalResponseNorm": Row(
        {"window": 3}, {"window": COUNT, "alpha": NUMBER, "beta": NUMBER, "k": NUMBER}, IMAGE
    ),
    "BatchNorm": Row({}, {"momentum": OPTIONAL | UNIT, "running": FLAG}, IMAGE),
    "LayerNorm": Row({}, {"axes": WHOLE | some("[1, 2]")}, IMAGE),
    "RMSNorm": Row({}, {"axes": WHOLE | some("[1, 2]"), "epsilon": OPTIONAL | NOT_NEGATIVE}, IMAGE),
    "GroupNorm": Row({"groups": 2}, {}, IMAGE),
    "InstanceNorm": Row({}, {"momentum": UNIT, "running": FLAG}, IMAGE),
    "Upsample": Row(
        {"scale": 2, "mode": "bilinear"},
        {
            "scale": POSITIVE | some("(1.0,)", "[1, 2]", "vector", "near"),
            "size": OPTIONAL,
            "align_corners": FLAG,
        },
        IMAGE,
    ),
    "PixelShuffle": Row({"factor": 2}, {}, IMAGE),
    "PixelUnshuffle": Row({"factor": 2}, {}, IMAGE),
    "Pad": Row({"widths": 1}, {"widths": WHOLE | some("[1, 2]"), "value": NUMBER}, IMAGE),
    "Crop": Row({"widths": 1}, {"widths": FROM_ZERO | some("[1, 2]")}, IMAGE),
    "MultiHeadAttention": Row(
        {"heads": 3},
        {"features": OPTIONAL, "head_features": OPTIONAL | COUNT, "returns": NOTHING, **GROUPED},
        SEQUENCE,
    ),
    "TransformerEncoderBlock": Row(
        {"heads": 3, "hidden": 3},
        {"activation": NOTHING, "norm_first": FLAG, **GROUPED},
        SEQUENCE,
    ),
    "TransformerDecoderBlock": Row(
        {"heads": 3, "hidden": 3},
        {"activation": NOTHING, "norm_first": FLAG, **GROUPED},
        applied(4, 6, times=2),
    ),
    "RNN": Row({"features": 2}, {"activation": NOTHING}, SEQUENCE),
    "LSTM": Row({"features": 2}, {"projection": OPTIONAL | COUNT}, SEQUENCE),
    "GRU": Row({"features": 2}, {}, SEQUENCE),
    "RNNCell": Row({"features": 2}, {"activation": NOTHING}, FEATURES),
    "LSTMCell": Row({"features": 2}, {}, FEATURES),
    "GRUCell": Row({"features": 2}, {}, FEATURES),
    "GlobalAvgPool": Row(use=IMAGE),
    "GlobalMaxPool": Row(use=IMAGE),
    "AdaptiveAvgPool": Row({"size": 2}, {"size": COUNT | some("[1, 2]")}, IMAGE),
    "MaxUnpool": Row({"size": 8}, {"size": COUNT | some("[1, 2]")}, unpooled),
    "AdaptiveMaxPool": Row(
        {"size": 2}, {"size": COUNT | some("[1, 2]"), "returns": NOTHING}, IMAGE
    ),
}
for rank in (1, 2, 3):
    # A list of two numbers has one for each axis of an image alone.
    alone = dict.fromkeys(("window", "stride", "dilation"), COUNT) if rank != 2 else {}
    pairs = FROM_ZERO | (some("[1, 2]") if rank == 2 else NOTHING)
    image = applied(4, *(8,) * rank)
    options = {**alone, "padding": pairs, "padding_mode": NOTHING}
    ROWS[f"Conv{rank}d"] = Row({"channels": 2, "window": 3}, options, image)
    # The added extent is smaller than the stride.
    options = {**alone, "padding": pairs, "output_padding": some("0")}
    ROWS[f"ConvTranspose{rank}d"] = Row({"channels": 2, "window": 3}, options, image)
    halves = FROM_ZERO
    options = {
        **alone,
        "padding": halves,
        "stride": OPTIONAL | alone.get("stride", USUAL["stride"]),
    }
    more = options | {"returns": NOTHING}
    ROWS[f"MaxPool{rank}d"] = Row({"window": 3, "padding": 0}, more, image)
    more = options | {"divisor": OPTIONAL | COUNT}
    ROWS[f"AvgPool{rank}d"] = Row({"window": 3, "padding": 0}, more, image)
    ROWS[f"LPPool{rank}d"] = Row({"window": 3, "padding": 0}, options, image)

ROWS["ops.Window"] = Row(
    {"size": 3},
    {
        "size": COUNT,
        "stride": COUNT,
        "dilation": COUNT,
        "before": FROM_ZERO,
        "after": FROM_ZERO,
        "ceil": FLAG,
    },
    lambda window: ops.window_max(lm.Input(4, 8), [window]),
)


# Losses, metrics, clipping, regularizers, initializers, schedules ---------------------------------

TWO, NUMBERS_OF_CLASSES = (2,), ((), "int64")
SAME = with_targets(TWO, target=(TWO, "float32"))
CLASSES = with_targets(TWO, target=NUMBERS_OF_CLASSES)
SCALAR = ((), "float32")
IGNORING = {"ignore_index": OPTIONAL | WHOLE}
PAIR = with_targets(TWO, TWO, target=(TWO, "float32"))
MARGIN = {"margin": NUMBER}
for name in ("MSE", "MAE", "LogCosh", "Hinge", "SquaredHinge", "SoftMargin", "NegativeCosine"):
    ROWS[name] = Row(use=SAME)
for name in ("MAPE", "MultiLabelSoftMargin", "BCE"):
    ROWS[name] = Row({}, {"epsilon": POSITIVE}, SAME)
ROWS |= {
    "Huber": Row(use=SAME),
    "SmoothL1": Row({}, {"beta": NOT_NEGATIVE}, SAME),
    "Quantile": Row({}, {"quantiles": some("half")}, SAME),
    "MSLE": Row(use=SAME),
    "CrossEntropy": Row({}, IGNORING, CLASSES),
    "NLL": Row({}, IGNORING, CLASSES),
    "Focal": Row({}, {**IGNORING, "focus": NOT_NEGATIVE}, CLASSES),
    "BinaryFocal": Row({}, {"focus": NOT_NEGATIVE, "balance": OPTIONAL | FRACTION}, SAME),
    "BCEWithLogits": Row({}, {"positive_weight": OPTIONAL | NOT_NEGATIVE | NUMBERS}, SAME),
    "HingeEmbedding": Row({}, MARGIN, SAME),
    "MarginRanking": Row({}, MARGIN, PAIR),
    "MultiMargin": Row({}, {**MARGIN, "power": COUNT}, CLASSES),
    "CategoricalHinge": Row(use=CLASSES),
    "MultiLabelMargin": Row(use=with_targets(TWO, target=(TWO, "int64"))),
    "KLDivergence": Row({}, {"log_target": FLAG}, SAME),
    "GaussianNLL": Row({}, {"full": FLAG, "epsilon": POSITIVE}, PAIR),
    "PoissonNLL": Row({}, {"full": FLAG, "log_input": FLAG}, SAME),
    "Triplet": Row(
        {}, {"margin": NOT_NEGATIVE, "swap": FLAG}, with_targets(TWO, TWO, TWO, target=None)
    ),
    "TripletWithDistance": Row(
        {"distance": lambda a, b: ops.max(abs(a - b), -1)},
        {"distance": FUNCTION, "margin": NOT_NEGATIVE, "swap": FLAG},
        with_targets(TWO, TWO, TWO, target=None),
    ),
    "CosineEmbedding": Row(
        {}, {"margin": UNIT | some("-1")}, with_targets(TWO, TWO, target=SCALAR)
    ),
    "Dice": Row({}, {"smoothing": NOT_NEGATIVE, "squared": FLAG}, SAME),
    "CTC": Row(
        {},
        {"blank": FROM_ZERO, "zero_infinity": FLAG},
        with_targets((5, 3), target=((2,), "int64")),
    ),
    "EvidenceLowerBound": Row(
        {},
        {"divergence": NOT_NEGATIVE},
        with_targets((3,), TWO, TWO, target=((3,), "float32")),
    ),
    "ByOutput": Row(
        {"losses": {"a": lm.MSE()}}, {"losses": NOTHING, "factors": OPTIONAL | some("{}")}
    ),
    "FunctionMetric": Row(
        {"function": lambda prediction, target: prediction, "name": "own"},
        {"function": FUNCTION, "name": some("text")},
    ),
}
A_PREDICTION = Made(lambda: lm.Input(2))
ROWS["Loss.__call__"] = Row(
    {"prediction": A_PREDICTION, "target": A_PREDICTION},
    {"prediction": NOTHING, "target": NOTHING, "weights": OPTIONAL},
    call=lm.MSE(),
    words=("MSE",),
)
for name in ("MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError", "R2"):
    ROWS[name] = Row()
for name in ("Accuracy", "ConfusionMatrix", "Perplexity"):
    ROWS[name] = Row({}, IGNORING)
for name in ("MeanIoU", "MatthewsCorrelation", "CohenKappa"):
    ROWS[name] = Row({}, {"logits": FLAG, **IGNORING})
for name in ("Precision", "Recall", "F1"):
    flags = {"multilabel": FLAG, "logits": FLAG}
    ROWS[name] = Row({}, {"average": NOTHING, **flags, **IGNORING})
for name in ("AUROC", "AveragePrecision"):
    ROWS[name] = Row({}, {"average": NOTHING, "logits": FLAG, **IGNORING})
ROWS |= {
    "PearsonCorrelation": Row(),
    "CalibrationError": Row({}, {"bins": COUNT, "norm": NOTHING, "logits": FLAG, **IGNORING}),
    "BinaryAccuracy": Row({}, {"threshold": NUMBER}),
    "TopK": Row({}, IGNORING),
    "ClipValue": Row({"limit": 1.0}, {}, clipped),
    "ClipNorm": Row({"limit": 1.0}, {}, clipped),
    "ClipGlobalNorm": Row({"limit": 1.0}, {}, clipped),
    "L1": Row({"strength": 0.1}, {}, lambda penalty: penalty(lm.Input(3))),
    "L2": Row({"strength": 0.1}, {}, lambda penalty: penalty(lm.Input(3))),
    "init.Zeros": Row(use=initial),
    "init.Constant": Row({"value": 1.0}, {"value": NUMBER}, initial),
    "init.Uniform": Row(
        {"low": -2.0, "high": 2.0},
        {"low": UNIT | some("-1", "1.5"), "high": NUMBER},
        initial,
    ),
    "init.Normal": Row(use=initial),
    "init.XavierUniform": Row(use=initial),
    "init.XavierNormal": Row(use=initial),
    "init.KaimingUniform": Row({}, {"nonlinearity": NOTHING}, initial),
    "init.KaimingNormal": Row({}, {"nonlinearity": NOTHING}, initial),
    "init.Orthogonal": Row(use=initial),
    "schedules.Constant": Row({"rate": 0.1}, {"rate": NOT_NEGATIVE}, scheduled),
    "schedules.StepDecay": Row(
        {"rate": 0.1, "every": 2}, {"rate": NOT_NEGATIVE, "factor": POSITIVE}, scheduled
    ),
    "schedules.Exponential": Row(
        {"rate": 0.1, "factor": 0.5}, {"rate": NOT_NEGATIVE, "factor": POSITIVE}, scheduled
    ),
    "schedules.Cosine": Row({"rate": 0.1, "steps": 5}, {"rate": NOT_NEGATIVE}, scheduled),
    "schedules.Linear": Row({"rate": 0.1, "steps": 5}, {"rate": NOT_NEGATIVE}, scheduled),
    "schedules.Polynomial": Row({"rate": 0.1, "steps": 5}, {"rate": NOT_NEGATIVE}, scheduled),
    "schedules.PiecewiseConstant": Row(
        {"boundaries": [3, 6], "rates": [0.1, 0.2, 0.3]},
        # There is one rate more than boundaries.
        {"boundaries": some("[1, 2]"), "rates": NOTHING},
        scheduled,
    ),
    "callbacks.EarlyStopping": Row(
        {},
        {
            "monitor": TEXT_OF_A_NAME,
            "patience": COUNT,
            "least_change": NOT_NEGATIVE,
            "restore_best": FLAG,
            "best": BEST,
        },
    ),
    "callbacks.ReduceOnPlateau": Row(
        {},
        {
            "monitor": TEXT_OF_A_NAME,
            "factor": some("half"),
            "patience": FROM_ZERO,
            "threshold": NOT_NEGATIVE,
            "cooldown": FROM_ZERO,
            "least_rate": NOT_NEGATIVE,
            "best": BEST,
        },
    ),
    "callbacks.TimeLimit": Row({"seconds": 1.0}, {"seconds": POSITIVE}),
    "callbacks.SaveModels": Row(
        {"folder": "models"},
        {"folder": PATH, "monitor": TEXT_OF_A_NAME, "keep": COUNT, "best": BEST},
    ),
    "callbacks.CSVLog": Row({"path": "a.csv"}, {"path": PATH}),
    "callbacks.JSONLinesLog": Row({"path": "a.jsonl"}, {"path": PATH}),
    "callbacks.PrintEpochs": Row(),
    "callbacks.TensorBoard": Row({"folder": "runs"}, {"folder": PATH}),
    "schedules.CosineRestarts": Row(
        {"rate": 0.1, "steps": 5}, {"rate": NOT_NEGATIVE, "growth": COUNT}, scheduled
    ),
    "schedules.Cyclic": Row(
        {"rate": 0.1, "steps": 5},
        {"rate": NOT_NEGATIVE, "least": NOT_NEGATIVE, "factor": POSITIVE},
        scheduled,
    ),
    "schedules.OneCycle": Row(
        {"rate": 0.1, "steps": 5},
        {
            "rate": NOT_NEGATIVE,
            "steps": NOTHING,
            "rise": some("half"),
            "start": POSITIVE,
            "end": POSITIVE,
        },
        scheduled,
    ),
    "schedules.Chain": Row(
        {"boundaries": [3, 6], "schedules": [0.1, 0.2, 0.3]},
        # There is one schedule more than boundaries.
        {"boundaries": some("[1, 2]"), "schedules": NOTHING},
        scheduled,
    ),
    "schedules.Warmup": Row(
        {"steps": 3, "then": 0.1}, {"then": NOT_NEGATIVE | FUNCTION}, scheduled
    ),
}
for name in ("ClipValue", "ClipNorm", "ClipGlobalNorm"):
    ROWS[f"{name}.__call__"] = Row(
        {"gradients": Made(lambda: [lm.Input(2)])},
        {"gradients": some("()")},
        call=getattr(lm, name)(1.0),
    )
for name in ("L1", "L2"):
    ROWS[f"{name}.__call__"] = Row(
        {"parameter": A_PREDICTION}, {"parameter": NOTHING}, call=getattr(lm, name)(1.0)
    )
for name in [name for name in ROWS if name.startswith("init.")]:
    values = dict(ROWS[name].valid)
    ROWS[f"{name}.__call__"] = Row(
        {"shape": (4, 3), "seed": 0, "stream": 0},
        # Those with fans need two axes.
        {
            "shape": some("[1, 2]") | (NOTHING if ROWS[name].valid == {} else COUNTS),
            "stream": FROM_ZERO,
        },
        call=getattr(lm.init, name.removeprefix("init."))(**values),
    )
ROWS["init.Zeros.__call__"].accepts["shape"] = COUNTS
ROWS["init.Normal.__call__"].accepts["shape"] = COUNTS
for name in [name for name in ROWS if name.startswith("schedules.")]:
    made = getattr(lm.schedules, name.removeprefix("schedules."))(**ROWS[name].valid)
    ROWS[f"{name}.__call__"] = Row({"step": Made(lambda: lm.Input())}, {"step": NOTHING}, call=made)
ROWS["Schedule.at"] = Row({"step": 3}, {"step": NOT_NEGATIVE}, call=lm.schedules.Constant(0.1).at)


# Optimizers ---------------------------------------------------------------------------------------

for name in ("Adam", "AdamW", "LAMB", "Adamax", "Lion"):
    ROWS[name] = Row(use=updated)
ROWS |= {
    "NAdam": Row({}, {"momentum_decay": NOT_NEGATIVE, "decoupled_weight_decay": FLAG}, updated),
    "LBFGS": Row(
        {},
        {
            "history": COUNT - some("huge"),
            "gradient_tolerance": NOT_NEGATIVE,
            "change_tolerance": NOT_NEGATIVE,
        },
        updated,
    ),
    "SGD": Row({"momentum": 0.5}, {"dampening": NUMBER, "nesterov": FLAG}, updated),
    "Adagrad": Row({}, {"rate_decay": NOT_NEGATIVE, "initial_sum": NOT_NEGATIVE}, updated),
    "RMSProp": Row({}, {"centered": FLAG}, updated),
    "Adadelta": Row(use=updated),
    "Rprop": Row(
        {},
        {
            "rate": NOT_NEGATIVE,
            "decrease": some("half"),
            "increase": some("1.5", "huge"),
            "shortest": NOT_NEGATIVE - some("huge"),
            "longest": POSITIVE,
        },
        updated,
    ),
    "EMA": Row({"optimizer": lm.SGD(0.1)}, {}, updated),
    "SWA": Row({"optimizer": lm.SGD(0.1), "start": 2}, {"start": COUNT}, updated),
    "ByPath": Row(
        {"patterns": {"*.bias": lm.SGD(0.1)}, "default": lm.SGD(0.1)},
        {"patterns": some("{}"), "default": NOTHING},
        updated,
    ),
}


# Networks -----------------------------------------------------------------------------------------

EXAMPLE = some("()", "[1, 2]")
PICTURE = {"input": NOTHING}
# An activation may be a function, which then has to give one.
NO_TENSOR = ("a layer is applied to tensors",)
ROWS |= {
    "networks.mlp": Row(
        {"widths": (3,), "classes": 2, "input": (4,)},
        {"widths": COUNTS, "input": EXAMPLE, "activation": OPTIONAL},
        words=NO_TENSOR,
    ),
    "networks.autoencoder": Row(
        {"widths": (3,), "code": 2, "input": (4,)},
        {"widths": COUNTS, "code": COUNT, "input": EXAMPLE, "activation": OPTIONAL},
        words=NO_TENSOR,
    ),
    "networks.variational_autoencoder": Row(
        {"widths": (3,), "code": 2, "input": (4,)},
        {"widths": COUNTS, "code": COUNT, "input": EXAMPLE, "activation": OPTIONAL},
        words=NO_TENSOR,
    ),
    "networks.dcgan": Row(
        {"latent": 3, "image": (1, 8, 8), "width": 2},
        {"latent": COUNT, "image": NOTHING, "width": COUNT},
    ),
    "networks.lenet": Row({"classes": 2, "input": (1, 16, 16)}, PICTURE),
    "networks.mobilenet_v2": Row(
        {"classes": 2, "width": 0.1, "input": (1, 32, 32)},
        {**PICTURE, "width": COUNT | some("1.5", "half")},
    ),
    "networks.lstm_classifier": Row(
        {"classes": 2, "length": 3, "inputs": 2, "features": 2},
        {"inputs": COUNT, "vocabulary": OPTIONAL, "lengths": FLAG},
    ),
    "networks.resnet": Row(
        {"depth": 18, "classes": 2, "stem": "cifar", "input": (1, 8, 8), "width": 2},
        {"input": OPTIONAL, "depth": NOTHING, "stem": NOTHING, "width": COUNT},
    ),
    "networks.transformer_encoder": Row(
        {"vocabulary": 5, "length": 3, "features": 4, "heads": 2, "layers": 1, "hidden": 3},
        {"vocabulary": COUNT, "features": NOTHING, "classes": OPTIONAL | COUNT},
    ),
    "networks.unet": Row(
        {"classes": 2, "input": (1, 8, 8), "widths": (2, 3)},
        {**PICTURE, "widths": some("[1, 2]"), "padding": NOTHING},
    ),
    "networks.vgg": Row(
        {"stages": ((2,),), "classes": 2, "input": (1, 8, 8), "hidden": (3,)},
        {**PICTURE, "stages": NOTHING, "hidden": COUNTS},
    ),
    "Input": Row({"shape": 3}, {"shape": COUNT, "dtype": OPTIONAL}),
    "concat": Row(
        {"tensors": Made(lambda: [lm.Input(3), lm.Input(2)])},
        {"tensors": NOTHING, "axis": COUNT},
    ),
    "Recompute": Row(
        {"layers": lm.Linear(2)},
        {"layers": NOTHING, "unknown": NOTHING},
        lambda it: it(lm.Input(3)),
    ),
    "Recompute.__call__": Row(
        {"operands": A_PREDICTION},
        {"operands": NOTHING},
        call=lm.Recompute(lm.Linear(2)),
        words=("Linear",),
    ),
    "Sequential": Row({"layers": Made(lambda: lm.Input(3))}, {"layers": NOTHING}),
    "Network": Row(
        {"inputs": Made(lambda: X_AND_Y[0]), "outputs": Made(lambda: X_AND_Y[1])},
        {"inputs": NOTHING, "outputs": NOTHING},
    ),
    "Layer.__call__": Row(
        {"operands": A_PREDICTION},
        {"operands": NOTHING, "named": NOTHING},
        call=lm.Linear(2),
        words=("Linear",),
    ),
}
X_AND_Y = (lm.Input(3), None)
X_AND_Y = (X_AND_Y[0], lm.Linear(2)(X_AND_Y[0]))


STEP = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1)}
# A loss without an optimizer, or an optimizer without a loss, is no training step.
HALF = {"loss": NOTHING, "optimizer": NOTHING}
ROWS |= {
    "Network.__call__": Row(
        {"operands": Made(lambda: lm.Input(3))}, {"operands": NOTHING}, call=net()
    ),
    "Network.path": Row(
        {"node": Made(lambda: X_AND_Y[1])},
        {"node": NOTHING},
        call=lm.Network(*X_AND_Y).path,
    ),
    "Network.names_of": Row(
        {"part": Made(lambda: NET)}, {"part": NOTHING}, call=lambda **o: NET.names_of(**o)
    ),
    "Network.parameter_count": Row(call=net().parameter_count),
    "Network.plan": Row(
        {"batch_size": 2, **STEP},
        {
            **HALF,
            "clip": OPTIONAL,
            "micro_batch": OPTIONAL | COUNT,
            "data": OPTIONAL | some("lambda"),
        },
        call=net().plan,
    ),
    # A few bytes are too few.
    "Network.max_batch_size": Row(
        {"memory": "1 KiB", **STEP},
        {**HALF, "memory": OPTIONAL, "data": OPTIONAL | some("lambda")},
        call=net().max_batch_size,
    ),
}
NET = net()


# Models -------------------------------------------------------------------------------------------

X = np.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)
Y = np.linspace(0, 1, 16, dtype="float32").reshape(8, 2)


@cache
def model() -> lm.Model:
    return lm.Model(net(), engine="interpreter")


@cache
def training() -> Any:
    return model().training(**STEP, batch_size=4)


def fitted(**options: Any) -> Any:
    return model().fit(**{"train": (X, Y), **STEP, **options})


# There are two classes of 0 and 1 in targets of floats.
OF_CLASSES = {"class_weights": OPTIONAL | (NUMBERS - some("()", "(1.0,)"))}
DATA = {"train": NOTHING, "data": NOTHING, "validation": OPTIONAL}
ROWS |= {
    "Model": Row({"network": Made(net), "engine": "interpreter"}),
    "Model.part": Row(
        {"network": Made(lambda: model().network)}, {}, call=lambda **o: model().part(**o)
    ),
    "Model.__call__": Row(call=None),
    "Model.predict": Row(
        {"inputs": X},
        {"inputs": NOTHING, "others": NOTHING, "options": NOTHING},
        call=lambda *a, **o: model().predict(*a, **o),
        words=("the function does not return batches",),
    ),
    "Model.predictor": Row({"batch_size": 2}, {}, call=lambda **o: model().predictor(**o)),
    "Model.evaluate": Row(
        {"data": (X, Y), "loss": lm.MSE()},
        DATA,
        call=lambda **o: model().evaluate(**o),
        words=("the data has none", "the function does not return batches"),
    ),
    "Model.training": Row(
        {**STEP, "batch_size": 2},
        {
            **DATA,
            **OF_CLASSES,
            "data": OPTIONAL,
            "seed": OPTIONAL | WHOLE,
            "micro_batch": OPTIONAL | COUNT,
        },
        lambda made: made.release(),
        call=lambda **o: model().training(**o),
    ),
    "Model.fit": Row(
        {"train": (X, Y), **STEP, "batch_size": 4},
        {
            **DATA,
            **OF_CLASSES,
            "epochs": COUNT,
            "seed": OPTIONAL | WHOLE,
            "micro_batch": OPTIONAL | COUNT,
            "shuffle": FLAG,
            "record": some("()"),
            "progress": OPTIONAL | FLAG,
            "checkpoint_steps": OPTIONAL,
            "callbacks": some("()"),
            "checkpoint": OPTIONAL | PATH,
            # There is nothing to resume from.
            "resume": NOTHING,
            "on_interrupt": NOTHING,
        },
        call=fitted,
        words=("the data has none", "the function does not return batches"),
    ),
    "Model.explain": Row({"batch_size": 2, **STEP}, HALF, call=lambda **o: model().explain(**o)),
    "Model.tune": Row({"batch_size": 2, **STEP}, HALF, call=lambda **o: refused_tuning(**o)),
    "Model.profile": Row(
        {"batch_size": 2, **STEP, "seconds": 1e-3},
        {**HALF, "data": OPTIONAL, "seconds": POSITIVE - some("huge")},
        call=lambda **o: model().profile(**o),
        long=("seconds",),
    ),
    "Model.parameters": Row(call=lambda: model().parameters()),
    "Model.states": Row(call=lambda: model().states()),
    "Model.set_parameters": Row(
        {"values": {}}, {"values": some("{}")}, call=lambda **o: model().set_parameters(**o)
    ),
    "Model.load_parameters": Row(
        {"source": Made(lambda: model().parameters())},
        # There is no file named "a", and no parameter without a name.
        {"source": NOTHING, "skip": some("()")},
        call=lambda **o: model().load_parameters(**o),
        words=("parameter", "file"),
    ),
    "from_torch": Row(
        {
            "network": Made(net),
            "state_dict": Made(lambda: model().parameters()),
            "engine": "interpreter",
            "show": False,
        },
        {
            "state_dict": NOTHING,
            "names": OPTIONAL | some("{}"),
            "skip": some("()"),
            "show": FLAG,
            "dtype": NOTHING,
            "precision": NOTHING,
        },
    ),
    "Model.save": Row(
        {"path": "model.safetensors"}, {"path": PATH}, call=lambda **o: model().save(**o)
    ),
    "load": Row(
        {"path": "model.safetensors", "engine": "interpreter"},
        # There is no file named "a".
        {"path": NOTHING, "layers": some("()"), "dtype": OPTIONAL, "precision": OPTIONAL},
        call=lambda **o: (model().save("model.safetensors"), lm.load(**o))[1],
    ),
    "compile": Row(
        {
            "inputs": Made(lambda: SQUARE[0]),
            "outputs": Made(lambda: SQUARE[1]),
            "engine": "interpreter",
        },
        {"inputs": NOTHING, "outputs": NOTHING},
    ),
    "Function.__call__": Row(
        {"arrays": np.ones((2, 3), "float32")},
        {"arrays": NOTHING},
        call=lambda *a: square()(*a),
        words=("input 0",),
    ),
    "gradients": Row(
        {"output": Made(lambda: SQUARE[1]), "with_respect_to": Made(lambda: [SQUARE[0]])},
        {"output": NOTHING, "with_respect_to": some("()"), "seed": OPTIONAL},
    ),
    "verify": Row(
        {
            "network": Made(lambda: lm.Sequential(lm.Input(2), lm.Linear(1, bias=False))),
            "loss": lm.MSE(),
        },
        {"data": OPTIONAL},
    ),
    "devices": Row(),
    "Training.step": Row(
        {"x": X[:2], "y": Y[:2]},
        {"x": NOTHING, "y": some("matrix"), "weights": OPTIONAL | some("()")},
        call=lambda **o: training().step(**o),
        words=("input 0", "target 0", "number of inputs", "number of targets", "in targets"),
    ),
    "Training.run": Row(
        {"dataset": (X, Y), "steps": 2},
        {"dataset": NOTHING, "steps": FROM_ZERO},
        call=lambda **o: training().run(**o),
        words=("number of targets", "the function does not return batches"),
    ),
    "Training.profile": Row(
        {"x": X[:2], "y": Y[:2], "seconds": 1e-3},
        {
            "x": NOTHING,
            "y": some("matrix"),
            "seconds": POSITIVE - some("huge"),
            "weights": OPTIONAL | some("()"),
        },
        call=lambda **o: training().profile(**o),
        words=("input 0", "target 0", "number of inputs", "number of targets", "in targets"),
        long=("seconds",),
    ),
    "Training.averaged_parameters": Row(call=lambda: averaging().averaged_parameters()),
    "Training.state": Row(call=lambda: training().state()),
    "Training.snapshot": Row(call=lambda: training().snapshot()),
    "Training.restore": Row(
        {"state": Made(lambda: training().state())},
        {"state": NOTHING, "parameters": OPTIONAL | some("{}")},
        call=lambda **o: training().restore(**o),
    ),
    "Training.set_rates": Row(
        {"values": {}},
        {"values": some("{}")},
        call=lambda **o: model().training(**STEP, batch_size=2).set_rates(**o),
    ),
    "Training.release": Row(call=lambda: model().training(**STEP, batch_size=2).release()),
}
SQUARE = (lm.Input(3), None)
SQUARE = (SQUARE[0], SQUARE[0] * SQUARE[0])


@cache
def square() -> Any:
    return lm.compile(*SQUARE, engine="interpreter")


@cache
def averaging() -> Any:
    return model().training(lm.MSE(), lm.EMA(lm.SGD(0.1)), batch_size=2)


@cache
def history() -> Any:
    return fitted()


# Data and reports ---------------------------------------------------------------------------------

EIGHT = lm.data.Dataset(X, Y)
CODING = lm.data.from_frame({"a": [1.0]}).coding
# Rows of numbers are examples of one number each.
ROWS_OF_NUMBERS = some("[1, 2]", "vector", "matrix", "near")
ROWS |= {
    "data.Dataset": Row(
        {"inputs": np.ones(2)},
        {
            "inputs": ROWS_OF_NUMBERS,
            "targets": OPTIONAL | ROWS_OF_NUMBERS,
            "dtype": OPTIONAL,
            "coding": OPTIONAL,
            "weights": OPTIONAL | ROWS_OF_NUMBERS,
        },
    ),
    "Dataset.from_arrays": Row(
        {"inputs": np.ones(2)},
        {
            "inputs": ROWS_OF_NUMBERS | some("(1.0,)"),
            "targets": OPTIONAL | ROWS_OF_NUMBERS,
        },
        call=lm.data.Dataset.from_arrays,
    ),
    "Dataset.dense": Row(call=EIGHT.dense),
    "Dataset.take": Row({"indices": [0, 1]}, {"indices": some("[1, 2]")}, call=EIGHT.take),
    "Dataset.subset": Row(
        {"start": 0, "stop": 4}, {"start": FROM_ZERO, "stop": OPTIONAL | COUNT}, call=EIGHT.subset
    ),
    "Dataset.split": Row({"fraction": 0.5}, {"fraction": some("half")}, call=EIGHT.split),
    "Dataset.order": Row({"seed": 0, "epoch": 0}, {"epoch": FROM_ZERO}, call=EIGHT.order),
    "Dataset.orders": Row({"seed": 0, "epochs": range(2)}, {"epochs": NOTHING}, call=EIGHT.orders),
    "Dataset.batches": Row(
        {"batch_size": 2},
        {"seed": OPTIONAL | WHOLE, "epoch": FROM_ZERO},
        lambda batches: list(batches),
        call=EIGHT.batches,
    ),
    "data.Stream": Row(
        {"source": [(X, Y)]},
        {
            "source": some("[1, 2]", "lambda"),
            "window": FROM_ZERO,
            "seed": OPTIONAL | WHOLE,
            "steps_per_epoch": OPTIONAL | COUNT,
            "buffer_bytes": COUNT,
            "regroup": FLAG,
        },
    ),
    "data.as_dataset": Row(
        {"value": X}, {"value": some("vector", "matrix", "near")}, words=("the inputs",)
    ),
    "data.digits": Row(),
    # There are no such files.
    "data.mnist": Row({"folder": "x"}, {"folder": NOTHING}),
    "data.read_idx": Row({"path": "x"}, {"path": NOTHING}),
    "Coding.inputs": Row(
        {"frame": {"a": [1.0]}},
        {"frame": NOTHING},
        call=CODING.inputs,
        # A text is the path of a file.
        words=("in a:",),
    ),
    "Coding.dataset": Row(
        {"frame": {"a": [1.0]}},
        {"frame": NOTHING},
        call=CODING.dataset,
        # A text is the path of a file.
        words=("in a:",),
    ),
    "data.from_frame": Row(
        {"frame": {"a": [1.0]}},
        {
            "frame": NOTHING,
            "target": OPTIONAL,
            "words": NOTHING,
            "gaps": NUMBER,
            "standardise": FLAG,
            "kinds": OPTIONAL | some("{}"),
        },
    ),
    "data.read_table": Row(
        {"path": "x.csv"},
        {
            "path": NOTHING,
            "kinds": OPTIONAL | some("{}"),
            "delimiter": OPTIONAL | some("text"),
            "decimal": OPTIONAL,
        },
        call=lambda **o: (Path("x.csv").write_text("a\n1\n"), lm.data.read_table(**o))[1],
        words=("in a:",),
    ),
    "data.in_chunks": Row(
        {"path": "x.npy"},
        {"path": NOTHING, "targets": OPTIONAL, "examples": OPTIONAL | COUNT},
        call=lambda **o: (np.save("x.npy", X), lm.data.in_chunks(**o))[1],
        words=("in a:",),
    ),
    "data.load": Row(
        {"path": "x.npy"},
        {
            "path": NOTHING,
            "targets": OPTIONAL,
            "dtype": OPTIONAL,
            "on_disk": OPTIONAL | FLAG,
            "words": NOTHING,
            # The file is no table.
            "gaps": NOTHING,
            "standardise": NOTHING,
            "kinds": OPTIONAL | some("{}"),
            "delimiter": OPTIONAL,
            "decimal": OPTIONAL,
        },
        call=lambda **o: (np.save("x.npy", X), lm.data.load(**o))[1],
        # It names the file.
        words=("in a:",),
    ),
    "History.keys": Row(call=lambda: history().keys()),
    "History.add": Row(
        {"row": {"loss": 1.0}, "seconds": 1.0},
        {"row": some("{}"), "seconds": NUMBER},
        call=lambda **o: type(history())().add(**o),
    ),
    "History.plot": Row({"path": "x.png"}, {"path": PATH}, call=lambda **o: history().plot(**o)),
    "MemoryBill.buffers": Row(call=lambda: net().plan(2).buffers()),
    "MemoryBill.plot": Row(
        {"path": "x.png"}, {"path": PATH}, call=lambda **o: net().plan(2).plot(**o)
    ),
    "Explanation.listing": Row(
        {"step": 0},
        {"step": OPTIONAL | some("0"), "language": NOTHING},
        call=lambda **o: model().explain(2).listing(**o),
    ),
}


# The scope of a user's layer ----------------------------------------------------------------------


OPERAND = object()


def in_a_layer(method: str) -> Callable[..., Any]:
    """Calls a method of the scope within the forward of a layer."""

    def call(*values: Any, **options: Any) -> None:
        @dataclass(frozen=True)
        class Own(lm.Layer):
            def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
                if method == "update":
                    scope.state("own", (2,), lm.init.Zeros())
                if method == "update" and not scope.training:
                    return x
                arguments = {n: x if v is OPERAND else v for n, v in options.items()}
                positional = [x if v is OPERAND else v for v in values]
                getattr(scope, method)(*positional, **arguments)
                return x

        lm.Sequential(lm.Input(2), Own())

    return call


SHAPE = some("()", "[1, 2]")
ROWS |= {
    "Scope.parameter": Row(
        {"name": "own", "shape": (2,), "init": lm.init.Zeros()},
        {"name": TEXT, "shape": SHAPE, "init": FUNCTION, "regularizer": OPTIONAL},
        call=in_a_layer("parameter"),
    ),
    "Scope.state": Row(
        {"name": "own", "shape": (2,), "init": lm.init.Zeros()},
        {"name": TEXT, "shape": SHAPE, "init": FUNCTION, "dtype": OPTIONAL},
        call=in_a_layer("state"),
    ),
    "Scope.uniform": Row(
        {"shape": (2,)},
        {"shape": SHAPE, "low": NUMBER, "high": NUMBER, "dtype": OPTIONAL},
        call=in_a_layer("uniform"),
    ),
    "Scope.mix": Row(
        {"share": Made(lambda: lm.ops.constant(0.5))}, {"share": NOTHING}, call=in_a_layer("mix")
    ),
    "Scope.normal": Row({"shape": (2,)}, {"shape": SHAPE}, call=in_a_layer("normal")),
    "Scope.bernoulli": Row(
        {"shape": (2,), "probability": 0.5},
        {"shape": SHAPE},
        call=in_a_layer("bernoulli"),
    ),
    "Scope.update": Row(
        {"name": "own", "value": Made(lambda: lm.Input(2)[0])},
        {"name": NOTHING, "value": NOTHING},
        call=in_a_layer("update"),
    ),
    "Scope.shared": Row(
        {"layer": lm.Linear(2), "name": "weight"}, {"layer": NOTHING, "name": NOTHING}
    ),
    "Scope.layer": Row(
        {"name": "part", "layer": lm.Linear(2), "operands": OPERAND},
        {"name": TEXT, "layer": NOTHING, "operands": NOTHING},
        call=in_a_layer("layer"),
    ),
    "Scope.limit_indices": Row(
        {"indices": Made(lambda: lm.Input(2, dtype="int64")), "count": 3},
        {"indices": NOTHING, "what": TEXT, "advice": TEXT},
        call=in_a_layer("limit_indices"),
    ),
}


# Public names -------------------------------------------------------------------------------------

# Methods that users write for their own records and Lamina calls with its own objects, and methods
# that only Lamina calls.
PROTOCOLS = {
    "average",
    "check_target",
    "doubt",
    "elements",
    "example_targets",
    "for_parameters",
    "forward",
    "measured",
    "terms",
    "result",
    "slots",
    "statistics",
    "target",
    "update",
}
INTERNAL = {
    "BatchRunner.fed",
    "Coding.notes",
    "Coding.of",
    "BatchRunner.in_order",
    "BatchRunner.uploaded",
    "BatchRunner.release",
    "Model.from_file",
    "Network.trace",
    "Network.variables",
    "Explanation.tuning",
    "Training.batches_of",
    "Training.memories",
    "Training.pieces",
    "Training.of",
    "Window.count",
}
# Objects that users get but do not make.
MADE = {"Coding", "Layer", "Tensor", "Scope", "Autoencoder", "Schedule", "Callback", "RunningFit"}


def reached() -> dict[str, Any]:
    """All that is exported, by name."""
    found: dict[str, Any] = {}
    modules = {"": lm, "data.": lm.data, "networks.": lm.networks}
    modules |= {"init.": lm.init, "schedules.": lm.schedules, "callbacks.": lm.callbacks}
    for prefix, module in modules.items():
        for name in dir(module):
            one = getattr(module, name)
            if name.startswith("_") or not isinstance(one, type | FunctionType):
                continue
            # Modules of initializers and schedules import what they need.
            at_home = prefix not in ("init.", "schedules.") or one.__module__ == module.__name__
            if one.__module__.startswith("lamina.") and at_home:
                found[prefix + name] = one
    # All else in it are functions of tensors, which have tests of their own.
    found["ops.Window"] = ops.Window
    return found


def results() -> list[Any]:
    """One object of each class that public calls return."""
    return [training(), history(), net().plan(2), model().explain(2), square()]


def names_to_test() -> Iterator[tuple[str, Any]]:
    """Every public call: functions, classes, and the methods of classes."""
    classes: dict[str, type] = {}
    for name, one in reached().items():
        if isinstance(one, type):
            classes[name] = one
        if not (inspect.isabstract(one) or one.__name__ in MADE):
            yield name, one
    classes |= {type(result).__name__: type(result) for result in results()}
    seen: set[str] = set()
    for name, cls in classes.items():
        for full, method in methods_of(name, cls):
            if full not in seen:
                seen.add(full)
                yield full, method


def methods_of(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods of a class and its bases, with the name of the class that has them."""
    if cls is lm.Tensor:
        return  # its methods are ops
    for base in cls.__mro__:
        if not base.__module__.startswith("lamina.") or base.__name__.startswith("_"):
            continue
        if base.__module__.startswith("lamina.training.callbacks"):
            continue  # `fit` calls the hooks
        own = base is cls and name.startswith(("init.", "schedules."))
        prefix = name if own and not inspect.isabstract(base) else base.__name__
        for method, function in vars(base).items():
            public = method == "__call__" or not method.startswith("_")
            protocol = method in PROTOCOLS and base is not lm.Scope
            plain = isinstance(function, FunctionType | classmethod)
            abstract = getattr(function, "__isabstractmethod__", False)
            if public and plain and not protocol and not abstract:
                full = f"{prefix}.{method}"
                if full not in INTERNAL:
                    yield full, function


PUBLIC = dict(names_to_test())


def refused_tuning(**options: Any) -> None:
    """Tunes a model on an engine that does not tune; the error for that comes last."""
    with contextlib.suppress(EngineError):
        model().tune(**options)


def test_everything_public_has_a_row() -> None:
    assert sorted(PUBLIC.keys() - ROWS.keys()) == []
    assert sorted(ROWS.keys() - PUBLIC.keys()) == []


# The test -----------------------------------------------------------------------------------------


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    one = PUBLIC[name]
    signature = inspect.signature(one.__func__ if isinstance(one, classmethod) else one)
    return {n: p for n, p in signature.parameters.items() if n not in ("self", "cls")}


def called(name: str, changed: Mapping[str, Any]) -> Any:
    row, parameters = ROWS[name], parameters_of(name)
    values = {**row.valid, **changed}
    values = {n: v.make() if isinstance(v, Made) else v for n, v in values.items()}
    several = [n for n, p in parameters.items() if p.kind == p.VAR_POSITIONAL]
    positional: list[Any] = []
    if several and several[0] in values:
        for before in parameters:
            if before in values and parameters[before].kind != inspect.Parameter.KEYWORD_ONLY:
                positional.append(values.pop(before))
            if before == several[0]:
                break
    return (row.call or PUBLIC[name])(*positional, **values)


def problem_with(name: str, parameter: str, value_name: str) -> str:
    """The problem of a call with a value; empty if there is none."""
    row = ROWS[name]
    accepted = row.accepts.get(parameter, USUAL.get(parameter))
    assert accepted is not None, f"nothing is said about {parameter} of {name}"
    value = VALUES[value_name]
    case = f"{name}({parameter}={value_name})"
    expected = value_name in accepted
    if expected and parameter in row.long:
        return ""
    changed = {parameter: value}
    if parameter == "dimensions":
        changed["shape"] = ()
    try:
        result = called(name, changed)
        if not expected:
            return f"{case} is accepted: {result!r}"[:300]
        if row.use is not None:
            used(row.use, result)
        same = EQUAL.get(value_name, "")
        if same in accepted and is_dataclass(result) and isinstance(PUBLIC[name], type):
            assert repr(result) == repr(called(name, {**changed, parameter: VALUES[same]}))
    except InternalError as error:
        return f"{case}: InternalError {error}"
    except LaminaError as error:
        text = str(error)
        words = [parameter, parameter.removesuffix("s"), *name.split("."), *row.words]
        words += ["input 0"] if parameter in ("data", "train") else []
        if expected:
            return f"{case} is refused: {text}"
        if not any(word in text for word in words if word):
            return f"{case} is not named: {text}"
    except Exception as error:
        return f"{case}: {type(error).__name__}: {error}"[:300]
    return ""


def used(use: Callable[[Any], object], result: Any) -> None:
    """Uses a result; errors that need the use are raised here."""
    functions = (
        [n for n in (f.name for f in fields(result)) if getattr(result, n) is VALUES["lambda"]]
        if is_dataclass(result)
        else []
    )
    if functions:
        return  # results of a user's function are not checked
    try:
        use(result)
    except InternalError:
        raise
    except LaminaError as error:
        if not isinstance(error, lm.errors.ShapeError):
            raise


def calls_to_test() -> list[str]:
    return [
        name for name in PUBLIC if name in ROWS and parameters_of(name) and name != "Model.__call__"
    ]


# Parameters that have no kind: the call checks them, as they depend on other arguments, on the
# user's classes, or are tensors and arrays.
WITHOUT_KIND = """
    after arrays before callbacks ceil clip default dilation dtype factors frame frozen function
    init inputs layers loss losses metrics name named network optimizer options others outputs
    patterns precision prediction regularizer size stride target targets unknown value values
    weights x y"""
# Parameters of which the call accepts less than their kind.
CHECKED_FURTHER = """
    activation boundaries class_weights data dataset memory output_padding rates scale schedules
    source stages state_dict target targets train validation"""


def kinds_of(name: str) -> dict[str, Kind]:
    one = PUBLIC[name]
    if isinstance(one, type):
        return {n: kind.of_class(one) for n, kind in _kinds_of_class(one).items()}
    return _kinds_of(inspect.unwrap(one.__func__ if isinstance(one, classmethod) else one))


def reads(kind: Kind, value: object) -> bool:
    try:
        kind.read(value)
    except (Misfit, LaminaError):
        return False
    return True


def test_every_parameter_has_a_kind_that_reads_what_it_accepts() -> None:
    without: set[str] = set()
    by_kind: dict[str, tuple[Kind, dict[str, Accepted]]] = {}
    for name in calls_to_test():
        kinds = kinds_of(name)
        for parameter in parameters_of(name):
            accepted = ROWS[name].accepts.get(parameter, USUAL.get(parameter))
            assert accepted is not None, f"nothing is said about {parameter} of {name}"
            if parameter in kinds:
                kind = kinds[parameter]
                by_kind.setdefault(repr(kind), (kind, {}))[1][f"{name}.{parameter}"] = accepted
            else:
                without.add(parameter)
    assert without == set(WITHOUT_KIND.split())
    for kind, parameters in by_kind.values():
        read = frozenset(one for one, value in VALUES.items() if reads(kind, value))
        for parameter, accepted in parameters.items():
            assert accepted <= read, f"{kind} refuses a right value of {parameter}"
        names = {one.rpartition(".")[2] for one in parameters}
        if names.isdisjoint(CHECKED_FURTHER.split()):
            assert frozenset[str]().union(*parameters.values()) == read, (kind, parameters)


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::lamina.errors.LaminaWarning")  # of arrays in float64
@pytest.mark.parametrize("name", calls_to_test())
def test_wrong_values_are_refused_clearly_and_right_ones_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problems = [
        problem
        for parameter in parameters_of(name)
        for value in VALUES
        if (problem := problem_with(name, parameter, value))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", ["Model.__call__", "devices"])
def test_callables_without_parameters_refuse_arguments(name: str) -> None:
    call = model() if name == "Model.__call__" else lm.devices
    if name == "devices":
        assert call()
    else:
        with pytest.raises(LaminaError):
            call(X)
