"""The compiler makes of a small network what it made before.

Where a change is meant: `python tests/golden/record.py texts`, and read the difference.
"""

from __future__ import annotations

import pytest
from texts import FOLDER, TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_as_recorded(name: str) -> None:
    assert TEXTS[name]() + "\n" == (FOLDER / name).read_text()
