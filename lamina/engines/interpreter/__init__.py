"""The interpreter engine: programs in NumPy. It specifies the meaning of programs."""
