"""What engines for GPUs share: programs as kernels in text. Knows no driver."""
