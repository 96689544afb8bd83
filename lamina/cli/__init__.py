"""The command line: `lamina demo`, `lamina train FILE.py`, `lamina plan FILE.py` and more.

Comes in: words of the shell and files of the user. Leaves: printed tables, files, an exit status.
Commands load the modules that they need when they run, so that `lamina --help` is fast. Read
`commands.py` first.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.cli.commands import main as main
    from lamina.cli.definition import Definition as Definition
    from lamina.cli.definition import read_definition as read_definition
    from lamina.cli.definition import read_layers as read_layers
    from lamina.cli.demo import run_demo as run_demo
    from lamina.cli.device_list import details_text as details_text
    from lamina.cli.device_list import devices_text as devices_text
    from lamina.cli.loading import is_table as is_table
    from lamina.cli.loading import load_data as load_data
    from lamina.cli.loading import table_inputs as table_inputs
    from lamina.cli.progress import best_model_written as best_model_written
    from lamina.cli.progress import callbacks as callbacks
    from lamina.cli.progress import epoch_lines as epoch_lines
    from lamina.cli.progress import on_terminal as on_terminal
    from lamina.cli.progress import result_lines as result_lines
    from lamina.cli.writing import csv_text as csv_text
    from lamina.cli.writing import write_outputs as write_outputs
