"""Writing the machine code of a program: loops, micro-kernels, packing, convolutions."""
