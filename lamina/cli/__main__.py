"""`python -m lamina.cli`, for where the `lamina` command is not on the path."""

from lamina.cli.commands import main

main(prog_name="lamina")
