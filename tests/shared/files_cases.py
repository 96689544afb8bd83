"""Helpers of the tests of model files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import error_texts
import numpy as np

import lamina as lm
from lamina import ops
from lamina.errors import FileFormatError

Array = np.ndarray


def functional() -> lm.Network:
    """Two inputs, ops, constants and two outputs."""
    a, b = lm.Input(2, 3), lm.Input(4)
    h = lm.Linear(6)(lm.Flatten()(a)) * np.arange(6, dtype="float32") + 1.5
    h = ops.concat([h, ops.exp(b[:, 1:3])], 1)
    h = ops.reshape(ops.transpose(ops.reshape(h, (h.shape[0], 4, 2)), (0, 2, 1)), (h.shape[0], 8))
    selected = ops.where(h > 0.25, h, ops.broadcast_to(ops.mean(h, 1, keepdims=True), h.shape))
    return lm.Network([a, b], [lm.Linear(3)(selected), ops.sum(h, 1)])


def metadata_of(path: Path) -> dict[str, str]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length])["__metadata__"]


def chain(*layers: Any) -> lm.Network:
    return lm.Sequential(lm.Input(6), *layers)


def refused(path: Path, **how: Any) -> FileFormatError:
    error = error_texts.refused(FileFormatError, lm.load, path, **how)
    assert str(path) in error.where
    return error


# Changes the metadata, the definition and the tensors of a model file.
Change = Callable[[Any, Any, Any], Any]


def layer(record: str, **fields: Any) -> Change:
    def change(_: Any, definition: Any, __: Any) -> None:
        definition["layers"][0] = {"record": record, "fields": fields}

    return change


def damaged(content: bytes, generator: np.random.Generator) -> bytes:
    """The contents truncated, with flipped bits, with added bytes, or all of these."""
    result = bytearray(content)
    kinds = generator.integers(1, 8)
    if kinds & 1:
        del result[int(generator.integers(0, len(result) + 1)) :]
    if kinds & 2 and result:
        # Half of the flips go to the headers, where they do most harm.
        reach = len(result) if generator.random() < 0.5 else min(len(result), 24)
        for position in generator.integers(0, reach, generator.integers(1, 9)):
            result[position] ^= 1 << int(generator.integers(0, 8))
    if kinds & 4:
        result += generator.bytes(int(generator.integers(1, 64)))
    return bytes(result)
