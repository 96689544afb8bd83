"""The text of errors: where, problem, facts, advice."""

from lamina import errors
from lamina.errors import LaminaError


def test_every_error_is_a_lamina_error_with_a_docstring():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, Exception)]
    assert all(issubclass(kind, LaminaError | Warning | AttributeError) for kind in kinds)
    assert len(kinds) > 9
    assert all(kind.__doc__ for kind in kinds)


def test_location_problem_facts_and_advice_are_lines_with_a_column_of_facts():
    assert str(LaminaError("it is wrong")) == "it is wrong"
    assert str(LaminaError("it is wrong", where="net/1:Add")) == "in net/1:Add: it is wrong"
    error = LaminaError("it is wrong", facts=(("expected", "1"), ("found", "2")), advice="Fix it.")
    assert str(error) == "it is wrong\n  expected  1\n  found     2\n  Fix it."


def test_the_location_can_be_added_later_and_the_innermost_is_kept():
    error = LaminaError("it is wrong")
    assert error.at("net/1:Add") is error
    assert error.at("far").where == "net/1:Add"
