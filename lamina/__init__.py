"""Lamina: train and run neural networks on any processor.

A network is an immutable, shape-checked value. Lamina derives the training step from it, fuses its
ops, plans its memory to the byte, and compiles it to one program before the first batch.

Examples in docstrings assume `import lamina as lm`.
"""

from lamina.base.lazy import loaded_when_used

__version__ = "0.1.0"

if not loaded_when_used(__name__):
    from lamina import data as data
    from lamina import errors as errors
    from lamina import networks as networks
    from lamina import ops as ops
    from lamina import training as training
    from lamina.engines.discovery import devices as devices
    from lamina.graph import Tensor as Tensor
    from lamina.layers import *
    from lamina.layers import init as init
    from lamina.layers.gradients import gradients as gradients
    from lamina.learning import schedules as schedules
    from lamina.learning.by_output import ByOutput as ByOutput
    from lamina.learning.by_output import FunctionMetric as FunctionMetric
    from lamina.learning.clipping import ClipGlobalNorm as ClipGlobalNorm
    from lamina.learning.clipping import ClipNorm as ClipNorm
    from lamina.learning.clipping import ClipValue as ClipValue
    from lamina.learning.losses.binary import *
    from lamina.learning.losses.classification import *
    from lamina.learning.losses.distributions import *
    from lamina.learning.losses.embeddings import *
    from lamina.learning.losses.margins import *
    from lamina.learning.losses.regression import *
    from lamina.learning.losses.sequences import *
    from lamina.learning.metrics.classification import *
    from lamina.learning.metrics.confusion import *
    from lamina.learning.metrics.probabilities import *
    from lamina.learning.metrics.ranking import *
    from lamina.learning.metrics.regression import *
    from lamina.learning.optimizers.adagrad import *
    from lamina.learning.optimizers.adam import *
    from lamina.learning.optimizers.descent import *
    from lamina.learning.optimizers.lbfgs import *
    from lamina.learning.optimizers.wrappers import *
    from lamina.model import Model as Model
    from lamina.model import from_torch as from_torch
    from lamina.model import load as load
    from lamina.network import Network as Network
    from lamina.network import Sequential as Sequential
    from lamina.population import Population as Population
    from lamina.runtime.function import compile as compile
    from lamina.training import callbacks as callbacks
    from lamina.training.callbacks import Callback as Callback
    from lamina.training.verification import verify as verify
