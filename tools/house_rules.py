"""Checks the rules of the house that no linter knows: retired words, and the size of things.

    python tools/house_rules.py

Prints a line for each breach and ends with status 1 if there is any. Retired words are words that
once had a private meaning here; each line names the standard term. A file of more than 600 lines,
or a function of more than 70, says "Long because ..." in its first lines.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("lamina", "tests", "benchmarks", "tools", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "docs", "benchmarks/README.md")
# These quote retired words.
EXEMPT = ("tools/house_rules.py", "tests/unit/test_house_rules.py")

MOST_LINES, MOST_FUNCTION_LINES = 600, 70
# A reason is among so many lines of a file or function.
FIRST_LINES = 10
REASON = "Long because"


@dataclass(frozen=True)
class Retired:
    """A word that is used no more.

    Attributes:
        pattern: a regular expression that finds it.
        instead: the standard term.
        within: the paths it is retired in; all, if there are none.
        but: the paths where it means something else.
    """

    pattern: str
    instead: str
    within: tuple[str, ...] = ()
    but: tuple[str, ...] = ()


ENGINES = (
    "lamina/engines",
    "lamina/codegen",
    "lamina/program",
    "docs/cpu.md",
    "docs/opencl.md",
)
_GATES = (
    "lamina/layers",
    "lamina/ops",
    "lamina/networks",
    "benchmarks/peers",
    "docs/layers.md",
    "docs/ops.md",
)

WORDS = (
    Retired(r"\bteams?\b", "thread pool"),
    Retired(r"\b_?gates?\b", "barrier, lock", but=(*_GATES, "tests", "lamina/calls")),
    Retired(r"\bmend(s|ed|ing)?\b", "reset, repair"),
    Retired(r"\briders?\b", "fused column sum"),
    Retired(
        r"\b\w*_turns?\b|\bturns?_\w+|\bTurn\b|\bturned_\w+|\w+_turned\b|\bturned in registers"
        r"|\bturns?\b(?! (?:a|an|the|each|it|them|some|off|on|into|out|noise|missing|-0)\b)",
        "iteration, model lock, transpose",
    ),
    Retired(r"\b(Placed|Repeated|Written)?Parts?\b", "kernel", within=("lamina/engines",)),
    Retired(r"\bPART_\w+|\bwrite_parts\b", "kernel"),
    Retired(
        r"(?<![.])\bparts\b(?! of\b)|(?<!take )(?<!takes )(?<!taking )\bpart\b(?! of\b)",
        "kernel, scalar, half",
        within=("lamina/engines", "lamina/codegen", "lamina/program"),
    ),
    Retired(
        r"(?<!tests/)(?<!compute )(?<!compute_)(?<!byte )\bunits?\b"
        r"(?! in the last place| of compilation)",
        "work item",
        within=ENGINES,
    ),
    Retired(r"\bplaces\b|\bplaces_\w+|\b\w+_places\b", "positions, locations, coordinates"),
    Retired(r"\bplace_of\b|\bPlace\b|\b_place\b", "position, location"),
    Retired(r"\bahead\b|\bK_AHEAD\b|_ahead\b", "prepacked; prefetch distance"),
    Retired(r"\bminimal\b", "Winograd", within=("lamina",)),
    Retired(r"\b_?Ways?\b", "variant, candidate", within=("lamina",)),
    Retired(r"\b(training|inference) form\b", "training mode, inference mode"),
    Retired(r"\bForm\b", "signature", within=("lamina/engines",)),
    Retired(r"\brow_cuts\b|\bcuts along k\b", "split-M, split-K"),
    Retired(r"\binner_stride\b", "k_stride"),
    Retired(r"\b(Prepared|Attached|RecentSteps)\b", "CompiledProgram, BatchRunner"),
    Retired(r"compiler[./]planned\b", "program cache"),
    Retired(r"\bdear(er|est)?\b", "expensive"),
    Retired(r"\b(StepGraph|inference_step|training_step)\b", "BatchGraph, training_graph"),
)


def main() -> int:
    """Prints all breaches; gives the exit status."""
    breaches = [*breaches_of_words(), *breaches_of_size()]
    for breach in breaches:
        print(breach)
    return int(bool(breaches))


def breaches_of_words(words: Sequence[Retired] = WORDS) -> Iterator[str]:
    """Retired words in code and pages: `"path:line: 'word': say ..."`."""
    for path in _files(CODE, "*.py") + _files(PAGES, "*.md"):
        name = path.relative_to(ROOT).as_posix()
        known = [
            (re.compile(word.pattern), word.instead)
            for word in words
            if (not word.within or name.startswith(word.within)) and not name.startswith(word.but)
        ]
        yield from breaches_in(name, path.read_text(), known)


def breaches_in(
    name: str, text: str, words: Sequence[tuple[re.Pattern[str], str]]
) -> Iterator[str]:
    """Retired words in a text."""
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern, instead in words:
            found = pattern.search(line)
            if found:
                yield f"{name}:{number}: {found[0]!r} is retired: say {instead}"


def breaches_of_size() -> Iterator[str]:
    """Files and functions that are too long and give no reason."""
    for path in _files(CODE, "*.py"):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text()
        lines = text.splitlines()
        if len(lines) > MOST_LINES and not _has_reason(lines):
            yield f"{name}: {len(lines)} lines, at most {MOST_LINES} or a reason"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = lines[node.lineno - 1 : node.end_lineno]
                if len(own) > MOST_FUNCTION_LINES and not _has_reason(own):
                    yield f"{name}:{node.lineno}: {node.name} has {len(own)} lines"


def _has_reason(lines: Sequence[str]) -> bool:
    return any(REASON in line for line in lines[:FIRST_LINES])


def _files(roots: Sequence[str], pattern: str) -> list[Path]:
    found: list[Path] = []
    for root in roots:
        path = ROOT / root
        found += [path] if path.is_file() else sorted(path.rglob(pattern))
    return [path for path in found if path.relative_to(ROOT).as_posix() not in EXEMPT]


if __name__ == "__main__":
    sys.exit(main())
