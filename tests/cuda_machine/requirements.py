"""What the tests of the cuda engine need, on machines with and without a GPU."""

from __future__ import annotations

import pytest


def skip_without_nvrtc() -> None:
    """Skips a test file where the library of NVRTC is not installed, and for no other reason."""
    from cuda.bindings import nvrtc

    try:
        nvrtc.nvrtcVersion()
    # What the package raises if the library is missing.
    except RuntimeError as error:
        reason = f"needs NVRTC: pip install nvidia-cuda-nvrtc ({error})"
        pytest.skip(reason, allow_module_level=True)
