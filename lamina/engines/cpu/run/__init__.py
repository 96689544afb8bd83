"""Running machine code: threads, executables, and what the processor reaches at most."""
