"""The interpreter engine: programs in NumPy, the specification of what a program means."""
