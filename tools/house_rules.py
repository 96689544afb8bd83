"""Checks the rules of the house that no linter knows: retired words, and the size of things.

    python tools/house_rules.py

Prints a line for each breach and ends with status 1 if there is any. Retired words are words that
once had a private meaning here; each line names the standard term. They are found in prose and in
names: `TeamSize`, `team_size` and `TEAM_SIZE` are read as "team size". A file of more than 500
lines is only listed: a file is as long as its subject. A layer has at most 40 lines besides its
docstrings.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("lamina", "tests", "benchmarks", "tools", "examples")
LAYERS = "lamina/layers"
PAGES = ("README.md", "CONTRIBUTING.md", "docs", "benchmarks/README.md")
TABLES = (
    *("tools/mutations", "pyproject.toml", ".pre-commit-config.yaml", ".ci/run"),
    "lamina/foreign/names.txt",
)
# These quote retired words.
EXEMPT = ("tools/house_rules.py", "tests/processes/test_tools.py")

MANY_LINES, MOST_LAYER_LINES = 500, 40


@dataclass(frozen=True)
class Retired:
    """A word that is used no more.

    Patterns are regular expressions of whole words in lower case. A space in them is any space, a
    line break in prose or a comment, an underscore, or a change of case in a name.

    Attributes:
        pattern: finds the word.
        instead: the standard term.
        within: the paths it is retired in; all, if there are none.
        names: whether it is retired in names of Python code only.
    """

    pattern: str
    instead: str
    within: tuple[str, ...] = ()
    names: bool = False

    def applies_to(self, path: str) -> bool:
        """Whether the word is retired in this file."""
        return path.startswith(self.within or "")


_ENGINES = ("lamina/engines", "lamina/codegen", "lamina/program")

WORDS = (
    Retired("teams?", "thread pool"),
    Retired("riders?", "fused column sum"),
    Retired("(?:training|inference) form", "training mode, inference mode"),
    Retired("forms?", "signature", within=_ENGINES, names=True),
    Retired("inner stride", "k_stride"),
    Retired("(?:attached (?:step|program)|recent steps)", "BatchRunner, CompiledProgram"),
    Retired("compiler[./]planned", "program cache"),
    Retired(
        "(?:step graph|inference step|training step)",
        "BatchGraph, training_graph",
        within=("lamina",),
        names=True,
    ),
)


def main() -> int:
    """Prints all breaches; gives the exit status."""
    print(*long_files(), sep="\n")
    breaches = [*breaches_of_words(), *breaches_of_layers()]
    for breach in breaches:
        print(breach)
    return int(bool(breaches))


def breaches_of_words(words: Sequence[Retired] = WORDS) -> Iterator[str]:
    """Retired words in code, pages and tables: `"path:line: 'word' is retired: say ..."`."""
    files = _files(CODE, "*.py") + _files(PAGES, "*.md") + _files(TABLES, "*.toml")
    for path in files:
        yield from breaches_in(path.relative_to(ROOT).as_posix(), path.read_text(), words)


def breaches_in(path: str, text: str, words: Sequence[Retired] = WORDS) -> Iterator[str]:
    """Retired words in a file's text, and in its path as line 0, in the order of the table."""
    applicable = [word for word in words if word.applies_to(path)]
    prose, names = spoken(f"{path}\n{text}"), ""
    if path.endswith(".py") and any(word.names for word in applicable):
        names = spoken(names_in(f"\n{text}"))
    for word in applicable:
        searched = names if word.names else prose
        for match in expression(word).finditer(searched):
            number = searched.count("\n", 0, match.start())
            told = " ".join(match[0].replace("#", " ").split())
            yield f"{path}:{number}: {told!r} is retired: say {word.instead}"


def spoken(text: str) -> str:
    """The text in lower case, with names split into words; its lines stay lines."""
    return _ENDS_OF_WORDS.sub(" ", text.replace("_", " ")).lower()


# Before a capital after a small letter, before the last capital of several, around numbers.
_ENDS_OF_WORDS = re.compile(
    r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
)


def names_in(text: str) -> str:
    """The names in Python code, and strings that could be names, each in its line."""
    lines: list[list[str]] = [[] for _ in range(text.count("\n") + 2)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME or token.string.strip("\"'").isidentifier():
            lines[token.start[0] - 1].append(token.string)
    return "\n".join(map(" , ".join, lines))


def expression(word: Retired) -> re.Pattern[str]:
    """Finds the whole word."""
    pattern = rf"(?<![a-z]){word.pattern}(?![a-z])"
    return re.compile(pattern.replace(" ", r"(?:\s|#)+"))


def long_files() -> Iterator[str]:
    """Files of many lines, for a reader who looks for two subjects in one file; no breaches."""
    for path in _files(CODE, "*.py"):
        if (count := len(path.read_text().splitlines())) > MANY_LINES:
            yield f"{path.relative_to(ROOT).as_posix()}: {count} lines"


def breaches_of_layers() -> Iterator[str]:
    """Public layers that are too long."""
    for path in _files((LAYERS,), "*.py"):
        for number, name, count in long_layers(path.read_text()):
            where = f"{path.relative_to(ROOT).as_posix()}:{number}"
            yield f"{where}: {name} has {count} lines, at most {MOST_LAYER_LINES}"


def long_layers(text: str) -> Iterator[tuple[int, str, int]]:
    """Public layers of more lines than allowed: the line, the name, the number of lines.

    A layer is a class of `__all__` with a base class. Base classes are private and may be longer.
    """
    lines, statements = text.splitlines(), ast.parse(text).body
    public = {
        part.value
        for node in statements
        if isinstance(node, ast.Assign | ast.AugAssign) and "__all__" in ast.unparse(node)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
    }
    for node in statements:
        if isinstance(node, ast.ClassDef) and node.bases and node.name in public:
            body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            documented = set(_lines_of_docstrings(node))
            count = sum(bool(lines[n - 1].strip()) and n not in documented for n in body)
            if count > MOST_LAYER_LINES:
                yield node.lineno, node.name, count


def _lines_of_docstrings(class_: ast.ClassDef) -> Iterator[int]:
    for node in ast.walk(class_):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def _files(roots: Sequence[str], pattern: str) -> list[Path]:
    found: list[Path] = []
    for root in roots:
        path = ROOT / root
        found += [path] if path.is_file() else sorted(path.rglob(pattern))
    return [path for path in found if path.relative_to(ROOT).as_posix() not in EXEMPT]


if __name__ == "__main__":
    sys.exit(main())
