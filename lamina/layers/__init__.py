"""Layers: frozen records of hyper-parameters that build pieces of graph; one family a file."""

from lamina.layers.activation import ELU as ELU
from lamina.layers.activation import GELU as GELU
from lamina.layers.activation import SELU as SELU
from lamina.layers.activation import Hardtanh as Hardtanh
from lamina.layers.activation import LeakyReLU as LeakyReLU
from lamina.layers.activation import LogSoftmax as LogSoftmax
from lamina.layers.activation import ReLU as ReLU
from lamina.layers.activation import Sigmoid as Sigmoid
from lamina.layers.activation import SiLU as SiLU
from lamina.layers.activation import Softmax as Softmax
from lamina.layers.activation import Softplus as Softplus
from lamina.layers.activation import Tanh as Tanh
from lamina.layers.dropout import Dropout as Dropout
from lamina.layers.join import Add as Add
from lamina.layers.join import Concat as Concat
from lamina.layers.join import Multiply as Multiply
from lamina.layers.join import concat as concat
from lamina.layers.layer import Input as Input
from lamina.layers.layer import Layer as Layer
from lamina.layers.linear import Linear as Linear
from lamina.layers.regularizers import L1 as L1
from lamina.layers.regularizers import L2 as L2
from lamina.layers.scope import Scope as Scope
from lamina.layers.shape import Flatten as Flatten
from lamina.layers.shape import Rescale as Rescale
from lamina.layers.shape import Reshape as Reshape
