"""Programs in a Python process of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

Done = subprocess.CompletedProcess[str]


def run_python(
    *arguments: object,
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    **variables: str,
) -> Done:
    """Runs Python with arguments; `variables` are added to its environment."""
    # From Python 3.12 on, forks of a process with threads warn.
    no_warning = "ignore:This process:DeprecationWarning"
    return subprocess.run(
        [sys.executable, "-W", no_warning, *map(str, arguments)],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def printed(code: str, *options: str, folder: Path | None = None, **variables: str) -> str:
    """What a program prints that ends well and writes no errors."""
    done = run_python(*options, "-c", code, folder=folder, **variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
