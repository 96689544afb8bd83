"""Running machine code: threads, executables, and the measured peaks of the processor."""
