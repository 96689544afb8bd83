"""The text of errors: where, problem, facts, advice."""

from __future__ import annotations

import inspect

import pytest

from lamina import errors
from lamina.errors import LaminaError, ShapeError, missing_extra

KINDS = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_lamina_error(kind: type[Exception]) -> None:
    assert issubclass(kind, LaminaError)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_is_for(kind: type[Exception]) -> None:
    assert kind.__doc__


def test_a_problem_alone_is_one_line() -> None:
    assert str(LaminaError("it is wrong")) == "it is wrong"


def test_the_place_comes_first() -> None:
    assert str(LaminaError("it is wrong", where="net/1:Add")) == "in net/1:Add: it is wrong"


def test_facts_stand_in_a_column() -> None:
    error = LaminaError("it is wrong", facts=(("expected", "1"), ("found", "2")), advice="Fix it.")
    assert str(error) == "it is wrong\n  expected  1\n  found     2\n  Fix it."


def test_the_place_can_be_named_later() -> None:
    error = LaminaError("it is wrong")
    assert error.at("net/1:Add") is error
    assert error.where == "net/1:Add"


def test_a_place_nearer_to_the_fault_is_kept() -> None:
    assert LaminaError("it is wrong", where="near").at("far").where == "near"


def test_the_parts_can_be_read_by_programs() -> None:
    error = ShapeError("no fit", facts=(("left", "[2]"),), advice="Reshape.", where="here")
    parts = (error.problem, error.facts, error.advice, error.where)
    assert parts == ("no fit", (("left", "[2]"),), "Reshape.", "here")


def test_a_missing_package_comes_with_the_command_that_installs_it() -> None:
    assert str(missing_extra("h5py", "data", "reading train.h5")) == (
        "reading train.h5 needs the package h5py, which is not installed\n"
        '  Install it with: pip install "lamina[data]"'
    )
