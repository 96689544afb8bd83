"""What the tests of the cuda engine need, on machines with and without a GPU."""

from __future__ import annotations

from functools import cache

import pytest


@cache
def _missing_nvrtc() -> str:
    """Why tests that compile with NVRTC are skipped; empty if its library is installed."""
    from cuda.bindings import nvrtc

    try:
        nvrtc.nvrtcVersion()
    # What the package raises if the library is missing.
    except RuntimeError as error:
        return f"needs NVRTC: pip install nvidia-cuda-nvrtc ({error})"
    return ""


def skip_without_nvrtc() -> None:
    """Skips a test file where the library of NVRTC is not installed, and for no other reason."""
    if reason := _missing_nvrtc():
        pytest.skip(reason, allow_module_level=True)


def needing_nvrtc() -> pytest.MarkDecorator:
    """The mark of a single test that is skipped for the same reason."""
    return pytest.mark.skipif(bool(_missing_nvrtc()), reason=_missing_nvrtc())
