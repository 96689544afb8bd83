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
        ("# the first turn of the loop", "turn"),
        ("for places in window:", "places"),
        ("# in its training form", "training form"),
        ("# a prepared program", "prepared"),
        ("# a dear operation", "dear"),
        ("# next to it, not BESIDE it", "beside"),
        ("team_size = 4", "team"),
        ("self._team = 4", "team"),
        ("one.row_cuts", "cuts"),
        ("class Turns:", "turns"),
        ("class ThreadTeam:", "team"),
        ("class LLVMTeam:", "team"),
        ("K_AHEAD_BYTES = 4", "ahead"),
        ("TEAMS = 4", "teams"),
        ("team2 = 4", "team"),
        ("def training_form(x): ...", "training form"),
    ],
)
def test_retired_words_are_found_in_prose_and_in_names(line: str, found: str) -> None:
    assert words_found("some.py", line) == [found]


@pytest.mark.parametrize(
    "line",
    [
        "# the result is written in place",
        "in_place = True",
        "# within 4 units in the last place",
        "# this turns the cache off",
        "# it turns each group into one step",
        "# while another is under way",
        "# the iteration",
        "# a steam engine, a cutoff, a replacement",
        "waypoint = 4",
    ],
)
def test_phrases_with_a_standard_meaning_are_right(line: str) -> None:
    assert words_found("some.py", line) == []


def test_a_phrase_may_span_lines() -> None:
    assert words_found("some.py", "# within 4 units in the last\n# place\n") == []
    assert words_found("some.py", "# in its training\n# form\n") == ["training form"]


def test_a_breach_states_its_line_and_the_standard_term() -> None:
    from house_rules import breaches_in

    breaches = list(breaches_in("docs/some.md", "A page.\n\nA team.\n"))
    assert breaches == ["docs/some.md:3: 'team' is retired: say thread pool"]


def test_a_path_is_read_as_line_0() -> None:
    from house_rules import breaches_in

    breaches = list(breaches_in("lamina/team_size.py", "x = 1\n"))
    assert breaches == ["lamina/team_size.py:0: 'team' is retired: say thread pool"]


def test_tables_of_faults_and_settings_are_read() -> None:
    from house_rules import TABLES, _files

    read = {path.relative_to(ROOT).as_posix() for path in _files(TABLES, "*.toml")}
    assert read >= {"tools/mutations/cpu.toml", "pyproject.toml", ".ci/run"}
    text = '[[faults]]\nname = "a slice is cut in two"\nold = "turn_of(x)"\n'
    assert words_found("tools/mutations/cpu.toml", text) == ["turn", "cut"]


@pytest.mark.parametrize(
    ("path", "line", "found"),
    [
        ("lamina/layers/recurrent.py", "gates = 4", []),
        ("lamina/checks/calls.py", "gates = 4", ["gates"]),
        ("tests/unit/test_lazy.py", "gates = 4", ["gates"]),
        ("lamina/engines/engine.py", "write_parts()", ["parts"]),
        ("lamina/network.py", "shared_parts()", []),
    ],
)
def test_a_word_may_be_retired_in_some_files_only(path: str, line: str, found: list[str]) -> None:
    assert words_found(path, line) == found


def test_some_words_are_retired_in_names_only() -> None:
    path = "lamina/engines/simd/emit/tiles.py"
    assert words_found(path, '"""The rows of a tile."""  # by columns\n') == []
    assert words_found(path, "first_row = 4\n") == ["row"]
    assert words_found(path, 'names = ("batch", "column")\n') == ["column"]
    assert words_found(path, "column_sums = inner_axes\n") == []


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
