"""The name that examples in docstrings use: `lm` is `lamina`."""

from __future__ import annotations

from typing import Any

import pytest

import lamina


@pytest.fixture(scope="session", autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace["lm"] = lamina
