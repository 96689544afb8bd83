"""Fixtures that tests of several folders take."""

import pytest
from training_cases import network

import lamina as lm


@pytest.fixture
def model():
    """A model of the small network."""
    return lm.Model(network())


@pytest.fixture
def path(tmp_path):
    """The path of a file that is not there yet."""
    return tmp_path / "file"
