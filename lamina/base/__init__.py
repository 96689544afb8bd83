"""What every folder uses: records, shapes and dtypes, lazy packages, files and caches, interrupts.

Comes in: plain values and paths. Leaves: checked records, and files that are never half written.
Nothing here knows a tensor or a network. Read `shapes.py` first.
"""
