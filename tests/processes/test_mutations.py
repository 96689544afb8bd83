"""The tables of faults that tests should find fit the sources."""

import importlib
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.mark.parametrize(
    "table", sorted((TOOLS / "mutations").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_fault_of_a_table_fits_the_sources(table, monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    faults = importlib.import_module("mutations").faults_of(table)
    assert len(faults) >= 10
    assert {fault.name: fault.problem() for fault in faults if fault.problem()} == {}
    assert len({fault.name for fault in faults}) == len(faults)
