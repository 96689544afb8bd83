"""What every folder uses: records, shapes and dtypes, lazy packages, files and caches, interrupts.

Nothing here knows a tensor or a network. Read `shapes.py` first.
"""
