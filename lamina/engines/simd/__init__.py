"""Kernels for processors: vectors, register tiles and packing, in any builder's language.

Comes in: a program, and the properties of a processor. Leaves: its kernels. Nothing here runs them.
Read `decide/program.py` first, then `emit/kernels.py`.
"""
