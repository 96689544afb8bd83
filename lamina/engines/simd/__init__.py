"""Kernels for processors: vectors, register tiles and packing, in any builder's language."""
