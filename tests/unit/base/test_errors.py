"""The text of errors: where, problem, facts, advice."""

import inspect

import pytest

from lamina import errors
from lamina.errors import LaminaError, ShapeError, missing_extra

KINDS = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value)
    and issubclass(value, Exception)
    and not issubclass(value, Warning | AttributeError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_lamina_error_with_a_docstring(kind):
    assert issubclass(kind, LaminaError)
    assert kind.__doc__


def test_location_problem_facts_and_advice_are_lines_with_a_column_of_facts():
    assert str(LaminaError("it is wrong")) == "it is wrong"
    assert str(LaminaError("it is wrong", where="net/1:Add")) == "in net/1:Add: it is wrong"
    error = LaminaError("it is wrong", facts=(("expected", "1"), ("found", "2")), advice="Fix it.")
    assert str(error) == "it is wrong\n  expected  1\n  found     2\n  Fix it."


def test_the_location_can_be_added_later_and_the_innermost_is_kept():
    error = LaminaError("it is wrong")
    assert error.at("net/1:Add") is error
    assert error.at("far").where == "net/1:Add"


def test_problem_facts_advice_and_location_are_attributes():
    error = ShapeError("no fit", facts=(("left", "[2]"),), advice="Reshape.", where="here")
    attributes = (error.problem, error.facts, error.advice, error.where)
    assert attributes == ("no fit", (("left", "[2]"),), "Reshape.", "here")


def test_a_missing_package_comes_with_the_command_that_installs_it():
    assert str(missing_extra("h5py", "data", "reading train.h5")) == (
        "reading train.h5 needs the package h5py, which is not installed\n"
        '  Install it with: pip install "lamina[data]"'
    )
