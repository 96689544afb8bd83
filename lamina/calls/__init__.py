"""Checks of the arguments of public classes and functions, before their code runs."""

from lamina.calls.calls import Called as Called
from lamina.calls.calls import Interface as Interface
from lamina.calls.calls import Tensors as Tensors
from lamina.calls.calls import checked as checked
from lamina.calls.calls import checked_as_given as checked_as_given
from lamina.calls.calls import kind_of as kind_of
from lamina.calls.calls import refused as refused
