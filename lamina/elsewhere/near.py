"""The known name that a misspelt one most resembles, for the advice of errors."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Below it, `Trainer` resembles `Linear`, and `KFold` resembles `Focal`.
_LIKENESS = 0.7


def nearest(name: str, known: Iterable[str], likeness: float = _LIKENESS) -> str:
    """The known name that is most like another one; "" if none is like it.

    Case and underscores do not count, so that `Relu` resembles `ReLU` more than `Recall`.

    Args:
        name: the misspelt name.
        known: the names that exist.
        likeness: the least ratio of equal letters, as difflib counts it.
    """
    folded: dict[str, str] = {}
    for one in known:
        folded.setdefault(_folded(one), one)
    return next((folded[x] for x in get_close_matches(_folded(name), folded, 1, likeness)), "")


def _folded(name: str) -> str:
    return name.lower().replace("_", "")
