"""Random examples for a network and a loss, on which a program is timed or verified."""

from __future__ import annotations

import numpy as np

from lamina.base.shapes import Array, DType, bind, shape_text, size_of
from lamina.data import Dataset
from lamina.errors import DataError
from lamina.learning.protocols import Loss
from lamina.network import Network
from lamina.program.philox import VERIFICATION_STREAM, random_bits
from lamina.step.derive import targets_of_terms


def random_normal(shape: tuple[int, ...], seed: int, number: int) -> Array:
    """Bounded random numbers of mean 0 and standard deviation 1: sums of uniform numbers."""
    size = size_of(shape)
    words = random_bits(seed, number, np.arange(4 * size, dtype=np.int64), VERIFICATION_STREAM)
    uniform = words.astype(np.float64).reshape(4, size) * 2.0**-32
    return ((uniform.sum(axis=0) - 2.0) * np.sqrt(3.0)).reshape(shape)


def random_examples(
    network: Network, loss: Loss | None, batch: int, seed: int, dtype: DType, *, where: str
) -> Dataset:
    """`batch` random examples, with targets that the loss accepts, if there is a loss."""
    inputs: list[Array] = []
    for number, tensor in enumerate(network.inputs):
        if not tensor.dtype.is_float:
            label = repr(network.input_names[number] or number)
            raise DataError(
                "random examples cannot be made for an input of integers",
                facts=(("input", f"{label}, {shape_text(tensor.shape, tensor.dtype)}"),),
                where=where,
                advice=f"Give some: {where}(..., data=(x, y)), "
                f"or lamina {where} FILE.py --data DATA.",
            )
        noise = random_normal(bind(tensor.shape, batch), seed, number)
        inputs.append(noise.astype(dtype.numpy))
    targets: list[Array] = []
    for term, specs in [] if loss is None else targets_of_terms(network, loss, dtype):
        # Lamina's losses make their own targets; a plain function gets the noise itself.
        suited = getattr(term.loss, "example_targets", None)
        compared = network.outputs[term.output or 0]
        for shape, kind in specs:
            noise = random_normal(bind(shape, batch), seed, 1000 + len(targets))
            if suited is not None:
                noise = suited(noise, bind(compared.shape, batch))
            targets.append(noise.astype(kind.numpy))
    return Dataset(tuple(inputs), tuple(targets) or None)
