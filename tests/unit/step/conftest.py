"""Fixtures of the tests of training steps."""

import pytest


@pytest.fixture(params=["interpreter", "cpu", "opencl"])
def engine(request):
    """The name of an engine."""
    is_opencl = request.param == "opencl"
    return request.getfixturevalue("opencl_name") if is_opencl else request.param
