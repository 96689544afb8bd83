"""The shared part of engines for GPUs: programs as kernels in text. Knows no driver.

Comes in: a program, and the `Driver` of a device. Leaves: an executable that launches kernels
through it. Read `engine.py` first, then `family.py`, `kernels.py` and `executable.py`.
"""
