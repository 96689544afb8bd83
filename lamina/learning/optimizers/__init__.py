"""Optimizers: the updates of parameters from their gradients; one family a file.

An optimizer is a frozen record that builds the update from ops, so that it runs on every engine
and is fused with the gradient. Optimizers that PyTorch has too have its formulas and default
values, but other names: `rate` is PyTorch's `lr`.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.learning.optimizers.adagrad import Adadelta as Adadelta
    from lamina.learning.optimizers.adagrad import Adagrad as Adagrad
    from lamina.learning.optimizers.adagrad import RMSProp as RMSProp
    from lamina.learning.optimizers.adam import LAMB as LAMB
    from lamina.learning.optimizers.adam import Adam as Adam
    from lamina.learning.optimizers.adam import Adamax as Adamax
    from lamina.learning.optimizers.adam import AdamW as AdamW
    from lamina.learning.optimizers.adam import NAdam as NAdam
    from lamina.learning.optimizers.averaging import EMA as EMA
    from lamina.learning.optimizers.averaging import SWA as SWA
    from lamina.learning.optimizers.averaging import Averaging as Averaging
    from lamina.learning.optimizers.by_path import ByPath as ByPath
    from lamina.learning.optimizers.descent import SGD as SGD
    from lamina.learning.optimizers.descent import Lion as Lion
    from lamina.learning.optimizers.descent import Rprop as Rprop
    from lamina.learning.optimizers.lbfgs import LBFGS as LBFGS
    from lamina.learning.optimizers.optimizer import Optimizer as Optimizer
    from lamina.learning.optimizers.optimizer import Rate as Rate
    from lamina.learning.protocols import PerParameter as PerParameter
