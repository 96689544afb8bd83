"""The native code that runs jobs: kernels and phases, the claims of threads, and how they wait.

Comes in: kernels, in phases. Leaves: the functions with which threads run them. Nothing here writes
a kernel. Read `jobs.py` first, then `scheduler.py`.
"""
