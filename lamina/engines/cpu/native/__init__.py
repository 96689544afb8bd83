"""The native code that runs jobs: kernels and phases, the claims of threads, and how they wait."""
