"""Lowering: a group of tensors becomes one step, a loop nest or a contraction.

Comes in: the tensors of a group. Leaves: a step. Read `lower.py` first, then `pull.py`.
"""
