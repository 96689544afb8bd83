"""Packages that the tests of data use where they are installed."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def pandas() -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed")


@pytest.fixture
def polars() -> Any:
    return pytest.importorskip("polars", reason="Polars is not installed")
