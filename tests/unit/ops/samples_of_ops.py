"""Tests with all samples of an op in one."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

from lamina.graph import Op, Sample

Check = Callable[[Op, Sample], None]


def for_each_op(
    cases: Iterable[Any], sampled: Collection[str] = ()
) -> Callable[[Check], Callable[[str], None]]:
    """A test for each op; a failure names the sample.

    Args:
        cases: a `pytest.param(op, sample, id=...)` for each sample.
        sampled: the names of ops whose tests take long.
    """
    samples: defaultdict[str, list[Any]] = defaultdict(list)
    for case in cases:
        samples[case.values[0].name].append(case)

    def decorate(check: Check) -> Callable[[str], None]:
        @pytest.mark.parametrize(
            "name",
            [pytest.param(key, marks=[pytest.mark.sampled] * (key in sampled)) for key in samples],
        )
        def test(name):
            for case in samples[name]:
                try:
                    check(*case.values)
                except Exception as error:
                    error.add_note(f"with the sample {case.id}")
                    raise

        return test

    return decorate
