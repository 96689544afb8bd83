"""Running machine code: threads, executables, and the measured peaks of the processor.

Comes in: machine code, its layout, and arrays. Leaves: results. Nothing here writes code, except
for the peaks. Read `executable.py` first, then `thread_pool.py`.
"""
