"""Checks of the arguments of public classes and functions, before their code runs.

Comes in: a caller's value and the annotation of its parameter. Leaves: the value in plain form, or
an error that says what was expected. Nothing here knows a tensor. Read `kinds.py` first.
"""

from lamina.checks.calls import Called as Called
from lamina.checks.calls import Interface as Interface
from lamina.checks.calls import checked as checked
from lamina.checks.calls import checked_as_given as checked_as_given
from lamina.checks.calls import kind_of as kind_of
from lamina.checks.calls import refused as refused
from lamina.checks.calls import without_init as without_init
