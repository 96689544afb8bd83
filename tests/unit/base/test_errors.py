"""The text of errors: where, problem, facts, advice."""

import inspect

import pytest

from lamina import errors
from lamina.errors import LaminaError

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
