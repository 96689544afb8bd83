"""Running machine code: assembling and caching it, threads, jobs, executables."""
