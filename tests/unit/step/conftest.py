"""Fixtures of the tests of training steps."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["interpreter", "cpu", "opencl"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine."""
    is_opencl = request.param == "opencl"
    return request.getfixturevalue("opencl_name") if is_opencl else request.param
