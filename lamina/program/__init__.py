"""Programs: steps over planned buffers, which engines run.

Comes in: nothing; these are the records between compiler and engines, with their arithmetic.
Nothing here knows a graph or a device. Read `program.py` first, then `steps.py` and `index.py`.
"""
