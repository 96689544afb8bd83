"""Profiles: how long each step of a program takes, measured on a copy of a model."""

from __future__ import annotations

from lamina.data import Dataset
from lamina.inspect.explanation import Profile
from lamina.learning.protocols import TrainingOptions
from lamina.runtime import Inference, Parameters
from lamina.runtime.examples import random_examples
from lamina.training.training import Training


def profile(
    parameters: Parameters,
    options: TrainingOptions | None,
    dataset: Dataset | None,
    batch_size: int,
    seconds: float,
) -> Profile:
    """Profiles a training step of a copy; without options, a forward pass."""
    copy = parameters.copy()
    network, seed = copy.network, copy.seed
    if dataset is None:
        loss = None if options is None else options.loss
        dataset = random_examples(network, loss, batch_size, seed, copy.dtype, where="profile")
    if options is None:
        return Inference(copy).profile(dataset.inputs, seconds)
    with Training(copy, options, dataset, batch_size, seed=seed) as training:
        return training.profile(dataset.inputs, dataset.targets, seconds, weights=dataset.weights)
