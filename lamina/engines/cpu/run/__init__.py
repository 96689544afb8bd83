"""Running machine code: compiling and keeping it, threads, jobs, executables."""
