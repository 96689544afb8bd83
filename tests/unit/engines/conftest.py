"""Fixtures of the tests of OpenCL devices."""

import pytest

from lamina.engines.discovery import open_engine


@pytest.fixture
def engine(opencl_name):
    return open_engine(opencl_name)


@pytest.fixture
def driver(engine):
    return engine.arena().driver
