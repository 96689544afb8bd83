"""The CPU engine: machine code for exactly one program and this processor, through llvmlite.

Comes in: a program. Leaves: an executable on the memory of the host. Only `llvm.py` uses llvmlite.
Read `compilation.py` first, then `native_program.py` and `run/executable.py`.
"""
