"""What a prediction certainly is: raw scores, probabilities, or logarithms of probabilities.

Only the op that made it is judged, through reshapes and the like. After any other op, such as a
clip or a formula of the user's own, it may be anything.
"""

from __future__ import annotations

from lamina.graph import Tensor
from lamina.ops.arithmetic import ADD
from lamina.ops.conversion import CAST, ROUNDED
from lamina.ops.elementwise import SIGMOID
from lamina.ops.movement import FLIP, RESHAPE, TRANSPOSE
from lamina.ops.slicing import SLICE
from lamina.ops.softmax import LOG_SOFTMAX, SOFTMAX

# Ops that change neither the meaning nor the order of numbers.
_MOVEMENT = (CAST, FLIP, RESHAPE, ROUNDED, SLICE, TRANSPOSE)
# The names of layers whose results are raw scores.
_LAYERS = ("Linear", "TiedLinear", "Conv", "ConvTranspose")

# What the result of an op is; raw scores are in no table.
_MADE = {
    SIGMOID: "probabilities",
    SOFTMAX: "probabilities",
    LOG_SOFTMAX: "logarithms of probabilities",
}
SCORES = "raw scores"


def kind_of(prediction: object) -> tuple[str, Tensor | None]:
    """What a prediction is, and the tensor that decides it; "" if that is not certain."""
    if not isinstance(prediction, Tensor):
        return "", None
    tensor = prediction
    while tensor.op in _MOVEMENT and not _is_of_scores(tensor):
        tensor = tensor.operands[0]
    if _is_of_scores(tensor):
        return SCORES, tensor
    # A softmax counts if it is along axis 1 of the prediction.
    same = tensor is prediction or (tensor.rank == 2 and prediction.rank == 2)
    counts = tensor.op is SIGMOID or (same and tensor.attributes.get("axis") == 1)
    return _MADE.get(tensor.op, "") if counts else "", tensor


def doubt(
    prediction: object, wrong: tuple[str, ...], expected: str, advice: str, taker: str = "loss"
) -> str:
    """The text about a prediction of a wrong kind, for a loss or a metric; "" for any other."""
    kind, made = kind_of(prediction)
    if kind not in wrong or made is None:
        return ""
    return f"the prediction is {kind} of {made.origin}, and the {taker} takes {expected}. {advice}"


def is_softmax_of_one(prediction: object) -> bool:
    """Whether a prediction is a softmax over one number, or its logarithm: always 1, or 0."""
    kind, made = kind_of(prediction)
    if not kind or made is None or made.op not in (SOFTMAX, LOG_SOFTMAX):
        return False
    axis: int = made.attributes["axis"]
    return made.shape[axis] == 1


def _is_of_scores(tensor: Tensor) -> bool:
    layer = tensor.origin.path.rpartition("/")[2].rpartition(":")[2].rstrip("0123456789d")
    return (tensor.op is ADD or tensor.op.multiplies > 0) and layer in _LAYERS
