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


Metadata = dict[str, Any]


Tensors = dict[str, Array]


def layer(record: str, **fields: Any) -> Callable[[Metadata, Any, Tensors], None]:
    def change(_: Metadata, definition: Any, __: Tensors) -> None:
        definition["layers"][0] = {"record": record, "fields": fields}

    return change
