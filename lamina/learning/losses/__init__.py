"""Losses: the error of a prediction as one number; one family a file.

Comes in: a prediction, a target and weights, as tensors. Leaves: a tensor. A loss is a frozen
record that builds its graph from ops, so its gradient is derived and it is fused with the network.
It gives the loss of each element; the base reduces them. All formulas are PyTorch's, or Keras'
where only Keras has the loss. Read `loss.py` first.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.learning.losses.binary import *
    from lamina.learning.losses.classification import *
    from lamina.learning.losses.distributions import *
    from lamina.learning.losses.embeddings import *
    from lamina.learning.losses.loss import Elements as Elements
    from lamina.learning.losses.loss import Loss as Loss
    from lamina.learning.losses.margins import *
    from lamina.learning.losses.regression import *
    from lamina.learning.losses.sequences import *
