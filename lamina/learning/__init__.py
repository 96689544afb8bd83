"""What is learned, as pure functions of tensors: losses, metrics, optimizers, schedules, clipping.

Comes in: the outputs of a network, targets, weights of examples, parameters and gradients, all as
tensors of a graph. Leaves: tensors. Nothing here runs a batch, owns an array or knows an engine.
Read `protocols.py` first, then `losses/regression.py` and `optimizers/descent.py`.
"""
