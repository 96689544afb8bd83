"""`python -m lamina`: the command line, if `lamina` is not on the path."""

from lamina.cli import main

if __name__ == "__main__":
    main(prog_name="lamina")
