"""Model files and checkpoints; every write is atomic, and reading runs no code.

Comes in: a network and arrays, or the bytes of a file, which may be hostile. Leaves: the other one.
Read `model_file.py` first.
"""
