"""Fusion: which tensors are stored, and which are computed together in one step."""
