"""A layer and an op are added to a copy of the checkout by the steps of CONTRIBUTING.md."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "CONTRIBUTING.md").read_text()
# The kind of a block, its file or name, and its text.
BLOCKS = re.findall(
    r"<!-- (file|line|command): (\S+) -->\n *```\w+\n(.*?)\n *```$", PAGE, re.M | re.S
)


def with_line(text, line):
    """The text with a line after those that begin alike."""
    beginning = re.match(r"\W*(from [\w.]+\.)?", line)
    assert beginning is not None
    before, last, after = text.rpartition("\n" + beginning[0])
    rest, end, following = after.partition("\n")
    return f"{before}{last}{rest}{end}{line}\n{following}"


@pytest.mark.parametrize("recipe", ["layer", "op"])
def test_the_steps_of_a_recipe_suffice(recipe, tmp_path):
    copy = tmp_path / "checkout"
    unneeded = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(CHECKOUT, copy, ignore=unneeded)
    steps = BLOCKS[: BLOCKS.index(next(b for b in BLOCKS if b[:2] == ("command", recipe)))]
    last = [n for n, (kind, *_) in enumerate(steps) if kind == "command"]
    for kind, name, block in steps[last[-1] + 1 if last else 0 :]:
        # The page indents blocks that belong to a step.
        lines = "\n".join(one.removeprefix("   ") for one in block.splitlines())
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
