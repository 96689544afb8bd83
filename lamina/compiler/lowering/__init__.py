"""Lowering: what a group of tensors becomes, a loop nest or a contraction."""
