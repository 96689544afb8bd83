"""The OpenCL engine: programs on any device with a driver for OpenCL 1.2."""
