"""Optimizers: the updates of parameters from their gradients; one family a file.

Comes in: parameters, gradients, states. Leaves: their new values. An optimizer is a frozen record
that builds the update from ops, so it runs on every engine and is fused with the gradient.
Optimizers that PyTorch has too have its formulas and default values, but other names: `rate` is
PyTorch's `lr`. Read `optimizer.py` first.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.learning.optimizers.adagrad import *
    from lamina.learning.optimizers.adam import *
    from lamina.learning.optimizers.descent import *
    from lamina.learning.optimizers.lbfgs import *
    from lamina.learning.optimizers.optimizer import Optimizer as Optimizer
    from lamina.learning.optimizers.optimizer import Rate as Rate
    from lamina.learning.optimizers.wrappers import *
    from lamina.learning.optimizers.wrappers import Averaging as Averaging
    from lamina.learning.protocols import PerParameter as PerParameter
