"""The shared part of engines for GPUs: programs as kernels in text. Knows no driver."""
