"""Profiles: how long each step of a program takes, measured on a copy of a model."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.data import Dataset
from lamina.explanation import Profile
from lamina.protocols import Clip, Loss, Optimizer
from lamina.runtime import Inference, Parameters
from lamina.runtime.examples import random_examples
from lamina.training.training import Training


def profile(
    parameters: Parameters,
    dataset: Dataset | None,
    loss: Loss | None,
    optimizer: Optimizer | None,
    clip: Clip | None,
    frozen: Sequence[str],
    *,
    batch_size: int,
    seconds: float,
) -> Profile:
    """Profiles a training step, or a forward pass without a loss.

    Other arguments are those of `Model.profile`.

    Args:
        parameters: of the model; a copy of them is used.
        dataset: one batch; None for random examples.
    """
    copy = parameters.copy()
    network, seed = copy.network, copy.seed
    if dataset is None:
        dataset = random_examples(network, loss, batch_size, seed, copy.dtype, where="profile")
    if loss is None or optimizer is None:
        return Inference(copy).profile(dataset.inputs, seconds)
    options = (loss, optimizer, batch_size)
    with Training.of(copy, dataset, *options, clip=clip, frozen=frozen, seed=seed) as training:
        return training.profile(dataset.inputs, dataset.targets, seconds)
