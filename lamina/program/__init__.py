"""Programs: steps over planned buffers, which engines run.

Comes in: steps, from the compiler. Leaves: programs, for engines. Both are records of this folder,
with their arithmetic. Nothing here knows a graph or a device. Read
`program.py` first, then `steps.py` and `index.py`.
"""
