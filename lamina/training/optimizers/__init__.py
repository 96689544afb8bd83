"""Optimizers: the updates of parameters from their gradients; one family a file.

An optimizer is a frozen record that builds the update from ops, so that it runs on every engine
and is fused with the gradient. Optimizers that PyTorch has too have its formulas and default
values, but other names: `rate` is PyTorch's `lr`.
"""

from lamina.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.objective.protocols import PerParameter as PerParameter
    from lamina.training.optimizers.adagrad import Adadelta as Adadelta
    from lamina.training.optimizers.adagrad import Adagrad as Adagrad
    from lamina.training.optimizers.adagrad import RMSProp as RMSProp
    from lamina.training.optimizers.adam import LAMB as LAMB
    from lamina.training.optimizers.adam import Adam as Adam
    from lamina.training.optimizers.adam import Adamax as Adamax
    from lamina.training.optimizers.adam import AdamW as AdamW
    from lamina.training.optimizers.adam import NAdam as NAdam
    from lamina.training.optimizers.averaging import EMA as EMA
    from lamina.training.optimizers.averaging import SWA as SWA
    from lamina.training.optimizers.averaging import Averaging as Averaging
    from lamina.training.optimizers.by_path import ByPath as ByPath
    from lamina.training.optimizers.descent import SGD as SGD
    from lamina.training.optimizers.descent import Lion as Lion
    from lamina.training.optimizers.descent import Rprop as Rprop
    from lamina.training.optimizers.lbfgs import LBFGS as LBFGS
    from lamina.training.optimizers.optimizer import Optimizer as Optimizer
    from lamina.training.optimizers.optimizer import Rate as Rate
