"""The examples of the pages print the results that the pages show."""

import doctest
from pathlib import Path

import pytest

pytestmark = pytest.mark.each_case

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.cases(
    "page",
    "tour.md",
    "guide.md",
    "training.md",
    "losses.md",
    "optimizers.md",
    "data.md",
    "networks.md",
    "ops.md",
    "augmentation.md",
)
def test_examples_of_a_page_print_the_shown_results(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted >= 3
    assert found.failed == 0
