"""A transformer: the features of the last hidden layer."""

# pyright: basic

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from lamina.base.shapes import Array, static
from lamina.learning.losses.binary import BCEWithLogits
from lamina.learning.losses.classification import CrossEntropy
from lamina.learning.losses.regression import MSE
from lamina.learning.protocols import Loss
from lamina.network import Network
from lamina.sklearn.base import BaseLamina, scaling
from lamina.sklearn.features import checked_targets


class LaminaEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseLamina):
    """Transforms examples to the features that a network has before its last layer.

    The network is trained to predict `y`: classes, several labels, or numbers. Without `y` it is an
    autoencoder, which reconstructs the features.

    Args:
        hidden_layer_sizes, activation, dropout, l2, network, optimizer, learning_rate_init,
            batch_size, max_iter, tol, n_iter_no_change, early_stopping, validation_fraction,
            standardize, ensemble, warm_start, random_state, engine, verbose: see `BaseLamina`. The
            embedding has as many features as the last hidden layer, of each network.

    Example:
        >>> from lamina.sklearn import LaminaEmbedding
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]
        >>> LaminaEmbedding((8, 2), random_state=0).fit(X, y).transform(X).shape
        (4, 2)
    """

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> LaminaEmbedding:
        """Trains the networks: see `BaseLamina.fit`. `y` may be None."""
        super().fit(X, y, sample_weight)
        network = self.population_[0].network
        before = network.outputs[0].operands[0]
        part = Network(network.inputs, before)
        self._parts = [model.part(part) for model in self.population_]
        self._n_features_out = self.ensemble * static(before.shape[1:])[-1]
        return self

    def _targets(self, y: Any, inputs: Array, weights: Array | None, *, is_first: bool) -> Array:
        self._kind = "none"
        if y is None:
            return inputs
        y = checked_targets(y)
        self._kind = type_of_target(y, input_name="y")
        if self._kind in ("binary", "multiclass"):
            classes, numbers = np.unique(y, return_inverse=True)
            self._classes = max(len(classes), 2)
            return numbers.astype(np.int64).ravel()
        if self._kind == "multilabel-indicator":
            return y.astype(np.float32)
        y = y.astype(np.float64)
        mean, scale = scaling(y, weights)
        return ((y - mean) / scale).reshape(len(y), -1)

    def _outputs(self, targets: Any) -> int:
        return self._classes if targets.ndim == 1 else targets.shape[1]

    def _loss(self) -> Loss:
        if self._kind in ("binary", "multiclass"):
            return CrossEntropy()
        return BCEWithLogits() if self._kind == "multilabel-indicator" else MSE()

    def transform(self, X: Any) -> Array:
        """The embedding of each example, (examples, features)."""
        check_is_fitted(self)
        inputs = self._features.read(self, X)
        parts = [model.predict(inputs) for model in self._parts]
        return np.concatenate(parts, axis=1)
