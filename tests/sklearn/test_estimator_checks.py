"""All checks of scikit-learn for estimators: none is skipped, none is expected to fail."""

from unittest import SkipTest

import pytest

pytest.importorskip("sklearn", "1.6")

import sklearn
from sklearn.utils.estimator_checks import parametrize_with_checks

from lamina.sklearn import LaminaClassifier, LaminaEmbedding, LaminaRegressor

ESTIMATORS = [LaminaClassifier(), LaminaRegressor(), LaminaEmbedding()]
# How many there are at least, by the version of scikit-learn: its mends may add some.
COUNTS = {"1.6": 178, "1.7": 181, "1.8": 181, "1.9": 184}
GIVEN = parametrize_with_checks(ESTIMATORS)
CHECKS = list(GIVEN.args[1])


@pytest.mark.parametrize(("estimator", "check"), CHECKS, **GIVEN.kwargs)
def test_the_checks_of_scikit_learn(estimator, check, monkeypatch):
    # Arrays of other libraries are checked only with this.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"skipped: {skipped}")


def test_no_check_is_missing():
    version = ".".join(sklearn.__version__.split(".")[:2])
    assert len(CHECKS) >= COUNTS.get(version, max(COUNTS.values()))
