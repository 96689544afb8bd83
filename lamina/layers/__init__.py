"""Layers: frozen records of hyper-parameters that build graphs of ops; one family a file.

Comes in: tensors, and a scope that gives parameters. Leaves: tensors. Layers use ops and other
layers only. Read `linear.py` first, then `layer.py` and `scope.py`.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.layers.activation import *
    from lamina.layers.affine import *
    from lamina.layers.attention import *
    from lamina.layers.augmentation import *
    from lamina.layers.cells import *
    from lamina.layers.convolution import *
    from lamina.layers.dropout import *
    from lamina.layers.embedding import *
    from lamina.layers.ensemble import *
    from lamina.layers.image import *
    from lamina.layers.join import *
    from lamina.layers.layer import *
    from lamina.layers.linear import *
    from lamina.layers.mixing import *
    from lamina.layers.normalization import *
    from lamina.layers.pairs import *
    from lamina.layers.pooling import *
    from lamina.layers.recompute import *
    from lamina.layers.rectifiers import *
    from lamina.layers.recurrent import *
    from lamina.layers.regularizers import *
    from lamina.layers.scope import *
    from lamina.layers.shape import *
    from lamina.layers.tied import *
    from lamina.layers.upsampling import *
