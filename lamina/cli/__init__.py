"""The command line: `lamina demo`, `lamina train FILE.py`, `lamina plan FILE.py` and more."""

from lamina.cli.commands import main as main
