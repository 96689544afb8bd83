"""The graph of one batch: inference, evaluation, or a training step.

Comes in: a network, the loss and optimizer of `learning`, and what is known of the data. Leaves: a
graph with every precision, rounding and gradient in it, the shapes of its arrays, and its bill.
Nothing here compiles for a device or runs. Read `derive.py` first.
"""
