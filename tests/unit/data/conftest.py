"""Packages that the tests of data use where they are installed."""

import pytest


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas", reason="pandas is not installed")


@pytest.fixture
def polars():
    return pytest.importorskip("polars", reason="Polars is not installed")
