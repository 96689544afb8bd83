"""The CUDA engine: devices, memory, compilation by NVRTC, and graphs of launches.

Comes in: programs, and the kernels that `engines/gpu` writes for them. Leaves: launches on a device
of Nvidia. Only this folder imports CUDA's packages. Read `engine.py` first, then `driver.py`.
"""
