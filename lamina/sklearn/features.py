"""Features: arrays, sparse matrices and data frames as arrays of floats, scaled."""

# pyright: basic

from __future__ import annotations

from typing import Any, final

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_array, validate_data

from lamina.base.shapes import Array
from lamina.data import from_frame


def is_table(X: Any) -> bool:
    """Whether it is a data frame with columns of words or dates, or with gaps."""
    if not hasattr(X, "columns") and not hasattr(X, "column_names"):
        return False
    values = np.asarray(X)
    return values.dtype.kind not in "biuf" or bool(np.isnan(values.astype(float)).any())


@final
class Features:
    """What is learned from the features of the training data, to treat others alike.

    Args:
        estimator: gets `n_features_in_` and `feature_names_in_`.
        standardize: whether features are shifted and scaled to mean 0 and deviation 1. Those of
            sparse matrices are scaled only.
        weights: the weights of the examples, which count in mean and deviation.
    """

    def __init__(
        self, estimator: Any, X: Any, *, standardize: bool, weights: Array | None = None
    ) -> None:
        self._mean, self._scale, self._coding = 0.0, 1.0, None
        self._dtype = np.dtype("float32")
        if is_table(X):
            validate_data(estimator, X, skip_check_array=True)
            self._coding = from_frame(X, gaps="indicator", standardise=standardize).coding
            self._trained: Array | None = self.read(estimator, X)
            return
        read = _read(estimator, X, reset=True)
        self._dtype = read.dtype
        if standardize and sparse.issparse(read):
            squares = read.multiply(read)
            mean = squares.mean(axis=0) if weights is None else weights @ squares / weights.sum()
            self._scale = _without_zeros(np.sqrt(np.asarray(mean).ravel()))
        elif standardize:
            self._mean, deviation = moments(read, weights)
            self._scale = _without_zeros(deviation)
        self._trained = self._scaled(read)

    def take(self) -> Array:
        """The features X, as `read` returns them; they are not kept."""
        trained, self._trained = self._trained, None
        assert trained is not None
        return trained

    def read(self, estimator: Any, X: Any) -> Array:
        """Features as an array, of the float type of the training data; float32 of a table."""
        if self._coding is not None:
            validate_data(estimator, X, skip_check_array=True, reset=False)
            return self._coding.inputs(X)
        return self._scaled(_read(estimator, X, reset=False))

    def _scaled(self, read: Any) -> Array:
        dense = read.toarray() if sparse.issparse(read) else read
        return ((dense - self._mean) / self._scale).astype(self._dtype, copy=False)


def _read(estimator: Any, X: Any, *, reset: bool) -> Any:
    how = {"accept_sparse": "csr", "dtype": (np.float64, np.float32), "reset": reset}
    return validate_data(estimator, X, **how)


def moments(values: Array, weights: Array | None) -> tuple[Array, Array]:
    """The mean and the deviation of numbers over the examples."""
    mean = np.average(values, axis=0, weights=weights)
    return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))


def required_targets(estimator: Any, y: Any, dtype: Any = None) -> Array:
    """`checked_targets` of an estimator that cannot do without."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y "
            "is None."
        )
    return checked_targets(y, dtype)


def checked_targets(y: Any, dtype: Any = None) -> Array:
    """Targets as an array of finite numbers, or of names."""
    how: dict[str, Any] = {"ensure_2d": False, "dtype": dtype, "input_name": "y"}
    return check_array(y, **how)


def _without_zeros(scale: Array) -> Array:
    """Deviations; constant features, up to rounding, are not scaled."""
    return np.where(scale > 1e-12 * max(float(scale.max(initial=0)), 1e-300), scale, 1.0)
