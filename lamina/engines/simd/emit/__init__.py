"""Writing the kernels of a program in LLVM IR or OpenCL C: loops, contractions, packing.

Comes in: a program, and a module. Leaves: functions in the module's language, and the calls of each
step. `decide/` has decided how they run. Read `kernels.py` first, then `contractions.py`.
"""
