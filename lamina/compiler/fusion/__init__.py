"""Fusion: which tensors are stored, and which are computed together in one step.

Comes in: a graph, and the target's costs. Leaves: groups of tensors, in order. Read `fuse.py`
first, then `anchors.py` and `groups.py`.
"""
