"""Leaves of a graph, and the check of many cases in a program, which knows the option `--case`."""

from functools import partial

import harness
import pytest


@pytest.fixture
def check_cases(engine, pytestconfig):
    """`harness.check_cases` on the engine, of the case of `--case` alone if there is one.

    With a function it takes values of the function's first argument, and names cases after them.
    """

    def check(cases, build=None, **how):
        if build is not None:
            cases = [(str(value).replace(" ", ""), partial(build, value)) for value in cases]
        harness.check_cases(cases, engine, only=pytestconfig.getoption("--case"), **how)

    return check


@pytest.fixture
def leaves():
    return harness.Leaves()
