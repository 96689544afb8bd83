"""The rules of the house: retired words are found in prose and in names, and long things too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "tools" / "house_rules.py").exists(), reason="tools are not installed"
)


@pytest.fixture(autouse=True)
def tools_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def words_found(path: str, text: str) -> list[str]:
    from house_rules import breaches_in

    return [breach.split("'")[1] for breach in breaches_in(path, text)]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("# in its training form", ["training form"]),
        ("# in its training\n# form\n", ["training form"]),
        ("team_size = 4", ["team"]),
        ("class LLVMTeam:", ["team"]),
        ("team2 = 4", ["team"]),
        ("def training_form(x): ...", ["training form"]),
        ("# a steam engine, a team", ["team"]),
        ("# the iteration", []),
    ],
)
def test_retired_words_are_found_in_prose_and_in_names(line: str, found: list[str]) -> None:
    assert words_found("some.py", line) == found


def test_a_breach_states_its_line_and_the_standard_term() -> None:
    from house_rules import breaches_in

    breaches = list(breaches_in("docs/some.md", "A page.\n\nA team.\n"))
    assert breaches == ["docs/some.md:3: 'team' is retired: say thread pool"]
    breaches = list(breaches_in("lamina/team_size.py", "x = 1\n"))
    assert breaches == ["lamina/team_size.py:0: 'team' is retired: say thread pool"]


def test_tables_of_faults_and_settings_are_read() -> None:
    from house_rules import TABLES, _files

    read = {path.relative_to(ROOT).as_posix() for path in _files(TABLES, "*.toml")}
    assert read >= {"tools/mutations/cpu.toml", "pyproject.toml", ".ci/run"}


def test_some_words_are_retired_in_some_names_only() -> None:
    path = "lamina/engines/simd/emit/tiles.py"
    assert words_found(path, '"""The form of a tile."""\n') == []
    assert words_found(path, "forms = 4\n") == ["forms"]
    assert words_found("lamina/layers/linear.py", "forms = 4\n") == []


def layer(name: str, lines: int) -> str:
    """A class of so many lines, and a docstring and a blank line in it and in its method."""
    text = f'class {name}(Layer):\n    """One.\n\n    More.\n    """\n\n'
    text += "".join(f"    a{number}: int = 0\n" for number in range(lines - 2))
    return text + '\n    def forward(self):\n        """Two."""\n\n        return 0\n'


def test_a_public_layer_has_few_lines_besides_its_docstrings() -> None:
    from house_rules import MOST_LAYER_LINES, long_layers

    text = layer("Short", MOST_LAYER_LINES) + layer("Long", MOST_LAYER_LINES + 1)
    text += layer("_Shared", MOST_LAYER_LINES + 1) + layer("Other", MOST_LAYER_LINES + 1)
    found = list(long_layers(text, {"Short", "Long"}))
    assert [(name, count) for _, name, count in found] == [("Long", MOST_LAYER_LINES + 1)]


def test_code_and_pages_keep_the_rules() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "house_rules.py")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
