"""Checks of the arguments of public classes and functions, before their code runs."""

from lamina.checks.calls import Called as Called
from lamina.checks.calls import Interface as Interface
from lamina.checks.calls import checked as checked
from lamina.checks.calls import checked_as_given as checked_as_given
from lamina.checks.calls import kind_of as kind_of
from lamina.checks.calls import refused as refused
