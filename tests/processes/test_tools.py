"""The rules of the house, the options of the tests, the tables of faults, and recipes."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from fresh_python import run_python

from lamina.engines.discovery import open_engine

ROOT = Path(__file__).resolve().parents[2]
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
        assert list(rules.breaches_in(path, text)) == [f"{path}:{breach}" for breach in breaches]
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
    text = '__all__ = ["Short"]\n__all__ += ["Long"]\n'
    text += layer("Short", most) + layer("Long", most + 1)
    text += layer("_Shared", most + 1) + layer("Other", most + 1)
    layers = list(rules.long_layers(text))
    assert [(name, count) for _, name, count in layers] == [("Long", most + 1)]


def test_code_and_pages_keep_the_rules():
    done = run_python(ROOT / "tools" / "house_rules.py")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def run_pytest(*options):
    """What a run of tests prints."""
    # In a process of xdist these variables would make it report to that process.
    kept = {name: os.environ[name] for name in os.environ if "XDIST" not in name}
    arguments = ("-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *options)
    done = run_python(*arguments, folder=ROOT, environment=kept)
    return done.stdout + done.stderr


@pytest.mark.sampled
def test_kernels_of_pocl_are_kept_for_the_next_run(opencl_name, tmp_path):
    if "pthread" not in open_engine(opencl_name).device.description:
        pytest.skip("not PoCL")
    options = (f"--engine={opencl_name}", "-k", "outputs_are_copies", "--pocl-cache", tmp_path)
    compiled = []
    for _ in range(2):
        output = run_pytest("tests/conformance/test_engine.py", *options)
        assert "1 passed" in output, output
        compiled.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")})
    assert compiled[0] == compiled[1] != {}


ROUNDING = "tests/conformance/test_rounding.py"


def collected(*options):
    """The tests that the options choose."""
    return [line for line in run_pytest("--collect-only", *options).splitlines() if "::" in line]


def test_each_test_is_in_one_part():
    every = collected(ROUNDING, "--engine=interpreter")
    parts = [collected(ROUNDING, "--engine=interpreter", "--part", f"{k}/3") for k in range(3)]
    assert len(every) == 6
    assert sorted(name for part in parts for name in part) == sorted(every)
    assert all(len(part) < len(every) for part in parts)


def test_an_engine_is_the_interpreter_or_cpu_unless_chosen():
    engines = {name.rpartition("[")[2].partition("-")[0] for name in collected(ROUNDING)}
    assert engines == {"interpreter", "cpu"}


def test_a_part_that_there_is_not_is_refused():
    assert "there are parts 0/3 to 2/3" in run_pytest(ROUNDING, "--part", "3/3")


def test_the_first_case_of_each_test_runs_by_default_and_all_of_a_path():
    path = "tests/unit/ops/test_top_k.py"
    every, by_default = collected(path), collected("-o", f"testpaths={path}")
    first = {name.partition("[")[0]: name for name in reversed(every)}
    assert set(first.values()) <= set(by_default) < set(every)


TABLES = sorted((ROOT / "tools" / "mutations").glob("*.toml"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_every_fault_of_a_table_fits_the_sources(table, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    faults = importlib.import_module("mutations").faults_of(table)
    assert len(faults) >= 10
    assert {fault.name: fault.problem() for fault in faults if fault.problem()} == {}
    assert len({fault.name for fault in faults}) == len(faults)


def selected(arguments, ids):
    """The tests, of all ids, that arguments of pytest select; None if no file has tests here."""
    names = [name for name in arguments if name.startswith(("tests/", "lamina"))]
    here = [
        test for test in ids if test.startswith(tuple(name.partition("::")[0] for name in names))
    ]
    chosen = [test for test in here if test.startswith(tuple(names))]
    if "-k" in arguments:
        choice = re.sub(
            r"[^\s()]+",
            lambda word: word[0] if word[0] in ("and", "or", "not") else f"({word[0]!r} in name)",
            arguments[arguments.index("-k") + 1],
        )
        chosen = [test for test in chosen if eval(choice, {"name": test})]
    return chosen if here else None


@pytest.mark.sampled
def test_the_tests_of_every_fault_exist(monkeypatch):
    ids = collected("--part=0/1", "tests")
    assert len(ids) > 10_000
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    faults_of = importlib.import_module("mutations").faults_of
    faults = [fault for table in TABLES for fault in faults_of(table)]
    assert [fault.name for fault in faults if selected(fault.tests, ids) == []] == []


PAGE = (ROOT / "CONTRIBUTING.md").read_text()
# The kind of a block, its file or name, and its text.
BLOCKS = re.findall(
    r"<!-- (file|line|command): (\S+) -->\n *```\w+\n(.*?)\n *```$", PAGE, re.M | re.S
)


def with_line(text, line):
    """The text with a line after those that begin alike."""
    beginning = re.match(r"\W*(from [\w.]+\.)?", line)
    before, last, after = text.rpartition("\n" + beginning[0])
    rest, end, following = after.partition("\n")
    return f"{before}{last}{rest}{end}{line}\n{following}"


@pytest.mark.parametrize("recipe", ["layer", "op"])
def test_the_steps_of_a_recipe_suffice(recipe, tmp_path):
    copy = tmp_path / "checkout"
    unneeded = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, copy, ignore=unneeded)
    steps = BLOCKS[: BLOCKS.index(next(b for b in BLOCKS if b[:2] == ("command", recipe)))]
    last = [n for n, (kind, *_) in enumerate(steps) if kind == "command"]
    for kind, name, block in steps[last[-1] + 1 if last else 0 :]:
        # The page indents blocks that belong to a step.
        lines = "\n".join(line.removeprefix("   ") for line in block.splitlines())
        file = copy / name
        file.write_text(lines + "\n" if kind == "file" else with_line(file.read_text(), lines))
    (commands,) = (
        dedent(block) for kind, name, block in BLOCKS if (kind, name) == ("command", recipe)
    )
    scripts = Path(sys.executable).parent
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(copy), "PYTEST_ADDOPTS": "-n 0"}
    done = subprocess.run(
        ["bash", "-euxc", commands], cwd=copy, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no tests ran" not in done.stdout
