"""The rules of the house: retired words are found in prose and in names, and long things too."""

import importlib
from pathlib import Path

import pytest
from fresh_python import run_python

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "tools" / "house_rules.py").exists(), reason="tools are not installed"
)


@pytest.fixture
def rules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("house_rules")


@pytest.mark.cases(
    ("line", "found"),
    ("# in its training form", ["training form"]),
    ("# in its training\n# form\n", ["training form"]),
    ("team_size = 4", ["team"]),
    ("class LLVMTeam:", ["team"]),
    ("team2 = 4", ["team"]),
    ("def training_form(x): ...", ["training form"]),
    ("# a steam engine, a team", ["team"]),
    ("# the iteration", []),
)
def test_retired_words_are_found_in_prose_and_in_names(rules, line, found):
    assert [breach.split("'")[1] for breach in rules.breaches_in("some.py", line)] == found


def test_a_breach_states_its_line_and_the_standard_term(rules):
    tiles = "lamina/engines/simd/emit/tiles.py"
    for path, text, breaches in (
        ("docs/some.md", "A page.\n\nA team.\n", ["3: 'team' is retired: say thread pool"]),
        ("lamina/team_size.py", "x = 1\n", ["0: 'team' is retired: say thread pool"]),
        # Some words are retired in some names only.
        (tiles, '"""The form of a tile."""\n', []),
        ("lamina/layers/linear.py", "forms = 4\n", []),
    ):
        assert list(rules.breaches_in(path, text)) == [f"{path}:{one}" for one in breaches]
    (breach,) = rules.breaches_in(tiles, "forms = 4\n")
    assert "'forms'" in breach


def test_tables_of_faults_and_settings_are_read(rules):
    read = {path.relative_to(ROOT).as_posix() for path in rules._files(rules.TABLES, "*.toml")}
    assert read >= {"tools/mutations/cpu.toml", "pyproject.toml", ".ci/run"}


def layer(name, lines):
    """A class of so many lines, and a docstring and a blank line in it and in its method."""
    text = f'class {name}(Layer):\n    """One.\n\n    More.\n    """\n\n'
    text += "".join(f"    a{number}: int = 0\n" for number in range(lines - 2))
    return text + '\n    def forward(self):\n        """Two."""\n\n        return 0\n'


def test_a_public_layer_has_few_lines_besides_its_docstrings(rules):
    most = rules.MOST_LAYER_LINES
    text = layer("Short", most) + layer("Long", most + 1)
    text += layer("_Shared", most + 1) + layer("Other", most + 1)
    found = list(rules.long_layers(text, {"Short", "Long"}))
    assert [(name, count) for _, name, count in found] == [("Long", most + 1)]


def test_code_and_pages_keep_the_rules():
    done = run_python(ROOT / "tools" / "house_rules.py")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
