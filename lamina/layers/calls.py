"""How users call layers, losses and the like: `lamina.graph.calls`, by their names here."""

from lamina.graph.calls import Called as Called
from lamina.graph.calls import checked as checked
