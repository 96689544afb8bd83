"""Model files and checkpoints; every write is atomic, and reading runs no code."""
