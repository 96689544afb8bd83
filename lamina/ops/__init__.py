"""Ops: mathematical operations. One record per op: shape rule, gradient, reference, lowering rule.

Comes in: tensors and checked attributes. Leaves: tensors; for the compiler, steps of a program.
`ALL` is the table of records, from which tests are generated. Read `elementwise.py` first.

Every function raises `ShapeError` or `DTypeError` if its operands do not fit, or if an extent that
must be fixed depends on the batch, and `DefinitionError` for an argument of another kind.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.ops.arithmetic import *
    from lamina.ops.attention import *
    from lamina.ops.broadcast import *
    from lamina.ops.clipping import *
    from lamina.ops.comparison import *
    from lamina.ops.conversion import *
    from lamina.ops.convolution import *
    from lamina.ops.creation import *
    from lamina.ops.differentiate import *
    from lamina.ops.division import *
    from lamina.ops.einsum import *
    from lamina.ops.elementwise import *
    from lamina.ops.factorization import *
    from lamina.ops.fourier import *
    from lamina.ops.gathering import *
    from lamina.ops.getitem import *
    from lamina.ops.indexing import *
    from lamina.ops.joining import *
    from lamina.ops.linalg import *
    from lamina.ops.movement import *
    from lamina.ops.norms import *
    from lamina.ops.pooling import *
    from lamina.ops.random import *
    from lamina.ops.rearranging import *
    from lamina.ops.recurrence import *
    from lamina.ops.reduce import *
    from lamina.ops.sampling import *
    from lamina.ops.scans import *
    from lamina.ops.slicing import *
    from lamina.ops.softmax import *
    from lamina.ops.sorting import *
    from lamina.ops.special_functions import *
    from lamina.ops.trigonometry import *
    from lamina.ops.windows import Window as Window

from importlib import import_module as _import_module

from lamina.base.lazy import imported_files as _imported_files
from lamina.graph import CONSTANT, LEAF, OPS, Op

# Each record enters the registry when its file is imported.
for _file in _imported_files(__name__):
    _import_module(_file)

ALL: tuple[Op, ...] = tuple(op for op in OPS.seal() if op not in (LEAF, CONSTANT))
