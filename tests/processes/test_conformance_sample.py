"""The fixed sample of the conformance tests, for engines on which all of them take too long."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from layer_cases import LAYERS
from test_schedules import CONTRACTIONS

from lamina import ops

FOLDER = Path(__file__).parents[1] / "conformance"


@pytest.fixture(scope="module")
def sample() -> dict[str, list[str]]:
    """The cases of the sample, by test."""
    options = ["--engine=interpreter", "--sample", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", str(FOLDER), *options, "-n", "0"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parents[1])
    assert not said.returncode, said.stdout + said.stderr
    found: dict[str, list[str]] = defaultdict(list)
    for line in said.stdout.splitlines():
        case = re.search(r"::(\w+)\[interpreter-(.+)\]$", line)
        if case is not None:
            found[case[1]].append(case[2])
    return found


def test_the_sample_has_each_op_once(sample: dict[str, list[str]]) -> None:
    names = [case.partition("-")[0] for case in sample["test_op_equals_its_reference"]]
    assert sorted(names) == sorted(one.name for one in ops.ALL)


def test_the_sample_has_each_gradient_once(sample: dict[str, list[str]]) -> None:
    names = [case.partition("-")[0] for case in sample["test_gradient_equals_its_evaluation"]]
    differentiable = [
        one.name for one in ops.ALL if any(each.differentiable for each in one.samples)
    ]
    assert sorted(names) == sorted(differentiable)


def test_the_sample_has_each_op_with_all_schedules(sample: dict[str, list[str]]) -> None:
    contracted, others = (
        [case.partition("-")[0] for case in sample[f"test_{kind}_right_with_every_schedule"]]
        for kind in ("contraction_is", "loops_are")
    )
    assert sorted(contracted) == sorted(CONTRACTIONS)
    assert sorted([*contracted, *others]) == sorted(one.name for one in ops.ALL)


def test_the_sample_has_each_layer_once(sample: dict[str, list[str]]) -> None:
    assert sorted(sample["test_a_layer_between_products"]) == sorted(LAYERS)


def test_the_sample_has_both_halves_and_random_graphs(sample: dict[str, list[str]]) -> None:
    halves = [case.rpartition("-")[2] for case in sample["test_a_training_step_in_mixed_precision"]]
    assert halves.count("bf16") == halves.count("f16") >= 7
    assert len(sample["test_compiled_graph_equals_its_evaluation"]) == 12
