"""The graph and program of a small network, and all public names, are as recorded.

After an intended change: `python tests/golden/record.py texts`, and read the difference.
"""

import pytest
from texts import FOLDER, TEXTS

pytestmark = pytest.mark.each_case


@pytest.mark.parametrize("name", TEXTS)
def test_text_equals_the_recorded_text(name):
    assert TEXTS[name]() + "\n" == (FOLDER / name).read_text()
