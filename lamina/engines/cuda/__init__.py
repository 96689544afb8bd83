"""The CUDA engine: devices, memory, compilation by NVRTC, and graphs of launches."""
