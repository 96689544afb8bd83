"""The check of many cases in one program, which knows the option `--case`."""

from __future__ import annotations

from functools import partial

import harness
import pytest


@pytest.fixture
def check_cases(pytestconfig: pytest.Config) -> partial[None]:
    """`harness.check_cases`, of the case of `--case` alone if there is one."""
    return partial(harness.check_cases, only=pytestconfig.getoption("--case"))
