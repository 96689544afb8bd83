"""The command line: `lamina demo`, `lamina train FILE.py`, `lamina plan FILE.py` and more.

Comes in: words of the shell and files of the user. Leaves: printed tables, files, an exit status.
Commands load the modules that they need when they run, so that `lamina --help` is fast. Read
`commands.py` first.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.cli.commands import main as main
