"""Losses at the ends of their ranges: what the limits of their formulas give."""

import math

import numpy as np

import lamina as lm
from lamina.base.shapes import Array
from lamina.learning import losses

INF, NAN = math.inf, math.nan
E, HALF = math.exp(-1.0), math.log(2.0)
SMALL, HUGE, NEAR_ONE = 1e-4, 3e38, (-0.999, 1.001)
SMALL_LOG_COSH = SMALL**2 / 2 - SMALL**4 / 12, 5e-13 - 1e-24 / 12


def column(*values: float) -> Array:
    return np.array(values)[:, None]


def _of_scores(factor: float = 1.0) -> tuple[list[Array], Array, Array, Array]:
    """Infinite scores on the right side of 0 and on the wrong one."""
    x, t = column(-INF, INF, -INF, INF, NAN), column(0, 1, 1, 0, 0)
    return [x], t, column(0, 0, INF, INF, NAN), column(0, 0, -factor, 1, NAN)


ZEROS, UNEQUAL = np.zeros((2, 3)), np.array([[3.0, 0, 0], [0, 4, 0]])

# Predictions, target, the loss of each element, and the gradient of the first prediction.
LIMITS: dict[str, tuple[losses.Loss, list[Array], Array | None, Array, Array]] = {
    "KLDivergence": (
        lm.KLDivergence(reduction="none"),
        [column(-INF, -1, -INF, NAN, -1)],
        column(0, 0, 0.5, 0, -0.3),
        column(0, 0, INF, NAN, NAN),
        column(0, 0, -0.5, 0, 0.3),
    ),
    "KLDivergence of logarithms": (
        lm.KLDivergence(log_target=True, reduction="none"),
        [column(-INF, -1, -INF, NAN)],
        column(-INF, -INF, -1, -INF),
        column(0, 0, INF, NAN),
        column(0, 0, -E, 0),
    ),
    "CrossEntropy of shares": (
        lm.CrossEntropy(reduction="none"),
        [np.array([[0, -INF, 0], [0, -INF, 0], [0, 0, NAN]])],
        np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [1, 0, 0]]),
        np.array([HALF, INF, NAN]),
        np.array([[0, 0, 0], [0, -0.5, 0.5], [NAN, NAN, NAN]]),
    ),
    "CrossEntropy with a class of weight 0": (
        lm.CrossEntropy(class_weights=[1, 0], label_smoothing=0.5, reduction="none"),
        [np.array([[0, -INF], [0, -INF]])],
        np.array([0, 1]),
        np.array([0.0, 0.0]),
        np.zeros((2, 2)),
    ),
    "NLL with a class of weight 0": (
        lm.NLL(class_weights=[1, 0], reduction="none"),
        [np.array([[0, -INF], [-1, -INF]])],
        np.array([1, 0]),
        np.array([0.0, 1.0]),
        np.array([[0, 0], [-1, 0]]),
    ),
    "BCEWithLogits": (lm.BCEWithLogits(reduction="none"), *_of_scores()),
    "BCEWithLogits with weights": (
        lm.BCEWithLogits(positive_weight=3.0, reduction="none"),
        *_of_scores(3.0),
    ),
    "BinaryFocal": (lm.BinaryFocal(focus=0.0, balance=None, reduction="none"), *_of_scores()),
    "PoissonNLL": (
        lm.PoissonNLL(reduction="none"),
        [column(-INF, -INF, 0)],
        column(0, 1, 0),
        column(0, INF, 1),
        column(0, -1, 1),
    ),
    "PoissonNLL of means": (
        lm.PoissonNLL(log_input=False, epsilon=0.0, reduction="none"),
        [column(0, 0, 2)],
        column(0, 1, 0),
        column(0, INF, 2),
        column(1, -INF, 1),
    ),
    "Huber": (
        lm.Huber(delta=0.5, reduction="none"),
        [column(INF, -INF, HUGE, NAN)],
        column(0, 0, 0, 0),
        column(INF, INF, HUGE / 2, NAN),
        column(0.5, -0.5, 0.5, NAN),
    ),
    "SmoothL1": (
        lm.SmoothL1(beta=0.5, reduction="none"),
        [column(INF, -INF, HUGE, NAN)],
        column(0, 0, 0, 0),
        column(INF, INF, HUGE, NAN),
        column(1, -1, 1, NAN),
    ),
    "LogCosh": (
        lm.LogCosh(reduction="none"),
        [column(0, SMALL, -1e-6, *NEAR_ONE, HUGE, -INF, NAN)],
        np.zeros((8, 1)),
        column(0, *SMALL_LOG_COSH, *np.log(np.cosh(NEAR_ONE)), HUGE, INF, NAN),
        column(0, *np.tanh([SMALL, -1e-6, *NEAR_ONE]), 1, -1, NAN),
    ),
    "Triplet": (
        lm.Triplet(epsilon=0.0, swap=True, reduction="none"),
        [ZEROS, ZEROS, UNEQUAL],
        None,
        np.zeros(2),
        ZEROS,
    ),
    "CosineEmbedding": (
        lm.CosineEmbedding(reduction="none"),
        [UNEQUAL * 1e37, np.full((2, 3), 1e25)],
        np.array([1, 1]),
        np.full(2, 1 - 1 / math.sqrt(3)),
        ZEROS,
    ),
    "NegativeCosine": (
        lm.NegativeCosine(reduction="none"),
        [UNEQUAL * 1e37],
        np.full((2, 3), 1e25),
        np.full(2, -1 / math.sqrt(3)),
        ZEROS,
    ),
}
