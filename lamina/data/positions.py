"""Positions in a stream, from which it is continued; and the order of a window's examples."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, cast, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.kinds import Misfit, ReadBy, Whole, shown
from lamina.checks.stored import read_stored
from lamina.errors import DataError
from lamina.program.philox import WINDOW_STREAM, permutations, random_bits

Counted = Annotated[int, Whole(0)]


@frozen_dataclass
class Position:
    """Where a stream is continued: the beginning of a block, and the examples of it that are used.

    Attributes:
        batches: the number of the source's batches before the block.
        examples: the number of examples in the next batch that are before the block.
        block: the number of the block in the epoch.
        used: the number of examples, in the order of the block, that are done.
        state: the state of the source before the batch in which the block begins; None if it has
            none.
    """

    epoch: Counted = 0
    batches: Counted = 0
    examples: Counted = 0
    block: Counted = 0
    used: Counted = 0
    state: Any = None


@final
class WindowOrder:
    """The blocks of an epoch, and the order of the examples in each."""

    def __init__(self, window: int, seed: int, epoch: int) -> None:
        self._window, self._seed = window, seed
        # The numbers of the permutations of an epoch; the first one is for the length.
        self._first = (epoch & 0x7FFFFFFF) << 32
        word = random_bits(seed, self._first, np.zeros(1, np.int64), WINDOW_STREAM)
        self._shorter = 1 + int(word[0]) % window

    def length(self, block: int) -> int:
        """The most examples of a block; the first one is shorter."""
        return self._window if block else self._shorter

    def permutation(self, block: int, count: int) -> Array:
        """The order of the `count` examples of a block, int64."""
        number = self._first + 1 + block
        return permutations(count, self._seed, range(number, number + 1), WINDOW_STREAM)[0]


_BYTES = "base64"


def saved_state(owner: Any, iterator: Any) -> Any:
    """The state of a source as plain data; None if it has none."""
    if is_stateful(owner):
        state = owner.state_dict()
    elif hasattr(iterator, "get_state") and hasattr(iterator, "set_state"):
        state = iterator.get_state()
    else:
        return None
    if isinstance(state, bytes):
        return {_BYTES: base64.b64encode(state).decode()}
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError):
        raise DataError(
            "the state of the source is not plain data",
            facts=(("expected", "numbers, texts, lists and dictionaries"), ("found", shown(state))),
            where=type(owner).__name__,
            advice="Give a function with a parameter `skip`, which omits so many batches.",
        ) from None


def is_stateful(owner: Any) -> bool:
    """Whether a source keeps its position itself."""
    return hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")


def plain_state(state: Any) -> Any:
    """The state as the source gave it."""
    coded = cast(dict[str, Any], state) if isinstance(state, dict) else {}
    if list(coded) != [_BYTES]:
        return cast(Any, state)
    return read_stored(ReadBy(_base64), coded[_BYTES], "state.base64")


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise Misfit("bytes as text of base64") from None
