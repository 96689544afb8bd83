"""Lowering: a group of tensors becomes one step, a loop nest or a contraction."""
