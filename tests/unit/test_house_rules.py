"""The rules of the house: retired words are found where they are retired; so are long things."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "tools" / "house_rules.py").exists(), reason="tools are not installed"
)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import house_rules

    return house_rules


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("the first turn of the loop", "turn"),
        ("for places in window:", "places"),
        ("in its training form", "training form"),
        ("class Prepared:", "Prepared"),
        ("a dear operation", "dear"),
        ("the result is written in place", None),
        ("this turns the cache off", None),
        ("the iteration", None),
    ],
)
def test_retired_words_are_found(rules: object, line: str, found: str | None) -> None:
    from house_rules import WORDS, breaches_in

    words = [(re.compile(word.pattern), word.instead) for word in WORDS if not word.within]
    breaches = list(breaches_in("some.py", line, words))
    assert [breach.split("'")[1] for breach in breaches] == ([] if found is None else [found])


def test_a_reason_is_read_only_in_the_first_lines(rules: object) -> None:
    from house_rules import FIRST_LINES, REASON, _has_reason

    assert _has_reason(["", f"{REASON} it is one table."])
    assert not _has_reason([""] * FIRST_LINES + [f"{REASON} it is one table."])


def test_code_and_pages_keep_the_rules() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "house_rules.py")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
