"""The OpenCL engine: programs on any device with a driver for OpenCL 1.2.

Comes in: programs, and the kernels that `engines/gpu` or `engines/simd` writes for them. Leaves:
launches. Only this folder imports pyopencl. Read `engine.py` first, then `driver.py`.
"""
