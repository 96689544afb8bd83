"""Lamina: train and run neural networks on any processor.

A network is a static, shape-checked value; from it Lamina derives the whole training step, fuses
it, plans every byte, and compiles it into one program before the first batch.
"""

__version__ = "0.1.0"

from lamina import data as data
from lamina import errors as errors
from lamina import ops as ops
from lamina.compiler.differentiate import gradients as gradients
from lamina.engines.discovery import devices as devices
from lamina.graph import Tensor as Tensor
from lamina.layers import ELU as ELU
from lamina.layers import GELU as GELU
from lamina.layers import L1 as L1
from lamina.layers import L2 as L2
from lamina.layers import SELU as SELU
from lamina.layers import Add as Add
from lamina.layers import Concat as Concat
from lamina.layers import Dropout as Dropout
from lamina.layers import Flatten as Flatten
from lamina.layers import Hardtanh as Hardtanh
from lamina.layers import Input as Input
from lamina.layers import Layer as Layer
from lamina.layers import LeakyReLU as LeakyReLU
from lamina.layers import Linear as Linear
from lamina.layers import LogSoftmax as LogSoftmax
from lamina.layers import Multiply as Multiply
from lamina.layers import ReLU as ReLU
from lamina.layers import Rescale as Rescale
from lamina.layers import Reshape as Reshape
from lamina.layers import Scope as Scope
from lamina.layers import Sigmoid as Sigmoid
from lamina.layers import SiLU as SiLU
from lamina.layers import Softmax as Softmax
from lamina.layers import Softplus as Softplus
from lamina.layers import Tanh as Tanh
from lamina.layers import concat as concat
from lamina.layers import init as init
from lamina.model import Model as Model
from lamina.model import compile as compile
from lamina.model import load as load
from lamina.network import Network as Network
from lamina.network import Sequential as Sequential
from lamina.training import schedules as schedules
from lamina.training.clipping import ClipGlobalNorm as ClipGlobalNorm
from lamina.training.clipping import ClipNorm as ClipNorm
from lamina.training.clipping import ClipValue as ClipValue
from lamina.training.losses import BCE as BCE
from lamina.training.losses import MAE as MAE
from lamina.training.losses import MSE as MSE
from lamina.training.losses import NLL as NLL
from lamina.training.losses import BCEWithLogits as BCEWithLogits
from lamina.training.losses import CrossEntropy as CrossEntropy
from lamina.training.losses import Hinge as Hinge
from lamina.training.losses import Huber as Huber
from lamina.training.losses import KLDivergence as KLDivergence
from lamina.training.losses import Triplet as Triplet
from lamina.training.metrics import F1 as F1
from lamina.training.metrics import R2 as R2
from lamina.training.metrics import Accuracy as Accuracy
from lamina.training.metrics import BinaryAccuracy as BinaryAccuracy
from lamina.training.metrics import ConfusionMatrix as ConfusionMatrix
from lamina.training.metrics import MeanAbsoluteError as MeanAbsoluteError
from lamina.training.metrics import MeanSquaredError as MeanSquaredError
from lamina.training.metrics import Precision as Precision
from lamina.training.metrics import Recall as Recall
from lamina.training.metrics import TopK as TopK
from lamina.training.optimizers import EMA as EMA
from lamina.training.optimizers import LAMB as LAMB
from lamina.training.optimizers import SGD as SGD
from lamina.training.optimizers import SWA as SWA
from lamina.training.optimizers import Adadelta as Adadelta
from lamina.training.optimizers import Adagrad as Adagrad
from lamina.training.optimizers import Adam as Adam
from lamina.training.optimizers import Adamax as Adamax
from lamina.training.optimizers import AdamW as AdamW
from lamina.training.optimizers import ByPath as ByPath
from lamina.training.optimizers import Lion as Lion
from lamina.training.optimizers import NAdam as NAdam
from lamina.training.optimizers import RMSProp as RMSProp
from lamina.training.optimizers import Rprop as Rprop
from lamina.verification import verify as verify
