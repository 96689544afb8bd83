"""A machine that runs PTX in NumPy, without a GPU."""
