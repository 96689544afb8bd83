"""Code generation shared by all engines that compile: from programs to text, for any device.

Comes in: steps of a program. Leaves: instructions, through a `Builder` that writes LLVM IR, OpenCL
C, CUDA or plain C. Nothing here knows a device or a graph. Read `builder.py` first, then `nest.py`.
"""
