"""The base of the estimators: a population of networks, fitted and continued."""

# pyright: basic

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from lamina.base.shapes import Array, shape_text
from lamina.data import Dataset
from lamina.errors import DefinitionError
from lamina.layers import (
    ELU,
    GELU,
    L2,
    Dropout,
    Input,
    LeakyReLU,
    Linear,
    ReLU,
    Sigmoid,
    SiLU,
    Tanh,
)
from lamina.learning.optimizers import Adam, Optimizer
from lamina.learning.protocols import Loss
from lamina.network import Network, Sequential
from lamina.population import Population
from lamina.sklearn.features import Features, moments
from lamina.training.callbacks import EarlyStopping

ACTIVATIONS = {
    "relu": ReLU,
    "tanh": Tanh,
    "logistic": Sigmoid,
    "gelu": GELU,
    "silu": SiLU,
    "elu": ELU,
    "leaky_relu": LeakyReLU,
}
# The seeds of members lie above that of the estimator.
_MOST_SEED = 2**31 - 1


class BaseLamina(BaseEstimator):
    """The options that all estimators share, with the names of scikit-learn's perceptrons.

    Args:
        hidden_layer_sizes: the features of the hidden layers.
        activation: `"relu"`, `"tanh"`, `"logistic"`, `"gelu"`, `"silu"`, `"elu"`, `"leaky_relu"` or
            `"identity"`.
        dropout: the share of hidden features that are dropped in training.
        l2: the strength of L2 on the weights.
        network: a `lamina.Network`, or a function (inputs, outputs) that makes one, in place of
            the hidden layers.
        optimizer: an optimizer such as `lamina.SGD(0.01, momentum=0.9)`; by default
            `lamina.Adam(learning_rate_init)`.
        learning_rate_init: the learning rate of the default optimizer.
        batch_size: the examples of a training step; `"auto"`: at most 200.
        max_iter: the most epochs.
        tol, n_iter_no_change: a fit ends when the loss has not improved by `tol` for so many
            epochs.
        early_stopping: whether the loss of a part of the training data decides that; then the
            parameters of the best epoch are kept.
        validation_fraction: that part.
        standardize: whether features are shifted and scaled to mean 0 and deviation 1.
        ensemble: the number of networks, trained together, over which predictions are averaged.
        warm_start: whether `fit` continues from the parameters of the last fit.
        random_state: the seed of the parameters, the order of examples and dropout.
        engine: `"cpu"`, `"opencl"`, `"cuda"` or `"interpreter"`.
        verbose: whether to show progress.
    """

    def __init__(
        self,
        hidden_layer_sizes=(100,),
        activation="relu",
        *,
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
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.dropout = dropout
        self.l2 = l2
        self.network = network
        self.optimizer = optimizer
        self.learning_rate_init = learning_rate_init
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.standardize = standardize
        self.ensemble = ensemble
        self.warm_start = warm_start
        self.random_state = random_state
        self.engine = engine
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # What the estimators differ in ----------------------------------------------------------------

    def _targets(self, y: Any, inputs: Array, weights: Array | None, *, is_first: bool) -> Array:
        """The targets of the network, whose meaning is learned at the first call.

        Args:
            inputs, weights: the features, and the weights of the examples.
        """
        raise NotImplementedError

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _weights(self, y: Array) -> Array | None:
        """Weights of the examples by their classes."""
        return None

    def _strata(self, y: Any) -> Array | None:
        """Classes of which the validation data has as large a share as the training data."""
        return None

    # Fitting --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Trains the networks.

        Args:
            X: features: an array, a sparse matrix, or a data frame, which may have columns of words
                or dates, and gaps.
            y: targets.
            sample_weight: the weight of each example.
        """
        is_first = not (self.warm_start and hasattr(self, "population_"))
        data = self._data(X, y, sample_weight, is_first=is_first)
        if is_first:
            self._make(data)
        random = check_random_state(self.random_state)
        stopping, given = EarlyStopping("loss", **self._stopping(), restore_best=False), {}
        if self.early_stopping:
            numbers = np.arange(len(data))
            strata, fraction = self._strata(data.targets), self.validation_fraction
            split = train_test_split(
                numbers, test_size=fraction, stratify=strata, random_state=random
            )
            data, given["validation"] = data.take(split[0]), data.take(split[1])
            stopping = EarlyStopping("validation_loss", **self._stopping())
        self.histories_ = self.population_.fit(
            data,
            loss=self._loss(),
            optimizer=self._optimizer(),
            epochs=self.max_iter,
            batch_size=self._batch_size(len(data)),
            seeds=self._seeds(),
            callbacks=[stopping],
            progress=bool(self.verbose),
            **given,
        )
        failures = self.histories_.failures
        if len(failures) == self.ensemble:
            # None of the networks learned anything that can be used.
            raise failures[0]
        self.loss_curve_ = np.nanmean(self.histories_["loss"], axis=0).tolist()
        self.n_iter_ = len(self.loss_curve_)
        self.loss_ = self.loss_curve_[-1]
        self._state = None
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, *, is_first: bool) -> Any:
        """One epoch, which continues the one before."""
        data = self._data(X, y, sample_weight, is_first=is_first)
        if is_first:
            self._make(data)
            self._state, self.loss_curve_, self.n_iter_ = None, [], 0
        size = self._batch_size(len(data))
        how = {"loss": self._loss(), "optimizer": self._optimizer(), "data": data}
        with self.population_.training(**how, batch_size=size, seeds=self._seeds()) as training:
            if self._state is not None:
                training.restore(self._state)
            losses = training.run(data, -(-len(data) // size))
            self._state = training.state()
        self.loss_ = float(losses.mean())
        self.loss_curve_.append(self.loss_)
        self.n_iter_ += 1
        return self

    def _data(self, X: Any, y: Any, sample_weight: Any, *, is_first: bool) -> Dataset:
        """The training data, and what is learned from it at the first call."""
        given = None
        if sample_weight is not None:
            given = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        if is_first:
            how = {"standardize": self.standardize, "weights": given}
            self._features = Features(self, X, **how)
        inputs = self._features.take() if is_first else self._features.read(self, X)
        targets = self._targets(y, inputs, given, is_first=is_first)
        by_class = self._weights(targets)
        weights = by_class if given is None else given if by_class is None else given * by_class
        if inputs.shape[0] != len(targets):
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: "
                f"{[inputs.shape[0], len(targets)]}"
            )
        if targets.dtype.kind == "f":
            targets = targets.astype(inputs.dtype)
        if weights is None:
            return Dataset(inputs, targets)
        return Dataset(inputs, targets, weights=weights.astype(inputs.dtype))

    def _make(self, data: Dataset) -> None:
        """Makes the networks."""
        inputs: Any = data.inputs
        random = check_random_state(self.random_state)
        self._seed = int(random.randint(_MOST_SEED))
        outputs = self._outputs(data.targets)
        network = self.network
        if network is None:
            sizes = np.atleast_1d(np.asarray(self.hidden_layer_sizes, dtype=int)).tolist()
            how = self._known_activation(), self.dropout or 0.0, self.l2 or 0.0
            network = _perceptron(inputs.shape[1], *sizes, outputs, how=how)
        elif not isinstance(network, Network):
            network = network(inputs.shape[1], outputs)
        found = [tensor.shape[1:] for tensor in network.outputs]
        if found != [(outputs,)]:
            raise DefinitionError(
                "the network has other outputs than the targets need",
                facts=(
                    ("expected", f"one of {outputs} numbers for each example"),
                    ("found", ", ".join(map(shape_text, found))),
                ),
                where=f"{type(self).__name__}(network=...)",
                advice=f"Let it end in lm.Linear({outputs}).",
            )
        given = {"seeds": self._seeds(), "dtype": inputs.dtype.name}
        self.population_ = Population(network, self.ensemble, self.engine, **given)

    def _outputs(self, targets: Any) -> int:
        """The number of outputs of a network."""
        return targets.shape[1]

    def _known_activation(self) -> str:
        known = (*ACTIVATIONS, "identity")
        if isinstance(self.activation, str) and self.activation in known:
            return self.activation
        raise DefinitionError(
            f"there is no activation {self.activation!r}",
            facts=(("expected", ", ".join(known)),),
            where=type(self).__name__,
        )

    def _seeds(self) -> list[int]:
        return [self._seed + number for number in range(self.ensemble)]

    def _optimizer(self) -> Optimizer:
        return Adam(self.learning_rate_init) if self.optimizer is None else self.optimizer

    def _batch_size(self, examples: int) -> int:
        return min(200 if self.batch_size == "auto" else int(self.batch_size), examples)

    def _stopping(self) -> dict[str, Any]:
        return {"patience": self.n_iter_no_change, "least_change": self.tol}

    # Predicting -----------------------------------------------------------------------------------

    def _mean(self, X: Any, of_outputs: Callable[[Array], Array]) -> Array:
        """The mean over the networks of a function of their outputs."""
        check_is_fitted(self)
        outputs = self.population_.predict(self._features.read(self, X))
        return of_outputs(outputs).mean(axis=0)


@lru_cache(maxsize=4)
def _perceptron(features: int, *sizes: int, how: tuple[str, Any, Any]) -> Network:
    """A network of linear layers. Equal ones are one object: it is compiled once.

    Args:
        features: the inputs.
        sizes: the hidden layers, and the outputs.
        how: activation, dropout and the strength of L2.
    """
    activation, dropout, l2 = how
    decay = L2(l2) if l2 else None
    layers: list[Any] = []
    for size in sizes[:-1]:
        layers.append(Linear(size, weight_regularizer=decay))
        if activation != "identity":
            layers.append(ACTIVATIONS[activation]())
        if dropout:
            layers.append(Dropout(dropout))
    return Sequential(Input(features), *layers, Linear(sizes[-1], weight_regularizer=decay))


def scaling(y: Array, weights: Array | None) -> tuple[Array, Array]:
    """The mean and the deviation of numbers; 1 for a deviation of 0."""
    mean, deviation = moments(y, weights)
    return mean, np.where(deviation > 0, deviation, 1.0)
