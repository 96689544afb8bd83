"""Classifiers and regressors."""

# pyright: basic

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, logit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels

from lamina.base.shapes import Array
from lamina.learning.losses.binary import BCEWithLogits
from lamina.learning.losses.classification import CrossEntropy
from lamina.learning.losses.regression import MSE
from lamina.learning.protocols import Loss
from lamina.sklearn.base import BaseLamina, scaling
from lamina.sklearn.features import required_targets


class LaminaClassifier(ClassifierMixin, BaseLamina):
    """Classifies by one network, or by an ensemble of them.

    It has the parameters and attributes of `sklearn.neural_network.MLPClassifier`, and takes data
    frames with words and gaps.

    Args:
        hidden_layer_sizes, activation, dropout, l2, network, optimizer, learning_rate_init,
            batch_size, max_iter, tol, n_iter_no_change, early_stopping, validation_fraction,
            standardize, ensemble, warm_start, random_state, engine, verbose: see `BaseLamina`.
        class_weight: weights of classes, a dict or `"balanced"`.

    Attributes:
        classes_: the classes, in the order of the outputs.
        population_: the trained networks, a `lamina.Population`.
        histories_, loss_curve_, n_iter_, loss_: the history of each network, their mean loss of
            each epoch, the number of epochs and the last loss.

    Example:
        >>> from lamina.sklearn import LaminaClassifier
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"]
        >>> LaminaClassifier(random_state=0).fit(X, y).predict([[0.5], [2.5]]).tolist()
        ['no', 'yes']
    """

    def __init__(
        self,
        hidden_layer_sizes=(100,),
        activation="relu",
        *,
        class_weight=None,
        dropout=0.0,
        l2=2e-3,
        network=None,
        optimizer=None,
        learning_rate_init=0.001,
        batch_size="auto",
        max_iter=200,
        tol=1e-4,
        n_iter_no_change=10,
        early_stopping=False,
        validation_fraction=0.1,
        standardize=True,
        ensemble=1,
        warm_start=False,
        random_state=None,
        engine="cpu",
        verbose=False,
    ):
        super().__init__(
            hidden_layer_sizes,
            activation,
            dropout=dropout,
            l2=l2,
            network=network,
            optimizer=optimizer,
            learning_rate_init=learning_rate_init,
            batch_size=batch_size,
            max_iter=max_iter,
            tol=tol,
            n_iter_no_change=n_iter_no_change,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            standardize=standardize,
            ensemble=ensemble,
            warm_start=warm_start,
            random_state=random_state,
            engine=engine,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _targets(self, y: Any, inputs: Array, weights: Array | None, *, is_first: bool) -> Array:
        y = required_targets(self, y)
        check_classification_targets(y)
        several = type_of_target(y, input_name="y").startswith("multilabel")
        if not several:
            y = column_or_1d(y, warn=True)
        if is_first and not hasattr(self, "_given_classes"):
            self._is_multilabel = several
            self.classes_ = np.arange(y.shape[1]) if several else unique_labels(y)
        if several != self._is_multilabel:
            raise ValueError(f"y has another type of target than in the first fit: {y!r:.100}")
        if several:
            return np.asarray(y, np.float32)
        numbers = np.searchsorted(self.classes_, y)
        unknown = (numbers == len(self.classes_)) | (
            self.classes_[np.minimum(numbers, len(self.classes_) - 1)] != y
        )
        if unknown.any():
            raise ValueError(
                f"`y` has classes not in `self.classes_`. `self.classes_` has {self.classes_}. "
                f"'y' has {unique_labels(y)}."
            )
        return numbers.astype(np.int64)

    def _outputs(self, targets: Any) -> int:
        return max(len(self.classes_), 2)

    def _loss(self) -> Loss:
        return BCEWithLogits() if self._is_multilabel else CrossEntropy()

    def _weights(self, y: Array) -> Array | None:
        if self.class_weight is None:
            return None
        labels = y if self._is_multilabel else self.classes_[y]
        return compute_sample_weight(self.class_weight, labels)

    def _strata(self, y: Any) -> Array | None:
        return None if self._is_multilabel else y

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> LaminaClassifier:
        """One epoch on these examples, which continues earlier ones.

        Args:
            classes: all classes; needed in the first call only.
        """
        if not hasattr(self, "population_"):
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            several = type_of_target(y).startswith("multilabel")
            self._is_multilabel, self.classes_ = several, unique_labels(classes)
            self._given_classes = True
            try:
                return self._partial_fit(X, y, sample_weight, is_first=True)
            finally:
                # A later fit learns its own classes.
                del self._given_classes
        if classes is not None and not np.array_equal(self.classes_, unique_labels(classes)):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: "
                f"{self.classes_!r}"
            )
        return self._partial_fit(X, y, sample_weight, is_first=False)

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (examples, classes); of each label on its own."""
        if getattr(self, "_is_multilabel", False):
            return self._mean(X, expit)
        count = len(getattr(self, "classes_", ()))
        return self._mean(X, lambda outputs: softmax(outputs[..., :count], axis=-1))

    def decision_function(self, X: Any) -> Array:
        """The log odds of the second of two classes, (examples,); or of each class or label."""
        probabilities = self.predict_proba(X).astype(np.float64)
        odds = logit(np.clip(probabilities, 1e-300, 1 - 2.0**-53))
        return odds[:, 1] if len(self.classes_) == 2 and not self._is_multilabel else odds

    def predict(self, X: Any) -> Array:
        """The most probable class of each example; with several labels, those above one half."""
        probabilities = self.predict_proba(X)
        if self._is_multilabel:
            return (probabilities > 0.5).astype(np.int64)
        return self.classes_[probabilities.argmax(axis=1)]


class LaminaRegressor(RegressorMixin, BaseLamina):
    """Predicts numbers by one network, or by the mean of an ensemble of them.

    It has the parameters and attributes of `sklearn.neural_network.MLPRegressor`, and takes data
    frames with words and gaps. Targets, too, are scaled while it is trained.

    Args:
        hidden_layer_sizes, activation, dropout, l2, network, optimizer, learning_rate_init,
            batch_size, max_iter, tol, n_iter_no_change, early_stopping, validation_fraction,
            standardize, ensemble, warm_start, random_state, engine, verbose: see `BaseLamina`.

    Attributes:
        population_, histories_, loss_curve_, n_iter_, loss_: as of `LaminaClassifier`. The loss is
            of scaled targets.

    Example:
        >>> from lamina.sklearn import LaminaRegressor
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 7.0]
        >>> LaminaRegressor(max_iter=1000, random_state=0).fit(X, y).score(X, y) > 0.9
        True
    """

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _targets(self, y: Any, inputs: Array, weights: Array | None, *, is_first: bool) -> Array:
        y = required_targets(self, y, np.float64)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        if is_first:
            self._is_flat = y.ndim == 1
            self._target_mean, self._target_scale = scaling(y, weights)
        return ((y - self._target_mean) / self._target_scale).reshape(len(y), -1)

    def _loss(self) -> Loss:
        return MSE()

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> LaminaRegressor:
        """One epoch on these examples, which continues earlier ones."""
        is_first = not hasattr(self, "population_")
        return self._partial_fit(X, y, sample_weight, is_first=is_first)

    def predict(self, X: Any) -> Array:
        """The numbers of each example, (examples,) or (examples, outputs)."""
        predicted = self._mean(X, lambda outputs: outputs)
        if self._is_flat:
            predicted = predicted[:, 0]
        return predicted * self._target_scale + self._target_mean
