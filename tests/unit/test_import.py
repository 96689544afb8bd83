"""What importing Lamina brings along."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "llvmlite",
    "matplotlib",
    "rich",
    "click",
    "safetensors",
    "h5py",
    "PIL",
    "pyopencl",
    "cuda",
    "onnx",
    "torch",
)


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The top-level modules that `import lamina` loads in a fresh interpreter."""
    code = "import lamina, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("package", HEAVY)
def test_importing_lamina_does_not_import(package: str, imported: set[str]) -> None:
    assert package not in imported


def test_importing_lamina_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import lamina"], capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
