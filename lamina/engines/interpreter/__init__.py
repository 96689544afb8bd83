"""The interpreter engine: programs in NumPy. It specifies the meaning of programs.

Comes in: a program, and arrays. Leaves: results. Nothing here writes code. Read `run.py` first.
"""
