"""Checks whether tests find faults: puts each fault of a table into a copy of the sources.

    python tools/mutations.py tools/mutations/cpu.toml [--only TEXT ...] [--all]

A table names the arguments of pytest, and the faults. A fault has a file, a text that the file
contains exactly once, and the wrong text that replaces it. It may name other tests. Printed is the
first test that failed for each fault or, with `--all`, how many failed. The exit status is 1 if no
test failed for some fault, and 2 if a table does not fit the sources.

    tests = ["tests/conformance", "--engine=cpu"]

    [[faults]]
    name = "the last vector of a reduction is skipped"
    file = "lamina/engines/simd/emit/loops.py"
    old = "if left:"
    new = "if False:"
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The files of a checkout that tests need.
COPIED = ("lamina", "tests", "tools", "examples", "pyproject.toml", "README.md")
# With a fault, a program may never end.
LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Fault:
    """A mistake in one file.

    Attributes:
        name: describes the mistake.
        file: the path in the checkout.
        old, new: the text, and its replacement.
        tests: the arguments of pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def problem(self) -> str:
        """Why the fault does not fit the sources; "" if it fits."""
        path = ROOT / self.file
        if not path.is_file():
            return f"there is no {self.file}"
        count = path.read_text(encoding="utf-8").count(self.old)
        return "" if count == 1 else f"{self.file} has the text {count} times, not once"


def faults_of(table: Path) -> list[Fault]:
    """The faults that a table lists."""
    with table.open("rb") as file:
        content = tomllib.load(file)
    common = content.get("tests", [])
    return [
        Fault(row["name"], row["file"], row["old"], row["new"], tuple(row.get("tests", common)))
        for row in content["faults"]
    ]


def run_tests(copy: Path, arguments: tuple[str, ...], *, everything: bool) -> tuple[str, float]:
    """The failed tests in a copy of the sources, "" if none failed; and the seconds it took."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    if not everything:
        command.append("-x")
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    begin = time.monotonic()
    try:
        result = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            text=True,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "the tests did not end", time.monotonic() - begin
    seconds = time.monotonic() - begin
    if result.returncode == 0:
        return "", seconds
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", result.stdout, re.MULTILINE)
    if everything and failed:
        return f"{len(failed)} tests, the first one {failed[0]}", seconds
    ending = (result.stdout + result.stderr).strip().splitlines()[-1:]
    return failed[0] if failed else f"status {result.returncode}: {''.join(ending)}", seconds


def main() -> int:
    """Runs the tests for each fault; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", type=Path, help="a TOML file that lists faults")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="only faults whose names have these"
    )
    parser.add_argument("--all", action="store_true", help="do not stop at the first failure")
    arguments = parser.parse_args()
    faults = [
        fault
        for fault in faults_of(arguments.table)
        if any(text in fault.name for text in arguments.only)
    ]
    problems = [f"{fault.name}: {fault.problem()}" for fault in faults if fault.problem()]
    if problems:
        print(*problems, sep="\n")
        return 2
    missed = 0
    with tempfile.TemporaryDirectory(prefix="lamina-mutations-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        for tests in dict.fromkeys(fault.tests for fault in faults):
            failure, _ = run_tests(copy, tests, everything=False)
            if failure:
                print(f"without any fault there fails {failure}")
                return 2
        for fault in faults:
            path = copy / fault.file
            original = path.read_text(encoding="utf-8")
            path.write_text(original.replace(fault.old, fault.new), encoding="utf-8")
            failure, seconds = run_tests(copy, fault.tests, everything=arguments.all)
            path.write_text(original, encoding="utf-8")
            missed += not failure
            print(f"{fault.name}\n    {failure or 'NOT FOUND'} ({seconds:.0f} s)", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
