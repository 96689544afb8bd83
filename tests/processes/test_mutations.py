"""The tables of faults that tests should find fit the sources."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("mutations", TOOLS / "mutations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its records look for their module there.
    sys.modules["mutations"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "table", sorted((TOOLS / "mutations").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_fault_of_a_table_fits_the_sources(tool: Any, table: Path) -> None:
    faults = tool.faults_of(table)
    assert len(faults) >= 10
    assert {fault.name: fault.problem() for fault in faults if fault.problem()} == {}
    assert len({fault.name for fault in faults}) == len(faults)
