"""The modules of `benchmarks/`, loaded for tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# The modules of the command `benchmarks/gpu.py`, in the order of their imports.
GPU = ("peers/gpu_device", "peers/gpu_workloads", "harness", "run", "gpu")


def modules(paths: Iterable[str]) -> Generator[dict[str, ModuleType]]:
    """The modules by name, for a fixture; `harness` is also a module of the conformance tests."""
    if not BENCHMARKS.exists():
        pytest.skip("the benchmarks are not in this copy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(BENCHMARKS / "peers")])
        loaded: dict[str, ModuleType] = {}
        for path in paths:
            name = path.rpartition("/")[2]
            specification = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{path}.py")
            assert specification is not None
            assert specification.loader is not None
            loaded[name] = importlib.util.module_from_spec(specification)
            patch.setitem(sys.modules, name, loaded[name])
            specification.loader.exec_module(loaded[name])
        yield loaded
