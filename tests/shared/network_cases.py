"""Source lines of errors, for tests."""

import inspect

import pytest


def here() -> int:
    """The number of the line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def raised_line(caught: pytest.ExceptionInfo) -> int:
    """The line of the test that raised."""
    return caught.traceback[0].lineno + 1
